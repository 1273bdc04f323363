//! Which host a request may name: this machine, an IP address, or a name that the builder was
//! given.
//!
//! Why the host is checked: a page from elsewhere can let its own name point to this machine after
//! a browser has loaded it (DNS rebinding). For the browser the endpoint then belongs to the page,
//! and the page's script may read the statistics. Such a request names the page's host. No name
//! server can redirect an IP address or `localhost`, so requests that name one of them come from a
//! client that means this machine.
//!
//! Invariant: an absolute target and the `Host` header are both checked.

use corewheel::ConfigError;
use hyper::body::Body;
use hyper::header::HOST;
use hyper::{Request, Version};

/// The most bytes of a host's name.
const NAME_LEN_MAX: usize = 253;

/// The names that are allowed besides IP addresses and names of loopback, in lower case and without
/// a final dot.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(Vec<String>);

/// Why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostError {
    /// The request has no host, more than one, or one that is none.
    Malformed(&'static str),
    /// The host's name is not allowed.
    Foreign,
}

impl Hosts {
    /// Allows a name, without a scheme and a port.
    pub(super) fn allow(&mut self, name: &str) -> Result<(), ConfigError> {
        let name = normal(name);
        if !is_name(&name) {
            let limit = format!(
                "a host's name has 1 to {NAME_LEN_MAX} letters, digits, dots, hyphens and \
                 underscores"
            );
            let remedy = "name the host without a scheme and a port, such as stats.example";
            return Err(ConfigError::new("allow_host", name, limit, remedy));
        }
        self.0.push(name);
        Ok(())
    }

    /// Checks the host in the target and the host in the `Host` header. A request of HTTP/1.0 needs
    /// no `Host`: no browser sends such a request, and the health checks of load balancers do.
    pub(super) fn check(&self, request: &Request<impl Body>) -> Result<(), HostError> {
        // Its `host` would be `[::1]` for the target `http://[::1]evil`.
        if let Some(authority) = request.uri().authority() {
            self.check_host(without_port(authority.as_str()).ok_or(NOT_A_HOST)?)?;
        }
        let mut headers = request.headers().get_all(HOST).iter();
        match (headers.next(), headers.next()) {
            (None, _) if request.version() == Version::HTTP_10 => Ok(()),
            // HTTP/2 names the host in the target, which was checked.
            (None, _) if request.version() >= Version::HTTP_2 && request.uri().host().is_some() => {
                Ok(())
            }
            (None, _) => Err(HostError::Malformed("name the host in a Host header")),
            (Some(_), Some(_)) => Err(HostError::Malformed("name the host in one Host header")),
            (Some(host), None) => {
                let host = host.to_str().ok().and_then(without_port);
                self.check_host(host.ok_or(NOT_A_HOST)?)
            }
        }
    }

    /// Checks a host without its port.
    fn check_host(&self, host: &str) -> Result<(), HostError> {
        if let Some(address) = host.strip_prefix('[') {
            let address = address.strip_suffix(']').ok_or(NOT_A_HOST)?;
            return address.parse().map(|_: std::net::Ipv6Addr| ()).map_err(|_| NOT_A_HOST);
        }
        let name = normal(host);
        if !is_name(&name) {
            return Err(NOT_A_HOST);
        }
        let is_address = name.parse::<std::net::Ipv4Addr>().is_ok();
        let is_loopback = name == "localhost" || name.ends_with(".localhost");
        if is_address || is_loopback || self.0.contains(&name) {
            Ok(())
        } else {
            Err(HostError::Foreign)
        }
    }
}

const NOT_A_HOST: HostError =
    HostError::Malformed("the Host header must be a name or an IP address, and a port at most");

/// The host of `host:port`; `None` if the port is no number of up to five digits.
fn without_port(authority: &str) -> Option<&str> {
    // The colons of an IPv6 address lie in brackets.
    let (host, port) = match authority.rfind([':', ']']) {
        Some(at) if authority[at..].starts_with(':') => (&authority[..at], &authority[at + 1..]),
        _ => (authority, ""),
    };
    (port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(host)
}

fn normal(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn is_name(name: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_part)
}

//! Why an endpoint does not start, in words that say what to change.

use std::net::SocketAddr;
use std::{fmt, io};

use corewheel::ConfigError;

/// Why a statistics endpoint did not start. No thread and no socket of it is left, and the service
/// runs on.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel_stats::{EndpointError, StatsEndpoint};
///
/// let service = TimerService::builder().shards(1).start()?;
/// let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let address = taken.local_addr()?.to_string();
/// let refused = StatsEndpoint::builder(service.stats_source()).listen(&address).start();
/// assert!(matches!(refused, Err(EndpointError::AddressInUse(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum EndpointError {
    /// A setting is out of its limits.
    Config(ConfigError),
    /// A process listens on this address already.
    AddressInUse(SocketAddr),
    /// The address cannot be listened on.
    Bind {
        /// Which.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The endpoint's thread, or the runtime in it, could not be started.
    Thread(io::Error),
}

impl EndpointError {
    pub(super) fn bind(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::AddressInUse(address),
            _ => Self::Bind { address, source },
        }
    }
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::AddressInUse(address) => write!(
                f,
                "{address} is in use; listen on another port, or on port 0 to be given a free one"
            ),
            Self::Bind { address, source } => write!(
                f,
                "the statistics endpoint cannot listen on {address}: {source}; name an address \
                 of this machine and a port that this process may bind"
            ),
            Self::Thread(source) => write!(
                f,
                "the statistics endpoint's thread could not be started: {source}; raise the \
                 limits on threads and open files"
            ),
        }
    }
}

impl std::error::Error for EndpointError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Config(error) => Some(error),
            Self::AddressInUse(_) => None,
            Self::Bind { source, .. } | Self::Thread(source) => Some(source),
        }
    }
}

impl From<ConfigError> for EndpointError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

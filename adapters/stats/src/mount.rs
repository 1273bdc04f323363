//! The routes of the statistics in a server of the user's own, on its port.
//!
//! No middleware: it answers every request that it is given, so the server decides which requests
//! these are, behind its own log, authentication and limits.
//!
//! Cost: an answer takes a reading of all shards, and is computed at once, on the server's thread.

use std::fmt;
#[cfg(feature = "axum")]
use std::future::ready;
use std::sync::Arc;

use corewheel::ConfigError;
use corewheel::stats::ServiceStats;

use super::host::Hosts;
use super::reasons::Reason;
#[cfg(feature = "axum")]
use super::routes::PATHS;

/// The longest prefix, in bytes.
const PREFIX_LEN_MAX: usize = 256;

/// The routes of a [`StatsEndpoint`](super::StatsEndpoint), which a server of the user's own can
/// have as well.
///
/// [`answer`](Self::answer) answers a request of any server. With the feature `axum` they also
/// become a router. The routes, the methods, the headers and the check of the `Host` header are
/// those of the endpoint. The server limits connections and heads itself; a body of more than a
/// kilobyte is refused, and none is read.
///
/// A mounted page is open to every client of the server. [`allow_host`](Self::allow_host) names the
/// host under which browsers reach the server.
///
/// # With hyper
///
/// ```
/// use corewheel::TimerService;
/// use corewheel_stats::StatsRoutes;
/// use hyper::service::service_fn;
/// use hyper::{Request, Response, body::Incoming};
///
/// # let timers = TimerService::builder().shards(1).start()?;
/// let stats = StatsRoutes::from(timers.stats_source()).under("/internal/timers")?;
/// let app = service_fn(move |request: Request<Incoming>| {
///     let is_for_stats = request.uri().path().starts_with("/internal/timers");
///     let answer = is_for_stats.then(|| stats.answer(&request));
///     let answer = answer.unwrap_or_else(|| Response::new("hello".to_owned()));
///     std::future::ready(Ok::<_, std::convert::Infallible>(answer))
/// });
/// # let _ = &app;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # With axum
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, routing::get};
/// use corewheel::TimerService;
/// use corewheel_stats::StatsRoutes;
///
/// # let timers = TimerService::builder().shards(1).start()?;
/// let stats = StatsRoutes::from(timers.stats_source())
///     .allow_host("www.example")?
///     .under("/internal/timers")?;
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).merge(stats.router());
/// # let _ = app;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The prefix is that of `under`, so that the page knows its own address: merge the router instead
/// of nesting it.
///
/// # Several services
///
/// Each service has routes of its own, under another prefix. Give each service a
/// [name](corewheel::TimerServiceBuilder::name). The title of the page tells services apart by it,
/// and so does the label `service` of the metrics: Prometheus adds the same labels to all that it
/// scrapes from one port.
#[derive(Clone)]
#[must_use = "routes answer nothing until a server has them"]
pub struct StatsRoutes {
    pub(super) source: Arc<dyn Fn() -> ServiceStats + Send + Sync>,
    /// The hosts that a request may name.
    pub(super) hosts: Hosts,
    /// Why the server is not ready, besides what the shards say.
    pub(super) reasons: Vec<Reason>,
    /// What stands before each path: empty, or a slash and a path without a final slash. It needs
    /// no escape in HTML and in a script.
    pub(super) prefix: String,
}

impl StatsRoutes {
    /// Answers under a prefix such as `/internal/timers`, which a final slash does not change. An
    /// empty prefix and `/` are none.
    ///
    /// # Errors
    ///
    /// A prefix that does not begin with a slash, is longer than 256 bytes, has an empty segment,
    /// or has a character other than letters, digits, `-`, `_`, `.`, `~` and `/`.
    pub fn under(mut self, prefix: impl AsRef<str>) -> Result<Self, ConfigError> {
        let prefix = prefix.as_ref();
        let trimmed = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte);
        let is_path = trimmed.is_empty()
            || trimmed.starts_with('/') && !trimmed.ends_with('/') && !trimmed.contains("//");
        if !is_path || trimmed.len() > PREFIX_LEN_MAX || !trimmed.bytes().all(is_plain) {
            let limit = format!(
                "it must be a path of up to {PREFIX_LEN_MAX} letters, digits, and any of -_.~/"
            );
            return Err(ConfigError::new("under", prefix, limit, "use one like /internal/timers"));
        }
        trimmed.clone_into(&mut self.prefix);
        Ok(self)
    }

    /// Answers requests that name this host, such as `stats.example`, besides IP addresses and the
    /// names of loopback: without a scheme and a port, in any case. Call it once for each name.
    /// Allow only names of which no stranger decides where they point to.
    ///
    /// # Errors
    ///
    /// A name that is no host's name, or that has a scheme or a port.
    pub fn allow_host(mut self, name: impl AsRef<str>) -> Result<Self, ConfigError> {
        self.hosts.allow(name.as_ref())?;
        Ok(self)
    }

    /// Answers `/ready` with 503 while `reason` returns a reason, such as `the upstream is down`.
    /// The reason is a line of the answer; each call adds a function.
    ///
    /// The functions are called for each request of `/ready`, on the server's thread, which
    /// answers no other request meanwhile: they must not wait. A panic counts as a reason.
    ///
    /// ```
    /// use corewheel::TimerService;
    /// use corewheel_stats::{StatsEndpoint, StatsRoutes};
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicBool, Ordering};
    ///
    /// let service = TimerService::builder().shards(1).start()?;
    /// let is_warm = Arc::new(AtomicBool::new(false));
    /// let looked_at = Arc::clone(&is_warm);
    /// let routes = StatsRoutes::from(service.stats_source()).ready_unless(move || {
    ///     let is_warm = looked_at.load(Ordering::Relaxed);
    ///     (!is_warm).then(|| "the cache is cold".to_owned())
    /// });
    /// let endpoint = StatsEndpoint::start(routes, "127.0.0.1:0")?;
    /// # drop(endpoint);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ready_unless(
        mut self,
        reason: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.reasons.push(Arc::new(reason));
        self
    }

    /// A router with the routes under the prefix, to be merged into the user's own. Paths
    /// besides them go to the fallback of the user's router.
    #[cfg(feature = "axum")]
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> axum::Router<S> {
        let paths = PATHS.iter().map(|path| format!("{}{path}", self.prefix));
        // Without a final slash, too.
        let bare = Some(&self.prefix).filter(|prefix| !prefix.is_empty());
        paths.chain(bare.cloned()).fold(axum::Router::new(), |router, path| {
            let routes = self.clone();
            let answer = move |request: axum::extract::Request| ready(routes.answer(&request));
            router.route(&path, axum::routing::any(answer))
        })
    }
}

/// The routes without a prefix, for the hosts of a [`StatsEndpoint`](super::StatsEndpoint), from a
/// function that reads the statistics, such as that of
/// [`stats_source`](corewheel::TimerService::stats_source).
impl<F: Fn() -> ServiceStats + Send + Sync + 'static> From<F> for StatsRoutes {
    fn from(source: F) -> Self {
        let (hosts, reasons, prefix) = Default::default();
        Self { source: Arc::new(source), hosts, reasons, prefix }
    }
}

impl fmt::Debug for StatsRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatsRoutes").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

//! hyper's servers, clients and pools: their timer on the shards of a service, and a service whose
//! requests have limits.
//!
//! [`HyperTimer`] is for the timeouts that hyper itself has. [`TimedHttp`] is for a server whose
//! connections are [`TimedIo`](corewheel::stream::TimedIo)s: it tells the stream about each
//! request, and gives each body limits.

mod body;
mod cell;
mod exchange;
mod limits;
mod service;
mod timer;

pub use self::body::{BodyData, ResponseBody, TimedBody};
pub use self::exchange::Exchange;
#[cfg(feature = "server")]
pub(crate) use self::exchange::Told;
pub use self::limits::{BodyError, BodyLimits};
pub use self::service::{TimedHttp, TimedResponse};
pub use self::timer::HyperTimer;

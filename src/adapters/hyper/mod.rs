//! hyper's servers, clients and pools: their timer on the shards of a service, and a service that
//! tells the stream of its connection about each request.
//!
//! [`HyperTimer`] is for the timeouts that hyper itself has. [`TimedService`] is for a server whose
//! connections are [`TimedIo`](crate::stream::TimedIo)s, which have the others. [`TimedExchanges`]
//! gives the bodies of each request and response limits, and ends them together.

mod exchange;
mod request;
mod service;
mod timer;

pub use self::exchange::{
    BodyError, BodyLimits, BodySide, BodyTimeout, BodyTimers, Exchange, ExchangeFuture, TimedBody,
    TimedExchanges,
};
pub use self::request::{RequestBody, ResponseBody, ResponseData, TrackedBody};
pub use self::service::{ResponseFuture, TimedService};
pub use self::timer::HyperTimer;

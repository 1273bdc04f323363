//! The runtime of QUIC endpoints: tasks and sockets of tokio, with timers of a service.
//!
//! ```
//! use corewheel::adapters::quinn::QuinnRuntime;
//! use quinn::{Endpoint, EndpointConfig};
//! use std::net::{Ipv4Addr, UdpSocket};
//! use std::sync::Arc;
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_io().build()?;
//! # runtime.block_on(async {
//! let runtime = Arc::new(QuinnRuntime::new(corewheel::time::handle()));
//! let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
//! // A server has a `ServerConfig` in the place of `None`.
//! let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, runtime)?;
//! # drop(endpoint);
//! # Ok::<(), std::io::Error>(())
//! # })?;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! The [guide for QUIC servers](crate::guide::quinn) has a whole server.
//!
//! Quinn has one timer for each connection and resets it to the next of the connection's deadlines:
//! loss detection, delayed acknowledgement, pacing, keep-alive, idle time. Why not the timers of
//! tokio's runtime: the connections of all worker threads share the lock of those timers, and a
//! reset to an earlier deadline takes it.
//!
//! Invariants: a timer is done only when its deadline has come by the runtime's clock. A timer that
//! is pending is known to a shard or to the fallback thread, or its task is polled again at once.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use ::quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

use crate::clock::Clock;
use crate::face::handle::{AnyHandle, Handle};
use crate::fallback::SleepOrKept;

/// A runtime for quinn's [`Endpoint::new`](::quinn::Endpoint::new): it spawns tasks and makes
/// sockets as quinn's [`TokioRuntime`] does, and takes its timers from a service.
///
/// The endpoint is made and used inside of a tokio runtime, with I/O enabled. The runtime's time
/// need not be enabled.
///
/// # Timers
///
/// A connection has one timer, on the shard that the thread drives or is given, as the [`Handle`]
/// says. A timer is never done before its deadline by [`now`](Runtime::now), and is done up to a
/// tick after it.
///
/// Quinn's timers return no error. Where a shard is full or the service has ended, the fallback
/// thread of [`time`](crate::time#refused-timers) keeps the deadline, and
/// [`fallback_count`](super::fallback_count) counts it. No connection ends for it.
///
/// # The clock
///
/// [`now`](Runtime::now) is the clock of the service: the system's, or a
/// [`ManualClock`](crate::clock::ManualClock), by which a test decides when a connection is idle.
///
/// Why not the near clock of the service's commands: it may be a microsecond ahead of the system's
/// clock, by a different amount on each thread. Quinn compares times of the endpoint's thread with
/// times of the connection's thread, so time would go back between them; and a connection would be
/// closed a microsecond before its idle time is over by the program's own clock.
///
/// # Cost
///
/// At most 136 bytes for the timer of a connection, allocated once. A reset to a later deadline is
/// a store and sends nothing; when the old deadline comes, the connection's task is woken once for
/// nothing. A reset to an earlier deadline costs a command, or a message on a thread that does not
/// drive the shard. Each poll of a connection reads the system's clock once or twice.
#[derive(Clone, Debug)]
pub struct QuinnRuntime {
    timers: AnyHandle,
    clock: Clock,
}

impl QuinnRuntime {
    /// A runtime whose timers are on the shards of a handle's service.
    pub fn new<T: 'static>(timers: Handle<T>) -> Self {
        Self { timers: timers.untyped(), clock: timers.clock() }
    }
}

impl Runtime for QuinnRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let sleep = SleepOrKept::new(self.timers, deadline);
        Box::pin(Timer { sleep, clock: self.clock.clone() })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        TokioRuntime.spawn(future);
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

/// The timer of a connection.
#[derive(Debug)]
struct Timer {
    sleep: SleepOrKept,
    clock: Clock,
}

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.sleep.reset(deadline);
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(self.sleep.poll(cx));
        // On a thread that has not used the service before its end, the sleep goes by the system's
        // clock.
        if self.clock.is_manual() && self.clock.now() < self.sleep.deadline() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

const _: () = assert!(size_of::<Timer>() <= 136);

//! The runtime of QUIC endpoints: tasks and sockets of tokio, with timers of a service.
//!
//! ```
//! use corewheel_quinn::QuinnRuntime;
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
//! The [guide for QUIC servers](guide) has a whole server.
//!
//! Quinn has one timer for each connection and resets it to the next of the connection's deadlines:
//! loss detection, delayed acknowledgement, pacing, keep-alive, idle time. Why not the timers of
//! tokio's runtime: the connections of all worker threads share the lock of those timers, and a
//! reset to an earlier deadline takes it.
//!
//! Invariants: a timer is done only when its deadline has come by the runtime's clock. A timer that
//! is pending is known to a shard or to the fallback thread, or its task is polled again at once.
#![forbid(unsafe_code)]

mod driver;

pub mod guide {
    #![doc = include_str!("guide.md")]
}

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use corewheel::clock::Clock;
use corewheel::fallback::InfallibleSleep;
use corewheel::{AnyHandle, Handle};
use quinn::{AsyncTimer, AsyncUdpSocket, Runtime, TokioRuntime};

use self::driver::{Driver, Readers, Socket};

/// A runtime for quinn's [`Endpoint::new`](quinn::Endpoint::new): it spawns tasks and makes
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
/// thread of [`InfallibleSleep`] keeps the deadline, and [`InfallibleSleep::fallback_count`] counts
/// it. No connection ends for it.
///
/// # A runtime that is held up
///
/// No connection ends as idle whose packets lay in the socket at its deadline, also where tasks
/// held the tokio runtime up, or the process was stopped. A connection whose deadline has passed is
/// held back until the runtime has looked at its sockets since. Then the endpoints of this
/// `QuinnRuntime` read theirs first.
///
/// That holds on Unix, for idle times of more than 100 ms. It holds for the sockets that
/// [`Endpoint::new`](quinn::Endpoint::new) and `rebind` take from this runtime, and for those of
/// [`wrap_socket`](Self::wrap_socket). Another one may not be read before.
///
/// A silent connection ends then, too. Beside an endpoint whose socket is never empty, it ends when
/// the endpoint has read 250 times.
///
/// # The clock
///
/// [`now`](Runtime::now) is the clock of the service: the system's, or a
/// [`ManualClock`](corewheel::clock::ManualClock), by which a test decides when a connection is
/// idle.
///
/// Why not the near clock of the service's commands: it may be a microsecond ahead of the system's
/// clock, by a different amount on each thread. Quinn compares times of the endpoint's thread with
/// times of the connection's thread, so time would go back between them; and a connection would be
/// closed a microsecond before its idle time is over by the program's own clock.
///
/// In a task that quinn spawns for a connection, time stands still during a poll. In the poll after
/// a deadline that has passed, it is the time at which the connection was held back.
///
/// # Cost
///
/// At most 136 bytes for the timer of a connection, allocated once. A reset costs what that of a
/// [`Sleep`](corewheel::Sleep) costs: a lock in the cache of the thread that has armed the timer,
/// and a wake-up of the shard only if it sleeps past the new deadline. Each poll of a connection
/// reads the system's clock twice.
///
/// A deadline that has passed costs the connection a pass of the reactor, and a poll of each
/// endpoint in the same tokio runtime. All connections that are held back at the same time share
/// the pass. A sender that quinn paces sends that much later, where many tasks are ready.
#[derive(Clone, Debug)]
pub struct QuinnRuntime {
    timers: AnyHandle,
    clock: Clock,
    readers: Arc<Readers>,
}

impl QuinnRuntime {
    /// A runtime whose timers are on the shards of a handle's service.
    pub fn new<T: 'static>(timers: Handle<T>) -> Self {
        Self { timers: timers.untyped(), clock: timers.clock(), readers: Arc::default() }
    }

    /// A socket of the caller's own, for
    /// [`new_with_abstract_socket`](quinn::Endpoint::new_with_abstract_socket), that is read before
    /// a connection ends as idle.
    pub fn wrap_socket(&self, inner: Arc<dyn AsyncUdpSocket>) -> Arc<dyn AsyncUdpSocket> {
        Arc::new(Socket { inner, clock: self.clock.clone() })
    }

    /// A task of quinn that is held back at its deadlines. A runtime that is built on this one
    /// spawns it, in a tokio runtime's context.
    pub fn hold_back(
        &self,
        task: Pin<Box<dyn Future<Output = ()> + Send>>,
    ) -> impl Future<Output = ()> + Send + use<> {
        Driver::new(task, self.clock.clone(), Arc::clone(&self.readers))
    }
}

impl Runtime for QuinnRuntime {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        driver::note_reset(deadline);
        let sleep = InfallibleSleep::until(self.timers, deadline).by_service();
        Box::pin(Timer { sleep, clock: self.clock.clone() })
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(self.hold_back(future));
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Ok(self.wrap_socket(TokioRuntime.wrap_udp_socket(socket)?))
    }

    fn now(&self) -> Instant {
        driver::now(&self.readers, &self.clock).unwrap_or_else(|| self.clock.now())
    }
}

/// The timer of a connection.
#[derive(Debug)]
struct Timer {
    sleep: InfallibleSleep,
    clock: Clock,
}

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        driver::note_reset(deadline);
        self.sleep.reset(deadline);
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        ready!(Pin::new(&mut self.sleep).poll(cx));
        let deadline = self.sleep.deadline();
        // On a thread that has not used the service before its end, the sleep goes by the system's
        // clock. A deadline that has come since a poll has begun is for the next poll.
        let is_early = self.clock.is_manual() && self.clock.now() < deadline;
        if is_early || driver::is_before(deadline) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

const _: () = assert!(size_of::<Timer>() <= 136);

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

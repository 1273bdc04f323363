//! hyper's timer.
//!
//! hyper asks a [`Timer`] for boxed futures and for the time. A sleep of this timer is reset in its
//! box, with the timer that it has on its shard.
//!
//! Why not a sleep that refuses: hyper's [`Sleep`] has no error, and a sleep that never ends, or
//! ends at once, would be a timeout that hyper does not have or one that is early.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use corewheel::fallback::InfallibleSleep;
use corewheel::pass::Pass;
use corewheel::{AnyHandle, Handle};
use hyper::rt::{Sleep, Timer};

/// hyper's [`Timer`] on the shards of a service.
///
/// It takes a [`Handle`] and is, like it, `Copy`, `Send`, `Sync` and `'static`. It goes wherever
/// hyper and hyper-util take a timer: the builders of servers and clients of HTTP/1 and HTTP/2, the
/// server that detects the version, and the pool of a client.
/// [`guide::servers`](crate::guide::servers) and [`guide::clients`](crate::guide::clients) have
/// examples.
///
/// ```
/// use corewheel::TimerService;
/// use corewheel_http::hyper::HyperTimer;
/// use std::time::Duration;
///
/// let service = TimerService::beside_runtime().start()?;
/// let mut server = hyper::server::conn::http1::Builder::new();
/// server.timer(HyperTimer::new(service.handle())).header_read_timeout(Duration::from_secs(10));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Deadlines
///
/// No sleep is done before its deadline, by the system's clock. It is done late by at most the
/// lateness of every timer of the shard, and a pass of the runtime over its sockets: it waits for
/// that, as [`corewheel::Timeout`](corewheel::Timeout#in-time) does, and is pending in two more
/// polls, in which hyper reads its socket. So a head that lay in the socket in time is not cut, nor
/// a PING's answer.
///
/// hyper's sleeps return no error. Where a shard is full, or the service has ended, the *fallback
/// thread* of the process keeps the deadline, in an ordered map behind a lock, and
/// [`InfallibleSleep::fallback_count`] counts it. A sleep that hyper resets tries the shard again.
///
/// [`InfallibleSleep::fallback_count`]: corewheel::fallback::InfallibleSleep::fallback_count
///
/// # The time
///
/// [`now`](Timer::now) is a reading of the calling thread's near clock. It is never behind the
/// system's clock, so a deadline that hyper computes from it is not early, and is ahead by some
/// microseconds at most. Where hyper compares two readings instead, such as for the age of a pooled
/// connection, the result is too long by so much at most. By a manual clock it is the time that the
/// clock shows. If the service has ended, a thread that has not used it reads the system's clock.
///
/// With the feature `test-util` of `corewheel`, the timer follows a paused clock of tokio, as
/// `corewheel::time` does.
///
/// # Cost
///
/// A sleep is an allocation of 128 bytes at most, and a [`Sleep`](corewheel::Sleep). A
/// reset allocates nothing, and a reset to later sends nothing to the shard.
///
/// hyper 1.12 makes a sleep for the head of each HTTP/1 request, and drops it when the head has
/// come. A connection of HTTP/2 resets one sleep for all its PINGs, but for a connection of a
/// client of hyper-util 0.1, which makes a sleep for each.
#[derive(Clone, Copy)]
pub struct HyperTimer {
    handle: AnyHandle,
}

impl HyperTimer {
    /// A timer whose sleeps are on the shards of a service. With
    /// [`handle.on(id)`](Handle::on) they are on one shard, and with
    /// [`handle.of_class(class)`](Handle::of_class) the statistics count them for a class.
    pub fn new<T: 'static>(handle: Handle<T>) -> Self {
        Self { handle: handle.untyped() }
    }
}

impl Timer for HyperTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        Box::pin(HyperSleep::new(InfallibleSleep::after(self.handle, duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HyperSleep::new(InfallibleSleep::until(self.handle, deadline)))
    }

    fn now(&self) -> Instant {
        InfallibleSleep::now(self.handle)
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, new_deadline: Instant) {
        if let Some(own) = sleep.as_mut().downcast_mut_pin::<HyperSleep>() {
            if own.sleep.handle() == self.handle {
                let own = own.get_mut();
                own.sleep.reset(new_deadline);
                own.pass = Pass::default();
                return;
            }
        }
        // A sleep of another timer goes by another clock, or belongs to another service.
        *sleep = self.sleep_until(new_deadline);
    }
}

debug_fields!([] HyperTimer, |it| handle: it.handle);

/// A sleep that hyper holds in a box.
struct HyperSleep {
    sleep: InfallibleSleep,
    pass: Pass,
}

impl HyperSleep {
    fn new(sleep: InfallibleSleep) -> Self {
        Self { sleep, pass: Pass::default() }
    }
}

impl Future for HyperSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.sleep).poll(cx));
        // hyper reads its socket in each poll of a connection in which it polls a sleep.
        this.pass.decide_beside(this.sleep.needs_pass(), cx)
    }
}

impl Sleep for HyperSleep {}

const _: () = assert!(size_of::<HyperSleep>() <= size_of::<InfallibleSleep>() + 16);

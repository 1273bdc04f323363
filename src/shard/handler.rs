//! The handler that is given the values of a shard's timers.

use std::time::{Duration, Instant};

use super::timers::Timers;
use crate::values::ids::TimerId;

/// A typed timer that is due, as its handler gets it. A handler is a closure
/// `FnMut(Fired<T>, &Timers<T>)`.
///
/// A shard calls its handler once for each typed timer that expires, on the shard's own thread and
/// with nothing borrowed, so the handler may schedule, cancel and reset. A timer that it schedules
/// for now fires in the next turn. A panic of the handler is caught, logged and counted, and ends
/// only that delivery.
///
/// The state of a handler is captured by its closure. When the shard is shut down, the handler is
/// dropped on the shard's thread after the last timer. So the `Drop` of a captured value is the
/// place for what must happen at the end. (A closure captures a value as a whole when it calls a
/// method on it; a closure that only copies a field out of the value does not capture the value.)
///
/// ```
/// use corewheel::clock::ManualClock;
/// use corewheel::TimerService;
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let service = TimerService::builder().shards(1).clock(&clock).start_attached_with()?;
/// let attachment = service.attach(service.shards().next().unwrap())?;
/// // Gives a request up after three attempts.
/// let mut given_up = 0;
/// let mut shard = attachment.into_loop(move |fired, timers| {
///     let (request, attempt) = fired.payload;
///     let wait = Duration::from_millis(100) * attempt;
///     if attempt == 3 || timers.schedule(wait, (request, attempt + 1)).is_err() {
///         given_up += 1;
///     }
/// })?;
/// shard.timers().schedule(Duration::from_millis(100), (7, 1))?;
/// for wait in [100, 100, 200] {
///     clock.advance(Duration::from_millis(wait));
///     let _next = shard.turn();
/// }
/// assert!(shard.timers().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fired<T> {
    /// The timer's id, which is stale from now on.
    pub timer: TimerId,
    /// The deadline at which the timer was due, rounded up to a tick.
    pub deadline: Instant,
    /// The time from `deadline` to the delivery.
    pub lateness: Duration,
    /// The value that the timer carried.
    pub payload: T,
}

/// A handler of typed timers.
pub(crate) trait Handler<T: 'static>: FnMut(Fired<T>, &Timers<T>) + 'static {}

impl<T: 'static, F: FnMut(Fired<T>, &Timers<T>) + 'static> Handler<T> for F {}

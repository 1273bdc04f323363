//! The one place where a clock is read.
//!
//! Inside the service, time is nanoseconds since the service's epoch, and deadlines are ticks. At
//! the edge it is [`Duration`] and [`Instant`]. The clock is monotonic; the wall clock is not used
//! anywhere.
//!
//! A command on a timer takes a fraction of what asking the system for the time takes, so commands
//! go by a [`NearClock`], which counts on from the last time that was asked for. A turn asks.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Where a service takes its time from: the monotonic clock, or a clock that a test moves.
#[derive(Clone)]
pub struct Clock {
    epoch: Instant,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Monotonic,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The monotonic clock of the system. Its epoch is this call.
    pub fn monotonic() -> Self {
        Self { epoch: Instant::now(), source: Source::Monotonic }
    }

    /// Nanoseconds since the epoch.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        match &self.source {
            Source::Monotonic => saturating_nanos(self.epoch.elapsed()),
            // Relaxed: time carries no other data.
            Source::Manual(nanos) => nanos.load(Ordering::Relaxed),
        }
    }

    /// The present moment.
    pub fn now(&self) -> Instant {
        match self.source {
            Source::Monotonic => Instant::now(),
            Source::Manual(_) => self.epoch + Duration::from_nanos(self.nanos()),
        }
    }

    /// The moment that came this many nanoseconds after the epoch.
    pub(crate) fn instant(&self, nanos: u64) -> Instant {
        // An instant that the system cannot represent is clamped to a century.
        let century = Duration::from_hours(100 * 365 * 24);
        self.epoch.checked_add(Duration::from_nanos(nanos)).unwrap_or(self.epoch + century)
    }

    /// The moment that comes `after` another, or the last that there is.
    pub(crate) fn after(&self, moment: Instant, after: Duration) -> Instant {
        moment.checked_add(after).unwrap_or_else(|| self.instant(u64::MAX))
    }

    /// Nanoseconds from the epoch to `instant`, 0 if it came before.
    #[inline]
    pub(crate) fn nanos_at(&self, instant: Instant) -> u64 {
        saturating_nanos(instant.saturating_duration_since(self.epoch))
    }

    pub(crate) fn is_manual(&self) -> bool {
        matches!(self.source, Source::Manual(_))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_manual() { "Clock(manual)" } else { "Clock(monotonic)" })
    }
}

/// How long a [`NearClock`] counts on before it asks again.
const SPAN: Duration = Duration::from_millis(1);
/// What it puts on top, so that it is ahead even if the processor has read its counter a little
/// before it was that instruction's turn.
const AHEAD: u64 = 250;
/// How often it looks at both clocks for a pair of readings that were made at once, if the first
/// pair was further apart than this part of the span: a quarter of a microsecond.
const ANCHOR_TRIES: u32 = 3;
const AT_ONCE: u64 = 4_000;
/// Bits of a rate that stand for less than a nanosecond.
const RATE_BITS: u32 = 20;

/// The clock as one thread sees it, for less than half of what it costs to ask the system: it adds
/// what the processor's time-stamp counter has counted since it was last asked.
///
/// What it shows is never before the clock, which is what keeps a timer from firing early, and not
/// much more than a microsecond after it: a thousandth is added to the counter's rate, far more
/// than it can be wrong by, and after a millisecond the system is asked again. Where the system
/// does not itself go by that counter, nor does this.
pub(crate) struct NearClock {
    clock: Clock,
    counter: Option<Counter>,
    /// What the counter showed, and right afterwards the clock.
    anchor: Cell<(u64, u64)>,
    latest: Cell<u64>,
}

#[derive(Clone)]
struct Counter {
    readings: quanta::Clock,
    /// How much it counts in a [`SPAN`], about.
    span: u64,
    /// Nanoseconds for each count, and a thousandth more.
    rate: u64,
}

impl Counter {
    /// The processor's counter, where the system goes by it: then it has found that all cores'
    /// agree and that it does not stop.
    fn find() -> Option<Self> {
        static COUNTER: OnceLock<Option<Counter>> = OnceLock::new();
        let find = || {
            let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            let source = std::fs::read_to_string(path).ok()?;
            (source.trim() == "tsc").then(|| Self::of(quanta::Clock::new()))
        };
        COUNTER.get_or_init(find).clone()
    }

    fn of(readings: quanta::Clock) -> Self {
        const COUNTS: u64 = 1 << 30;
        let nanos = readings.delta_as_nanos(0, COUNTS).max(1);
        let span = saturating_nanos(SPAN) * COUNTS / nanos;
        let rate = (nanos + nanos.div_ceil(1_000)).div_ceil(COUNTS >> RATE_BITS);
        Self { readings, span, rate }
    }
}

impl NearClock {
    pub(crate) fn new(clock: Clock) -> Self {
        let counter = if clock.is_manual() { None } else { Counter::find() };
        let near = Self { clock, counter, anchor: Cell::default(), latest: Cell::default() };
        near.ask();
        near
    }

    /// What the clock shows, in nanoseconds since the epoch.
    #[inline(never)]
    pub(crate) fn ask(&self) -> u64 {
        let Some(Counter { readings, span, .. }) = &self.counter else {
            return self.clock.nanos();
        };
        // In this order: what is counted from the first includes the time to the second. A pair
        // between which the thread was held up would be that far ahead, so the closest one is it.
        let mut closest = u64::MAX;
        for _ in 0..ANCHOR_TRIES {
            let raw = readings.raw();
            let nanos = self.clock.nanos();
            let apart = readings.raw().wrapping_sub(raw);
            if apart < closest {
                closest = apart;
                self.anchor.set((raw, nanos));
            }
            if closest < span / AT_ONCE {
                break;
            }
        }
        self.anchor.get().1
    }

    /// What the clock shows or a little more. It does not go back.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        let Some(Counter { readings, span, rate }) = &self.counter else {
            return self.clock.nanos();
        };
        let (raw, nanos) = self.anchor.get();
        let since = readings.raw().wrapping_sub(raw);
        let nanos = if since < *span { nanos + ((since * rate) >> RATE_BITS) } else { self.ask() };
        let latest = self.latest.get().max(nanos + AHEAD);
        self.latest.set(latest);
        latest
    }
}

/// A clock that stands still until it is told otherwise, for tests.
///
/// It goes with shards that the test drives itself, see
/// [`Attachment::into_loop`](crate::Attachment::into_loop).
///
/// ```
/// use corewheel::{Fired, ManualClock, TimerService, Timers, Turn};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock());
/// let service = builder.start_attached::<&str>()?;
/// let shard = service.attach(service.shards().next().unwrap())?;
/// let mut shard = shard.into_loop(|timer: Fired<&str>, _: &Timers<&str>| {
///     assert_eq!((timer.task, timer.lateness), ("lease", Duration::from_secs(2)));
/// })?;
/// shard.timers().schedule(Duration::from_secs(3_600), "lease")?;
/// clock.advance(Duration::from_secs(3_602));
/// assert_eq!(shard.turn(), Turn::Idle);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    clock: Clock,
    nanos: Arc<AtomicU64>,
}

impl ManualClock {
    /// A clock that shows its epoch.
    pub fn new() -> Self {
        let nanos = Arc::new(AtomicU64::new(0));
        let source = Source::Manual(Arc::clone(&nanos));
        Self { clock: Clock { epoch: Instant::now(), source }, nanos }
    }

    /// The clock to hand to a service.
    pub fn clock(&self) -> Clock {
        self.clock.clone()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let add = |nanos: u64| Some(nanos.saturating_add(saturating_nanos(by)));
        // Relaxed: time carries no other data. The update cannot fail, as `add` always answers.
        let _ = self.nanos.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// What the clock shows.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Nanoseconds from the epoch to `delay` after `now`; `u64::MAX` if that does not fit.
#[inline]
pub(crate) fn nanos_after(now: u64, delay: Duration) -> u64 {
    now.saturating_add(saturating_nanos(delay))
}

#[inline]
pub(crate) fn saturating_nanos(duration: Duration) -> u64 {
    // Not by `as_nanos`, whose 128 bits take three times as long.
    let seconds = duration.as_secs().checked_mul(1_000_000_000);
    seconds
        .and_then(|nanos| nanos.checked_add(u64::from(duration.subsec_nanos())))
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_that_does_not_fit_saturates() {
        let clock = Clock::monotonic();
        assert_eq!(nanos_after(5, Duration::MAX), u64::MAX);
        assert_eq!(nanos_after(5, Duration::from_nanos(7)), 12);
        assert!(clock.instant(u64::MAX) > clock.now());
    }

    #[test]
    fn a_moment_before_the_epoch_is_the_epoch() {
        let before = Instant::now();
        let clock = Clock::monotonic();
        assert_eq!(clock.nanos_at(before), 0);
    }

    #[test]
    fn the_near_clock_is_never_behind_and_hardly_ahead() {
        let clock = Clock::monotonic();
        let near = NearClock::new(clock.clone());
        let (mut latest, mut far) = (0, 0);
        for round in 0..200_000_u32 {
            let before = clock.nanos();
            let shown = near.nanos();
            let after = clock.nanos();
            assert!(shown >= before, "{shown} is behind {before}");
            assert!(shown >= latest, "{shown} is behind itself, {latest}");
            latest = shown;
            far += u32::from(shown > after + 1_500);
            if round % 50_000 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        assert!(far < 1_000, "{far} of 200,000 readings are far ahead");
    }

    #[test]
    fn the_rate_of_a_counter_is_rounded_up() {
        let Some(Counter { readings, span, rate }) = Counter::find() else { return };
        let exact = readings.delta_as_nanos(0, span);
        let counted = (span * rate) >> RATE_BITS;
        assert!(exact < counted && counted < exact + exact / 500, "{counted} for {exact}");
    }

    #[test]
    fn a_manual_clock_is_near_itself() {
        let manual = ManualClock::new();
        let near = NearClock::new(manual.clock());
        manual.advance(Duration::from_millis(3));
        assert_eq!((near.ask(), near.nanos()), (3_000_000, 3_000_000));
    }

    #[test]
    fn a_manual_clock_moves_when_it_is_told() {
        let manual = ManualClock::new();
        let clock = manual.clock();
        assert_eq!(clock.nanos(), 0);
        manual.advance(Duration::from_millis(3));
        assert_eq!(clock.nanos(), 3_000_000);
        assert_eq!(clock.nanos_at(clock.now()), 3_000_000);
    }
}

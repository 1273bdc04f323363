//! A clock for one thread that reads the processor's time-stamp counter.
//!
//! Why not ask the system each time: a system call for the time costs several times as much as a
//! command on a timer.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Clock, saturating_nanos};

/// How long a [`NearClock`] counts on before it asks the system again.
const SPAN: Duration = Duration::from_millis(1);
/// Nanoseconds that a [`NearClock`] adds, so that it is not behind even if the processor reads its
/// counter before the preceding instructions.
const AHEAD: u64 = 250;
/// How often [`NearClock::ask`] reads the counter and the clock as a pair, until the two readings
/// are close together.
const ANCHOR_TRIES: u32 = 3;
/// The readings of a pair are close together if they are less than this part of a [`SPAN`] apart: a
/// quarter of a microsecond.
const CLOSE: u64 = 4_000;
/// How many of a rate's bits are fractions of a nanosecond.
const RATE_BITS: u32 = 20;

thread_local! {
    /// What the near clocks of this thread go by, whatever their services. It has no destructor, so
    /// a reading does not look whether it is destroyed.
    static READ: Read = const {
        Read { counts: Cell::new(0), nanos: Cell::new(0), latest: Cell::new(0) }
    };
}

/// The last reading of the counter and of the system's clock right afterwards, in nanoseconds since
/// the [first epoch](super::first_epoch) of the process.
struct Read {
    counts: Cell<u64>,
    nanos: Cell<u64>,
    /// The latest time that [`NearClock::nanos`] has returned on this thread, since the same epoch.
    latest: Cell<u64>,
}

/// A clock that costs less than half as much as a system call for the time: it adds the counts of
/// the processor's time-stamp counter to the last time that the system gave to this thread.
///
/// It is never behind the system's clock, so no timer fires early, and not much more than a
/// microsecond ahead of it: it adds a thousandth to the counter's rate, far more than the error of
/// the rate, and asks the system again after a millisecond. Where the system's clock does not use
/// the counter, the near clock does not either, and asks the system each time.
pub(crate) struct NearClock {
    clock: Clock,
    /// `None` for a manual clock, and where the system's clock does not use the counter.
    counter: Option<Counter>,
}

#[derive(Clone)]
struct Counter {
    readings: quanta::Clock,
    /// About how many counts a [`SPAN`] has.
    span: u64,
    /// Nanoseconds for each count, and a thousandth more, with [`RATE_BITS`] fractional bits.
    rate: u64,
}

impl Counter {
    /// The processor's counter, if the system's clock uses it. The system does so only if the
    /// counters of all cores agree and never stop.
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
        Self { clock, counter }
    }

    /// The time of the system's clock, in nanoseconds since the epoch.
    #[inline(never)]
    pub(crate) fn ask(&self) -> u64 {
        let Some(Counter { readings, span, .. }) = &self.counter else {
            return self.clock.nanos();
        };
        // The counter is read before the clock: counts since then include the time between the two
        // readings. If the thread is delayed between them, the near clock would be ahead by the
        // delay, so the pair with the shortest time between its readings is used.
        let (mut closest, mut asked) = (u64::MAX, 0);
        for _ in 0..ANCHOR_TRIES {
            let raw = readings.raw();
            let nanos = self.clock.nanos();
            let apart = readings.raw().wrapping_sub(raw);
            if apart < closest {
                (closest, asked) = (apart, nanos);
                READ.with(|read| {
                    read.counts.set(raw);
                    read.nanos.set(nanos + self.clock.since_first);
                });
            }
            if closest < span / CLOSE {
                break;
            }
        }
        asked
    }

    /// Whether a time may have passed, without a reading: whether a near clock has returned a later
    /// one on this thread. True where this thread cannot know: of a manual clock, and before the
    /// first reading since the epoch.
    #[inline]
    pub(crate) fn may_have_passed(&self, nanos: u64) -> bool {
        let latest = || READ.with(|read| read.latest.get()).wrapping_sub(self.clock.since_first);
        self.counter.is_none() || latest() >= nanos
    }

    /// The time of the system's clock, or a little more. On one thread it never goes back.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.count().unwrap_or_else(|| self.ask_anew())
    }

    /// The time by the counter. `None` if the system is to be asked.
    #[inline]
    pub(crate) fn count(&self) -> Option<u64> {
        let Counter { readings, span, rate } = self.counter.as_ref()?;
        READ.with(|read| {
            let since = readings.raw().wrapping_sub(read.counts.get());
            if since >= *span {
                return None;
            }
            Some(self.note(read, read.nanos.get() + ((since * rate) >> RATE_BITS)))
        })
    }

    /// The time, from the system.
    #[cold]
    pub(crate) fn ask_anew(&self) -> u64 {
        let nanos = self.ask();
        if self.counter.is_none() {
            return nanos;
        }
        READ.with(|read| self.note(read, nanos + self.clock.since_first))
    }

    #[inline]
    fn note(&self, read: &Read, nanos: u64) -> u64 {
        let latest = read.latest.get().max(nanos + AHEAD);
        read.latest.set(latest);
        latest - self.clock.since_first
    }
}

#[cfg(test)]
mod tests {
    use super::super::ManualClock;
    use super::*;

    #[test]
    fn near_clock_is_never_behind_and_rarely_far_ahead() {
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
    fn near_clocks_of_one_thread_are_not_behind_each_other() {
        let clocks = [0, 5].map(|delay| {
            std::thread::sleep(Duration::from_millis(delay));
            Clock::monotonic()
        });
        let nears = clocks.clone().map(NearClock::new);
        let apart = clocks[0].nanos_at(clocks[1].instant(0));
        let mut latest = 0;
        for round in 0..100_000_u32 {
            let at = (round % 2) as usize;
            if round % 1_000 == 0 {
                let asked = nears[at].ask();
                assert!(asked <= clocks[at].nanos(), "{asked} is not what the system says");
            }
            let before = clocks[at].nanos();
            let shown = nears[at].nanos();
            assert!(shown >= before, "{shown} is behind {before}");
            let of_first = shown + if at == 1 { apart } else { 0 };
            assert!(of_first >= latest, "{of_first} is behind the other clock, {latest}");
            latest = of_first;
            assert!(nears[at].may_have_passed(shown));
            assert!(nears[at].counter.is_none() || !nears[at].may_have_passed(shown + 1));
        }
    }

    #[test]
    fn counter_rate_is_rounded_up() {
        let Some(Counter { readings, span, rate }) = Counter::find() else { return };
        let exact = readings.delta_as_nanos(0, span);
        let counted = (span * rate) >> RATE_BITS;
        assert!(exact < counted && counted < exact + exact / 500, "{counted} for {exact}");
    }

    #[test]
    fn near_clock_of_a_manual_clock_shows_its_time() {
        let manual = ManualClock::new();
        let near = NearClock::new(manual.clock());
        manual.advance(Duration::from_millis(3));
        assert_eq!((near.ask(), near.nanos()), (3_000_000, 3_000_000));
    }
}

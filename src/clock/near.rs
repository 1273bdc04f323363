//! The clock as one thread sees it, by the processor's time-stamp counter.
//!
//! Why not ask the system each time: that costs several times what a command on a timer costs.

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Clock, saturating_nanos};

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

#[cfg(test)]
mod tests {
    use super::super::ManualClock;
    use super::*;

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
}

//! A clock for one thread that reads the processor's time-stamp counter.
//!
//! Why not ask the system each time: a system call for the time costs several times as much as a
//! command on a timer.

use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Duration;

use super::{Clock, counter, saturating_nanos};

/// How long a [`NearClock`] counts on before it asks the system again.
const SPAN: Duration = Duration::from_millis(1);
/// Nanoseconds that a [`NearClock`] adds, so that it is not behind even if the processor reads its
/// counter before the preceding instructions.
const AHEAD: u64 = 250;
/// Nanoseconds by which a [`NearClock`] may be ahead after a [`SPAN`], beside the time between the
/// readings of a [`Pair`]. They are [`AHEAD`], and what its rate is too fast by: 1.2 µs by how it
/// is measured, and 1 µs if the system has changed the rate of its clock since.
const AHEAD_MAX: u64 = 3_000;
/// How often [`Pair::closest`] reads the counter and the clock, until the readings are close
/// together.
const TRIES: u32 = 3;
/// How often it does so for the first pair of the process, which all threads measure the rate from.
const FIRST_TRIES: u32 = 20;
/// The readings of a pair are close together if they are less than this part of a [`SPAN`] apart: a
/// quarter of a microsecond.
const CLOSE: u64 = 4_000;
/// A rate is known if the times that its pairs took are less than this part of the time between
/// the pairs.
const EXACT: u64 = 10_000;
/// How many of a rate's bits are fractions of a nanosecond.
const RATE_BITS: u32 = 20;

thread_local! {
    /// What the near clocks of this thread go by, whatever their services. It has no destructor, so
    /// a reading does not look whether it is destroyed.
    static READ: Read = const {
        Read {
            counts: Cell::new(0),
            nanos: Cell::new(0),
            latest: Cell::new(0),
            ahead: Cell::new(u64::MAX),
            rate: Cell::new(Rate { span: 0, nanos: 0 }),
        }
    };
}

/// The last reading of the counter and of the system's clock right afterwards, in nanoseconds since
/// the [first epoch](super::first_epoch) of the process.
struct Read {
    counts: Cell<u64>,
    nanos: Cell<u64>,
    /// The latest time that [`NearClock::nanos`] has returned on this thread, since the same epoch.
    latest: Cell<u64>,
    /// By how much a near clock may be ahead on this thread.
    ahead: Cell<u64>,
    /// The counter's rate. Its span is 0 while this thread does not know it, so each reading asks.
    rate: Cell<Rate>,
}

/// A clock that costs less than half as much as a system call for the time: it adds the counts of
/// the processor's time-stamp counter to the last time that the system gave to this thread.
///
/// It is never behind the system's clock, so no timer fires early, and not much more than a
/// microsecond ahead of it: it adds a thousandth to the counter's rate, more than the system ever
/// changes the rate of its clock by, and asks the system again after a millisecond. Where the
/// system's clock does not use the counter, the near clock does not either, and asks the system
/// each time.
///
/// `C` is the clock, or a reference to it: what it counts on from is the thread's.
pub(crate) struct NearClock<C = Clock> {
    clock: C,
    /// Whether it reads the processor's counter. False for a manual clock, and where the system's
    /// clock does not use the counter.
    counts: bool,
}

/// A time of the system's clock, and the counter before and after the time was asked for.
#[derive(Clone, Copy)]
struct Pair {
    before: u64,
    /// Since the [first epoch](super::first_epoch).
    nanos: u64,
    after: u64,
}

impl Pair {
    /// The pair whose readings are the closest together of a few, or the first that is `close`. A
    /// thread can be delayed between two readings.
    fn closest(clock: &Clock, tries: u32, close: u64) -> Self {
        let read = || {
            let before = counter::read();
            let nanos = clock.nanos() + clock.since_first;
            Self { before, nanos, after: counter::read() }
        };
        let mut closest = read();
        for _ in 1..tries {
            if closest.apart() < close {
                break;
            }
            closest = [closest, read()].into_iter().min_by_key(Self::apart).unwrap_or(closest);
        }
        closest
    }

    fn apart(&self) -> u64 {
        self.after.wrapping_sub(self.before)
    }
}

/// How fast the processor's counter counts.
#[derive(Clone, Copy)]
struct Rate {
    /// About how many counts a [`SPAN`] has.
    span: u64,
    /// Nanoseconds for each count, and a thousandth more, with [`RATE_BITS`] fractional bits.
    nanos: u64,
}

impl Rate {
    /// The rate of the process, which the first thread measures that can. `None` while none can,
    /// for a millisecond or two.
    fn measured(clock: &Clock, last: Pair) -> Option<Self> {
        static FIRST: OnceLock<Pair> = OnceLock::new();
        static RATE: OnceLock<Rate> = OnceLock::new();
        RATE.get().copied().or_else(|| {
            let first = FIRST.get_or_init(|| Pair::closest(clock, FIRST_TRIES, 0));
            Self::between(*first, last).map(|rate| *RATE.get_or_init(|| rate))
        })
    }

    /// The rate by two pairs: the fastest that they allow, so that a delay between the readings of
    /// a pair makes no clock slow. `None` if they do not say it exactly.
    ///
    /// Crates that measure a rate go by readings between which a thread may have been delayed. That
    /// of `quanta` was slow by two thousandths or more in 2 of 4,000 processes on a busy machine,
    /// which makes a timer early.
    fn between(first: Pair, last: Pair) -> Option<Self> {
        let counts = last.before.checked_sub(first.after).filter(|counts| *counts > 0)?;
        let unsure = first.apart().saturating_add(last.apart());
        if unsure > counts / EXACT {
            return None;
        }
        let elapsed = u128::from(last.nanos.checked_sub(first.nanos)?);
        let faster = (elapsed + elapsed.div_ceil(1_000)) << RATE_BITS;
        let nanos = u64::try_from(faster.div_ceil(u128::from(counts))).ok().filter(|n| *n > 0)?;
        Some(Self { span: (saturating_nanos(SPAN) << RATE_BITS) / nanos, nanos })
    }
}

impl<C: Borrow<Clock>> NearClock<C> {
    #[inline]
    pub(crate) fn new(clock: C) -> Self {
        let counts = !clock.borrow().is_manual() && counter::is_used();
        Self { clock, counts }
    }

    #[inline]
    fn clock(&self) -> &Clock {
        self.clock.borrow()
    }

    /// The time of the system's clock, in nanoseconds since the epoch.
    #[inline(never)]
    pub(crate) fn ask(&self) -> u64 {
        if !self.counts {
            return self.clock().nanos();
        }
        let nanos = READ.with(|read| {
            let span = read.rate.get().span;
            let pair = Pair::closest(self.clock(), TRIES, span / CLOSE);
            if span == 0 {
                if let Some(rate) = Rate::measured(self.clock(), pair) {
                    read.rate.set(rate);
                }
            }
            // Counts since the reading before the time include the time between the two readings,
            // so the near clock is ahead by it and not behind.
            read.counts.set(pair.before);
            read.nanos.set(pair.nanos);
            let ahead =
                AHEAD_MAX + (pair.apart().saturating_mul(read.rate.get().nanos) >> RATE_BITS);
            // A later time that was returned before may be ahead by as much as was known then.
            let is_behind = pair.nanos >= read.latest.get();
            read.ahead.set(if is_behind { ahead } else { ahead.max(read.ahead.get()) });
            pair.nanos
        });
        nanos - self.clock().since_first
    }

    /// Whether a time may have passed, without a reading: whether a near clock has returned a later
    /// one on this thread. True where this thread cannot know: of a manual clock, and before the
    /// first reading since the epoch.
    #[inline]
    pub(crate) fn may_have_passed(&self, nanos: u64) -> bool {
        let latest = || READ.with(|read| read.latest.get()).wrapping_sub(self.clock().since_first);
        !self.counts || latest() >= nanos
    }

    /// The latest time that a near clock has returned on this thread; 0 if there is none since the
    /// epoch.
    #[inline]
    pub(crate) fn latest(&self) -> u64 {
        READ.with(|read| read.latest.get()).saturating_sub(self.clock().since_first)
    }

    /// A time that has come, and is recent if this thread has just used a clock.
    #[inline]
    pub(crate) fn recent(&self) -> u64 {
        match self.latest() {
            latest if latest > 0 && self.counts => latest,
            _ => self.nanos(),
        }
    }

    /// Whether a time has surely passed by the system's clock, given a time that this clock has
    /// returned on this thread. False where only the system's clock can say.
    #[inline]
    pub(crate) fn has_passed(&self, nanos: u64, returned: u64) -> bool {
        let ahead = || READ.with(|read| read.ahead.get());
        self.counts && returned >= nanos.saturating_add(ahead())
    }

    /// The time of the system's clock, or a little more. On one thread it never goes back.
    #[inline]
    pub(crate) fn nanos(&self) -> u64 {
        self.count().unwrap_or_else(|| self.ask_anew())
    }

    /// The time by the counter. `None` if the system is to be asked.
    #[inline]
    pub(crate) fn count(&self) -> Option<u64> {
        if !self.counts {
            return None;
        }
        READ.with(|read| {
            let Rate { span, nanos } = read.rate.get();
            let since = counter::read().wrapping_sub(read.counts.get());
            if since >= span {
                return None;
            }
            Some(self.note(read, read.nanos.get() + ((since * nanos) >> RATE_BITS)))
        })
    }

    /// The time, from the system.
    #[cold]
    pub(crate) fn ask_anew(&self) -> u64 {
        let nanos = self.ask();
        if !self.counts {
            return nanos;
        }
        READ.with(|read| self.note(read, nanos + self.clock().since_first))
    }

    #[inline]
    fn note(&self, read: &Read, nanos: u64) -> u64 {
        let latest = read.latest.get().max(nanos + AHEAD);
        read.latest.set(latest);
        latest - self.clock().since_first
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ManualClock, now};
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
    fn time_that_has_passed_by_the_near_clock_has_by_the_systems() {
        let clock = Clock::monotonic();
        let near = NearClock::new(clock.clone());
        let mut known = 0;
        for round in 0..200_000_u64 {
            let returned = near.nanos();
            // The latest of the times that have passed as far as the near clock says.
            let mut passed = returned.saturating_sub(20_000);
            let mut step = 16_384;
            while step > 0 {
                passed += if near.has_passed(passed + step, returned) { step } else { 0 };
                step /= 2;
            }
            let now = clock.nanos();
            let has_passed = near.has_passed(passed, returned);
            assert!(!has_passed || passed <= now, "{passed} has not passed at {now}");
            assert!(!near.has_passed(returned, returned));
            known += u64::from(has_passed);
            if round % 50_000 == 0 {
                std::thread::sleep(Duration::from_millis(3));
            }
        }
        assert!(!near.counts || known > 100_000, "{known} of 200,000 are known");
    }

    #[test]
    fn near_clocks_of_one_thread_are_not_behind_each_other() {
        let clocks = [0, 5].map(|delay| {
            std::thread::sleep(Duration::from_millis(delay));
            Clock::monotonic()
        });
        let nears = clocks.clone().map(NearClock::new);
        let apart = clocks[0].nanos_at(clocks[1].instant(0));
        assert_eq!(nears.each_ref().map(NearClock::latest), [0, 0]);
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
            if nears[at].counts {
                let of_second = of_first.saturating_sub(apart);
                assert_eq!(nears.each_ref().map(NearClock::latest), [of_first, of_second]);
            }
            assert!(nears[at].may_have_passed(shown));
            assert!(!nears[at].counts || !nears[at].may_have_passed(shown + 1));
        }
    }

    /// A pair of a counter with three counts a nanosecond, read after `nanos`, whose thread was
    /// delayed before it asked for the time and after that.
    fn pair(nanos: u64, delays: (u64, u64)) -> Pair {
        let counts = |nanos| 1_000_000 + nanos * 3;
        Pair { before: counts(nanos - delays.0), nanos, after: counts(nanos + delays.1) }
    }

    #[test]
    fn rate_is_never_slow_whatever_the_delays_of_a_thread() {
        let rng = &mut fastrand::Rng::with_seed(7);
        let exact = (1_u64 << RATE_BITS) as f64 / 3.0;
        let mut known = 0;
        for _ in 0..10_000 {
            let mut delay = || {
                let bits = rng.u32(1..14);
                rng.u64(0..1 << bits)
            };
            let mut delays = || (delay(), delay());
            let (first, last) = (delays(), delays());
            let between = rng.u64(100_000..50_000_000);
            let rate = Rate::between(pair(20_000, first), pair(20_000 + between, last));
            let delayed = first.0 + first.1 + last.0 + last.1;
            // One count of the rate's quotient is rounded, and one of `counts / EXACT`.
            assert_eq!(rate.is_some(), delayed * 3 <= (between - first.1 - last.0) * 3 / EXACT);
            if let Some(Rate { span, nanos }) = rate {
                known += 1;
                let ratio = nanos as f64 / exact;
                assert!((1.001..1.001_11).contains(&ratio), "{ratio}: {first:?}, {last:?}");
                assert!((2_990_000..3_000_000).contains(&span), "{span}");
            }
        }
        assert!(known > 1_000, "{known}");
    }

    #[test]
    fn counters_that_stand_still_or_go_back_have_no_rate() {
        let (first, last) = (pair(20_000, (0, 0)), pair(40_000, (0, 0)));
        assert!(Rate::between(first, last).is_some());
        assert!(Rate::between(last, first).is_none());
        assert!(Rate::between(first, first).is_none());
        assert!(Rate::between(first, Pair { nanos: 20_000, ..last }).is_none());
    }

    #[test]
    fn thread_knows_the_rate_of_the_counter_after_milliseconds() {
        let near = NearClock::new(Clock::monotonic());
        if !near.counts {
            return;
        }
        let started = now();
        while near.count().is_none() {
            near.ask();
            assert!(started.elapsed() < Duration::from_secs(60), "the rate is not known");
        }
        let told = std::thread::spawn(|| {
            let near = NearClock::new(Clock::monotonic());
            near.ask();
            near.count().is_some()
        });
        assert!(told.join().unwrap(), "another thread measures the rate again");
    }

    #[test]
    fn near_clock_of_a_manual_clock_shows_its_time() {
        let manual = ManualClock::new();
        let near = NearClock::new(manual.clock());
        manual.advance(Duration::from_millis(3));
        assert_eq!((near.ask(), near.nanos()), (3_000_000, 3_000_000));
    }
}

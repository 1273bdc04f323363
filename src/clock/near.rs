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
/// The readings of a pair are close together if they are less than this part of a [`SPAN`] apart: a
/// quarter of a microsecond.
const CLOSE: u64 = 4_000;
/// A rate is known if the times that its pairs took are less than this part of the time between
/// the pairs.
const EXACT: u64 = 10_000;
/// Two rates agree if they differ by less than this part of them. An [exact](EXACT) rate is too
/// fast by less than half as much.
const AGREE: u64 = 4_000;
/// The most nanoseconds between the pairs of a rate.
const APART_MAX: u64 = 100_000_000;
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
            measured: Cell::new(Measured { pair: None, rate: None }),
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
    measured: Cell<Measured>,
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
            let nanos = clock.nanos().saturating_add(clock.since_first);
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

    /// Whether a rate may be measured from this pair to another one. A suspend can set the counter
    /// back.
    fn is_close_before(&self, last: &Self) -> bool {
        let elapsed = last.nanos.checked_sub(self.nanos);
        self.after <= last.before && elapsed.is_some_and(|elapsed| elapsed <= APART_MAX)
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

/// What a thread has measured of the counter's rate.
#[derive(Clone, Copy)]
struct Measured {
    /// The pair that the last rate was measured to, or the first pair.
    pair: Option<Pair>,
    /// The last rate, which no other one has confirmed.
    rate: Option<Rate>,
}

impl Measured {
    /// The rate of the process, which the first thread measures that can. `None` while none can,
    /// for some milliseconds.
    fn rate_at(&mut self, pair: Pair) -> Option<Rate> {
        static RATE: OnceLock<Rate> = OnceLock::new();
        let known = RATE.get().copied();
        known.or_else(|| self.confirmed(pair).map(|rate| *RATE.get_or_init(|| rate)))
    }

    /// The rate, if the last two that were measured agree: the faster one.
    ///
    /// While the machine is suspended, the counter counts on and the system's clock stands still.
    /// So a rate that is measured over a suspend is slow, and timers that go by it are early. It
    /// does not agree with the rate before or after it.
    fn confirmed(&mut self, pair: Pair) -> Option<Rate> {
        let Some(last) = self.pair.filter(|last| last.is_close_before(&pair)) else {
            *self = Self { pair: Some(pair), rate: None };
            return None;
        };
        let rate = Rate::between(last, pair)?;
        let before = std::mem::replace(self, Self { pair: Some(pair), rate: Some(rate) }).rate?;
        let agrees = before.nanos.abs_diff(rate.nanos) < rate.nanos / AGREE;
        agrees.then_some(if before.nanos < rate.nanos { rate } else { before })
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
                let mut measured = read.measured.get();
                if let Some(rate) = measured.rate_at(pair) {
                    read.rate.set(rate);
                }
                read.measured.set(measured);
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
        nanos.saturating_sub(self.clock().since_first)
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
            Some(self.note(read, read.nanos.get().saturating_add((since * nanos) >> RATE_BITS)))
        })
    }

    /// The time, from the system.
    #[cold]
    pub(crate) fn ask_anew(&self) -> u64 {
        let nanos = self.ask();
        if !self.counts {
            return nanos;
        }
        READ.with(|read| self.note(read, nanos.saturating_add(self.clock().since_first)))
    }

    #[inline]
    fn note(&self, read: &Read, nanos: u64) -> u64 {
        let latest = read.latest.get().max(nanos.saturating_add(AHEAD));
        read.latest.set(latest);
        latest.saturating_sub(self.clock().since_first)
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

    /// The rate that a thread is sure of after pairs at these times, of which each comes after a
    /// suspend of so many nanoseconds.
    fn confirmed(pairs: impl IntoIterator<Item = (u64, u64)>) -> Option<f64> {
        let mut measured = Measured { pair: None, rate: None };
        let mut suspended = 0;
        let mut note = |(at, suspend): (u64, u64)| {
            suspended += suspend;
            let Pair { before, after, .. } = pair(at + suspended, (20, 20));
            measured.confirmed(Pair { before, nanos: at, after })
        };
        let rate = pairs.into_iter().map(&mut note).find_map(|rate| rate)?;
        Some(rate.nanos as f64 / f64::from(1_u32 << RATE_BITS) * 3.0)
    }

    #[test]
    fn rate_over_a_suspend_is_refused_and_measured_again() {
        const MS: u64 = 1_000_000;
        assert!(confirmed([(MS, 0), (3 * MS, 0)]).is_none(), "no rate has confirmed it");
        for suspend in [MS / 100, MS, 5_000 * MS, 3_600_000 * MS] {
            for before in 0..5 {
                let pairs =
                    (0..8).map(|nth| (2 * (nth + 1) * MS, if nth == before { suspend } else { 0 }));
                let rate = confirmed(pairs).unwrap();
                assert!((1.001..1.001_11).contains(&rate), "{rate} by a suspend of {suspend} ns");
            }
        }
        // Two suspends that agree are far apart.
        let rarely = (1..8).map(|nth| (nth * 30_000 * MS, 1_800_000 * MS));
        assert!(confirmed(rarely).is_none());
        // A counter that a suspend has set back.
        let mut measured = Measured { pair: None, rate: None };
        assert!(measured.confirmed(pair(3 * MS, (20, 20))).is_none());
        let back = |at: u64| Pair { nanos: at + 5 * MS, ..pair(at, (20, 20)) };
        let rates = [MS, 2 * MS, 3 * MS].map(|at| measured.confirmed(back(at)).is_some());
        assert_eq!(rates, [false, false, true]);
    }

    #[test]
    fn near_clock_whose_epoch_comes_after_its_last_reading_shows_the_epoch() {
        let near = NearClock::new(Clock { since_first: u64::MAX, ..Clock::monotonic() });
        if near.counts {
            READ.with(|read| read.rate.set(Rate { span: u64::MAX, nanos: 1 }));
            assert_eq!((near.nanos(), near.ask(), near.latest()), (0, 0, 0));
        }
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

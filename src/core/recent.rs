//! What time it was a moment ago, for whoever must not take the time to look.
//!
//! A connection notes each packet. Reading a clock for it costs several times what the note does,
//! so the note is a moment up to which everything counts that happens before the shard next looks
//! at the clock: a little later than it is, never earlier. The shard sees to it that it does look,
//! for as long as anybody notes anything; a shard whose connections are quiet is not woken.
//!
//! A thread that was held up looks too late, and what was noted meanwhile may have happened after
//! the moment that it was given. Such a gap is kept, and read into the notes when they are looked
//! at. So whatever the thread was doing, a note is never taken for older than it is.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use corewheel_shard::{Tick, TickLength};

/// How much later a note may be taken to be than it is, but for a tick and what holds the thread
/// up.
pub(crate) const SPAN: Duration = Duration::from_millis(10);

/// There is no such moment: it must be asked for.
const UNKNOWN: u64 = u64::MAX;

/// The most gaps that are told apart.
const GAPS_MAX: usize = 512;

pub(crate) struct Recent {
    /// Up to when notes count that are made now.
    bound: Cell<u64>,
    /// What it was last. Each is later than the one before, so that a gap concerns those notes only
    /// which were made since the clock was looked at.
    last: Cell<u64>,
    /// When the shard must look at the clock again.
    expires: Cell<Tick>,
    /// When it last did.
    now: Cell<u64>,
    gaps: RefCell<Gaps>,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self {
            bound: Cell::new(UNKNOWN),
            last: Cell::new(0),
            expires: Cell::new(Tick::NEVER),
            now: Cell::new(0),
            gaps: RefCell::default(),
        }
    }

    /// The moment to note; `None` if it must be [opened](Self::open) first.
    #[inline]
    pub(crate) fn bound(&self) -> Option<u64> {
        let bound = self.bound.get();
        (bound != UNKNOWN).then_some(bound)
    }

    /// It is `now`, and something is to be noted. Returns the moment to note, and until when the
    /// shard must look at the clock.
    pub(super) fn open(&self, now: u64, tick: TickLength) -> (u64, Tick) {
        let expires = self.extend(now, tick);
        self.expires.set(expires);
        (self.bound.get(), expires)
    }

    fn extend(&self, now: u64, tick: TickLength) -> Tick {
        let expires = tick.ceil(now.saturating_add(SPAN.as_nanos() as u64));
        let bound = tick.start_of(expires).max(self.last.get() + 1);
        // Before the end of time, which is what nobody has noted.
        let bound = bound.min(UNKNOWN - 2);
        self.last.set(bound);
        self.bound.set(bound);
        expires
    }

    /// The shard has looked at the clock.
    pub(super) fn look(&self, now: u64, tick: TickLength) {
        self.now.set(now);
        let bound = self.bound.get();
        if bound == UNKNOWN {
            return;
        }
        if now > bound {
            self.gaps.borrow_mut().push(bound, now);
        }
        if self.expires.get() <= tick.floor(now) {
            self.bound.set(UNKNOWN);
            self.expires.set(Tick::NEVER);
        } else {
            let _expires = self.extend(now, tick);
        }
    }

    /// When the shard last looked at the clock.
    pub(super) fn now(&self) -> u64 {
        self.now.get()
    }

    /// When it must look again, if anything was noted.
    pub(super) fn expires(&self) -> Tick {
        self.expires.get()
    }

    /// The moment before which that was which was noted.
    pub(super) fn resolve(&self, noted: u64) -> u64 {
        self.gaps.borrow().resolve(noted)
    }
}

/// What was noted with a moment from `from` to `to` may have happened up to `until`.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: u64,
    to: u64,
    until: u64,
}

/// Gaps in order. When there are too many, the older ones are joined in pairs: what was noted long
/// ago is then taken to be a little later than it was.
#[derive(Debug, Default)]
struct Gaps(Vec<Gap>);

impl Gaps {
    fn push(&mut self, bound: u64, until: u64) {
        if self.0.len() >= GAPS_MAX {
            let joined: Vec<_> = self.0[..GAPS_MAX / 2]
                .chunks(2)
                .map(|pair| Gap { from: pair[0].from, ..pair[pair.len() - 1] })
                .collect();
            self.0.splice(..GAPS_MAX / 2, joined);
        }
        self.0.push(Gap { from: bound, to: bound, until });
    }

    fn resolve(&self, noted: u64) -> u64 {
        let next = self.0.partition_point(|gap| gap.to < noted);
        match self.0.get(next) {
            Some(gap) if gap.from <= noted => gap.until,
            _ => noted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;
    use std::num::NonZeroU64;

    const MS: u64 = 1_000_000;

    fn tick() -> TickLength {
        TickLength::from_nanos(NonZeroU64::new(MS).unwrap())
    }

    #[test]
    fn a_note_is_never_older_than_what_it_stands_for_and_little_younger() {
        let given = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        let mut rng = Rng::with_seed(seed);
        let recent = Recent::new();
        let mut now = 0;
        // What was noted, when that was, and when the clock was looked at next.
        let mut notes: Vec<(u64, u64, Option<u64>)> = Vec::new();
        for _ in 0..20_000 {
            let pause = if rng.u32(..40) == 0 { 200 * MS } else { 2 * MS };
            now += rng.u64(..pause);
            if rng.bool() {
                recent.look(now, tick());
                for note in notes.iter_mut().rev().take_while(|note| note.2.is_none()) {
                    note.2 = Some(now);
                }
            } else {
                let bound = recent.bound().unwrap_or_else(|| recent.open(now, tick()).0);
                notes.push((bound, now, None));
            }
        }
        recent.look(now, tick());
        for (bound, at, looked) in notes {
            let looked = looked.unwrap_or(now);
            let resolved = recent.resolve(bound);
            assert!(resolved >= at, "seed {seed}: {at} is taken for {resolved}");
            let joined = recent.gaps.borrow().0.first().is_some_and(|gap| gap.from < gap.to);
            let most = looked.max(at + 11 * MS);
            assert!(joined || resolved <= most, "seed {seed}: {at} is taken for {resolved}");
        }
    }

    #[test]
    fn notes_of_long_ago_are_taken_to_be_a_little_later_when_there_are_many_gaps() {
        let mut gaps = Gaps::default();
        for number in 0..10_000 {
            gaps.push(number * 100, number * 100 + 50);
        }
        assert!(gaps.0.len() <= GAPS_MAX);
        for number in 0..10_000 {
            let resolved = gaps.resolve(number * 100);
            let age = 1_000_000 - number * 100;
            assert!(resolved >= number * 100 + 50 && resolved <= number * 100 + 50 + age);
        }
        assert_eq!(gaps.resolve(999_900), 999_950);
    }

    #[test]
    fn nobody_must_look_where_nothing_is_noted() {
        let recent = Recent::new();
        recent.look(5 * MS, tick());
        assert_eq!((recent.bound(), recent.expires()), (None, Tick::NEVER));
        let (bound, expires) = recent.open(5 * MS, tick());
        assert_eq!((bound, expires), (15 * MS, Tick::new(15)));
        recent.look(8 * MS, tick());
        assert_eq!((recent.bound(), recent.expires()), (Some(18 * MS), Tick::new(15)));
        recent.look(15 * MS, tick());
        assert_eq!((recent.bound(), recent.expires()), (None, Tick::NEVER));
    }
}

//! Deadlines that may be a little later, so that timers share a tick and its wake-up of the shard.
//!
//! Why a deadline, and not an option of each method: every method takes one.
//!
//! Invariant: nothing here makes a timer earlier.

use std::time::Duration;

use corewheel_shard::Tick;

use super::handle::Handle;
use crate::clock::nanos_after;
use crate::clock::when::{Deadline, When};

/// Deadlines that timers share.
impl<T: 'static> Handle<T> {
    /// The deadline of a timer that is due at `when`, or up to `slack` later where that lets timers
    /// share a tick: of the ticks in between the one that the highest power of two divides.
    ///
    /// A shard wakes up for each tick in which a timer is due. Timers with the same slack, even
    /// those of different shards, are due in one tick out of about as many as the slack is long,
    /// instead of each in its own tick. The deadline is never early, and never later than the slack
    /// allows. A slack that is shorter than a tick changes nothing, and neither does a slack of a
    /// timer that is never due. A handle of a service that has ended returns a deadline that never
    /// comes.
    ///
    /// ```
    /// # use corewheel::{Fired, TimerService};
    /// # use std::time::Duration;
    /// # let service = TimerService::builder().shards(1).start_attached_with::<u64>()?;
    /// # let shard = service.attach(service.shards().next().unwrap())?;
    /// # let shard = shard.into_loop(|_: Fired<u64>, _: &_| {})?;
    /// # let (timers, handle) = (shard.timers(), service.handle());
    /// let keep_alive = Duration::from_secs(30);
    /// let deadline = handle.deadline_with_slack(keep_alive, Duration::from_secs(2));
    /// timers.schedule(deadline, 7)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "slack")]
    pub fn deadline_with_slack<W: When>(&self, when: W, slack: Duration) -> Deadline {
        let deadline = self.with_reach(move |reach| {
            let (time, now) = (reach.time(), reach.nanos());
            let earliest = time.tick_of(when, || now);
            if earliest == Tick::NEVER {
                return earliest;
            }
            let latest = nanos_after(time.nanos_of(when, || now), slack);
            roundest(earliest, time.floor(latest))
        });
        Deadline(deadline.unwrap_or(Tick::NEVER))
    }
}

/// The tick that the highest power of two divides, from `earliest` to `latest`.
fn roundest(earliest: Tick, latest: Tick) -> Tick {
    let (low, high) = (earliest.index(), latest.index());
    if low >= high {
        return earliest;
    }
    // Above the highest bit in which they differ they are the same, and at it `high` has a one.
    let bit = (low ^ high).ilog2();
    let below = (1 << bit) - 1;
    // Without anything below that bit, `low` is rounder still: it does not have the bit.
    if low & below == 0 { earliest } else { Tick::new(high & !below) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundest_tick_equals_the_tick_found_by_search() {
        for low in 0..150_u64 {
            for high in 0..150 {
                let roundness = |tick: &u64| if *tick == 0 { 64 } else { tick.trailing_zeros() };
                // Of those that are equally round there is one.
                let expected = (low..=high).max_by_key(roundness).unwrap_or(low);
                let found = roundest(Tick::new(low), Tick::new(high));
                assert_eq!(found, Tick::new(expected), "from {low} to {high}");
            }
        }
        let last = Tick::new(Tick::NEVER.index() - 1);
        assert_eq!(roundest(Tick::new(5), last), Tick::new(1 << 63));
        assert_eq!(roundest(last, last), last);
    }
}

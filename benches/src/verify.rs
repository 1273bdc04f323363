//! The check that a contender works correctly.

use crate::{Payload, Timers};

const TIMERS: usize = 20_000;
const DELAY_MAX: u64 = 60_000;
/// At this tick some timers are reset and cancelled once more.
const MIDWAY: u64 = 10_000;

/// The expected outcome of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Fires { at: u64, was_reset: bool },
    IsCancelled,
    HasFired,
}

/// Schedules, cancels, resets to earlier and later deadlines, and advances tick by tick.
///
/// # Panics
///
/// If a timer does not fire in its tick exactly once; if a cancelled timer fires; or if the order
/// within a tick is not the one that the contender claims.
pub fn verify<T: Timers>() {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0001);
    let mut timers = T::with_capacity(TIMERS);
    let mut fates = Vec::with_capacity(TIMERS);
    let mut handles = Vec::with_capacity(TIMERS);
    for number in 0..TIMERS {
        let at = rng.u64(1..=DELAY_MAX);
        handles.push(Some(timers.schedule(at, payload(number))));
        fates.push(Fate::Fires { at, was_reset: false });
    }
    disturb(&mut timers, &mut fates, &mut handles, 0, &mut rng);
    for now in 1..=DELAY_MAX {
        if let Some(next) = timers.next_deadline() {
            let first = fates.iter().filter_map(|fate| match fate {
                Fate::Fires { at, .. } => Some(*at),
                _ => None,
            });
            // A search through all timers is slow, so not at every tick.
            if now % 512 == 0 {
                let first = first.min().expect("something is pending");
                assert!(next <= first, "{}: sleeps until {next}, past {first}", T::NAME);
            }
        }
        let mut last = 0;
        timers.advance(now, |payload| {
            let number = payload.get() as usize - 1;
            let Fate::Fires { at, was_reset } = fates[number] else {
                panic!("{}: timer {number} fired at {now}: {:?}", T::NAME, fates[number]);
            };
            assert_eq!(at, now, "{}: timer {number} fires in its tick", T::NAME);
            fates[number] = Fate::HasFired;
            if T::FIFO && !was_reset {
                assert!(number >= last, "{}: {number} after {last} in tick {now}", T::NAME);
                last = number;
            }
        });
        if now == MIDWAY {
            disturb(&mut timers, &mut fates, &mut handles, now, &mut rng);
        }
    }
    assert_eq!(timers.pending(), 0, "{}: all have fired or are cancelled", T::NAME);
    let left = fates.iter().position(|fate| matches!(fate, Fate::Fires { .. }));
    assert_eq!(left, None, "{}: this timer did not fire", T::NAME);
}

fn disturb<T: Timers>(
    timers: &mut T,
    fates: &mut [Fate],
    handles: &mut [Option<T::Handle>],
    now: u64,
    rng: &mut fastrand::Rng,
) {
    for number in 0..TIMERS {
        let Fate::Fires { .. } = fates[number] else { continue };
        match rng.u32(..6) {
            0 => {
                let handle = handles[number].take().expect("a pending timer has its handle");
                assert_eq!(timers.cancel(handle), payload(number), "{}", T::NAME);
                fates[number] = Fate::IsCancelled;
            }
            1 | 2 => {
                let handle = handles[number].take().expect("a pending timer has its handle");
                let at = rng.u64(now + 1..=DELAY_MAX);
                handles[number] = Some(timers.reset(handle, at));
                fates[number] = Fate::Fires { at, was_reset: true };
            }
            _ => {}
        }
    }
    let pending = fates.iter().filter(|fate| matches!(fate, Fate::Fires { .. })).count();
    assert_eq!(timers.pending(), pending, "{}: pending", T::NAME);
}

fn payload(number: usize) -> Payload {
    Payload::new(number as u64 + 1).expect("one more than a number is not zero")
}

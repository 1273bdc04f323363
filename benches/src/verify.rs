//! The check that a contender works correctly: it does what an ordered map does.

use std::collections::HashSet;

use crate::peers::BTree;
use crate::{Payload, Timers};

const TIMERS: u64 = 20_000;
const DELAY_MAX: u64 = 60_000;
/// After this tick, and after the first, some timers are reset and others cancelled.
const MIDWAY: u64 = 10_000;

/// Schedules, cancels, resets to earlier and later deadlines, and advances tick by tick, beside an
/// ordered map.
///
/// # Panics
///
/// If a timer does not fire in its tick exactly once; if a cancelled timer fires; if the order
/// within a tick is not the one that the contender claims; or if the contender would sleep past a
/// deadline.
pub fn verify<T: Timers>() {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0001);
    let capacity = TIMERS as usize;
    let (mut timers, mut map) = (T::with_capacity(capacity), BTree::with_capacity(capacity));
    let mut handles = Vec::new();
    for number in 1..=TIMERS {
        let payload = Payload::new(number).expect("it is counted from one");
        let at = rng.u64(1..=DELAY_MAX);
        handles.push((payload, timers.schedule(at, payload), map.schedule(at, payload)));
    }
    let mut were_reset = HashSet::new();
    for now in 1..=DELAY_MAX {
        assert_eq!(timers.pending(), map.pending(), "{}: pending before {now}", T::NAME);
        let first = map.next_deadline().unwrap_or(u64::MAX);
        let next = timers.next_deadline().unwrap_or(first);
        assert!(next <= first, "{}: sleeps until {next}, past {first}", T::NAME);
        let (mut fired, mut expected) = (Vec::new(), Vec::new());
        timers.advance(now, |payload| fired.push(payload));
        map.advance(now, |payload| expected.push(payload));
        let in_order = fired.iter().filter(|payload| !were_reset.contains(*payload)).is_sorted();
        assert!(in_order || !T::FIFO, "{}: the order of tick {now}", T::NAME);
        fired.sort_unstable();
        expected.sort_unstable();
        assert_eq!(fired, expected, "{}: fired in tick {now}", T::NAME);
        if now != 1 && now != MIDWAY {
            continue;
        }
        for (payload, handle, key) in std::mem::take(&mut handles) {
            match rng.u32(..6) {
                _ if key.0 <= now => {}
                0 => {
                    assert_eq!(timers.cancel(handle), payload, "{}", T::NAME);
                    map.cancel(key);
                }
                1 | 2 => {
                    let at = rng.u64(now + 1..=DELAY_MAX);
                    handles.push((payload, timers.reset(handle, at), map.reset(key, at)));
                    were_reset.insert(payload);
                }
                _ => handles.push((payload, handle, key)),
            }
        }
    }
    assert_eq!(timers.pending(), 0, "{}: all have fired or are cancelled", T::NAME);
}

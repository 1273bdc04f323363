//! Random histories, compared with a plain list. With the code it shares when a queue reads the
//! clock, which its documentation says: a value that is due by the last reading comes without
//! another.

use std::future::poll_fn;
use std::pin::{Pin, pin};

use corewheel::Refused;
use corewheel_kit::queue::{DelayKey, DelayQueue, Expired};
use futures_core::Stream;

use super::{poll, scene};
use corewheel_test_support::{Alarm, FAR, Lab, builder, check_law, ms, seeds, ticks_of};

/// A value of the model.
struct Known {
    key: DelayKey,
    value: u32,
    deadline: u64,
    /// The tick, whether the value was due when it was inserted, and the number of the insert.
    place: (u64, bool, u32),
    /// Was due when it was inserted, which was after the queue last read the clock.
    waits: bool,
    /// Was reset to a later tick, so its place within that tick is not defined.
    moved: bool,
}

/// A plain list of the values of a queue.
#[derive(Default)]
struct Model {
    known: Vec<Known>,
    /// When the queue last read the clock.
    horizon: u64,
    serial: u32,
}

impl Model {
    fn insert(&mut self, key: DelayKey, value: u32, deadline: u64) {
        self.serial += 1;
        let waits = deadline <= self.horizon;
        let place = (deadline.max(self.horizon), waits, self.serial);
        self.known.push(Known { key, value, deadline, place, waits, moved: false });
    }

    /// Takes out the value that the queue has handed out: the next one, which must be due.
    fn take(&mut self, expired: Expired<u32>, now: u64) -> DelayKey {
        assert!(self.is_next(expired.key), "{expired:?} is out of order");
        let number = self.known.iter().position(|known| known.key == expired.key);
        let known = self.known.remove(number.unwrap());
        assert!(known.deadline <= now, "{expired:?} is early");
        assert_eq!(expired.value, known.value);
        known.key
    }

    fn reset(&mut self, number: usize, deadline: u64) {
        let known = &mut self.known[number];
        if deadline < known.deadline {
            let known = self.known.remove(number);
            return self.insert(known.key, known.value, deadline);
        }
        known.moved |= deadline > known.deadline;
        known.deadline = deadline;
        if deadline > known.place.0 {
            (known.place.0, known.place.1) = (deadline, false);
            known.waits = false;
        }
    }

    /// The first place of the values that `takes` accepts.
    fn first(&self, takes: impl Fn(&Known) -> bool) -> Option<(u64, bool)> {
        let takes = |known: &&Known| takes(known);
        self.known.iter().filter(takes).map(|known| (known.place.0, known.place.1)).min()
    }

    /// Whether a value may be the next.
    fn is_next(&self, key: DelayKey) -> bool {
        let Some(next) = self.known.iter().find(|known| known.key == key) else { return false };
        let first = self.first(|_| true);
        first == Some((next.place.0, next.place.1))
            && (next.moved
                || !self.known.iter().any(|known| known.place < next.place && !known.moved))
    }

    /// Whether a value is due. The queue reads the clock if no value is due by its last reading.
    fn look(&mut self, now: u64) -> bool {
        let horizon = self.horizon;
        if self.first(|known| known.place.0 <= horizon && !known.waits).is_some() {
            return true;
        }
        if self.known.is_empty() {
            return false;
        }
        self.horizon = now;
        for known in &mut self.known {
            known.waits = false;
        }
        self.first(|known| known.place.0 <= now).is_some()
    }
}

#[test]
fn random_history_agrees_with_a_plain_list() {
    seeds::each(300, |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut lab = Lab::<()>::new(builder(1).capacity(40));
        let mut queue: DelayQueue<u32> = DelayQueue::new(lab.timers());
        let mut model = Model::default();
        let epoch = lab.clock.now();
        let (alarm, waker) = Alarm::new();
        let is_patient = rng.bool();
        let mut stale = Vec::new();
        let poll_next = |queue: &mut DelayQueue<u32>| {
            poll(pin!(poll_fn(|cx| Pin::new(&mut *queue).poll_next(cx))), &waker)
        };
        for step in 0..400 {
            let at = format!("seed {seed}, step {step}");
            let now = ticks_of(lab.timers());
            let pick = rng.usize(..model.known.len().max(1));
            let delay = match rng.u32(..8) {
                0 => 0,
                1 => rng.u64(..100_000),
                2..5 => rng.u64(..8),
                _ => rng.u64(..600),
            };
            match rng.u32(..12) {
                0..4 => match queue.insert(step, ms(delay)) {
                    Ok(key) => model.insert(key, step, now + delay),
                    Err(error) => {
                        assert_eq!((error, model.known.len()), (Refused::Full(step), 40));
                    }
                },
                4 if !model.known.is_empty() => {
                    let known = model.known.remove(pick);
                    let expired = queue.remove(known.key).unwrap();
                    assert_eq!(expired.value, known.value, "{at}");
                    let due = epoch + ms(known.deadline);
                    assert_eq!((expired.key, expired.deadline), (known.key, due), "{at}");
                    stale.push(known.key);
                }
                5 | 6 if !model.known.is_empty() => {
                    let ago = if rng.u32(..4) == 0 { rng.u64(..20) } else { 0 };
                    let to = (now + delay).saturating_sub(ago);
                    let moment = epoch + ms(to);
                    assert!(queue.reset(model.known[pick].key, moment), "{at}");
                    model.reset(pick, to);
                }
                7 | 8 => {
                    let is_due = model.look(now);
                    let expired = if is_patient {
                        let polled = poll_next(&mut queue);
                        assert_eq!(polled == Some(None), model.known.is_empty(), "{at}");
                        polled.flatten()
                    } else {
                        queue.try_next()
                    };
                    assert_eq!(expired.is_some(), is_due, "{at}");
                    stale.extend(expired.map(|expired| model.take(expired, now)));
                }
                9 if rng.u32(..20) == 0 => {
                    assert_eq!(queue.drain().len(), model.known.len(), "{at}");
                    model.known.clear();
                }
                _ => {
                    let by = [1, 1, 2, 30, 300][rng.usize(..5)];
                    let waiting = alarm.count();
                    lab.advance(ms(by));
                    // A waiting task is woken when a value is due, if not before.
                    if is_patient && waiting == alarm.count() {
                        let expired = poll_next(&mut queue).flatten();
                        let now = ticks_of(lab.timers());
                        assert_eq!(expired.is_some(), model.look(now), "{at}");
                        stale.extend(expired.map(|expired| model.take(expired, now)));
                    }
                }
            }
            if let Some(key) = rng.choice(&stale) {
                // Its slot may hold another value now.
                let moved = queue.reset(*key, FAR) || queue.reset(*key, lab.clock.now());
                assert_eq!((moved, queue.remove(*key), queue.due(*key)), (false, None, None));
            }
            assert_eq!(queue.len(), model.known.len(), "{at}");
            let soonest = queue.peek().map(|key| queue.due(key).unwrap());
            let earliest = model.known.iter().map(|known| epoch + ms(known.deadline)).min();
            assert_eq!(soonest, earliest, "{at}");
            for known in &model.known {
                assert_eq!(queue.due(known.key), Some(epoch + ms(known.deadline)), "{at}");
            }
            assert_eq!(lab.timers().len(), 0, "{at}: a value has no timer");
        }
        check_law(&lab.counts());
    });
}

/// A task waits while values are inserted, reset and removed, and is woken for each value that is
/// due.
#[test]
fn random_history_loses_no_wake() {
    seeds::each(200, |seed| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut lab, queue, alarm, waker) = scene::<u64>();
        let mut recv = Box::pin(queue.recv());
        let mut keys = Vec::new();
        let mut polled = 0;
        assert!(poll(recv.as_mut(), &waker).is_none());
        for step in 0..300 {
            match rng.u32(..5) {
                0 | 1 => keys.push(queue.insert(step, ms(rng.u64(..700))).unwrap()),
                2 if !keys.is_empty() => drop(queue.remove(keys[rng.usize(..keys.len())])),
                3 if !keys.is_empty() => {
                    queue.reset(keys[rng.usize(..keys.len())], ms(rng.u64(..700)));
                }
                _ => lab.advance(ms(rng.u64(..40))),
            }
            lab.settle();
            // As an executor does: a task is polled when it was woken.
            while alarm.count() > polled {
                polled = alarm.count();
                while poll(recv.as_mut(), &waker).is_some() {
                    recv = Box::pin(queue.recv());
                }
            }
            let first = queue.peek().map(|key| queue.due(key).unwrap());
            let overdue = first.is_some_and(|first| first <= lab.clock.now());
            assert!(!overdue, "seed {seed}, step {step}: a value is due and no task was woken");
        }
    });
}

//! What the keeper does under one lock: it fires the timers of a batch and files others.
//!
//! A list is gone over where it lies, and its first entries are taken out together. Why not one
//! after the other: each would look for the end of the list, for gaps, and whether it is empty.
//!
//! Cost: O(1) a timer, and O(kinds + levels) to find the list that comes up next.

use super::Due;
use super::looks::KINDS;
use super::numbers::Numbers;
use super::timers::{NEVER, OF_WHEEL, Timers};
use super::wheel::Next;

impl<W> Timers<W> {
    /// Fires what is due by `now`, and files the young timers whose time has come: up to `max`
    /// timers. What fires goes into `due`, in the order of its ticks. Returns how many timers that
    /// were, and whether there are more.
    pub(super) fn act(
        &mut self,
        numbers: &Numbers,
        now: u64,
        max: u32,
        due: &mut Vec<Due<W>>,
    ) -> (u32, bool) {
        let mut done = 0;
        loop {
            let (mut kind, mut look) = (0, NEVER);
            for (at, looks) in self.looks.iter().enumerate() {
                if looks.next < look {
                    (kind, look) = (at, looks.next);
                }
            }
            let next = self.wheel.next();
            let comes_up = next.map_or(NEVER, |next| self.periods.start_of(next.tick));
            if look.min(comes_up) > now || (look == NEVER && next.is_none()) {
                self.advance(now);
                self.act_by = look.min(comes_up).min(self.ended_by);
                return (done, false);
            }
            // A look before a tick has its young timers filed that are due in that tick.
            let is_done = match next {
                Some(next) if comes_up <= look => {
                    self.wheel.advance(next.tick);
                    if next.is_tick() {
                        self.fire_list(numbers, next, max, &mut done, due)
                    } else {
                        self.go_over(OF_WHEEL + next.list, max, &mut done, Self::refile)
                    }
                }
                _ => {
                    self.advance(look);
                    self.look(kind, max, &mut done)
                }
            };
            if !is_done {
                return (done, true);
            }
        }
    }

    /// Takes timers out of a list, from the front, for `each` to put them elsewhere. False if `max`
    /// are done before.
    #[inline]
    pub(super) fn go_over(
        &mut self,
        list: usize,
        max: u32,
        done: &mut u32,
        mut each: impl FnMut(&mut Self, u32),
    ) -> bool {
        let taken = self.lists.take(list);
        let (mut count, most, mut left) = (0, max - *done, max - *done);
        for slot in taken.slots() {
            if left == 0 {
                break;
            }
            count += 1;
            if let Some(slot) = slot {
                left -= 1;
                each(self, slot);
            }
        }
        *done += most - left;
        let is_empty = self.lists.put_back(list, taken, count, most - left);
        if is_empty {
            self.note_empty(list);
        }
        is_empty
    }

    /// Fires the timers of a tick. False if `max` are done before.
    fn fire_list(
        &mut self,
        numbers: &Numbers,
        Next { tick, list }: Next,
        max: u32,
        done: &mut u32,
        due: &mut Vec<Due<W>>,
    ) -> bool {
        let begins = self.periods.start_of(tick);
        self.go_over(OF_WHEEL + list, max, done, |timers, slot| {
            let deadline = timers.slots.at(slot).deadline;
            // It was reset.
            if deadline > begins && timers.tick_of(deadline) > tick {
                return timers.refile(slot);
            }
            timers.counts.fired += 1;
            let timer = timers.release(numbers, slot);
            let (class, is_guarded) = (timer.class, timer.is_guarded());
            if class != 0 {
                timers.classes.take(class, slot, true);
            }
            due.push(Due { carried: timer.into_carried(), at: begins, class, is_guarded });
        })
    }

    /// Files a timer that is in no list any more.
    #[inline]
    pub(super) fn refile(&mut self, slot: u32) {
        let timer = self.slots.at(slot);
        timer.set_filed();
        let deadline = timer.deadline;
        let (list, _) = self.file(deadline);
        self.put(slot, list);
    }

    /// Takes up to `max` timers out, in no order, for a shard that is ending. Their future finds it
    /// closed. Whether there are more.
    pub(super) fn take_out(&mut self, numbers: &Numbers, max: u32, out: &mut Vec<Due<W>>) -> bool {
        let mut done = 0;
        while done < max {
            let young = (0..2 * KINDS).find(|list| !self.lists.is_empty(*list));
            let filed = || Some(OF_WHEEL + self.wheel.next()?.list);
            let Some(list) = young.or_else(filed) else {
                (0..KINDS).for_each(|kind| self.plan(kind, NEVER));
                (self.act_by, self.ended_by) = (NEVER, NEVER);
                return false;
            };
            self.go_over(list, max, &mut done, |timers, slot| {
                let timer = timers.release(numbers, slot);
                let (at, class) = (timer.deadline, timer.class);
                timers.classes.take(class, slot, false);
                out.push(Due { carried: timer.into_carried(), at, class, is_guarded: false });
            });
        }
        true
    }
}

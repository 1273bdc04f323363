//! The timers themselves, in one generational slab.
//!
//! Why not a node with links, as in an intrusive list: a timer that is cancelled or moved would
//! have to be unlinked, which touches its two neighbours, and a slot that falls due would be a walk
//! with one full memory latency per timer. Here a timer knows nothing of where it is filed. What is
//! filed is an [`Entry`], the slot's index with the number of the filing, and an entry whose number
//! is no longer the slot's is stale: whoever comes across it drops it.
//!
//! Two counts tell everything. The *generation* names a life of the slot and is what keys carry:
//! even while vacant, odd while occupied. The *filing* names the one entry that counts; it moves on
//! when the timer is filed anew and when it ends.
//!
//! Cost: `16 + size_of::<Option<T>>()` bytes a slot, 24 for a boxed task.

use alloc::vec::Vec;
use core::mem;
use core::num::NonZeroU32;
use core::ops::Range;

use crate::key::TimerKey;
use crate::tick::Tick;

/// One filing of one timer: what a slot of the wheel holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) index: u32,
    filing: u32,
}

impl Entry {
    pub(crate) const EMPTY: Self = Self { index: 0, filing: 0 };
}

/// Marks in the deadline of a slot that is granted: no timer yet, and no wish for it either.
const GRANTED: u64 = u64::MAX;
/// Marks in the deadline of a slot that is granted and was cancelled ahead of its timer.
const DOOMED: u64 = u64::MAX - 1;
const _: () = assert!(Tick::NEVER.index() < DOOMED);

/// Marks in the deadline of a vacant slot that its last timer fired; the rest is the free list.
const FIRED: u64 = 1 << 32;
const FREE_LIST_END: u32 = u32::MAX;

#[derive(Debug)]
struct Node<T> {
    /// Armed: the deadline. Granted: a mark, or the deadline that a reset left in advance.
    /// Vacant: the next free slot and how the last timer ended.
    deadline: u64,
    task: Option<T>,
    generation: u32,
    filing: u32,
}

/// What a key names.
pub(crate) enum State {
    Armed {
        deadline: u64,
    },
    Granted,
    Doomed,
    /// Not any more, and the slot still knows that its last timer fired.
    Fired,
    Stale,
}

/// What a cancel comes to.
pub(crate) enum Cancelled<T> {
    Armed {
        deadline: u64,
        task: T,
    },
    /// What the key names instead.
    Other(State),
}

/// What a reset comes to.
pub(crate) enum Moved {
    /// Later: the entry stays where it is.
    Later,
    /// Earlier: this is the entry that counts now, to be filed.
    Earlier(Entry),
    /// What the key names instead.
    Other(State),
}

/// What an entry is worth when its time has come.
pub(crate) enum Ripe<T> {
    Due {
        key: TimerKey,
        deadline: u64,
        task: T,
    },
    /// The timer was moved to this deadline.
    Later(u64),
    /// Its owner has just put it off until then.
    Postponed(u64),
    Stale,
}

/// What became of a task that was sent after its granted key.
pub(crate) enum Armed<T> {
    At { deadline: u64, entry: Entry },
    Doomed(T),
    NotGranted(T),
}

#[derive(Clone, Copy)]
pub(crate) enum Ending {
    Fired,
    Withdrawn,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    nodes: Vec<Node<T>>,
    free: FreeList,
    capacity: u32,
    armed: u32,
    granted: u32,
}

/// The vacant slots, linked by what is their deadline while they are occupied.
#[derive(Debug)]
struct FreeList {
    head: u32,
    retired: u32,
    /// The last generation a slot may have.
    #[cfg(test)]
    generation_max: u32,
}

impl FreeList {
    /// Ends a life of the slot `index`, and links it, unless its generations are used up.
    #[inline]
    fn take_in<T>(&mut self, node: &mut Node<T>, index: u32, ending: Ending) {
        debug_assert!(node.generation % 2 == 1, "slot {index} is vacated while vacant");
        node.filing = node.filing.wrapping_add(1);
        #[cfg(test)]
        let generation_max = self.generation_max;
        #[cfg(not(test))]
        let generation_max = u32::MAX;
        if node.generation == generation_max {
            node.generation = 0;
            node.deadline = 0;
            self.retired += 1;
            return;
        }
        node.generation += 1;
        let fired = if matches!(ending, Ending::Fired) { FIRED } else { 0 };
        node.deadline = u64::from(mem::replace(&mut self.head, index)) | fired;
    }
}

impl<T> Slab<T> {
    /// Reserves room for `capacity` timers; `None` if the allocator refuses.
    pub(crate) fn with_capacity(capacity: u32) -> Option<Self> {
        let mut nodes = Vec::new();
        nodes.try_reserve_exact(capacity as usize).ok()?;
        Some(Self {
            nodes,
            free: FreeList {
                head: FREE_LIST_END,
                retired: 0,
                #[cfg(test)]
                generation_max: u32::MAX,
            },
            capacity,
            armed: 0,
            granted: 0,
        })
    }

    #[cfg(test)]
    pub(crate) fn limit_generations(&mut self, generation_max: u32) {
        assert!(generation_max % 2 == 1, "a last generation is an occupied one");
        self.free.generation_max = generation_max;
    }

    /// Takes a slot for a timer; gives the task back if there is none.
    #[inline]
    pub(crate) fn insert(&mut self, deadline: u64, task: T) -> Result<(TimerKey, Entry), T> {
        let Some((index, node)) = self.occupy() else { return Err(task) };
        node.deadline = deadline;
        node.task = Some(task);
        let filed = (key_of(index, node.generation), Entry { index, filing: node.filing });
        self.armed += 1;
        Ok(filed)
    }

    /// Takes a slot for a timer that is still to come.
    pub(crate) fn grant(&mut self) -> Option<TimerKey> {
        let (index, node) = self.occupy()?;
        node.deadline = GRANTED;
        let key = key_of(index, node.generation);
        self.granted += 1;
        Some(key)
    }

    /// Fills a granted slot with its timer.
    #[inline]
    pub(crate) fn arm(&mut self, key: TimerKey, deadline: u64, task: T) -> Armed<T> {
        let Some(node) = self.nodes.get_mut(key.index() as usize) else {
            return Armed::NotGranted(task);
        };
        // An even generation is that of a vacant slot: such a key was forged.
        let forged = node.generation.is_multiple_of(2);
        if node.generation != key.generation().get() || forged || node.task.is_some() {
            return Armed::NotGranted(task);
        }
        if node.deadline == DOOMED {
            self.granted -= 1;
            self.free.take_in(node, key.index(), Ending::Withdrawn);
            return Armed::Doomed(task);
        }
        if node.deadline == GRANTED {
            node.deadline = deadline;
        }
        node.task = Some(task);
        self.granted -= 1;
        self.armed += 1;
        let entry = Entry { index: key.index(), filing: node.filing };
        Armed::At { deadline: node.deadline, entry }
    }

    /// Leaves word for a timer still to come that it is cancelled.
    pub(crate) fn doom(&mut self, key: TimerKey) {
        self.nodes[key.index() as usize].deadline = DOOMED;
    }

    /// Leaves word for a timer still to come that its deadline is another.
    pub(crate) fn redirect(&mut self, key: TimerKey, deadline: u64) {
        self.nodes[key.index() as usize].deadline = deadline;
    }

    /// Takes a granted slot back. False if `key` names none.
    pub(crate) fn revoke(&mut self, key: TimerKey) -> bool {
        let granted = matches!(self.state(key), State::Granted | State::Doomed);
        if granted {
            self.granted -= 1;
            let node = &mut self.nodes[key.index() as usize];
            self.free.take_in(node, key.index(), Ending::Withdrawn);
        }
        granted
    }

    /// Ends the timer that `key` names, if it names one, and hands out its task.
    #[inline]
    pub(crate) fn cancel(&mut self, key: TimerKey) -> Cancelled<T> {
        if let Some(node) = self.nodes.get_mut(key.index() as usize)
            && node.generation == key.generation().get()
            && let Some(task) = node.task.take()
        {
            let deadline = node.deadline;
            self.armed -= 1;
            self.free.take_in(node, key.index(), Ending::Withdrawn);
            return Cancelled::Armed { deadline, task };
        }
        Cancelled::Other(self.state(key))
    }

    /// Moves the deadline of the timer that `key` names, if it names one.
    #[inline]
    pub(crate) fn reset(&mut self, key: TimerKey, deadline: u64) -> Moved {
        if let Some(node) = self.nodes.get_mut(key.index() as usize)
            && node.generation == key.generation().get()
            && node.task.is_some()
        {
            let earlier = deadline < node.deadline;
            node.deadline = deadline;
            if !earlier {
                return Moved::Later;
            }
            node.filing = node.filing.wrapping_add(1);
            return Moved::Earlier(Entry { index: key.index(), filing: node.filing });
        }
        Moved::Other(self.state(key))
    }

    /// Ends the timer that `entry` files, if it is due at `now` and `postpone` does not say until
    /// when it is not, and hands out its task.
    #[inline]
    pub(crate) fn expire(
        &mut self,
        entry: Entry,
        now: u64,
        postpone: impl FnOnce(&T) -> Option<Tick>,
    ) -> Ripe<T> {
        let node = &mut self.nodes[entry.index as usize];
        if node.filing != entry.filing {
            return Ripe::Stale;
        }
        let deadline = node.deadline;
        if deadline > now {
            return Ripe::Later(deadline);
        }
        if let Some(later) = node.task.as_ref().and_then(postpone) {
            node.deadline = later.index();
            return Ripe::Postponed(later.index());
        }
        let Some(task) = node.task.take() else {
            debug_assert!(false, "the entry that counts of slot {} files nothing", entry.index);
            return Ripe::Stale;
        };
        let key = key_of(entry.index, node.generation);
        self.armed -= 1;
        self.free.take_in(node, entry.index, Ending::Fired);
        Ripe::Due { key, deadline, task }
    }

    /// Ends the timer of an armed slot and hands out its task.
    pub(crate) fn remove(&mut self, index: u32) -> (TimerKey, u64, T) {
        let node = &mut self.nodes[index as usize];
        let key = key_of(index, node.generation);
        let deadline = node.deadline;
        let task = node.task.take().expect("only an armed slot is removed");
        self.armed -= 1;
        self.free.take_in(node, index, Ending::Withdrawn);
        (key, deadline, task)
    }

    #[inline]
    pub(crate) fn state(&self, key: TimerKey) -> State {
        let Some(node) = self.nodes.get(key.index() as usize) else { return State::Stale };
        let generation = key.generation().get();
        if node.generation == generation {
            match (&node.task, node.deadline) {
                (Some(_), deadline) => State::Armed { deadline },
                (None, DOOMED) => State::Doomed,
                // An even generation is nobody's: such a key was forged.
                (None, _) if generation.is_multiple_of(2) => State::Stale,
                (None, _) => State::Granted,
            }
        } else if node.generation == generation.wrapping_add(1)
            && generation % 2 == 1
            && node.deadline & FIRED != 0
        {
            State::Fired
        } else {
            State::Stale
        }
    }

    /// The deadline of the timer that `entry` files, or `None` if the entry is stale.
    pub(crate) fn probe(&self, entry: Entry) -> Option<u64> {
        let (deadline, live) = self.look(entry);
        live.then_some(deadline)
    }

    /// The deadline of the slot that `entry` names, and whether the entry is not stale.
    #[inline]
    pub(crate) fn look(&self, entry: Entry) -> (u64, bool) {
        let node = &self.nodes[entry.index as usize];
        (node.deadline, node.filing == entry.filing)
    }

    /// Whether the entry is not stale.
    #[inline]
    pub(crate) fn is_live(&self, entry: Entry) -> bool {
        self.nodes[entry.index as usize].filing == entry.filing
    }

    /// The key of the timer that an entry files, if that is not stale.
    pub(crate) fn key(&self, entry: Entry) -> TimerKey {
        key_of(entry.index, self.nodes[entry.index as usize].generation)
    }

    /// The task of an armed timer.
    pub(crate) fn task(&self, index: u32) -> Option<&T> {
        self.nodes.get(index as usize)?.task.as_ref()
    }

    /// The first armed slot at or after `from`.
    pub(crate) fn next_armed(&self, from: u32) -> Option<u32> {
        let tail = self.nodes.get(from as usize..)?;
        let offset = tail.iter().position(|node| node.task.is_some())?;
        Some(from + offset as u32)
    }

    /// The timer of the first armed slot of these.
    pub(crate) fn first_armed_in(&self, slots: Range<u32>) -> Option<TimerKey> {
        let end = (slots.end as usize).min(self.nodes.len());
        let nodes = self.nodes.get(slots.start as usize..end)?;
        let (offset, node) = nodes.iter().enumerate().find(|(_, node)| node.task.is_some())?;
        Some(key_of(slots.start + offset as u32, node.generation))
    }

    #[inline]
    pub(crate) fn armed(&self) -> u32 {
        self.armed
    }

    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    pub(crate) fn retired(&self) -> u32 {
        self.free.retired
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Recounts everything.
    ///
    /// # Panics
    ///
    /// If a count or the free list is wrong.
    pub(crate) fn check_invariants(&self) {
        let armed = self.nodes.iter().filter(|node| node.task.is_some()).count();
        let occupied = self.nodes.iter().filter(|node| node.generation % 2 == 1).count();
        assert_eq!(armed, self.armed as usize, "armed slots are counted");
        assert_eq!(occupied - armed, self.granted as usize, "granted slots are counted");
        for (index, node) in self.nodes.iter().enumerate() {
            let vacant = node.generation % 2 == 0;
            assert!(!(vacant && node.task.is_some()), "slot {index} is vacant and holds a task");
            assert!(
                node.task.is_none() || node.deadline <= Tick::NEVER.index(),
                "slot {index} is armed with a mark for a deadline"
            );
        }
        let mut free = 0;
        let mut next = self.free.head;
        while next != FREE_LIST_END {
            let node = &self.nodes[next as usize];
            assert!(node.generation.is_multiple_of(2), "slot {next} is free and occupied");
            free += 1;
            assert!(free <= self.nodes.len(), "the free list is a circle");
            next = node.deadline as u32;
        }
        assert_eq!(
            free + occupied + self.free.retired as usize,
            self.nodes.len(),
            "every slot is free, occupied or retired"
        );
    }

    /// The last slot that was vacated comes first: its line is still in the cache. The caller
    /// writes the deadline, which links the free slots until then.
    #[inline]
    fn occupy(&mut self) -> Option<(u32, &mut Node<T>)> {
        let index = self.free.head;
        if index as usize >= self.nodes.len() {
            return self.occupy_another();
        }
        let node = &mut self.nodes[index as usize];
        self.free.head = node.deadline as u32;
        node.generation += 1;
        Some((index, node))
    }

    /// None of those that there are is free.
    fn occupy_another(&mut self) -> Option<(u32, &mut Node<T>)> {
        debug_assert!(self.free.head == FREE_LIST_END, "a free slot is not there");
        let index = self.nodes.len() as u32;
        if index == self.capacity {
            return None;
        }
        self.nodes.push(Node { deadline: 0, task: None, generation: 1, filing: 0 });
        self.nodes.last_mut().map(|node| (index, node))
    }
}

#[inline]
fn key_of(index: u32, generation: u32) -> TimerKey {
    debug_assert!(generation % 2 == 1, "an occupied slot has an odd generation");
    TimerKey::from_parts(index, NonZeroU32::MIN | generation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::boxed::Box;

    #[test]
    fn a_slot_with_a_boxed_task_takes_24_bytes() {
        assert_eq!(size_of::<Node<Box<u64>>>(), 24);
    }

    #[test]
    fn a_slot_retires_when_its_generations_are_used_up() {
        let mut slab = Slab::with_capacity(2).unwrap();
        slab.limit_generations(5);
        let mut keys = Vec::new();
        for _ in 0..3 {
            let (key, _) = slab.insert(7, ()).unwrap();
            assert_eq!(key.index(), 0);
            slab.remove(key.index());
            slab.check_invariants();
            keys.push(key);
        }
        assert_eq!(slab.retired(), 1);
        let (key, _) = slab.insert(7, ()).unwrap();
        assert_eq!(key.index(), 1, "the next timer takes another slot");
        assert!(slab.insert(7, ()).is_err(), "a retired slot is capacity lost");
        for key in keys {
            assert!(matches!(slab.state(key), State::Stale), "{key:?} names nothing any more");
        }
        slab.check_invariants();
    }

    #[test]
    fn an_entry_of_an_earlier_filing_or_life_is_stale() {
        let mut slab = Slab::with_capacity(1).unwrap();
        let (key, first) = slab.insert(9, ()).unwrap();
        let Moved::Earlier(second) = slab.reset(key, 3) else { panic!("3 is earlier than 9") };
        assert_eq!((slab.probe(first), slab.probe(second)), (None, Some(3)));
        assert!(matches!(slab.expire(first, 9, |()| None), Ripe::Stale));
        assert!(matches!(slab.expire(second, 2, |()| None), Ripe::Later(3)));
        assert!(matches!(slab.expire(second, 3, |()| None), Ripe::Due { .. }));
        assert_eq!(slab.probe(second), None);
        assert!(matches!(slab.state(key), State::Fired));
        let (_, third) = slab.insert(4, ()).unwrap();
        assert_eq!((slab.probe(second), slab.probe(third)), (None, Some(4)));
        assert!(matches!(slab.state(key), State::Stale));
    }
}

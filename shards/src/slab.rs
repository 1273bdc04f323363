//! The timers themselves, in one generational slab.
//!
//! Why not a node with links, as in an intrusive list: a cancel or a reset would have to unlink the
//! timer, which touches its two neighbours, and expiring a wheel slot would be a walk with one full
//! memory latency per timer. Here a timer does not know where it is filed. The wheel holds an
//! [`Entry`]: the slab slot's index and a filing number. An entry whose filing number differs from
//! the slab slot's is stale, and the code that finds it drops it.
//!
//! Each slab slot has two counters. The *generation* is part of every key: it is even while the
//! slot is vacant and odd while it is occupied. The *filing* names the only entry of the slot that
//! is not stale; it grows when a reset to an earlier deadline, a postponement or a search for the
//! soonest timer files another entry, and when the timer ends.
//!
//! Cost: `16 + size_of::<Option<T>>()` bytes a slot, 24 for a boxed payload.

use alloc::vec::Vec;
use core::mem;
use core::num::NonZeroU32;

use crate::key::TimerKey;
use crate::tick::Tick;

/// A reference from a slot of the wheel to a timer in the slab: the index of the timer's slot in
/// the low half, the filing number in the high half.
///
/// One number, so that it is stored and loaded at once. A load of both halves that follows their
/// two stores would wait until these have left the store buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Entry(u64);

impl Entry {
    pub(crate) const EMPTY: Self = Self(0);

    #[inline]
    fn new(index: u32, filing: u32) -> Self {
        Self(u64::from(index) | u64::from(filing) << 32)
    }

    #[inline]
    pub(crate) fn index(self) -> u32 {
        self.0 as u32
    }

    #[inline]
    fn filing(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// The `deadline` of a granted slot whose key was neither cancelled nor reset.
const GRANTED: u64 = u64::MAX;
/// The `deadline` of a granted slot whose key was cancelled before its timer arrived.
pub(crate) const GRANT_CANCELLED: u64 = u64::MAX - 1;
const _: () = assert!(Tick::NEVER.index() < GRANT_CANCELLED);

/// The bit in the `deadline` of a vacant slot that says that the last timer of the slot fired. The
/// low 32 bits are the link of the free list.
const FIRED: u64 = 1 << 32;
const FREE_LIST_END: u32 = u32::MAX;

#[derive(Debug)]
struct Node<T> {
    /// Armed: the deadline, at most [`Tick::NEVER`]. Granted: [`GRANTED`], [`GRANT_CANCELLED`] or
    /// the deadline of a reset that overtook the timer. Vacant: the index of the next free slot and
    /// the [`FIRED`] bit.
    deadline: u64,
    /// `Some` exactly while the slot is armed.
    payload: Option<T>,
    /// Odd while the slot is occupied, even while it is vacant, 0 once it is retired.
    generation: u32,
    /// The filing number of the only entry that is not stale. It wraps.
    filing: u32,
}

/// The state of the slot that a key names.
pub(crate) enum State {
    Armed {
        deadline: u64,
    },
    Granted,
    /// Granted, and a cancel overtook the timer.
    GrantCancelled,
    /// The slot is vacant, and its last timer was that of the key and fired.
    Fired,
    Stale,
}

/// The outcome of [`Slab::cancel`].
pub(crate) enum Cancelled<T> {
    Armed {
        deadline: u64,
        payload: T,
    },
    /// The key names no armed slot, and nothing has changed.
    NotArmed,
}

/// The outcome of [`Slab::reset`].
pub(crate) enum Reset {
    /// The new deadline is not earlier: the entry stays in its slot of the wheel.
    Later,
    /// The new deadline is earlier: the previous entry is stale, and the caller files this one.
    Earlier(Entry),
    /// The key names no armed slot, and nothing has changed.
    NotArmed,
}

/// The outcome of [`Slab::expire`].
pub(crate) enum Popped<T> {
    Due {
        key: TimerKey,
        deadline: u64,
        payload: T,
    },
    /// A reset has set this deadline, which is later than now: the caller files the entry again.
    NotDue(u64),
    /// `postpone` has postponed the timer to this deadline: the caller files this entry.
    Postponed {
        deadline: u64,
        entry: Entry,
    },
    Stale,
}

/// The outcome of [`Slab::arm`].
pub(crate) enum Armed<T> {
    At { deadline: u64, entry: Entry },
    GrantCancelled(T),
    NotGranted(T),
}

/// How a slot comes to be vacant: its timer fired or did not.
#[derive(Clone, Copy)]
pub(crate) enum Ending {
    Fired,
    NotFired,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    /// The slots that have been occupied at least once; at most `capacity`.
    nodes: Vec<Node<T>>,
    free: FreeList,
    capacity: u32,
    armed: u32,
    granted: u32,
}

/// The vacant slots, linked through the field that is the deadline of an occupied slot.
#[derive(Debug)]
struct FreeList {
    /// The slot that was vacated last, or [`FREE_LIST_END`].
    head: u32,
    retired: u32,
    /// The last generation of a slot, odd.
    #[cfg(test)]
    generation_max: u32,
}

impl FreeList {
    /// Makes the slot `index` vacant: links it into the list, or retires it if its generations are
    /// used up.
    #[inline]
    fn vacate<T>(&mut self, node: &mut Node<T>, index: u32, ending: Ending) {
        debug_assert!(node.generation % 2 == 1, "slot {index} is vacated and is vacant already");
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
        assert!(generation_max % 2 == 1, "the last generation of a slot is odd");
        self.free.generation_max = generation_max;
    }

    /// Occupies a slot with a timer; returns the payload if no slot is left.
    #[inline]
    pub(crate) fn insert(&mut self, deadline: u64, payload: T) -> Result<(TimerKey, Entry), T> {
        let Some((index, node)) = self.occupy() else { return Err(payload) };
        node.deadline = deadline;
        node.payload = Some(payload);
        let inserted = (key_of(index, node.generation), Entry::new(index, node.filing));
        self.armed += 1;
        Ok(inserted)
    }

    /// Occupies a slot for a timer that arrives later; `None` if no slot is left.
    pub(crate) fn grant(&mut self) -> Option<TimerKey> {
        let (index, node) = self.occupy()?;
        node.deadline = GRANTED;
        let key = key_of(index, node.generation);
        self.granted += 1;
        Some(key)
    }

    /// Puts a timer into its granted slot, or vacates the slot if the grant was cancelled.
    #[inline]
    pub(crate) fn arm(&mut self, key: TimerKey, deadline: u64, payload: T) -> Armed<T> {
        let Some(node) = self.nodes.get_mut(key.index() as usize) else {
            return Armed::NotGranted(payload);
        };
        // A vacant slot has an even generation, which no key that the slab returned has.
        let vacant = node.generation % 2 == 0;
        if node.generation != key.generation().get() || vacant || node.payload.is_some() {
            return Armed::NotGranted(payload);
        }
        if node.deadline == GRANT_CANCELLED {
            self.granted -= 1;
            self.free.vacate(node, key.index(), Ending::NotFired);
            return Armed::GrantCancelled(payload);
        }
        if node.deadline == GRANTED {
            node.deadline = deadline;
        }
        node.payload = Some(payload);
        self.granted -= 1;
        self.armed += 1;
        let entry = Entry::new(key.index(), node.filing);
        Armed::At { deadline: node.deadline, entry }
    }

    /// Stores a deadline in a granted slot; it replaces the one with which the timer arrives.
    pub(crate) fn reset_grant(&mut self, key: TimerKey, deadline: u64) {
        self.nodes[key.index() as usize].deadline = deadline;
    }

    /// Vacates a granted slot. False if `key` names no granted slot.
    pub(crate) fn revoke(&mut self, key: TimerKey) -> bool {
        let granted = matches!(self.state(key), State::Granted | State::GrantCancelled);
        if granted {
            self.granted -= 1;
            let node = &mut self.nodes[key.index() as usize];
            self.free.vacate(node, key.index(), Ending::NotFired);
        }
        granted
    }

    /// Ends the timer that `key` names, if there is one, and returns its payload.
    #[inline]
    pub(crate) fn cancel(&mut self, key: TimerKey) -> Cancelled<T> {
        if let Some(node) = self.nodes.get_mut(key.index() as usize) {
            if node.generation == key.generation().get() {
                if let Some(payload) = node.payload.take() {
                    let deadline = node.deadline;
                    self.armed -= 1;
                    self.free.vacate(node, key.index(), Ending::NotFired);
                    return Cancelled::Armed { deadline, payload };
                }
            }
        }
        Cancelled::NotArmed
    }

    /// Sets the deadline of the timer that `key` names, if there is one.
    #[inline]
    pub(crate) fn reset(&mut self, key: TimerKey, deadline: u64) -> Reset {
        if let Some(node) = self.nodes.get_mut(key.index() as usize) {
            if node.generation == key.generation().get() && node.payload.is_some() {
                let earlier = deadline < node.deadline;
                node.deadline = deadline;
                if !earlier {
                    return Reset::Later;
                }
                node.filing = node.filing.wrapping_add(1);
                return Reset::Earlier(Entry::new(key.index(), node.filing));
            }
        }
        Reset::NotArmed
    }

    /// Makes the entry of an armed slot stale, and returns another one, which the caller files.
    pub(crate) fn refile(&mut self, index: u32) -> Entry {
        let node = &mut self.nodes[index as usize];
        debug_assert!(node.payload.is_some(), "slot {index} has no timer to file again");
        node.filing = node.filing.wrapping_add(1);
        Entry::new(index, node.filing)
    }

    /// Ends the timer of `entry` and returns its payload, if the timer is due at `now` and
    /// `postpone` does not postpone it.
    #[inline]
    pub(crate) fn expire(
        &mut self,
        entry: Entry,
        now: u64,
        postpone: impl FnOnce(&T) -> Option<Tick>,
    ) -> Popped<T> {
        let node = &mut self.nodes[entry.index() as usize];
        if node.filing != entry.filing() {
            return Popped::Stale;
        }
        let deadline = node.deadline;
        if deadline > now {
            return Popped::NotDue(deadline);
        }
        if let Some(later) = node.payload.as_ref().and_then(postpone) {
            node.deadline = later.index();
            node.filing = node.filing.wrapping_add(1);
            let entry = Entry::new(entry.index(), node.filing);
            return Popped::Postponed { deadline: node.deadline, entry };
        }
        let Some(payload) = node.payload.take() else {
            debug_assert!(
                false,
                "slot {} has an entry that is not stale and no timer",
                entry.index()
            );
            return Popped::Stale;
        };
        let key = key_of(entry.index(), node.generation);
        self.armed -= 1;
        self.free.vacate(node, entry.index(), Ending::Fired);
        Popped::Due { key, deadline, payload }
    }

    /// Ends the timer of an armed slot and returns its payload.
    pub(crate) fn remove(&mut self, index: u32) -> (TimerKey, u64, T) {
        let node = &mut self.nodes[index as usize];
        let key = key_of(index, node.generation);
        let deadline = node.deadline;
        let payload = node.payload.take().expect("only an armed slot is removed");
        self.armed -= 1;
        self.free.vacate(node, index, Ending::NotFired);
        (key, deadline, payload)
    }

    #[inline]
    pub(crate) fn state(&self, key: TimerKey) -> State {
        let Some(node) = self.nodes.get(key.index() as usize) else { return State::Stale };
        let generation = key.generation().get();
        if node.generation == generation {
            match (&node.payload, node.deadline) {
                (Some(_), deadline) => State::Armed { deadline },
                (None, GRANT_CANCELLED) => State::GrantCancelled,
                // A vacant slot has an even generation, which no key that the slab returned has.
                (None, _) if generation % 2 == 0 => State::Stale,
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

    /// The bytes of the slots that have been occupied at least once.
    pub(crate) fn memory(&self) -> usize {
        self.nodes.len() * size_of::<Node<T>>()
    }

    /// The deadline of the timer of `entry`, or `None` if the entry is stale.
    pub(crate) fn live_deadline(&self, entry: Entry) -> Option<u64> {
        let (deadline, live) = self.deadline_and_live(entry);
        live.then_some(deadline)
    }

    /// The `deadline` field of the slot that `entry` names, and whether the entry is live. The
    /// field is a deadline only if the entry is live.
    #[inline]
    pub(crate) fn deadline_and_live(&self, entry: Entry) -> (u64, bool) {
        let node = &self.nodes[entry.index() as usize];
        (node.deadline, node.filing == entry.filing())
    }

    /// Whether the entry is live, which means not stale.
    #[inline]
    pub(crate) fn is_live(&self, entry: Entry) -> bool {
        self.nodes[entry.index() as usize].filing == entry.filing()
    }

    /// The key of the timer of a live entry.
    pub(crate) fn key(&self, entry: Entry) -> TimerKey {
        key_of(entry.index(), self.nodes[entry.index() as usize].generation)
    }

    /// The payload of an armed slot; `None` for every other slot.
    pub(crate) fn payload(&self, index: u32) -> Option<&T> {
        self.nodes.get(index as usize)?.payload.as_ref()
    }

    /// The first armed slot at or after `from`.
    pub(crate) fn next_armed(&self, from: u32) -> Option<u32> {
        let tail = self.nodes.get(from as usize..)?;
        let offset = tail.iter().position(|node| node.payload.is_some())?;
        Some(from + offset as u32)
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

    /// Checks the counts, the free list and the fields of every slot.
    ///
    /// # Panics
    ///
    /// If a count, a slot or the free list is wrong.
    pub(crate) fn check_invariants(&self) {
        let armed = self.nodes.iter().filter(|node| node.payload.is_some()).count();
        let occupied = self.nodes.iter().filter(|node| node.generation % 2 == 1).count();
        assert_eq!(armed, self.armed as usize, "the count of armed slots is wrong");
        assert_eq!(occupied - armed, self.granted as usize, "the count of granted slots is wrong");
        for (index, node) in self.nodes.iter().enumerate() {
            let vacant = node.generation % 2 == 0;
            assert!(
                !(vacant && node.payload.is_some()),
                "slot {index} is vacant and holds a payload"
            );
            assert!(
                node.payload.is_none() || node.deadline <= Tick::NEVER.index(),
                "slot {index} is armed and its deadline is beyond `Tick::NEVER`"
            );
        }
        let mut free = 0;
        let mut next = self.free.head;
        while next != FREE_LIST_END {
            let node = &self.nodes[next as usize];
            assert!(node.generation % 2 == 0, "occupied slot {next} is in the free list");
            free += 1;
            assert!(free <= self.nodes.len(), "the free list has a cycle");
            next = node.deadline as u32;
        }
        assert_eq!(
            free + occupied + self.free.retired as usize,
            self.nodes.len(),
            "a slot is not exactly one of free, occupied and retired"
        );
    }

    /// Occupies a slot: the one that was vacated last, since its cache line is likely to be still
    /// in the cache. The caller writes the deadline, which until then is the link of the free list.
    #[inline]
    fn occupy(&mut self) -> Option<(u32, &mut Node<T>)> {
        let index = self.free.head;
        if index as usize >= self.nodes.len() {
            return self.occupy_new();
        }
        let node = &mut self.nodes[index as usize];
        self.free.head = node.deadline as u32;
        node.generation += 1;
        Some((index, node))
    }

    /// Occupies a slot that was never occupied before; `None` at the capacity.
    #[cold]
    fn occupy_new(&mut self) -> Option<(u32, &mut Node<T>)> {
        debug_assert!(self.free.head == FREE_LIST_END, "the free list names a slot beyond the end");
        let index = self.nodes.len() as u32;
        if index == self.capacity {
            return None;
        }
        self.nodes.push(Node { deadline: 0, payload: None, generation: 1, filing: 0 });
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
    fn slot_with_boxed_payload_takes_24_bytes() {
        assert_eq!(size_of::<Node<Box<u64>>>(), 24);
    }

    #[test]
    fn slot_whose_generations_are_used_up_retires() {
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
        assert_eq!(key.index(), 1, "the next timer occupies another slot");
        assert!(slab.insert(7, ()).is_err(), "a retired slot still takes up capacity");
        for key in keys {
            assert!(matches!(slab.state(key), State::Stale), "{key:?} is not stale");
        }
        slab.check_invariants();
    }

    #[test]
    fn entry_of_earlier_filing_or_generation_is_stale() {
        let mut slab = Slab::with_capacity(1).unwrap();
        let (key, first) = slab.insert(9, ()).unwrap();
        let Reset::Earlier(second) = slab.reset(key, 3) else { panic!("3 is earlier than 9") };
        assert_eq!((slab.live_deadline(first), slab.live_deadline(second)), (None, Some(3)));
        assert!(matches!(slab.expire(first, 9, |()| None), Popped::Stale));
        assert!(matches!(slab.expire(second, 2, |()| None), Popped::NotDue(3)));
        assert!(matches!(slab.expire(second, 3, |()| None), Popped::Due { .. }));
        assert_eq!(slab.live_deadline(second), None);
        assert!(matches!(slab.state(key), State::Fired));
        let (_, third) = slab.insert(4, ()).unwrap();
        assert_eq!((slab.live_deadline(second), slab.live_deadline(third)), (None, Some(4)));
        assert!(matches!(slab.state(key), State::Stale));
    }
}

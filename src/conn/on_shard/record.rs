//! What a shard keeps of one connection: its activity stamps, and how it is used.
//!
//! Records lie in blocks of 64, which the handles of connections share with the shard. So a touch
//! takes no look-up and borrows nothing. The stamps of a read and of a write never lie on two cache
//! lines.
//!
//! Invariants: a record is given to another connection when no counted reference to it is left.
//! Times are nanoseconds since the clock's epoch, `NEVER` for a deadline that is off.
//!
//! Cost: 72 bytes for each connection.

use std::cell::Cell;
use std::rc::Rc;

use super::super::marks::Flags;
use super::super::moment::Moment;
use crate::face::part::PartTimer;

const BLOCK_BITS: u32 = 6;
pub(super) const BLOCK: usize = 1 << BLOCK_BITS;
/// Not an index into a table.
pub(super) const NONE: u32 = u32::MAX;

/// What a touch and a turn need. A block is aligned to 16 bytes, and so are the stamps, which come
/// first.
#[derive(Default)]
#[repr(C)]
pub(super) struct Record {
    /// The activity stamps of the last read and the last write; `None` if there was none.
    pub(super) stamps: [Cell<Option<Moment>>; 2],
    /// When the connection began.
    pub(super) opened: Cell<u64>,
    /// The connection's entry in the wheel; `None` if the connection is closed.
    pub(super) timer: Cell<Option<PartTimer>>,
    /// In the table of limits.
    pub(super) limits: Cell<u32>,
    /// In the table of extras; `NONE` if the connection has none.
    pub(super) extra: Cell<u32>,
    /// In the table of wakers; `NONE` if no task waits.
    pub(super) waker: Cell<u32>,
    pub(super) flags: Cell<Flags>,
}
const _: () = assert!(size_of::<Record>() == 48);

impl Record {
    pub(super) fn is_open(&self) -> bool {
        self.timer.get().is_some()
    }

    /// Forgets the events that were not delivered.
    pub(super) fn clear_pending(&self) {
        self.flags.set(self.flags.get().with_pending(0));
    }
}

/// How a connection is used: what is in progress, and the handles and guards that refer to it.
#[derive(Default)]
pub(super) struct Usage {
    /// The activity stamp of the last end of a request; `None` if no request has ended.
    request_ended: Cell<Option<Moment>>,
    /// How many reads and requests are in progress.
    pub(super) in_progress: [Cell<u32>; 2],
    /// How many handles keep the connection open.
    pub(super) owners: Cell<u32>,
    /// How many [`RecordRef`]s there are, in handles and in guards.
    pub(super) refs: Cell<u32>,
}
const _: () = assert!(size_of::<Usage>() == 24);

/// Adds one to a count of handles or guards.
///
/// # Panics
///
/// There are 2³² of them, of which nearly all were forgotten.
pub(super) fn add_one(count: &Cell<u32>) {
    count.set(count.get().checked_add(1).expect("fewer than 2^32 handles and guards"));
}

pub(super) fn take_one(count: &Cell<u32>) {
    count.set(count.get().checked_sub(1).expect("each end has a beginning"));
}

/// The records of some connections.
#[repr(C)]
pub(super) struct Records {
    records: [Record; BLOCK],
    usages: [Usage; BLOCK],
}

pub(super) type Block = Rc<Records>;

impl Records {
    pub(super) fn new() -> Block {
        Rc::new(Self {
            records: std::array::from_fn(|_| Record::default()),
            usages: std::array::from_fn(|_| Usage::default()),
        })
    }

    #[inline]
    pub(super) fn record(&self, index: u32) -> &Record {
        &self.records[index as usize % BLOCK]
    }

    #[inline]
    pub(super) fn usage(&self, index: u32) -> &Usage {
        &self.usages[index as usize % BLOCK]
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Record> {
        self.records.iter()
    }

    /// The activity stamps of a connection.
    pub(super) fn stamps_of(&self, index: u32) -> [&Cell<Option<Moment>>; 3] {
        let [read, written] = &self.record(index).stamps;
        [read, written, &self.usage(index).request_ended]
    }

    /// All activity stamps.
    pub(super) fn stamps(&self) -> impl Iterator<Item = &Cell<Option<Moment>>> {
        (0..BLOCK as u32).flat_map(|index| self.stamps_of(index))
    }
}

/// The number of the block in which a record lies.
pub(super) fn block_of(index: u32) -> usize {
    (index >> BLOCK_BITS) as usize
}

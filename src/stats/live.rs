//! What a shard does at this moment, for readers that must see it while the shard is stuck.
//!
//! Each value stands for itself, relaxed: a reader compares it with the clock, and a value that is
//! a moment old gives the same answer.
//!
//! Cost: five stores a turn, and one for each delivery in place of one in the shard's own state.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::values::class::ClassId;

/// Written by the shard's thread.
#[derive(Debug)]
pub(crate) struct Live {
    /// When the turn that runs began, in nanoseconds and one; 0 between turns.
    turn_since: AtomicU64,
    /// From when the next turn is due, in nanoseconds; `u64::MAX` if none is.
    next_due: AtomicU64,
    /// The class of the timer that is delivered.
    delivering: AtomicU8,
    /// The number of the shard's thread by the system; 0 if it is not known.
    thread: AtomicU32,
    /// The bytes that the shard has touched.
    memory: AtomicU64,
}

impl Live {
    pub(super) fn new() -> Self {
        Self {
            turn_since: AtomicU64::new(0),
            next_due: AtomicU64::new(u64::MAX),
            delivering: AtomicU8::new(ClassId::NONE.bits()),
            thread: AtomicU32::new(0),
            memory: AtomicU64::new(0),
        }
    }

    #[inline]
    pub(crate) fn begin_turn(&self, now: u64) {
        self.turn_since.store(now.saturating_add(1), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn end_turn(&self, next_due: u64) {
        self.next_due.store(next_due, Ordering::Relaxed);
        self.turn_since.store(0, Ordering::Relaxed);
        self.delivering.store(ClassId::NONE.bits(), Ordering::Relaxed);
    }

    /// A command has made something due at `at`.
    pub(crate) fn note_due(&self, at: u64) {
        if at < self.next_due.load(Ordering::Relaxed) {
            self.next_due.store(at, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn deliver(&self, class: ClassId) {
        self.delivering.store(class.bits(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn delivering(&self) -> ClassId {
        ClassId::from_bits(self.delivering.load(Ordering::Relaxed))
    }

    /// When the turn that runs began, in nanoseconds; `None` between turns.
    pub(crate) fn turn_since(&self) -> Option<u64> {
        self.turn_since.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn next_due(&self) -> u64 {
        self.next_due.load(Ordering::Relaxed)
    }

    /// The calling thread drives the shard.
    pub(crate) fn set_thread(&self, thread: Option<u32>) {
        self.thread.store(thread.unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn thread(&self) -> Option<u32> {
        Some(self.thread.load(Ordering::Relaxed)).filter(|thread| *thread > 0)
    }

    #[inline]
    pub(crate) fn set_memory(&self, bytes: u64) {
        self.memory.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }
}

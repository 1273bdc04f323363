//! Measured transfers: how many bytes were read or written since when, and by when more must be.
//!
//! The party that moves bytes only adds to a count. When the connection's timer expires, the count
//! says when the deadline really is, and the timer is put off to it.
//!
//! Invariants: adding bytes makes a deadline later or leaves it, and so does a pause. A deadline is
//! rounded up to a nanosecond.
//!
//! Cost: adding is one relaxed addition. A connection with a transfer takes some 100 bytes more for
//! each direction, which the next transfer uses again.

use std::cell::Cell;
use std::sync::Arc;

use super::limits::{DataRate, NEVER};
use crate::clock::saturating_nanos;
use crate::link::sync::{AtomicU64, Ordering};

const SECOND: u64 = 1_000_000_000;

/// Whether a transfer is a read or a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// The bytes of one transfer. Its guard adds to it, and the timer reads it.
#[derive(Debug, Default)]
pub(super) struct ByteCount(AtomicU64);

impl ByteCount {
    /// Adds bytes, from any thread.
    #[inline]
    pub(super) fn add(&self, bytes: u64) {
        // Relaxed: the count carries no other data.
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        if before.checked_add(bytes).is_none() {
            self.0.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Adds bytes, where only one thread does.
    #[inline]
    pub(super) fn add_here(&self, bytes: u64) {
        self.0.store(self.get().saturating_add(bytes), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A transfer of a connection.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Above zero, if the transfer is live.
    bytes_per_second: u64,
    grace: u64,
    /// When the transfer began, and later by the time for which it was paused.
    start: u64,
    /// Since when it is paused; `NEVER` if it is not.
    paused_at: u64,
    /// When its event came; `NEVER` if none has come.
    event_at: Cell<u64>,
    /// Whether it has begun, and its guard has not ended it.
    is_live: bool,
    count: Arc<ByteCount>,
}

impl Measured {
    /// When more bytes must have been transferred, if the transfer is not paused.
    fn due_running(&self) -> u64 {
        let needed = time_of(self.count.get(), self.bytes_per_second);
        self.start.saturating_add(needed.max(self.grace))
    }

    /// When the transfer is too slow; `NEVER` after its event.
    pub(super) fn due(&self) -> u64 {
        let is_off = !self.is_live || self.paused_at != NEVER || self.event_at.get() != NEVER;
        if is_off { NEVER } else { self.due_running() }
    }

    /// Whether its event that was not taken is still true. Otherwise the event is withdrawn, and
    /// comes again if the transfer is too slow again.
    pub(super) fn keep_event(&self) -> bool {
        if !self.is_live {
            return false;
        }
        let is_true = self.due_running() <= self.event_at.get();
        if !is_true {
            self.event_at.set(NEVER);
        }
        is_true
    }

    /// Nothing is demanded from `now` on. The time must not be later than the call.
    pub(super) fn pause(&mut self, now: u64) {
        self.paused_at = self.paused_at.min(now);
    }

    /// The transfer goes on at `now`. The time must not be earlier than the call.
    pub(super) fn resume(&mut self, now: u64) {
        if self.paused_at != NEVER {
            let paused = now.saturating_sub(self.paused_at);
            self.start = self.start.saturating_add(paused);
            self.paused_at = NEVER;
        }
    }

    /// True if its event has come.
    pub(super) fn end(&mut self) -> bool {
        self.is_live = false;
        self.event_at.get() != NEVER
    }
}

/// The transfers of a connection: one of each direction.
#[derive(Debug, Default)]
pub(super) struct Transfers([Option<Box<Measured>>; 2]);

impl Transfers {
    pub(super) fn at(&self, direction: Direction) -> Option<&Measured> {
        self.0[direction as usize].as_deref()
    }

    /// The transfer with this count, unless it has ended.
    pub(super) fn of_count_mut(
        &mut self,
        direction: Direction,
        count: &Arc<ByteCount>,
    ) -> Option<&mut Measured> {
        let transfer = self.0[direction as usize].as_deref_mut();
        transfer.filter(|transfer| transfer.is_live && Arc::ptr_eq(&transfer.count, count))
    }

    /// Begins a transfer, which takes the place of the one before.
    pub(super) fn begin(
        &mut self,
        direction: Direction,
        rate: DataRate,
        now: u64,
    ) -> Arc<ByteCount> {
        let place = &mut self.0[direction as usize];
        let transfer = place.get_or_insert_with(Box::default);
        // The count of a guard that was not dropped is still that guard's.
        match Arc::get_mut(&mut transfer.count) {
            Some(count) => count.0 = AtomicU64::new(0),
            None => transfer.count = Arc::default(),
        }
        transfer.bytes_per_second = rate.bytes_per_second;
        transfer.grace = saturating_nanos(rate.grace);
        transfer.start = now;
        transfer.paused_at = NEVER;
        transfer.event_at.set(NEVER);
        transfer.is_live = true;
        Arc::clone(&transfer.count)
    }

    /// Ends the transfer that there is.
    pub(super) fn end(&mut self, direction: Direction) {
        if let Some(transfer) = &mut self.0[direction as usize] {
            transfer.is_live = false;
        }
    }

    /// The deadline of a transfer has come, at `now`.
    pub(super) fn take(&mut self, direction: Direction, now: u64) {
        if let Some(transfer) = &mut self.0[direction as usize] {
            transfer.event_at.set(now);
        }
    }
}

/// How long a number of bytes takes at a rate, in nanoseconds, rounded up; `NEVER` if that does not
/// fit.
fn time_of(bytes: u64, bytes_per_second: u64) -> u64 {
    // A division of 128 bits takes several times as long.
    if let Some(nanos) = bytes.checked_mul(SECOND) {
        return nanos.div_ceil(bytes_per_second);
    }
    let nanos = (u128::from(bytes) * u128::from(SECOND)).div_ceil(u128::from(bytes_per_second));
    u64::try_from(nanos).unwrap_or(NEVER)
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::thread;

    use super::{Arc, ByteCount};
    use crate::link::loom_tests::check;

    #[test]
    fn bytes_that_two_threads_add_are_both_counted() {
        check(|| {
            let count = Arc::new(ByteCount::default());
            let other = Arc::clone(&count);
            let thread = thread::spawn(move || other.add(7));
            count.add(5);
            thread.join().unwrap();
            assert_eq!(count.get(), 12);
        });
    }
}

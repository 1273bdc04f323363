//! What the owner of a stream has said, until the next read takes note of it.

use crate::link::sync::{AtomicU64, Ordering};

/// The next byte is the first of the connection.
pub(super) const CONNECTION: u64 = 1;
/// The next byte is the first of a message.
pub(super) const MESSAGE: u64 = 2;
/// The next byte is the first of a message that is measured.
pub(super) const MEASURED: u64 = 4;
/// The message that is measured has ended.
pub(super) const ENDED: u64 = 8;

/// Notes as bits. The owner adds and withdraws them on any thread, and a read takes them.
pub(super) struct Notes(AtomicU64);

impl Notes {
    pub(super) fn new(notes: u64) -> Self {
        Self(AtomicU64::new(notes))
    }

    #[inline]
    pub(super) fn get(&self) -> u64 {
        // Relaxed: the word carries no other data.
        self.0.load(Ordering::Relaxed)
    }

    /// Withdraws notes and adds others, in one exchange, so that no read sees one change without
    /// the other.
    pub(super) fn change(&self, withdrawn: u64, added: u64) {
        self.exchange(|notes| notes & !withdrawn | added);
    }

    /// Takes all notes.
    pub(super) fn take(&self) -> u64 {
        self.exchange(|_| 0)
    }

    /// The notes before the exchange.
    fn exchange(&self, next: impl Fn(u64) -> u64) -> u64 {
        let mut notes = self.get();
        loop {
            let new = next(notes);
            // Relaxed: see `get`.
            match self.0.compare_exchange(notes, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(before) => return before,
                Err(present) => notes = present,
            }
        }
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::{CONNECTION, ENDED, MEASURED, MESSAGE, Notes};
    use crate::link::loom_tests::check;

    #[test]
    fn notes_added_while_a_read_takes_them_are_taken_once() {
        check(|| {
            let notes = Arc::new(Notes::new(CONNECTION));
            let owner = Arc::clone(&notes);
            let thread = thread::spawn(move || owner.change(0, MESSAGE | MEASURED | ENDED));
            let first = notes.take();
            thread.join().unwrap();
            let second = notes.take();
            assert_eq!(first & second, 0, "no note is taken twice");
            assert_eq!(first | second, CONNECTION | MESSAGE | MEASURED | ENDED);
        });
    }
}

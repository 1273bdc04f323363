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
/// A head with a deadline has begun, and is not complete.
pub(super) const HEAD: u64 = 16;
/// The deadline of that head is armed.
const ARMED: u64 = 32;

/// The message has ended, and the owner has not said that the next one may begin.
const BETWEEN: u64 = 64;
/// A byte has come in that time, which is the first of the next message.
const AHEAD: u64 = 128;
/// The head that has begun came ahead: its time begins when a read waits for the rest of it.
pub(super) const UNTIMED: u64 = 256;

/// What the next byte takes.
pub(super) const TAKEN: u64 = CONNECTION | MESSAGE | MEASURED | ENDED | BETWEEN;

/// Notes as bits. The owner adds and withdraws them on any thread, and a read takes them.
pub(super) struct Notes(AtomicU64);

impl Notes {
    pub(super) fn new(notes: u64) -> Self {
        Self(AtomicU64::new(notes))
    }

    #[inline]
    fn get(&self) -> u64 {
        // Relaxed: the word carries no other data.
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn has(&self, note: u64) -> bool {
        self.get() & note != 0
    }

    /// The message that is measured has ended, and the stream has taken note of that.
    #[inline]
    pub(super) fn forget_end(&self) {
        self.exchange(|notes| notes & !ENDED);
    }

    /// Changes notes in one exchange, so that no read sees one change without the other. Returns
    /// the notes before.
    fn exchange(&self, next: impl Fn(u64) -> u64) -> u64 {
        let next = |notes| Some(next(notes));
        // Relaxed: see `get`.
        let (Ok(before) | Err(before)) =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        before
    }
}

/// What a read does.
impl Notes {
    /// Takes all notes for a byte that was read. The first byte of a message begins a head, if
    /// heads have a deadline. No other head has begun then, since each call that adds such notes
    /// ends the head before.
    #[inline]
    pub(super) fn take(&self, heads_have_deadline: bool) -> u64 {
        self.exchange(|notes| {
            if notes & MESSAGE != 0 {
                if heads_have_deadline { HEAD } else { 0 }
            } else {
                // Bytes may go on to come ahead, or of a head that has begun so.
                let is_ahead = notes & (BETWEEN | AHEAD) != 0;
                let kept = notes & (HEAD | ARMED | UNTIMED);
                kept | if is_ahead { AHEAD } else { 0 }
            }
        })
    }

    /// Whether a head has begun whose time begins now. True once for each such head.
    #[inline]
    pub(super) fn take_untimed(&self) -> bool {
        self.has(UNTIMED) && self.exchange(|notes| notes & !UNTIMED) & UNTIMED != 0
    }

    /// Whether there is nothing of which a read that waits takes note.
    #[inline]
    pub(super) fn has_none_for_wait(&self) -> bool {
        let notes = self.get();
        notes & (ENDED | HEAD) == 0 && !is_measured_rest(notes)
    }

    /// Takes the note that a message is measured, if its head is complete and came with the bytes
    /// of the message before. True if it was there: no byte that is read begins that message.
    #[inline]
    pub(super) fn take_measured_rest(&self) -> bool {
        let withdrawn = |notes| if is_measured_rest(notes) { notes & !MEASURED } else { notes };
        is_measured_rest(self.get()) && is_measured_rest(self.exchange(withdrawn))
    }

    /// Arms the deadline of a head by `arm`, if a head has begun whose deadline is not armed, and
    /// whose time has begun. True if the head became complete meanwhile, or if another one came
    /// ahead, whose time has not begun: then the deadline is to be disarmed.
    #[inline]
    pub(super) fn arm_head(&self, arm: impl FnOnce()) -> bool {
        let is_timed = |notes| notes & (HEAD | UNTIMED) == HEAD;
        let notes = self.get();
        if !is_timed(notes) || notes & ARMED != 0 {
            return false;
        }
        // Before the exchange, so that an owner who sees the note disarms the deadline after this.
        arm();
        let armed = |notes| if is_timed(notes) { notes | ARMED } else { notes };
        !is_timed(self.exchange(armed))
    }
}

/// Whether a message is measured whose first byte was read before.
fn is_measured_rest(notes: u64) -> bool {
    notes & (MESSAGE | MEASURED) == MEASURED
}

/// What the owner says. Each is true if the deadline of a head is to be disarmed.
impl Notes {
    /// The head of the present message is complete.
    #[inline]
    pub(super) fn complete_head(&self) -> bool {
        // A head that has begun before this call has its note already.
        let of_head = MESSAGE | HEAD | ARMED | UNTIMED;
        self.has(of_head) && self.exchange(|notes| notes & !of_head) & ARMED != 0
    }

    /// The present message is complete. Bytes behind it, if there are any, are the first of the
    /// next one.
    #[inline]
    pub(super) fn complete_message(&self, is_behind: bool) -> bool {
        let withdrawn = MESSAGE | MEASURED | HEAD | ARMED | UNTIMED;
        let added = ENDED | BETWEEN | if is_behind { AHEAD } else { 0 };
        self.exchange(|notes| notes & !withdrawn | added) & ARMED != 0
    }

    /// The next byte begins a message, unless one has come ahead that has begun it already.
    #[inline]
    pub(super) fn begin_message(&self, heads_have_deadline: bool) -> bool {
        let next = |notes| {
            let begun = match (notes & AHEAD != 0, heads_have_deadline) {
                (true, true) => HEAD | UNTIMED,
                (true, false) => 0,
                (false, _) => MESSAGE,
            };
            // Between messages, the stream knows of the end, or finds it noted.
            let ended = if notes & BETWEEN != 0 { 0 } else { ENDED };
            notes & !(HEAD | ARMED | UNTIMED | BETWEEN | AHEAD) | begun | MEASURED | ended
        };
        self.exchange(next) & ARMED != 0
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::{CONNECTION, ENDED, MEASURED, MESSAGE, Notes};
    use crate::link::loom_tests::check;
    use crate::link::sync::Mutex;

    #[test]
    fn notes_added_while_a_read_takes_them_are_taken_once() {
        check(|| {
            let notes = Arc::new(Notes::new(CONNECTION));
            let owner = Arc::clone(&notes);
            let thread = thread::spawn(move || owner.begin_message(false));
            let first = notes.take(false);
            thread.join().unwrap();
            let second = notes.take(false);
            assert_eq!(first & second, 0, "no note is taken twice");
            assert_eq!(first | second, CONNECTION | MESSAGE | MEASURED | ENDED);
        });
    }

    #[test]
    fn head_that_came_ahead_is_not_armed_with_the_time_of_the_one_before() {
        check(|| {
            let notes = Arc::new(Notes::new(MESSAGE));
            notes.take(true);
            // The message is complete, and a byte of the next one has come with it.
            notes.complete_message(false);
            notes.take(true);
            let owner = Arc::clone(&notes);
            let thread = thread::spawn(move || owner.begin_message(true));
            // The read arms what it has a time for.
            let (is_timed, mut is_armed) = (notes.take_untimed(), false);
            let is_withdrawn = notes.arm_head(|| is_armed = true);
            assert!(is_timed || !is_armed || is_withdrawn, "a head is armed without a time");
            thread.join().unwrap();
            assert!(is_timed || notes.take_untimed(), "the head that came ahead is forgotten");
        });
    }

    #[test]
    fn head_that_becomes_complete_while_a_read_waits_leaves_no_deadline() {
        check(|| {
            let shared = Arc::new((Notes::new(MESSAGE), Mutex::new(false)));
            let (notes, is_armed) = &*shared;
            notes.take(true);
            let owner = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (notes, is_armed) = &*owner;
                if notes.complete_head() {
                    *is_armed.lock().unwrap() = false;
                }
            });
            if notes.arm_head(|| *is_armed.lock().unwrap() = true) {
                *is_armed.lock().unwrap() = false;
            }
            thread.join().unwrap();
            assert!(!*is_armed.lock().unwrap(), "a complete head has a deadline");
        });
    }
}

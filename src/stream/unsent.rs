//! What of the responses of a connection its stream has not accepted yet.
//!
//! A request ends, and idle times begin, when the stream has accepted the last byte of its
//! response. A framework takes the response before: HTTP/1 in the same poll in which it writes and
//! flushes, and HTTP/2 as soon as the peer has a window for one byte. So the end of an HTTP/1
//! request waits for the next flush. The data of an HTTP/2 response is handed over as pieces that
//! say when the framework has written or copied them.
//!
//! Why not the flush alone: an HTTP/2 server flushes while it keeps data for which the peer has
//! given no window.
//!
//! Invariants: an end that waits is taken once. Each change is one exchange of the word, so an end
//! waits only if a poll of the stream that takes it follows. Relaxed suffices, as the word and the
//! count carry no other data.
//!
//! Cost: a request of HTTP/1 costs an addition and an exchange, and one of HTTP/2 these and two
//! additions for each piece. A flush costs a load, and so does a write, and an addition where
//! pieces are left.

use crate::link::sync::{AtomicU64, Ordering};

/// A write, a flush or a shutdown waits.
const SENDING: u64 = 1;
/// The stream has accepted all, and pieces wait for a window.
const WINDOWED: u64 = 2;
/// One end that waits. There are fewer than 2²⁵.
const END: u64 = 4;
const ENDS: u64 = PIECE - END;
/// One piece that was handed over and not dropped. There are fewer than 2³⁷.
const PIECE: u64 = 1 << 27;
const PIECES: u64 = !(PIECE - 1);

/// How many bytes the stream accepts as those of responses, after the framework has last taken some
/// of a piece: twice what an HTTP/2 server copies before it writes.
const COPIED_MAX: u64 = 32 << 10;

#[derive(Default)]
pub(super) struct Unsent {
    word: AtomicU64,
    /// How many bytes of pieces the framework has written or copied.
    taken: AtomicU64,
    /// How many bytes the stream has accepted since the framework has last taken some of a piece.
    accepted: AtomicU64,
}

impl Unsent {
    #[inline]
    fn word(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }
}

/// What the framework does.
impl Unsent {
    /// The end of a request waits for the next flush.
    pub(super) fn end_at_flush(&self) {
        self.word.fetch_add(END, Ordering::Relaxed);
    }

    /// The end of a request waits for what waits to be written. False if nothing waits: then the
    /// request has ended.
    pub(super) fn end_at_write(&self) -> bool {
        let ends = |word| (word & SENDING != 0).then_some(word + END);
        self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ends).is_ok()
    }

    /// A piece is handed over. True if nothing that waits is known: then the stream's task is to
    /// poll, as a framework without a window for the piece does not flush.
    pub(super) fn add_piece(&self) -> bool {
        let before = self.word.fetch_add(PIECE, Ordering::Relaxed);
        before & (SENDING | WINDOWED | PIECES) == 0
    }

    /// The framework has written or copied bytes of a piece.
    pub(super) fn take(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        self.accepted.store(0, Ordering::Relaxed);
    }

    /// A piece was written or dropped. True if the stream waits for it: then its task is to poll,
    /// unless it polls now.
    pub(super) fn remove_piece(&self) -> bool {
        self.accepted.store(0, Ordering::Relaxed);
        let before = self.word.fetch_sub(PIECE, Ordering::Relaxed);
        before & WINDOWED != 0 && before & PIECES == PIECE
    }
}

/// What the stream does.
impl Unsent {
    /// Whether a flush has anything to do here.
    #[inline]
    pub(super) fn has_any(&self) -> bool {
        self.word() != 0
    }

    /// Whether the end of a request waits.
    #[inline]
    pub(super) fn has_ends(&self) -> bool {
        self.word() & ENDS != 0
    }

    /// A write, a flush or a shutdown begins to wait.
    pub(super) fn begin_sending(&self) {
        self.word.fetch_or(SENDING, Ordering::Relaxed);
    }

    /// The stream has accepted all that it was given. Returns how many requests end, and whether
    /// pieces are left.
    pub(super) fn take_ends(&self) -> (u64, bool) {
        let before = self.word.fetch_and(!(SENDING | WINDOWED | ENDS), Ordering::Relaxed);
        ((before & ENDS) / END, before & PIECES != 0)
    }

    /// Begins a wait for a window. False if no piece is left.
    pub(super) fn await_window(&self) -> bool {
        self.word.fetch_or(WINDOWED, Ordering::Relaxed) & PIECES != 0
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// The stream has accepted bytes, perhaps in a wait for a window. True if they may be bytes of
    /// the responses that are on their way, which end a wait: no piece is left, or a framework may
    /// have copied as much. No byte of a response comes in a wait for a window, as what is taken is
    /// [counted](Self::taken).
    #[inline]
    pub(super) fn accept(&self, bytes: u64, is_windowed: bool) -> bool {
        if self.word() & PIECES == 0 {
            return true;
        }
        if is_windowed {
            return false;
        }
        self.accepted.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= COPIED_MAX
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::{COPIED_MAX, Unsent};
    use crate::link::loom_tests::check;

    #[test]
    fn request_that_ends_while_the_stream_accepts_all_ends_once() {
        check(|| {
            let unsent = Arc::new(Unsent::default());
            unsent.begin_sending();
            let other = Arc::clone(&unsent);
            let thread = thread::spawn(move || u64::from(!other.end_at_write()));
            let (taken, _) = unsent.take_ends();
            let at_once = thread.join().unwrap();
            assert_eq!(taken + at_once, 1);
            assert_eq!(unsent.take_ends(), (0, false), "no end is left without a write that waits");
        });
    }

    #[test]
    fn words_of_the_framework_and_the_stream_at_once_are_all_kept() {
        check(|| {
            let unsent = Arc::new(Unsent::default());
            let other = Arc::clone(&unsent);
            let thread = thread::spawn(move || {
                let _is_first = other.add_piece();
                other.end_at_flush();
            });
            unsent.begin_sending();
            let _has_pieces = unsent.await_window();
            thread.join().unwrap();
            assert!(unsent.end_at_write(), "a write waits");
            assert!(unsent.remove_piece(), "the stream waits for the piece");
            assert_eq!(unsent.take_ends(), (2, false));
        });
    }

    #[test]
    fn ends_and_pieces_that_come_while_ends_are_taken_are_left() {
        check(|| {
            let unsent = Arc::new(Unsent::default());
            let other = Arc::clone(&unsent);
            let thread = thread::spawn(move || {
                let _is_first = other.add_piece();
                other.end_at_flush();
            });
            let (first, _) = unsent.take_ends();
            thread.join().unwrap();
            let (second, has_pieces) = unsent.take_ends();
            assert_eq!((first + second, has_pieces), (1, true));
        });
    }

    #[test]
    fn bytes_that_are_taken_while_others_are_accepted_allow_as_many_again() {
        check(|| {
            let unsent = Arc::new(Unsent::default());
            let _is_first = unsent.add_piece();
            assert!(unsent.accept(COPIED_MAX, false));
            let other = Arc::clone(&unsent);
            let thread = thread::spawn(move || other.take(5));
            let _is_taken = unsent.accept(1, false);
            thread.join().unwrap();
            assert_eq!(unsent.taken(), 5);
            assert!(unsent.accept(COPIED_MAX - 1, false), "what was accepted before counts");
            assert!(!unsent.accept(COPIED_MAX, false));
        });
    }

    #[test]
    fn bytes_that_two_threads_take_are_both_counted() {
        check(|| {
            let unsent = Arc::new(Unsent::default());
            let other = Arc::clone(&unsent);
            let thread = thread::spawn(move || other.take(5));
            unsent.take(7);
            thread.join().unwrap();
            assert_eq!(unsent.taken(), 12);
        });
    }

    #[test]
    fn last_piece_that_is_dropped_is_seen_by_the_stream_or_wakes_its_task() {
        check(|| {
            let unsent = Arc::new(Unsent::default());
            let _is_first = unsent.add_piece();
            let other = Arc::clone(&unsent);
            let thread = thread::spawn(move || other.remove_piece());
            let is_seen = !unsent.await_window();
            let is_woken = thread.join().unwrap();
            assert!(is_seen || is_woken, "the stream waits for a window in vain");
        });
    }
}

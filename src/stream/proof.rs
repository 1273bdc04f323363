//! The proof that what lay in a connection's socket at a deadline has reached its consumer.
//!
//! A body is waited for by another task than the one that reads the socket. So its deadline is
//! decided after a pass of the runtime and a read of the stream that had to wait. The tasks that
//! the read has woken have their turn before.
//!
//! Why not the pass alone: it hands out the readiness of the socket, and the bytes are read by the
//! task of the connection later.
//!
//! A read that has just brought something waits no more, and its task may not have looked at that
//! yet: its worker may be without a processor. So where bytes have moved since the deadline, the
//! next read that waits is waited for as well.
//!
//! Invariants: a read answers only what was asked before it began. Where no read waits and nothing
//! has moved, or the stream has ended, nothing is waited for. A read that does not come, or was
//! dropped while it waited, is waited for no longer than [`PATIENCE`]. One of the task that asks is
//! not waited for.
//!
//! Cost: none before a deadline has passed, but three stores for each read that waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use super::control::Shared;
use crate::conn::Direction;
use crate::face::handle::sleep::Sleep;
use crate::link::sync::{AtomicBool, AtomicU32, Mutex, Ordering};
use crate::pass::{PATIENCE, Pass};

/// The tasks that ask for a read, and what the task that reads has answered.
pub(super) struct Reads {
    /// Whether a read waits. Only the task that reads writes it.
    waits: AtomicBool,
    /// The number of the last question, which wraps around.
    asked: AtomicU32,
    /// The number of the last question that is answered.
    answered: AtomicU32,
    /// The tasks that wait for an answer.
    askers: Mutex<Vec<Waker>>,
}

impl Reads {
    pub(super) fn new() -> Self {
        Self {
            waits: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            askers: Mutex::new(Vec::new()),
        }
    }

    /// What a read that begins now answers, if it has to wait; `None` if nothing is asked.
    pub(super) fn question(&self) -> Option<u32> {
        // Acquire: pairs with the addition in `ask`, so that the read finds what the pass before
        // the question has handed out.
        let asked = self.asked.load(Ordering::Acquire);
        // Relaxed: only the task that reads writes it.
        (asked != self.answered.load(Ordering::Relaxed)).then_some(asked)
    }

    /// A read waits that has begun after the question, or the task does not read.
    pub(super) fn answer(&self, question: u32) {
        // Release: pairs with the load in `is_answered`, so that the asker finds what was read.
        self.answered.store(question, Ordering::Release);
        let askers = std::mem::take(&mut *self.lock());
        askers.into_iter().for_each(Waker::wake);
    }

    /// No read waits any more, and no question is left.
    pub(super) fn end(&self) {
        self.set_waits(false);
        if let Some(question) = self.question() {
            self.answer(question);
        }
    }

    #[inline]
    pub(super) fn set_waits(&self, waits: bool) {
        // Release: pairs with the load in `waits`.
        self.waits.store(waits, Ordering::Release);
    }

    fn waits(&self) -> bool {
        // Acquire: pairs with the store in `set_waits`, so that a task that finds no read that
        // waits finds when the last one has brought something.
        self.waits.load(Ordering::Acquire)
    }

    fn ask(&self) -> u32 {
        // Release: pairs with the load in `question`.
        self.asked.fetch_add(1, Ordering::Release).wrapping_add(1)
    }

    fn is_answered(&self, question: u32) -> bool {
        // Acquire: pairs with the store in `answer`.
        let answered = self.answered.load(Ordering::Acquire);
        answered.wrapping_sub(question) <= u32::MAX / 2
    }

    /// Registers the task, so that an answer wakes it. True if there is one already.
    fn register(&self, question: u32, waker: &Waker) -> bool {
        if !self.lock().iter().any(|known| known.will_wake(waker)) {
            let waker = waker.clone();
            self.lock().push(waker);
        }
        self.is_answered(question)
    }

    fn lock(&self) -> crate::link::sync::MutexGuard<'_, Vec<Waker>> {
        self.askers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The proof that what lay in the socket before its first poll has reached its consumer.
pub(super) struct Proof {
    stream: Arc<Shared>,
    /// The deadline, in nanoseconds of the service.
    due: u64,
    read: Read,
}

/// The read that a proof waits for.
enum Read {
    /// Not before the pass is over.
    Later,
    /// It is to answer this, before the patience is over.
    Asked(u32, Sleep),
    /// It has come, or none does.
    Over,
}

impl Proof {
    pub(super) fn new(stream: Arc<Shared>, due: u64) -> Self {
        Self { stream, due, read: Read::Later }
    }

    /// What follows the pass. A read of the task that asks is polled in its turns.
    fn ask(&self, waker: &Waker) -> Read {
        let (stream, reads) = (&self.stream, &self.stream.reads);
        let may_read = reads.waits() || !stream.has_ended() && stream.has_moved_since(self.due);
        if !may_read || stream.waiting(Direction::Read).is_of(waker) {
            return Read::Over;
        }
        let question = reads.ask();
        stream.wake_waiting(Direction::Read);
        let due = crate::clock::nanos_after(stream.handle.nanos(), PATIENCE);
        Read::Asked(question, Sleep::new(stream.handle, due))
    }

    /// Ready when the time is up of what the task waits for, which knows of no pass: the stream was
    /// read since a pass, or the patience is over, and the tasks have had their turns that the read
    /// has woken.
    pub(super) fn poll(&mut self, pass: &mut Pass, cx: &mut Context<'_>) -> Poll<()> {
        if let Read::Later = self.read {
            ready!(pass.poll_over(cx));
            self.read = self.ask(cx.waker());
        }
        if let Read::Asked(question, patience) = &mut self.read {
            // Without a timer there is no patience.
            if !self.stream.reads.register(*question, cx.waker()) {
                let _refused = ready!(Pin::new(patience).poll(cx));
            }
            self.read = Read::Over;
        }
        pass.poll(None, || true, cx)
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::thread;

    use super::super::waiter::loom_tests::Alarm;
    use super::*;
    use crate::link::loom_tests::check;

    #[test]
    fn read_that_answers_finds_what_was_handed_out_before_the_question() {
        check(|| {
            let shared = Arc::new((Reads::new(), AtomicBool::new(false)));
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (reads, readiness) = &*other;
                readiness.store(true, Ordering::Relaxed);
                reads.ask()
            });
            let (reads, readiness) = &*shared;
            if reads.question().is_some() {
                assert!(readiness.load(Ordering::Relaxed), "the answer proves nothing");
            }
            thread.join().unwrap();
        });
    }

    #[test]
    fn answer_to_one_of_two_questions_at_once_leaves_the_other_open() {
        check(|| {
            let readiness = [AtomicBool::new(false), AtomicBool::new(false)];
            let shared = Arc::new((Reads::new(), readiness));
            let threads = [0, 1].map(|asker| {
                let other = Arc::clone(&shared);
                thread::spawn(move || {
                    let (reads, readiness) = &*other;
                    let is_ready = &readiness[asker];
                    is_ready.store(true, Ordering::Relaxed);
                    reads.ask()
                })
            });
            let (reads, readiness) = &*shared;
            let question = reads.question();
            let is_found = readiness.each_ref().map(|ready| ready.load(Ordering::Relaxed));
            if let Some(question) = question {
                reads.answer(question);
            }
            for (thread, is_found) in threads.into_iter().zip(is_found) {
                let asked = thread.join().unwrap();
                assert!(!reads.is_answered(asked) || is_found, "the answer proves nothing");
            }
        });
    }

    #[test]
    fn read_that_waits_no_more_shows_that_bytes_have_moved() {
        check(|| {
            let shared = Arc::new((Reads::new(), AtomicBool::new(false)));
            shared.0.set_waits(true);
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (reads, has_moved) = &*other;
                has_moved.store(true, Ordering::Relaxed);
                reads.set_waits(false);
            });
            let (reads, has_moved) = &*shared;
            assert!(reads.waits() || has_moved.load(Ordering::Relaxed), "nothing is waited for");
            thread.join().unwrap();
        });
    }

    #[test]
    fn task_that_asks_sees_the_answer_with_what_was_read_or_is_woken() {
        check(|| {
            let shared = Arc::new((Reads::new(), AtomicBool::new(false)));
            let question = shared.0.ask();
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (reads, is_read) = &*other;
                is_read.store(true, Ordering::Relaxed);
                reads.answer(question);
            });
            let (reads, is_read) = &*shared;
            let alarm = Arc::new(Alarm::default());
            let is_seen = reads.register(question, &Waker::from(Arc::clone(&alarm)));
            assert!(!is_seen || is_read.load(Ordering::Relaxed), "what was read is not seen");
            thread.join().unwrap();
            assert!(is_seen || alarm.is_woken(), "the task waits for ever");
        });
    }
}

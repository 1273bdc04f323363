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
//! next read that waits is waited for as well. On a shard no task is polled meanwhile, and those
//! that were woken have their turns.
//!
//! A timeout of the owner's future is a sleep of its own. Why not one timer for all timeouts of a
//! connection: a sleep that ends young takes no request to a shard, and less than the bookkeeping
//! of a shared timer.
//!
//! Invariants: a timeout is over when its future was polled after the proof.
//! A read answers only what was asked before it began. Where no read waits and nothing
//! has moved, or the stream has ended, nothing is waited for. A read that does not come, or was
//! dropped while it waited, is waited for no longer than [`PATIENCE`]. One of the task that asks is
//! not waited for.
//!
//! Cost: none before a deadline has passed, but three stores for each read that waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use super::control::Shared;
use crate::conn::Direction;
use crate::face::handle::sleep::Sleep;
use crate::pass::{Decided, Limit, PATIENCE, Pass, is_simulated};
use crate::values::refused::RefusedKind;

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
        let may_look = || !stream.is_on_shard && stream.has_moved_since(self.due);
        let may_read = reads.waits() || !stream.has_ended() && may_look();
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
            if self.stream.reads.poll_answered(*question, cx).is_pending() {
                let _refused = ready!(Pin::new(patience).poll(cx));
            }
            self.read = Read::Over;
        }
        pass.poll(None, || true, cx)
    }
}

/// A deadline of a future that may wait for bytes of a stream.
pub(super) struct Deadline<'a> {
    shared: &'a Arc<Shared>,
    sleep: Sleep,
    /// `None` until the deadline has passed.
    proof: Option<Box<Proof>>,
}

impl<'a> Deadline<'a> {
    /// `due` is in nanoseconds of the service.
    pub(super) fn new(shared: &'a Arc<Shared>, due: u64) -> Self {
        Self { shared, sleep: Sleep::new(shared.handle, due), proof: None }
    }
}

impl Limit for Deadline<'_> {
    fn poll_late(&mut self, pass: &mut Pass, _looks: u64, cx: &mut Context<'_>) -> Decided {
        if self.shared.is_dropped() {
            return Poll::Ready(Err(RefusedKind::Closed));
        }
        ready!(Pin::new(&mut self.sleep).poll(cx))?;
        if !self.sleep.is_manual() || is_simulated() {
            let new = || Box::new(Proof::new(Arc::clone(self.shared), self.sleep.due()));
            ready!(self.proof.get_or_insert_with(new).poll(pass, cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::thread;

    use super::*;
    use crate::link::loom_tests::check;
    use crate::link::sync::{AtomicBool, Ordering};
    use crate::pass::SocketReader;
    use corewheel_test_support::Alarm;

    #[test]
    fn read_that_answers_finds_what_was_handed_out_before_the_question() {
        check(|| {
            let shared = Arc::new((SocketReader::default(), AtomicBool::new(false)));
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
            let shared = Arc::new((SocketReader::default(), readiness));
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
            let shared = Arc::new((SocketReader::default(), AtomicBool::new(false)));
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
            let shared = Arc::new((SocketReader::default(), AtomicBool::new(false)));
            let question = shared.0.ask();
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                let (reads, is_read) = &*other;
                is_read.store(true, Ordering::Relaxed);
                reads.answer(question);
            });
            let (reads, is_read) = &*shared;
            let (alarm, waker) = Alarm::new();
            let is_seen = reads.register(question, &waker);
            assert!(!is_seen || is_read.load(Ordering::Relaxed), "what was read is not seen");
            thread.join().unwrap();
            assert!(is_seen || alarm.count() > 0, "the task waits for ever");
        });
    }
}

//! A task that reads a socket for other tasks, which ask it to read on before they judge.
//!
//! Invariants: an answer is for what was asked before the poll that answers began. A closed reader
//! has answered everything.
//!
//! Cost: two loads for each poll of the task that reads. A question costs an exchange and a lock.

use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use crate::link::sync::{AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering};

/// A task that reads a socket for other tasks. A deadline of theirs that has passed is not judged
/// before the task has read what lay in the socket: the pass hands out the readiness of the socket,
/// and the task reads later.
///
/// A task that judges waits for its [pass](super::Pass::poll_over), [asks](Self::ask), wakes the
/// task that reads, and waits for the [answer](Self::poll_answered). The task that reads looks for
/// a [question](Self::question) when it is polled, and [answers](Self::answer) when its socket has
/// no more.
///
/// ```
/// use corewheel::pass::{POLLS_MAX, SocketReader};
/// use std::task::{Context, Poll, Waker};
///
/// let reader = SocketReader::default();
/// let mut cx = Context::from_waker(Waker::noop());
/// let asked = reader.ask();
/// assert!(reader.poll_answered(asked, &mut cx).is_pending());
/// // In the poll of the task that reads.
/// let question = reader.question().expect("a task waits");
/// let has_read_all = false;
/// if has_read_all || !reader.is_waited_for(POLLS_MAX) {
///     reader.answer(question);
/// }
/// assert!(reader.poll_answered(asked, &mut cx).is_pending());
/// // No task waits for a reader that has ended.
/// reader.close();
/// assert!(reader.poll_answered(asked, &mut cx).is_ready());
/// ```
#[derive(Default)]
pub struct SocketReader {
    /// Whether a read waits. Only the task that reads writes it.
    waits: AtomicBool,
    is_closed: AtomicBool,
    /// The number of the last question, which wraps around.
    asked: AtomicU32,
    /// The number of the last question that is answered.
    answered: AtomicU32,
    /// The polls since the last answer that have left something unread.
    polls: AtomicU32,
    /// The tasks that wait for an answer.
    askers: Mutex<Vec<Waker>>,
}

/// What the task that reads does.
impl SocketReader {
    /// What a poll that begins now answers, if it leaves nothing unread; `None` if nothing is
    /// asked.
    pub fn question(&self) -> Option<u32> {
        // Acquire: pairs with the addition in `ask`, so that the read finds what the pass before
        // the question has handed out.
        let asked = self.asked.load(Ordering::Acquire);
        // Relaxed: only the task that reads writes it.
        (asked != self.answered.load(Ordering::Relaxed)).then_some(asked)
    }

    /// Counts a poll since the last answer that has left something unread. False from the
    /// `polls_max`th on: a socket that is never empty must not hold a deadline back for ever.
    pub fn is_waited_for(&self, polls_max: u32) -> bool {
        counts_below(&self.polls, polls_max.saturating_sub(1))
    }

    /// The socket was read until it was empty since a question was returned, or is not read on. A
    /// later question stays open, and its wake-up may have come before: the task that reads looks
    /// for a [question](Self::question) again.
    pub fn answer(&self, question: u32) {
        // Relaxed: only the task that reads counts.
        self.polls.store(0, Ordering::Relaxed);
        // Release: pairs with the load in `is_answered`, so that the asker finds what was read.
        self.answered.store(question, Ordering::Release);
        self.wake_askers();
    }

    /// The socket is read no more: all that was asked is answered, and all that will be.
    pub fn close(&self) {
        self.set_waits(false);
        // Relaxed: a task that registers after the wake-ups sees it by the lock.
        self.is_closed.store(true, Ordering::Relaxed);
        self.wake_askers();
    }

    fn wake_askers(&self) {
        let askers = std::mem::take(&mut *self.lock());
        askers.into_iter().for_each(Waker::wake);
    }

    #[inline]
    pub(crate) fn set_waits(&self, waits: bool) {
        // Release: pairs with the load in `waits`.
        self.waits.store(waits, Ordering::Release);
    }
}

/// What a task does that judges.
impl SocketReader {
    #[cfg(any(feature = "hyper", feature = "tokio"))]
    pub(crate) fn waits(&self) -> bool {
        // Acquire: pairs with the store in `set_waits`, so that a task that finds no read that
        // waits finds when the last one has brought something.
        self.waits.load(Ordering::Acquire)
    }

    /// Asks the task to read on, after a pass. The caller wakes the task next.
    pub fn ask(&self) -> u32 {
        // Release: pairs with the load in `question`.
        self.asked.fetch_add(1, Ordering::Release).wrapping_add(1)
    }

    /// Ready when a question is answered. Until then the answer wakes the task.
    pub fn poll_answered(&self, question: u32, cx: &mut Context<'_>) -> Poll<()> {
        if self.register(question, cx.waker()) { Poll::Ready(()) } else { Poll::Pending }
    }

    pub(crate) fn is_answered(&self, question: u32) -> bool {
        // Acquire: pairs with the store in `answer`.
        let answered = self.answered.load(Ordering::Acquire);
        // Relaxed: see `close`.
        answered.wrapping_sub(question) <= u32::MAX / 2 || self.is_closed.load(Ordering::Relaxed)
    }

    /// Registers the task, so that an answer wakes it. True if there is one already.
    pub(crate) fn register(&self, question: u32, waker: &Waker) -> bool {
        if !self.lock().iter().any(|known| known.will_wake(waker)) {
            let waker = waker.clone();
            self.lock().push(waker);
        }
        self.is_answered(question)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.askers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

debug_fields!([] SocketReader, |it| question: it.question());

/// Adds one to a count that is below a limit. False if it is not.
pub(super) fn counts_below(count: &AtomicU32, limit: u32) -> bool {
    // Relaxed: only one task counts.
    let before = count.load(Ordering::Relaxed);
    let is_below = before < limit;
    if is_below {
        count.store(before + 1, Ordering::Relaxed);
    }
    is_below
}

//! The tasks of quinn. No deadline of a connection decides before its packets were read.
//!
//! Quinn compares a connection's deadlines with [`now`](quinn::Runtime::now) in each poll of the
//! connection's task, so a timer that is not ready holds nothing back. Why not let the task run
//! meanwhile, with a `now` before the deadline: the packets in its queue have later stamps, by the
//! task of the endpoint, so the connection would see time go back. So the task of a connection
//! whose deadline has passed is not polled until
//!
//! 1. a pass of the reactor is over that has begun after the deadline;
//! 2. after it, each endpoint of the runtime has read its socket until it was empty. The packets
//!    then wait in the connection's queue, which its task reads first.
//!
//! In that poll, `now` is the time at which the pass has begun: quinn looks at all deadlines that
//! have passed, and this module knows the first of them only. Packets that were read after that
//! have later stamps, by as long as the connection was held back; quinn takes a duration that would
//! be negative as zero. In each other poll, `now` stands still before the first deadline.
//!
//! That the first deadline is known from the poll before suffices for the others. The idle time
//! ends after it, and packets which the connection has not seen yet only put that off. A poll that
//! has come to the first deadline leaves the next one unknown, and the task may be held up before
//! it is polled again. So in the next poll, in which quinn sets its timer, `now` is still the time
//! of that poll.
//!
//! Invariants: `now` never goes back for a caller that is no task of quinn. A poll is held back
//! only if a deadline has passed.
//!
//! Cost: each task is some 150 bytes larger. A poll reads the clock once more than quinn's own
//! runtime. A deadline that has passed costs a pass, and a poll of each endpoint.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use corewheel::clock::Clock;
use corewheel::pass::{POLLS_MAX, Pass, SocketReader};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::runtime::{Handle, Id};
use tokio::task::coop;

/// How long a task may be held up before its stamps are old, and before its first poll is late.
/// Connections have longer idle times.
const LATE: Duration = Duration::from_millis(100);

thread_local! {
    /// What the thread polls.
    static POLLED: RefCell<Option<Polled>> = const { RefCell::new(None) };
}

/// A poll of a task of quinn.
struct Polled {
    /// Tells runtimes of quinn apart.
    readers: Arc<Readers>,
    began: Instant,
    /// The time that `now` returns; `None` before its first call.
    at: Option<Instant>,
    /// `at` is before it.
    deadline: Option<Instant>,
    /// The deadline to which the poll has set the timer; `None` if it has not.
    reset: Option<Instant>,
    /// `None` if the poll has read no socket.
    reads: Option<Reads>,
}

impl Polled {
    fn now(&mut self, clock: &Clock) -> Instant {
        if self.reads.is_some() {
            // An endpoint measures how long it reads.
            return clock.now();
        }
        *self.at.get_or_insert_with(|| {
            let now = clock.now();
            let is_before = self.deadline.is_none_or(|deadline| now < deadline);
            if is_before { now } else { self.began }
        })
    }
}

fn with_polled<O>(then: impl FnOnce(&mut Polled) -> O) -> Option<O> {
    POLLED.with_borrow_mut(|polled| polled.as_mut().map(then))
}

/// The present for a task of a runtime of quinn that the thread polls; `None` if it polls none.
pub(super) fn now(readers: &Arc<Readers>, clock: &Clock) -> Option<Instant> {
    with_polled(|polled| Arc::ptr_eq(&polled.readers, readers).then(|| polled.now(clock))).flatten()
}

/// Whether the task that the thread polls has not come to a deadline.
pub(super) fn is_before(deadline: Instant) -> bool {
    with_polled(|polled| polled.at.unwrap_or(polled.began) < deadline).unwrap_or(false)
}

/// The timer of a connection is set.
pub(super) fn note_reset(deadline: Instant) {
    with_polled(|polled| polled.reset = Some(deadline));
}

/// Whether the poll of an endpoint has begun so long ago that what it reads would have old stamps.
fn is_late(clock: &Clock) -> bool {
    with_polled(|polled| clock.now().saturating_duration_since(polled.began) > LATE)
        .unwrap_or(false)
}

/// A socket is read.
fn note_read(note: impl FnOnce(&mut Reads)) {
    with_polled(|polled| note(polled.reads.get_or_insert_default()));
}

/// A task of quinn: of an endpoint, which reads sockets, or of a connection.
pub(super) struct Driver {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    clock: Clock,
    readers: Arc<Readers>,
    /// The runtime that runs the task.
    host: Id,
    /// The first deadline of the connection; `None` if it has none. Before the first poll, the time
    /// at which that is late: quinn has set a deadline then, too.
    deadline: Option<Instant>,
    /// The time of the last poll, if it has come to the deadline, so that the next deadline is not
    /// known; `None` otherwise.
    decided: Option<Instant>,
    /// `None` unless the deadline has passed.
    held: Option<Held>,
    /// Of an endpoint that was polled, with what it has to answer; `None` of a connection.
    reader: Option<(Arc<Reader>, Option<u32>)>,
}

impl Driver {
    /// A task of the tokio runtime that the thread is in.
    pub(super) fn new(
        future: Pin<Box<dyn Future<Output = ()> + Send>>,
        clock: Clock,
        readers: Arc<Readers>,
    ) -> Self {
        let (host, deadline) = (Handle::current().id(), clock.now() + LATE);
        let deadline = Some(deadline);
        let (decided, held, reader) = (None, None, None);
        Self { future, clock, readers, host, deadline, decided, held, reader }
    }

    /// Ready when the task may be polled: with the time that the poll is to have, if a deadline has
    /// passed, or the last poll has come to one.
    fn poll_held(&mut self, now: Instant, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        let is_due = self.deadline.is_some_and(|deadline| deadline <= now);
        if self.held.is_none() && !is_due {
            return Poll::Ready(self.decided);
        }
        let held = self.held.get_or_insert(Held { since: now, pass: Pass::default(), reads: None });
        ready!(held.poll(&self.readers, self.host, cx));
        let since = held.since;
        self.held = None;
        Poll::Ready(Some(since))
    }

    /// Polls the task of quinn.
    fn poll_inner(
        &mut self,
        began: Instant,
        at: Option<Instant>,
        cx: &mut Context<'_>,
    ) -> (Poll<()>, Option<Polled>) {
        let readers = Arc::clone(&self.readers);
        let polled =
            Polled { readers, began, at, deadline: self.deadline, reset: None, reads: None };
        let _scope = Scope(POLLED.replace(Some(polled)));
        let output = self.future.as_mut().poll(cx);
        (output, POLLED.take())
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let now = this.clock.now();
        let at = match &mut this.reader {
            Some((reader, question)) => {
                reader.begin_poll(cx, question);
                None
            }
            None => ready!(this.poll_held(now, cx)),
        };
        let (output, polled) = this.poll_inner(now, at, cx);
        let Some(polled) = polled else { return output };
        match (&mut this.reader, polled.reads) {
            (Some((reader, question)), reads) => {
                reader.end_poll(reads.unwrap_or_default(), cx, question);
            }
            (None, Some(_)) => this.reader = Some((this.readers.add(this.host, cx), None)),
            (None, None) => {
                let at = polled.at.unwrap_or(now);
                let deadline = polled.reset.or(this.deadline);
                this.deadline = deadline.filter(|deadline| *deadline > at);
                this.decided = (deadline.is_some() && this.deadline.is_none()).then_some(at);
            }
        }
        output
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some((reader, _)) = &self.reader {
            self.readers.remove(reader);
        }
    }
}

/// A poll that is held back.
struct Held {
    /// When its pass has begun.
    since: Instant,
    pass: Pass,
    /// The endpoints that have still to read, and what they are to answer; `None` before the pass
    /// is over.
    reads: Option<Vec<(Arc<Reader>, u32)>>,
}

impl Held {
    fn poll(&mut self, readers: &Readers, host: Id, cx: &mut Context<'_>) -> Poll<()> {
        if self.reads.is_none() {
            ready!(self.pass.poll_over(cx));
        }
        let reads = self.reads.get_or_insert_with(|| readers.ask(host));
        while let Some((reader, question)) = reads.last() {
            ready!(reader.socket.poll_answered(*question, cx));
            reads.pop();
        }
        Poll::Ready(())
    }
}

/// Restores what the thread has polled before, also if a poll panics.
struct Scope(Option<Polled>);

impl Drop for Scope {
    fn drop(&mut self) {
        POLLED.set(self.0.take());
    }
}

/// The tasks of a [`QuinnRuntime`](super::QuinnRuntime) that read sockets: one for each endpoint.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<Arc<Reader>>>);

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Reader>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task in its first poll. A connection may ask for the next one at once.
    fn add(&self, host: Id, cx: &Context<'_>) -> Arc<Reader> {
        let (task, socket) = (AtomicWaker::new(), SocketReader::default());
        let reader = Arc::new(Reader { host, task, socket });
        reader.task.register(cx.waker());
        self.lock().push(Arc::clone(&reader));
        reader
    }

    fn remove(&self, reader: &Arc<Reader>) {
        self.lock().retain(|it| !Arc::ptr_eq(it, reader));
        reader.socket.close();
    }

    /// Has the sockets read of all endpoints whose tasks run in a tokio runtime. Returns what each
    /// is to answer.
    fn ask(&self, host: Id) -> Vec<(Arc<Reader>, u32)> {
        let readers: Vec<_> = self.lock().iter().filter(|it| it.host == host).cloned().collect();
        let asked = readers.into_iter().map(|reader| {
            let question = reader.socket.ask();
            reader.task.wake();
            (reader, question)
        });
        asked.collect()
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("count", &self.lock().len()).finish_non_exhaustive()
    }
}

/// A task that reads sockets.
struct Reader {
    /// The runtime that runs the task.
    host: Id,
    task: AtomicWaker,
    socket: SocketReader,
}

impl Reader {
    /// Called before each poll of the task, with what it has to answer.
    fn begin_poll(&self, cx: &Context<'_>, question: &mut Option<u32>) {
        self.task.register(cx.waker());
        *question = question.or_else(|| self.socket.question());
    }

    /// Called after each poll of the task. A socket that never is empty must not hold a connection
    /// back for ever: what was in it when the connection asked is read after some polls.
    fn end_poll(&self, reads: Reads, cx: &Context<'_>, question: &mut Option<u32>) {
        let Some(number) = *question else { return };
        // Each socket was read until it was empty.
        let are_done = reads.unread.is_none() && !reads.has_left;
        if are_done || !self.socket.is_waited_for(POLLS_MAX) {
            *question = None;
            self.socket.answer(number);
            // What was asked between two polls before the answer has had its wake-up.
            if self.socket.question().is_none() {
                return;
            }
        }
        // Nothing else need wake the task, as where a socket before a `rebind` is left.
        cx.waker().wake_by_ref();
    }
}

/// What a task has read from its sockets in a poll. It reads one after another.
#[derive(Clone, Copy, Default)]
struct Reads {
    /// The socket that may have more.
    unread: Option<usize>,
    /// Whether the task has left a socket that may have more, and gone to another.
    has_left: bool,
}

impl Reads {
    fn note(&mut self, socket: usize, is_empty: bool) {
        self.has_left |= self.unread.is_some_and(|unread| unread != socket);
        self.unread = (!is_empty).then_some(socket);
    }
}

/// A socket that notes whether it was read until it was empty.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) inner: Arc<dyn AsyncUdpSocket>,
    pub(super) clock: Clock,
}

impl AsyncUdpSocket for Socket {
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        // The task stamps what it reads with the time at which its poll has begun. Its next poll
        // has another.
        let is_late = is_late(&self.clock);
        let read = if is_late {
            cx.waker().wake_by_ref();
            Poll::Pending
        } else {
            self.inner.poll_recv(cx, bufs, meta)
        };
        // Without a budget, a socket says that it is empty.
        let is_empty = read.is_pending() && !is_late && coop::has_budget_remaining();
        note_read(|reads| reads.note(std::ptr::from_ref(self).addr(), is_empty));
        read
    }

    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

#[cfg(test)]
mod tests {
    use corewheel_test_support::Alarm;
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn question_between_the_polls_that_answer_an_older_one_wakes_the_task_that_reads() {
        let runtime = Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        let (readers, (alarm, waker)) = (Readers::default(), Alarm::new());
        let (mut cx, mut question) = (Context::from_waker(&waker), None);
        let reader = readers.add(Handle::current().id(), &cx);
        let ask = || readers.ask(Handle::current().id()).pop().unwrap().1;
        let unread = Reads { unread: Some(1), has_left: false };
        let first = ask();
        reader.begin_poll(&cx, &mut question);
        reader.end_poll(unread, &cx, &mut question);
        let second = ask();
        reader.begin_poll(&cx, &mut question);
        let before = alarm.count();
        reader.end_poll(Reads::default(), &cx, &mut question);
        assert!(reader.socket.poll_answered(first, &mut cx).is_ready());
        assert!(reader.socket.poll_answered(second, &mut cx).is_pending());
        assert_eq!(alarm.count(), before + 1, "nothing else polls the task");
        reader.begin_poll(&cx, &mut question);
        reader.end_poll(Reads::default(), &cx, &mut question);
        assert!(reader.socket.poll_answered(second, &mut cx).is_ready());
        // The task that asks is the same here.
        assert_eq!(alarm.count(), before + 2, "nothing is asked any more");
    }
}

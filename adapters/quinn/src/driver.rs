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
//! ends after it, and packets which the connection has not seen yet only put that off.
//!
//! Invariants: `now` never goes back for a caller that is no task of quinn. A poll is held back
//! only if a deadline has passed.
//!
//! Cost: each task is some 150 bytes larger. A poll reads the clock once more than quinn's own
//! runtime. A deadline that has passed costs a pass, and a poll of each endpoint.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use corewheel::clock::Clock;
use corewheel::pass::Pass;
use oneshot::AsyncReceiver;
use tokio::runtime::{Handle, Id};

use super::reader::{Reader, Readers, Reads, Served};

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
pub(super) fn is_late(clock: &Clock) -> bool {
    with_polled(|polled| clock.now().saturating_duration_since(polled.began) > LATE)
        .unwrap_or(false)
}

/// A socket is read.
pub(super) fn note_read(note: impl FnOnce(&mut Reads)) {
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
    /// `None` unless the deadline has passed.
    held: Option<Held>,
    /// Of an endpoint that was polled; `None` of a connection.
    reader: Option<(Arc<Reader>, Served)>,
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
        Self { future, clock, readers, host, deadline, held: None, reader: None }
    }

    /// The time for a poll that is held back no more, if a deadline has passed.
    fn poll_held(&mut self, now: Instant, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        let is_due = self.deadline.is_some_and(|deadline| deadline <= now);
        if self.held.is_none() && !is_due {
            return Poll::Ready(None);
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
            Some((reader, served)) => {
                reader.begin_poll(cx, served);
                None
            }
            None => ready!(this.poll_held(now, cx)),
        };
        let (output, polled) = this.poll_inner(now, at, cx);
        let Some(polled) = polled else { return output };
        match (&mut this.reader, polled.reads) {
            (Some((_, served)), reads) => {
                if !served.end_poll(reads.unwrap_or_default()) {
                    // Nothing else need wake the task, as where a socket before a `rebind` is left.
                    cx.waker().wake_by_ref();
                }
            }
            (None, Some(_)) => {
                this.reader = Some((this.readers.add(this.host, cx), Served::default()));
            }
            (None, None) => {
                let at = polled.at.unwrap_or(now);
                this.deadline = polled.reset.or(this.deadline).filter(|deadline| *deadline > at);
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
    /// The endpoints that have still to read; `None` before the pass is over.
    reads: Option<Vec<AsyncReceiver<()>>>,
}

impl Held {
    fn poll(&mut self, readers: &Readers, host: Id, cx: &mut Context<'_>) -> Poll<()> {
        if self.reads.is_none() {
            ready!(self.pass.poll_over(cx));
        }
        let reads = self.reads.get_or_insert_with(|| readers.read(host));
        while let Some(read) = reads.last_mut() {
            // An endpoint that has ended reads no more.
            let _ = ready!(Pin::new(read).poll(cx));
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

//! The deadlines of one stream: what each read and each write tells its timers, and when it ends.
//!
//! A read or a write first tries the stream, and only one that must wait looks at the deadlines. So
//! data that has come is in time. Only the greatest age is looked at before, when the timer has
//! woken the stream.
//!
//! The deadlines of a message begin with its first byte, and are armed when a read first waits for
//! more of it. So a message that has come as a whole arms nothing.
//!
//! Why not one event for both directions: where two tasks have a half of the stream each, the task
//! that writes would take the deadline of a read, whose data may lie in the socket. A poll takes
//! the events of its own direction; the others stay in the timers, which withdraw them if the
//! stream is active meanwhile.
//!
//! Invariants: nothing waits without a timer. No event is kept here.
//!
//! Reads in a row that are ready touch the timers once in eight times, since on any thread a touch
//! reads the clock. No limit ends a stream in which nothing waits, and a wait that begins touches
//! the timers again, unless a read waits already. So no idle time begins before the last read, and
//! how many reads were ready before makes no difference.
//!
//! Cost: a read that is ready costs a few branches, and one in eight a touch; a write that is ready
//! costs a touch. The first byte of a message costs a reading of the clock and a
//! compare-and-exchange besides. A read that must wait costs two touches, and two readings of the
//! clock and compare-and-exchanges if it is measured; a write that must wait costs as much. The
//! first one polls the timers, and so does the first one after the timer has expired. The timers
//! wake the stream when a deadline has come, so that a later poll finds nothing before.

mod forward;
mod looks;
mod reads;
mod writes;

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use self::forward::Watched;
use super::control::{Shared, StreamControl};
use super::http2::Protocol;
use super::limits::{StreamTimeout, ends};
use super::notes::ENDED;
use super::socket::Acknowledged;
use super::unsent::Unsent;
use crate::conn::{ConnTimers, DeadlineKind, Direction, Ends, InProgress, Moment, Side, Transfer};
use crate::face::handle::AnyHandle;
use crate::pass;
use crate::values::refused::RefusedKind;

/// So many reads in a row that were ready stamp the connection once.
const UNSTAMPED_MAX: u8 = 8;

/// What there is of each direction.
#[derive(Default)]
struct Way {
    /// The looks of runtimes that decide by the last read, or by the last write, flush or shutdown.
    looks: u64,
    /// Whether a read or a write waits.
    waits: bool,
    /// Whether the timers were polled for what ends a wait, and no deadline was armed since that
    /// may be earlier. Then they wake the stream when such a deadline has come.
    is_watched: bool,
    /// Whether a look at the socket has come since the events of the direction were last judged.
    /// Not for a poll only: the look may be that of a flush, after which the read is polled that
    /// has asked.
    has_looked: bool,
    /// The waker of what waited last; `None` if the stream was woken since.
    registered: Option<Waker>,
}

impl Way {
    /// What was polled is ready. True if it has waited.
    #[inline]
    fn end_wait(&mut self) -> bool {
        self.has_looked = false;
        std::mem::replace(&mut self.waits, false)
    }
}

/// A message that is measured.
enum Measured<M: Side> {
    /// So many bytes of it have come, and no read has waited for a part of it that is measured.
    Bytes(u64),
    /// The transfer is paused unless a read waits.
    Awaited(Transfer<M>),
}

struct Reads<M: Side> {
    way: Way,
    /// How many reads in a row have not stamped the connection.
    unstamped: u8,
    /// When the head that has begun must be complete; `None` if no head has begun.
    head_due: Option<u64>,
    /// `None` if no message is measured.
    message: Option<Measured<M>>,
    /// What the next read that waits answers; `None` if nothing is asked.
    question: Option<u32>,
}

impl<M: Side> Reads<M> {
    fn new() -> Self {
        Self { way: Way::default(), unstamped: 0, head_due: None, message: None, question: None }
    }

    /// Counts a read that has brought bytes, and has not waited. True if it is to be stamped.
    #[inline]
    fn is_stamped(&mut self) -> bool {
        self.unstamped += 1;
        self.unstamped == UNSTAMPED_MAX
    }

    fn transfer(&self) -> Option<&Transfer<M>> {
        match &self.message {
            Some(Measured::Awaited(transfer)) => Some(transfer),
            _ => None,
        }
    }
}

/// A write, a flush or a shutdown that waits, which is a stall.
struct Sending<M: Side> {
    /// How many bytes of pieces were taken when the wait for a window began: the stream has
    /// accepted all, and pieces of responses wait. `None` in a wait for the stream.
    taken: Option<u64>,
    /// Where only its rate bounds the write, it holds the idle times back.
    rated: Option<InProgress<M>>,
}

/// The time of a wait, which is stopped unless something waits.
struct Stall<M: Side> {
    time: Transfer<M>,
    /// Whether it is that of a wait for a window, of which no socket says anything.
    is_of_window: bool,
}

struct Writes<M: Side> {
    way: Way,
    /// Whether the last write was put off so that other tasks of the shard run. What it was given
    /// is not accepted, though nothing waits.
    is_put_off: bool,
    /// When the stream last accepted bytes at once; `None` if something has waited since. A
    /// response whose flush follows has ended then.
    written: Option<Moment>,
    /// `None` if nothing waits.
    sending: Option<Sending<M>>,
    /// `None` if nothing has waited yet, or if the event of the last wait may have come.
    stall: Option<Stall<M>>,
    /// The bytes that are accepted or acknowledged. It is paused unless a write waits; `None` if
    /// none has waited.
    rate: Option<Transfer<M>>,
    /// What the peer has acknowledged; `None` of a stream without a socket.
    acknowledged: Option<Acknowledged>,
}

impl<M: Side> Writes<M> {
    fn new() -> Self {
        Self {
            way: Way::default(),
            is_put_off: false,
            written: None,
            sending: None,
            stall: None,
            rate: None,
            acknowledged: None,
        }
    }

    /// What waits afterwards has a time of its own.
    fn forget(&mut self) {
        (self.sending, self.stall, self.rate) = (None, None, None);
        if let Some(known) = &mut self.acknowledged {
            known.has_left = false;
        }
    }

    /// Something waits, for the stream if it has not waited before.
    fn sending(&mut self) -> &mut Sending<M> {
        self.sending.get_or_insert(Sending { taken: None, rated: None })
    }

    /// How many bytes of responses were taken in the wait for a window; `None` if there is none.
    fn newly_taken(&self, unsent: &Unsent) -> Option<u64> {
        Some(unsent.taken() - self.sending.as_ref()?.taken?)
    }

    /// Bytes that are left hold no idle time back by themselves.
    fn presume(&self) {
        if let Some(stall) = &self.stall {
            stall.time.presume(!self.is_stalled());
        }
    }

    #[inline]
    fn is_stalled(&self) -> bool {
        self.sending.is_some()
    }

    #[inline]
    fn is_windowed(&self) -> bool {
        self.sending.as_ref().is_some_and(|sending| sending.taken.is_some())
    }

    /// Whether the stream has accepted all that it was given.
    fn has_accepted(&self) -> bool {
        !self.is_stalled() && !self.is_put_off
    }

    /// Whether bytes are left that the peer may not have acknowledged.
    fn has_left(&self) -> bool {
        self.acknowledged.as_ref().is_some_and(|known| known.has_left)
    }

    /// Whether bytes are left, and no write waits.
    fn has_only_left(&self) -> bool {
        self.has_left() && !self.is_stalled() && !self.way.waits
    }
}

pub(super) struct Deadlines<M: Side> {
    pub(super) timers: ConnTimers<M>,
    shared: Arc<Shared>,
    /// Of `shared`.
    waker: Waker,
    watched: Watched,
    /// The looks of runtimes that were counted when the stream was last woken, as the end of a pass
    /// does, before what is read or written next; 0 if that decides nothing.
    looks: u64,
    /// Why the look of this poll has found no timer. Another look would ask the shard again, and
    /// wait for it.
    refused: Option<RefusedKind>,
    reads: Reads<M>,
    writes: Writes<M>,
    pub(super) http2: Protocol,
}

impl<M: Side> Deadlines<M> {
    /// `handle` is for timers beside that of the connection, and `head` the limit of a head.
    pub(super) fn new(timers: ConnTimers<M>, handle: AnyHandle, head: Duration) -> Self {
        let shared = Arc::new(Shared::new(handle, head, timers.is_on_shard()));
        Self {
            timers,
            waker: Waker::from(Arc::clone(&shared)),
            shared,
            watched: if head.is_zero() { Watched::Undecided } else { Watched::All },
            looks: 0,
            refused: None,
            reads: Reads::new(),
            writes: Writes::new(),
            http2: Protocol::NEW,
        }
    }

    pub(super) fn control(&self) -> StreamControl<M> {
        StreamControl { timers: self.timers.clone(), shared: Arc::clone(&self.shared) }
    }

    #[inline]
    fn way(&mut self, direction: Direction) -> &mut Way {
        if direction == Direction::Read { &mut self.reads.way } else { &mut self.writes.way }
    }

    /// Registers the task of a read or write that waits.
    #[inline]
    fn register(&mut self, direction: Direction, cx: &Context<'_>) {
        let (read, write) = (&mut self.reads.way, &mut self.writes.way);
        let way = if direction == Direction::Read { read } else { write };
        self.shared.waiting(direction).register_once(&mut way.registered, cx.waker());
    }

    /// A tunnel of HTTP/2 is as active as a request that ends now.
    #[cold]
    fn tunnel_moves(&self) {
        self.timers.hold_request();
        self.timers.end_requests(1, None);
    }

    /// An error if the stream has ended.
    #[inline]
    fn check(&mut self) -> io::Result<()> {
        if self.shared.is_woken() { self.look() } else { Ok(()) }
    }

    /// Looks whether the stream has ended or is too old.
    #[cold]
    fn look(&mut self) -> io::Result<()> {
        if let Some(timeout) = self.shared.timeout.get() {
            return Err((*timeout).into());
        }
        if self.watched == Watched::Nothing {
            self.watch();
        }
        self.reads.question = self.shared.reads.question();
        // The flag is set again if the timer wakes the stream during this poll.
        self.shared.set_woken(false);
        (self.reads.way.registered, self.writes.way.registered) = (None, None);
        self.unwatch(true);
        match self.take_events(0, |_, kind, _| kind.is_of_age()) {
            Poll::Ready(Ok(error)) => return Err(error),
            // What is ready needs no timer.
            Poll::Ready(Err(refused)) => {
                self.shared.set_woken(true);
                self.refused = Some(refused);
            }
            Poll::Pending => self.refused = None,
        }
        self.decide_watched();
        self.looks = pass::looks();
        Ok(())
    }

    /// The timers are to be polled before a read or a write waits, if a deadline was filed.
    fn unwatch(&mut self, is_filed: bool) {
        self.reads.way.is_watched &= !is_filed;
        self.writes.way.is_watched &= !is_filed;
    }

    /// Polls for what ends the wait in a direction.
    #[inline(always)]
    fn poll(&mut self, direction: Direction) -> Poll<io::Error> {
        // The task has registered its waker before, so it sees the flag, or the timers wake it.
        if self.way(direction).is_watched && !self.shared.is_woken() {
            return Poll::Pending;
        }
        self.poll_timers(direction)
    }

    /// Takes the wanted events that have come, until one ends the stream, or none is left. What
    /// they guard was polled since there were so many `looks`.
    fn take_events(
        &mut self,
        looks: u64,
        is_wanted: impl Fn(&Self, DeadlineKind, Option<Moment>) -> bool,
    ) -> Poll<Result<io::Error, RefusedKind>> {
        loop {
            // The owner may say at any moment that the message has ended.
            self.forget_ended();
            let cx = &mut Context::from_waker(&self.waker);
            let is_wanted = |kind, came_at| is_wanted(self, kind, came_at);
            let kind = ready!(self.timers.poll_kinds(cx, Some(looks), is_wanted))?.kind;
            if kind == DeadlineKind::MaxAge && self.timers.has_grace() {
                // Only the owner is told.
                self.shared.aged.wake();
            } else if kind != DeadlineKind::ReadRate || !self.shared.notes.has(ENDED) {
                return Poll::Ready(Ok(self.end(kind)));
            }
        }
    }

    /// Whether a deadline ends a wait in a direction. A read is asked first, as its data may have
    /// come in time.
    fn is_wanted(&self, direction: Direction, kind: DeadlineKind) -> bool {
        let reads = direction == Direction::Read;
        match ends(kind) {
            Ends::Nothing => false,
            Ends::Reads => reads,
            // Bytes that are left end a read where no write waits.
            Ends::Writes => !reads || self.writes.has_only_left(),
            Ends::Either => reads || !self.reads.way.waits,
            Ends::All => true,
        }
    }

    /// A limit is reached: the stream has ended, in both directions.
    #[cold]
    fn end(&mut self, kind: DeadlineKind) -> io::Error {
        self.refused = None;
        if let (Ends::Writes, Some(known)) = (ends(kind), &self.writes.acknowledged) {
            let (acknowledged, left) = known.bytes();
            self.timers.count_bytes(kind, acknowledged, left);
        }
        let timeout = match kind {
            DeadlineKind::MaxAge if self.timers.is_ordered(kind) => StreamTimeout::Told,
            DeadlineKind::AgeGrace if self.timers.is_ordered(kind) => StreamTimeout::Drained,
            _ => StreamTimeout::new(kind, &self.timers.limits(), self.shared.head),
        };
        let timeout = *self.shared.timeout.get_or_init(|| timeout);
        // A shutdown that waits afterwards has a time of its own.
        self.writes.forget();
        (self.reads.message, self.reads.question) = (None, None);
        self.shared.reads.close();
        self.waker.wake_by_ref();
        timeout.into()
    }
}

impl<M: Side> Drop for Deadlines<M> {
    fn drop(&mut self) {
        self.timers.close();
        self.shared.set_dropped();
        self.shared.reads.close();
        // The shared part may outlive the stream, and must not hold the wakers of its tasks.
        self.waker.wake_by_ref();
    }
}

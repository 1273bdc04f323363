//! The waits of a body, and their limits.
//!
//! The body lies where its consumer and its timer both reach it. When a limit is reached, the timer
//! takes it out and drops it, and wakes the consumer, whose next poll returns the error. A response
//! of HTTP/1 that hyper takes in one piece is over before it is put there.
//!
//! A deadline that has passed is judged by the wire: after the proof that the stream of the
//! connection was read, the body is polled once more, and what it returns is kept for its consumer.
//! The consumer of a response may be another task, which the read has woken and which another
//! worker runs. So a response has up to a second more if its connection has moved bytes since the
//! deadline.
//!
//! Why not a timer for all bodies of a connection: a sleep that ends young costs less than to find
//! the bodies again when that timer fires.
//!
//! Invariants: no lock is held while the body within is polled or dropped, or the waker of its
//! consumer is cloned, woken or dropped. A poll takes the body out and puts it back. The sleep,
//! whose waker is the cell itself, is armed for no later than the present wait is over, or a task
//! is about to judge.
//!
//! Cost: see [`TimedHttp`](super::TimedHttp).

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use corewheel::fallback::InfallibleSleep;
use corewheel::pass::PATIENCE;
use hyper::body::{Body, Buf, Frame, SizeHint};

use super::exchange::{BodySide, Core, Member};
use super::limits::{Awaited, BodyError, NEVER, allowance, saturating_nanos};
use crate::BoxError;

pub(super) type PolledFrame<D> = Poll<Option<Result<Frame<D>, BoxError>>>;
/// What a poll returns, and whether the body is complete; `None` if it goes on.
pub(super) type Polled<D> = (PolledFrame<D>, Option<bool>);

/// Where the body within is.
enum Place<B: Body> {
    /// It waits for its consumer, or its consumer waits for a frame.
    Here(B, Awaited),
    /// A judgement has found what its consumer has not taken yet.
    Found(B, Option<Result<Frame<B::Data>, BoxError>>),
    /// Its consumer polls it.
    Polled,
    /// A judgement polls it, or has found it over a limit and is about to cut it.
    Judged,
    /// It was dropped, and the consumer does not know yet.
    Cut,
    Done,
}

/// The timer of a body.
enum Alarm {
    Off,
    Armed {
        until: Instant,
        _sleep: InfallibleSleep,
    },
    /// The sleep is over, and the limit is judged.
    Judges,
}

/// For how much time in all the server's window excuses the client of a request.
const EXCUSE_MAX: Duration = Duration::from_secs(60);

struct State<B: Body> {
    place: Place<B>,
    /// When the present wait began; `None` if it has no limit.
    since: Option<Instant>,
    /// Until when a consumer has time that another worker may be about to run, when the present
    /// wait was over; `None` before.
    patience: Option<Instant>,
    /// How long the consumer has waited for frames before, and how long it was waited for, in
    /// nanoseconds.
    waited: [u64; 2],
    bytes: u64,
    /// How much of such time did not count.
    excused: Duration,
    /// The consumer has the last frame.
    has_last: bool,
    /// How much is left of the body, after the frames that its consumer has.
    left: SizeHint,
    /// Of the consumer that has polled last; `None` before, and when it was woken.
    waker: Option<Waker>,
    alarm: Alarm,
}

impl<B: Body> State<B> {
    fn is_over(&self) -> bool {
        matches!(self.place, Place::Cut | Place::Done)
    }

    /// The body is over, one way or another. The caller drops without the lock what was there.
    fn finish(&mut self, place: Place<B>) -> (Place<B>, Option<Waker>) {
        self.alarm = Alarm::Off;
        (mem::replace(&mut self.place, place), self.waker.take())
    }
}

/// A body where its exchange and its timer reach it.
pub(super) struct Cell<B: Body> {
    core: Arc<Core>,
    side: BodySide,
    state: Mutex<State<B>>,
}

/// The bodies that have limits.
pub(super) trait Limited:
    Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static
{
}

impl<B> Limited for B where B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B: Limited> Member for Cell<B> {
    fn cut(&self) {
        if self.side == BodySide::Response {
            self.core.response_cut();
        }
        let mut state = self.lock();
        if state.is_over() {
            return;
        }
        let is_awaited = matches!(state.place, Place::Here(_, Awaited::Frame) | Place::Judged);
        let (place, waker) = state.finish(Place::Cut);
        drop(state);
        drop(place);
        if let Some(waker) = waker.filter(|_| is_awaited) {
            waker.wake();
        }
    }
}

/// The alarm has come.
impl<B: Limited> Wake for Cell<B> {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

impl<B: Body> Cell<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How much is left of the body, after the frames that its consumer has.
    pub(super) fn left(&self) -> SizeHint {
        // It is not `Copy` in the first versions of `http-body` 1.
        SizeHint::clone(&self.lock().left)
    }

    /// A wait begins now.
    fn begin_wait(&self, state: &mut State<B>, awaited: Awaited) {
        (state.since, state.patience) = (self.core.begin_wait(self.side, awaited), None);
    }

    /// Whether a wait is for what the client sends.
    fn is_of_client(&self, awaited: Awaited) -> bool {
        self.side == BodySide::Request && awaited == Awaited::Frame
    }

    /// A wait counts from the last moment at which the server's own window was shut. A server that
    /// was held up does not know since when it was. The time before that is excused, and is
    /// bounded: a client could keep the window shut by a request whose handler does not read.
    ///
    /// Why not what the bodies have consumed: the client knows the window that was written to it.
    fn excuse(&self, state: &mut State<B>, awaited: Awaited) {
        let Some(since) = state.since.filter(|_| self.is_of_client(awaited)) else { return };
        let Some(until) = self.core.connection.shared().window_shut_until() else { return };
        let time = until.saturating_duration_since(since);
        let time = time.min(EXCUSE_MAX.saturating_sub(state.excused));
        (state.since, state.excused) = (since.checked_add(time), state.excused + time);
    }

    /// Whether the peer has given what the consumer of a response may need, since the wait was
    /// over. Then the consumer has a little more time, once.
    fn is_patient(&self, state: &mut State<B>, due: Instant) -> bool {
        let connection = &self.core.connection;
        let is_patient = self.side == BodySide::Response
            && matches!(state.place, Place::Here(_, Awaited::Poll))
            && state.patience.is_none()
            && connection.shared().has_moved_since(due);
        if is_patient {
            state.patience = Some(connection.clock.now() + PATIENCE);
        }
        is_patient
    }

    /// When the wait of a body that no poll has taken out is over, and by which limit; `None` if it
    /// has no limit.
    fn due(&self, state: &State<B>) -> Option<(Instant, BodyError)> {
        let awaited = match state.place {
            Place::Here(_, awaited) => awaited,
            Place::Found(..) => Awaited::Poll,
            _ => return None,
        };
        if self.is_of_client(awaited) && self.core.is_answered.get() {
            return None;
        }
        let waited = state.waited[awaited as usize];
        let due = self.core.limits(self.side).due(awaited, state.since?, waited, state.bytes);
        due.map(|(due, timeout)| (state.patience.map_or(due, |until| until.max(due)), timeout))
    }

    /// The present wait has ended, or goes on with a poll.
    fn count_wait(&self, state: &mut State<B>, awaited: Awaited) {
        let (_, rate) = self.core.limits(self.side).of(awaited);
        if rate.bytes_per_second == 0 {
            return;
        }
        self.excuse(state, awaited);
        if let Some(since) = state.since {
            let connection = &self.core.connection;
            let nanos_to = |at: Instant| saturating_nanos(at.saturating_duration_since(since));
            let passed = nanos_to(connection.clock.near());
            let waited = &mut state.waited[awaited as usize];
            let left = allowance(rate, state.bytes).unwrap_or(NEVER).saturating_sub(*waited);
            // As for the rates of a stream: the party that has ended the wait was in time, and how
            // late the server was to see it is not known.
            let due = since.checked_add(Duration::from_nanos(left)).filter(|_| passed > left);
            let counted = due.map_or(passed, |due| {
                passed.min(nanos_to(connection.handle.round_up(due))) - left / 2
            });
            *waited = waited.saturating_add(counted);
        }
    }

    /// The consumer has all of the body, or an error, or has dropped it. Returns whether the
    /// consumer has all of it.
    pub(super) fn over(&self, is_complete: bool) -> bool {
        let mut state = self.lock();
        if matches!(state.place, Place::Done) {
            return is_complete;
        }
        let is_complete = is_complete || state.has_last;
        let was_cut = matches!(state.place, Place::Cut);
        let dropped = state.finish(Place::Done);
        drop(state);
        drop(dropped);
        if !was_cut {
            self.core.body_over(self.side, is_complete);
        }
        is_complete
    }
}

impl<B: Limited> Cell<B> {
    /// Shares a body with its exchange, of which so much is `left`. `body` is `None` while its
    /// consumer polls it.
    pub(super) fn share(
        core: &Arc<Core>,
        side: BodySide,
        body: Option<B>,
        left: SizeHint,
    ) -> Arc<Self> {
        let since = core.begin_wait(side, Awaited::Poll);
        let state = State {
            place: body.map_or(Place::Polled, |body| Place::Here(body, Awaited::Poll)),
            since,
            patience: None,
            waited: [0; 2],
            bytes: 0,
            excused: Duration::ZERO,
            has_last: false,
            left,
            waker: None,
            alarm: Alarm::Off,
        };
        let cell = Arc::new(Self { core: Arc::clone(core), side, state: Mutex::new(state) });
        let weak: Weak<Self> = Arc::downgrade(&cell);
        if !core.add_body(side, weak) {
            cell.cut();
        } else if since.is_some() {
            cell.arm(cell.lock());
        }
        cell
    }

    /// Arms the alarm for the end of the present wait, if there is no earlier one, and unlocks.
    fn arm(self: &Arc<Self>, mut state: MutexGuard<'_, State<B>>) {
        let Some((due, _)) = self.due(&state) else { return };
        match &state.alarm {
            Alarm::Off => {}
            Alarm::Armed { until, .. } if *until > due => {}
            Alarm::Armed { .. } | Alarm::Judges => return,
        }
        let mut sleep = InfallibleSleep::until(self.core.connection.handle, due);
        let waker = Waker::from(Arc::clone(self));
        let is_over = Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_ready();
        state.alarm = Alarm::Armed { until: due, _sleep: sleep };
        drop(state);
        if is_over {
            self.look();
        }
    }

    /// The alarm has woken its waker: the present wait is over, or another one has begun.
    #[cold]
    fn look(self: &Arc<Self>) {
        let mut state = self.lock();
        if !matches!(state.alarm, Alarm::Armed { .. }) {
            return;
        }
        state.alarm = Alarm::Off;
        // The near clock may be ahead, and a body never ends early.
        let connection = &self.core.connection;
        let is_over = |due: &Instant| *due <= connection.clock.now();
        let Some(due) = self.due(&state).map(|(due, _)| due).filter(is_over) else {
            return self.arm(state);
        };
        state.alarm = Alarm::Judges;
        drop(state);
        // When the stream of the connection was read.
        let judged = Arc::clone(self);
        connection.shared().decide(due, move || judged.decide(due));
    }

    /// Ends the exchange, unless the present wait was not over at `judged`, or the body has a
    /// frame. The stream was read since `judged`, but perhaps not since a later deadline, which has
    /// passed meanwhile, too.
    fn decide(self: &Arc<Self>, judged: Instant) {
        let mut state = self.lock();
        state.alarm = Alarm::Off;
        if let Place::Here(_, awaited) = state.place {
            self.excuse(&mut state, awaited);
        }
        let Some((due, timeout)) = self.due(&state) else { return };
        if due > judged || self.is_patient(&mut state, due) {
            return self.arm(state);
        }
        match mem::replace(&mut state.place, Place::Judged) {
            Place::Here(body, Awaited::Frame) => {
                let consumer = state.waker.take();
                drop(state);
                self.poll_judged(body, consumer, timeout);
            }
            // It stays judged until its exchange has cut it, so its consumer takes no more of it.
            limited => {
                drop(state);
                self.core.reach(self.side, timeout);
                drop(limited);
            }
        }
    }

    /// Polls a body for its consumer, and keeps what it returns. Without that, the exchange ends.
    fn poll_judged(self: &Arc<Self>, mut body: B, consumer: Option<Waker>, timeout: BodyError) {
        let mut cx = Context::from_waker(consumer.as_ref().unwrap_or(Waker::noop()));
        // A body that panics has nothing for its consumer. The panic's payload may panic, too, when
        // it is dropped.
        let polled = catch_unwind(AssertUnwindSafe(|| poll_body(&mut body, &mut cx)));
        let polled = polled.map_err(mem::forget).unwrap_or(Poll::Pending);
        let mut state = self.lock();
        if !matches!(state.place, Place::Judged) {
            // The exchange has ended meanwhile.
            drop(state);
            drop((body, polled));
        } else if let Poll::Ready(frame) = polled {
            self.count_wait(&mut state, Awaited::Frame);
            state.place = Place::Found(body, frame);
            self.begin_wait(&mut state, Awaited::Poll);
            let other = state.waker.take();
            self.arm(state);
            if let Some(other) = other {
                other.wake();
            }
        } else {
            drop(state);
            self.core.reach(self.side, timeout);
            drop(body);
        }
        if let Some(consumer) = consumer {
            consumer.wake();
        }
    }

    /// Polls a body for its consumer.
    pub(super) fn poll(self: &Arc<Self>, cx: &mut Context<'_>) -> Polled<B::Data> {
        let mut state = self.lock();
        match mem::replace(&mut state.place, Place::Polled) {
            Place::Here(mut body, awaited) => {
                if awaited == Awaited::Poll {
                    self.count_wait(&mut state, awaited);
                }
                let known = state.waker.as_ref();
                let is_known = known.is_some_and(|known| known.will_wake(cx.waker()));
                drop(state);
                match poll_body(&mut body, cx) {
                    Poll::Ready(frame) => self.hand_over(body, frame, awaited),
                    Poll::Pending => self.wait(body, awaited, is_known, cx),
                }
            }
            Place::Found(body, frame) => {
                self.count_wait(&mut state, Awaited::Poll);
                drop(state);
                self.hand_over(body, frame, Awaited::Poll)
            }
            Place::Judged => {
                state.place = Place::Judged;
                drop(state);
                self.wait_for_judgement(cx.waker());
                (Poll::Pending, None)
            }
            Place::Cut => {
                drop(state);
                self.cut_off(())
            }
            place @ (Place::Polled | Place::Done) => {
                state.place = place;
                (Poll::Ready(None), Some(false))
            }
        }
    }

    /// Registers a consumer that the judgement wakes, or wakes it.
    #[cold]
    fn wait_for_judgement(&self, waker: &Waker) {
        let own = waker.clone();
        let mut state = self.lock();
        let is_judged = !matches!(state.place, Place::Judged);
        let before = state.waker.replace(own);
        drop(state);
        drop(before);
        if is_judged {
            waker.wake_by_ref();
        }
    }

    /// The error of a body that the end of its exchange has cut.
    fn cut_off(&self, polled: impl Sized) -> Polled<B::Data> {
        self.lock().place = Place::Done;
        drop(polled);
        let error = self.core.error_of(self.side);
        (Poll::Ready(Some(Err(error.into()))), Some(false))
    }

    /// Puts a body back whose consumer waits for a frame.
    pub(super) fn wait(
        self: &Arc<Self>,
        body: B,
        awaited: Awaited,
        is_known: bool,
        cx: &mut Context<'_>,
    ) -> Polled<B::Data> {
        let waker = (!is_known).then(|| cx.waker().clone());
        let mut state = self.lock();
        if !matches!(state.place, Place::Polled) {
            // The exchange has ended meanwhile.
            drop(state);
            return self.cut_off((body, waker));
        }
        if awaited == Awaited::Poll {
            self.begin_wait(&mut state, Awaited::Frame);
        }
        state.place = Place::Here(body, Awaited::Frame);
        let _before = waker.and_then(|waker| state.waker.replace(waker));
        // Also in a wait that goes on: the alarm may have come while the body was polled.
        self.arm(state);
        (Poll::Pending, None)
    }

    /// Hands what a body has returned to its consumer.
    pub(super) fn hand_over(
        self: &Arc<Self>,
        body: B,
        frame: Option<Result<Frame<B::Data>, BoxError>>,
        awaited: Awaited,
    ) -> Polled<B::Data> {
        let (mut goes_on, mut has_last, mut length) = (false, false, 0);
        let mut left = SizeHint::default();
        if let Some(Ok(frame)) = &frame {
            // A consumer of a response that has a limit asks for the end, which shows that it has
            // taken the last frame.
            let shows_end =
                self.side == BodySide::Response && self.core.limits(self.side).has(Awaited::Poll);
            let has_ended = body.is_end_stream();
            goes_on = shows_end || !has_ended;
            left = body.size_hint();
            has_last = goes_on && left.exact().map_or(has_ended, |rest| rest == 0);
            length = frame.data_ref().map_or(0, Buf::remaining);
        }
        if !goes_on {
            drop(body);
            let is_complete = self.over(!matches!(frame, Some(Err(_))));
            return (Poll::Ready(frame), Some(is_complete));
        }
        let mut state = self.lock();
        if !matches!(state.place, Place::Polled) {
            drop(state);
            return self.cut_off((body, frame));
        }
        if awaited == Awaited::Frame {
            self.count_wait(&mut state, awaited);
        }
        (state.has_last, state.left) = (has_last, left);
        state.bytes = state.bytes.saturating_add(length as u64);
        state.place = Place::Here(body, Awaited::Poll);
        self.begin_wait(&mut state, Awaited::Poll);
        self.arm(state);
        (Poll::Ready(frame), None)
    }
}

/// Polls a body.
pub(super) fn poll_body<B: Limited>(body: &mut B, cx: &mut Context<'_>) -> PolledFrame<B::Data> {
    let polled = Pin::new(body).poll_frame(cx);
    polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
}

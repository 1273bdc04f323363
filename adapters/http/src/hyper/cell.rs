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
//! Invariants: no lock is held while the body within or a waker is polled, cloned, woken or
//! dropped: a poll takes the body out and puts it back. The sleep is armed for no later than the
//! present wait is over, or a thread is about to arm it or to judge.
//!
//! Cost: see [`TimedHttp`](super::TimedHttp).

mod owners;
mod window;

use std::error::Error;
use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use corewheel::fallback::InfallibleSleep;
use corewheel::pass::PATIENCE;
use hyper::body::{Body, Buf, Frame, SizeHint};

pub(super) use self::owners::share;
use super::exchange::{BodySide, Core, Member};
use super::limits::{Awaited, BodyError, NEVER, allowance, saturating_nanos};

pub(super) type BoxError = Box<dyn Error + Send + Sync>;
pub(super) type PolledFrame<D> = Poll<Option<Result<Frame<D>, BoxError>>>;

/// How a body is after a poll.
pub(super) enum Rest {
    /// As before.
    Same,
    /// It goes on, and this much is left of it.
    Left(SizeHint),
    /// It is over, and whether it is complete.
    Over(bool),
}

/// Where the body within is.
enum Place<B: Body> {
    /// It waits for its consumer, or its consumer waits for a frame.
    Here(B, Awaited),
    /// A judgement has found what its consumer has not taken yet.
    Found(B, Option<Result<Frame<B::Data>, BoxError>>),
    /// Its consumer polls it.
    Polled,
    /// A judgement polls it.
    Judged,
    /// It has reached a limit, and its exchange is about to end.
    Doomed(B),
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
    /// A thread polls the sleep, which may have woken it meanwhile.
    Polled(bool),
    /// The sleep is over, and the limit is judged.
    Judges,
}

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
    /// Of the consumer that has polled last; `None` before, and when it was woken.
    waker: Option<Waker>,
    alarm: Alarm,
}

impl<B: Body> State<B> {
    fn is_over(&self) -> bool {
        matches!(self.place, Place::Cut | Place::Done)
    }
}

/// What is to be dropped without the lock.
type Dropped<B> = (Place<B>, Option<Waker>, Alarm);

pub(super) struct Cell<B: Body> {
    side: BodySide,
    state: Mutex<State<B>>,
}

/// What a cell lies in.
pub(super) trait Owner<B: Body>: Send + Sync {
    fn cell(&self) -> &Cell<B>;
    fn core(&self) -> &Core<dyn Member>;
    fn waker(self: Arc<Self>) -> Waker;
}

/// The bodies that have limits.
pub(super) trait Limited:
    Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static
{
}

impl<B> Limited for B where B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B: Limited> Member for Cell<B> {
    fn cut(&self) {
        let mut state = self.lock();
        if state.is_over() {
            return;
        }
        let is_awaited = matches!(
            state.place,
            Place::Here(_, Awaited::Frame) | Place::Judged | Place::Doomed(_)
        );
        let (place, waker, alarm) = finish(&mut state, Place::Cut);
        drop(state);
        drop((place, alarm));
        if let Some(waker) = waker.filter(|_| is_awaited) {
            waker.wake();
        }
    }
}

/// The body is over, one way or another.
fn finish<B: Body>(state: &mut State<B>, place: Place<B>) -> Dropped<B> {
    let alarm = match state.alarm {
        Alarm::Armed { .. } => mem::replace(&mut state.alarm, Alarm::Off),
        // The thread that polls the sleep drops it.
        Alarm::Off | Alarm::Polled(_) | Alarm::Judges => Alarm::Off,
    };
    (mem::replace(&mut state.place, place), state.waker.take(), alarm)
}

impl<B: Body> Cell<B> {
    /// `body` is `None` while its consumer polls it.
    pub(super) fn new(side: BodySide, body: Option<B>, since: Option<Instant>) -> Self {
        let state = State {
            place: body.map_or(Place::Polled, |body| Place::Here(body, Awaited::Poll)),
            since,
            patience: None,
            waited: [0; 2],
            bytes: 0,
            excused: Duration::ZERO,
            has_last: false,
            waker: None,
            alarm: Alarm::Off,
        };
        Self { side, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait begins now. True if the alarm is to be armed for it, without the lock.
    fn begin_wait(&self, core: &Core<dyn Member>, state: &mut State<B>, awaited: Awaited) -> bool {
        (state.since, state.patience) = (core.begin_wait(self.side, awaited), None);
        state.since.is_some() && self.needs_alarm(core, state, awaited)
    }

    /// Whether the alarm is armed for too late, or not at all.
    fn needs_alarm(&self, core: &Core<dyn Member>, state: &State<B>, awaited: Awaited) -> bool {
        let Some((due, _)) = self.due_of(core, state, awaited) else { return false };
        match &state.alarm {
            Alarm::Off => true,
            Alarm::Armed { until, .. } => due < *until,
            Alarm::Polled(_) | Alarm::Judges => false,
        }
    }

    /// When the present wait is over, and by which limit; `None` if it has no limit.
    fn due_of(
        &self,
        core: &Core<dyn Member>,
        state: &State<B>,
        awaited: Awaited,
    ) -> Option<(Instant, BodyError)> {
        if self.is_of_client(awaited) && core.is_answered() {
            return None;
        }
        let waited = state.waited[awaited as usize];
        let due = core.limits(self.side).due(awaited, state.since?, waited, state.bytes);
        due.map(|(due, timeout)| (state.patience.map_or(due, |until| until.max(due)), timeout))
    }

    /// Whether the peer has given what the consumer of a response may need, since the wait was
    /// over. Then the consumer has a little more time, once.
    fn is_patient(&self, core: &Core<dyn Member>, state: &mut State<B>, due: Instant) -> bool {
        let connection = &core.connection;
        let is_patient = self.side == BodySide::Response
            && matches!(state.place, Place::Here(_, Awaited::Poll))
            && state.patience.is_none()
            && connection.shared().has_moved_since(due);
        if is_patient {
            state.patience = connection.clock.now().checked_add(PATIENCE);
        }
        is_patient && state.patience.is_some()
    }

    /// When the wait of a body that no poll has taken out is over.
    fn due(&self, core: &Core<dyn Member>, state: &State<B>) -> Option<(Instant, BodyError)> {
        match state.place {
            Place::Here(_, awaited) => self.due_of(core, state, awaited),
            Place::Found(..) => self.due_of(core, state, Awaited::Poll),
            _ => None,
        }
    }

    /// The present wait has ended, or goes on with a poll.
    fn count_wait(&self, core: &Core<dyn Member>, state: &mut State<B>, awaited: Awaited) {
        let rate = core.limits(self.side).rate_of(awaited);
        if rate.bytes_per_second == 0 {
            return;
        }
        self.excuse(core, state, awaited);
        if let Some(since) = state.since {
            let connection = &core.connection;
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
    pub(super) fn over(&self, core: &Core<dyn Member>, is_complete: bool) -> bool {
        let mut state = self.lock();
        if matches!(state.place, Place::Done) {
            return is_complete;
        }
        let is_complete = is_complete || state.has_last;
        let was_cut = matches!(state.place, Place::Cut);
        let dropped = finish(&mut state, Place::Done);
        drop(state);
        drop(dropped);
        if !was_cut {
            core.body_over(self.side, is_complete);
        }
        is_complete
    }
}

/// Arms the alarm for the end of the present wait, unless that is done.
#[cold]
pub(super) fn arm<B: Limited>(owner: &Arc<dyn Owner<B>>) {
    let (cell, core) = (owner.cell(), owner.core());
    loop {
        let mut state = cell.lock();
        let Some((due, _)) = cell.due(core, &state) else { return };
        match state.alarm {
            Alarm::Armed { until, .. } if until <= due => return,
            Alarm::Polled(_) | Alarm::Judges => return,
            Alarm::Armed { .. } | Alarm::Off => {}
        }
        let before = mem::replace(&mut state.alarm, Alarm::Polled(false));
        drop(state);
        drop(before);
        let mut sleep = InfallibleSleep::until(core.connection.handle, due);
        let waker = Arc::clone(owner).waker();
        let is_over = Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_ready();
        let mut state = cell.lock();
        if state.is_over() {
            state.alarm = Alarm::Off;
            drop(state);
            drop(sleep);
            return;
        }
        let was_woken = matches!(state.alarm, Alarm::Polled(true));
        state.alarm = Alarm::Armed { until: due, _sleep: sleep };
        drop(state);
        if is_over || was_woken {
            return look(owner);
        }
    }
}

/// The alarm has woken its waker: the present wait is over, or another one has begun.
fn look<B: Limited>(owner: &Arc<dyn Owner<B>>) {
    let (cell, core) = (owner.cell(), owner.core());
    let mut state = cell.lock();
    match &mut state.alarm {
        Alarm::Armed { .. } => {}
        Alarm::Polled(is_woken) => {
            *is_woken = true;
            return;
        }
        Alarm::Off | Alarm::Judges => return,
    }
    let due = cell.due(core, &state).map(|(due, _)| due);
    // The near clock may be ahead, and a body never ends early.
    let passed = due.filter(|due| *due <= core.connection.clock.now());
    let next = if passed.is_some() { Alarm::Judges } else { Alarm::Off };
    let before = mem::replace(&mut state.alarm, next);
    drop(state);
    drop(before);
    if let Some(due) = passed {
        judge(owner, due);
    } else if due.is_some() {
        arm(owner);
    }
}

/// Decides about a wait that is over, when the stream of the connection was read.
#[cold]
fn judge<B: Limited>(owner: &Arc<dyn Owner<B>>, due: Instant) {
    let judged = Arc::clone(owner);
    owner.core().connection.shared().decide(due, move || decide(&judged));
}

/// Ends the exchange, unless the present wait has begun since the alarm, or the body has a frame.
fn decide<B: Limited>(owner: &Arc<dyn Owner<B>>) {
    let (cell, core) = (owner.cell(), owner.core());
    let mut state = cell.lock();
    if matches!(state.alarm, Alarm::Judges) {
        state.alarm = Alarm::Off;
    }
    if let Place::Here(_, awaited) = state.place {
        cell.excuse(core, &mut state, awaited);
    }
    let Some((due, timeout)) = cell.due(core, &state) else { return };
    let is_early = due > core.connection.clock.now();
    if is_early || cell.is_patient(core, &mut state, due) {
        drop(state);
        return arm(owner);
    }
    match mem::replace(&mut state.place, Place::Judged) {
        Place::Here(body, Awaited::Frame) => {
            let waker = state.waker.take();
            drop(state);
            poll_judged(owner, body, waker, timeout);
        }
        Place::Here(body, Awaited::Poll) | Place::Found(body, _) => {
            state.place = Place::Doomed(body);
            drop(state);
            reach(owner, timeout);
        }
        other => state.place = other,
    }
}

fn reach<B: Limited>(owner: &Arc<dyn Owner<B>>, timeout: BodyError) {
    owner.core().reach(owner.cell().side, timeout);
}

/// Polls a body for its consumer, and keeps what it returns. Without that, the exchange ends.
fn poll_judged<B: Limited>(
    owner: &Arc<dyn Owner<B>>,
    mut body: B,
    consumer: Option<Waker>,
    timeout: BodyError,
) {
    let (cell, core) = (owner.cell(), owner.core());
    let mut cx = Context::from_waker(consumer.as_ref().unwrap_or(Waker::noop()));
    // A body that panics has nothing for its consumer. The panic's payload may panic, too, when it
    // is dropped.
    let polled = catch_unwind(AssertUnwindSafe(|| poll_body(&mut body, &mut cx)));
    let polled = polled.map_err(mem::forget).unwrap_or(Poll::Pending);
    let mut state = cell.lock();
    let found = if !matches!(state.place, Place::Judged) {
        // The exchange has ended meanwhile.
        drop(state);
        drop((body, polled));
        None
    } else if let Poll::Ready(frame) = polled {
        cell.count_wait(core, &mut state, Awaited::Frame);
        state.place = Place::Found(body, frame);
        let needs_alarm = cell.begin_wait(core, &mut state, Awaited::Poll);
        let other = state.waker.take();
        drop(state);
        Some((other, needs_alarm))
    } else {
        state.place = Place::Doomed(body);
        drop(state);
        reach(owner, timeout);
        None
    };
    if let Some((other, needs_alarm)) = found {
        if let Some(other) = other {
            other.wake();
        }
        if needs_alarm {
            arm(owner);
        }
    }
    if let Some(consumer) = consumer {
        consumer.wake();
    }
}

/// Polls a body for its consumer.
pub(super) fn poll<B: Limited>(
    owner: &Arc<dyn Owner<B>>,
    cx: &mut Context<'_>,
) -> (PolledFrame<B::Data>, Rest) {
    let (cell, core) = (owner.cell(), owner.core());
    let mut state = cell.lock();
    match mem::replace(&mut state.place, Place::Polled) {
        Place::Here(body, awaited) => {
            if awaited == Awaited::Poll {
                cell.count_wait(core, &mut state, awaited);
            }
            let is_known = state.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
            drop(state);
            poll_within(owner, body, awaited, is_known, cx)
        }
        Place::Found(body, frame) => {
            cell.count_wait(core, &mut state, Awaited::Poll);
            drop(state);
            hand_over(owner, body, frame, Awaited::Poll)
        }
        place @ (Place::Judged | Place::Doomed(_)) => {
            state.place = place;
            drop(state);
            wait_for_judgement(cell, cx.waker());
            (Poll::Pending, Rest::Same)
        }
        Place::Cut => {
            state.place = Place::Done;
            (cut_off(cell, core), Rest::Over(false))
        }
        place @ (Place::Polled | Place::Done) => {
            state.place = place;
            (Poll::Ready(None), Rest::Over(false))
        }
    }
}

/// Registers a consumer that the judgement wakes, or wakes it.
#[cold]
fn wait_for_judgement<B: Body>(cell: &Cell<B>, waker: &Waker) {
    let own = waker.clone();
    let mut state = cell.lock();
    let is_judged = !matches!(state.place, Place::Judged | Place::Doomed(_));
    let before = state.waker.replace(own);
    drop(state);
    drop(before);
    if is_judged {
        waker.wake_by_ref();
    }
}

/// The error of a body that the end of its exchange has cut.
fn cut_off<B: Body>(cell: &Cell<B>, core: &Core<dyn Member>) -> PolledFrame<B::Data> {
    Poll::Ready(Some(Err(core.error_of(cell.side).into())))
}

/// Polls a body that was taken out. Its consumer has waited for a frame, or was waited for.
fn poll_within<B: Limited>(
    owner: &Arc<dyn Owner<B>>,
    mut body: B,
    awaited: Awaited,
    is_known: bool,
    cx: &mut Context<'_>,
) -> (PolledFrame<B::Data>, Rest) {
    match poll_body(&mut body, cx) {
        Poll::Ready(frame) => hand_over(owner, body, frame, awaited),
        Poll::Pending => wait(owner, body, awaited, is_known, cx),
    }
}

/// Polls a body.
pub(super) fn poll_body<B: Limited>(body: &mut B, cx: &mut Context<'_>) -> PolledFrame<B::Data> {
    let polled = Pin::new(body).poll_frame(cx);
    polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
}

/// Puts a body back whose consumer waits for a frame.
pub(super) fn wait<B: Limited>(
    owner: &Arc<dyn Owner<B>>,
    body: B,
    awaited: Awaited,
    is_known: bool,
    cx: &mut Context<'_>,
) -> (PolledFrame<B::Data>, Rest) {
    let (cell, core) = (owner.cell(), owner.core());
    let waker = (!is_known).then(|| cx.waker().clone());
    let mut state = cell.lock();
    if !matches!(state.place, Place::Polled) {
        // The exchange has ended meanwhile.
        state.place = Place::Done;
        drop(state);
        drop((body, waker));
        return (cut_off(cell, core), Rest::Over(false));
    }
    let needs_alarm = match awaited {
        Awaited::Poll => cell.begin_wait(core, &mut state, Awaited::Frame),
        // The alarm may have come while the body was polled.
        Awaited::Frame => cell.needs_alarm(core, &state, awaited),
    };
    state.place = Place::Here(body, Awaited::Frame);
    let before = waker.and_then(|waker| state.waker.replace(waker));
    drop(state);
    drop(before);
    if needs_alarm {
        arm(owner);
    }
    (Poll::Pending, Rest::Same)
}

/// Hands what a body has returned to its consumer.
pub(super) fn hand_over<B: Limited>(
    owner: &Arc<dyn Owner<B>>,
    body: B,
    frame: Option<Result<Frame<B::Data>, BoxError>>,
    awaited: Awaited,
) -> (PolledFrame<B::Data>, Rest) {
    let (cell, core) = (owner.cell(), owner.core());
    let (mut goes_on, mut has_last, mut length) = (false, false, 0);
    let mut left = SizeHint::default();
    if let Some(Ok(frame)) = &frame {
        // A consumer of a response that has a limit asks for the end, which shows that it has taken
        // the last frame.
        let shows_end =
            cell.side == BodySide::Response && core.limits(cell.side).has(Awaited::Poll);
        let has_ended = body.is_end_stream();
        goes_on = shows_end || !has_ended;
        left = body.size_hint();
        has_last = goes_on && left.exact().map_or(has_ended, |rest| rest == 0);
        length = frame.data_ref().map_or(0, Buf::remaining);
    }
    if !goes_on {
        drop(body);
        let is_complete = cell.over(core, !matches!(frame, Some(Err(_))));
        return (Poll::Ready(frame), Rest::Over(is_complete));
    }
    let mut state = cell.lock();
    if !matches!(state.place, Place::Polled) {
        state.place = Place::Done;
        drop(state);
        drop((body, frame));
        return (cut_off(cell, core), Rest::Over(false));
    }
    if awaited == Awaited::Frame {
        cell.count_wait(core, &mut state, awaited);
    }
    state.has_last = has_last;
    state.bytes = state.bytes.saturating_add(length as u64);
    state.place = Place::Here(body, Awaited::Poll);
    let needs_alarm = cell.begin_wait(core, &mut state, Awaited::Poll);
    drop(state);
    if needs_alarm {
        arm(owner);
    }
    (Poll::Ready(frame), Rest::Left(left))
}

//! A body whose waits have limits.
//!
//! The body lies where its consumer and the alarm of its connection both reach it. The alarm takes
//! it out and drops it when a limit is reached, and wakes the consumer, whose next poll returns the
//! error.
//!
//! Invariants: no lock is held while the body within is polled or dropped: a poll takes it out and
//! puts it back.
//!
//! Cost: see [`TimedBody`].

use std::error::Error;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use hyper::body::{Body, Buf, Frame, SizeHint};

use super::alarm::Watched;
use super::limits::{Awaited, BodyLimits, BodyTimeout, NEVER};
use super::{BodySide, Exchange, Member};

/// Where the body within is.
enum Place<B> {
    /// It waits for its consumer, or its consumer waits for a frame.
    Here(B, Awaited),
    /// Its consumer polls it.
    Polled,
    /// It was dropped, and the consumer does not know yet.
    Cut,
    Done,
}

struct State<B> {
    place: Place<B>,
    /// When the present wait began; `None` if it has no limit.
    since: Option<u64>,
    /// How long the consumer has waited for frames before, and how long it was waited for.
    waited: [u64; 2],
    bytes: u64,
    /// The consumer has the last frame.
    has_last: bool,
    /// Of the consumer; `None` unless it waits for a frame.
    waker: Option<Waker>,
    /// The body's number in its alarm; `None` until a wait has a limit, and when the body is over.
    key: Option<usize>,
}

struct Shared<B> {
    exchange: Exchange,
    side: BodySide,
    limits: BodyLimits,
    /// What the body has said of its size before its first poll.
    hint: SizeHint,
    /// Asks the body whether it has ended.
    ask_for_end: fn(&B) -> bool,
    /// When the present wait is over.
    due: AtomicU64,
    state: Mutex<State<B>>,
}

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait begins now, or at its first poll. Returns when it is over; the caller arms the alarm
    /// for that time when it has released the lock.
    fn begin_wait(self: &Arc<Self>, state: &mut State<B>, awaited: Awaited) -> u64
    where
        B: Send + 'static,
    {
        // The exchange may have ended before the first wait.
        let is_here = matches!(state.place, Place::Here(..));
        state.since = (is_here && self.limits.has(awaited)).then(|| {
            let alarm = self.exchange.alarm();
            if state.key.is_none() {
                let watched: Weak<Self> = Arc::downgrade(self);
                state.key = Some(alarm.add(watched));
            }
            alarm.now()
        });
        let due = self.due_of(state, awaited).map_or(NEVER, |(due, _)| due);
        self.due.store(due, Ordering::SeqCst);
        due
    }

    /// When the present wait is over, and by which limit; `None` if it has no limit.
    fn due_of(&self, state: &State<B>, awaited: Awaited) -> Option<(u64, BodyTimeout)> {
        let waited = state.waited[awaited as usize];
        Some(self.limits.due(awaited, state.since?, waited, state.bytes))
    }

    /// The present wait has ended, or goes on with a poll.
    fn count_wait(&self, state: &mut State<B>, awaited: Awaited) {
        let (rate, waited) = match awaited {
            Awaited::Frame => (self.limits.min_frame_rate, &mut state.waited[0]),
            Awaited::Poll => (self.limits.min_poll_rate, &mut state.waited[1]),
        };
        if let Some(since) = state.since.filter(|_| rate.bytes_per_second > 0) {
            let now = self.exchange.alarm().now();
            *waited = waited.saturating_add(now.saturating_sub(since));
        }
    }

    /// The body is over, one way or another. Returns what is to be dropped without the lock.
    fn finish(&self, state: &mut State<B>, place: Place<B>) -> (Place<B>, Option<Waker>) {
        self.due.store(NEVER, Ordering::SeqCst);
        if let Some(key) = state.key.take() {
            self.exchange.alarm().remove(key);
        }
        (mem::replace(&mut state.place, place), state.waker.take())
    }

    /// The consumer has all of the body, or an error, or has dropped it.
    fn over(&self, is_complete: bool) {
        let mut state = self.lock();
        if matches!(state.place, Place::Done) {
            return;
        }
        let (was_cut, has_last) = (matches!(state.place, Place::Cut), state.has_last);
        let dropped = self.finish(&mut state, Place::Done);
        drop(state);
        if let (Place::Here(body, _), true) = (&dropped.0, has_last) {
            // The consumer knows the length, and has not asked for the end.
            let _has_ended = (self.ask_for_end)(body);
        }
        drop(dropped);
        if !was_cut {
            self.exchange.body_over(self.side, is_complete || has_last);
        }
    }
}

impl<B: Send> Watched for Shared<B> {
    fn due(&self) -> u64 {
        self.due.load(Ordering::SeqCst)
    }

    fn expire(&self, now: u64) {
        let state = self.lock();
        let Place::Here(_, awaited) = state.place else { return };
        let Some((due, timeout)) = self.due_of(&state, awaited) else { return };
        drop(state);
        if self.due() <= now && due <= now {
            self.exchange.reach(self.side, timeout);
        }
    }
}

impl<B: Send> Member for Shared<B> {
    fn cut(&self) {
        let mut state = self.lock();
        if matches!(state.place, Place::Done | Place::Cut) {
            return;
        }
        let (place, waker) = self.finish(&mut state, Place::Cut);
        drop(state);
        drop(place);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A body whose waits have limits, of a request or of a response; made by [`Exchange::request`]
/// and [`Exchange::response`].
///
/// It has the frames of the body `B`, until a limit is reached or its exchange ends. Then the body
/// within is dropped at once, whether a task polls this one or not, and the next poll returns an
/// error, once.
///
/// With a limit for its consumer, the body of a response says that it has ended only when the
/// consumer has asked for more than the last frame: hyper asks for the frames of an HTTP/2 stream
/// before the client has a window for them.
///
/// # Errors
///
/// Those of the body `B`, and [`BodyError`](super::BodyError), each in a
/// `Box<dyn Error + Send + Sync>`.
///
/// # Cost
///
/// A body that has not ended when it is wrapped costs an allocation of some 200 bytes and the
/// size of `B`. A poll takes a lock twice, which only the alarm of the connection takes besides,
/// and reads the near clock where a wait begins that has a limit.
pub struct TimedBody<B> {
    exchange: Exchange,
    body: Inner<B>,
}

enum Inner<B> {
    /// It had ended before.
    Ended(B),
    /// No poll has come yet.
    New(Arc<Shared<B>>),
    Polled(Arc<Shared<B>>),
    /// The consumer has the end, or an error.
    Over,
}

impl<B> TimedBody<B>
where
    B: Body + Send + Unpin + 'static,
{
    pub(super) fn new(exchange: Exchange, side: BodySide, body: B, limits: BodyLimits) -> Self {
        if body.is_end_stream() {
            exchange.body_over(side, true);
            return Self { exchange, body: Inner::Ended(body) };
        }
        let hint = body.size_hint();
        let ask_for_end = B::is_end_stream;
        let place = Place::Here(body, Awaited::Poll);
        let (since, waited, bytes, has_last) = (None, [0; 2], 0, false);
        let (waker, key) = (None, None);
        let state = State { place, since, waited, bytes, has_last, waker, key };
        let (due, state) = (AtomicU64::new(NEVER), Mutex::new(state));
        let shared = Arc::new(Shared {
            exchange: exchange.clone(),
            side,
            limits,
            hint,
            ask_for_end,
            due,
            state,
        });
        let member = Arc::downgrade(&shared);
        if !exchange.add(side, member) {
            shared.cut();
        } else if limits.has(Awaited::Poll) {
            let due = shared.begin_wait(&mut shared.lock(), Awaited::Poll);
            exchange.alarm().ensure(due);
        }
        Self { exchange, body: Inner::New(shared) }
    }
}

impl<B> TimedBody<B> {
    /// The exchange to which the body belongs.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }
}

type BoxError = Box<dyn Error + Send + Sync>;
type PolledFrame<B> = Poll<Option<Result<Frame<<B as Body>::Data>, BoxError>>>;

impl<B> Shared<B>
where
    B: Body<Error: Into<BoxError>> + Send + Unpin + 'static,
{
    /// Whether the consumer asks for the end, which shows that it has taken the last frame.
    fn shows_end(&self) -> bool {
        self.side == BodySide::Response && self.limits.has(Awaited::Poll)
    }

    /// Also returns whether the body is over.
    fn poll_frame(self: &Arc<Self>, cx: &mut Context<'_>) -> (PolledFrame<B>, bool) {
        let mut state = self.lock();
        let (mut body, awaited) = match mem::replace(&mut state.place, Place::Polled) {
            Place::Here(body, awaited) => (body, awaited),
            Place::Cut => {
                state.place = Place::Done;
                return (self.cut_off(), true);
            }
            other => {
                state.place = other;
                return (Poll::Ready(None), true);
            }
        };
        if awaited == Awaited::Poll {
            self.count_wait(&mut state, awaited);
        }
        drop(state);
        let polled = Pin::new(&mut body).poll_frame(cx);
        let mut state = self.lock();
        if !matches!(state.place, Place::Polled) {
            // The exchange has ended meanwhile.
            state.place = Place::Done;
            drop(state);
            drop(body);
            return (self.cut_off(), true);
        }
        let Poll::Ready(frame) = polled else {
            state.place = Place::Here(body, Awaited::Frame);
            let due = match awaited {
                Awaited::Poll => self.begin_wait(&mut state, Awaited::Frame),
                // The alarm may have passed while the body was polled.
                Awaited::Frame => self.due(),
            };
            state.waker = Some(cx.waker().clone());
            drop(state);
            self.exchange.alarm().ensure(due);
            return (Poll::Pending, false);
        };
        if awaited == Awaited::Frame {
            self.count_wait(&mut state, awaited);
        }
        state.waker = None;
        let is_over = match &frame {
            Some(Ok(frame)) if self.shows_end() || !body.is_end_stream() => {
                // A body that is asked whether it has ended may take that for the consumer's
                // knowledge, which the consumer has when it asks for the end.
                state.has_last = match body.size_hint().exact() {
                    Some(rest) => rest == 0,
                    None => body.is_end_stream(),
                };
                let length = frame.data_ref().map_or(0, Buf::remaining);
                state.bytes = state.bytes.saturating_add(length as u64);
                state.place = Place::Here(body, Awaited::Poll);
                let due = self.begin_wait(&mut state, Awaited::Poll);
                drop(state);
                self.exchange.alarm().ensure(due);
                false
            }
            _ => {
                let is_complete = !matches!(frame, Some(Err(_)));
                drop(state);
                drop(body);
                self.over(is_complete);
                true
            }
        };
        (Poll::Ready(frame.map(|frame| frame.map_err(Into::into))), is_over)
    }

    /// The error of a body that the end of its exchange has cut.
    fn cut_off(&self) -> PolledFrame<B> {
        Poll::Ready(Some(Err(self.exchange.error_of(self.side).into())))
    }
}

impl<B> Body for TimedBody<B>
where
    B: Body<Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame<B> {
        let this = self.get_mut();
        if matches!(this.body, Inner::New(_))
            && let Inner::New(shared) = mem::replace(&mut this.body, Inner::Over)
        {
            this.body = Inner::Polled(shared);
        }
        match &mut this.body {
            Inner::Ended(body) => {
                let polled = Pin::new(body).poll_frame(cx);
                polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
            }
            Inner::New(shared) | Inner::Polled(shared) => {
                let (polled, is_over) = shared.poll_frame(cx);
                if is_over {
                    this.body = Inner::Over;
                }
                polled
            }
            Inner::Over => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.body, Inner::Ended(_) | Inner::Over)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Inner::Ended(body) => body.size_hint(),
            Inner::New(shared) => shared.hint,
            Inner::Polled(shared) => match &shared.lock().place {
                Place::Here(body, _) => body.size_hint(),
                Place::Polled | Place::Cut | Place::Done => SizeHint::default(),
            },
            Inner::Over => SizeHint::with_exact(0),
        }
    }
}

impl<B> Drop for TimedBody<B> {
    fn drop(&mut self) {
        if let Inner::New(shared) | Inner::Polled(shared) = &self.body {
            shared.over(false);
        }
    }
}

debug_fields!([B] TimedBody<B>, |it| exchange: it.exchange);

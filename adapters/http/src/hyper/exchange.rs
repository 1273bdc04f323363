//! The exchange of a request and its response: what the connection knows of it, and its two bodies,
//! which end together.
//!
//! A limit on a socket does not see an HTTP/2 stream, and ends no body whose task waits for another
//! socket. So each body has limits of its own. Why not a future that waits for them: the body of a
//! request that is forwarded lies with the client of another server. No task polls it while that
//! server takes nothing.
//!
//! The response ends at the wire, and not where hyper takes it. hyper flushes an HTTP/1 response in
//! the poll in which it takes the last of it, so that flush is the end. Of an HTTP/2 response it
//! takes a whole frame once the client has a window for one byte. So that data carries a guard, a
//! `Piece`, which ends when hyper has written or copied the data, or drops it.
//!
//! Invariants: an exchange ends once. With limits for bodies it holds neither body after that. What
//! its handler has asked for by [`Exchange::on_end`] is done on the thread that ends it. The idle
//! times of the connection are held back while the server works. They are not while a read of the
//! request's body waits for the peer, has no limit of its own, and the response has not begun. The
//! server works from the call of the service until the response has ended. The next message begins
//! when both bodies have ended. A response whose writes no limit bounds ends where hyper takes it:
//! then idle times alone bound the client. No user's code runs under a lock.
//!
//! Cost: see [`TimedHttp`](super::TimedHttp).

mod answer;
mod kind;
mod link;

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::Instant;

use atomic_waker::AtomicWaker;
use corewheel::AnyHandle;
use corewheel::clock::Clock;
use corewheel::conn::Side;
use corewheel::stream::{HeldRequest, SharedControl, StreamControl};

pub(super) use self::kind::Kind;
pub(super) use self::link::Link;
use super::limits::{Awaited, BodyError, BodyLimits};

/// What the exchanges of a connection share.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) handle: AnyHandle,
    pub(super) clock: Clock,
    /// Of requests, of responses of HTTP/1, and of responses of HTTP/2.
    pub(super) limits: [BodyLimits; 3],
    pub(super) told: Arc<Told>,
    /// `None` before the first request.
    shared: OnceLock<SharedControl>,
}

/// What the owner of a connection is told.
#[derive(Default, Debug)]
pub(crate) struct Told {
    /// A client of HTTP/2 does not take a response. Relaxed: the waker orders it.
    is_stalled: AtomicBool,
    stalled: AtomicWaker,
    /// The connection of HTTP/1 has another protocol from now on.
    is_tunnel: AtomicBool,
    /// The response in progress is a stream of events in chunks.
    has_events: AtomicBool,
}

impl Told {
    fn stall(&self) {
        self.is_stalled.store(true, Ordering::Relaxed);
        self.stalled.wake();
    }

    /// Waits until a response has reached a limit of its client.
    #[cfg(feature = "server")]
    pub(crate) async fn stalled(&self) {
        poll_fn(|cx| {
            self.stalled.register(cx.waker());
            let is_stalled = self.is_stalled.load(Ordering::Relaxed);
            if is_stalled { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Whether the response in progress is a stream of events in chunks. Relaxed: asked in the task
    /// of the connection, in which this changes.
    #[cfg(feature = "server")]
    pub(crate) fn has_events(&self) -> bool {
        self.has_events.load(Ordering::Relaxed)
    }

    /// Relaxed: the bytes of the other protocol follow the response, which hands the stream over.
    #[cfg(feature = "server")]
    pub(crate) fn is_tunnel(&self) -> bool {
        self.is_tunnel.load(Ordering::Relaxed)
    }
}

impl Connection {
    pub(super) fn new(handle: AnyHandle) -> Self {
        let (clock, limits) = (handle.clock(), [BodyLimits::default(); 3]);
        Self { handle, clock, limits, told: Arc::default(), shared: OnceLock::new() }
    }

    /// A request has come, in the task of the connection.
    pub(super) fn begin<M: Side>(&self, control: &StreamControl<M>) {
        self.shared.get_or_init(|| control.shared());
    }

    /// What any thread tells the stream of the connection, and asks it.
    pub(super) fn shared(&self) -> &SharedControl {
        self.shared.get().expect("there was a request")
    }

    /// When a wait has begun that begins now; `None` if it has no limit.
    #[inline]
    pub(super) fn begin_wait(&self, limits: &BodyLimits, awaited: Awaited) -> Option<Instant> {
        limits.has(awaited).then(|| self.clock.near())
    }
}

/// One of the two bodies of an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BodySide {
    /// The body of the request, whose producer is the client.
    Request,
    /// The body of the response, whose consumer is the client.
    Response,
}

/// A body, as its exchange sees it.
pub(super) trait Member: Send + Sync {
    /// Drops the body within, and wakes the consumer.
    fn cut(&self);
}

/// The body of a request without one.
pub(super) struct NoBody;

impl Member for NoBody {
    fn cut(&self) {}
}

/// A request and its response, which end together.
///
/// It ends when
///
/// - one of its bodies reaches a limit,
/// - the body of the response has ended, has failed or was dropped,
/// - the future of the response was dropped, or has returned an error,
/// - the handler calls [`end`](Self::end).
///
/// Then the bodies that have not ended are dropped at once, on the thread that ends the exchange.
/// Their next polls return an error, and what waits in such a poll is woken. The response to a
/// complete request of HTTP/1 is dropped in its first poll instead, if it was not polled: hyper
/// polls it at once. Where the service has
/// no limits for bodies, the end of the response does not cut the body of the request: a task of
/// the handler's may read on.
///
/// A handler whose exchange has ended may still answer, such as `408`: its response belongs to a
/// new exchange, with the same limits.
///
/// A clone is the same exchange.
///
/// ```
/// use corewheel_http::hyper::Exchange;
///
/// /// Notes that the body of a request was too slow, when the exchange ends.
/// fn watch(exchange: &Exchange) {
///     let ended = exchange.clone();
///     exchange.on_end(move || {
///         if let Some(limit) = ended.request_limit_reached() {
///             println!("the client: {limit}");
///         }
///     });
/// }
/// ```
#[derive(Clone)]
pub struct Exchange {
    pub(super) core: Arc<Core<dyn Member>>,
}

pub(super) struct Core<B: ?Sized> {
    pub(super) connection: Arc<Connection>,
    /// The exchange of the request, which has ended before the handler has answered. It stands for
    /// the request on the connection.
    first: Option<Exchange>,
    kind: Kind,
    state: Mutex<State>,
    /// The limit that has ended the exchange.
    reached: OnceLock<(BodySide, BodyError)>,
    /// Whether it has ended. Written under the lock of the state. Relaxed: a task that waits
    /// counts itself under that lock first, so it is woken by the end, or sees it.
    has_ended: AtomicBool,
    /// The response has begun. Relaxed: a limit that is judged at this moment was passed before.
    is_answered: AtomicBool,
    /// The task that waits for the end.
    waiting: AtomicWaker,
    /// The body of the request.
    pub(super) request: B,
}

/// How far a body is.
enum Progress {
    /// There is none, or not yet.
    None,
    Goes,
    /// Its consumer has all of it.
    Complete,
    /// It has failed, or was dropped.
    Broken,
}

impl Progress {
    /// Whether the body has not ended. It is broken from now on.
    fn cut(&mut self) -> bool {
        let goes = matches!(self, Self::Goes);
        if goes {
            *self = Self::Broken;
        }
        goes
    }

    fn over(is_complete: bool) -> Self {
        if is_complete { Self::Complete } else { Self::Broken }
    }
}

/// Whether a request holds back the idle times of its connection.
#[derive(Debug)]
pub(super) enum Hold {
    /// The server works.
    Held(HeldRequest),
    /// A read of the request's body waits for the peer.
    Waits,
    /// The response has ended.
    Ended,
}

struct State {
    /// How many calls of [`Exchange::ended`] wait.
    waits: u32,
    request: Progress,
    response: Progress,
    /// The body of the response, if it goes.
    responder: Option<Weak<dyn Member>>,
    on_end: Vec<Box<dyn FnOnce() + Send>>,
    hold: Hold,
    /// After the response, the connection belongs to another protocol.
    is_tunnel: bool,
    /// No more is taken of the body of the response.
    is_body_over: bool,
    /// How much data of the response hyper has, in pieces.
    pieces: u32,
    /// How many of the two bodies have not ended on the connection.
    parts: u8,
    /// When the consumer has had all of the request's body.
    complete_at: Option<Instant>,
}

impl State {
    fn is_request_complete(&self) -> bool {
        matches!(self.request, Progress::Complete | Progress::None)
    }

    /// A body has ended on the connection. Returns whether it was the last.
    fn part_over(&mut self) -> bool {
        self.parts -= 1;
        self.parts == 0
    }

    /// A read of the request's body waits. Returns what has held the idle times back.
    fn wait_for_body(&mut self) -> Option<HeldRequest> {
        match mem::replace(&mut self.hold, Hold::Waits) {
            Hold::Held(held) => Some(held),
            before => {
                self.hold = before;
                None
            }
        }
    }

    /// hyper has all of the response, and keeps no piece of it. Returns what has held the idle
    /// times back.
    fn end_hold(&mut self) -> Option<HeldRequest> {
        match mem::replace(&mut self.hold, Hold::Ended) {
            Hold::Held(held) => Some(held),
            Hold::Waits | Hold::Ended => None,
        }
    }
}

/// A call of [`Exchange::ended`] that has not returned, nor was dropped. The end of an exchange
/// wakes a task only if there is one: most handlers have their answer before, and wait no longer.
struct Waits<'a>(&'a Exchange);

impl<'a> Waits<'a> {
    fn new(exchange: &'a Exchange) -> Self {
        exchange.core.lock().waits += 1;
        Self(exchange)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.core.lock().waits -= 1;
    }
}

impl<B> Core<B> {
    /// An exchange whose request has come, with its body or without one.
    #[inline]
    pub(super) fn new(connection: &Arc<Connection>, kind: Kind, hold: Hold, request: B) -> Self {
        let state = State {
            waits: 0,
            request: if kind.has_body { Progress::Goes } else { Progress::None },
            response: Progress::None,
            responder: None,
            on_end: Vec::new(),
            hold,
            is_tunnel: false,
            is_body_over: false,
            pieces: 0,
            parts: 1 + u8::from(kind.has_body),
            complete_at: None,
        };
        Self {
            connection: Arc::clone(connection),
            first: None,
            kind,
            state: Mutex::new(state),
            reached: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            is_answered: AtomicBool::new(false),
            waiting: AtomicWaker::new(),
            request,
        }
    }
}

impl<B: ?Sized> Core<B> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub(super) fn limits(&self, side: BodySide) -> &BodyLimits {
        let is_of_http2 = side == BodySide::Response && !self.kind.is_http1();
        &self.connection.limits[side as usize + usize::from(is_of_http2)]
    }

    /// When a wait has begun that begins now; `None` if it has no limit.
    #[inline]
    pub(super) fn begin_wait(&self, side: BodySide, awaited: Awaited) -> Option<Instant> {
        self.connection.begin_wait(self.limits(side), awaited)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Whether the client has the head of its response, and sends as what it receives asks for.
    pub(super) fn is_answered(&self) -> bool {
        self.is_answered.load(Ordering::Relaxed)
    }
}

impl Core<dyn Member> {
    /// The response is over, or does not come: the bodies are cut if bodies have limits. A body
    /// without a limit may be read on by a task of the handler's.
    pub(super) fn end_with_response(&self) {
        let none = BodyLimits::default();
        self.end(self.connection.limits.iter().any(|limits| *limits != none));
    }

    /// `cuts` says that the bodies that have not ended are dropped.
    pub(super) fn end(&self, cuts: bool) {
        let mut state = self.lock();
        if self.has_ended() {
            return;
        }
        self.has_ended.store(true, Ordering::Relaxed);
        let cuts_request = cuts && state.request.cut();
        let cuts_response = cuts && state.response.cut();
        let responder = state.responder.take().filter(|_| cuts_response);
        let (on_end, waits) = (mem::take(&mut state.on_end), state.waits > 0);
        drop(state);
        // Before the bodies, so that what consumes them does not mistake their end for its own.
        for function in on_end {
            function();
        }
        if cuts_request {
            self.request.cut();
        }
        if let Some(body) = responder.and_then(|body| body.upgrade()) {
            body.cut();
        }
        if waits {
            self.waiting.wake();
        }
    }

    /// A body has reached a limit, which is known before the exchange ends.
    pub(super) fn reach(&self, side: BodySide, timeout: BodyError) {
        // The first limit is the reason.
        let _ = self.reached.set((side, timeout));
        let is_of_client = matches!(timeout, BodyError::NextPoll(_) | BodyError::PollRate(_));
        if side == BodySide::Response && is_of_client && !self.kind.is_http1() {
            self.connection.told.stall();
        }
        self.end(true);
    }

    /// Whether nothing but the first poll of a response can end it before that: hyper polls one of
    /// HTTP/1 at once, it has no limit until then, and no other body ends the exchange.
    #[inline]
    pub(super) fn response_is_alone(&self) -> bool {
        let has_limit = self.limits(BodySide::Response).has(Awaited::Poll);
        let is_complete = || !self.kind.has_body || self.lock().is_request_complete();
        self.kind.is_http1() && !has_limit && is_complete()
    }

    /// The response has a body. False if the exchange has ended.
    pub(super) fn add_response(&self, body: Weak<dyn Member>) -> bool {
        let mut state = self.lock();
        let goes_on = !self.has_ended();
        if goes_on {
            (state.response, state.responder) = (Progress::Goes, Some(body));
        } else {
            state.response = Progress::Broken;
        }
        goes_on
    }

    /// A body has ended by itself.
    pub(super) fn body_over(&self, side: BodySide, is_complete: bool) {
        let mut state = self.lock();
        if side == BodySide::Request {
            state.request = Progress::over(is_complete);
            state.complete_at = is_complete.then(|| self.connection.clock.near());
            return;
        }
        state.response = Progress::over(is_complete);
        if self.has_ended() || !is_complete || !state.is_request_complete() {
            drop(state);
            return self.end_with_response();
        }
        self.has_ended.store(true, Ordering::Relaxed);
        let (on_end, waits) = (mem::take(&mut state.on_end), state.waits > 0);
        drop(state);
        drop(on_end);
        if waits {
            self.waiting.wake();
        }
    }

    /// The exchange that stands for the request on the connection.
    #[inline]
    fn on_connection(&self) -> &Self {
        self.first.as_ref().map_or(self, |first| &*first.core)
    }

    /// The response is cut, on any thread: the server does not work on the request any more. hyper
    /// keeps the body of an HTTP/2 response until the client has a window for it.
    pub(super) fn response_cut(&self) {
        let core = self.on_connection();
        let mut state = core.lock();
        state.is_body_over = true;
        let held = state.end_hold();
        drop(state);
        if let Some(held) = held {
            let _own = core.connection.shared().end_request(held);
        }
    }

    /// The error of a body that the end of the exchange has cut.
    pub(super) fn error_of(&self, side: BodySide) -> BodyError {
        self.limit_reached(side).unwrap_or(BodyError::Ended)
    }

    fn limit_reached(&self, side: BodySide) -> Option<BodyError> {
        self.reached.get().filter(|(reached, _)| *reached == side).map(|(_, timeout)| *timeout)
    }
}

impl Exchange {
    /// Ends the exchange, unless it has ended.
    pub fn end(&self) {
        self.core.end(true);
    }

    /// Calls a function when the exchange ends before both bodies are complete, and at once if it
    /// has ended so. Functions of several calls are called in their order.
    ///
    /// A proxy closes its connection to the other server here, as a half of a request or of a
    /// response has gone over it. The function runs on the thread that ends the exchange, which may
    /// drive a shard: it must not wait.
    pub fn on_end(&self, function: impl FnOnce() + Send + 'static) {
        let mut state = self.core.lock();
        if !self.has_ended() {
            state.on_end.push(Box::new(function));
            return;
        }
        let is_complete =
            state.is_request_complete() && matches!(state.response, Progress::Complete);
        drop(state);
        if !is_complete {
            function();
        }
    }

    /// Whether the exchange has ended.
    pub fn has_ended(&self) -> bool {
        self.core.has_ended()
    }

    /// Waits until the exchange has ended. A handler that waits for another server waits for this
    /// besides, as no body is polled where that server does not take the request.
    ///
    /// May be dropped and called again. One task waits at a time: the last that has called this on
    /// any of the clones.
    pub async fn ended(&self) {
        let _waits = Waits::new(self);
        poll_fn(|cx| {
            self.core.waiting.register(cx.waker());
            if self.has_ended() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Whether the consumer of the request's body has all of it. True if there is no body.
    pub fn is_request_complete(&self) -> bool {
        self.core.lock().is_request_complete()
    }

    /// The limit of the request's body that has ended the exchange; `None` if none has.
    pub fn request_limit_reached(&self) -> Option<BodyError> {
        self.core.limit_reached(BodySide::Request)
    }

    /// The limit of the response's body that has ended the exchange; `None` if none has.
    pub fn response_limit_reached(&self) -> Option<BodyError> {
        self.core.limit_reached(BodySide::Response)
    }

    /// The exchange of a response, if the handler answers: another one if this has ended.
    #[inline]
    pub(super) fn of_response(self) -> Self {
        if !self.has_ended() {
            return self;
        }
        let Core { connection, kind, .. } = &*self.core;
        let kind = kind.without_body();
        let mut next = Core::new(connection, kind, Hold::Ended, NoBody);
        next.first = Some(self);
        Self { core: Arc::new(next) }
    }
}

debug_fields!([] Exchange, |it|
    request_limit_reached: it.request_limit_reached(),
    response_limit_reached: it.response_limit_reached()
);

/// On any thread.
const _: () = {
    const fn is_shared<T: Clone + Send + Sync + Unpin + 'static>() {}
    is_shared::<Exchange>();
};

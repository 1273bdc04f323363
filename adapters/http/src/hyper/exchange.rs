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
mod link;

use std::future::poll_fn;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
#[cfg(feature = "server")]
use std::task::Context;
use std::task::Poll;
use std::time::Instant;

use atomic_waker::AtomicWaker;
use corewheel::AnyHandle;
use corewheel::clock::Clock;
use corewheel::conn::Side;
use corewheel::stream::{SharedControl, StreamControl};
#[cfg(feature = "server")]
use tokio::sync::SetOnce;

pub(super) use self::link::Kind;
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

/// A flag that carries no other data.
#[derive(Default, Debug)]
pub(crate) struct Flag(AtomicBool);

impl Flag {
    #[inline]
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set(&self, is_set: bool) {
        self.0.store(is_set, Ordering::Relaxed);
    }
}

/// What the owner of a connection is told. Its task asks, and but for `is_stalled` changes it.
#[derive(Default, Debug)]
pub(crate) struct Told {
    /// The first request has come.
    #[cfg(feature = "server")]
    pub(crate) first: SetOnce<()>,
    /// A request of HTTP/1 goes on, or its response. hyper reads where none does.
    pub(crate) has_request: Flag,
    /// The connection is one of HTTP/2.
    #[cfg(feature = "server")]
    pub(crate) is_http2: Flag,
    /// A client of HTTP/2 does not take a response. The waker orders it.
    pub(crate) is_stalled: Flag,
    stalled: AtomicWaker,
    /// The connection of HTTP/1 has another protocol from now on: its bytes follow the response,
    /// which hands the stream over.
    pub(crate) is_tunnel: Flag,
    /// The response in progress is a stream of events in chunks.
    pub(crate) has_events: Flag,
}

#[cfg(feature = "server")]
impl Told {
    /// Ready if a response has reached a limit of its client, and otherwise when one does. Polled
    /// after the connection, in whose poll the first response of HTTP/2 may begin.
    pub(crate) fn poll_stalled(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.is_http2.get() {
            return Poll::Pending;
        }
        self.stalled.register(cx.waker());
        if self.is_stalled.get() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Connection {
    pub(super) fn new(handle: AnyHandle) -> Self {
        let (clock, limits) = (handle.clock(), [BodyLimits::default(); 3]);
        Self { handle, clock, limits, told: Arc::default(), shared: OnceLock::new() }
    }

    /// A request has come, in the task of the connection.
    pub(super) fn begin<M: Side>(&self, control: &StreamControl<M>) {
        self.told.has_request.set(true);
        if self.shared.get().is_none() {
            self.shared.get_or_init(|| control.shared());
            #[cfg(feature = "server")]
            let _is_first = self.told.first.set(());
        }
    }

    /// What any thread tells the stream of the connection, and asks it.
    pub(super) fn shared(&self) -> &SharedControl {
        self.shared.get().expect("there was a request")
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
    pub(super) core: Arc<Core>,
}

pub(super) struct Core {
    pub(super) connection: Arc<Connection>,
    /// The exchange of the request, which has ended before the handler has answered. It stands for
    /// the request on the connection.
    first: Option<Exchange>,
    kind: Kind,
    state: Mutex<State>,
    /// The limit that has ended the exchange.
    reached: OnceLock<(BodySide, BodyError)>,
    /// Whether it has ended. Written under the lock of the state: a task that waits counts itself
    /// under that lock first, so it is woken by the end, or sees it.
    has_ended: Flag,
    /// The client has the head of its response, and sends as what it receives asks for. A limit
    /// that is judged when the response begins was passed before.
    pub(super) is_answered: Flag,
    /// The task that waits for the end.
    waiting: AtomicWaker,
}

/// How far a body is.
enum Progress {
    /// There is none, or not yet.
    None,
    Goes(Weak<dyn Member>),
    /// Its consumer has all of it.
    Complete,
    /// It has failed, or was dropped.
    Broken,
}

impl Progress {
    /// Takes the body out if it has not ended. It is broken from now on.
    fn cut(&mut self) -> Option<Weak<dyn Member>> {
        let Self::Goes(body) = self else { return None };
        let body = Weak::clone(body);
        *self = Self::Broken;
        Some(body)
    }
}

/// Whether a request holds back the idle times of its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// The server works.
    Held,
    /// A read of the request's body waits for the peer.
    Waits,
    /// The response has ended.
    Ended,
}

struct State {
    /// How many calls of [`Exchange::ended`] wait.
    waits: u32,
    /// Of the request, and of the response.
    bodies: [Progress; 2],
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
        matches!(self.bodies[0], Progress::Complete | Progress::None)
    }

    /// A body has ended on the connection. Returns whether a tunnel follows, if it was the last.
    fn part_over(&mut self) -> Option<bool> {
        self.parts -= 1;
        (self.parts == 0).then_some(self.is_tunnel)
    }

    /// A read of the request's body waits no longer.
    fn body_came(&mut self, control: &StreamControl<impl Side>) {
        if self.hold == Hold::Waits {
            // Under the lock: the response may end on another thread, which ends the request.
            control.hold_request();
            self.hold = Hold::Held;
        }
    }

    /// Goes on from `Held`. True if the idle times are held back no more.
    fn end_hold(&mut self, next: Hold) -> bool {
        let is_held = self.hold == Hold::Held;
        if is_held || next == Hold::Ended {
            self.hold = next;
        }
        is_held
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

impl Core {
    /// An exchange whose request has come.
    #[inline]
    pub(super) fn new(connection: &Arc<Connection>, kind: Kind, hold: Hold) -> Self {
        let state = State {
            waits: 0,
            bodies: [Progress::None, Progress::None],
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
            has_ended: Flag::default(),
            is_answered: Flag::default(),
            waiting: AtomicWaker::new(),
        }
    }

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
        self.limits(side).has(awaited).then(|| self.connection.clock.near())
    }

    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.get()
    }

    /// The response is over, or does not come: the bodies are cut if bodies have limits. A body
    /// without a limit may be read on by a task of the handler's.
    pub(super) fn end_with_response(&self) {
        let none = BodyLimits::default();
        self.end(self.connection.limits.iter().any(|limits| *limits != none));
    }

    /// `cuts` says that the bodies that have not ended are dropped.
    pub(super) fn end(&self, cuts: bool) {
        let state = self.lock();
        if !self.has_ended() {
            self.finish(state, false, cuts);
        }
    }

    /// The exchange ends now, and both bodies are complete or not.
    fn finish(&self, mut state: MutexGuard<'_, State>, is_complete: bool, cuts: bool) {
        self.has_ended.set(true);
        let cut = if cuts { state.bodies.each_mut().map(Progress::cut) } else { [None, None] };
        let (on_end, waits) = (mem::take(&mut state.on_end), state.waits > 0);
        drop(state);
        // Before the bodies, so that what consumes them does not mistake their end for its own.
        if !is_complete {
            for function in on_end {
                function();
            }
        }
        for body in cut.into_iter().flatten().filter_map(|body| body.upgrade()) {
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
            self.connection.told.is_stalled.set(true);
            self.connection.told.stalled.wake();
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

    /// A body has begun. False if the exchange has ended.
    pub(super) fn add_body(&self, side: BodySide, body: Weak<dyn Member>) -> bool {
        let mut state = self.lock();
        let goes_on = !self.has_ended();
        let progress = if goes_on { Progress::Goes(body) } else { Progress::Broken };
        state.bodies[side as usize] = progress;
        goes_on
    }

    /// A body has ended by itself.
    pub(super) fn body_over(&self, side: BodySide, is_complete: bool) {
        let mut state = self.lock();
        let progress = if is_complete { Progress::Complete } else { Progress::Broken };
        state.bodies[side as usize] = progress;
        if side == BodySide::Request {
            state.complete_at = is_complete.then(|| self.connection.clock.near());
            return;
        }
        if !self.has_ended() && is_complete && state.is_request_complete() {
            return self.finish(state, true, false);
        }
        drop(state);
        self.end_with_response();
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
        let was_held = state.end_hold(Hold::Ended);
        drop(state);
        if was_held {
            core.connection.shared().end_request();
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
            state.is_request_complete() && matches!(state.bodies[1], Progress::Complete);
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
        let mut next = Core::new(connection, kind, Hold::Ended);
        next.first = Some(self);
        Self { core: Arc::new(next) }
    }
}

debug_fields!([] Exchange, |it|
    request_limit_reached: it.request_limit_reached(),
    response_limit_reached: it.response_limit_reached()
);

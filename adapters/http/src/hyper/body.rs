//! The body of a request or of a response, which tells its connection how far it is.
//!
//! Why not a guard in the handler: a handler ends before the body of its response does, and cannot
//! say that the head is complete before hyper reads on. It does not see either whether it waits for
//! the body of the request or for something else.
//!
//! Invariants: the connection is told once that a body is over.
//!
//! Cost: see [`TimedHttp`](super::TimedHttp).

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::{fmt, mem};

use corewheel::Handle;
use corewheel::conn::Side;
use corewheel::stream::StreamControl;
use hyper::body::{Body, Buf, Frame, SizeHint};
use hyper::http::request::Parts;

use super::cell::{self, BoxError, Cell, Owner, PolledFrame, Rest};
use super::data::{BodyData, Piece};
use super::exchange::{BodySide, Connection, Core, Exchange, Hold, Kind, Link, NoBody};
use super::limits::Awaited;

/// The body of a request of a [`TimedHttp`](super::TimedHttp), whose waits have limits.
///
/// It has the frames of the body `B`, until a limit is reached or its exchange ends. Then the body
/// within is dropped at once, whether a task polls this one or not, and the next poll returns an
/// error, once.
///
/// # Errors
///
/// Those of the body `B`, and [`BodyError`](super::BodyError), each in a
/// `Box<dyn Error + Send + Sync>`.
pub struct TimedBody<B, M = Handle>
where
    B: Body,
    M: Side,
{
    within: Within<B>,
    left: SizeHint,
    side: BodySide,
    /// Whether the data is handed over as pieces.
    has_pieces: bool,
    exchange: Exchange,
    /// Whether the consumer knows that the body has ended. A response that is dropped before is
    /// broken off.
    is_known_to_end: AtomicBool,
    /// `None` when the connection knows that the body is over.
    control: Option<StreamControl<M>>,
}

/// Where the body within is.
enum Within<B: Body> {
    /// Here, before its first poll: the body of an HTTP/1 response, which hyper polls at once. The
    /// mutex, which nothing locks, makes it `Sync`.
    New(Mutex<B>),
    Shared(Arc<dyn Owner<B>>),
    /// Nowhere: the consumer has the end, or an error. Whether it has all of the body.
    Over(bool),
}

impl<B: Body> Within<B> {
    fn new_body(&mut self) -> Option<&mut B> {
        let Self::New(body) = self else { return None };
        Some(body.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes the body out if it was not polled.
    fn take_new(&mut self) -> Option<B> {
        match mem::replace(self, Self::Over(false)) {
            Self::New(body) => Some(body.into_inner().unwrap_or_else(PoisonError::into_inner)),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl<B, M> TimedBody<B, M>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    M: Side,
{
    /// Begins a request, with its exchange, after its head.
    #[inline]
    pub(super) fn of_request(
        head: &Parts,
        body: B,
        connection: &Arc<Connection>,
        control: &StreamControl<M>,
    ) -> Self {
        connection.begin(control);
        let (kind, side) = (Kind::of(head, &body, control), BodySide::Request);
        let hold = Hold::Held(control.hold_request());
        let left = body.size_hint();
        if !kind.has_body {
            let exchange = Exchange { core: Arc::new(Core::new(connection, kind, hold, NoBody)) };
            Link { exchange: &exchange, control }.begin();
            return Self::new(Within::Over(true), left, side, exchange, None);
        }
        let since = connection.begin_wait(&connection.limits[0], Awaited::Poll);
        let cell = Cell::new(side, Some(body), since);
        let core = Arc::new(Core::new(connection, kind, hold, cell));
        let owner: Arc<dyn Owner<B>> = Arc::<Core<Cell<B>>>::clone(&core);
        let exchange = Exchange { core };
        Link { exchange: &exchange, control }.begin();
        if since.is_some() {
            cell::arm(&owner);
        }
        Self::new(Within::Shared(owner), left, side, exchange, Some(control.clone()))
    }

    fn of_response(
        body: B,
        exchange: Exchange,
        control: StreamControl<M>,
        has_pieces: bool,
    ) -> Self {
        let (exchange, left) = (exchange.of_response(), body.size_hint());
        let (core, side) = (&exchange.core, BodySide::Response);
        let within = if body.is_end_stream() {
            core.body_over(side, true);
            Within::Over(true)
        } else if core.response_is_alone() {
            Within::New(Mutex::new(body))
        } else {
            Within::Shared(cell::share(&exchange, Some(body)))
        };
        let mut body = Self::new(within, left, side, exchange, Some(control));
        body.has_pieces = has_pieces;
        body
    }

    /// Polls the body of a response for the first time. One that is not over then is shared with
    /// its exchange, which may have ended meanwhile.
    fn poll_new(&mut self, cx: &mut Context<'_>) -> (PolledFrame<B::Data>, Rest) {
        let core = &self.exchange.core;
        let body = self.within.new_body().expect("it was not polled");
        let polled = if core.has_ended() {
            Poll::Ready(Some(Err(core.error_of(self.side).into())))
        } else {
            cell::poll_body(body, cx)
        };
        let is_complete = match &polled {
            Poll::Ready(Some(Ok(_))) => body.is_end_stream().then_some(true),
            Poll::Ready(end) => Some(end.is_none()),
            Poll::Pending => None,
        };
        if let Some(is_complete) = is_complete {
            self.within = Within::Over(is_complete);
            core.body_over(self.side, is_complete);
            return (polled, Rest::Over(is_complete));
        }
        let body = self.within.take_new().expect("it is there");
        let owner = cell::share(&self.exchange, None);
        let rest = match polled {
            Poll::Ready(frame) => cell::hand_over(&owner, body, frame, Awaited::Poll),
            Poll::Pending => cell::wait(&owner, body, Awaited::Poll, false, cx),
        };
        self.within = Within::Shared(owner);
        rest
    }
}

impl<B: Body, M: Side> TimedBody<B, M> {
    /// The exchange to which the body belongs.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    fn new(
        within: Within<B>,
        left: SizeHint,
        side: BodySide,
        exchange: Exchange,
        control: Option<StreamControl<M>>,
    ) -> Self {
        let is_over = matches!(within, Within::Over(_));
        Self {
            within,
            left,
            side,
            has_pieces: false,
            exchange,
            is_known_to_end: AtomicBool::new(is_over),
            control,
        }
    }

    fn link(&self) -> Option<Link<'_, M>> {
        Some(Link { exchange: &self.exchange, control: self.control.as_ref()? })
    }

    /// The limits for a wait of the consumer hold the idle times back, and without one they count.
    fn counts_as_idle(&self) -> bool {
        self.side == BodySide::Request && !self.exchange.core.limits(self.side).has(Awaited::Frame)
    }

    /// The connection knows from now on that the body is over.
    fn tell_over(&mut self, is_complete: bool) {
        let Some(control) = self.control.take() else { return };
        let link = Link { exchange: &self.exchange, control: &control };
        match self.side {
            BodySide::Request => {
                link.request_over(is_complete, self.counts_as_idle());
            }
            BodySide::Response => link.response_over(is_complete),
        }
    }

    /// A poll has returned, and the body goes on.
    fn tell(&self, is_pending: bool) {
        if self.counts_as_idle() {
            if let Some(link) = self.link() {
                if is_pending { link.body_waits() } else { link.body_came() }
            }
        }
    }
}

impl<B: Body, M: Side> Unpin for TimedBody<B, M> {}

impl<B, M> Body for TimedBody<B, M>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    M: Side,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.get_mut();
        let (polled, rest) = match &this.within {
            Within::New(_) => this.poll_new(cx),
            Within::Shared(owner) => cell::poll(owner, cx),
            &Within::Over(is_complete) => {
                this.tell_over(is_complete);
                return Poll::Ready(None);
            }
        };
        match rest {
            Rest::Same => {}
            Rest::Left(left) => this.left = left,
            Rest::Over(is_complete) => {
                this.within = Within::Over(is_complete);
                this.left = SizeHint::with_exact(0);
                // hyper keeps the last frame of an HTTP/2 response until the client has a window.
                if !(this.has_pieces && matches!(polled, Poll::Ready(Some(Ok(_))))) {
                    this.tell_over(is_complete);
                }
                return polled;
            }
        }
        this.tell(polled.is_pending());
        polled
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = matches!(self.within, Within::Over(_));
        if has_ended {
            // Relaxed: the drop follows, in the same task or after it.
            self.is_known_to_end.store(true, Ordering::Relaxed);
        }
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        // It is not `Copy` in the first versions of `http-body` 1.
        SizeHint::clone(&self.left)
    }
}

impl<B: Body, M: Side> Drop for TimedBody<B, M> {
    fn drop(&mut self) {
        let is_complete = match &self.within {
            Within::New(_) => {
                drop(self.within.take_new());
                self.exchange.core.body_over(self.side, false);
                false
            }
            Within::Shared(owner) => owner.cell().over(owner.core(), false),
            // Relaxed: see `is_end_stream`.
            Within::Over(is_complete) => {
                *is_complete && self.is_known_to_end.load(Ordering::Relaxed)
            }
        };
        self.tell_over(is_complete);
    }
}

debug_fields!([B: Body + fmt::Debug, M: Side] TimedBody<B, M>, |it| exchange: it.exchange);

/// The body of a response of a [`TimedHttp`](super::TimedHttp): a [`TimedBody`] whose data is
/// [`BodyData`].
///
/// With a limit for its consumer, it says that it has ended only when the consumer has asked for
/// more than the last frame: hyper asks for the frames of an HTTP/2 stream before the client has a
/// window for them.
pub struct ResponseBody<B, M = Handle>(TimedBody<B, M>)
where
    B: Body,
    M: Side;

impl<B, M> ResponseBody<B, M>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    M: Side,
{
    pub(super) fn new(
        body: B,
        exchange: Exchange,
        control: StreamControl<M>,
        has_pieces: bool,
    ) -> Self {
        Self(TimedBody::of_response(body, exchange, control, has_pieces))
    }
}

impl<B: Body, M: Side> ResponseBody<B, M> {
    /// The exchange to which the body belongs.
    pub fn exchange(&self) -> &Exchange {
        &self.0.exchange
    }
}

impl<B, M> Body for ResponseBody<B, M>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    M: Side,
{
    type Data = BodyData<B::Data, M>;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        let polled = Pin::new(&mut self.0).poll_frame(cx);
        polled.map_ok(|frame| {
            frame.map_data(|data| {
                let bytes = data.remaining();
                let link = if self.0.has_pieces && bytes > 0 { self.0.link() } else { None };
                BodyData::new(data, link.map(|link| Piece::new(link, bytes)))
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

debug_fields!([B: Body + fmt::Debug, M: Side] ResponseBody<B, M>, |it| exchange: it.0.exchange);

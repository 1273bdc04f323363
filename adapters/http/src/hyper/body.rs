//! The body of a request or of a response, which tells its connection how far it is.
//!
//! Why not a guard in the handler: a handler ends before the body of its response does, and cannot
//! say that the head is complete before hyper reads on. It does not see either whether it waits for
//! the body of the request or for something else.
//!
//! The data of an HTTP/2 response carries a guard, which says when the server has written it.
//!
//! Invariants: the connection is told once that a body is over.
//!
//! Cost: see [`TimedHttp`](super::TimedHttp).

use std::fmt;
use std::io::IoSlice;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use corewheel::Handle;
use corewheel::conn::Side;
use corewheel::stream::StreamControl;
use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};

use super::cell::{Cell, Limited, Polled, poll_body};
use super::exchange::{BodySide, Connection, Core, Exchange, Flag, Hold, Kind};
use super::limits::Awaited;
use crate::BoxError;

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
pub struct TimedBody<B: Body, M: Side = Handle> {
    body: Within<B>,
    exchange: Exchange,
    /// `None` when the connection knows that the body is over.
    control: Option<StreamControl<M>>,
    side: BodySide,
    /// Whether the data is handed over as pieces.
    has_pieces: bool,
    /// Whether the consumer knows that the body has ended. A response that is dropped before is
    /// broken off.
    is_known_to_end: Flag,
}

/// Where the body within is.
enum Within<B: Body> {
    /// Here, before its first poll: that of an HTTP/1 response, which hyper polls at once. The
    /// mutex makes it `Sync`.
    New(Mutex<B>),
    Shared(Arc<Cell<B>>),
    /// It has ended. The consumer has all of it, or an error.
    Over {
        is_complete: bool,
    },
}

#[allow(private_bounds, reason = "its functions are internal")]
impl<B: Limited, M: Side> TimedBody<B, M> {
    /// Begins a request of a kind, with its exchange, after its head.
    #[inline]
    pub(super) fn of_request(
        kind: Kind,
        body: B,
        connection: &Arc<Connection>,
        control: &StreamControl<M>,
    ) -> Self {
        connection.begin(control);
        let side = BodySide::Request;
        control.hold_request();
        let exchange = Exchange { core: Arc::new(Core::new(connection, kind, Hold::Held)) };
        exchange.core.begin(control);
        if !kind.has_body {
            return Self::new(Within::Over { is_complete: true }, side, exchange, None, false);
        }
        let left = body.size_hint();
        let body = Within::Shared(Cell::share(&exchange.core, side, Some(body), left));
        Self::new(body, side, exchange, Some(control.clone()), false)
    }

    /// Polls the body for the first time. One that is not over then is shared with its exchange,
    /// which may have ended meanwhile.
    fn poll_new(&mut self, cx: &mut Context<'_>) -> Polled<B::Data> {
        let Within::New(body) = &mut self.body else { return (Poll::Ready(None), Some(false)) };
        let (body, core) =
            (body.get_mut().unwrap_or_else(PoisonError::into_inner), &self.exchange.core);
        let polled = if core.has_ended() {
            Poll::Ready(Some(Err(core.error_of(self.side).into())))
        } else {
            poll_body(body, cx)
        };
        let is_complete = match &polled {
            Poll::Ready(Some(Ok(_))) => body.is_end_stream().then_some(true),
            Poll::Ready(end) => Some(end.is_none()),
            Poll::Pending => None,
        };
        if let Some(is_complete) = is_complete {
            self.body = Within::Over { is_complete };
            core.body_over(self.side, is_complete);
            return (polled, Some(is_complete));
        }
        let cell = Cell::share(core, self.side, None, body.size_hint());
        let Within::New(body) = mem::replace(&mut self.body, Within::Shared(Arc::clone(&cell)))
        else {
            unreachable!("it was there");
        };
        let body = body.into_inner().unwrap_or_else(PoisonError::into_inner);
        match polled {
            Poll::Ready(frame) => cell.hand_over(body, frame, Awaited::Poll),
            Poll::Pending => cell.wait(body, Awaited::Poll, false, cx),
        }
    }
}

impl<B: Body, M: Side> TimedBody<B, M> {
    /// The exchange to which the body belongs.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    #[inline]
    fn new(
        body: Within<B>,
        side: BodySide,
        exchange: Exchange,
        control: Option<StreamControl<M>>,
        has_pieces: bool,
    ) -> Self {
        let is_known_to_end = Flag::default();
        is_known_to_end.set(matches!(body, Within::Over { is_complete: true }));
        Self { body, exchange, control, side, has_pieces, is_known_to_end }
    }

    /// The limits for a wait of the consumer hold the idle times back, and without one they count.
    fn counts_as_idle(&self) -> bool {
        self.side == BodySide::Request && !self.exchange.core.limits(self.side).has(Awaited::Frame)
    }

    /// The connection knows from now on that the body is over.
    fn tell_over(&mut self, is_complete: bool) {
        let Some(control) = self.control.take() else { return };
        let core = &self.exchange.core;
        match self.side {
            BodySide::Request => core.request_over(&control, is_complete),
            BodySide::Response => core.response_over(&control, is_complete),
        }
    }

    /// A poll has returned, and the body goes on.
    fn tell(&self, is_pending: bool) {
        if let Some(control) = self.control.as_ref().filter(|_| self.counts_as_idle()) {
            let core = &self.exchange.core;
            if is_pending { core.body_waits(control) } else { core.body_came(control) }
        }
    }
}

impl<B: Body, M: Side> Unpin for TimedBody<B, M> {}

impl<B: Limited, M: Side> Body for TimedBody<B, M> {
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let this = self.get_mut();
        let (polled, over) = match &this.body {
            Within::New(_) => this.poll_new(cx),
            Within::Shared(cell) => cell.poll(cx),
            Within::Over { is_complete } => {
                this.tell_over(*is_complete);
                return Poll::Ready(None);
            }
        };
        match over {
            None => this.tell(polled.is_pending()),
            Some(is_complete) => {
                this.body = Within::Over { is_complete };
                // hyper keeps the last frame of an HTTP/2 response until the client has a window.
                if !(this.has_pieces && matches!(polled, Poll::Ready(Some(Ok(_))))) {
                    this.tell_over(is_complete);
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = matches!(self.body, Within::Over { .. });
        if has_ended {
            // The drop follows, in the same task or after it.
            self.is_known_to_end.set(true);
        }
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Within::New(body) => body.lock().unwrap_or_else(PoisonError::into_inner).size_hint(),
            Within::Shared(cell) => cell.left(),
            Within::Over { .. } => SizeHint::with_exact(0),
        }
    }
}

impl<B: Body, M: Side> Drop for TimedBody<B, M> {
    fn drop(&mut self) {
        let is_complete = match mem::replace(&mut self.body, Within::Over { is_complete: false }) {
            Within::New(body) => {
                drop(body);
                self.exchange.core.body_over(self.side, false);
                false
            }
            Within::Shared(cell) => cell.over(false),
            Within::Over { is_complete } => is_complete && self.is_known_to_end.get(),
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
pub struct ResponseBody<B: Body, M: Side = Handle> {
    body: TimedBody<B, M>,
}

#[allow(private_bounds, reason = "as above")]
impl<B: Limited, M: Side> ResponseBody<B, M> {
    pub(super) fn new(
        body: B,
        exchange: Exchange,
        control: StreamControl<M>,
        has_pieces: bool,
    ) -> Self {
        let exchange = exchange.of_response();
        let (core, side) = (&exchange.core, BodySide::Response);
        let body = if body.is_end_stream() {
            core.body_over(side, true);
            Within::Over { is_complete: true }
        } else if core.response_is_alone() {
            Within::New(Mutex::new(body))
        } else {
            let left = body.size_hint();
            Within::Shared(Cell::share(core, side, Some(body), left))
        };
        Self { body: TimedBody::new(body, side, exchange, Some(control), has_pieces) }
    }
}

impl<B: Body, M: Side> Unpin for ResponseBody<B, M> {}

impl<B: Limited, M: Side> Body for ResponseBody<B, M> {
    type Data = BodyData<B::Data, M>;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        polled.map_ok(|frame| {
            frame.map_data(|data| {
                let (TimedBody { exchange, control, has_pieces, .. }, left) =
                    (&self.body, data.remaining());
                let control = control.as_ref().filter(|_| *has_pieces && left > 0);
                let piece = control.map(|control| {
                    exchange.core.begin_piece(control);
                    Box::new(Piece { exchange: exchange.clone(), control: control.clone(), left })
                });
                BodyData { data, piece }
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

debug_fields!([B: Body + fmt::Debug, M: Side] ResponseBody<B, M>, |it| exchange: it.body.exchange);

/// A part of a response that hyper has and has not written.
struct Piece<M: Side> {
    exchange: Exchange,
    control: StreamControl<M>,
    /// How many bytes were not taken.
    left: usize,
}

impl<M: Side> Drop for Piece<M> {
    fn drop(&mut self) {
        self.exchange.core.piece_over(&self.control, self.left == 0);
    }
}

/// Data of a [`ResponseBody`]. That of HTTP/2 says when the server has written
/// or copied it: until then, its response is on its way. A layer that copies the data drops
/// it, and ends that early.
///
/// ```
/// use corewheel_http::hyper::{BodyData, ResponseBody};
/// use http_body_util::{BodyExt, Full};
/// use hyper::body::{Body, Buf, Bytes};
///
/// /// Counts the bytes of a response, and leaves them to hyper.
/// fn counted(
///     body: ResponseBody<Full<Bytes>>,
///     count: impl Fn(usize),
/// ) -> impl Body<Data = BodyData<Bytes>> {
///     body.map_frame(move |frame| {
///         frame.map_data(|data| {
///             count(data.remaining());
///             data
///         })
///     })
/// }
/// ```
pub struct BodyData<D, M: Side = Handle> {
    data: D,
    /// `None` if all is written, if a flush says that, or if no limit bounds the write. In a box,
    /// as hyper moves the data of a response often, and only HTTP/2 has pieces.
    piece: Option<Box<Piece<M>>>,
}

impl<D: Buf, M: Side> BodyData<D, M> {
    /// So many bytes were taken of the data.
    fn was_taken(&mut self, count: usize) {
        if let Some(piece) = self.piece.as_deref_mut() {
            piece.left = piece.left.saturating_sub(count);
            piece.control.take_piece(count);
            if piece.left == 0 {
                // Here, and not where hyper drops it: that is after its flush.
                self.piece = None;
            }
        }
    }
}

impl<D: Buf, M: Side> Buf for BodyData<D, M> {
    #[inline]
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    #[inline]
    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(slices)
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.data.advance(count);
        self.was_taken(count);
    }

    #[inline]
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        let copied = self.data.copy_to_bytes(count);
        self.was_taken(count);
        copied
    }
}

debug_fields!([D: fmt::Debug, M: Side] BodyData<D, M>, |it| data: it.data);

//! The body of a request or of a response, which tells its connection how far it is.
//!
//! Why not a guard in the handler: a handler ends before the body of its response does, and cannot
//! say that the head is complete before hyper reads on. It does not see either whether it waits for
//! the body of the request or for something else.
//!
//! Invariants: the connection is told once that a body is over.
//!
//! Cost: see [`TimedHttp`](super::TimedHttp).

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use hyper::Request;
use hyper::body::{Body, Buf, Frame, SizeHint};

use super::cell::{self, BoxError, Cell, OfResponse, Owner};
use super::data::{BodyData, Piece};
use super::exchange::{BodySide, Connection, Core, Exchange, Link, Member, NoBody};
use super::limits::Awaited;
use crate::conn::Side;
use crate::face::handle::Handle;
use crate::stream::StreamControl;

/// The body of a request or of a response of a [`TimedHttp`](super::TimedHttp), whose waits have
/// limits.
///
/// It has the frames of the body `B`, until a limit is reached or its exchange ends. Then the body
/// within is dropped at once, whether a task polls this one or not, and the next poll returns an
/// error, once. Its data is [`BodyData`].
///
/// With a limit for its consumer, the body of a response says that it has ended only when the
/// consumer has asked for more than the last frame: hyper asks for the frames of an HTTP/2 stream
/// before the client has a window for them.
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
    body: Inner<B>,
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

enum Inner<B: Body> {
    /// It had ended before.
    Ended(B),
    Goes(Arc<dyn Owner<B>>),
    /// The consumer has the end, or an error. Whether it has all of the body.
    Over(bool),
}

impl<B, M> TimedBody<B, M>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    M: Side,
{
    /// Begins a request, with its exchange.
    pub(super) fn of_request(
        request: Request<B>,
        connection: &Arc<Connection>,
        control: &StreamControl<M>,
    ) -> (Request<Self>, Exchange) {
        connection.spawner();
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let connection = Arc::clone(connection);
        let has_body = !body.is_end_stream();
        let (body, exchange, needs_alarm) = if has_body {
            let has_limit = connection.limits[0].has(Awaited::Poll);
            let since = has_limit.then(|| connection.now());
            let cell = Cell::new(BodySide::Request, body, since);
            let core = Arc::new(Core::new(connection, &head, true, cell));
            let exchange = Exchange { core: Arc::<Core<Cell<B>>>::clone(&core) };
            (Inner::Goes(core), exchange, has_limit)
        } else {
            let core = Arc::new(Core::new(connection, &head, false, NoBody));
            (Inner::Ended(body), Exchange { core }, false)
        };
        Link { exchange: &exchange, control }.begin(has_body);
        if let Inner::Goes(owner) = &body
            && needs_alarm
        {
            cell::arm(owner);
        }
        let (side, control) = (BodySide::Request, has_body.then(|| control.clone()));
        let body = Self::of_parts(body, side, false, exchange.clone(), control);
        (head.map(|()| body), exchange)
    }

    /// The body of a response.
    pub(super) fn of_response(
        body: B,
        exchange: Exchange,
        control: StreamControl<M>,
        has_pieces: bool,
    ) -> Self {
        let exchange = exchange.of_response();
        let (side, control) = (BodySide::Response, Some(control));
        if body.is_end_stream() {
            exchange.core.body_over(side, true);
            return Self::of_parts(Inner::Ended(body), side, has_pieces, exchange, control);
        }
        let connection = &exchange.core.connection;
        let has_limit = connection.limits[1].has(Awaited::Poll);
        let since = has_limit.then(|| connection.now());
        let cell = Cell::new(side, body, since);
        let owner = Arc::new(OfResponse { exchange: exchange.clone(), cell });
        let weak: Weak<OfResponse<B>> = Arc::downgrade(&owner);
        let goes_on = exchange.core.add_response(weak);
        let owner: Arc<dyn Owner<B>> = owner;
        if !goes_on {
            owner.cell().cut();
        } else if has_limit {
            cell::arm(&owner);
        }
        Self::of_parts(Inner::Goes(owner), side, has_pieces, exchange, control)
    }
}

impl<B: Body, M: Side> TimedBody<B, M> {
    /// The exchange to which the body belongs.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    fn of_parts(
        body: Inner<B>,
        side: BodySide,
        has_pieces: bool,
        exchange: Exchange,
        control: Option<StreamControl<M>>,
    ) -> Self {
        let is_known_to_end = AtomicBool::new(false);
        Self { body, side, has_pieces, exchange, is_known_to_end, control }
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
            BodySide::Request => link.request_over(self.counts_as_idle()),
            BodySide::Response => link.response_over(is_complete),
        }
    }

    /// A poll has returned, and the body goes on.
    fn tell(&self, is_pending: bool) {
        if self.counts_as_idle()
            && let Some(link) = self.link()
        {
            if is_pending { link.body_waits() } else { link.body_came() }
        }
    }

    fn data(&self, data: B::Data) -> BodyData<B::Data, M> {
        let link = if self.has_pieces && data.has_remaining() { self.link() } else { None };
        BodyData::new(data, link.map(Piece::new))
    }
}

impl<B: Body, M: Side> Unpin for TimedBody<B, M> {}

impl<B, M> Body for TimedBody<B, M>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + Unpin + 'static,
    M: Side,
{
    type Data = BodyData<B::Data, M>;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, BoxError>>> {
        let this = self.get_mut();
        let (polled, over) = match &mut this.body {
            Inner::Ended(body) => {
                let polled = Pin::new(body).poll_frame(cx);
                let over = matches!(polled, Poll::Ready(None)).then_some(true);
                (polled.map(|frame| frame.map(|frame| frame.map_err(Into::into))), over)
            }
            Inner::Goes(owner) => {
                let (polled, over) = cell::poll(owner, cx);
                if let Some(is_complete) = over {
                    this.body = Inner::Over(is_complete);
                }
                (polled, over)
            }
            Inner::Over(is_complete) => {
                let is_complete = *is_complete;
                this.tell_over(is_complete);
                return Poll::Ready(None);
            }
        };
        let polled = polled.map_ok(|frame| frame.map_data(|data| this.data(data)));
        // hyper keeps the last frame of an HTTP/2 response until the client has a window for it.
        let is_kept = this.has_pieces && matches!(polled, Poll::Ready(Some(Ok(_))));
        match over {
            Some(_) if is_kept => {}
            Some(is_complete) => this.tell_over(is_complete),
            None => this.tell(polled.is_pending()),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = matches!(self.body, Inner::Ended(_) | Inner::Over(_));
        if has_ended {
            // Relaxed: the drop follows, in the same task or after it.
            self.is_known_to_end.store(true, Ordering::Relaxed);
        }
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Inner::Ended(body) => body.size_hint(),
            Inner::Goes(owner) => cell::size_hint(owner),
            Inner::Over(_) => SizeHint::with_exact(0),
        }
    }
}

impl<B: Body, M: Side> Drop for TimedBody<B, M> {
    fn drop(&mut self) {
        let is_complete = match &self.body {
            Inner::Ended(_) => true,
            Inner::Goes(owner) => owner.cell().over(owner.core(), false),
            Inner::Over(is_complete) => *is_complete && *self.is_known_to_end.get_mut(),
        };
        self.tell_over(is_complete);
    }
}

debug_fields!([B: Body + fmt::Debug, M: Side] TimedBody<B, M>, |it| exchange: it.exchange);

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
use hyper::header::TRANSFER_ENCODING;

use super::cell::{self, BoxError, Cell, OfResponse, Owner, Rest};
use super::data::{BodyData, Piece};
use super::exchange::{BodySide, Connection, Core, Exchange, Kind, Link, Member, NoBody, Progress};
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
    /// `None` when the consumer has the end, or an error.
    owner: Option<Arc<dyn Owner<B>>>,
    left: SizeHint,
    /// Whether the consumer has all of a body that is over.
    is_complete: bool,
    side: BodySide,
    /// Whether the data is handed over as pieces.
    has_pieces: bool,
    /// Whether it is the body of a request in chunks.
    is_chunked: bool,
    exchange: Exchange,
    /// Whether the consumer knows that the body has ended. A response that is dropped before is
    /// broken off.
    is_known_to_end: AtomicBool,
    /// `None` when the connection knows that the body is over.
    control: Option<StreamControl<M>>,
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
        let kind = Kind::of(&request);
        let (head, body) = request.into_parts();
        let is_chunked = head.headers.contains_key(TRANSFER_ENCODING);
        let (side, left, has_body) = (BodySide::Request, body.size_hint(), !body.is_end_stream());
        let since = has_body.then(|| connection.begin_wait(side, Awaited::Poll)).flatten();
        let (owner, exchange) = if has_body {
            let core = Core::new(connection, kind, Progress::Goes, Cell::new(side, body, since));
            let core = Arc::new(core);
            let owner = Arc::<Core<Cell<B>>>::clone(&core) as Arc<dyn Owner<B>>;
            (Some(owner), Exchange { core })
        } else {
            let core = Core::new(connection, kind, Progress::None, NoBody);
            (None, Exchange { core: Arc::new(core) })
        };
        Link { exchange: &exchange, control }.begin(has_body);
        if let Some(owner) = owner.as_ref().filter(|_| since.is_some()) {
            cell::arm(owner);
        }
        let control = has_body.then(|| control.clone());
        let mut body = Self::of_parts(owner, left, side, false, exchange.clone(), control);
        body.is_chunked = is_chunked;
        (Request::from_parts(head, body), exchange)
    }

    /// The body of a response.
    pub(super) fn of_response(
        body: B,
        exchange: Exchange,
        control: StreamControl<M>,
        has_pieces: bool,
    ) -> Self {
        let (exchange, left) = (exchange.of_response(), body.size_hint());
        let (core, side) = (&exchange.core, BodySide::Response);
        let owner = if body.is_end_stream() {
            core.body_over(side, true);
            None
        } else {
            let since = core.connection.begin_wait(side, Awaited::Poll);
            let cell = Cell::new(side, body, since);
            let owner = Arc::new(OfResponse { exchange: exchange.clone(), cell });
            let weak: Weak<OfResponse<B>> = Arc::downgrade(&owner);
            let goes_on = core.add_response(weak);
            let owner: Arc<dyn Owner<B>> = owner;
            if !goes_on {
                owner.cell().cut();
            } else if since.is_some() {
                cell::arm(&owner);
            }
            Some(owner)
        };
        Self::of_parts(owner, left, side, has_pieces, exchange, Some(control))
    }
}

impl<B: Body, M: Side> TimedBody<B, M> {
    /// The exchange to which the body belongs.
    pub fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    fn of_parts(
        owner: Option<Arc<dyn Owner<B>>>,
        left: SizeHint,
        side: BodySide,
        has_pieces: bool,
        exchange: Exchange,
        control: Option<StreamControl<M>>,
    ) -> Self {
        let (is_complete, is_chunked) = (owner.is_none(), false);
        let is_known_to_end = AtomicBool::new(is_complete);
        Self {
            owner,
            left,
            is_complete,
            side,
            has_pieces,
            is_chunked,
            exchange,
            is_known_to_end,
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
                link.request_over(is_complete && self.is_chunked, self.counts_as_idle());
            }
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
        let Some(owner) = &this.owner else {
            this.tell_over(this.is_complete);
            return Poll::Ready(None);
        };
        let (polled, rest) = cell::poll(owner, cx);
        let polled = polled.map_ok(|frame| frame.map_data(|data| this.data(data)));
        match rest {
            Rest::Same => {}
            Rest::Left(left) => this.left = left,
            Rest::Over(is_complete) => {
                (this.owner, this.left) = (None, SizeHint::with_exact(0));
                this.is_complete = is_complete;
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
        let has_ended = self.owner.is_none();
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
        let is_complete = match &self.owner {
            Some(owner) => owner.cell().over(owner.core(), false),
            None => self.is_complete && *self.is_known_to_end.get_mut(),
        };
        self.tell_over(is_complete);
    }
}

debug_fields!([B: Body + fmt::Debug, M: Side] TimedBody<B, M>, |it| exchange: it.exchange);

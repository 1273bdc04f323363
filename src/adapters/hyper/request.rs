//! A request on its way through a service, and the two bodies that say how far it is.
//!
//! Why not a guard in the handler: a handler ends before the body of its response does, and cannot
//! say that the head is complete before hyper reads on. It does not see either whether it waits for
//! the body of the request or for something else.
//!
//! The response ends at the wire, and not where hyper takes it. hyper flushes an HTTP/1 response in
//! the poll in which it takes the last of it, so that flush is the end. Of an HTTP/2 response it
//! takes a whole frame once the client has a window for one byte. So that data carries a guard, a
//! [`Piece`], which ends when hyper has written or copied the data, or drops it.
//!
//! Invariants: the idle times of the connection are held back while the server works, except while
//! a read of the request's body waits for the peer. The server works from the call of the service
//! until the response has ended. The next message begins when both bodies have ended. A response
//! whose writes no limit bounds ends where hyper takes it: then idle times alone bound the client.
//!
//! Cost: see [`TimedService`](super::TimedService).

use std::fmt;
use std::io::IoSlice;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

#[cfg(feature = "axum")]
use hyper::body::Bytes;
use hyper::body::{Body, Buf, Frame, SizeHint};
use hyper::{Method, Request, Response, StatusCode, Version};
use pin_project_lite::pin_project;

use crate::conn::{InProgress, Side};
use crate::face::handle::Handle;
use crate::stream::StreamControl;

/// Whether a request holds back the idle times of its connection.
enum Hold<G> {
    /// The server works.
    Held(G),
    /// A read of the request's body waits for the peer.
    Waits,
    /// The response has ended.
    Ended,
}

/// A request of a connection, until both its bodies have ended.
pub(super) struct InFlight<M: Side> {
    control: StreamControl<M>,
    /// A wait for the body of the request has a limit of its own.
    has_body_limits: bool,
    /// Of an HTTP/2 connection, no byte is known to belong to a certain request.
    is_http1: bool,
    is_connect: bool,
    state: Mutex<State<InProgress<M>>>,
}

struct State<G> {
    hold: Hold<G>,
    /// After the response, the connection belongs to another protocol.
    is_tunnel: bool,
    /// No more is taken of the body of the response.
    is_body_over: bool,
    /// How much data of the response hyper has, in pieces.
    pieces: u32,
}

impl<M: Side> InFlight<M> {
    /// The head of a request has come.
    pub(super) fn new<B: Body>(
        request: &Request<B>,
        control: &StreamControl<M>,
        has_body_limits: bool,
    ) -> Arc<Self> {
        let is_http1 = request.version() < Version::HTTP_2;
        // No later than here: hyper reads on before it polls the future of the response, and such a
        // read would arm the deadline of the head.
        if is_http1 && !request.body().is_end_stream() {
            control.head_complete();
        } else {
            control.message_complete();
        }
        let hold = Hold::Held(control.begin_request());
        Arc::new(Self {
            control: control.clone(),
            has_body_limits,
            is_http1,
            is_connect: request.method() == Method::CONNECT,
            state: Mutex::new(State { hold, is_tunnel: false, is_body_over: false, pieces: 0 }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State<InProgress<M>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the hold, unless the response has ended. The guard that is returned is to be
    /// dropped without the lock, as its drop may wake a task.
    fn set_hold(&self, hold: Hold<InProgress<M>>) -> Hold<InProgress<M>> {
        let mut state = self.lock();
        match state.hold {
            Hold::Ended => hold,
            _ => mem::replace(&mut state.hold, hold),
        }
    }

    /// A read of the request's body begins to wait, or waits on.
    fn body_waits(&self) {
        if !self.has_body_limits {
            drop(self.set_hold(Hold::Waits));
        }
    }

    /// A read of the request's body waits no longer.
    fn body_came(&self) {
        if matches!(self.lock().hold, Hold::Waits) {
            drop(self.set_hold(Hold::Held(self.control.begin_request())));
        }
    }

    /// No more is read of the request's body.
    fn body_ended(&self) {
        if self.is_http1 {
            self.control.message_complete();
        }
        self.body_came();
    }

    /// The head of the response is there.
    pub(super) fn respond<B>(&self, response: &Response<B>) {
        let status = response.status();
        let is_tunnel =
            status == StatusCode::SWITCHING_PROTOCOLS || (self.is_connect && status.is_success());
        if is_tunnel {
            self.lock().is_tunnel = true;
        }
    }

    /// No more is taken of the response: all of it was, or it is broken off.
    fn response_over(&self, is_complete: bool) {
        let mut state = self.lock();
        state.is_body_over = true;
        if !is_complete || state.pieces == 0 {
            self.end(state, self.is_http1);
        }
    }

    /// hyper has written or copied data of the response, and flushes in the same poll, or has
    /// dropped the data.
    fn piece_over(&self, is_flushed: bool) {
        let mut state = self.lock();
        state.pieces -= 1;
        if state.is_body_over && state.pieces == 0 {
            self.end(state, is_flushed);
        }
    }

    /// hyper has all of the response, and keeps no piece of it.
    fn end(&self, mut state: MutexGuard<'_, State<InProgress<M>>>, at_flush: bool) {
        let hold = mem::replace(&mut state.hold, Hold::Ended);
        drop(state);
        if let Hold::Held(request) = hold
            && self.control.bounds_writes()
        {
            self.control.end_request(request, at_flush);
        }
    }
}

debug_fields!([M: Side] InFlight<M>, |it| control: it.control);

impl<M: Side> Drop for InFlight<M> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        match (self.is_http1, state.is_tunnel) {
            (true, false) => self.control.begin_message(),
            (true, true) => self.control.message_complete(),
            (false, _) => {}
        }
    }
}

/// The part of a request that ends with its response, or with the future of the response if there
/// is none.
#[derive(Debug)]
pub struct ResponsePart<M: Side> {
    in_flight: Arc<InFlight<M>>,
    /// Whether the data of the response is handed over as pieces.
    has_pieces: bool,
    /// Whether the consumer knows that the response has ended. A response that is dropped before
    /// is broken off.
    is_complete: AtomicBool,
}

impl<M: Side> ResponsePart<M> {
    pub(super) fn new(in_flight: Arc<InFlight<M>>) -> Self {
        Self { in_flight, has_pieces: false, is_complete: AtomicBool::new(false) }
    }

    /// The head of the response is there.
    pub(super) fn respond<B>(&mut self, response: &Response<B>) {
        self.in_flight.respond(response);
        self.has_pieces = !self.in_flight.is_http1 && self.in_flight.control.bounds_writes();
    }
}

impl<M: Side> Drop for ResponsePart<M> {
    fn drop(&mut self) {
        // On HTTP/1, all that hyper has taken goes to the stream before anything else.
        let is_complete = self.in_flight.is_http1 || *self.is_complete.get_mut();
        self.in_flight.response_over(is_complete);
    }
}

/// A part of a response that hyper has and has not written.
struct Piece<M: Side> {
    in_flight: Arc<InFlight<M>>,
    /// Whether hyper has written or copied all of it.
    is_written: bool,
}

impl<M: Side> Piece<M> {
    fn new(in_flight: &Arc<InFlight<M>>) -> Self {
        in_flight.lock().pieces += 1;
        in_flight.control.add_piece();
        Self { in_flight: Arc::clone(in_flight), is_written: false }
    }
}

impl<M: Side> Drop for Piece<M> {
    fn drop(&mut self) {
        self.in_flight.piece_over(self.is_written);
        self.in_flight.control.remove_piece(!self.is_written);
    }
}

/// Data of a [`ResponseBody`]. Of HTTP/2, it says when the server has written or copied it: until
/// then, its response is on its way. A layer that copies the data drops it, and ends that early.
///
/// ```
/// use corewheel::adapters::hyper::{ResponseBody, ResponseData};
/// use http_body_util::{BodyExt, Full};
/// use hyper::body::{Body, Buf, Bytes};
///
/// /// Counts the bytes of a response, and leaves them to hyper.
/// fn counted(
///     body: ResponseBody<Full<Bytes>>,
///     count: impl Fn(usize),
/// ) -> impl Body<Data = ResponseData<Bytes>> {
///     body.map_frame(move |frame| {
///         frame.map_data(|data| {
///             count(data.remaining());
///             data
///         })
///     })
/// }
/// ```
pub struct ResponseData<D, M = Handle>
where
    M: Side,
{
    data: D,
    /// `None` if all is written, if a flush says that, or if no limit bounds the write.
    piece: Option<Piece<M>>,
}

impl<D, M: Side> ResponseData<D, M> {
    /// The data within.
    pub fn get_ref(&self) -> &D {
        &self.data
    }

    /// The data, if nothing needs to know when it is written.
    #[cfg(feature = "axum")]
    pub(in crate::adapters) fn into_plain(self) -> Result<D, Self> {
        if self.piece.is_none() { Ok(self.data) } else { Err(self) }
    }

    /// The data says nothing before it is dropped.
    #[cfg(feature = "axum")]
    pub(in crate::adapters) fn set_opaque(&self) {
        if let Some(piece) = &self.piece {
            piece.in_flight.control.set_opaque_pieces();
        }
    }
}

#[cfg(feature = "axum")]
impl<M: Side> ResponseData<Bytes, M> {
    /// At most so many bytes, and the rest as data of its own, if there is one.
    pub(in crate::adapters) fn split(mut self, most: usize) -> (Self, Option<Self>) {
        if self.data.len() <= most {
            return (self, None);
        }
        let data = self.data.split_to(most);
        let piece = self.piece.as_ref().map(|piece| Piece::new(&piece.in_flight));
        (Self { data, piece }, Some(self))
    }
}

impl<D: Buf, M: Side> Buf for ResponseData<D, M> {
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
        if let Some(piece) = &mut self.piece {
            piece.in_flight.control.take_of_piece(count);
            if !self.data.has_remaining() {
                // Here, and not where hyper drops it: that is after its flush.
                piece.is_written = true;
                self.piece = None;
            }
        }
    }
}

debug_fields!([D: fmt::Debug, M: Side] ResponseData<D, M>, |it| data: it.data);

/// The part of a request that ends with its body.
#[derive(Debug)]
pub struct RequestPart<M: Side>(pub(super) Arc<InFlight<M>>);

impl<M: Side> Drop for RequestPart<M> {
    fn drop(&mut self) {
        self.0.body_ended();
    }
}

/// The part of a request that belongs to a body, and ends with it.
pub trait Part {
    /// What data of the body becomes.
    type Data<D: Buf>: Buf;

    /// Hands over data of a body, whose part is `None` if it has ended.
    fn hand_over<D: Buf>(part: Option<&Self>, data: D) -> Self::Data<D>;
    /// The consumer knows that the body has ended.
    fn is_known_to_end(&self);
    /// A poll of the body waits.
    fn waits(&self);
    /// A poll of the body has returned a frame that is not the last.
    fn came(&self);
    /// Whether the part ends with the last frame, and not with the end that follows it.
    fn ends_with_last_frame(&self) -> bool;
}

impl<M: Side> Part for RequestPart<M> {
    type Data<D: Buf> = D;

    fn hand_over<D: Buf>(_: Option<&Self>, data: D) -> D {
        data
    }

    fn is_known_to_end(&self) {}

    fn waits(&self) {
        self.0.body_waits();
    }

    fn came(&self) {
        self.0.body_came();
    }

    fn ends_with_last_frame(&self) -> bool {
        true
    }
}

impl<M: Side> Part for ResponsePart<M> {
    type Data<D: Buf> = ResponseData<D, M>;

    fn hand_over<D: Buf>(part: Option<&Self>, data: D) -> ResponseData<D, M> {
        let part = part.filter(|part| part.has_pieces && data.has_remaining());
        ResponseData { data, piece: part.map(|part| Piece::new(&part.in_flight)) }
    }

    fn is_known_to_end(&self) {
        // Relaxed: the drop follows, in the same task or after it.
        self.is_complete.store(true, Ordering::Relaxed);
    }

    fn waits(&self) {}

    fn came(&self) {}

    /// hyper keeps the last frame of an HTTP/2 response until the client has a window for it.
    fn ends_with_last_frame(&self) -> bool {
        self.in_flight.is_http1
    }
}

/// The body of a request that a [`TimedService`](super::TimedService) gives to its service.
///
/// Its end, or its drop, ends the measurement of the message. While a poll of it waits for the
/// peer, its request does not hold back the idle times of the connection.
pub type RequestBody<B, M = Handle> = TrackedBody<B, RequestPart<M>>;

/// The body of a response of a [`TimedService`](super::TimedService). Its request is in flight
/// until the stream has accepted its last byte, or it is dropped before its end.
pub type ResponseBody<B, M = Handle> = TrackedBody<B, ResponsePart<M>>;

pin_project! {
    /// The body of a request or of a response of a [`TimedService`](super::TimedService): a
    /// [`RequestBody`] or a [`ResponseBody`].
    ///
    /// It has the frames and the errors of the body `B`. Data of a response is a [`ResponseData`].
    pub struct TrackedBody<B, P> {
        #[pin]
        body: B,
        // `None` when the body has ended.
        part: Option<P>,
    }
}

impl<B, P> TrackedBody<B, P> {
    pub(super) fn new(body: B, part: Option<P>) -> Self {
        Self { body, part }
    }

    /// The body within.
    pub fn get_ref(&self) -> &B {
        &self.body
    }
}

impl<B: Body, P: Part> Body for TrackedBody<B, P> {
    type Data = P::Data<B::Data>;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<P::Data<B::Data>>, B::Error>>> {
        let mut this = self.project();
        let polled = this.body.as_mut().poll_frame(cx);
        let hand_over = |data| P::hand_over(this.part.as_ref(), data);
        let polled = polled.map_ok(|frame| frame.map_data(hand_over));
        if let Some(part) = &this.part {
            match &polled {
                Poll::Pending => part.waits(),
                Poll::Ready(Some(Ok(_)))
                    if !part.ends_with_last_frame() || !this.body.is_end_stream() =>
                {
                    part.came();
                }
                Poll::Ready(frame) => {
                    if !matches!(frame, Some(Err(_))) {
                        part.is_known_to_end();
                    }
                    *this.part = None;
                }
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        let has_ended = self.body.is_end_stream();
        if has_ended && let Some(part) = &self.part {
            part.is_known_to_end();
        }
        has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

debug_fields!([B: fmt::Debug, P] TrackedBody<B, P>, |it| body: it.body);

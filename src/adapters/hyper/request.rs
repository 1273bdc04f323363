//! A request on its way through a service, and the two bodies that say how far it is.
//!
//! Why not a guard in the handler: a handler ends before the body of its response does, and cannot
//! say that the head is complete before hyper reads on. It does not see either whether it waits for
//! the body of the request or for something else.
//!
//! Invariants: the idle times of the connection are held back while the server works, except while
//! a read of the request's body waits for the peer. The server works from the call of the service
//! until the response has ended. The next message begins when both bodies have ended.
//!
//! Cost: see [`TimedService`](super::TimedService).

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, SizeHint};
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
            state: Mutex::new(State { hold, is_tunnel: false }),
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

    /// The response has ended.
    fn response_ended(&self) {
        drop(self.set_hold(Hold::Ended));
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
pub struct ResponsePart<M: Side>(pub(super) Arc<InFlight<M>>);

impl<M: Side> Drop for ResponsePart<M> {
    fn drop(&mut self) {
        self.0.response_ended();
    }
}

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
    /// A poll of the body waits.
    fn waits(&self);
    /// A poll of the body has returned a frame that is not the last.
    fn came(&self);
    /// Whether the part ends with the last frame, and not with the end that follows it.
    fn ends_with_last_frame(&self) -> bool;
}

impl<M: Side> Part for RequestPart<M> {
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
    fn waits(&self) {}

    fn came(&self) {}

    /// hyper keeps the last frame of an HTTP/2 response until the client has a window for it.
    fn ends_with_last_frame(&self) -> bool {
        self.0.is_http1
    }
}

/// The body of a request that a [`TimedService`](super::TimedService) gives to its service.
///
/// Its end, or its drop, ends the measurement of the message. While a poll of it waits for the
/// peer, its request does not hold back the idle times of the connection.
pub type RequestBody<B, M = Handle> = TrackedBody<B, RequestPart<M>>;

/// The body of a response of a [`TimedService`](super::TimedService). Its request is in flight
/// until it has ended or is dropped.
pub type ResponseBody<B, M = Handle> = TrackedBody<B, ResponsePart<M>>;

pin_project! {
    /// The body of a request or of a response of a [`TimedService`](super::TimedService): a
    /// [`RequestBody`] or a [`ResponseBody`].
    ///
    /// It has the frames and the errors of the body `B`.
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
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let polled = this.body.as_mut().poll_frame(cx);
        if let Some(part) = &this.part {
            match &polled {
                Poll::Pending => part.waits(),
                Poll::Ready(Some(Ok(_)))
                    if !part.ends_with_last_frame() || !this.body.is_end_stream() =>
                {
                    part.came();
                }
                Poll::Ready(_) => *this.part = None,
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

debug_fields!([B: fmt::Debug, P] TrackedBody<B, P>, |it| body: it.body);

//! What a request is, by its head, and what its connection is told: when its idle times are held
//! back, and where its messages begin and end.

use std::sync::MutexGuard;

use corewheel::conn::Side;
use corewheel::stream::StreamControl;
use hyper::body::Body;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING};
use hyper::{Method, Request, Response, StatusCode, Version};

use super::{Core, Exchange, Hold, State};

/// What a request is.
#[derive(Clone, Copy)]
pub(in crate::hyper) struct Kind {
    version: Version,
    pub(super) is_connect: bool,
    is_head: bool,
    pub(in crate::hyper) has_body: bool,
    end: End,
}

/// Where a request ends on an HTTP/1 connection.
#[derive(Clone, Copy)]
enum End {
    Unknown,
    Line,
    At(u64),
}

impl Kind {
    /// The kind of a request whose head has become complete at this moment.
    #[inline]
    pub(in crate::hyper) fn of<B: Body, M: Side>(
        request: &Request<B>,
        control: &StreamControl<M>,
    ) -> Self {
        let (head_end, body) = (control.take_head_end(), request.body());
        let has_body = !body.is_end_stream();
        let end = if !has_body || request.headers().contains_key(TRANSFER_ENCODING) {
            End::Line
        } else {
            let stated = head_end.zip(body.size_hint().exact());
            stated.map_or(End::Unknown, |(head, body)| End::At(head.saturating_add(body)))
        };
        Self {
            version: request.version(),
            is_head: request.method() == Method::HEAD,
            is_connect: request.method() == Method::CONNECT,
            has_body,
            end,
        }
    }

    /// The kind for another answer to a request whose body has ended.
    pub(super) fn without_body(self) -> Self {
        Self { has_body: false, ..self }
    }

    /// Of an HTTP/2 connection, no byte is known to belong to a certain request.
    pub(super) fn is_http1(self) -> bool {
        self.version < Version::HTTP_2
    }

    /// Whether a response without a stated length comes in chunks.
    pub(super) fn takes_chunks(self) -> bool {
        self.version == Version::HTTP_11 && !self.is_head
    }
}

/// A request on its connection.
pub(in crate::hyper) struct Link<'a, M: Side> {
    pub(in crate::hyper) exchange: &'a Exchange,
    pub(in crate::hyper) control: &'a StreamControl<M>,
}

impl<M: Side> Link<'_, M> {
    fn core(&self) -> &Core {
        self.exchange.core.on_connection()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.core().lock()
    }

    pub(in crate::hyper) fn is_http1(&self) -> bool {
        self.core().kind.is_http1()
    }

    /// The head of a request has come.
    pub(in crate::hyper) fn begin(&self) {
        // No later than here: hyper reads on before it polls the future of the response, and such a
        // read would arm the deadline of the head.
        let kind = self.core().kind;
        match (kind.is_http1(), kind.has_body) {
            (true, true) => self.control.head_complete(),
            (true, false) => self.control.message_ends_with_line(),
            (false, _) => self.control.message_complete(),
        }
    }

    /// A read of the request's body begins to wait, or waits on.
    pub(in crate::hyper) fn body_waits(&self) {
        let mut state = self.lock();
        // Under the lock, as the response that begins meanwhile goes on from a wait.
        let was_held = !self.core().is_answered.get() && state.end_hold(Hold::Waits);
        drop(state);
        if was_held {
            self.control.release_request();
        }
    }

    /// A read of the request's body waits no longer.
    pub(in crate::hyper) fn body_came(&self) {
        let mut state = self.lock();
        if state.hold == Hold::Waits {
            // Under the lock: the response may end on another thread, which ends the request.
            self.control.hold_request();
            state.hold = Hold::Held;
        }
    }

    /// No more is read of the request's body, which was read to its end or not.
    pub(in crate::hyper) fn request_over(&self, is_complete: bool, may_wait: bool) {
        let kind = self.core().kind;
        if kind.is_http1() {
            match kind.end {
                End::Line if is_complete => self.control.message_ends_with_line(),
                End::At(end) if is_complete => self.control.message_ends_at(end),
                _ => self.control.message_complete(),
            }
        }
        if may_wait {
            self.body_came();
        }
        let mut state = self.lock();
        let (is_last, is_tunnel) = (state.part_over(), state.is_tunnel);
        drop(state);
        self.begin_next(is_last, is_tunnel);
    }

    /// A body has ended on the connection. With the last, the next message begins.
    fn begin_next(&self, is_last: bool, is_tunnel: bool) {
        let is_over = is_last && self.is_http1();
        if is_over {
            self.core().connection.told.has_request.set(false);
        }
        match (is_over, is_tunnel) {
            (true, false) => self.control.begin_message(),
            (true, true) => self.control.message_complete(),
            (false, _) => {}
        }
    }

    /// The head of the response is there. True if its data is handed over as pieces.
    pub(in crate::hyper) fn respond<B: Body>(&self, response: &Response<B>) -> bool {
        let (status, core) = (response.status(), self.core());
        if core.kind.has_body {
            let state = self.lock();
            core.is_answered.set(true);
            drop(state);
            self.body_came();
        }
        let is_tunnel = status == StatusCode::SWITCHING_PROTOCOLS
            || (core.kind.is_connect && status.is_success());
        if is_tunnel {
            core.lock().is_tunnel = true;
            if core.kind.is_http1() {
                core.connection.told.is_tunnel.set(true);
            } else {
                self.control.begin_tunnel();
            }
        }
        if core.kind.takes_chunks() && is_of_events(response) {
            core.connection.told.has_events.set(true);
        }
        !core.kind.is_http1() && self.control.bounds_writes()
    }

    /// No more is taken of the response: all of it was, or it is broken off.
    pub(in crate::hyper) fn response_over(&self, is_complete: bool) {
        // On HTTP/1, all that hyper has taken goes to the stream before anything else.
        let is_http1 = self.is_http1();
        if is_http1 && is_complete {
            self.core().connection.told.has_events.set(false);
        }
        let mut state = self.lock();
        state.is_body_over = true;
        let ends = !is_complete && !is_http1 || state.pieces == 0;
        let was_held = ends && state.end_hold(Hold::Ended);
        let (is_last, is_tunnel) = (state.part_over(), state.is_tunnel);
        drop(state);
        if was_held {
            self.end_request(is_http1);
        }
        self.begin_next(is_last, is_tunnel);
    }

    /// hyper has taken the response to its end. `is_flushed` if it flushes in the same poll.
    fn end_request(&self, is_flushed: bool) {
        if is_flushed {
            self.control.end_request_at_flush();
        } else {
            self.control.end_request_at_write();
        }
    }

    /// A piece of the response is handed to hyper.
    pub(in crate::hyper) fn begin_piece(&self) {
        self.lock().pieces += 1;
        self.control.begin_piece();
    }

    /// hyper has written or copied data of the response, and flushes in the same poll, or has
    /// dropped the data.
    pub(in crate::hyper) fn piece_over(&self, is_flushed: bool) {
        let mut state = self.lock();
        state.pieces -= 1;
        let is_last = state.is_body_over && state.pieces == 0;
        let was_held = is_last && state.end_hold(Hold::Ended);
        drop(state);
        if was_held {
            self.end_request(is_flushed);
        }
        // Last, as the request ends with the pieces that are left.
        self.control.end_piece(is_flushed);
    }
}

/// Whether a response is a stream of events whose end is not stated. Each event ends by itself, so
/// the end of the stream cuts none off.
fn is_of_events<B: Body>(response: &Response<B>) -> bool {
    let headers = response.headers();
    let media = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    media.is_some_and(|media| media.starts_with(b"text/event-stream"))
        && !headers.contains_key(CONTENT_LENGTH)
        && response.body().size_hint().exact().is_none()
}

//! What a request is, by its head, and what its connection is told: when its idle times are held
//! back, and where its messages begin and end.

use corewheel::conn::Side;
use corewheel::stream::StreamControl;
use hyper::body::Body;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING};
use hyper::{Method, Request, Response, StatusCode, Version};

use super::{Core, Hold};

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
    pub(crate) fn of<B: Body>(request: &Request<B>, control: &StreamControl<impl Side>) -> Self {
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

/// A request on its connection, whose stream has the control.
impl Core {
    /// The head of a request has come.
    pub(crate) fn begin(&self, control: &StreamControl<impl Side>) {
        // No later than here: hyper reads on before it polls the future of the response, and such a
        // read would arm the deadline of the head.
        match (self.kind.is_http1(), self.kind.has_body) {
            (true, true) => control.head_complete(),
            (true, false) => control.message_ends_with_line(),
            (false, _) => control.message_complete(),
        }
    }

    /// A read of the request's body begins to wait, or waits on.
    pub(crate) fn body_waits(&self, control: &StreamControl<impl Side>) {
        let mut state = self.lock();
        // Under the lock, as the response that begins meanwhile goes on from a wait.
        let was_held = !self.is_answered.get() && state.end_hold(Hold::Waits);
        drop(state);
        if was_held {
            control.release_request();
        }
    }

    /// A read of the request's body waits no longer.
    pub(crate) fn body_came(&self, control: &StreamControl<impl Side>) {
        self.lock().body_came(control);
    }

    /// No more is read of the request's body, which was read to its end or not.
    pub(crate) fn request_over(&self, control: &StreamControl<impl Side>, is_complete: bool) {
        if self.kind.is_http1() {
            match self.kind.end {
                End::Line if is_complete => control.message_ends_with_line(),
                End::At(end) if is_complete => control.message_ends_at(end),
                _ => control.message_complete(),
            }
        }
        let mut state = self.lock();
        state.body_came(control);
        let over = state.part_over();
        drop(state);
        self.begin_next(control, over);
    }

    /// With the last of the two bodies, the next message begins, unless a tunnel follows.
    fn begin_next(&self, control: &StreamControl<impl Side>, over: Option<bool>) {
        let Some(is_tunnel) = over.filter(|_| self.kind.is_http1()) else { return };
        self.connection.told.has_request.set(false);
        if is_tunnel {
            control.message_complete();
        } else {
            control.begin_message();
        }
    }

    /// The head of the response is there. True if its data is handed over as pieces.
    pub(crate) fn respond<B: Body>(
        &self,
        control: &StreamControl<impl Side>,
        response: &Response<B>,
    ) -> bool {
        let (status, told) = (response.status(), &self.connection.told);
        if self.kind.has_body {
            let mut state = self.lock();
            self.is_answered.set(true);
            state.body_came(control);
        }
        let is_tunnel = status == StatusCode::SWITCHING_PROTOCOLS
            || (self.kind.is_connect && status.is_success());
        if is_tunnel {
            self.lock().is_tunnel = true;
            if self.kind.is_http1() {
                told.is_tunnel.set(true);
            } else {
                control.begin_tunnel();
            }
        }
        if self.kind.takes_chunks() && is_of_events(response) {
            told.has_events.set(true);
        }
        !self.kind.is_http1() && control.bounds_writes()
    }

    /// No more is taken of the response: all of it was, or it is broken off.
    pub(crate) fn response_over(&self, control: &StreamControl<impl Side>, is_complete: bool) {
        // On HTTP/1, all that hyper has taken goes to the stream before anything else.
        let (core, is_http1) = (self.on_connection(), self.kind.is_http1());
        if is_http1 && is_complete {
            core.connection.told.has_events.set(false);
        }
        let mut state = core.lock();
        state.is_body_over = true;
        let ends = !is_complete && !is_http1 || state.pieces == 0;
        let (was_held, over) = (ends && state.end_hold(Hold::Ended), state.part_over());
        drop(state);
        if was_held {
            end_request(control, is_http1);
        }
        core.begin_next(control, over);
    }

    /// A piece of the response is handed to hyper.
    pub(crate) fn begin_piece(&self, control: &StreamControl<impl Side>) {
        self.on_connection().lock().pieces += 1;
        control.begin_piece();
    }

    /// hyper has written or copied data of the response, and flushes in the same poll, or has
    /// dropped the data.
    pub(crate) fn piece_over(&self, control: &StreamControl<impl Side>, is_flushed: bool) {
        let mut state = self.on_connection().lock();
        state.pieces -= 1;
        let is_last = state.is_body_over && state.pieces == 0;
        let was_held = is_last && state.end_hold(Hold::Ended);
        drop(state);
        if was_held {
            end_request(control, is_flushed);
        }
        // Last, as the request ends with the pieces that are left.
        control.end_piece(is_flushed);
    }
}

/// hyper has taken the response to its end. `is_flushed` if it flushes in the same poll.
fn end_request(control: &StreamControl<impl Side>, is_flushed: bool) {
    if is_flushed {
        control.end_request_at_flush();
    } else {
        control.end_request_at_write();
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

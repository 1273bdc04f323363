//! What a request is, by its head: which version, whether it has a body, and where it ends.

use corewheel::conn::Side;
use corewheel::stream::{MessageEnd, StreamControl};
use hyper::body::Body;
use hyper::header::TRANSFER_ENCODING;
use hyper::http::request::Parts;
use hyper::{Method, Version};

/// What a request is.
#[derive(Clone, Copy)]
pub(in crate::hyper) struct Kind {
    version: Version,
    pub(super) is_connect: bool,
    is_head: bool,
    pub(in crate::hyper) has_body: bool,
    /// Where it ends on an HTTP/1 connection.
    pub(super) end: MessageEnd,
}

impl Kind {
    /// The kind of a request whose head has become complete at this moment.
    #[inline]
    pub(in crate::hyper) fn of<B: Body, M: Side>(
        head: &Parts,
        body: &B,
        control: &StreamControl<M>,
    ) -> Self {
        let (head_end, has_body) = (control.take_head_end(), !body.is_end_stream());
        let end = if !has_body || head.headers.contains_key(TRANSFER_ENCODING) {
            MessageEnd::Line
        } else {
            let stated = head_end.zip(body.size_hint().exact());
            stated.map_or(MessageEnd::Unknown, |(head, body)| {
                MessageEnd::At(head.saturating_add(body))
            })
        };
        Self {
            version: head.version,
            is_head: head.method == Method::HEAD,
            is_connect: head.method == Method::CONNECT,
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

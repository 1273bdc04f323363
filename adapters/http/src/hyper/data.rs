//! The data of a body, with a guard that says when a server has written it.

use std::fmt;
use std::io::IoSlice;

use corewheel::Handle;
use corewheel::conn::Side;
use corewheel::stream::ResponsePiece;
use hyper::body::{Buf, Bytes};

use super::exchange::{Exchange, Link};

/// A part of a response that hyper has and has not written.
pub(super) struct Piece<M: Side> {
    exchange: Exchange,
    piece: ResponsePiece<M>,
}

impl<M: Side> Piece<M> {
    pub(super) fn new(link: Link<'_, M>, bytes: usize) -> Self {
        Self { exchange: link.exchange.clone(), piece: link.begin_piece(bytes) }
    }
}

impl<M: Side> Drop for Piece<M> {
    fn drop(&mut self) {
        // Before the piece is taken back.
        let link = Link { exchange: &self.exchange, control: self.piece.control() };
        link.piece_over(self.piece.is_taken());
    }
}

/// Data of a [`ResponseBody`](super::ResponseBody). That of HTTP/2 says when the server has written
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
pub struct BodyData<D, M = Handle>
where
    M: Side,
{
    data: D,
    /// `None` if all is written, if a flush says that, or if no limit bounds the write. In a box,
    /// as hyper moves the data of a response often, and only HTTP/2 has pieces.
    piece: Option<Box<Piece<M>>>,
}

impl<D, M: Side> BodyData<D, M> {
    pub(super) fn new(data: D, piece: Option<Piece<M>>) -> Self {
        Self { data, piece: piece.map(Box::new) }
    }

    /// The data within.
    pub fn get_ref(&self) -> &D {
        &self.data
    }

    /// The data within. That of a response is over on its way.
    pub fn into_inner(self) -> D {
        self.data
    }
}

impl<D: Buf, M: Side> BodyData<D, M> {
    /// So many bytes were taken of the data.
    fn was_taken(&mut self, count: usize) {
        if let Some(Piece { piece, .. }) = self.piece.as_deref_mut() {
            piece.take(count);
            if piece.is_taken() {
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

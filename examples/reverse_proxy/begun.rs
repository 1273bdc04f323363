//! A response of the upstream server whose body may have begun.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Response;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::TRANSFER_ENCODING;

/// The body of a response, of which a frame may have come.
#[derive(Debug)]
pub(crate) struct Begun {
    first: Option<Frame<Bytes>>,
    rest: Incoming,
}

/// Looks whether the part of a response that came with its head is well formed, so that the proxy
/// may answer `502` in its place. It does not wait for a part that comes later.
///
/// Only a body in chunks can be malformed, and only one costs more than a few instructions: two
/// turns of the task.
pub(crate) async fn begun(response: Response<Incoming>) -> hyper::Result<Response<Begun>> {
    let is_chunked = response.headers().contains_key(TRANSFER_ENCODING);
    let mut response = response.map(|rest| Begun { first: None, rest });
    // The first poll lets hyper read the body, in its own task, which has its turn meanwhile.
    for _ in 0..if is_chunked { 2 } else { 0 } {
        let body = response.body_mut();
        let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut body.rest).poll_frame(cx))).await;
        if let Poll::Ready(frame) = polled {
            body.first = frame.transpose()?;
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(response)
}

impl Body for Begun {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        match self.first.take() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.first.is_none() { self.rest.size_hint() } else { SizeHint::default() }
    }
}

//! Connections to the upstream server.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower::Service;

use crate::timers::{Late, Timers};

/// Connects to the upstream server, whatever the URI of the request, within a time.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(crate) upstream: SocketAddr,
    pub(crate) timers: Timers,
    pub(crate) time: Duration,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { upstream, timers, time } = *self;
        Box::pin(async move {
            match timers.timeout(time, TcpStream::connect(upstream)).await {
                Ok(connected) => {
                    let stream = connected?;
                    stream.set_nodelay(true)?;
                    Ok(TokioIo::new(stream))
                }
                Err(late @ Late::TimeUp) => Err(io::Error::new(io::ErrorKind::TimedOut, late)),
                Err(late @ Late::NoTimer(_)) => Err(io::Error::other(late)),
            }
        })
    }
}

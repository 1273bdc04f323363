//! Clients that take what they asked for at a pace of their own.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::Request;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

/// How often a client that is slow reads.
const PIECE: Duration = Duration::from_millis(100);

/// How a client takes what comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// So many bytes in a second, a piece each 100 ms; below ten, a byte at a time.
    Steady(u64),
    /// So many bytes in a second, all of a period at once.
    Bursts(u64, Duration),
    /// As fast as it can for a time, and then so many bytes in a second.
    FastThen(Duration, u64),
    /// So many bytes as fast as it can, and nothing afterwards.
    Stops(u64),
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Steady(rate) => write!(f, "{rate} bytes/s"),
            Self::Bursts(rate, period) => write!(f, "{rate} bytes/s, each {period:?}"),
            Self::FastThen(time, rate) => write!(f, "fast for {time:?}, then {rate} bytes/s"),
            Self::Stops(0) => write!(f, "never reads"),
            Self::Stops(bytes) => write!(f, "stops after {bytes} bytes"),
        }
    }
}

/// How a client asks, for more than it will take.
#[derive(Clone)]
pub(crate) enum Protocol {
    /// It sends these bytes, and counts what comes.
    Bytes(Vec<u8>),
    /// It sends these bytes over TLS.
    Tls(Vec<u8>, TlsConnector),
    /// It sends without an end what comes back.
    Echo,
    /// It asks over HTTP/2 for this path, with a window of 8 KiB that it opens as it reads.
    Http2(&'static str),
}

/// What a client reads from.
enum Source {
    Bytes(Box<dyn AsyncRead + Send + Unpin>, Vec<u8>),
    Http2(h2::RecvStream, Bytes),
}

impl Source {
    fn bytes(stream: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self::Bytes(Box::new(stream), vec![0; 1 << 16])
    }

    /// Takes at most this many bytes.
    async fn take(&mut self, most: u64) -> io::Result<u64> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        match self {
            Self::Bytes(stream, buffer) => {
                let most = most.min(buffer.len());
                Ok(stream.read(&mut buffer[..most]).await? as u64)
            }
            Self::Http2(body, left) => {
                if left.is_empty() {
                    let Some(data) = poll_fn(|context| body.poll_data(context)).await else {
                        return Ok(0);
                    };
                    *left = data.map_err(io::Error::other)?;
                }
                let most = most.min(left.len());
                drop(left.split_to(most));
                body.flow_control().release_capacity(most).map_err(io::Error::other)?;
                Ok(most as u64)
            }
        }
    }

    /// Takes all of so many bytes.
    async fn take_all(&mut self, mut bytes: u64) -> io::Result<()> {
        while bytes > 0 {
            match self.take(bytes).await? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                taken => bytes -= taken,
            }
        }
        Ok(())
    }

    async fn read(mut self, pace: Pace) -> io::Result<()> {
        match pace {
            Pace::Stops(bytes) => {
                self.take_all(bytes).await?;
                std::future::pending().await
            }
            Pace::Bursts(rate, period) => self.read_steadily(rate, period).await,
            Pace::Steady(rate) if rate < 10 => {
                self.read_steadily(rate, Duration::from_secs(1)).await
            }
            Pace::Steady(rate) => self.read_steadily(rate, PIECE).await,
            Pace::FastThen(time, rate) => {
                let begin = Instant::now();
                while begin.elapsed() < time {
                    self.take_all(1 << 16).await?;
                }
                self.read_steadily(rate, PIECE).await
            }
        }
    }

    async fn read_steadily(&mut self, rate: u64, period: Duration) -> io::Result<()> {
        let (begin, mut taken) = (Instant::now(), 0);
        loop {
            sleep(period).await;
            // What a sleep was late is made up for.
            let all = begin.elapsed().as_millis() as u64 * rate / 1_000;
            self.take_all(all - taken).await?;
            taken = all;
        }
    }
}

/// The rest of a client. It ends when the server has ended the connection.
pub(crate) type Reading = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

/// Connects and asks. Returns the port of the client, and the future that reads.
///
/// # Errors
///
/// The server does not accept.
pub(crate) async fn begin(
    server: SocketAddr,
    protocol: &Protocol,
    pace: Pace,
) -> io::Result<(u16, Reading)> {
    let mut stream = TcpStream::connect(server).await?;
    let port = stream.local_addr()?.port();
    let reading: Reading = match protocol {
        Protocol::Bytes(request) => {
            stream.write_all(request).await?;
            Box::pin(Source::bytes(stream).read(pace))
        }
        Protocol::Tls(request, connector) => {
            let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
            let mut stream = connector.connect(name, stream).await?;
            stream.write_all(request).await?;
            Box::pin(Source::bytes(stream).read(pace))
        }
        Protocol::Echo => {
            let (reader, mut writer) = stream.into_split();
            let source = Source::bytes(reader);
            let sends = async move {
                loop {
                    writer.write_all(&[0; 1 << 12]).await?;
                }
            };
            Box::pin(async move {
                tokio::select! {
                    ended = sends => ended,
                    ended = source.read(pace) => ended,
                }
            })
        }
        Protocol::Http2(path) => {
            let request = Request::get(format!("http://{server}{path}"));
            let request = request.body(()).map_err(io::Error::other)?;
            Box::pin(async move {
                let mut builder = h2::client::Builder::new();
                let builder = builder.initial_window_size(8 << 10);
                let (mut client, connection) =
                    builder.handshake::<_, Bytes>(stream).await.map_err(io::Error::other)?;
                let task = tokio::spawn(connection);
                let (response, _) = client.send_request(request, true).map_err(io::Error::other)?;
                let body = response.await.map_err(io::Error::other)?.into_body();
                let read = Source::Http2(body, Bytes::new()).read(pace).await;
                task.abort();
                read
            })
        }
    };
    Ok((port, reading))
}

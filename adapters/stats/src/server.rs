//! The endpoint's thread: accepts connections, bounds them in number and in time, and gives each
//! one answer.
//!
//! One answer, then it is closed: a connection that is kept alive for the next scrape would hold
//! one of the few places for nothing, and a scrape every second does not notice the difference. So
//! all of a connection's life has a deadline: the head, the answer, and the wait for the client to
//! close.
//!
//! When as many connections are open as may be, the oldest one is cut off for the next. Each keeps
//! its place for [`KEPT`] even so: a client whose request is on its way must not lose its place to
//! a burst of others. The time is so short that a queue of idle connections is accepted soon.
//!
//! Cost: a task and two buffers for each connection, of the head's limit and of the answer; a pass
//! over the connections for each that comes while all places are taken.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::mount::StatsRoutes;

/// The most connections at a time.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection keeps its place while others wait for one.
const KEPT: Duration = Duration::from_millis(25);
/// The most bytes of a request's line and headers.
const HEAD_MAX: usize = 16 << 10;
/// How long a client may take to send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to send its request and to read the answer, and as long again until
/// it closes.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait after a failed accept. Without descriptors the connection stays where it is
/// and the next accept fails at once, so that asking again without a pause would spin.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The most bytes that are read after the answer, and thrown away.
const DRAINED_MAX: u64 = 1 << 20;

/// The life of the endpoint's thread, which sends to `ready` when it listens. Ends when `stop` is
/// sent or dropped, whatever the clients do: the runtime is dropped, and with it every connection.
pub(super) fn run(
    listener: std::net::TcpListener,
    routes: Arc<StatsRoutes>,
    stop: oneshot::Receiver<()>,
    ready: &mpsc::Sender<io::Result<()>>,
) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        tokio::spawn(serve(TcpListener::from_std(listener)?, routes));
        // The thread that started this one waits for the message, so it can always be sent.
        let _ = ready.send(Ok(()));
        // An error says that the sender is gone, which means the same.
        let _ = stop.await;
        Ok(())
    })
}

async fn serve(listener: TcpListener, routes: Arc<StatsRoutes>) {
    let mut tasks = JoinSet::new();
    let mut open = VecDeque::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                make_room(&mut tasks, &mut open).await;
                let task = tasks.spawn(connection(stream, Arc::clone(&routes)));
                open.push_back((task, sleep(KEPT).deadline()));
            }
            Err(error) => {
                tracing::warn!(
                    name: "connections-not-accepted",
                    target: "corewheel::endpoint",
                    %error, "the statistics endpoint cannot accept connections"
                );
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Waits until there is a place for another connection. `open` has the connections that may still
/// run and were not cut off, the oldest first, with the times until which they keep their places.
async fn make_room(tasks: &mut JoinSet<()>, open: &mut VecDeque<(AbortHandle, Instant)>) {
    loop {
        while tasks.try_join_next().is_some() {}
        open.retain(|(task, _)| !task.is_finished());
        let Some((oldest, kept_until)) = open.front().filter(|_| tasks.len() >= CONNECTIONS_MAX)
        else {
            return;
        };
        if timeout_at(*kept_until, tasks.join_next()).await.is_ok() {
            continue;
        }
        // A request that lies in the socket is answered first: the runtime looks at the sockets
        // when a task yields.
        yield_now().await;
        oldest.abort();
        open.pop_front();
        // The connection ends, and with it its descriptor, before the next is accepted.
        tasks.join_next().await;
    }
}

/// The life of one connection.
async fn connection(stream: TcpStream, routes: Arc<StatsRoutes>) {
    // A connection that is cut off is reset. Else the system would go on offering the answer to a
    // client that does not read, for minutes and in the kernel's memory.
    let _ = stream.set_zero_linger();
    let service = service_fn(move |request| ready(Ok::<_, Infallible>(routes.answer(&request))));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        // A client that has said all it has to say may still be reading.
        .half_close(true)
        .header_read_timeout(HEAD_TIMEOUT)
        .max_header_size(HEAD_MAX)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let exchange = poll_fn(|context| connection.poll_without_shutdown(context));
    let is_answered = match timeout(ANSWER_TIMEOUT, exchange).await {
        Ok(Ok(())) => true,
        // The response says what is wrong, but for a head that has not come in time.
        Ok(Err(error)) => !error.is_timeout(),
        Err(_) => false,
    };
    if is_answered {
        let stream = connection.into_parts().io.into_inner();
        let _ = SockRef::from(&stream).set_linger(None);
        // Whether the client has closed in time or not, or the connection has failed: it ends.
        let _ = timeout(ANSWER_TIMEOUT, say_goodbye(stream)).await;
    }
}

/// Says that nothing more is coming, and reads until the client says the same: closing a connection
/// with something unread in it resets it, which can take from the client the answer that it has not
/// read yet.
async fn say_goodbye(mut stream: TcpStream) -> io::Result<u64> {
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(DRAINED_MAX), &mut tokio::io::sink()).await
}

//! The endpoint's thread: accepts connections, bounds them in number and in time, and gives each
//! one answer.
//!
//! One answer, then it is closed: a connection that is kept alive for the next scrape would hold
//! one of the few places for nothing, and a scrape every second does not notice the difference. So
//! all of a connection's life has a deadline: the head, the answer, and the wait for the client to
//! close.
//!
//! When all places are taken, the next connection is neither refused nor left to wait for the
//! deadlines of others: it takes the place of a connection that does nothing, as [`Places`] tells.
//!
//! Cost: a task and two buffers for each connection, of the head's limit and of the answer.

use std::convert::Infallible;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout, timeout_at};

use super::history::STEP_LENGTH;
use super::mount::StatsRoutes;
use super::places::{Places, Stage, Ticket};

/// How long to wait after a failed accept. Without descriptors the connection stays where it is
/// and the next accept fails at once, so that asking again without a pause would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most bytes that are read after the answer, and thrown away.
const DRAINED_MAX: usize = 1 << 20;
/// The least that hyper takes for a buffer.
const BUFFER_MIN: usize = 8 << 10;

/// The resources that a client may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connections_max: usize,
    pub(super) header_size_max: usize,
    pub(super) header_timeout: Duration,
    pub(super) response_timeout: Duration,
}

/// The life of the endpoint's thread. Ends when `stop` is sent or dropped, whatever the clients do:
/// the runtime is dropped, and with it every connection.
pub(super) fn run(
    listener: std::net::TcpListener,
    routes: Arc<StatsRoutes>,
    limits: Limits,
    stop: oneshot::Receiver<()>,
    ready: &mpsc::Sender<io::Result<()>>,
) {
    // The thread that started this one waits for the message, so it can always be sent.
    let report = |result| drop(ready.send(result));
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(Err(error)),
    };
    runtime.block_on(async {
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                tokio::spawn(keep_history(Arc::clone(&routes)));
                tokio::spawn(serve(listener, routes, limits));
                report(Ok(()));
                // An error says that the sender is gone, which means the same.
                let _ = stop.await;
            }
            Err(error) => report(Err(error)),
        }
    });
}

/// Takes a reading for the history where no request has come.
async fn keep_history(routes: Arc<StatsRoutes>) {
    loop {
        sleep(STEP_LENGTH).await;
        drop(routes.read());
    }
}

async fn serve(listener: TcpListener, routes: Arc<StatsRoutes>, limits: Limits) {
    let mut places = Places::new(limits.connections_max);
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                places.make_room().await;
                let routes = Arc::clone(&routes);
                places.admit(|ticket| connection(stream, routes, limits, ticket));
            }
            Err(error) if concerns_one_client(&error) => {}
            Err(error) => {
                if !failing {
                    tracing::warn!(
                        name: "connections-not-accepted",
                        target: "corewheel::endpoint",
                        %error, "the statistics endpoint cannot accept connections"
                    );
                }
                failing = true;
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Whether the failed accept has used up a connection, so that the next one finds another.
fn concerns_one_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// The life of one connection.
async fn connection(
    stream: TcpStream,
    routes: Arc<StatsRoutes>,
    limits: Limits,
    mut ticket: Ticket,
) {
    let Ticket { progress, cut } = &mut ticket;
    let head_by = sleep(limits.header_timeout).deadline();
    // Hyper takes a buffer when it first reads, so a silent connection has none.
    match timeout_at(head_by, until_cut(cut, stream.peek(&mut [0]))).await {
        Ok(Some(Ok(1..))) => progress.enter(Stage::Sending),
        // The client has closed its side, has been silent for too long or is cut off, or the
        // connection has failed.
        _ => return,
    }
    let answering = progress.clone();
    let service = service_fn(move |request| {
        answering.enter(Stage::Reading);
        ready(Ok::<_, Infallible>(routes.answer(&request)))
    });
    let mut connection = http1::Builder::new()
        .keep_alive(false)
        // A client that has said all it has to say may still be reading.
        .half_close(true)
        // The head has its deadline here, since that counts from the beginning.
        .header_read_timeout(None)
        .max_header_size(limits.header_size_max)
        .max_buf_size(limits.header_size_max.max(BUFFER_MIN))
        .serve_connection(TokioIo::new(stream), service);
    let outcome = {
        let exchange = poll_fn(|context| connection.poll_without_shutdown(context));
        let mut exchange = pin!(until_cut(cut, exchange));
        match timeout_at(head_by, &mut exchange).await {
            Err(_) if progress.is(Stage::Reading) => {
                timeout_at(head_by + limits.response_timeout, exchange).await
            }
            outcome => outcome,
        }
    };
    let stream = connection.into_parts().io.into_inner();
    match outcome {
        // A response was sent, if only an error.
        Ok(Some(_)) => {
            progress.enter(Stage::Answered);
            let goodbye = until_cut(cut, say_goodbye(stream));
            // Whether the client has closed in time or not, or the connection has failed: it ends.
            let _ = timeout(limits.response_timeout, goodbye).await;
        }
        // A client that does not read, or whose connection is cut off. Without this the system
        // would go on offering it what it has not read, for minutes and in the kernel's memory.
        _ if progress.is(Stage::Reading) => drop(stream.set_zero_linger()),
        // Not even the head came in time.
        _ => {}
    }
}

/// Waits for a future; `None` if the connection is cut off before.
async fn until_cut<F: Future>(cut: &mut oneshot::Receiver<()>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| match Pin::new(&mut *cut).poll(context) {
        Poll::Ready(_) => Poll::Ready(None),
        Poll::Pending => future.as_mut().poll(context).map(Some),
    })
    .await
}

/// Says that nothing more is coming, and reads until the client says the same: closing a connection
/// with something unread in it resets it, which can take from the client the answer that it has not
/// read yet.
async fn say_goodbye(mut stream: TcpStream) -> io::Result<()> {
    poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await?;
    let mut scrap = [0; 4 << 10];
    let mut left = DRAINED_MAX;
    while left > 0 {
        stream.readable().await?;
        match stream.try_read(&mut scrap) {
            Ok(0) => break,
            Ok(read) => left = left.saturating_sub(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

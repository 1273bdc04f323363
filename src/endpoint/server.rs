//! The endpoint's thread: accepts connections, bounds them in number and in time, and gives each
//! one answer.
//!
//! One answer, then it is closed: a connection that is kept alive for the next scrape would hold
//! one of the few places for nothing, and a scrape every second does not notice the difference. So
//! all of a connection's life has a deadline: the head, the answer, and the wait for the client to
//! close.
//!
//! When all places are taken, a newcomer is neither turned away nor left to wait for the deadlines
//! of others: the connection that is open longest makes room, as soon as it has had [`PATIENCE`]. A
//! client that sends its request at once is answered long before, so whoever is cut off is slow.
//! Holding every place with slow clients thus keeps nobody out, which matters to a health check.
//!
//! Cost: a task and two buffers for each connection, of the head's limit and of the answer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Future, poll_fn, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::routes::Routes;

/// How long a connection has its place for certain.
const PATIENCE: Duration = Duration::from_millis(250);
/// How long to wait after a failed accept. Without descriptors the connection stays where it is
/// and the next accept fails at once, so that asking again without a pause would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The most bytes that are read after the answer, and thrown away.
const DRAINED_MAX: usize = 1 << 20;
/// The least that hyper takes for a buffer.
const BUFFER_MIN: usize = 8 << 10;

/// What a client may take up.
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
    routes: Arc<Routes>,
    limits: Limits,
    stop: oneshot::Receiver<()>,
    ready: &mpsc::Sender<io::Result<()>>,
) {
    // Whoever started the thread waits for this message, so it can always be sent.
    let report = |result| drop(ready.send(result));
    let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(Err(error)),
    };
    runtime.block_on(async {
        match TcpListener::from_std(listener) {
            Ok(listener) => {
                tokio::spawn(serve(listener, routes, limits));
                report(Ok(()));
                // An error says that the sender is gone, which means the same.
                let _ = stop.await;
            }
            Err(error) => report(Err(error)),
        }
    });
}

async fn serve(listener: TcpListener, routes: Arc<Routes>, limits: Limits) {
    let mut places = Places::new(limits.connections_max);
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                places.make_room().await;
                places.admit(connection(stream, Arc::clone(&routes), limits));
            }
            Err(error) if concerns_one_client(&error) => {}
            Err(error) => {
                if !failing {
                    tracing::warn!(%error, "the statistics endpoint cannot accept connections");
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

/// The connections that are open, no more than a certain number.
struct Places {
    max: usize,
    tasks: JoinSet<()>,
    /// Those of them that may still run, the longest open first.
    taken: VecDeque<Place>,
}

struct Place {
    task: AbortHandle,
    /// Until then nobody else can have it.
    kept_until: Instant,
}

impl Places {
    fn new(max: usize) -> Self {
        Self { max, tasks: JoinSet::new(), taken: VecDeque::new() }
    }

    fn admit(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        let task = self.tasks.spawn(connection);
        self.taken.push_back(Place { task, kept_until: sleep(PATIENCE).deadline() });
    }

    /// Waits until there is a place, at most [`PATIENCE`].
    async fn make_room(&mut self) {
        loop {
            while self.tasks.try_join_next().is_some() {}
            self.taken.retain(|place| !place.task.is_finished());
            let Some(oldest) = self.taken.front().filter(|_| self.taken.len() >= self.max) else {
                return;
            };
            if timeout_at(oldest.kept_until, self.tasks.join_next()).await.is_err() {
                oldest.task.abort();
                self.taken.pop_front();
            }
        }
    }
}

/// The life of one connection.
async fn connection(stream: TcpStream, routes: Arc<Routes>, limits: Limits) {
    let service = service_fn(move |request| ready(Ok::<_, Infallible>(routes.answer(&request))));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        // A client that has said all it has to say may still be reading.
        .half_close(true)
        .header_read_timeout(limits.header_timeout)
        .max_header_size(limits.header_size_max)
        .max_buf_size(limits.header_size_max.max(BUFFER_MIN))
        .serve_connection(TokioIo::new(stream), service);
    let exchange = poll_fn(|context| connection.poll_without_shutdown(context));
    let outcome = timeout(limits.header_timeout + limits.response_timeout, exchange).await;
    let stream = connection.into_parts().io.into_inner();
    match outcome {
        // Not even the head came in time.
        Ok(Err(error)) if error.is_timeout() => {}
        // An answer was sent, be it to say what was wrong.
        Ok(_) => {
            let goodbye = say_goodbye(stream);
            // Whether the client has closed in time or not, or the connection has failed: it ends.
            let _ = timeout(limits.response_timeout, goodbye).await;
        }
        // A client that does not read. Without this the system would go on offering it what it has
        // not read, for minutes and in the kernel's memory.
        Err(_) => drop(stream.set_zero_linger()),
    }
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

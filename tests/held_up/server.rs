//! Servers of all rows, in one runtime that can be held up.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use corewheel::{Handle, TimerService};
use futures_util::future::join_all;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;
use tokio::runtime::{self, Builder};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, block_in_place};

use crate::rows::{Row, Served};

/// Workers of a multi-thread runtime.
const WORKERS: usize = 2;
/// How many handlers compute, and for how long each.
const HANDLERS: usize = 150;
const COMPUTES: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flavour {
    CurrentThread,
    MultiThread,
}

impl Flavour {
    pub(crate) const ALL: [Self; 2] = [Self::CurrentThread, Self::MultiThread];

    fn workers(self) -> usize {
        match self {
            Self::CurrentThread => 1,
            Self::MultiThread => WORKERS,
        }
    }

    pub(crate) fn builder(self) -> Builder {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::MultiThread => Builder::new_multi_thread(),
        };
        builder.worker_threads(WORKERS).enable_all();
        builder
    }
}

/// Where the connections are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In a task each.
    Tasks,
    /// In the main future of the runtime.
    Main,
    /// All in one task, which polls all of them each time.
    OneTask,
    /// All in one task, which polls those that were woken.
    JoinAll,
    LocalSet,
    /// Each in a worker that has given its tasks to another thread.
    Blocking,
    /// In tasks, after another runtime of the process has had its passes.
    SecondRuntime,
}

impl Place {
    pub(crate) const ALL: [Self; 7] = [
        Self::Tasks,
        Self::Main,
        Self::OneTask,
        Self::JoinAll,
        Self::LocalSet,
        Self::Blocking,
        Self::SecondRuntime,
    ];
}

/// The servers of some rows. Its drop ends them.
pub(crate) struct Server {
    flavour: Flavour,
    runtime: runtime::Handle,
    _stop: oneshot::Sender<()>,
}

/// What keeps workers blocked until it is dropped.
pub(crate) type Blocked = Arc<Mutex<Vec<mpsc::Sender<()>>>>;

impl Server {
    /// Serves so many clients of each row on a thread of its own. Beside it, where each row
    /// listens.
    pub(crate) fn start(
        rows: &[&'static Row],
        clients: usize,
        (flavour, place): (Flavour, Place),
        limit: Duration,
    ) -> (Self, Vec<SocketAddr>) {
        let rows = rows.to_vec();
        let listeners: Vec<_> = rows.iter().map(|_| listener()).collect();
        let addresses = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
        let server = Self::run(flavour, flavour.builder(), async move |timers| {
            if place == Place::SecondRuntime {
                // A runtime cannot begin in another one.
                thread::spawn(move || first_runtime(timers)).join().unwrap();
            }
            let futures = accept(&rows, listeners, clients, timers, limit).await;
            serve(futures, place).await;
        });
        (server, addresses)
    }

    /// Runs a server in a runtime on a thread of its own.
    pub(crate) fn run(
        flavour: Flavour,
        mut builder: Builder,
        serve: impl AsyncFnOnce(Handle) + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (sender, started) = mpsc::channel();
        thread::spawn(move || {
            let service = TimerService::beside_runtime().start().unwrap();
            let timers = service.handle();
            let runtime = builder.build().unwrap();
            sender.send(runtime.handle().clone()).unwrap();
            runtime.block_on(async {
                let serving = async {
                    serve(timers).await;
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            });
        });
        Self { flavour, runtime: started.recv().unwrap(), _stop: stop }
    }

    /// Blocks each worker until the returned value is dropped.
    pub(crate) fn block(&self) -> Blocked {
        let workers = self.flavour.workers();
        let held = Arc::new(Barrier::new(workers + 1));
        let senders = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..workers {
            let (sender, released) = mpsc::channel::<()>();
            senders.lock().unwrap().push(sender);
            let held = Arc::clone(&held);
            self.runtime.spawn(async move {
                held.wait();
                let _ = released.recv();
            });
        }
        held.wait();
        senders
    }

    /// Makes many handlers ready at once, which compute one after another.
    pub(crate) fn compute(&self) {
        // All of them are spawned while the workers are blocked.
        let blocked = self.block();
        for _ in 0..HANDLERS {
            self.runtime.spawn(async { thread::sleep(COMPUTES) });
        }
        drop(blocked);
    }
}

/// A listener whose queue has room for thousands.
pub(crate) fn listener() -> TcpListener {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(4_096).unwrap();
    listener.into()
}

/// A runtime in which a timeout fires, and which then ends.
fn first_runtime(timers: Handle) {
    let runtime = Flavour::MultiThread.builder().build().unwrap();
    runtime.block_on(async {
        let late = timers.timeout(Duration::from_millis(1), std::future::pending::<()>());
        assert!(late.await.is_err_and(|error| error.is_elapsed()));
    });
}

/// Accepts all clients.
async fn accept(
    rows: &[&'static Row],
    listeners: Vec<TcpListener>,
    clients: usize,
    timers: Handle,
    limit: Duration,
) -> Vec<Served> {
    let mut futures = Vec::new();
    let listeners = listeners.into_iter().map(|listener| {
        listener.set_nonblocking(true).unwrap();
        tokio::net::TcpListener::from_std(listener).unwrap()
    });
    for (row, listener) in rows.iter().zip(listeners) {
        for _ in 0..clients {
            let (socket, _): (TcpStream, _) = listener.accept().await.unwrap();
            futures.push((row.serve)(socket, timers, limit));
        }
    }
    futures
}

async fn serve(futures: Vec<Served>, place: Place) {
    match place {
        Place::Tasks | Place::SecondRuntime => {
            for future in futures {
                tokio::spawn(future);
            }
        }
        Place::Main => all(futures).await,
        Place::OneTask => tokio::spawn(all(futures)).await.unwrap(),
        Place::JoinAll => drop(tokio::spawn(join_all(futures)).await.unwrap()),
        Place::LocalSet => {
            let set = LocalSet::new();
            for future in futures {
                set.spawn_local(future);
            }
            set.await;
        }
        Place::Blocking => {
            for future in futures {
                tokio::spawn(async move {
                    block_in_place(|| runtime::Handle::current().block_on(future));
                });
            }
        }
    }
}

/// Polls all futures in each poll, in their order, as small joins do.
async fn all(mut futures: Vec<Served>) {
    std::future::poll_fn(|cx| {
        futures.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

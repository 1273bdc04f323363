//! Servers of all rows, in one runtime that can be held up.

use std::env;
use std::net::{SocketAddr, TcpListener};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use corewheel::Handle;
use futures_util::future::join_all;
use socket2::{Domain, Socket, Type};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::{LocalSet, block_in_place};

use crate::rows::{ROWS, Row, Served};
use corewheel_test_support::child::Child;
use corewheel_test_support::held::{Flavour, Server};

/// What the child serves: flavour, place, clients of each row, the limit in milliseconds and the
/// names of the rows.
const TASK: &str = "HELD_UP_CHILD";

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

pub(crate) type Rows<'a> = &'a [&'static Row];
pub(crate) type Where = (Flavour, Place);

/// Serves so many clients of each row on a thread of its own. Beside it, where each row
/// listens.
pub(crate) fn start(
    rows: Rows<'_>,
    clients: usize,
    (flavour, place): Where,
    limit: Duration,
) -> (Server, Vec<SocketAddr>) {
    let rows = rows.to_vec();
    let listeners: Vec<_> = rows.iter().map(|_| listener()).collect();
    let addresses = listeners.iter().map(|it| it.local_addr().unwrap()).collect();
    let server = Server::run(flavour, flavour.builder(), async move |timers| {
        if place == Place::SecondRuntime {
            // A runtime cannot begin in another one.
            thread::spawn(move || first_runtime(timers)).join().unwrap();
        }
        let futures = accept(&rows, listeners, clients, timers, limit).await;
        serve(futures, place).await;
    });
    (server, addresses)
}

/// Serves the clients of rows in a process of its own.
pub(crate) fn start_child(
    rows: Rows<'_>,
    clients: usize,
    (flavour, place): Where,
    limit: Duration,
) -> (Child, Vec<SocketAddr>) {
    let names: Vec<_> = rows.iter().map(|row| row.name).collect();
    let task = format!("{flavour:?};{place:?};{clients};{};{}", limit.as_millis(), names.join(";"));
    Child::of_test("server::server_in_a_child_process", TASK, &task)
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
    rows: Rows<'_>,
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

/// Serves until its standard input ends. Does nothing where this is not the child.
#[test]
fn server_in_a_child_process() {
    let Ok(task) = env::var(TASK) else { return };
    let words: Vec<_> = task.split(';').collect();
    let [flavour, place, clients, limit, names @ ..] = &words[..] else { panic!("{task}") };
    let flavour = Flavour::ALL.into_iter().find(|it| format!("{it:?}") == **flavour).unwrap();
    let place = Place::ALL.into_iter().find(|it| format!("{it:?}") == **place).unwrap();
    let row = |name: &&str| ROWS.iter().find(|row| row.name == *name).unwrap();
    let rows: Vec<_> = names.iter().map(row).collect();
    let limit = Duration::from_millis(limit.parse().unwrap());
    let (_server, addresses) = start(&rows, clients.parse().unwrap(), (flavour, place), limit);
    Child::wait_as_child(&addresses);
}

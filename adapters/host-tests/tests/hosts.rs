//! The hosts of corewheel pass the tests. A host that leaves out one of its duties fails, and the
//! same host without a fault passes.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use corewheel::conn::Raced;
use corewheel::host::{Engine, Host, Needs, Shard};
use corewheel::{ConnTimers, Runtime};
use corewheel_host_tests::{PATIENCE, Sockets, check, check_sockets};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local, yield_now};
use tokio::time::{Sleep, sleep};

/// How long a test waits for a host that never does it.
const SHORT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// No other thread wakes it.
    Deaf,
    /// Its alarm never goes off.
    Mute,
    /// It does not look at its sockets.
    Blind,
    /// It drops the futures that it is given.
    Forgets,
    /// It never lets other tasks run while the driver has something to do.
    Greedy,
    /// It lets other tasks run only when it looks at its sockets.
    Hasty,
}

/// A `LocalSet` of tokio, by its own timers.
struct InLocalSet {
    alarm: Option<Pin<Box<Sleep>>>,
    fault: Fault,
}

impl Host for InLocalSet {
    fn arm(&mut self, after: Duration) {
        self.alarm = Some(Box::pin(sleep(after)));
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.alarm {
            Some(alarm) if self.fault != Fault::Mute => alarm.as_mut().poll(cx),
            _ => Poll::Pending,
        }
    }

    fn waker<'a>(&'a mut self, cx: &'a Context<'_>) -> &'a Waker {
        if self.fault == Fault::Deaf { Waker::noop() } else { cx.waker() }
    }

    async fn read_sockets(&mut self, _connections: usize) {
        if !matches!(self.fault, Fault::Blind | Fault::Greedy) {
            yield_now().await;
            yield_now().await;
            // Runs after the tasks that have something to read.
            let _done = spawn_local(async {}).await;
        }
    }

    async fn step_aside(&mut self) {
        if !matches!(self.fault, Fault::Greedy | Fault::Hasty) {
            yield_now().await;
        }
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        if self.fault != Fault::Forgets {
            spawn_local(future);
        }
    }
}

#[derive(Debug)]
struct LocalSets(Fault);

impl Engine for LocalSets {
    fn name(&self) -> &'static str {
        "local sets"
    }

    fn needs(&self) -> Needs {
        Needs { files: 4, ..Needs::default() }
    }

    fn make(&self, _thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let host = InLocalSet { alarm: None, fault: self.0 };
        Ok(Box::new(move |shard| {
            LocalSet::new().block_on(&runtime, async {
                // As a task among others: tokio looks at its sockets before it polls a main future.
                let _ended = spawn_local(shard.drive(host)).await;
            });
        }))
    }
}

#[derive(Clone, Copy)]
struct OfTokio;

impl Sockets for OfTokio {
    type Stream = TcpStream;

    async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }

    async fn read(self, stream: &mut TcpStream, most: usize) -> io::Result<usize> {
        stream.read(&mut vec![0; most]).await
    }

    async fn race_write(
        self,
        stream: &mut TcpStream,
        conn: &ConnTimers,
        bytes: Vec<u8>,
    ) -> Raced<io::Result<()>> {
        let (reader, mut writer) = stream.split();
        conn.race_write(reader.as_ref(), pin!(writer.write_all(&bytes))).await
    }
}

#[test]
fn host_without_a_fault_passes() {
    check(LocalSets(Fault::None), PATIENCE);
    check_sockets(LocalSets(Fault::None), OfTokio, PATIENCE);
}

#[test]
fn host_with_a_fault_fails() {
    let hosts = [
        (Fault::Deaf, SHORT, "must do this, and does not:"),
        (Fault::Mute, SHORT, "must do this, and does not:"),
        (Fault::Forgets, PATIENCE, "must do this, and does not: run a future"),
        (Fault::Greedy, SHORT, "must do this, and does not: run other tasks between two turns"),
        (Fault::Hasty, PATIENCE, "must do this, and does not: run other tasks between two turns"),
    ];
    let hosts = hosts.map(|(fault, patience, expected)| {
        (fault, thread::spawn(move || check(LocalSets(fault), patience)), expected)
    });
    for (fault, host, expected) in hosts {
        let panic = host.join().unwrap_err();
        let said = panic.downcast_ref::<String>();
        assert!(said.is_some_and(|said| said.contains(expected)), "{fault:?}: {said:?}");
    }
}

#[test]
#[should_panic(expected = "connections whose data came in time are idle")]
fn host_that_does_not_look_at_its_sockets_fails() {
    check_sockets(LocalSets(Fault::Blind), OfTokio, PATIENCE);
}

#[test]
fn host_of_plain_threads_passes() {
    check(Runtime::Thread, PATIENCE);
}

#[test]
fn host_of_tokio_passes() {
    check(Runtime::Tokio, PATIENCE);
}

#[test]
fn sockets_of_tokio_pass() {
    check_sockets(Runtime::Tokio, OfTokio, PATIENCE);
}

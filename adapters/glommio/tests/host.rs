//! Glommio passes the tests of a host, and goes on where it has gone to sleep with ready tasks.

#![cfg(target_os = "linux")]

use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::Raced;
use corewheel::host::Engine;
use corewheel::{ConnTimers, ShutdownPolicy, TimerService};
use corewheel_glommio::{Runtime, SocketOf};
use corewheel_host_tests::{PATIENCE, Sockets, check, check_sockets};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::TcpStream;
use glommio::{Latency, LocalExecutorBuilder, Shares};
use tokio::sync::mpsc::unbounded_channel;

#[derive(Clone, Copy)]
struct OfGlommio;

impl Sockets for OfGlommio {
    type Stream = TcpStream;

    async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await.map_err(|error| io::Error::other(error.to_string()))
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
        let socket = SocketOf::new(stream);
        conn.race_write(&socket, pin!(stream.write_all(&bytes))).await
    }
}

fn works() -> bool {
    let probed = Runtime::Glommio.probe();
    if let Err(why) = &probed {
        #[allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]
        {
            println!("skipped: {why}");
        }
    }
    probed.is_ok()
}

#[test]
fn host_of_glommio_passes() {
    if works() {
        check(Runtime::Glommio, PATIENCE);
    }
}

#[test]
fn sockets_of_glommio_pass() {
    if works() {
        check_sockets(Runtime::Glommio, OfGlommio, PATIENCE);
    }
}

/// An executor that takes this long slept, and was woken again.
const LONG: Duration = Duration::from_millis(900);

/// Wakes a future, beside which the preempt timer has this period, up to 300 times from another
/// thread, until its executor takes long to run it. How long it took at most.
fn oversleeps(preempt: Duration) -> Duration {
    // Its end would wait for a shard whose executor sleeps.
    let service = ManuallyDrop::new(TimerService::builder().shards(1).start_attached().unwrap());
    let shard = service.shard_for(0);
    let attachment = service.attach(shard).unwrap();
    let (ready, attached) = mpsc::channel();
    // Not joined: after the shard has ended, an executor that sleeps beside its last task stays so.
    thread::spawn(move || {
        // Glommio's own period for its first task, which nothing would wake again.
        LocalExecutorBuilder::default().make().unwrap().run(async move {
            let (shares, latency) = (Shares::default(), Latency::Matters(preempt));
            let queue = glommio::executor().create_task_queue(shares, latency, "connections");
            let attached = async move {
                let timers = corewheel_glommio::attach(attachment, |_, _| {}).unwrap();
                ready.send(()).unwrap();
                // Until the service ends.
                timers.sleep(Duration::from_hours(1)).await
            };
            let _closed = glommio::spawn_local_into(attached, queue).unwrap().await;
        });
    });
    attached.recv().unwrap();
    let (ask, mut asked) = unbounded_channel::<mpsc::Sender<()>>();
    let answers = service.spawn_on(shard, |_| async move {
        while let Some(answer) = asked.recv().await {
            answer.send(()).unwrap();
        }
    });
    let answers = answers.unwrap();
    let mut longest = Duration::ZERO;
    for _ in 0..300 {
        let (answer, answered) = mpsc::channel();
        let start = Instant::now();
        ask.send(answer).unwrap();
        answered.recv_timeout(Duration::from_mins(1)).expect("a future that was woken runs");
        longest = longest.max(start.elapsed());
        if longest >= LONG {
            break;
        }
    }
    drop(ask);
    answers.wait().unwrap();
    ManuallyDrop::into_inner(service).shutdown(ShutdownPolicy::Drop).unwrap();
    longest
}

/// Glommio goes to sleep beside tasks that are ready to run, where its preempt timer has gone off
/// before the first of them. The shorter its period, the more often it does; how short it must be
/// depends on the machine.
#[test]
fn future_that_is_woken_runs_although_glommio_has_gone_to_sleep() {
    if works() {
        let mut preempt = Duration::from_micros(100);
        // A busy machine may look like it once. Where an executor sleeps again and again, it soon
        // does at every wake-up, if the period is shorter still. A glommio that does not sleep then
        // never takes long.
        let mut slept = Duration::ZERO;
        while slept < 3 * LONG && preempt > Duration::from_micros(1) {
            let longest = oversleeps(preempt);
            slept += if longest >= LONG { longest } else { Duration::ZERO };
            preempt = preempt * 19 / 20;
        }
    }
}

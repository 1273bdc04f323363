//! Shards in the tokio runtimes that accept futures of one thread: a `LocalSet` and a
//! `LocalRuntime`.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use corewheel::attach::Attachment;
use tokio::io::AsyncReadExt;
use tokio::runtime::Builder;

use super::*;

const HOSTS: [Host; 2] = [Host::TokioAttached, Host::LocalRuntimeAttached];
/// More connections than a `LocalSet` or a runtime polls in a row.
const CONNECTIONS: usize = 150;
/// The idle time that a test begins with. A machine that is too busy gets twice as much.
const READ_IDLE: Duration = ms(400);

fn attached() -> (TimerService<u32>, Attachment<u32>) {
    let service = builder(1).start_attached_with().unwrap();
    let attachment = service.attach(SHARD).unwrap();
    (service, attachment)
}

fn ignore(_: Fired<u32>, _: &Timers<u32>) {}

#[test]
fn shard_is_used_directly_by_tasks_of_its_runtime() {
    for host in HOSTS {
        let (service, attachment) = attached();
        block_on_tokio(host, async {
            let timers = attachment.attach_tokio(ignore).unwrap();
            // By the shard, and by a handle in a task of this thread and in one that may migrate.
            let of_shard = timers.clone();
            let local = tokio::task::spawn_local(async move { of_shard.sleep(ms(2)).await });
            let handle = service.handle();
            let by_handle = tokio::task::spawn_local(async move { handle.sleep(ms(2)).await });
            let sent = tokio::spawn(async move { handle.sleep(ms(2)).await });
            for slept in [local, by_handle, sent] {
                slept.await.unwrap().unwrap();
            }
            let report = service.begin_shutdown(ShutdownPolicy::Return).unwrap().await;
            let counts = report.shards[0].counts;
            assert_eq!((counts.scheduled_local, counts.scheduled_remote), (3, 0), "{host:?}");
            assert_eq!(counts.fired, 3, "{host:?}");
        });
    }
}

#[test]
fn attach_outside_of_both_runtimes_panics_and_leaves_a_dead_shard() {
    let (service, attachment) = attached();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let attached = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async { attachment.attach_tokio(ignore).map(drop) })
    }));
    assert!(attached.is_err());
    assert_eq!(service.stats().shards[0].state, ShardState::Dead);
    assert!(Thread::of(&service).on(SHARD).schedule(FAR, 7).is_err());
}

/// Sleeps by a shard on a runtime of this builder.
fn sleep_on(builder_of_runtime: &mut Builder) {
    let (service, attachment) = attached();
    let runtime = builder_of_runtime.build().unwrap();
    LocalSet::new().block_on(&runtime, async {
        let timers = attachment.attach_tokio(ignore).unwrap();
        for delay in [ms(5), ms(1), ms(2)] {
            let long = timers.schedule(FAR, 1).unwrap();
            timers.sleep(delay).await.unwrap();
            assert!(matches!(timers.cancel(long), CancelOutcome::Cancelled { .. }));
        }
        let report = service.begin_shutdown(ShutdownPolicy::Return).unwrap().await;
        assert_eq!(report.shards[0].counts.fired, 3);
    });
}

#[test]
fn shard_sleeps_on_a_runtime_without_io_or_time_or_whose_clock_is_paused() {
    sleep_on(Builder::new_current_thread().enable_time());
    sleep_on(Builder::new_current_thread().enable_io());
    sleep_on(Builder::new_current_thread().enable_all().start_paused(true));
}

/// Blocks the thread of a shard past the idle time of its connections, whose data has come before.
/// `None` if the data came too late, since the machine is busy. Else how many connections have read
/// their data.
async fn read_after_a_stall(service: &TimerService<u32>, read_idle: Duration) -> Option<usize> {
    let timers = service.attach(SHARD).unwrap().attach_tokio(ignore).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let connect = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
    let (mut clients, servers): (Vec<_>, Vec<_>) = (0..CONNECTIONS).map(|_| connect()).unzip();
    let begin = Instant::now();
    let read = |server: TcpStream| {
        server.set_nonblocking(true).unwrap();
        let mut server = tokio::net::TcpStream::from_std(server).unwrap();
        let limits = ConnLimits::default().read_idle(read_idle);
        let conn = timers.connection(limits).unwrap();
        tokio::task::spawn_local(async move {
            let mut buffer = [0; 8];
            matches!(conn.race(pin!(server.read(&mut buffer))).await, Raced::Done(Ok(5)))
        })
    };
    let reads: Vec<_> = servers.into_iter().map(read).collect();
    // Each task runs until its read waits, and the driver sleeps until the first idle time.
    timers.sleep(ms(20)).await.unwrap();
    for client in &mut clients {
        client.write_all(b"hello").unwrap();
    }
    let is_in_time = begin.elapsed() < read_idle;
    thread::scope(|scope| {
        // A request of another thread wakes the driver, so that it runs before the runtime looks at
        // its sockets.
        scope.spawn(|| Thread::of(service).on(SHARD).schedule(ms(0), 7).unwrap());
    });
    thread::sleep(read_idle + ms(50));
    let mut read = 0;
    for done in reads {
        read += usize::from(done.await.unwrap());
    }
    service.begin_shutdown(ShutdownPolicy::Drop).unwrap().await;
    is_in_time.then_some(read)
}

#[test]
fn stalled_runtime_reads_its_sockets_before_it_delivers_idle_events() {
    for host in HOSTS {
        let in_time = (0..10).find_map(|tries| {
            let service = builder(1).start_attached_with().unwrap();
            block_on_tokio(host, read_after_a_stall(&service, READ_IDLE * (1 << tries)))
        });
        let read = in_time.expect("this machine is too busy to write in time");
        assert_eq!(read, CONNECTIONS, "{host:?}: connections with data in time are idle");
    }
}

//! Sockets are read before timers are delivered, a peer that sends without a pause holds no timer
//! up, and one that reads slowly is kept.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::Raced;
use corewheel::{ConnLimits, DeadlineKind, Reply, ShutdownPolicy};

use crate::Sockets;
use crate::bed::{Bed, FAR, Running, ms, sleep_until, tells};

/// More connections than some runtimes look at in one go.
const CONNECTIONS: usize = 150;
/// The idle time of a connection in the first try. A machine that is too busy gets twice as much.
const READ_IDLE: Duration = ms(400);
const TRIES: u32 = 8;

/// What holds the thread of the shard up past the idle times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stall {
    /// A callback, in a turn of the driver.
    Callback,
    /// Another task, while the driver sleeps.
    Task,
    /// Another task, and a request of another thread wakes the driver meanwhile.
    TaskAndRequest,
}

pub(crate) fn check<S: Sockets>(bed: &Bed, sockets: S) {
    flood(bed, sockets);
    read_beside_events(bed, sockets);
    for stall in [Stall::Callback, Stall::Task, Stall::TaskAndRequest] {
        let in_time = (0..TRIES).find_map(|tries| {
            let running = bed.start_plain();
            let read = read_after(&running, stall, sockets, READ_IDLE * (1 << tries));
            running.end(ShutdownPolicy::Drop);
            read
        });
        let read = in_time.expect("this machine is too busy to write in time");
        assert_eq!(
            read, CONNECTIONS,
            "a shard on this host must read its sockets after a stall before it delivers timers, \
             and connections whose data came in time are idle: {stall:?}"
        );
    }
}

/// A client and the future on the shard that reads from it, which has connected.
fn connect<S: Sockets, O: Send + 'static>(
    running: &Running<()>,
    (listener, address): (&TcpListener, SocketAddr),
    sockets: S,
    work: impl AsyncFnOnce(corewheel::Timers<()>, S::Stream) -> O + Send + 'static,
) -> (TcpStream, Reply<O>) {
    let reply = running.spawn(move |timers| async move {
        let stream = sockets.connect(address).await.expect("a listener is there");
        work(timers, stream).await
    });
    (listener.accept().expect("a shard connects").0, reply)
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("it listens");
    (listener, address)
}

/// Stalls the thread of the shard past the idle times of connections, whose data has come before.
/// `None` if the data came too late, since the machine is busy. Else how many connections have read
/// their data.
fn read_after<S: Sockets>(
    running: &Running<()>,
    stall: Stall,
    sockets: S,
    read_idle: Duration,
) -> Option<usize> {
    let (listener, address) = listen();
    let begun = Instant::now();
    let (waits, waiting) = mpsc::channel();
    let (mut clients, reads): (Vec<_>, Vec<_>) = (0..CONNECTIONS)
        .map(|_| {
            let waits = waits.clone();
            connect(running, (&listener, address), sockets, async move |timers, mut stream| {
                let limits = ConnLimits::default().read_idle(read_idle);
                let conn = timers.connection(limits).expect("there is room");
                let _told = waits.send(Instant::now());
                let read = pin!(sockets.read(&mut stream, 8));
                matches!(conn.race(read).await, Raced::Done(Ok(5)))
            })
        })
        .unzip();
    let opened = clients.iter().map(|_| running.next(&waiting, "run a future that connects"));
    let last = opened.max().unwrap_or(begun);
    // Each task runs until its read waits, and the driver sleeps until the first idle time.
    thread::sleep(ms(20));
    let mut is_in_time = false;
    let mut write = || {
        for client in &mut clients {
            client.write_all(b"hello").expect("the socket has room");
        }
        is_in_time = begun.elapsed() < read_idle;
        last + read_idle + ms(50)
    };
    if stall == Stall::Callback {
        running.stall(write);
    } else {
        let (stalled, is_stalled) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let blocks = running.spawn(move |_| async move {
            let _told = stalled.send(());
            sleep_until(goes.recv().unwrap_or_else(|_| Instant::now()));
        });
        running.next(&is_stalled, "start a future");
        let until = write();
        if stall == Stall::TaskAndRequest {
            running.deliver(Duration::ZERO, ());
        }
        let _told = go.send(until);
        running.finish(blocks, "run a future to its end");
    }
    let mut read = 0;
    for reply in reads {
        let is_read = running.reply(reply, "end a connection that was read or is idle");
        read += usize::from(is_read == Ok(true));
    }
    is_in_time.then_some(read)
}

/// Reads that are lent to `race` go on after each event, so no byte is lost, also where the kernel
/// reads into the buffer meanwhile.
fn read_beside_events<S: Sockets>(bed: &Bed, sockets: S) {
    const CLIENTS: usize = 8;
    const BYTES: usize = 1_000;
    let running = bed.start_plain();
    let (listener, address) = listen();
    let (clients, replies): (Vec<_>, Vec<_>) = (0..CLIENTS)
        .map(|_| {
            connect(&running, (&listener, address), sockets, async move |timers, mut stream| {
                let limits = ConnLimits::default().heartbeat(ms(1));
                let conn = timers.connection(limits).expect("there is room");
                let (mut bytes, mut events) = (0, 0);
                loop {
                    let mut read = pin!(sockets.read(&mut stream, 256));
                    let read = loop {
                        match conn.race(read.as_mut()).await {
                            Raced::Done(read) => break read,
                            Raced::Event(_) => events += 1,
                            Raced::Closed => return (bytes, events),
                        }
                    };
                    match read {
                        Ok(read @ 1..) => bytes += read,
                        _ => return (bytes, events),
                    }
                }
            })
        })
        .unzip();
    let sends = thread::spawn(move || {
        for _ in 0..BYTES {
            for mut client in &clients {
                let _ = client.write(&[7]);
            }
            thread::sleep(Duration::from_micros(200));
        }
    });
    sends.join().expect("the peers do not panic");
    for reply in replies {
        let read = running.reply(reply, "read to the end of a stream");
        let is_whole = matches!(read, Ok((BYTES, 1..)));
        running.must("lose no byte of a read that an event has come before", is_whole);
    }
    running.end(ShutdownPolicy::Drop);
}

/// Writes more than the system takes at once, to a client that reads slowly for longer than the
/// limit of a write, and to one that reads nothing. The buffers are those of the system.
pub(crate) fn slow_reader<S: Sockets>(bed: &Bed, sockets: S) {
    const TOTAL: usize = 50_000_000;
    const LIMIT: Duration = Duration::from_secs(4);
    let running = bed.start_plain();
    let (listener, address) = listen();
    let write = |limit| {
        connect(&running, (&listener, address), sockets, async move |timers, mut stream| {
            let limits = ConnLimits::default().write_timeout(limit);
            let conn = timers.connection(limits).expect("there is room");
            let writing = conn.begin_write();
            let raced = sockets.race_write(&mut stream, &conn, vec![7; TOTAL]).await;
            (writing.finish(), raced)
        })
    };
    let (slow, kept) = write(LIMIT);
    let (stops, reset) = write(ms(1_000));
    let reads = thread::spawn(move || read_slowly(slow, LIMIT + LIMIT / 2));
    let stopped = running.reply(reset, "end a write whose client reads nothing");
    let is_reset = matches!(
        &stopped,
        Ok((false, Raced::Event(event))) if event.kind == DeadlineKind::WriteTimeout
    );
    running.must("end a write whose client reads nothing by its limit", is_reset);
    let (own, peer) = (stops.local_addr(), stops.peer_addr());
    let (own, peer) = (own.expect("it is bound"), peer.map_or(0, |peer| peer.port()));
    // Otherwise, the system keeps what was not read for minutes.
    let is_gone = (0..1_000).any(|_| {
        thread::sleep(ms(10));
        peer == 0 || !is_known(peer, own.port())
    });
    running.must("reset a client that reads nothing", is_gone);
    let kept = running.reply(kept, "end a write whose client reads slowly");
    let is_kept = matches!(kept, Ok((true, Raced::Done(Ok(())))));
    running.must("keep a client that reads 100 kB a second", is_kept);
    let read = reads.join().expect("the client does not panic");
    running.must("write all to a client that reads slowly", read == TOTAL);
    running.end(ShutdownPolicy::Drop);
}

/// Reads 10 kB each 100 ms for a time, and the rest without a pause. Returns how much came.
fn read_slowly(mut client: TcpStream, time: Duration) -> usize {
    let (begin, mut read, mut part) = (Instant::now(), 0, vec![0; 1 << 20]);
    loop {
        let is_slow = begin.elapsed() < time;
        let most = if is_slow { 10_000 } else { part.len() };
        match client.read(&mut part[..most]) {
            Ok(count @ 1..) => read += count,
            _ => return read,
        }
        if is_slow {
            thread::sleep(ms(100));
        }
    }
}

/// Whether the system has a socket of these two ports, in any state. False where it does not say.
fn is_known(local: u16, peer: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let ends = [format!(":{local:04X}"), format!(":{peer:04X}")];
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        ends.iter().all(|end| fields.next().is_some_and(|field| field.ends_with(end)))
    })
}

/// A peer sends without a pause until a timer of the shard has fired.
fn flood<S: Sockets>(bed: &Bed, sockets: S) {
    let running = bed.start_plain();
    let (listener, address) = listen();
    let at = (&listener, address);
    let (mut client, reply) = connect(&running, at, sockets, async move |timers, mut stream| {
        let mut bytes = 0;
        // The end of the stream ends it.
        while let Ok(Ok(read @ 1..)) = timers.timeout(FAR, sockets.read(&mut stream, 256)).await {
            bytes += read;
        }
        bytes
    });
    let (sender, fired) = mpsc::channel();
    running.call(ms(50), tells(sender));
    let sends = thread::spawn(move || {
        let mut sent = 0;
        while fired.try_recv().is_err() {
            match client.write(&[7; 4_096]) {
                Ok(written) => sent += written,
                Err(_) => break,
            }
        }
        sent
    });
    let read = running.reply(reply, "fire a timer while a peer sends without a pause");
    let sent = sends.join().expect("the peer does not panic");
    running.must("read all that a peer has sent", read == Ok(sent));
    running.end(ShutdownPolicy::Drop);
}

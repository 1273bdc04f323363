//! Random histories of reads by completion, as a host with `io_uring` has them: the kernel puts
//! what comes into the buffer of a read that waits, and a read that is dropped takes it along.
//!
//! A server lends its read to each race, and no byte is lost by a heartbeat between two of them. No
//! connection ends as idle whose byte was in the buffer of its read in time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use corewheel::conn::ConnTimers;
use corewheel::sim::net::Stream;
use corewheel::{ConnLimits, ShardId};
use fastrand::Rng;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::judge::{
    Command, Fault, History, Judge, Kind, Place, at_place, one_of, pair, poll_read, start,
};
use crate::sockets::laws::End;
use crate::sockets::servers::Events;
use crate::sockets::settings;

/// No fault lasts longer.
const FAULT_MAX: Duration = Duration::from_millis(100);

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let command = |rng: &mut Rng| {
        let (time, on) = (FAULT_MAX.mul_f64(rng.f64()), rng.u8(..2));
        match rng.u8(..10) {
            0..=2 => Command::Open(on, rng.u64(..)),
            3..=5 => Command::Run(time),
            6..=7 => Command::Fault(Fault::HoldDriver(time)),
            8 => Command::Fault(Fault::Stall(on, time)),
            _ => Command::Fault(Fault::WakeSome(on)),
        }
    };
    (0..rng.usize(5..30)).map(|_| command(rng)).collect()
}

/// The tasks of a history share nothing else.
pub(crate) struct Known;

type World = Judge<Known>;

/// A read that the kernel has done.
struct Completed {
    number: u64,
    bytes: Vec<u8>,
    at: Duration,
}

/// What a runtime and the kernel share for the reads of a socket.
#[derive(Default)]
struct Ring {
    /// The read that waits, by its number, and its room.
    waits: Cell<Option<(u64, usize)>>,
    last: Cell<u64>,
    /// What the runtime has not looked at, each with a byte in its stream.
    completed: RefCell<VecDeque<Completed>>,
    kernel: RefCell<Option<Waker>>,
    is_closed: Cell<bool>,
}

impl Ring {
    fn wake(&self) {
        if let Some(kernel) = self.kernel.take() {
            kernel.wake();
        }
    }

    /// Does the reads: from the socket into their buffers. Each completion is told by a byte.
    async fn complete(&self, world: &World, mut socket: Stream, mut told: Stream) {
        poll_fn(|cx| {
            self.kernel.replace(Some(cx.waker().clone()));
            if self.is_closed.get() {
                return Poll::Ready(());
            }
            while let Some((number, room)) = self.waits.get() {
                let mut bytes = vec![0; room];
                let count = ready!(poll_read(&mut socket, cx, &mut bytes)).unwrap_or(0);
                bytes.truncate(count);
                self.waits.set(None);
                let at = world.now();
                self.completed.borrow_mut().push_back(Completed { number, bytes, at });
                // Its buffer has room.
                let _ = Pin::new(&mut told).poll_write(cx, b"c");
            }
            Poll::Pending
        })
        .await;
    }
}

/// A socket that is read by completion.
struct Socket {
    ring: Rc<Ring>,
    /// Ready when the runtime has looked at completions.
    told: RefCell<Stream>,
    /// What the last read that is done has brought.
    brought: RefCell<Vec<u8>>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.ring.is_closed.set(true);
        self.ring.wake();
    }
}

impl Socket {
    fn read(&self, room: usize) -> Read<'_> {
        let number = self.ring.last.get() + 1;
        self.ring.last.set(number);
        self.ring.waits.set(Some((number, room)));
        self.ring.wake();
        Read { socket: self, number }
    }
}

/// A read that the kernel does. Dropped, it takes along what the kernel has put into its buffer.
struct Read<'a> {
    socket: &'a Socket,
    number: u64,
}

impl Future for Read<'_> {
    type Output = io::Result<usize>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Socket { ring, told, brought } = self.socket;
        loop {
            let _ = ready!(poll_read(&mut *told.borrow_mut(), cx, &mut [0]));
            let completed = ring.completed.borrow_mut().pop_front().expect("it is told of");
            // That of a read that was dropped is lost.
            if completed.number == self.number {
                brought.replace(completed.bytes);
                return Poll::Ready(Ok(brought.borrow().len()));
            }
        }
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        let waits = &self.socket.ring.waits;
        waits.set(waits.get().filter(|(number, _)| *number != self.number));
    }
}

/// Reads until the client ends, or is idle.
async fn serve<M: Events>(
    world: Rc<World>,
    socket: Socket,
    conn: ConnTimers<M>,
    limit: Duration,
    mut rng: Rng,
) {
    let mut next = 0_u8;
    loop {
        conn.touch_read();
        let due = world.now() + limit;
        let room = rng.usize(1..=16);
        let mut read = Box::pin(socket.read(room));
        let waited = loop {
            match M::raced(conn.race(read.as_mut()).await) {
                Err(End::Beat) => {
                    conn.touch_write();
                    world.count("beats", 1);
                }
                waited => break waited,
            }
        };
        drop(read);
        match waited {
            Ok(0) => return,
            Ok(count) => {
                for byte in socket.brought.borrow().iter() {
                    if *byte != next {
                        world.violate(format!("a byte {byte} in place of {next}"));
                    }
                    next = byte.wrapping_add(1);
                }
                world.count("bytes", count as u64);
            }
            Err(End::Idle) => {
                let now = world.now();
                let completed = socket.ring.completed.borrow();
                let came = completed.front().map(|one| one.at).filter(|at| *at < due);
                if now < due || came.is_some() {
                    let text =
                        format!("idle at {now:?}, due at {due:?}, its byte came at {came:?}");
                    world.violate(text);
                }
                return;
            }
            Err(end) => return world.violate(format!("it ends by {end:?}")),
        }
    }
}

/// Sends bytes that count, with pauses of about the time of a heartbeat or of the limit.
async fn client(
    world: Rc<World>,
    mut stream: Stream,
    limit: Duration,
    beat: Duration,
    mut rng: Rng,
) {
    let mut next = 0_u8;
    for _ in 0..rng.u32(1..30) {
        let count = rng.u8(1..20);
        let bytes: Vec<_> = (0..count).map(|at| next.wrapping_add(at)).collect();
        next = next.wrapping_add(count);
        if stream.write_all(&bytes).await.is_err() {
            return;
        }
        let about = one_of(&mut rng, &[beat, beat, 2 * beat, limit]).as_micros() as u64;
        let random = rng.u64(..=about);
        let micros = one_of(&mut rng, &[about - 1, about, about.saturating_sub(500), random]);
        world.time.sleep(Duration::from_micros(micros)).await;
    }
}

impl Kind for Known {
    /// Whether the server's task has ended.
    type Seen = Cell<bool>;

    fn new(seed: u64) -> History<Self> {
        let mut rng = Rng::with_seed(!seed);
        let (builder, _) = settings(&mut rng);
        let sim = start(seed, builder);
        let net = sim.net();
        let of_any = net.runtime(rng.usize(1..=3));
        let of_shard = sim.runtime_of(ShardId::new(0), &net);
        History::of(sim, net, vec![of_any, of_shard], Self)
    }

    fn open(history: &mut History<Self>, on: usize, mut rng: Rng) {
        let (world, seen) = (&history.world, Rc::<Cell<bool>>::default());
        let number = 2 * history.seen.len() as u16;
        history.seen.push(Rc::clone(&seen));
        let (at_kernel, of_client) = pair(&history.net, number);
        let (at_runtime, told) = pair(&history.net, number + 1);
        let beat = Duration::from_micros(rng.u64(2_000..20_000));
        let limit = beat * rng.u32(2..5);
        let reads = Rc::<Ring>::default();
        let (shared, of_kernel) = (Rc::clone(world), Rc::clone(&reads));
        drop(history.sim.spawn(async move {
            let socket = at_kernel.accept().await;
            of_kernel.complete(&shared, socket, told).await;
        }));
        let client = client(Rc::clone(world), of_client, limit, beat, rng.fork());
        drop(history.sim.spawn(client));
        let limits = ConnLimits::default().read_idle(limit).heartbeat(beat);
        let (timers, world) = (history.timers(on), Rc::clone(world));
        drop(history.runtimes[on].spawn(async move {
            let told = RefCell::new(at_runtime.accept().await);
            let socket = Socket { ring: reads, told, brought: RefCell::default() };
            at_place!(timers, |place| {
                serve(world, socket, Place::connection(&place, limits), limit, rng).await;
            });
            seen.set(true);
        }));
    }

    fn check(_: &History<Self>, _: bool) {}

    fn finish(history: &mut History<Self>) {
        history.run_for(Duration::from_secs(60));
        assert!(history.seen.iter().all(|seen| seen.get()), "connections have not ended");
    }
}

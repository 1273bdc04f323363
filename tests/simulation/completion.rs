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
use corewheel::sim::Simulation;
use corewheel::sim::net::{Net, Runtime, Stream};
use corewheel::{ConnLimits, ShardId};
use fastrand::Rng;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::judge::{Done, Fault, Judge, end, one_of, pair, run_for, start};
use crate::sockets::laws::End;
use crate::sockets::servers::Events;
use crate::sockets::settings;

/// No fault lasts longer.
const FAULT_MAX: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Open { on_shard: bool, seed: u64 },
    Run(Duration),
    Fault(Fault),
}

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let command = |rng: &mut Rng| {
        let (time, on_shard) = (FAULT_MAX.mul_f64(rng.f64()), rng.bool());
        match rng.u8(..10) {
            0..=2 => Command::Open { on_shard, seed: rng.u64(..) },
            3..=5 => Command::Run(time),
            6..=7 => Command::Fault(Fault::HoldDriver(time)),
            8 => Command::Fault(Fault::Stall { on: on_shard.into(), time }),
            _ => Command::Fault(Fault::WakeSome { on: on_shard.into() }),
        }
    };
    (0..rng.usize(5..30)).map(|_| command(rng)).collect()
}

/// Shared with how many connections are left.
type World = Judge<Cell<u32>>;

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
                let mut part = ReadBuf::new(&mut bytes);
                let _ = ready!(Pin::new(&mut socket).poll_read(cx, &mut part));
                let bytes = part.filled().to_vec();
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
            let mut byte = [0];
            let mut part = ReadBuf::new(&mut byte);
            let _ = ready!(Pin::new(&mut *told.borrow_mut()).poll_read(cx, &mut part));
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

struct History {
    sim: Simulation<u8>,
    net: Net,
    world: Rc<World>,
    /// That of any thread, and that of the first shard.
    runtimes: [Runtime; 2],
}

/// Runs the history of a seed.
pub(crate) fn run(seed: u64, commands: &[Command]) -> Done {
    let mut history = History::new(seed);
    for command in commands {
        history.execute(*command);
    }
    history.run_for(Duration::from_secs(60));
    assert_eq!(history.world.get(), 0, "connections have not ended");
    end(history.sim, &history.net);
    history.world.done()
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let (builder, _) = settings(&mut rng);
        let sim = start(seed, builder);
        let net = sim.net();
        let of_any = net.runtime(rng.usize(1..=3));
        let of_shard = sim.runtime_of(ShardId::new(0), &net);
        let world = Rc::new(Judge::new(&sim, Cell::new(0)));
        Self { sim, net, world, runtimes: [of_any, of_shard] }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Open { on_shard, seed } => self.open(on_shard, Rng::with_seed(seed)),
            Command::Run(time) => self.run_for(time),
            Command::Fault(fault) => fault.execute(&mut self.sim, &self.runtimes),
        }
    }

    fn open(&mut self, on_shard: bool, mut rng: Rng) {
        let world = &self.world;
        let number = 2 * world.done().get("connections") as u16;
        world.count("connections", 1);
        world.set(world.get() + 1);
        let (at_kernel, of_client) = pair(&self.net, number);
        let (at_runtime, told) = pair(&self.net, number + 1);
        let beat = Duration::from_micros(rng.u64(2_000..20_000));
        let limit = beat * rng.u32(2..5);
        let reads = Rc::<Ring>::default();
        let (shared, of_kernel) = (Rc::clone(world), Rc::clone(&reads));
        drop(self.sim.spawn(async move {
            let socket = at_kernel.accept().await;
            of_kernel.complete(&shared, socket, told).await;
        }));
        let client = client(Rc::clone(world), of_client, limit, beat, rng.fork());
        drop(self.sim.spawn(client));
        let limits = ConnLimits::default().read_idle(limit).heartbeat(beat);
        let handle = self.sim.service().handle();
        let timers = on_shard.then(|| self.sim.timers(ShardId::new(0)).clone());
        let shared = Rc::clone(world);
        drop(self.runtimes[usize::from(on_shard)].spawn(async move {
            let told = RefCell::new(at_runtime.accept().await);
            let socket = Socket { ring: reads, told, brought: RefCell::default() };
            let world = Rc::clone(&shared);
            match timers {
                Some(timers) => {
                    let conn = timers.connection(limits).expect("there is room");
                    serve(world, socket, conn, limit, rng).await;
                }
                None => serve(world, socket, handle.connection(limits), limit, rng).await,
            }
            shared.set(shared.get() - 1);
        }));
    }

    fn run_for(&mut self, time: Duration) {
        run_for(&mut self.sim, time, |sim| {
            sim.step();
            self.world.check();
        });
    }
}

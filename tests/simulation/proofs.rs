//! Random histories of waits with a limit whose bytes another task reads, as the bodies of the
//! requests of a connection are, and of waits that read a socket themselves.
//!
//! Each byte from a client names the wait that it is for. The threads of the runtime lose their
//! processors where a byte was read and is not handed over, and tasks are polled without a reason
//! at any moment. A wait whose limit ends it is judged by when its byte came to the kernel.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::slice;
use std::task::{Poll, Waker};
use std::time::Duration;

use corewheel::sim::Simulation;
use corewheel::sim::net::{Net, Runtime, Stream, preempt};
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{TimeoutError, TimerService};
use fastrand::Rng;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::judge::{Done, Fault, Judge, end, one_of, pair, run_for, start};

/// No limit of a wait is longer, in microseconds.
const LIMIT_MAX: u64 = 50_000;
const CHANNELS_MAX: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Run(Duration),
    Fault(Fault),
}

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let command = |rng: &mut Rng| {
        let time = Duration::from_micros(rng.u64(..2 * LIMIT_MAX));
        match rng.u8(..10) {
            0..=3 => Command::Run(time),
            4..=6 => Command::Fault(Fault::HoldDriver(time)),
            7 => Command::Fault(Fault::StallWorker { on: 0, time }),
            8 => Command::Fault(Fault::Stall { on: 0, time }),
            _ => Command::Fault(Fault::WakeSome { on: 0 }),
        }
    };
    (0..rng.usize(5..40)).map(|_| command(rng)).collect()
}

/// Shared with whether the history is over.
type World = Judge<Cell<bool>>;

impl World {
    /// Waits for a byte with a limit, again and again. `came` says when the first byte came that no
    /// wait has got.
    async fn wait_often<W: Future<Output = Result<bool, TimeoutError>>>(
        &self,
        name: &str,
        limit: Duration,
        mut wait: impl FnMut() -> W,
        came: impl Fn() -> Option<Duration>,
    ) {
        loop {
            let due = self.now() + limit;
            let waited = wait().await;
            match waited {
                Ok(true) => self.count("in time", 1),
                Err(TimeoutError::Elapsed) => {
                    self.count("late", 1);
                    if let Some(at) = came().filter(|at| *at < due) {
                        let now = self.now();
                        let text = format!(
                            "{name} ends at {now:?}, due at {due:?}, and its byte came at {at:?}"
                        );
                        self.violate(text);
                    }
                }
                Ok(false) | Err(TimeoutError::NoTimer(_)) => return,
            }
        }
    }

    /// A pause that often ends shortly before a limit.
    async fn pause(&self, rng: &mut Rng, limit: Duration) {
        let micros = limit.as_micros() as u64;
        let micros = match rng.u8(..4) {
            0 => rng.u64(..=micros),
            1 => micros + rng.u64(..=1_000),
            _ => micros - rng.u64(1..=micros.min(2_000)),
        };
        self.time.sleep(Duration::from_micros(micros)).await;
    }
}

/// What another task reads for a wait.
#[derive(Default)]
struct Channel {
    /// When each byte came that no wait has got.
    came: RefCell<VecDeque<Duration>>,
    /// How many of them were handed over.
    handed_over: Cell<usize>,
    has_ended: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl Channel {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Waits for a byte that was handed over. False at the end.
    async fn receive(&self) -> bool {
        poll_fn(|cx| {
            if self.handed_over.get() > 0 {
                self.handed_over.set(self.handed_over.get() - 1);
                self.came.borrow_mut().pop_front();
                return Poll::Ready(true);
            }
            if self.has_ended.get() {
                return Poll::Ready(false);
            }
            self.waker.replace(Some(cx.waker().clone()));
            Poll::Pending
        })
        .await
    }
}

/// Reads for all channels, until the client ends.
async fn read_for(channels: &[Rc<Channel>], mut stream: TimedIo<Stream>, room: usize) {
    let mut buffer = vec![0; room];
    loop {
        let read = poll_fn(|cx| {
            let mut part = ReadBuf::new(&mut buffer);
            let polled = Pin::new(&mut stream).poll_read(cx, &mut part);
            if polled.is_ready() {
                // The task has the bytes, and has not looked at them.
                preempt();
            }
            polled.map_ok(|()| part.filled().len())
        });
        let count = match read.await {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        for number in &buffer[..count] {
            let channel = &channels[usize::from(*number)];
            channel.handed_over.set(channel.handed_over.get() + 1);
            channel.wake();
        }
    }
    for channel in channels {
        channel.has_ended.set(true);
        channel.wake();
    }
}

struct History {
    sim: Simulation<u8>,
    net: Net,
    runtime: Runtime,
    world: Rc<World>,
    rng: Rng,
    /// In how many of 256 steps tasks are polled without a reason.
    restlessness: u8,
}

/// Runs the history of a seed.
pub(crate) fn run(seed: u64, commands: &[Command]) -> Done {
    let mut history = History::new(seed);
    for number in 0..history.rng.u16(1..3) {
        history.open(number);
        history.open_alone(100 + number);
    }
    for command in commands {
        history.execute(*command);
    }
    history.world.set(true);
    history.run_for(Duration::from_secs(5));
    end(history.sim, &history.net);
    history.world.done()
}

impl History {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(!seed);
        let tick = Duration::from_micros(one_of(&mut rng, &[100, 1_000]));
        let builder =
            TimerService::beside_runtime().shards(rng.usize(1..=2)).tick(tick).capacity(500);
        let sim = start(seed, builder);
        let net = sim.net();
        let runtime = net.runtime(rng.usize(1..=3)).events_max(one_of(&mut rng, &[1, 2, 1_024]));
        let runtime = runtime.budget(one_of(&mut rng, &[1, 8, 128])).reads_long(true);
        let world = Rc::new(Judge::new(&sim, Cell::new(false)));
        let restlessness = one_of(&mut rng, &[0, 4, 16]);
        Self { sim, net, runtime, world, rng, restlessness }
    }

    /// A connection on which one task reads for others.
    fn open(&mut self, number: u16) {
        let (listener, client) = pair(&self.net, number);
        let client = Rc::new(RefCell::new(client));
        let channels: Vec<_> =
            (0..self.rng.usize(1..=CHANNELS_MAX)).map(|_| Rc::<Channel>::default()).collect();
        let limit = Duration::from_micros(self.rng.u64(3_000..LIMIT_MAX));
        for (number, channel) in (0..).zip(&channels) {
            let (world, channel, client) =
                (Rc::clone(&self.world), Rc::clone(channel), Rc::clone(&client));
            let mut rng = self.rng.fork();
            drop(self.sim.spawn(async move {
                while !world.get() {
                    world.pause(&mut rng, limit).await;
                    channel.came.borrow_mut().push_back(world.now());
                    let byte = [number];
                    let written =
                        poll_fn(|cx| Pin::new(&mut *client.borrow_mut()).poll_write(cx, &byte));
                    if written.await.is_err() {
                        break;
                    }
                }
            }));
        }
        drop(client);
        let (world, runtime) = (Rc::clone(&self.world), self.runtime.clone());
        let (timers, room) = (self.sim.service().handle().untyped(), self.rng.usize(1..10));
        drop(self.runtime.spawn(async move {
            let stream = listener.accept().await;
            let stream = TimedIo::new(stream, timers, StreamLimits::default());
            for (number, channel) in channels.iter().enumerate() {
                let (world, channel) = (Rc::clone(&world), Rc::clone(channel));
                let control = stream.control();
                drop(runtime.spawn(async move {
                    let came = || channel.came.borrow().front().copied();
                    let wait = || control.timeout(limit, channel.receive());
                    world.wait_often(&format!("wait {number}"), limit, wait, came).await;
                }));
            }
            read_for(&channels, stream, room).await;
        }));
    }

    /// A connection whose task reads for itself.
    fn open_alone(&mut self, number: u16) {
        let (listener, mut client) = pair(&self.net, number);
        let limit = Duration::from_micros(self.rng.u64(3_000..LIMIT_MAX));
        let (world, mut rng) = (Rc::clone(&self.world), self.rng.fork());
        drop(self.sim.spawn(async move {
            while !world.get() && client.write_all(b"a").await.is_ok() {
                world.pause(&mut rng, limit).await;
            }
        }));
        let world = Rc::clone(&self.world);
        let timers = self.sim.service().handle().untyped();
        drop(self.runtime.spawn(async move {
            let stream = RefCell::new(listener.accept().await);
            let witness = stream.borrow().socket();
            let read = || async {
                let read = poll_fn(|cx| {
                    let mut byte = [0];
                    let mut part = ReadBuf::new(&mut byte);
                    let polled = Pin::new(&mut *stream.borrow_mut()).poll_read(cx, &mut part);
                    polled.map_ok(|()| part.filled().len())
                });
                read.await.is_ok_and(|count| count > 0)
            };
            let wait = || timers.timeout(limit, read());
            world.wait_often("a read", limit, wait, || witness.known().unread_since()).await;
        }));
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Run(time) => self.run_for(time),
            Command::Fault(fault) => fault.execute(&mut self.sim, slice::from_ref(&self.runtime)),
        }
    }

    fn run_for(&mut self, time: Duration) {
        run_for(&mut self.sim, time, |sim| {
            if self.rng.u8(..) < self.restlessness {
                self.runtime.wake_some();
            }
            sim.step();
            self.world.check();
        });
    }
}

/// A task that has used up its budget finds a socket not ready that has more for it.
#[test]
fn read_without_a_budget_proves_nothing_of_what_it_has_not_read() {
    let commands = [48_863, 62_253].map(Duration::from_micros);
    let commands = [Command::Run(commands[0]), Command::Fault(Fault::HoldDriver(commands[1]))];
    for seed in 190..200 {
        run(seed, &commands);
    }
}

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
use std::task::{Poll, Waker};
use std::time::Duration;

use corewheel::sim::net::{Runtime, Stream, preempt};
use corewheel::stream::{StreamLimits, TimedIo};
use corewheel::{TimeoutError, TimerService};
use fastrand::Rng;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::judge::{Command, Fault, History, Judge, Kind, one_of, pair, poll_read, run, start};

/// No limit of a wait is longer, in microseconds.
const LIMIT_MAX: u64 = 50_000;
const CHANNELS_MAX: usize = 3;

pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let command = |rng: &mut Rng| {
        let time = Duration::from_micros(rng.u64(..2 * LIMIT_MAX));
        match rng.u8(..10) {
            0..=3 => Command::Run(time),
            4..=6 => Command::Fault(Fault::HoldDriver(time)),
            7 => Command::Fault(Fault::StallWorker(0, time)),
            8 => Command::Fault(Fault::Stall(0, time)),
            _ => Command::Fault(Fault::WakeSome(0)),
        }
    };
    (0..rng.usize(5..40)).map(|_| command(rng)).collect()
}

pub(crate) struct Known {
    is_over: Cell<bool>,
    rng: RefCell<Rng>,
    /// In how many of 256 steps tasks are polled without a reason.
    restlessness: u8,
}

type World = Judge<Known>;

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
                        self.violate(format!(
                            "{name} of {due:?} ends at {now:?}, its byte: {at:?}"
                        ));
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
            let polled = poll_read(&mut stream, cx, &mut buffer);
            if polled.is_ready() {
                // The task has the bytes, and has not looked at them.
                preempt();
            }
            polled
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

impl Kind for Known {
    type Seen = ();

    fn new(seed: u64) -> History<Self> {
        let mut rng = Rng::with_seed(!seed);
        let tick = Duration::from_micros(one_of(&mut rng, &[100, 1_000]));
        let builder =
            TimerService::beside_runtime().shards(rng.usize(1..=2)).tick(tick).capacity(500);
        let sim = start(seed, builder);
        let net = sim.net();
        let runtime = net.runtime(rng.usize(1..=3)).events_max(one_of(&mut rng, &[1, 2, 1_024]));
        let runtime = runtime.budget(one_of(&mut rng, &[1, 8, 128])).reads_long(true);
        let restlessness = one_of(&mut rng, &[0, 4, 16]);
        let (count, mut seeds) = (rng.u16(1..3), rng.fork());
        let known = Self { is_over: Cell::new(false), rng: RefCell::new(rng), restlessness };
        let mut history = History::of(sim, net, vec![runtime], known);
        for _ in 0..count {
            Self::open(&mut history, 0, seeds.fork());
        }
        history
    }

    fn open(history: &mut History<Self>, on: usize, mut rng: Rng) {
        let number = 2 * history.seen.len() as u16;
        history.seen.push(Rc::new(()));
        open_shared(history, &history.runtimes[on], number, rng.fork());
        open_alone(history, &history.runtimes[on], number + 1, rng);
    }

    fn check(history: &History<Self>, _: bool) {
        if history.world.rng.borrow_mut().u8(..) < history.world.restlessness {
            history.runtimes[0].wake_some();
        }
    }

    fn finish(history: &mut History<Self>) {
        history.world.is_over.set(true);
        history.run_for(Duration::from_secs(5));
    }
}

/// A connection on which one task reads for others.
fn open_shared(history: &History<Known>, runtime: &Runtime, number: u16, mut rng: Rng) {
    let (listener, client) = pair(&history.net, number);
    let client = Rc::new(RefCell::new(client));
    let channels: Vec<_> =
        (0..rng.usize(1..=CHANNELS_MAX)).map(|_| Rc::<Channel>::default()).collect();
    let limit = Duration::from_micros(rng.u64(3_000..LIMIT_MAX));
    for (number, channel) in (0..).zip(&channels) {
        let (world, channel, client) =
            (Rc::clone(&history.world), Rc::clone(channel), Rc::clone(&client));
        let mut rng = rng.fork();
        drop(history.sim.spawn(async move {
            while !world.is_over.get() {
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
    let (world, within) = (Rc::clone(&history.world), runtime.clone());
    let (timers, room) = (history.sim.service().handle().untyped(), rng.usize(1..10));
    drop(runtime.spawn(async move {
        let stream = listener.accept().await;
        let stream = TimedIo::new(stream, timers, StreamLimits::default());
        for (number, channel) in channels.iter().enumerate() {
            let (world, channel) = (Rc::clone(&world), Rc::clone(channel));
            let control = stream.control();
            drop(within.spawn(async move {
                let came = || channel.came.borrow().front().copied();
                let wait = || control.timeout(limit, channel.receive());
                world.wait_often(&format!("wait {number}"), limit, wait, came).await;
            }));
        }
        read_for(&channels, stream, room).await;
    }));
}

/// A connection whose task reads for itself.
fn open_alone(history: &History<Known>, runtime: &Runtime, number: u16, mut rng: Rng) {
    let (listener, mut client) = pair(&history.net, number);
    let limit = Duration::from_micros(rng.u64(3_000..LIMIT_MAX));
    let world = Rc::clone(&history.world);
    drop(history.sim.spawn(async move {
        while !world.is_over.get() && client.write_all(b"a").await.is_ok() {
            world.pause(&mut rng, limit).await;
        }
    }));
    let (world, timers) = (Rc::clone(&history.world), history.sim.service().handle().untyped());
    drop(runtime.spawn(async move {
        let stream = RefCell::new(listener.accept().await);
        let witness = stream.borrow().socket();
        let read = || async {
            let read = poll_fn(|cx| poll_read(&mut *stream.borrow_mut(), cx, &mut [0]));
            read.await.is_ok_and(|count| count > 0)
        };
        let wait = || timers.timeout(limit, read());
        world.wait_often("a read", limit, wait, || witness.known().unread_since()).await;
    }));
}

/// A task that has used up its budget finds a socket not ready that has more for it. That happens
/// in these histories, which fail where such a read counts as one that has found nothing.
#[test]
fn read_without_a_budget_proves_nothing_of_what_it_has_not_read() {
    let commands = [48_863, 62_253].map(Duration::from_micros);
    let commands = [Command::Run(commands[0]), Command::Fault(Fault::HoldDriver(commands[1]))];
    for seed in [17, 486, 773, 1235, 1744, 2053] {
        run::<Known>(seed, &commands);
    }
}

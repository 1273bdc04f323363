//! Shards in loops of a test, which a manual clock takes from deadline to deadline.
//!
//! Why not steps of a fixed length: a timer that is due between two steps would be late, and an
//! hour has millions of ticks. Why not the simulation: the test has the tasks and the executor of
//! its own, and no seed.
//!
//! Invariants: the clock moves only when no shard has work and no task was woken.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use super::own_loop::{ShardLoop, Turn};
use crate::clock::ManualClock;
use crate::face::timers::Timers;
use crate::link::woken::WokenFlag;
use crate::shard::handler::Fired;

/// The most turns of a shard, and the most polls of the tasks, while the clock stands still. More
/// of them mean that timers or tasks cause each other for ever.
const ROUNDS_MAX: u32 = 100_000;

/// The tasks of a test, and whether they were woken since their last poll.
struct Tasks<'a, F> {
    /// `None` when the future is done.
    future: Option<Pin<&'a mut F>>,
    woken: Arc<Woken>,
}

struct Woken(WokenFlag);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.set();
    }
}

impl<F: Future<Output = ()>> Tasks<'_, F> {
    /// Polls the tasks if they were woken.
    fn poll(&mut self) {
        let Some(future) = self.future.as_mut().filter(|_| self.woken.0.take()) else { return };
        let waker = Waker::from(Arc::clone(&self.woken));
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            self.future = None;
        }
    }
}

/// Shards that a test drives itself.
impl ManualClock {
    /// Takes turns of shards and polls tasks until no shard has a timer left and no task was woken,
    /// and moves the clock from deadline to deadline. No timer is late.
    ///
    /// While a shard has work at the present moment, the clock stands still. Then it moves to the
    /// earliest moment at which a shard wants a turn, but never more than `within` in all: a timer
    /// that repeats keeps a shard from being idle. A shard wants a turn at each deadline; before a
    /// far one, to file its timer anew; and within a second to drop the wakers of futures that have
    /// ended, so that the clock may move past the last deadline. So it does after a cancel without
    /// a reply.
    ///
    /// Returns [`Turn::Idle`] when no timer is pending, or only timers that never fire;
    /// [`Turn::Closed`] when all shards are shut down; and [`Turn::Next`] when `within` has passed,
    /// with the moment of the next turn, which is at or before the earliest deadline.
    ///
    /// It does not wait for other threads: a request that comes after the last turn is received by
    /// the next one.
    ///
    /// ```
    /// use corewheel::attach::Turn;
    /// use corewheel::clock::ManualClock;
    /// use corewheel::TimerService;
    /// use std::future::pending;
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let service = TimerService::builder().shards(1).clock(&clock).start_attached_with::<u32>()?;
    /// let attachment = service.attach(service.shard_for(0))?;
    /// // Ten tries, each after twice the time of the one before.
    /// let shard = attachment.into_loop(|fired, timers| {
    ///     if fired.payload < 10 {
    ///         let delay = Duration::from_secs(1 << fired.payload);
    ///         timers.schedule(delay, fired.payload + 1).expect("there is room");
    ///     }
    /// })?;
    /// shard.timers().schedule(Duration::from_secs(1), 1)?;
    ///
    /// let (begin, mut shards) = (clock.now(), [shard]);
    /// let turn = clock.run_until_idle(&mut shards, Duration::from_secs(3_600), pending());
    /// assert_eq!(turn, Turn::Idle);
    /// assert_eq!(clock.now() - begin, Duration::from_secs(1_023));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// `tasks` is a future, such as a `LocalSet` of tokio or a join of several futures. It is
    /// polled on this thread, which needs no runtime: at first, and whenever it was woken, but not
    /// after its end. A test without tasks gives [`pending`](std::future::pending).
    /// It may wait by the futures of a [`Handle`](crate::Handle), by commands to a
    /// [`Kept`](crate::kept::Kept), by channels and by `tokio::io::duplex`.
    ///
    /// ```
    /// use corewheel::attach::Turn;
    /// use corewheel::clock::ManualClock;
    /// use corewheel::stream::{StreamLimits, TimedIo};
    /// use corewheel::TimerService;
    /// use std::io::ErrorKind;
    /// use std::time::Duration;
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    ///
    /// let clock = ManualClock::new();
    /// let builder = TimerService::builder().shards(1).clock(&clock);
    /// let service: TimerService = builder.start_attached()?;
    /// let attachment = service.attach(service.shard_for(0))?;
    /// let mut shards = [attachment.into_loop(|_, _| ())?];
    ///
    /// let (mut client, accepted) = duplex(64);
    /// let limits = StreamLimits::default().read_idle(Duration::from_secs(30));
    /// let stream = TimedIo::new(accepted, service.handle(), limits);
    /// let mut ended = None;
    /// let server = async {
    ///     let mut stream = stream;
    ///     ended = Some(stream.read_to_end(&mut Vec::new()).await);
    /// };
    /// let timers = service.handle();
    /// let client = async {
    ///     for _ in 0..3 {
    ///         timers.sleep(Duration::from_secs(20)).await.expect("there is room");
    ///         client.write_all(b"hello").await.expect("the server reads");
    ///     }
    ///     // The client falls silent, and does not hang up.
    ///     std::future::pending::<()>().await;
    /// };
    ///
    /// let (begin, within) = (clock.now(), Duration::from_secs(3_600));
    /// let tasks = async { tokio::join!(server, client).0 };
    /// assert_eq!(clock.run_until_idle(&mut shards, within, tasks), Turn::Idle);
    /// assert_eq!(clock.now() - begin, Duration::from_secs(3 * 20 + 30));
    /// assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// A shard goes by another clock. A shard still has work after 100,000 turns while the clock
    /// stands still, for instance since its handler schedules a timer that is due at once, each
    /// time; or the tasks are still woken after as many polls. A panic of a task goes on.
    pub fn run_until_idle<T, H>(
        &self,
        shards: &mut [ShardLoop<T, H>],
        within: Duration,
        tasks: impl Future<Output = ()>,
    ) -> Turn
    where
        T: Send + 'static,
        H: FnMut(Fired<T>, &Timers<T>) + 'static,
    {
        for shard in &*shards {
            let timers = shard.timers();
            let (id, clock) = (timers.core().id(), timers.core().time().clock());
            assert!(clock.is_moved_by(self), "shard {id} goes by another clock than this one");
        }
        let future = pin!(tasks);
        let mut tasks =
            Tasks { future: Some(future), woken: Arc::new(Woken(WokenFlag::new(true))) };
        let mut left = within;
        let mut rounds = 0;
        loop {
            rounds += 1;
            assert!(
                rounds <= ROUNDS_MAX,
                "a shard or a task always has work, and the clock stands still"
            );
            let after: Vec<_> = shards.iter_mut().map(ShardLoop::turn).collect();
            tasks.poll();
            // A request of another thread needs no waker: it waits for the next turn.
            let asleep = shards.iter().zip(after);
            let next = asleep.map(|(shard, after)| shard.prepare_to_sleep(after, Waker::noop()));
            match next.fold(Turn::Closed, earlier) {
                _ if tasks.future.is_some() && tasks.woken.0.is_set() => {}
                Turn::More => {}
                // A turn is planned for timers that have ended since.
                Turn::Next(_)
                    if shards.iter().all(|shard| shard.timers().core().pending() == 0) =>
                {
                    return Turn::Idle;
                }
                Turn::Next(at) => {
                    let wait = at.saturating_duration_since(self.now());
                    if wait > left {
                        self.advance(left);
                        return Turn::Next(at);
                    }
                    if !wait.is_zero() {
                        self.advance(wait);
                        left -= wait;
                        rounds = 0;
                    }
                }
                rest @ (Turn::Idle | Turn::Closed) => return rest,
            }
        }
    }
}

/// The turn that is due first.
fn earlier(one: Turn, other: Turn) -> Turn {
    match (one, other) {
        (Turn::More, _) | (_, Turn::More) => Turn::More,
        (Turn::Next(one), Turn::Next(other)) => Turn::Next(one.min(other)),
        (next @ Turn::Next(_), _) | (_, next @ Turn::Next(_)) => next,
        (Turn::Idle, _) | (_, Turn::Idle) => Turn::Idle,
        (Turn::Closed, Turn::Closed) => Turn::Closed,
    }
}

//! The cost of a request to a shard on another core.
//!
//! One client and one shard, each on its own core where there are two. In all rows but the last the
//! shard polls its lanes instead of sleeping, so that the figures contain the lane and the wheel
//! and not the operating system.

use std::hint;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use corewheel::{Fired, Handle, ShardId, TimerService, Timers};
use corewheel_glommio::Runtime;

use super::HOUR;
use crate::figure::{Entrant, Figure};
use crate::{Payload, polled_service};

const SHARD: ShardId = ShardId::new(0);
const PAIRS: u64 = 1 << 19;
const WAKES: usize = 200;

/// A schedule and its cancel, from another core.
pub const PAIR: &str = "remote schedule + cancel";
/// Schedules and cancels by several clients, each to a shard of its own.
pub const CROSS: &str = "cross-core schedule + cancel, all pairs together";
/// Schedules and cancels by several clients to one shard.
pub const CLIENTS: &str = "remote schedule + cancel, all clients of a shard together";
/// A schedule that is refused.
pub const REFUSAL: &str = "a full lane's refusal";
/// The time from a schedule without delay to a parked shard until the delivery.
pub const WAKE: &str = "a parked shard woken, until delivered";

struct Remote {
    service: TimerService<Payload>,
    handle: Handle<Payload>,
}

impl Remote {
    /// A shard that polls its lanes and holds this many timers.
    fn new(home: CoreId, pending: usize) -> Self {
        let service = polled_service(home, 1 << 21);
        let handle = service.handle();
        let mut left = pending;
        while left > 0 {
            while left > 0 && handle.on(SHARD).schedule(HOUR * 2, Payload::MIN).is_ok() {
                left -= 1;
            }
            thread::yield_now();
        }
        Self { service, handle }
    }

    fn cancelled(&self) -> u64 {
        self.service.stats().shards[0].counts.cancelled
    }

    /// Nanoseconds for each pair, until the shard has applied the last.
    fn time(&mut self, run: impl FnOnce(&mut Self)) -> f64 {
        let done = self.cancelled();
        let start = Instant::now();
        run(self);
        while self.cancelled() < done + PAIRS {
            hint::spin_loop();
        }
        start.elapsed().as_nanos() as f64 / PAIRS as f64
    }

    fn boxed(&mut self) {
        for _ in 0..PAIRS {
            let timer = loop {
                match self.handle.on(SHARD).schedule_fn(HOUR, |_| unreachable!("it is cancelled")) {
                    Ok(timer) => break timer,
                    Err(_) => hint::spin_loop(),
                }
            };
            self.handle.cancel_detached(timer);
        }
    }
}

/// Pairs of schedules and cancels of values.
fn values(handle: Handle<Payload>, pairs: u64) {
    for _ in 0..pairs {
        let timer = loop {
            match handle.on(SHARD).schedule(HOUR, Payload::MIN) {
                Ok(timer) => break timer,
                Err(_) => hint::spin_loop(),
            }
        };
        handle.cancel_detached(timer);
    }
}

/// Pairs from one client, in two ways.
pub fn pairs(here: CoreId, home: CoreId, pending: usize) -> Vec<Entrant> {
    core_affinity::set_for_current(here);
    let entrant = |contender, run: fn(&mut Remote)| {
        // A new shard for each round: two shards that poll their lanes would compete for a core.
        let figure = Figure::new(PAIR, pending, contender, "ns");
        Entrant::new(figure, move || Remote::new(home, pending).time(run))
    };
    vec![
        entrant("corewheel, one at a time", |remote| values(remote.handle, PAIRS)),
        entrant("corewheel, boxed closures", Remote::boxed),
    ]
}

/// Million pairs a second by one client and one shard, by two of each and so on, each on its own
/// core.
pub fn cross(cores: &[CoreId]) -> Vec<Entrant> {
    let most = (cores.len() / 2).max(1);
    let mut counts: Vec<_> = (0..usize::BITS).map(|n| 1 << n).take_while(|n| *n < most).collect();
    counts.push(most);
    let entrant = |pairs: usize| {
        let cores = cores.to_vec();
        Entrant::new(Figure::new(CROSS, pairs, "corewheel, one at a time", "M/s"), move || {
            let work = |n: usize| {
                let (here, home) = (cores[2 * n], cores[(2 * n + 1) % cores.len()]);
                thread::spawn(move || {
                    core_affinity::set_for_current(here);
                    Remote::new(home, 100_000).time(|remote| values(remote.handle, PAIRS))
                })
            };
            let threads: Vec<_> = (0..pairs).map(work).collect();
            let nanos = threads.into_iter().map(|thread| thread.join().expect("no panic"));
            nanos.map(|nanos| 1_000.0 / nanos).sum()
        })
    };
    counts.into_iter().map(entrant).collect()
}

/// Million pairs a second by one, two and four clients of a shard. The clients share the first core
/// if the machine has no other.
pub fn clients(cores: &[CoreId]) -> Vec<Entrant> {
    let home = cores[1 % cores.len()];
    let free: Vec<_> = cores.iter().copied().filter(|core| core.id != home.id).collect();
    let free = if free.is_empty() { vec![home] } else { free };
    let entrant = |clients: usize| {
        let free = free.clone();
        let figure = Figure::new(CLIENTS, clients, "corewheel, one at a time", "M/s");
        Entrant::new(figure, move || {
            let remote = Remote::new(home, 100_000);
            let done = remote.cancelled();
            let start = Instant::now();
            thread::scope(|scope| {
                for n in 0..clients {
                    let (handle, here) = (remote.service.handle(), free[n % free.len()]);
                    scope.spawn(move || {
                        core_affinity::set_for_current(here);
                        values(handle, PAIRS / clients as u64);
                    });
                }
            });
            let all = PAIRS / clients as u64 * clients as u64;
            while remote.cancelled() < done + all {
                hint::spin_loop();
            }
            all as f64 / start.elapsed().as_secs_f64() / 1e6
        })
    };
    [1, 2, 4].into_iter().map(entrant).collect()
}

/// The cost of a refused schedule for its caller. The shard receives nothing meanwhile.
pub fn refusal() -> Vec<Entrant> {
    let service: TimerService<Payload> =
        TimerService::builder().shards(1).start_attached_with().expect("it starts");
    let attachment = service.attach(SHARD).expect("it is free");
    let handler = |_: Fired<Payload>, _: &Timers<Payload>| unreachable!("nothing is due");
    let home = attachment.into_loop(handler).expect("there is memory");
    let handle = service.handle();
    while handle.on(SHARD).schedule(HOUR, Payload::MIN).is_ok() {}
    vec![Entrant::new(Figure::new(REFUSAL, 1, "corewheel", "ns"), move || {
        let _home = (&service, &home);
        let start = Instant::now();
        for _ in 0..PAIRS {
            assert!(
                handle.on(SHARD).schedule(HOUR, Payload::MIN).is_err(),
                "the shard has received requests"
            );
        }
        start.elapsed().as_nanos() as f64 / PAIRS as f64
    })]
}

/// The median time between two moments of a try, over many tries, in nanoseconds.
fn middle(mut once: impl FnMut() -> Duration) -> f64 {
    let mut nanos: Vec<_> = (0..WAKES)
        .map(|_| {
            // The shard parks in this time.
            thread::sleep(Duration::from_millis(1));
            once().as_nanos() as f64
        })
        .collect();
    nanos.sort_by(f64::total_cmp);
    nanos[WAKES / 2]
}

fn wait_for(seen: &AtomicU64, value: u64) {
    // Relaxed: the store publishes no other data.
    while seen.load(Ordering::Relaxed) != value {
        hint::spin_loop();
    }
}

/// The time from a schedule without delay to a parked glommio shard until the delivery, beside the
/// time from a bare wake of a parked glommio executor until its task runs. Empty where glommio
/// cannot run.
pub fn wake(here: CoreId, home: CoreId) -> Vec<Entrant> {
    let seen = Arc::new(AtomicU64::new(0));
    let mut number = 0;
    let deliver = Arc::clone(&seen);
    let service = TimerService::builder()
        .shards(1)
        .runtime(Runtime::Glommio)
        .pinned_to([home.id])
        .start_with(move |_| {
            let seen = Arc::clone(&deliver);
            move |one: Fired<Payload>, _: &Timers<Payload>| {
                seen.store(one.payload.get(), Ordering::Relaxed);
            }
        })
        .expect("glommio can run here");
    let handle = service.handle();
    let ours = Entrant::new(Figure::new(WAKE, 1, "corewheel on glommio", "ns"), move || {
        let _service = &service;
        middle(|| {
            number += 1;
            let start = Instant::now();
            let task = Payload::new(number).expect("it is not zero");
            handle.on(SHARD).schedule(Duration::ZERO, task).expect("it is open");
            wait_for(&seen, number);
            start.elapsed()
        })
    });

    let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
    let wanted = Arc::new(AtomicU64::new(0));
    let seen = Arc::new(AtomicU64::new(0));
    let (theirs, asked, done) = (Arc::clone(&waker), Arc::clone(&wanted), Arc::clone(&seen));
    let placement = glommio::Placement::Fixed(home.id);
    let executor = glommio::LocalExecutorBuilder::new(placement).spawn(move || async move {
        let mut last = 0;
        std::future::poll_fn(move |context| {
            *theirs.lock().expect("no thread panics") = Some(context.waker().clone());
            let now = asked.load(Ordering::SeqCst);
            if now != last {
                last = now;
                done.store(now, Ordering::Relaxed);
            }
            if now == u64::MAX { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    });
    let mut executor = Some(executor.expect("glommio can run here"));
    // Pinned only now: a new thread inherits the cores of the thread that starts it.
    core_affinity::set_for_current(here);
    let mut number = 0;
    let bare = Entrant::new(Figure::new(WAKE, 1, "a bare glommio wake", "ns"), move || {
        let _executor = &mut executor;
        middle(|| {
            number += 1;
            let start = Instant::now();
            wanted.store(number, Ordering::SeqCst);
            let waker = waker.lock().expect("no thread panics").take();
            waker.expect("it waits").wake();
            wait_for(&seen, number);
            start.elapsed()
        })
    });
    vec![ours, bare]
}

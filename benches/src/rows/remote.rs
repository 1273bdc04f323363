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
use corewheel::attach::Turn;
use corewheel::{Fired, Handle, RefusedKind, ShardId, TimerId, TimerService, Timers};
use corewheel_glommio::Runtime;

use super::HOUR;
use crate::report::Entrant;
use crate::{Home, Payload};

const SHARD: ShardId = ShardId::new(0);
const PAIRS: u64 = 1 << 19;
const WAKES: usize = 200;

/// The title of the table.
pub const TABLE: &str = "from another core, ns";
/// A schedule and its cancel, from another core.
pub const PAIR: &str = "remote schedule + cancel";
/// A schedule that is refused.
pub const REFUSAL: &str = "a full lane's refusal";
/// The time from a schedule without delay to a parked shard until the delivery.
pub const WAKE: &str = "a parked shard woken, until delivered";

/// A way to schedule a timer.
type Schedule = fn(&Handle<Payload>) -> Result<TimerId, RefusedKind>;

/// Nanoseconds for each pair of a schedule and its cancel, until the shard has applied the last.
/// The shard polls its lanes and holds this many other timers.
fn pair(home: CoreId, pending: usize, schedule: Schedule) -> f64 {
    // A new shard for each round: two shards that poll their lanes would compete for a core.
    let (sender, service) = std::sync::mpsc::channel();
    let shard = thread::spawn(move || {
        core_affinity::set_for_current(home);
        let Home { mut shard, service } = Home::new(1 << 21);
        sender.send(service).expect("it is waited for");
        while shard.turn() != Turn::Closed {
            hint::spin_loop();
        }
    });
    let service = service.recv().expect("the shard starts");
    let handle = service.handle().on(SHARD);
    for _ in 0..pending {
        while handle.schedule(HOUR * 2, Payload::MIN).is_err() {
            thread::yield_now();
        }
    }
    let cancelled = || service.stats().shards[0].counts.cancelled;
    let start = Instant::now();
    for _ in 0..PAIRS {
        let timer = loop {
            match schedule(&handle) {
                Ok(timer) => break timer,
                Err(_) => hint::spin_loop(),
            }
        };
        handle.cancel_detached(timer);
    }
    while cancelled() < PAIRS {
        hint::spin_loop();
    }
    let nanos = start.elapsed().as_nanos() as f64 / PAIRS as f64;
    drop(service);
    shard.join().expect("it does not panic");
    nanos
}

/// Pairs from one client, in two ways.
pub fn pairs(here: CoreId, home: CoreId, pending: usize) -> Vec<Entrant> {
    core_affinity::set_for_current(here);
    let ways: [(&str, Schedule); 2] = [
        ("corewheel, one at a time", |handle| {
            handle.schedule(HOUR, Payload::MIN).map_err(|refused| refused.kind())
        }),
        ("corewheel, boxed closures", |handle| {
            let call = |_: &Timers<Payload>| unreachable!("it is cancelled");
            handle.schedule_fn(HOUR, call).map_err(|refused| refused.kind())
        }),
    ];
    let entrant = |(name, way)| Entrant::new(name, move || pair(home, pending, way));
    ways.map(entrant).into()
}

/// The cost of a refused schedule for its caller. The shard receives nothing meanwhile.
pub fn refusal() -> Vec<Entrant> {
    let home = Home::new(1 << 16);
    let handle = home.service.handle().on(SHARD);
    while handle.schedule(HOUR, Payload::MIN).is_ok() {}
    vec![Entrant::new("corewheel", move || {
        let _home = &home;
        let start = Instant::now();
        for _ in 0..PAIRS {
            let refused = handle.schedule(HOUR, Payload::MIN).is_err();
            assert!(refused, "the shard has received requests");
        }
        start.elapsed().as_nanos() as f64 / PAIRS as f64
    })]
}

/// The median time over many tries, in nanoseconds, from what `begin` does with the number of a try
/// until that is seen.
fn middle(next: &mut u64, seen: &AtomicU64, mut begin: impl FnMut(u64)) -> f64 {
    let mut nanos: Vec<_> = (0..WAKES)
        .map(|_| {
            // The shard parks in this time.
            thread::sleep(Duration::from_millis(1));
            *next += 1;
            let start = Instant::now();
            begin(*next);
            // Relaxed: the store publishes no other data.
            while seen.load(Ordering::Relaxed) != *next {
                hint::spin_loop();
            }
            start.elapsed().as_nanos() as f64
        })
        .collect();
    nanos.sort_by(f64::total_cmp);
    nanos[WAKES / 2]
}

/// The time from a schedule without delay to a parked glommio shard until the delivery, beside the
/// time from a bare wake of a parked glommio executor until its task runs.
pub fn wake(here: CoreId, home: CoreId) -> Vec<Entrant> {
    let seen = Arc::new(AtomicU64::new(0));
    let deliver = Arc::clone(&seen);
    let builder = TimerService::builder().shards(1).runtime(Runtime::Glommio);
    let service = builder.unpinned().start_with(move |_| {
        core_affinity::set_for_current(home);
        let seen = Arc::clone(&deliver);
        move |one: Fired<Payload>, _: &Timers<Payload>| {
            seen.store(one.payload.get(), Ordering::Relaxed);
        }
    });
    let service = service.expect("glommio can run here");
    let mut next = 0;
    let ours = Entrant::new("corewheel on glommio", move || {
        let handle = service.handle().on(SHARD);
        middle(&mut next, &seen, |number| {
            let number = Payload::new(number).expect("it is not zero");
            handle.schedule(Duration::ZERO, number).expect("it is open");
        })
    });

    let waker: Arc<Mutex<Option<Waker>>> = Arc::default();
    let (wanted, seen) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (theirs, asked, done) = (Arc::clone(&waker), Arc::clone(&wanted), Arc::clone(&seen));
    let placement = glommio::Placement::Fixed(home.id);
    let executor = glommio::LocalExecutorBuilder::new(placement).spawn(move || async move {
        std::future::poll_fn(move |context| {
            *theirs.lock().expect("no thread panics") = Some(context.waker().clone());
            done.store(asked.load(Ordering::SeqCst), Ordering::Relaxed);
            Poll::<()>::Pending
        })
        .await;
    });
    let executor = executor.expect("glommio can run here");
    // Pinned only now: a new thread inherits the cores of the thread that starts it.
    core_affinity::set_for_current(here);
    let mut next = 0;
    let bare = Entrant::new("a bare glommio wake", move || {
        let _executor = &executor;
        middle(&mut next, &seen, |number| {
            wanted.store(number, Ordering::SeqCst);
            let waker = waker.lock().expect("no thread panics").take();
            waker.expect("it waits").wake();
        })
    });
    vec![ours, bare]
}

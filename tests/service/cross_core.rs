//! Many threads and one shard, cancels against timers that fire, and what overtakes what.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use corewheel::{
    CancelOutcome, DrainError, Fired, ResetOutcome, ScheduleError, ShutdownPolicy, Timers,
};

use crate::support::{
    FAR, Guard, Host, Lab, OTHER, PATIENCE, Running, SHARD, builder, check_law, look, ms,
};

/// Retries until there is room.
fn insist<T, R>(task: T, mut schedule: impl FnMut(T) -> Result<R, ScheduleError<T>>) -> R {
    let mut task = task;
    loop {
        match schedule(task) {
            Ok(done) => return done,
            Err(ScheduleError::Full(back)) => task = back,
            Err(ScheduleError::Closed(_)) => panic!("the shard is open"),
        }
        thread::yield_now();
    }
}

#[test]
fn of_n_timers_from_several_threads_exactly_n_fire() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    for host in Host::all() {
        let (sender, fired) = mpsc::channel();
        let running = Running::start(host, builder(1), move |_| {
            let sender = sender.clone();
            move |one: Fired<u64>, timers: &Timers<u64>| {
                assert!(timers.now() >= one.deadline, "timer {} is early", one.task);
                sender.send(one.task).unwrap();
            }
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let client = running.client();
                thread::spawn(move || {
                    for n in thread * EACH..(thread + 1) * EACH {
                        insist(n, |n| client.schedule_on(SHARD, ms(n % 10), n));
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let mut all: Vec<_> =
            (0..THREADS * EACH).map(|_| fired.recv_timeout(PATIENCE).unwrap()).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..THREADS * EACH), "{host:?}: each fires once");
        let report = running.end(ShutdownPolicy::Return);
        assert!(fired.try_recv().is_err(), "{host:?}: nothing fires twice");
        let counts = report.shards[0].counts;
        assert_eq!(counts.fired, THREADS * EACH, "{host:?}");
        assert_eq!(counts.panicked, 0, "{host:?}: nothing is early");
        check_law(&counts);
    }
}

#[test]
fn a_cancel_against_a_timer_that_fires_has_one_outcome_and_tells_it() {
    const ROUNDS: usize = 1_000;
    for host in Host::all() {
        let fired: Arc<Vec<AtomicU32>> = Arc::new((0..ROUNDS).map(|_| 0.into()).collect());
        let seen = Arc::clone(&fired);
        let running = Running::start(host, builder(1), move |_| {
            let fired = Arc::clone(&seen);
            move |one: Fired<usize>, _: &Timers<usize>| {
                fired[one.task].fetch_add(1, Ordering::SeqCst);
            }
        });
        let client = running.client();
        let told: Vec<bool> = (0..ROUNDS)
            .map(|n| {
                let delay = Duration::from_micros(n as u64 % 1_500);
                let timer = insist(n, |n| client.schedule_on(SHARD, delay, n));
                if n % 3 == 0 {
                    thread::sleep(delay);
                }
                match client.cancel(timer).wait().unwrap() {
                    CancelOutcome::Cancelled { task, .. } => {
                        assert_eq!(task.into_value(), Some(n), "{host:?}: the task comes home");
                        true
                    }
                    CancelOutcome::AlreadyFired | CancelOutcome::Stale => {
                        let count = fired[n].load(Ordering::SeqCst);
                        assert_eq!(count, 1, "{host:?}: timer {n} is said to have fired");
                        false
                    }
                    other => panic!("{host:?}: {other:?}"),
                }
            })
            .collect();
        let report = running.end(ShutdownPolicy::Return);
        for (n, cancelled) in told.into_iter().enumerate() {
            let times = fired[n].load(Ordering::SeqCst);
            assert_eq!(times, u32::from(!cancelled), "{host:?}: timer {n}");
        }
        check_law(&report.shards[0].counts);
        assert_eq!(report.shards[0].unfired, 0);
    }
}

#[test]
fn a_cancel_that_overtakes_its_timer_drops_it_when_it_comes() {
    let mut lab = Lab::new(builder(1));
    let (mut sender, canceller) = (lab.client(), lab.client());
    let (guard, dropped) = Guard::new();
    // What is staged has its handle, and is not on its way yet.
    let mut batch = sender.batch(SHARD);
    let timer = batch.schedule(ms(5), guard).unwrap();
    canceller.cancel_detached(timer);
    lab.settle();
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    let mut second = canceller.cancel(timer).into_future();
    lab.settle();
    assert!(matches!(look(&mut second), Some(Ok(CancelOutcome::Stale))), "the first one won");
    batch.send().unwrap();
    lab.advance(ms(10));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert!(lab.fired().is_empty());
    let counts = lab.counts();
    assert_eq!((counts.cancelled, counts.overtaken, counts.pending), (1, 1, 0));
    check_law(&counts);
}

#[test]
fn a_cancel_that_overtakes_its_timer_gets_the_task_when_it_comes() {
    let mut lab = Lab::new(builder(1));
    let (mut sender, canceller) = (lab.client(), lab.client());
    let mut batch = sender.batch(SHARD);
    let timer = batch.schedule(ms(7), "task").unwrap();
    let mut answer = canceller.cancel(timer).into_future();
    lab.settle();
    assert!(look(&mut answer).is_none(), "nothing is known of the task yet");
    lab.clock.advance(ms(3));
    batch.send().unwrap();
    lab.settle();
    match look(&mut answer).expect("the timer has come").unwrap() {
        CancelOutcome::Cancelled { remaining, task } => {
            assert_eq!(remaining, ms(4));
            assert_eq!(task.into_value(), Some("task"));
        }
        other => panic!("{other:?}"),
    }
    lab.advance(ms(10));
    assert!(lab.fired().is_empty());
    check_law(&lab.counts());
}

#[test]
fn a_cancel_whose_timer_never_comes_is_told_so() {
    let mut lab = Lab::new(builder(1));
    let (mut sender, canceller) = (lab.client(), lab.client());
    let mut batch = sender.batch(SHARD);
    let timer = batch.schedule(ms(7), "task").unwrap();
    std::mem::forget(batch);
    let mut answer = canceller.cancel(timer).into_future();
    lab.settle();
    assert!(look(&mut answer).is_none());
    drop(sender);
    lab.settle();
    assert!(matches!(look(&mut answer), Some(Ok(CancelOutcome::Stale))));
    assert_eq!(lab.counts().scheduled_remote, 0, "it was never accepted");
    check_law(&lab.counts());
}

#[test]
fn a_reset_that_overtakes_its_timer_decides_when_it_is_due() {
    for (asked, moved) in [(20, 5), (5, 20)] {
        let mut lab = Lab::new(builder(1));
        let (mut sender, mover) = (lab.client(), lab.client());
        let mut batch = sender.batch(SHARD);
        let timer = batch.schedule(ms(asked), ()).unwrap();
        let mut answer = mover.reset(timer, ms(moved)).into_future();
        lab.settle();
        assert_eq!(look(&mut answer), Some(Ok(ResetOutcome::Overtook)));
        batch.send().unwrap();
        for _ in 0..30 {
            lab.advance(ms(1));
        }
        assert_eq!(lab.fired(), [((), moved)], "from {asked} ms to {moved} ms");
        check_law(&lab.counts());
    }
}

#[test]
fn a_reset_and_then_a_cancel_may_both_overtake() {
    let mut lab = Lab::new(builder(1));
    let (mut sender, other) = (lab.client(), lab.client());
    let mut batch = sender.batch(SHARD);
    let timer = batch.schedule(ms(5), ()).unwrap();
    other.reset_detached(timer, ms(1));
    let mut cancel = other.cancel(timer).into_future();
    let mut reset = other.reset(timer, ms(1)).into_future();
    lab.settle();
    assert_eq!(look(&mut reset), Some(Ok(ResetOutcome::Stale)), "it is cancelled already");
    batch.send().unwrap();
    lab.advance(ms(10));
    assert!(matches!(look(&mut cancel), Some(Ok(CancelOutcome::Cancelled { .. }))));
    assert!(lab.fired().is_empty());
}

#[test]
fn either_side_may_be_asleep_first() {
    for host in Host::all() {
        let (sender, fired) = mpsc::channel();
        let running = Running::start(host, builder(2), move |_| {
            let sender = sender.clone();
            move |one: Fired<&'static str>, _: &_| sender.send(one.task).unwrap()
        });
        let client = running.client();
        // The shard sleeps for ever, and then for long, and is called each time.
        thread::sleep(ms(20));
        client.schedule_on(SHARD, FAR, "later").unwrap();
        thread::sleep(ms(20));
        let timer = client.schedule_on(SHARD, ms(1), "now").unwrap();
        assert_eq!(fired.recv_timeout(PATIENCE), Ok("now"), "{host:?}");
        assert!(client.cancel(timer).wait().is_ok(), "{host:?}");
        // The thread sleeps in its answer while the shard is busy elsewhere.
        let later = client.schedule_on(OTHER, FAR, "later").unwrap();
        thread::sleep(ms(20));
        assert_eq!(client.reset(later, ms(1)).wait(), Ok(ResetOutcome::Moved), "{host:?}");
        assert_eq!(fired.recv_timeout(PATIENCE), Ok("later"), "{host:?}");
        assert_eq!(running.end(ShutdownPolicy::Return).into_returned().count(), 1, "{host:?}");
    }
}

#[test]
fn a_client_that_comes_before_its_shard_is_driven_is_refused_and_served_later() {
    let service = builder(1).start_attached::<u8>().unwrap();
    let client = service.client();
    assert!(matches!(client.schedule_on(SHARD, ms(1), 7), Err(ScheduleError::Full(7))));
    let mut answer = client.drain_shard(SHARD, &[]).into_future();
    assert!(look(&mut answer).is_none());
    let mut shard = service.attach(SHARD).unwrap().into_loop(|_: Fired<u8>, _: &_| {}).unwrap();
    let _ = shard.turn();
    assert_eq!(look(&mut answer), Some(Ok(Err(DrainError::NowhereToGo))));
    client.schedule_on(SHARD, FAR, 7).unwrap();
    let _ = shard.turn();
    assert_eq!(shard.timers().len(), 1);
}

#[test]
fn a_client_that_is_never_used_costs_the_shard_nothing() {
    let mut lab = Lab::<()>::new(builder(1));
    let before = lab.counts();
    drop(lab.client());
    let _ = lab.turn();
    let after = lab.counts();
    assert_eq!((after.lanes, after.granted), (0, before.granted));
    assert_eq!(after.bells_rung + after.bells_saved, 0);
}

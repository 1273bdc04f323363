//! Commands from other threads: many threads at once, cancels of firing timers, and cancels and
//! resets that come before their timer.

use std::sync::atomic::AtomicU32;

use super::*;

/// Retries until the shard has room.
fn retry<T, R>(mut value: T, mut schedule: impl FnMut(T) -> Result<R, Refused<T>>) -> R {
    loop {
        match schedule(value) {
            Ok(done) => return done,
            Err(Refused::Full(back) | Refused::Busy(back)) => value = back,
            Err(refused) => panic!("the shard is open: {refused}"),
        }
        thread::yield_now();
    }
}

#[test]
fn timers_from_several_threads_fire_exactly_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 500;
    for host in Host::all() {
        let (running, fired) = Running::<u64>::sending(host, builder(1));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let client = running.client();
                scope.spawn(move || {
                    for n in thread * EACH..(thread + 1) * EACH {
                        retry(n, |n| client.on(SHARD).schedule(ms(n % 10), n));
                    }
                });
            }
        });
        let all = sorted((0..THREADS * EACH).map(|_| fired.recv_timeout(PATIENCE).unwrap()));
        assert!(all.into_iter().eq(0..THREADS * EACH), "{host:?}: each timer fires once");
        let report = running.end(ShutdownPolicy::Return);
        assert!(fired.try_recv().is_err(), "{host:?}: no timer fires twice");
        let counts = report.shards[0].counts;
        assert_eq!((counts.fired, counts.panicked), (THREADS * EACH, 0), "{host:?}");
    }
}

#[test]
fn cancel_racing_with_a_firing_timer_reports_its_only_outcome() {
    const ROUNDS: usize = 1_000;
    for host in Host::all() {
        let fired: Arc<Vec<AtomicU32>> = Arc::new((0..ROUNDS).map(|_| 0.into()).collect());
        let seen = Arc::clone(&fired);
        let running = Running::start(host, builder(1), move |_| {
            let fired = Arc::clone(&seen);
            move |one: Fired<usize>, _: &Timers<usize>| {
                fired[one.payload].fetch_add(1, Ordering::SeqCst);
            }
        });
        let client = running.client();
        let won: Vec<bool> = (0..ROUNDS)
            .map(|n| {
                let delay = Duration::from_micros(n as u64 % 1_500);
                let timer = retry(n, |n| client.on(SHARD).schedule(delay, n));
                if n % 3 == 0 {
                    thread::sleep(delay);
                }
                let outcome = client.cancel(timer).wait().unwrap();
                let has_fired =
                    matches!(outcome, CancelOutcome::AlreadyFired | CancelOutcome::Stale);
                assert_eq!(outcome.won(), !has_fired, "{host:?}: timer {n}");
                if has_fired {
                    assert_eq!(fired[n].load(Ordering::SeqCst), 1, "{host:?}: timer {n}");
                } else {
                    let payload = outcome.payload().unwrap();
                    assert_eq!(payload.into_value(), Some(n), "{host:?}: the payload comes back");
                }
                !has_fired
            })
            .collect();
        let report = running.end(ShutdownPolicy::Return);
        for (n, cancelled) in won.into_iter().enumerate() {
            let times = fired[n].load(Ordering::SeqCst);
            assert_eq!(times, u32::from(!cancelled), "{host:?}: timer {n}");
        }
        assert_eq!(unfired(&report.shards[0].counts), 0);
    }
}

/// Two clients of a shard, which receives the requests of the first before those of the second.
fn overtaker<V: Send + 'static>(lab: &mut Lab<V>) -> (Thread<V>, Thread<V>) {
    let clients = (lab.client(), lab.client());
    for client in [&clients.0, &clients.1] {
        let timer = client.on(SHARD).schedule_fn(FAR, |_| {}).unwrap();
        lab.settle();
        assert!(lab.timers().cancel(timer).won());
        lab.settle();
    }
    clients
}

#[test]
fn detached_cancel_before_its_timer_drops_the_payload() {
    let mut lab = Lab::new(builder(1));
    let (canceller, sender) = overtaker(&mut lab);
    let (guard, dropped) = Guard::new();
    let timer = sender.on(SHARD).schedule(ms(5), guard).unwrap();
    canceller.cancel_detached(timer);
    let second = canceller.cancel(timer);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    assert!(matches!(lab.reply(second), Ok(CancelOutcome::Stale)), "the first cancel has won");
    lab.advance(ms(10));
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert!(lab.fired().is_empty());
    let counts = lab.counts();
    assert_eq!((counts.cancelled, counts.overtaken, counts.pending), (3, 1, 0));
}

#[test]
fn cancel_before_its_timer_returns_the_payload_when_the_timer_comes() {
    let mut lab = Lab::new(builder(1));
    let (canceller, sender) = overtaker(&mut lab);
    let timer = sender.on(SHARD).schedule(ms(7), "payload").unwrap();
    let reply = canceller.cancel(timer);
    lab.clock.advance(ms(3));
    match lab.reply(reply).unwrap() {
        CancelOutcome::Cancelled { remaining, payload } => {
            assert_eq!(remaining, ms(4));
            assert_eq!(payload.into_value(), Some("payload"));
        }
        other => panic!("{other:?}"),
    }
    lab.advance(ms(10));
    assert!(lab.fired().is_empty());
}

#[test]
fn reset_before_its_timer_decides_the_deadline() {
    for (first, second) in [(20, 5), (5, 20)] {
        let mut lab = Lab::new(builder(1));
        let (resetter, sender) = overtaker(&mut lab);
        let timer = sender.on(SHARD).schedule(ms(first), ()).unwrap();
        assert_eq!(lab.reply(resetter.reset(timer, ms(second))), Ok(ResetOutcome::Overtook));
        lab.advance_ticks(30);
        assert_eq!(lab.fired(), [((), second)], "from {first} ms to {second} ms");
    }
}

#[test]
fn reset_and_cancel_before_their_timer_cancel_it() {
    let mut lab = Lab::new(builder(1));
    let (other, sender) = overtaker(&mut lab);
    let timer = sender.on(SHARD).schedule(ms(5), ()).unwrap();
    other.reset_detached(timer, ms(1));
    let mut cancel = other.cancel(timer).into_future();
    let reset = lab.reply(other.reset(timer, ms(1)));
    assert_eq!(reset, Ok(ResetOutcome::Stale), "the timer is cancelled already");
    lab.advance(ms(10));
    assert!(matches!(look(&mut cancel), Some(Ok(CancelOutcome::Cancelled { .. }))));
    assert!(lab.fired().is_empty());
}

#[test]
fn sleeping_shard_and_waiting_thread_wake_each_other() {
    for host in Host::all() {
        let (running, fired) = Running::<&str>::sending(host, builder(2));
        let client = running.client();
        // The shard sleeps for ever, then for an hour; a request ends each sleep.
        thread::sleep(ms(20));
        client.on(SHARD).schedule(FAR, "later").unwrap();
        thread::sleep(ms(20));
        let timer = client.on(SHARD).schedule(ms(1), "now").unwrap();
        assert_eq!(fired.recv_timeout(PATIENCE), Ok("now"), "{host:?}");
        assert!(client.cancel(timer).wait().is_ok(), "{host:?}");
        // The thread waits for a reply of the other shard.
        let later = client.on(OTHER).schedule(FAR, "later").unwrap();
        thread::sleep(ms(20));
        assert_eq!(client.reset(later, ms(1)).wait(), Ok(ResetOutcome::Reset), "{host:?}");
        assert_eq!(fired.recv_timeout(PATIENCE), Ok("later"), "{host:?}");
        assert_eq!(running.end(ShutdownPolicy::Return).returned.len(), 1, "{host:?}");
    }
}

#[test]
fn unused_client_opens_no_lane() {
    let mut lab = Lab::<()>::new(builder(1));
    let before = lab.counts();
    drop(lab.client());
    let _ = lab.turn();
    let after = lab.counts();
    assert_eq!((after.lanes, after.granted), (0, before.granted));
    assert_eq!(after.wakeups_made + after.wakeups_saved, 0);
}

//! Random histories and shutdowns: the counts of each class add up.
//!
//! The numbers that are expected come from what the calls return and the handler gets. Whether a
//! cancel has won is read from its reply: other tests say when it must. With the code they share
//! nothing.

use super::*;

fn unfired_of(counts: &ClassStats) -> u64 {
    counts.returned + counts.dropped
}

/// A random history of timers on their own core and from elsewhere, in three classes and in none,
/// with every way to end, counted by hand as well.
fn random_history(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let policies = [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];
    let policy = policies[rng.usize(..3)];
    let mut lab = Lab::<usize>::new(classed(2).capacity(96).lane_capacity(16));
    let clients = [lab.service.handle(), lab.service.handle()];
    // How many were scheduled, cancelled and refused, by the shard and the class's place, the last
    // of all being none.
    let mut expected = [[[0; 3]; 4]; 2];
    let mut fired_of = [0; 4];
    let mut live: HashMap<TimerId, usize> = HashMap::new();
    for step in 0..2_000 {
        let home = rng.usize(..2);
        let shard = [SHARD, OTHER][home];
        let class = rng.usize(..4);
        let delay = if rng.bool() { ms(rng.u64(..40)) } else { FAR };
        let timers = lab.shards[home].timers();
        let client = &clients[rng.usize(..2)];
        let name = ALL.get(class);
        let made = match rng.u32(..10) {
            0..=3 => {
                let of_class = name.map(|name| timers.of_class(*name).unwrap());
                Some(of_class.as_ref().unwrap_or(timers).schedule(delay, class))
            }
            4..=6 => {
                let of_class = name.map(|name| client.of_class(*name).unwrap());
                Some(of_class.as_ref().unwrap_or(client).on(shard).schedule(delay, class))
            }
            7 | 8 => {
                let mut keys: Vec<_> = live.keys().copied().collect();
                keys.sort_unstable();
                if let Some(handle) = rng.choice(&keys).copied() {
                    let local = &lab.shards[usize::from(handle.shard().number())];
                    let outcome = match rng.u32(..3) {
                        0 => Some(local.timers().cancel(handle).won()),
                        1 => {
                            let answer = client.cancel(handle);
                            lab.settle();
                            Some(block_on(answer).unwrap().won())
                        }
                        _ => {
                            let _ = local.timers().reset(handle, ms(rng.u64(..100)));
                            None
                        }
                    };
                    if let Some(won) = outcome {
                        let class = live.remove(&handle).expect("it was picked from there");
                        let place = usize::from(handle.shard().number());
                        expected[place][class][1] += u64::from(won);
                    }
                }
                None
            }
            _ => {
                lab.advance(ms(rng.u64(..20)));
                None
            }
        };
        match made {
            Some(Ok(handle)) => {
                live.insert(handle, class);
                expected[home][class][0] += 1;
            }
            Some(Err(_)) => expected[home][class][2] += 1,
            None => {}
        }
        if step % 7 == 0 {
            lab.settle();
            for (class, _) in lab.fired() {
                fired_of[class] += 1;
            }
            let stats = lab.service.stats();
            for (shard, expected) in stats.shards.iter().zip(&expected) {
                check_law(&shard.counts);
                check_classes(&shard.classes);
                let live: u64 = shard.classes.iter().map(|class| class.pending).sum();
                assert!(live <= shard.counts.pending, "seed {seed}, step {step}");
                for (counts, expected) in shard.classes.iter().zip(expected) {
                    let found = [counts.scheduled, counts.cancelled, counts.refused];
                    assert_eq!(found, *expected, "seed {seed}, step {step}");
                }
            }
            for (class, fired) in stats.classes().iter().zip(fired_of) {
                assert_eq!(class.fired, fired, "seed {seed}, step {step}");
            }
        }
    }
    lab.settle();
    let before = lab.service.stats().classes();
    let reports = [lab.end(policy), lab.end(policy)];
    for (class, (name, before)) in ALL.iter().zip(before).enumerate() {
        let sum = |count: fn(&ClassStats) -> u64| -> u64 {
            reports.iter().map(|report| count(&of(&report.shards[0].classes, *name))).sum()
        };
        let scheduled: u64 = expected.iter().map(|shard| shard[class][0]).sum();
        assert_eq!(sum(|counts| counts.pending), 0, "seed {seed}");
        assert_eq!(sum(|counts| counts.scheduled), scheduled, "seed {seed}");
        let ended = |counts: &ClassStats| counts.fired + counts.cancelled + unfired_of(counts);
        assert_eq!(sum(ended), scheduled, "seed {seed}");
        let unfired = if policy == ShutdownPolicy::Fire { 0 } else { before.pending };
        assert_eq!(sum(unfired_of), unfired, "seed {seed}");
    }
}

#[test]
fn random_histories_add_up_for_each_class() {
    seeds::each(9, random_history);
}

/// Where a timer that was asked for counts: accepted or refused, or nowhere after the end.
fn outcome(made: Result<TimerId, RefusedKind>) -> Option<usize> {
    match made {
        Ok(_) => Some(0),
        Err(RefusedKind::Full | RefusedKind::Busy) => Some(1),
        Err(_) => None,
    }
}

/// Threads that schedule and cancel while the service is shut down under them, and one that reads
/// all the time.
#[test]
fn timers_accepted_during_shutdown_add_up_for_each_class() {
    const THREADS: usize = 3;
    use ShutdownPolicy::{Drop, Fire, Return};
    for (host, policy) in Host::all().zip([Return, Fire, Drop, Fire, Drop, Return, Fire]) {
        let builder = classed(2).capacity(2_048).lane_capacity(64);
        let of_handlers = Arc::<[[AtomicU64; 2]; 3]>::default();
        let counts = Arc::clone(&of_handlers);
        let running = Running::start(host, builder, move |_| {
            let counts = Arc::clone(&counts);
            move |one: Fired<usize>, timers: &Timers<usize>| {
                // On its own core, of the class after.
                let Some(class) = [Some(1), Some(2), Some(0), None][one.payload % 4] else {
                    return;
                };
                let timers = timers.of_class(ALL[class]).unwrap();
                let made = timers.schedule(ms(1), 3).map_err(|refused| refused.kind());
                if let Some(outcome) = outcome(made) {
                    counts[class][outcome].fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let done = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for thread in 0..THREADS {
            let (client, done) = (running.service.handle(), Arc::clone(&done));
            let classes = ALL.map(|class| client.of_class(class).unwrap());
            threads.push(thread::spawn(move || {
                let mut rng = Rng::with_seed(thread as u64);
                // How many were accepted and refused.
                let mut outcomes = [[0; 2]; 3];
                while !done.load(Ordering::Relaxed) {
                    let class = rng.usize(..3);
                    let task = rng.usize(..1_000);
                    let shard = [SHARD, OTHER][rng.usize(..2)];
                    let delay = if rng.bool() { ms(rng.u64(..3)) } else { FAR };
                    let there = classes[class].on(shard);
                    let made = match rng.u32(..4) {
                        0 => there.schedule_fn(delay, |_| {}).map_err(|refused| refused.kind()),
                        _ => there.schedule(delay, task).map_err(|refused| refused.kind()),
                    };
                    if let Some(outcome) = outcome(made) {
                        outcomes[class][outcome] += 1;
                    }
                    match (made, rng.u32(..4)) {
                        (Ok(timer), 0 | 1) => client.cancel_detached(timer),
                        (Ok(timer), 2) => drop(client.cancel(timer).wait()),
                        _ => {}
                    }
                }
                outcomes
            }));
        }
        let (service, reads) = (Arc::clone(&running.service), Arc::clone(&done));
        let reader = thread::spawn(move || {
            while !reads.load(Ordering::Relaxed) {
                for shard in service.stats().shards {
                    check_law(&shard.counts);
                    check_classes(&shard.classes);
                }
            }
        });
        thread::sleep(ms(30));
        let service = Arc::clone(&running.service);
        let report = service.shutdown(policy).unwrap();
        thread::sleep(ms(2));
        done.store(true, Ordering::Relaxed);
        reader.join().expect("each reading adds up");
        let outcomes = threads.into_iter().map(|thread| thread.join().unwrap());
        let outcomes = outcomes.collect::<Vec<[[u64; 2]; 3]>>();
        running.stop();
        let classes = service.stats().classes();
        check_classes(&classes);
        for (class, counts) in classes.iter().enumerate() {
            let sum = |outcome: usize| {
                let of_threads: u64 = outcomes.iter().map(|of| of[class][outcome]).sum();
                of_threads + of_handlers[class][outcome].load(Ordering::Relaxed)
            };
            let found = [counts.pending, counts.scheduled, counts.refused];
            assert_eq!(found, [0, sum(0), sum(1)], "{host:?}, {policy:?}: {counts:?}");
        }
        let returned: u64 = classes.iter().map(unfired_of).sum();
        let left: u64 = report.shards.iter().map(|shard| unfired(&shard.counts)).sum();
        assert_eq!(returned, left, "{host:?}, {policy:?}: all are of a class");
    }
}

//! Timers that migrate to another shard: one by one, and all timers of a shard.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use corewheel::migrate::MigrateError;
use corewheel::settings::TurnBudget;
use corewheel::sim::Simulation;
use corewheel::{CancelOutcome, Fired, Payload, ResetOutcome, ShardId, ShutdownPolicy, Timers};

use crate::support::{
    Alarm, FAR, Guard, Host, Lab, OTHER, PATIENCE, Running, SHARD, block_on, builder, check_law,
    look, ms, wait_until,
};

const THIRD: ShardId = ShardId::new(2);

/// The timers that have fired, each with its shard and its tick.
type Noted = Rc<RefCell<Vec<(u32, u16, u64)>>>;

/// A lab that notes the shard and the tick of each timer that fires.
fn lab_of(shards: usize) -> (Lab<u32>, Noted) {
    let fired = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&fired);
    let lab = Lab::with_handler(builder(shards), move |_| {
        let fired = Rc::clone(&noted);
        move |one: Fired<u32>, timers: &Timers<u32>| {
            assert!(one.deadline <= timers.now(), "a timer is early");
            let tick = crate::support::ticks_of(timers);
            fired.borrow_mut().push((one.payload, timers.shard_id().number(), tick));
        }
    });
    (lab, fired)
}

fn check_laws<T: Send + 'static>(lab: &Lab<T>) {
    for shard in lab.service.stats().shards {
        check_law(&shard.counts);
    }
}

#[test]
fn migrated_timer_fires_on_the_other_shard_at_its_deadline() {
    let (mut lab, fired) = lab_of(2);
    let timers = lab.timers().clone();
    let old = timers.schedule(ms(10), 1).unwrap();
    lab.settle();
    let new = timers.migrate(old, OTHER).unwrap();
    assert_eq!((new.shard(), timers.len()), (OTHER, 0));
    assert_eq!(timers.migrated_to(old), Some(new));
    assert_eq!(timers.migrated_to(new), None, "the other shard owns the timer");
    lab.advance(ms(9));
    assert!(fired.take().is_empty());
    lab.advance(ms(1));
    assert_eq!(fired.take(), [(1, 1, 10)]);
    let (from, to) = (lab.counts(), lab.counts_of(OTHER));
    assert_eq!((from.cancelled, from.migrated_out, to.scheduled_remote, to.fired), (1, 1, 1, 1));
    check_laws(&lab);
}

#[test]
fn migrated_callback_runs_on_the_other_shard() {
    let (mut lab, _) = lab_of(2);
    let client = lab.client();
    let ran_on = Arc::new(AtomicU16::new(9));
    let noted = Arc::clone(&ran_on);
    let call = move |timers: &Timers<u32>| {
        noted.store(timers.shard_id().number(), Ordering::SeqCst);
    };
    let old = client.on(SHARD).schedule_fn(ms(3), call).unwrap();
    let mut reply = client.migrate(old, OTHER).into_future();
    lab.settle();
    assert_eq!(look(&mut reply).unwrap().unwrap().unwrap().shard(), OTHER);
    lab.advance(ms(3));
    assert_eq!(ran_on.load(Ordering::SeqCst), 1);
}

#[test]
fn requests_with_an_old_handle_follow_the_timer() {
    let (mut lab, fired) = lab_of(3);
    let timers = lab.timers().clone();
    let client = lab.client();
    let old: Vec<_> = (0..6).map(|n| timers.schedule(ms(10), n).unwrap()).collect();
    let stays = timers.schedule(ms(10), 7).unwrap();
    for timer in &old {
        let _ = timers.migrate(*timer, OTHER).unwrap();
    }
    lab.settle();
    // A timer migrates back, has another handle then, and migrates again.
    let first = timers.migrated_to(old[0]).unwrap();
    let back = lab.shards[1].timers().migrate(first, SHARD).unwrap();
    lab.settle();
    let on_third = timers.migrate(back, THIRD).unwrap();
    lab.settle();
    client.reset_detached(old[0], ms(30));
    client.cancel_detached(old[1]);
    let mut reset = client.reset(old[2], ms(5)).into_future();
    let mut cancelled = client.cancel(old[3]).into_future();
    let mut many = client.cancel_many(&[stays, old[4], old[1]]).into_future();
    for _ in 0..4 {
        lab.settle();
    }
    assert_eq!(look(&mut reset), Some(Ok(ResetOutcome::Reset)));
    let Some(Ok(CancelOutcome::Cancelled { remaining, payload: Payload::Value(3) })) =
        look(&mut cancelled)
    else {
        panic!("the cancel reaches the timer")
    };
    assert_eq!(remaining, ms(10));
    let many = look(&mut many).unwrap().unwrap();
    assert!(matches!(many[2], Ok(CancelOutcome::Stale)), "{many:?}");
    let values: Vec<_> =
        many.into_iter().filter_map(|one| one.unwrap().payload()?.into_value()).collect();
    assert_eq!(values, [7, 4]);
    // A command on the core itself returns the shard of the timer at once.
    assert!(matches!(timers.cancel(old[5]), CancelOutcome::Elsewhere(OTHER)));
    assert_eq!(timers.reset(old[5], ms(1)), ResetOutcome::Elsewhere(OTHER));
    assert_eq!(timers.migrate(old[5], THIRD), Err(MigrateError::Elsewhere(OTHER)));
    assert_eq!(on_third.shard(), THIRD);
    for by in [5, 5, 20] {
        lab.advance(ms(by));
    }
    assert_eq!(fired.take(), [(2, 1, 5), (5, 1, 10), (0, 2, 30)]);
    check_laws(&lab);
}

#[test]
fn migrate_with_an_old_handle_migrates_the_timer_again() {
    let (mut lab, fired) = lab_of(3);
    let client = lab.client();
    let old = client.on(SHARD).schedule(ms(10), 1).unwrap();
    let mut first = client.migrate(old, OTHER).into_future();
    let mut second = client.migrate(old, THIRD).into_future();
    for _ in 0..3 {
        lab.settle();
    }
    assert_eq!(look(&mut first).unwrap().unwrap().unwrap().shard(), OTHER);
    assert_eq!(look(&mut second).unwrap().unwrap().unwrap().shard(), THIRD);
    client.reset_detached(old, ms(20));
    for _ in 0..3 {
        lab.settle();
    }
    lab.advance(ms(19));
    assert!(fired.take().is_empty(), "the reset has followed the timer to the third shard");
    lab.advance(ms(1));
    assert_eq!(fired.take(), [(1, 2, 20)]);
}

#[test]
fn timer_that_cannot_migrate_stays_and_the_error_says_why() {
    let (mut lab, fired) = lab_of(2);
    let timers = lab.timers().clone();
    let client = lab.client();
    let ran = Rc::new(Cell::new(false));
    let seen = Rc::clone(&ran);
    let local = timers.schedule_fn(ms(1), move |_| seen.set(true)).unwrap();
    assert_eq!(timers.migrate(local, OTHER), Err(MigrateError::LocalCallback));
    let there = client.on(OTHER).schedule(ms(1), 1).unwrap();
    assert_eq!(timers.migrate(there, SHARD), Err(MigrateError::Elsewhere(OTHER)));
    let in_lane = client.on(SHARD).schedule(ms(1), 2).unwrap();
    assert_eq!(timers.migrate(in_lane, OTHER), Err(MigrateError::NotPending));
    let here = timers.schedule(ms(2), 3).unwrap();
    assert_eq!(timers.migrate(here, SHARD), Ok(here), "the timer is there already");
    let nowhere = ShardId::new(9);
    assert_eq!(timers.migrate(here, nowhere), Err(MigrateError::NoSuchShard(nowhere)));
    lab.advance(ms(2));
    let mut all = fired.take();
    all.sort_unstable();
    assert_eq!(all, [(1, 1, 2), (2, 0, 2), (3, 0, 2)]);
    assert!(ran.get());
    assert_eq!(timers.migrate(here, OTHER), Err(MigrateError::NotPending), "the timer has fired");
    let mut late = client.migrate(here, OTHER).into_future();
    lab.settle();
    assert_eq!(look(&mut late), Some(Ok(Err(MigrateError::NotPending))));
    for error in [MigrateError::LocalCallback, MigrateError::Sleep, MigrateError::Full(OTHER)] {
        assert!(!error.to_string().is_empty());
    }
    check_laws(&lab);
}

#[test]
fn migrate_to_a_full_shard_leaves_the_timer_in_place() {
    let mut lab = Lab::new(builder(2).capacity(64));
    let timers = lab.timers().clone();
    let client = lab.client();
    let timer = timers.schedule(ms(5), 1_000).unwrap();
    let mut idle_rounds = 0;
    while idle_rounds < 5 {
        idle_rounds += 1;
        while client.on(OTHER).schedule(ms(9), 1).is_ok() {
            idle_rounds = 0;
        }
        lab.settle();
    }
    // This core may get a key of the other shard's key pool.
    let mut others = (0..40).map(|n| timers.schedule(ms(5), n).unwrap());
    let refused = others.find_map(|other| {
        lab.settle();
        timers.migrate(other, OTHER).err().map(|error| (other, error))
    });
    let (other, error) = refused.expect("at most 64 timers fit");
    assert_eq!(error, MigrateError::Full(OTHER));
    assert_eq!(timers.migrated_to(other), None);
    assert!(timers.cancel(other).won(), "the timer stays here and keeps its handle");
    assert_eq!(timers.reset(timer, ms(2)), ResetOutcome::Reset);
    lab.advance(ms(2));
    assert_eq!(lab.fired(), [(1_000, 2)]);
    check_laws(&lab);
}

#[test]
fn migrate_to_a_closed_shard_keeps_the_timer_and_its_old_handle() {
    let (mut lab, fired) = lab_of(2);
    let timers = lab.timers().clone();
    let client = lab.client();
    let [a, b, c, d] = [1, 2, 3, 4].map(|n| timers.schedule(ms(10), n).unwrap());
    // The lane is open and has keys when the other shard ends.
    let gone = timers.migrate(a, OTHER).unwrap();
    lab.settle();
    let report = lab.shards.remove(1).shutdown(ShutdownPolicy::Return);
    assert_eq!(report.returned[0].timer, gone);
    assert_eq!(timers.migrate(b, OTHER), Err(MigrateError::Closed(OTHER)));
    for timer in [c, d] {
        let _ = timers.migrate(timer, OTHER).unwrap_err();
    }
    assert_eq!(timers.len(), 3);
    assert_eq!(timers.reset(b, ms(20)), ResetOutcome::Reset, "the old handle is valid");
    let mut cancel = client.cancel(c).into_future();
    lab.settle();
    assert!(look(&mut cancel).unwrap().unwrap().won());
    let mut lost = client.cancel(a).into_future();
    lab.settle();
    assert!(look(&mut lost).unwrap().is_err(), "the shard of the timer is closed");
    lab.advance(ms(10));
    assert_eq!(fired.take(), [(4, 0, 10)]);
    lab.advance(ms(10));
    assert_eq!(fired.take(), [(2, 0, 20)]);
    check_law(&lab.counts());
}

#[test]
fn shard_with_too_many_old_handles_forgets_the_oldest() {
    let mut lab = Lab::new(builder(2).capacity(64));
    let timers = lab.timers().clone();
    let client = lab.client();
    let mut handles = Vec::new();
    for n in 0..65_u32 {
        let old = timers.schedule(FAR, n).unwrap();
        lab.settle();
        let new = timers.migrate(old, OTHER).unwrap();
        handles.push((old, new));
        if n > 1 {
            client.cancel_detached(new);
        }
        lab.settle();
    }
    assert_eq!(timers.migrated_to(handles[0].0), None);
    assert_eq!(timers.migrated_to(handles[1].0), Some(handles[1].1));
    let mut forgotten = client.cancel(handles[0].0).into_future();
    let mut known = client.cancel(handles[1].0).into_future();
    lab.settle();
    lab.settle();
    assert!(matches!(look(&mut forgotten), Some(Ok(CancelOutcome::Stale))));
    assert!(look(&mut known).unwrap().unwrap().won());
    let new = client.cancel(handles[0].1).into_future();
    assert!(new.poll_once(&mut lab).won(), "the new handle is still valid");
}

/// Polls a reply after turns of the shards.
trait PollOnce<O> {
    fn poll_once<T: Send + 'static>(self, lab: &mut Lab<T>) -> O;
}

impl<O, F: Future<Output = Result<O, corewheel::ReplyError>> + Unpin> PollOnce<O> for F {
    fn poll_once<T: Send + 'static>(mut self, lab: &mut Lab<T>) -> O {
        lab.settle();
        look(&mut self).expect("the shard has replied").expect("the shard is open")
    }
}

#[test]
fn cancel_with_an_old_handle_wakes_an_idle_shard() {
    let (mut lab, fired) = lab_of(2);
    let timers = lab.timers().clone();
    let client = lab.client();
    let [a, b] = [1, 2].map(|n| timers.schedule(ms(10), n).unwrap());
    // The lane is open already, so that its opening does not wake the shard.
    client.cancel_detached(b);
    lab.settle();
    let (alarm, waker) = Alarm::new();
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, &waker);
    let _ = timers.migrate(a, OTHER).unwrap();
    assert_eq!(alarm.count(), 1, "from now on every request must end the sleep");
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, &waker);
    client.cancel_detached(a);
    assert_eq!(alarm.count(), 2, "the shard must forward the cancel before the timer fires");
    lab.settle();
    lab.settle();
    lab.advance(FAR);
    assert!(fired.take().is_empty());
    assert_eq!(lab.counts_of(OTHER).cancelled, 1);
}

#[test]
fn migrate_all_migrates_the_timers_that_can_and_reports_the_others() {
    let budget = TurnBudget { requests_max: 10, ..TurnBudget::default() };
    let fired = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&fired);
    let mut lab = Lab::with_handler(builder(3).budget(budget), move |_| {
        let fired = Rc::clone(&noted);
        move |one: Fired<u32>, timers: &Timers<u32>| {
            fired.borrow_mut().push((one.payload, timers.shard_id()));
        }
    });
    let timers = lab.timers().clone();
    let client = lab.client();
    let handles: Vec<_> = (0..100).map(|n| timers.schedule(ms(20), n).unwrap()).collect();
    let ran = Rc::new(Cell::new(0));
    for _ in 0..3 {
        let ran = Rc::clone(&ran);
        timers.schedule_fn(ms(20), move |_| ran.set(ran.get() + 1)).unwrap();
    }
    let mut sleep = Box::pin(timers.sleep(ms(20)));
    let polled = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    let _ = timers.cancel(handles[50]);
    let mut reply = client.migrate_all(SHARD, &[OTHER, THIRD]).into_future();
    let _ = lab.turn();
    assert!(look(&mut reply).is_none());
    assert_eq!(timers.len(), 103 - 9, "the `migrate_all` itself is one of a turn's ten requests");
    lab.settle();
    let report = look(&mut reply).unwrap().unwrap().unwrap();
    assert_eq!((report.shard, report.migrated, report.callbacks), (SHARD, 99, 3));
    assert_eq!((report.sleeps, report.refused, report.stayed()), (1, 0, 4));
    assert_eq!(timers.len(), 4);
    lab.advance(ms(20));
    let mut all = fired.take();
    assert!(all.iter().all(|(_, shard)| *shard != SHARD));
    let spread = all.iter().filter(|(_, shard)| *shard == OTHER).count();
    assert!((49..=50).contains(&spread), "{spread} of 99");
    all.sort_unstable();
    assert!(all.into_iter().map(|(n, _)| n).eq((0..100).filter(|n| *n != 50)));
    assert_eq!(ran.get(), 3, "the timers that stay fire on their shard");
    let polled = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready());
    check_laws(&lab);
}

#[test]
fn migrate_all_waits_for_room_and_gives_up_after_a_second() {
    let mut lab = Lab::new(builder(2).capacity(64));
    let timers = lab.timers().clone();
    let client = lab.client();
    let mut kept = Vec::new();
    for n in 0..50 {
        timers.schedule(ms(5_000), n).unwrap();
    }
    let theirs = lab.shards[1].timers().clone();
    for n in 100..140 {
        kept.push(theirs.schedule(ms(5_000), n).unwrap());
    }
    let mut reply = client.migrate_all(SHARD, &[OTHER]).into_future();
    for _ in 0..50 {
        lab.advance(ms(1));
    }
    assert!(look(&mut reply).is_none(), "the `migrate_all` waits for room");
    assert!(theirs.len() > 40, "some timers have migrated");
    // Ten cancels make room for more timers.
    for timer in kept.drain(..10) {
        assert!(theirs.cancel(timer).won());
    }
    for _ in 0..50 {
        lab.advance(ms(1));
    }
    assert!(look(&mut reply).is_none());
    for _ in 0..20 {
        lab.advance(ms(100));
    }
    let report = look(&mut reply).expect("the `migrate_all` has given up").unwrap().unwrap();
    assert!(report.migrated >= 10, "{report:?}");
    assert_eq!(report.migrated + report.refused, 50);
    assert_eq!(timers.len() as u64, report.refused);
    lab.advance(ms(5_000));
    assert_eq!(lab.fired().len(), 50 + 30);
    check_laws(&lab);
}

#[test]
fn invalid_migrate_all_is_refused_with_the_reason() {
    let (mut lab, _) = lab_of(2);
    let client = lab.client();
    client.on(SHARD).schedule(FAR, 1).unwrap();
    let ask = |lab: &mut Lab<u32>, shard, into: &[ShardId]| {
        client.migrate_all(shard, into).into_future().poll_once(lab)
    };
    assert_eq!(ask(&mut lab, SHARD, &[]), Err(MigrateError::NowhereToGo));
    assert_eq!(ask(&mut lab, SHARD, &[OTHER, SHARD]), Err(MigrateError::IntoItself(SHARD)));
    let nowhere = ShardId::new(9);
    let report = ask(&mut lab, SHARD, &[nowhere]).unwrap();
    assert_eq!((report.migrated, report.refused), (0, 1), "the service has no such shard");
    let mut first = client.migrate_all(SHARD, &[OTHER]).into_future();
    let mut second = client.migrate_all(SHARD, &[OTHER]).into_future();
    lab.settle();
    assert_eq!(look(&mut second), Some(Ok(Err(MigrateError::AlreadyMigrating(SHARD)))));
    assert_eq!(look(&mut first).unwrap().unwrap().unwrap().migrated, 1);
    let refused = look(&mut client.migrate_all(nowhere, &[SHARD])).unwrap();
    assert_eq!(refused, Ok(Err(MigrateError::NoSuchShard(nowhere))));
}

#[test]
fn shards_that_migrate_all_into_each_other_finish() {
    let (mut lab, fired) = lab_of(2);
    let client = lab.client();
    for n in 0..200 {
        let shard = if n % 2 == 0 { SHARD } else { OTHER };
        client.on(shard).schedule(ms(50), n).unwrap();
    }
    let mut there = client.migrate_all(SHARD, &[OTHER]).into_future();
    let mut back = client.migrate_all(OTHER, &[SHARD]).into_future();
    lab.settle();
    assert!(look(&mut there).is_some() && look(&mut back).is_some());
    lab.advance(ms(50));
    let mut all: Vec<_> = fired.take().into_iter().map(|one| one.0).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..200));
    check_laws(&lab);
}

#[test]
fn full_shards_that_migrate_all_into_each_other_try_once_a_tick() {
    let mut sim = Simulation::<u32>::start(1, builder(2).capacity(4), |_| |_, _| ()).unwrap();
    let client = sim.thread();
    for shard in [SHARD, OTHER] {
        while sim.timers(shard).schedule(FAR, 0).is_ok() {}
    }
    let there = client.migrate_all(SHARD, &[OTHER]);
    let back = client.migrate_all(OTHER, &[SHARD]);
    sim.settle();
    let steps = sim.time().steps();
    sim.run_for(ms(100));
    let steps = sim.time().steps() - steps;
    assert!(steps < 100 * 2 * 10, "{steps} steps in 100 ticks: the shards wake each other");
    // Each of them gives up after a second.
    assert_eq!(sim.run(there).unwrap().unwrap().migrated, 0);
    assert_eq!(sim.run(back).unwrap().unwrap().migrated, 0);
    assert_eq!((sim.timers(SHARD).len(), sim.timers(OTHER).len()), (4, 4));
}

#[test]
fn shutdown_during_migrate_all_loses_no_timer() {
    let budget = TurnBudget { requests_max: 10, ..TurnBudget::default() };
    let mut lab: Lab<Guard> = Lab::new(builder(2).budget(budget));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    for _ in 0..100 {
        lab.timers().schedule(FAR, guard.clone()).unwrap();
    }
    let mut reply = client.migrate_all(SHARD, &[OTHER]).into_future();
    for _ in 0..4 {
        let _ = lab.turn();
    }
    let first = lab.shards.remove(0).shutdown(ShutdownPolicy::Return);
    let second = lab.shards.remove(0).shutdown(ShutdownPolicy::Return);
    assert!(look(&mut reply).unwrap().is_err(), "a closed shard does not reply");
    assert!(!first.returned.is_empty() && !second.returned.is_empty());
    assert_eq!(first.returned.len() + second.returned.len(), 100);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    check_law(&first.counts);
    check_law(&second.counts);
}

#[test]
fn migrate_all_beside_a_flooded_lane_finishes_with_a_budget_of_one_request() {
    let budget = TurnBudget { requests_max: 1, ..TurnBudget::default() };
    let mut lab: Lab<u32> = Lab::new(builder(2).budget(budget));
    let client = lab.client();
    for n in 0..20 {
        lab.timers().schedule(FAR, n).unwrap();
    }
    let mut reply = client.migrate_all(SHARD, &[OTHER]).into_future();
    let _ = lab.turn();
    let flood = lab.client();
    let _ = flood.on(SHARD).schedule(FAR, 20).unwrap();
    let mut turns = 0;
    let report = loop {
        // There are always more requests than the budget of a turn.
        for _ in 0..4 {
            flood.cancel_detached(flood.on(SHARD).schedule(FAR, 21).unwrap());
        }
        let _ = lab.turn();
        if let Some(report) = look(&mut reply) {
            break report.unwrap().unwrap();
        }
        turns += 1;
        assert!(turns < 100, "the requests starve the `migrate_all`");
    };
    assert!(report.migrated >= 20, "{report:?}");
    check_laws(&lab);
}

#[test]
fn timers_migrate_on_every_runtime() {
    for host in Host::all() {
        let (sender, fired) = std::sync::mpsc::channel();
        let running = Running::start(host, builder(2), move |shard| {
            let sender = sender.clone();
            move |one: Fired<u64>, timers: &Timers<u64>| {
                assert!(timers.now() >= one.deadline, "timer {} is early", one.payload);
                sender.send((one.payload, shard)).unwrap();
            }
        });
        let client = running.client();
        let timer = client.on(SHARD).schedule(ms(20), 1).unwrap();
        let cancelled = client.on(SHARD).schedule(FAR, 2).unwrap();
        let one = client.migrate(timer, OTHER).wait().unwrap();
        assert!(one.is_ok() || one == Err(MigrateError::NotPending), "{host:?}: {one:?}");
        let all = block_on(client.migrate_all(SHARD, &[OTHER])).unwrap().unwrap();
        assert_eq!(all.migrated, 1, "{host:?}");
        let (value, shard) = fired.recv_timeout(PATIENCE).unwrap();
        assert_eq!((value, shard == OTHER), (1, one.is_ok()), "{host:?}");
        let outcome = client.cancel(cancelled).wait().unwrap();
        assert_eq!(outcome.payload().and_then(Payload::into_value), Some(2), "{host:?}");
        // The shard sleeps for ever, and a request for a migrated timer wakes it.
        let last = client.on(SHARD).schedule(FAR, 3).unwrap();
        let _ = client.migrate(last, OTHER).wait().unwrap().unwrap();
        std::thread::sleep(ms(20));
        let turns = || running.service.stats().shards[0].counts.turns;
        let before = turns();
        client.cancel_detached(last);
        wait_until("the shard is woken", || turns() > before);
        let report = running.end(ShutdownPolicy::Return);
        for shard in &report.shards {
            check_law(&shard.counts);
            assert_eq!((shard.unfired, shard.counts.panicked), (0, 0), "{host:?}");
        }
    }
}

#[test]
fn waker_run_by_a_migration_may_use_its_shard() {
    /// A waker that counts its calls and uses its shard.
    struct UsesShard(AtomicUsize);
    impl std::task::Wake for UsesShard {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            LAB_TIMERS.with_borrow(|timers| {
                let timers = timers.as_ref().expect("the test has set the timers");
                let timer = timers.schedule(FAR, 9).unwrap();
                assert!(timers.cancel(timer).won());
            });
        }
    }
    thread_local! {
        static LAB_TIMERS: RefCell<Option<Timers<u32>>> =
            const { RefCell::new(None) };
    }
    let (mut lab, _) = lab_of(2);
    let timers = lab.timers().clone();
    LAB_TIMERS.set(Some(timers.clone()));
    let client = lab.client();
    for n in 0..100 {
        client.on(SHARD).schedule(FAR, n).unwrap();
    }
    lab.settle();
    let uses = Arc::new(UsesShard(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&uses));
    let turn = lab.shards[1].turn();
    let _ = lab.shards[1].prepare_to_sleep(turn, &waker);
    let mut reply = client.migrate_all(SHARD, &[OTHER]).into_future();
    let polled = std::pin::Pin::new(&mut reply).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    lab.settle();
    assert!(uses.0.load(Ordering::SeqCst) >= 2, "the other shard and the caller are woken");
    assert_eq!(look(&mut reply).unwrap().unwrap().unwrap().migrated, 100);
    LAB_TIMERS.set(None);
}

#[test]
fn old_handles_work_after_their_shard_is_closed() {
    let (mut lab, fired) = lab_of(3);
    let timers = lab.timers().clone();
    let client = lab.client();
    let old: Vec<_> = (0..9).map(|n| timers.schedule(ms(10), n).unwrap()).collect();
    let local = timers.schedule_fn(ms(10), |_| {}).unwrap();
    let mut all = client.migrate_all(SHARD, &[OTHER]).into_future();
    lab.settle();
    assert_eq!(look(&mut all).unwrap().unwrap().unwrap().migrated, 9);
    // One timer migrates on to a third shard, and its first shard closes.
    let mut again = client.migrate(old[0], THIRD).into_future();
    lab.settle();
    lab.settle();
    assert!(look(&mut again).unwrap().unwrap().is_ok());
    let ended = lab.shards.remove(0).shutdown(ShutdownPolicy::Return);
    assert_eq!(ended.returned.len(), 1);

    client.reset_detached(old[1], ms(20));
    client.reset_detached(old[2], ms(30));
    client.cancel_detached(old[3]);
    let mut cancelled = client.cancel(old[4]).into_future();
    let mut many = client.cancel_many(&[old[5], local, old[0]]).into_future();
    client.cancel_many_detached(&[old[6]]);
    let mut migrated = client.migrate(old[7], THIRD).into_future();
    assert!(matches!(timers.cancel(old[8]), CancelOutcome::Elsewhere(OTHER)));
    for _ in 0..3 {
        lab.settle();
    }
    assert!(look(&mut cancelled).unwrap().unwrap().won());
    assert_eq!(look(&mut migrated).unwrap().unwrap().unwrap().shard(), THIRD);
    let many = look(&mut many).unwrap().unwrap();
    assert!(matches!(&many[0], Ok(done) if done.won()), "{many:?}");
    assert!(many[1].is_err(), "the shutdown of its shard has returned this timer");
    assert!(matches!(&many[2], Ok(done) if done.won()), "{many:?}");
    lab.advance(ms(10));
    lab.advance(ms(10));
    lab.advance(ms(10));
    let mut all = fired.take();
    all.sort_unstable();
    assert_eq!(all, [(1, 1, 20), (2, 1, 30), (7, 2, 10), (8, 1, 10)]);

    // The second shard closes too.
    let last = lab.shards[0].timers().schedule(FAR, 10).unwrap();
    let _ = lab.shards[0].timers().migrate(last, THIRD).unwrap();
    lab.settle();
    let _ = lab.shards.remove(0).shutdown(ShutdownPolicy::Return);
    let mut cancelled = client.cancel(last).into_future();
    let mut stale = client.cancel(old[7]).into_future();
    let mut gone = client.cancel(old[1]).into_future();
    lab.settle();
    assert!(look(&mut cancelled).unwrap().unwrap().won());
    assert!(matches!(
        look(&mut stale),
        Some(Ok(CancelOutcome::AlreadyFired | CancelOutcome::Stale))
    ));
    assert!(look(&mut gone).unwrap().is_err(), "the last shard of the timer is closed");
}

//! Timers that go to live on another shard: one by one, and all of a shard's.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::task::{Context, Waker};

use corewheel::{
    CancelOutcome, DrainError, Fired, MoveError, RemoteTask, ResetOutcome, ShardId, ShutdownPolicy,
    Timers, TurnBudget,
};

use crate::support::{
    Alarm, FAR, Guard, Host, Lab, OTHER, PATIENCE, Running, SHARD, block_on, builder, check_law,
    look, ms, wait_until,
};

const THIRD: ShardId = ShardId::new(2);

/// Which timers have fired, on which shard, and at which tick.
type Noted = Rc<RefCell<Vec<(u32, u16, u64)>>>;

/// A lab that notes on which shard a timer fires, and when.
fn lab_of(shards: usize) -> (Lab<u32>, Noted) {
    let fired = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&fired);
    let lab = Lab::with_handler(builder(shards), move |_| {
        let fired = Rc::clone(&noted);
        move |one: Fired<u32>, timers: &Timers<u32>| {
            assert!(one.deadline <= timers.now(), "a timer is early");
            let tick = crate::support::ticks_of(timers);
            fired.borrow_mut().push((one.task, timers.shard_id().number(), tick));
        }
    });
    (lab, fired)
}

fn laws_hold<T: Send + 'static>(lab: &Lab<T>) {
    for shard in lab.service.stats().shards {
        check_law(&shard.counts);
    }
}

#[test]
fn a_timer_that_is_moved_fires_on_the_other_shard_at_its_time() {
    let (mut lab, fired) = lab_of(2);
    let timers = lab.timers().clone();
    let old = timers.schedule(ms(10), 1).unwrap();
    lab.settle();
    let new = timers.move_to(old, OTHER).unwrap();
    assert_eq!((new.shard(), timers.len()), (OTHER, 0));
    assert_eq!(timers.moved_to(old), Some(new));
    assert_eq!(timers.moved_to(new), None, "that is for the other shard to say");
    lab.advance(ms(9));
    assert!(fired.take().is_empty());
    lab.advance(ms(1));
    assert_eq!(fired.take(), [(1, 1, 10)]);
    let (from, to) = (lab.counts(), lab.counts_of(OTHER));
    assert_eq!((from.cancelled, from.moved_out, to.scheduled_remote, to.fired), (1, 1, 1, 1));
    laws_hold(&lab);
}

#[test]
fn a_callback_that_a_client_sent_runs_where_it_is_moved_to() {
    let (mut lab, _) = lab_of(2);
    let client = lab.client();
    let ran_on = Arc::new(AtomicU16::new(9));
    let noted = Arc::clone(&ran_on);
    let call = move |timers: &Timers<u32>| {
        noted.store(timers.shard_id().number(), Ordering::SeqCst);
    };
    let old = client.schedule_fn_on(SHARD, ms(3), call).unwrap();
    let mut answer = client.move_to(old, OTHER).into_future();
    lab.settle();
    assert_eq!(look(&mut answer).unwrap().unwrap().unwrap().shard(), OTHER);
    lab.advance(ms(3));
    assert_eq!(ran_on.load(Ordering::SeqCst), 1);
}

#[test]
fn what_clients_send_to_the_old_name_follows_the_timer() {
    let (mut lab, fired) = lab_of(3);
    let timers = lab.timers().clone();
    let client = lab.client();
    let old: Vec<_> = (0..6).map(|n| timers.schedule(ms(10), n).unwrap()).collect();
    let stays = timers.schedule(ms(10), 7).unwrap();
    for timer in &old {
        let _ = timers.move_to(*timer, OTHER).unwrap();
    }
    lab.settle();
    // It comes home by another name, and goes away again.
    let first = timers.moved_to(old[0]).unwrap();
    let home = lab.shards[1].timers().move_to(first, SHARD).unwrap();
    lab.settle();
    let away = timers.move_to(home, THIRD).unwrap();
    lab.settle();
    client.reset_detached(old[0], ms(30));
    client.cancel_detached(old[1]);
    let mut reset = client.reset(old[2], ms(5)).into_future();
    let mut cancelled = client.cancel(old[3]).into_future();
    let mut many = client.cancel_many(&[stays, old[4], old[1]]).into_future();
    for _ in 0..4 {
        lab.settle();
    }
    assert_eq!(look(&mut reset), Some(Ok(ResetOutcome::Moved)));
    let Some(Ok(CancelOutcome::Cancelled { remaining, task: RemoteTask::Value(3) })) =
        look(&mut cancelled)
    else {
        panic!("it was there to be cancelled")
    };
    assert_eq!(remaining, ms(10));
    let many = look(&mut many).unwrap();
    assert!(matches!(many[2], Ok(CancelOutcome::Stale)), "{many:?}");
    let values: Vec<_> =
        many.into_iter().filter_map(|one| one.unwrap().task()?.into_value()).collect();
    assert_eq!(values, [7, 4]);
    // On the core itself the answer is there at once, and it is where the timer is.
    assert!(matches!(timers.cancel(old[5]), CancelOutcome::Elsewhere(OTHER)));
    assert_eq!(timers.reset(old[5], ms(1)), ResetOutcome::Elsewhere(OTHER));
    assert_eq!(timers.move_to(old[5], THIRD), Err(MoveError::Elsewhere(OTHER)));
    assert_eq!(away.shard(), THIRD);
    for by in [5, 5, 20] {
        lab.advance(ms(by));
    }
    assert_eq!(fired.take(), [(2, 1, 5), (5, 1, 10), (0, 2, 30)]);
    laws_hold(&lab);
}

#[test]
fn a_move_by_the_old_name_moves_the_timer_on() {
    let (mut lab, fired) = lab_of(3);
    let client = lab.client();
    let old = client.schedule_on(SHARD, ms(10), 1).unwrap();
    let mut first = client.move_to(old, OTHER).into_future();
    let mut second = client.move_to(old, THIRD).into_future();
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
    assert!(fired.take().is_empty(), "the reset has gone all the way");
    lab.advance(ms(1));
    assert_eq!(fired.take(), [(1, 2, 20)]);
}

#[test]
fn what_cannot_be_moved_says_why_and_stays() {
    let (mut lab, fired) = lab_of(2);
    let timers = lab.timers().clone();
    let client = lab.client();
    let ran = Rc::new(Cell::new(false));
    let seen = Rc::clone(&ran);
    let local = timers.schedule_fn(ms(1), move |_| seen.set(true)).unwrap();
    assert_eq!(timers.move_to(local, OTHER), Err(MoveError::LocalCallback));
    let there = client.schedule_on(OTHER, ms(1), 1).unwrap();
    assert_eq!(timers.move_to(there, SHARD), Err(MoveError::Elsewhere(OTHER)));
    let under_way = client.schedule_on(SHARD, ms(1), 2).unwrap();
    assert_eq!(timers.move_to(under_way, OTHER), Err(MoveError::NotPending));
    let here = timers.schedule(ms(2), 3).unwrap();
    assert_eq!(timers.move_to(here, SHARD), Ok(here), "it is there");
    let nowhere = ShardId::new(9);
    assert_eq!(timers.move_to(here, nowhere), Err(MoveError::Closed(nowhere)));
    lab.advance(ms(2));
    let mut all = fired.take();
    all.sort_unstable();
    assert_eq!(all, [(1, 1, 2), (2, 0, 2), (3, 0, 2)]);
    assert!(ran.get());
    assert_eq!(timers.move_to(here, OTHER), Err(MoveError::NotPending), "it has fired");
    let mut late = client.move_to(here, OTHER).into_future();
    lab.settle();
    assert_eq!(look(&mut late), Some(Ok(Err(MoveError::NotPending))));
    for error in [MoveError::LocalCallback, MoveError::Sleep, MoveError::Full(OTHER)] {
        assert!(!error.to_string().is_empty());
    }
    laws_hold(&lab);
}

#[test]
fn a_timer_stays_where_it_is_when_the_other_shard_is_full() {
    let mut lab = Lab::new(builder(2).capacity(64));
    let timers = lab.timers().clone();
    let client = lab.client();
    let timer = timers.schedule(ms(5), 1_000).unwrap();
    let mut idle_rounds = 0;
    while idle_rounds < 5 {
        idle_rounds += 1;
        while client.schedule_on(OTHER, ms(9), 1).is_ok() {
            idle_rounds = 0;
        }
        lab.settle();
    }
    // Of the last reserve this core may get one itself.
    let mut others = (0..40).map(|n| timers.schedule(ms(5), n).unwrap());
    let full = others.find_map(|other| {
        lab.settle();
        timers.move_to(other, OTHER).err().map(|error| (other, error))
    });
    let (other, error) = full.expect("at most 64 fit");
    assert_eq!(error, MoveError::Full(OTHER));
    assert_eq!(timers.moved_to(other), None);
    assert!(timers.cancel(other).won(), "it is here by its name");
    assert_eq!(timers.reset(timer, ms(2)), ResetOutcome::Moved);
    lab.advance(ms(2));
    assert_eq!(lab.fired(), [(1_000, 2)]);
    laws_hold(&lab);
}

#[test]
fn a_timer_that_finds_the_other_shard_closed_stays_and_keeps_its_old_name() {
    let (mut lab, fired) = lab_of(2);
    let timers = lab.timers().clone();
    let client = lab.client();
    let [a, b, c, d] = [1, 2, 3, 4].map(|n| timers.schedule(ms(10), n).unwrap());
    // A lane is open, with keys in it, when the other shard ends.
    let gone = timers.move_to(a, OTHER).unwrap();
    lab.settle();
    let report = lab.shards.remove(1).shutdown(ShutdownPolicy::Return);
    assert_eq!(report.returned[0].handle, gone);
    assert_eq!(timers.move_to(b, OTHER), Err(MoveError::Closed(OTHER)));
    for timer in [c, d] {
        let _ = timers.move_to(timer, OTHER).unwrap_err();
    }
    assert_eq!(timers.len(), 3);
    assert_eq!(timers.reset(b, ms(20)), ResetOutcome::Moved, "by its old name");
    let mut cancel = client.cancel(c).into_future();
    lab.settle();
    assert!(look(&mut cancel).unwrap().unwrap().won());
    let mut lost = client.cancel(a).into_future();
    lab.settle();
    assert!(look(&mut lost).unwrap().is_err(), "its shard is closed");
    lab.advance(ms(10));
    assert_eq!(fired.take(), [(4, 0, 10)]);
    lab.advance(ms(10));
    assert_eq!(fired.take(), [(2, 0, 20)]);
    check_law(&lab.counts());
}

#[test]
fn a_shard_remembers_as_many_as_it_has_room_for_and_forgets_the_oldest() {
    let mut lab = Lab::new(builder(2).capacity(64));
    let timers = lab.timers().clone();
    let client = lab.client();
    let mut names = Vec::new();
    for n in 0..65_u32 {
        let old = timers.schedule(FAR, n).unwrap();
        lab.settle();
        let new = timers.move_to(old, OTHER).unwrap();
        names.push((old, new));
        if n > 1 {
            client.cancel_detached(new);
        }
        lab.settle();
    }
    assert_eq!(timers.moved_to(names[0].0), None);
    assert_eq!(timers.moved_to(names[1].0), Some(names[1].1));
    let mut forgotten = client.cancel(names[0].0).into_future();
    let mut known = client.cancel(names[1].0).into_future();
    lab.settle();
    lab.settle();
    assert!(matches!(look(&mut forgotten), Some(Ok(CancelOutcome::Stale))));
    assert!(look(&mut known).unwrap().unwrap().won());
    assert!(client.cancel(names[0].1).into_future().poll_once(&mut lab).won(), "it goes on");
}

/// Polls an answer after the shards have seen to it.
trait PollOnce<O> {
    fn poll_once<T: Send + 'static>(self, lab: &mut Lab<T>) -> O;
}

impl<O, F: Future<Output = Result<O, corewheel::Closed>> + Unpin> PollOnce<O> for F {
    fn poll_once<T: Send + 'static>(mut self, lab: &mut Lab<T>) -> O {
        lab.settle();
        look(&mut self).expect("it is answered").expect("the shard is open")
    }
}

#[test]
fn a_cancel_by_the_old_name_wakes_a_shard_that_has_nothing_left_to_do() {
    let (mut lab, fired) = lab_of(2);
    let timers = lab.timers().clone();
    let client = lab.client();
    let [a, b] = [1, 2].map(|n| timers.schedule(ms(10), n).unwrap());
    // The lane is there, so that nobody knocks for it.
    client.cancel_detached(b);
    lab.settle();
    let (alarm, waker) = Alarm::new();
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, &waker);
    let _ = timers.move_to(a, OTHER).unwrap();
    assert_eq!(alarm.count(), 1, "it has to sleep less deeply");
    let turn = lab.turn();
    let _ = lab.shards[0].prepare_to_sleep(turn, &waker);
    client.cancel_detached(a);
    assert_eq!(alarm.count(), 2, "the timer would fire before the shard wakes by itself");
    lab.settle();
    lab.settle();
    lab.advance(FAR);
    assert!(fired.take().is_empty());
    assert_eq!(lab.counts_of(OTHER).cancelled, 1);
}

#[test]
fn a_sleep_from_elsewhere_ends_in_time_wherever_its_timer_is() {
    let (mut lab, _) = lab_of(2);
    let client = lab.client();
    let mut kept = client.sleep_on(SHARD, ms(10));
    let dropped = client.sleep_on(SHARD, ms(10));
    let mut drained = client.drain_shard(SHARD, &[OTHER]).into_future();
    lab.settle();
    assert_eq!(look(&mut drained).unwrap().unwrap().unwrap().moved, 2);
    lab.settle();
    drop(dropped);
    lab.settle();
    lab.settle();
    assert!(look(&mut kept).is_none());
    assert_eq!(lab.counts_of(OTHER).pending, 1);
    lab.advance(ms(10));
    assert_eq!(look(&mut kept), Some(Ok(())));
}

#[test]
fn a_drain_moves_what_can_travel_and_tells_what_stays() {
    let budget = TurnBudget { requests_max: 10, ..TurnBudget::default() };
    let fired = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&fired);
    let mut lab = Lab::with_handler(builder(3).budget(budget), move |_| {
        let fired = Rc::clone(&noted);
        move |one: Fired<u32>, timers: &Timers<u32>| {
            fired.borrow_mut().push((one.task, timers.shard_id()));
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
    let mut answer = client.drain_shard(SHARD, &[OTHER, THIRD]).into_future();
    let _ = lab.turn();
    assert!(look(&mut answer).is_none());
    assert_eq!(timers.len(), 103 - 9, "of a turn's ten requests one is the drain itself");
    lab.settle();
    let report = look(&mut answer).unwrap().unwrap().unwrap();
    assert_eq!((report.shard, report.moved, report.callbacks), (SHARD, 99, 3));
    assert_eq!((report.sleeps, report.refused, report.stayed()), (1, 0, 4));
    assert_eq!(timers.len(), 4);
    lab.advance(ms(20));
    let mut all = fired.take();
    assert!(all.iter().all(|(_, shard)| *shard != SHARD));
    let spread = all.iter().filter(|(_, shard)| *shard == OTHER).count();
    assert!((49..=50).contains(&spread), "{spread} of 99");
    all.sort_unstable();
    assert!(all.into_iter().map(|(n, _)| n).eq((0..100).filter(|n| *n != 50)));
    assert_eq!(ran.get(), 3, "what stays fires at home");
    let polled = sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_ready());
    laws_hold(&lab);
}

#[test]
fn a_drain_waits_for_room_and_gives_up_after_a_second() {
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
    let mut answer = client.drain_shard(SHARD, &[OTHER]).into_future();
    for _ in 0..50 {
        lab.advance(ms(1));
    }
    assert!(look(&mut answer).is_none(), "it waits");
    assert!(theirs.len() > 40, "what had room is there");
    // There is room for some more.
    for timer in kept.drain(..10) {
        assert!(theirs.cancel(timer).won());
    }
    for _ in 0..50 {
        lab.advance(ms(1));
    }
    assert!(look(&mut answer).is_none());
    for _ in 0..20 {
        lab.advance(ms(100));
    }
    let report = look(&mut answer).expect("it has given up").unwrap().unwrap();
    assert!(report.moved >= 10, "{report:?}");
    assert_eq!(report.moved + report.refused, 50);
    assert_eq!(timers.len() as u64, report.refused);
    lab.advance(ms(5_000));
    assert_eq!(lab.fired().len(), 50 + 30);
    laws_hold(&lab);
}

#[test]
fn a_drain_that_makes_no_sense_says_so() {
    let (mut lab, _) = lab_of(2);
    let client = lab.client();
    client.schedule_on(SHARD, FAR, 1).unwrap();
    let ask = |lab: &mut Lab<u32>, shard, into: &[ShardId]| {
        client.drain_shard(shard, into).into_future().poll_once(lab)
    };
    assert_eq!(ask(&mut lab, SHARD, &[]), Err(DrainError::NowhereToGo));
    assert_eq!(ask(&mut lab, SHARD, &[OTHER, SHARD]), Err(DrainError::IntoItself(SHARD)));
    let nowhere = ShardId::new(9);
    let report = ask(&mut lab, SHARD, &[nowhere]).unwrap();
    assert_eq!((report.moved, report.refused), (0, 1), "there is no such shard");
    let mut first = client.drain_shard(SHARD, &[OTHER]).into_future();
    let mut second = client.drain_shard(SHARD, &[OTHER]).into_future();
    lab.settle();
    assert_eq!(look(&mut second), Some(Ok(Err(DrainError::AlreadyDraining(SHARD)))));
    assert_eq!(look(&mut first).unwrap().unwrap().unwrap().moved, 1);
    assert!(look(&mut client.drain_shard(nowhere, &[SHARD]).into_future()).unwrap().is_err());
}

#[test]
fn shards_that_are_drained_into_each_other_come_to_an_end() {
    let (mut lab, fired) = lab_of(2);
    let client = lab.client();
    for n in 0..200 {
        let shard = if n % 2 == 0 { SHARD } else { OTHER };
        client.schedule_on(shard, ms(50), n).unwrap();
    }
    let mut there = client.drain_shard(SHARD, &[OTHER]).into_future();
    let mut back = client.drain_shard(OTHER, &[SHARD]).into_future();
    lab.settle();
    assert!(look(&mut there).is_some() && look(&mut back).is_some());
    lab.advance(ms(50));
    let mut all: Vec<_> = fired.take().into_iter().map(|one| one.0).collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..200));
    laws_hold(&lab);
}

#[test]
fn a_shutdown_amid_a_drain_loses_nothing() {
    let budget = TurnBudget { requests_max: 10, ..TurnBudget::default() };
    let mut lab: Lab<Guard> = Lab::new(builder(2).budget(budget));
    let client = lab.client();
    let (guard, dropped) = Guard::new();
    for _ in 0..100 {
        lab.timers().schedule(FAR, guard.clone()).unwrap();
    }
    let mut answer = client.drain_shard(SHARD, &[OTHER]).into_future();
    for _ in 0..4 {
        let _ = lab.turn();
    }
    let first = lab.shards.remove(0).shutdown(ShutdownPolicy::Return);
    let second = lab.shards.remove(0).shutdown(ShutdownPolicy::Return);
    assert!(look(&mut answer).unwrap().is_err(), "nobody is left to answer");
    assert!(!first.returned.is_empty() && !second.returned.is_empty());
    assert_eq!(first.returned.len() + second.returned.len(), 100);
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    check_law(&first.counts);
    check_law(&second.counts);
}

#[test]
fn drain_beside_a_flooded_lane_ends_with_a_budget_of_one_request() {
    let budget = TurnBudget { requests_max: 1, ..TurnBudget::default() };
    let mut lab: Lab<u32> = Lab::new(builder(2).budget(budget));
    let client = lab.client();
    for n in 0..20 {
        lab.timers().schedule(FAR, n).unwrap();
    }
    let mut reply = client.drain_shard(SHARD, &[OTHER]).into_future();
    let _ = lab.turn();
    let flood = lab.client();
    let _ = flood.schedule_on(SHARD, FAR, 20).unwrap();
    let mut turns = 0;
    let report = loop {
        // There are always more requests than the budget of a turn.
        for _ in 0..4 {
            flood.cancel_detached(flood.schedule_on(SHARD, FAR, 21).unwrap());
        }
        let _ = lab.turn();
        if let Some(report) = look(&mut reply) {
            break report.unwrap().unwrap();
        }
        turns += 1;
        assert!(turns < 100, "the drain is starved by requests");
    };
    assert!(report.moved >= 20, "{report:?}");
    laws_hold(&lab);
}

#[test]
fn timers_are_moved_on_every_runtime() {
    for host in Host::all() {
        let (sender, fired) = std::sync::mpsc::channel();
        let running = Running::start(host, builder(2), move |shard| {
            let sender = sender.clone();
            move |one: Fired<u64>, timers: &Timers<u64>| {
                assert!(timers.now() >= one.deadline, "timer {} is early", one.task);
                sender.send((one.task, shard)).unwrap();
            }
        });
        let client = running.client();
        let timer = client.schedule_on(SHARD, ms(20), 1).unwrap();
        let cancelled = client.schedule_on(SHARD, FAR, 2).unwrap();
        let moved = client.move_to(timer, OTHER).wait().unwrap();
        assert!(moved.is_ok() || moved == Err(MoveError::NotPending), "{host:?}: {moved:?}");
        let drained = block_on(client.drain_shard(SHARD, &[OTHER])).unwrap().unwrap();
        assert_eq!(drained.moved, 1, "{host:?}");
        let (task, shard) = fired.recv_timeout(PATIENCE).unwrap();
        assert_eq!((task, shard == OTHER), (1, moved.is_ok()), "{host:?}");
        let outcome = client.cancel(cancelled).wait().unwrap();
        assert_eq!(outcome.task().and_then(RemoteTask::into_value), Some(2), "{host:?}");
        // It sleeps for ever, and is asked for a timer that is due elsewhere.
        let last = client.schedule_on(SHARD, FAR, 3).unwrap();
        let _ = client.move_to(last, OTHER).wait().unwrap().unwrap();
        std::thread::sleep(ms(20));
        let turns = || running.service.stats().shards[0].counts.turns;
        let before = turns();
        client.cancel_detached(last);
        wait_until("it is woken", || turns() > before);
        let report = running.end(ShutdownPolicy::Return);
        for shard in &report.shards {
            check_law(&shard.counts);
            assert_eq!((shard.unfired, shard.counts.panicked), (0, 0), "{host:?}");
        }
    }
}

#[test]
fn a_waker_that_is_told_of_a_move_finds_nothing_borrowed() {
    /// Counts, and asks its shard something when it is woken.
    struct Asks(AtomicUsize);
    impl std::task::Wake for Asks {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            LAB_TIMERS.with_borrow(|timers| {
                let timers = timers.as_ref().expect("it is set");
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
        client.schedule_on(SHARD, FAR, n).unwrap();
    }
    lab.settle();
    let asks = Arc::new(Asks(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&asks));
    let turn = lab.shards[1].turn();
    let _ = lab.shards[1].prepare_to_sleep(turn, &waker);
    let mut answer = client.drain_shard(SHARD, &[OTHER]).into_future();
    let polled = std::pin::Pin::new(&mut answer).poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    lab.settle();
    assert!(asks.0.load(Ordering::SeqCst) >= 2, "the other shard, and who waits");
    assert_eq!(look(&mut answer).unwrap().unwrap().unwrap().moved, 100);
    LAB_TIMERS.set(None);
}

#[test]
fn old_names_outlive_the_shard_that_was_drained() {
    let (mut lab, fired) = lab_of(3);
    let timers = lab.timers().clone();
    let mut client = lab.client();
    let old: Vec<_> = (0..9).map(|n| timers.schedule(ms(10), n).unwrap()).collect();
    let local = timers.schedule_fn(ms(10), |_| {}).unwrap();
    let mut drained = client.drain_shard(SHARD, &[OTHER]).into_future();
    lab.settle();
    assert_eq!(look(&mut drained).unwrap().unwrap().unwrap().moved, 9);
    // One goes on to a third shard, and then the two that it was on are gone.
    let mut on = client.move_to(old[0], THIRD).into_future();
    lab.settle();
    lab.settle();
    assert!(look(&mut on).unwrap().unwrap().is_ok());
    let ended = lab.shards.remove(0).shutdown(ShutdownPolicy::Return);
    assert_eq!(ended.returned.len(), 1);

    client.reset_detached(old[1], ms(20));
    let mut batch = client.batch(SHARD);
    batch.reset_detached(old[2], ms(30));
    batch.cancel_detached(old[3]);
    batch.send().unwrap();
    let mut cancelled = client.cancel(old[4]).into_future();
    let mut many = client.cancel_many(&[old[5], local, old[0]]).into_future();
    client.cancel_many_detached(&[old[6]]);
    let mut moved = client.move_to(old[7], THIRD).into_future();
    assert!(matches!(timers.cancel(old[8]), CancelOutcome::Elsewhere(OTHER)));
    for _ in 0..3 {
        lab.settle();
    }
    assert!(look(&mut cancelled).unwrap().unwrap().won());
    assert_eq!(look(&mut moved).unwrap().unwrap().unwrap().shard(), THIRD);
    let many = look(&mut many).unwrap();
    assert!(matches!(&many[0], Ok(done) if done.won()), "{many:?}");
    assert!(many[1].is_err(), "that one was returned with its shard");
    assert!(matches!(&many[2], Ok(done) if done.won()), "{many:?}");
    lab.advance(ms(10));
    lab.advance(ms(10));
    lab.advance(ms(10));
    let mut all = fired.take();
    all.sort_unstable();
    assert_eq!(all, [(1, 1, 20), (2, 1, 30), (7, 2, 10), (8, 1, 10)]);

    // The second one closes as well.
    let last = lab.shards[0].timers().schedule(FAR, 10).unwrap();
    let _ = lab.shards[0].timers().move_to(last, THIRD).unwrap();
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
    assert!(look(&mut gone).unwrap().is_err(), "its last shard is closed");
}

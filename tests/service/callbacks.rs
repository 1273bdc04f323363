//! What callbacks and handlers may do, and what they may not do to others.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use corewheel::{
    CancelOutcome, Fired, ResetOutcome, ScheduleError, ShutdownPolicy, TimerHandle, Timers, Turn,
    TurnBudget,
};

use crate::support::{
    FAR, Host, Lab, PATIENCE, Running, SHARD, builder, check_law, look, ms, ticks_of, wait_until,
};

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("it is dropped");
    }
}

#[test]
fn one_that_panics_is_counted_and_the_rest_fires() {
    for host in Host::all() {
        let (sender, fired) = mpsc::channel();
        let running = Running::start(host, builder(1), move |_| {
            let sender = sender.clone();
            move |one: Fired<u32>, _: &_| {
                assert_ne!(one.task % 3, 0, "every third one panics");
                sender.send(one.task).unwrap();
            }
        });
        let client = running.client();
        for n in 0..30 {
            client.schedule_on(SHARD, ms(2), n).unwrap();
            // What is thrown may itself panic when it is dropped.
            let call = |_: &Timers<u32>| std::panic::panic_any(Bomb);
            client.schedule_fn_on(SHARD, ms(2), call).unwrap();
        }
        let all: Vec<_> = (0..20).map(|_| fired.recv_timeout(PATIENCE).unwrap()).collect();
        assert!(all.into_iter().eq((0..30).filter(|n| n % 3 != 0)), "{host:?}");
        wait_until("the last one is counted", || {
            running.service.stats().shards[0].counts.panicked == 40
        });
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(report.shards[0].counts.fired, 60, "{host:?}");
    }
}

#[test]
fn a_task_that_panics_when_it_is_dropped_is_counted_and_harms_nobody() {
    let mut lab = Lab::<Option<Bomb>>::with_handler(builder(1), |_| {
        |one: Fired<Option<Bomb>>, _: &Timers<_>| drop(one)
    });
    let client = lab.client();
    let schedule = |delay| client.schedule_on(SHARD, delay, Some(Bomb)).unwrap();
    // By its handler, by a cancel, and by a shutdown.
    schedule(ms(1));
    let cancelled = schedule(FAR);
    client.cancel_detached(cancelled);
    schedule(FAR);
    lab.advance(ms(1));
    let counts = lab.counts();
    assert_eq!((counts.panicked, counts.fired, counts.cancelled, counts.pending), (2, 1, 1, 1));
    // An answer that nobody waits for.
    let pending = schedule(FAR);
    drop(client.cancel(pending));
    lab.settle();
    assert_eq!(lab.counts().panicked, 3);
    let report = lab.end(ShutdownPolicy::Drop);
    assert_eq!(report.unfired, 1);
    assert_eq!(lab.counts().panicked, 4);
    check_law(&lab.counts());
}

#[test]
fn a_callback_of_the_shards_own_that_panics_when_dropped_does_not_keep_the_answer() {
    let mut lab = Lab::<()>::new(builder(1));
    let client = lab.client();
    let bomb = Bomb;
    let timer = lab.timers().schedule_fn(FAR, move |_| drop(bomb)).unwrap();
    let mut answer = client.cancel(timer).into_future();
    lab.settle();
    assert!(look(&mut answer).unwrap().unwrap().won());
    assert_eq!(lab.counts().panicked, 1);
}

#[test]
fn one_that_takes_long_is_counted_and_makes_the_others_late_but_loses_none() {
    let builder = builder(1).overrun(ms(1)).lateness_bound(ms(10));
    let mut lab = Lab::new(builder);
    let clock = lab.clock.clone();
    let slow = clock.clone();
    lab.timers().schedule_fn(ms(1), move |_| slow.advance(ms(50))).unwrap();
    lab.timers().schedule_fn(ms(1), move |_| clock.advance(Duration::from_micros(900))).unwrap();
    lab.timers().schedule(ms(2), "late").unwrap();
    lab.advance(ms(2));
    assert_eq!(lab.fired(), [("late", 52)]);
    let counts = lab.counts();
    assert_eq!((counts.overrun, counts.fired), (1, 3));
    assert_eq!(counts.late, 2, "the two after the slow one");
    let lateness = &lab.service.stats().shards[0].lateness;
    assert_eq!(lateness.count, 3);
    assert!(lateness.max_ns >= 50_000_000);
}

#[test]
fn one_that_schedules_for_now_fires_in_the_next_turn() {
    let mut lab = Lab::<u32>::with_handler(builder(1), |_| {
        |one: Fired<u32>, timers: &Timers<u32>| {
            for delay in [Duration::ZERO, Duration::from_nanos(0)] {
                if timers.len() < 64 {
                    timers.schedule(delay, one.task + 1).unwrap();
                }
            }
            let past = one.deadline.checked_sub(ms(5)).unwrap_or(one.deadline);
            timers.schedule_fn_at(past, |_| {}).unwrap();
        }
    });
    lab.timers().schedule(Duration::ZERO, 0).unwrap();
    let mut fired = 0;
    for turn in 0..6 {
        assert_eq!(lab.turn(), Turn::More);
        let now = lab.counts().fired;
        // A handler's two and a callback for each handler of the turn before.
        let expected = if turn == 0 { 1 } else { (1 << turn) + (1 << (turn - 1)) };
        assert_eq!(now - fired, expected, "turn {turn}");
        fired = now;
    }
}

#[test]
fn a_periodic_one_keeps_its_ticks_and_may_end_itself() {
    let ticks = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&ticks);
    let mut lab = Lab::<u32>::with_handler(builder(1), move |_| {
        let ticks = Rc::clone(&noted);
        move |one: Fired<u32>, timers: &Timers<u32>| {
            ticks.borrow_mut().push(ticks_of(timers));
            if one.task > 0 {
                timers.schedule_at(one.deadline + ms(7), one.task - 1).unwrap();
            }
        }
    });
    lab.timers().schedule(ms(7), 9).unwrap();
    for _ in 0..100 {
        lab.advance(ms(1));
    }
    assert!(ticks.borrow().iter().copied().eq((1..=10).map(|n| n * 7)), "{ticks:?}");
    assert_eq!(lab.counts().pending, 0);
}

#[test]
fn one_may_cancel_others_that_are_due_in_the_same_turn() {
    // The first, the middle and the last of those after it, one of a later tick, and all.
    for victims in [vec![1], vec![4], vec![7], vec![8], vec![1, 2, 3, 4, 5, 6, 7, 8]] {
        let timers: Rc<RefCell<Vec<TimerHandle>>> = Rc::default();
        let mut lab = Lab::new(builder(1));
        let (known, doomed) = (Rc::clone(&timers), victims.clone());
        let killer = move |timers: &Timers<usize>| {
            for &victim in &doomed {
                let outcome = timers.cancel(known.borrow()[victim - 1]);
                let CancelOutcome::Cancelled { task, remaining } = outcome else {
                    panic!("{victim}: {outcome:?}");
                };
                assert_eq!(task.into_value(), Some(victim));
                assert_eq!(remaining, Duration::ZERO);
            }
        };
        lab.timers().schedule_fn(ms(3), killer).unwrap();
        for n in 1..=8 {
            let delay = if n == 8 { ms(4) } else { ms(3) };
            timers.borrow_mut().push(lab.timers().schedule(delay, n).unwrap());
        }
        lab.advance(ms(4));
        let left: Vec<_> = (1..=8).filter(|n| !victims.contains(n)).collect();
        assert_eq!(lab.fired().into_iter().map(|(n, _)| n).collect::<Vec<_>>(), left);
        assert_eq!(lab.counts().cancelled as usize, victims.len());
        check_law(&lab.counts());
    }
}

#[test]
fn one_may_move_others_that_are_due_in_the_same_turn() {
    let mut lab = Lab::new(builder(1));
    let later: Rc<Cell<Option<TimerHandle>>> = Rc::default();
    let known = Rc::clone(&later);
    let mover = move |timers: &Timers<()>| {
        assert_eq!(timers.reset(known.get().unwrap(), ms(5)), ResetOutcome::Moved);
    };
    lab.timers().schedule_fn(ms(3), mover).unwrap();
    later.set(Some(lab.timers().schedule(ms(3), ()).unwrap()));
    for _ in 0..20 {
        lab.advance(ms(1));
    }
    assert_eq!(lab.fired(), [((), 8)]);
}

#[test]
fn one_that_fires_is_beyond_cancel_and_reset() {
    let mut lab = Lab::<u8>::with_handler(builder(1), |_| {
        |one: Fired<u8>, timers: &Timers<u8>| {
            assert!(matches!(timers.cancel(one.handle), CancelOutcome::AlreadyFired));
            assert_eq!(timers.reset(one.handle, ms(1)), ResetOutcome::AlreadyFired);
            // Its slot is used again.
            let again = timers.schedule(FAR, one.task).unwrap();
            assert_eq!(again.key().index(), one.handle.key().index());
            assert!(matches!(timers.cancel(one.handle), CancelOutcome::Stale));
            assert_eq!(timers.reset(one.handle, ms(1)), ResetOutcome::Stale);
        }
    });
    lab.timers().schedule(ms(1), 1).unwrap();
    lab.advance(ms(1));
    let counts = lab.counts();
    assert_eq!((counts.panicked, counts.fired, counts.pending, counts.stale), (0, 1, 1, 4));
}

#[test]
fn what_does_not_fit_into_a_turn_is_delivered_in_order_by_the_next_ones() {
    let budget = TurnBudget { expired_max: 3, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    for n in 0..10 {
        lab.timers().schedule(ms(1 + n / 5), n).unwrap();
    }
    lab.clock.advance(ms(9));
    let mut fired = Vec::new();
    for turn in 0..4 {
        let left = lab.turn();
        let these = lab.fired();
        assert_eq!(these.len(), if turn < 3 { 3 } else { 1 });
        fired.extend(these.into_iter().map(|(n, _)| n));
        assert_eq!(left, if turn < 3 { Turn::More } else { Turn::Idle });
    }
    assert!(fired.into_iter().eq(0..10));
    assert_eq!(lab.counts().turns_exhausted, 3);
}

#[test]
fn a_turn_stops_delivering_when_its_time_is_up() {
    for (time_max, expected) in [(ms(1), [3, 6, 7]), (Duration::ZERO, [1, 2, 3])] {
        let budget = TurnBudget { time_max: Some(time_max), ..TurnBudget::default() };
        let mut lab = Lab::<u64>::new(builder(1).budget(budget));
        let ran = Rc::new(RefCell::new(Vec::new()));
        for n in 0..7 {
            let (clock, ran) = (lab.clock.clone(), Rc::clone(&ran));
            let call = move |_: &Timers<u64>| {
                clock.advance(Duration::from_micros(400));
                ran.borrow_mut().push(n);
            };
            lab.timers().schedule_fn(ms(1 + n / 5), call).unwrap();
        }
        lab.clock.advance(ms(9));
        for so_far in expected {
            let left = lab.turn();
            assert!(ran.borrow().iter().copied().eq(0..so_far), "{time_max:?}");
            assert_eq!(left, if so_far < 7 { Turn::More } else { Turn::Idle });
        }
    }
}

#[test]
fn a_callback_that_is_taken_back_can_still_be_run() {
    let mut lab = Lab::<u8>::new(builder(1));
    let client = lab.client();
    let call = |timers: &Timers<u8>| assert!(timers.schedule(ms(1), 7).is_ok());
    let sent = client.schedule_fn_on(SHARD, FAR, call).unwrap();
    let mut answer = client.cancel(sent).into_future();
    lab.settle();
    let Some(corewheel::RemoteTask::Callback(call)) = look(&mut answer).unwrap().unwrap().task()
    else {
        panic!("a callback comes home")
    };
    call(lab.timers());
    let call = |timers: &Timers<u8>| assert!(timers.schedule(ms(2), 8).is_ok());
    let local = lab.timers().schedule_fn(FAR, call).unwrap();
    let Some(corewheel::Task::Callback(call)) = lab.timers().cancel(local).task() else {
        panic!("a callback comes back")
    };
    call.run(lab.timers());
    lab.advance(ms(2));
    assert_eq!(lab.fired().into_iter().map(|(n, _)| n).collect::<Vec<_>>(), [7, 8]);
}

#[test]
fn one_may_use_every_method_of_the_shard_that_runs_it() {
    let mut lab = Lab::<u8>::new(builder(2));
    let call = |timers: &Timers<u8>| {
        assert_eq!((timers.len(), timers.is_empty(), timers.shard_id()), (0, true, SHARD));
        let timer = timers.schedule(ms(1), 1).unwrap();
        assert_eq!(timers.reset_at(timer, timers.now() + ms(3)), ResetOutcome::Moved);
        drop(timers.sleep(ms(1)));
        timers.client().schedule_on(SHARD, ms(4), 2).unwrap();
        timers.client().cancel_detached(timer);
        timers.schedule_fn(FAR, |_| {}).map(drop).unwrap();
    };
    lab.timers().schedule_fn(ms(1), call).unwrap();
    lab.advance(ms(1));
    lab.advance(ms(4));
    assert_eq!(lab.fired(), [(2, 5)], "its own client's cancel comes home too");
    assert_eq!((lab.counts().panicked, lab.counts().pending), (0, 1));
}

#[test]
fn a_refused_callback_comes_back_and_can_be_run() {
    let lab = Lab::<u8>::new(builder(1).capacity(1));
    lab.timers().schedule(FAR, 0).unwrap();
    let ran = Rc::new(Cell::new(false));
    let noted = Rc::clone(&ran);
    match lab.timers().schedule_fn(FAR, move |_| noted.set(true)) {
        Err(ScheduleError::Full(call)) => call(lab.timers()),
        other => panic!("{:?}", other.map(drop)),
    }
    assert!(ran.get());
}

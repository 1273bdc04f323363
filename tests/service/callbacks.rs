//! Callbacks and handlers: their panics, their time, and the commands that they call.

use super::*;

#[test]
fn panic_in_a_callback_is_counted_and_later_timers_fire() {
    for host in Host::all() {
        let (sender, fired) = mpsc::channel();
        let running = Running::start(host, builder(1), move |_| {
            let sender = sender.clone();
            move |one: Fired<u32>, _: &_| {
                assert_ne!(one.payload % 3, 0, "every third handler panics");
                sender.send(one.payload).unwrap();
            }
        });
        let client = running.service.handle();
        for n in 0..30 {
            client.on(SHARD).schedule(ms(2), n).unwrap();
            // The payload of a panic may panic when it is dropped.
            let call = |_: &Timers<u32>| std::panic::panic_any(bomb());
            client.on(SHARD).schedule_fn(ms(2), call).unwrap();
        }
        let all: Vec<_> = (0..20).map(|_| fired.recv_timeout(PATIENCE).unwrap()).collect();
        assert!(all.into_iter().eq((0..30).filter(|n| n % 3 != 0)), "{host:?}");
        wait_until("the last panic is counted", || running.counts().panicked == 40);
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(report.shards[0].counts.fired, 60, "{host:?}");
    }
}

#[test]
fn payload_that_panics_when_dropped_is_counted() {
    let mut lab = Lab::<Option<Bomb>>::with_handler(builder(1), |_| {
        |one: Fired<Option<Bomb>>, _: &Timers<_>| drop(one)
    });
    let client = lab.handle();
    let schedule = |delay| client.on(SHARD).schedule(delay, Some(bomb())).unwrap();
    // The handler, a cancel and a shutdown drop one payload each.
    schedule(ms(1));
    let cancelled = schedule(FAR);
    client.cancel_detached(cancelled);
    schedule(FAR);
    lab.advance(ms(1));
    let counts = lab.counts();
    assert_eq!((counts.panicked, counts.fired, counts.cancelled, counts.pending), (2, 1, 1, 1));
    // No caller waits for the reply.
    let pending = schedule(FAR);
    drop(client.cancel(pending));
    assert_eq!(lab.settled().panicked, 3);
    let report = lab.end(ShutdownPolicy::Drop);
    assert_eq!(unfired(&report.shards[0].counts), 1);
    assert_eq!(lab.counts().panicked, 4);
}

#[test]
fn local_callback_that_panics_when_dropped_does_not_prevent_the_reply() {
    let mut lab = Lab::<()>::new(builder(1));
    let bomb = bomb();
    let timer = lab.timers().schedule_fn(FAR, move |_| drop(bomb)).unwrap();
    assert!(lab.reply(lab.handle().cancel(timer)).unwrap().won());
    assert_eq!(lab.counts().panicked, 1);
}

#[test]
fn slow_callback_is_counted_and_later_timers_fire_late() {
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
    assert_eq!(counts.late, 2, "the two timers after the slow callback are late");
    let lateness = &lab.service.stats().shards[0].lateness;
    assert_eq!(lateness.count, 3);
    assert!(lateness.max_ns >= 50_000_000);
}

#[test]
fn timer_scheduled_for_now_by_a_handler_fires_in_the_next_turn() {
    let mut lab = Lab::<u32>::with_handler(builder(1), |_| {
        |one: Fired<u32>, timers: &Timers<u32>| {
            for delay in [Duration::ZERO, Duration::from_nanos(0)] {
                if timers.len() < 64 {
                    timers.schedule(delay, one.payload + 1).unwrap();
                }
            }
            let past = one.deadline.checked_sub(ms(5)).unwrap_or(one.deadline);
            timers.schedule_fn(past, |_| {}).unwrap();
        }
    });
    lab.timers().schedule(Duration::ZERO, 0).unwrap();
    let mut fired = 0;
    for turn in 0..6 {
        assert_eq!(lab.turn(), Turn::More);
        let now = lab.counts().fired;
        // Each handler of the turn before has scheduled two values and a callback.
        let expected = if turn == 0 { 1 } else { (1 << turn) + (1 << (turn - 1)) };
        assert_eq!(now - fired, expected, "turn {turn}");
        fired = now;
    }
}

#[test]
fn handler_that_reschedules_from_its_deadline_keeps_the_period() {
    let ticks = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&ticks);
    let mut lab = Lab::<u32>::with_handler(builder(1), move |_| {
        let ticks = Rc::clone(&noted);
        move |one: Fired<u32>, timers: &Timers<u32>| {
            ticks.borrow_mut().push(ticks_of(timers));
            if one.payload > 0 {
                timers.schedule(one.deadline + ms(7), one.payload - 1).unwrap();
            }
        }
    });
    lab.timers().schedule(ms(7), 9).unwrap();
    lab.advance_ticks(100);
    assert!(ticks.borrow().iter().copied().eq((1..=10).map(|n| n * 7)), "{ticks:?}");
    assert_eq!(lab.counts().pending, 0);
}

#[test]
fn callback_cancels_timers_due_in_the_same_turn() {
    // The first, the middle and the last timer of the same tick, a timer of a later tick, and all.
    for victims in [vec![1], vec![4], vec![7], vec![8], vec![1, 2, 3, 4, 5, 6, 7, 8]] {
        let timers: Rc<RefCell<Vec<TimerId>>> = Rc::default();
        let mut lab = Lab::new(builder(1));
        let (known, to_cancel) = (Rc::clone(&timers), victims.clone());
        let canceller = move |timers: &Timers<usize>| {
            for &victim in &to_cancel {
                let outcome = timers.cancel(known.borrow()[victim - 1]);
                let won = matches!(
                    outcome,
                    CancelOutcome::Cancelled { payload: Payload::Value(n), remaining }
                        if n == victim && remaining == Duration::ZERO
                );
                assert!(won, "{victim}: {outcome:?}");
            }
        };
        lab.timers().schedule_fn(ms(3), canceller).unwrap();
        for n in 1..=8 {
            let delay = if n == 8 { ms(4) } else { ms(3) };
            timers.borrow_mut().push(lab.timers().schedule(delay, n).unwrap());
        }
        lab.advance(ms(4));
        assert!(lab.values().into_iter().eq((1..=8).filter(|n| !victims.contains(n))));
        assert_eq!((lab.counts().cancelled, lab.counts().panicked), (victims.len() as u64, 0));
    }
}

#[test]
fn cancel_and_reset_of_the_timer_being_delivered_report_already_fired() {
    let mut lab = Lab::<u8>::with_handler(builder(1), |_| {
        |one: Fired<u8>, timers: &Timers<u8>| {
            assert!(matches!(timers.cancel(one.timer), CancelOutcome::AlreadyFired));
            assert_eq!(timers.reset(one.timer, ms(1)), ResetOutcome::AlreadyFired);
            // The next timer uses its slot again.
            let again = timers.schedule(FAR, one.payload).unwrap();
            assert_eq!(slot_of(again), slot_of(one.timer));
            assert!(matches!(timers.cancel(one.timer), CancelOutcome::Stale));
            assert_eq!(timers.reset(one.timer, ms(1)), ResetOutcome::Stale);
        }
    });
    lab.timers().schedule(ms(1), 1).unwrap();
    lab.advance(ms(1));
    let counts = lab.counts();
    assert_eq!((counts.panicked, counts.fired, counts.pending, counts.stale), (0, 1, 1, 4));
}

#[test]
fn expired_timers_beyond_the_budget_are_delivered_in_order_by_later_turns() {
    let budget = TurnBudget { expired_max: 3, ..TurnBudget::default() };
    let mut lab = Lab::new(builder(1).budget(budget));
    for n in 0..10 {
        lab.timers().schedule(ms(1 + n / 5), n).unwrap();
    }
    lab.clock.advance(ms(9));
    for (these, left) in
        [(0..3, Turn::More), (3..6, Turn::More), (6..9, Turn::More), (9..10, Turn::Idle)]
    {
        assert_eq!(lab.turn(), left);
        assert!(lab.values().into_iter().eq(these.clone()), "{these:?}");
    }
    assert_eq!(lab.counts().turns_exhausted, 3);
}

#[test]
fn turn_stops_delivering_when_its_time_is_used_up() {
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
fn callback_uses_every_method_of_its_own_shard() {
    let mut lab = Lab::<u8>::new(builder(2));
    let call = |timers: &Timers<u8>| {
        assert_eq!((timers.len(), timers.is_empty(), timers.shard_id()), (0, true, SHARD));
        let timer = timers.schedule(ms(1), 1).unwrap();
        assert_eq!(timers.reset(timer, timers.now() + ms(3)), ResetOutcome::Reset);
        drop(timers.sleep(ms(1)));
        timers.handle().on(SHARD).schedule(ms(4), 2).unwrap();
        timers.handle().cancel_detached(timer);
        timers.schedule_fn(FAR, |_| {}).map(drop).unwrap();
    };
    lab.timers().schedule_fn(ms(1), call).unwrap();
    lab.advance(ms(1));
    lab.advance(ms(4));
    assert_eq!(lab.fired(), [(2, 5)], "the cancel of the shard's own client is executed too");
    assert_eq!((lab.counts().panicked, lab.counts().pending), (0, 1));
}

//! What a shard's own thread leaves for a turn, between the last turn and the sleep of the driver
//! and while the driver sleeps: no driver sleeps beside it.

use super::*;

/// Whether a turn has done what was left.
type IsDone = Box<dyn FnMut() -> bool>;

/// Has a shard's own thread leave something for a turn, between a turn and the sleep and then while
/// the shard sleeps: the shard takes a turn at once, which does it.
#[track_caller]
fn check<S>(
    what: &str,
    prepare: impl Fn(&mut Lab<u32>) -> S,
    leave: impl Fn(&mut Lab<u32>, S) -> IsDone,
) {
    for is_asleep in [false, true] {
        let mut lab = Lab::new(builder(1));
        let state = prepare(&mut lab);
        lab.settle();
        let (alarm, waker) = Alarm::new();
        let after = lab.turn();
        if is_asleep {
            assert_ne!(lab.shards[0].prepare_to_sleep(after, &waker), Turn::More, "{what}");
        }
        let mut is_done = leave(&mut lab, state);
        if !is_asleep {
            let sleep = lab.shards[0].prepare_to_sleep(after, &waker);
            let is_due = matches!(sleep, Turn::Next(at) if at <= lab.clock.now());
            assert!(sleep == Turn::More || is_due, "{what}: the loop sleeps, {sleep:?}");
        }
        assert!(!is_done(), "{what}: no turn has been taken");
        assert_eq!(alarm.count(), usize::from(is_asleep), "{what}: asleep {is_asleep}");
        while lab.turn() == Turn::More {}
        assert!(is_done(), "{what}: asleep {is_asleep}");
    }
}

fn keep<C: 'static>(lab: &Lab<u32>, value: C) -> Kept<C> {
    lab.timers().keep(value).unwrap_or_else(|_| panic!("the shard is open"))
}

/// Whether a flag is set, while something is kept.
fn is_set<K: 'static>(flag: &Rc<Cell<bool>>, kept: K) -> IsDone {
    let flag = Rc::clone(flag);
    Box::new(move || {
        let _kept = &kept;
        flag.get()
    })
}

/// Whether a reply has come that is as it should be.
fn comes<R: IntoFuture<IntoFuture: 'static>>(
    reply: R,
    is_right: impl Fn(R::Output) -> bool + 'static,
) -> IsDone {
    let mut reply = Box::pin(reply.into_future());
    Box::new(move || look(&mut reply).is_some_and(&is_right))
}

#[test]
fn drop_of_the_last_handle_of_a_kept_value() {
    let prepare = |lab: &mut Lab<u32>| {
        let (guard, dropped) = Guard::new();
        (keep(lab, guard), dropped)
    };
    check("a drop", prepare, |_, (kept, dropped)| {
        drop(kept);
        Box::new(move || dropped.load(Ordering::SeqCst) == 1)
    });
}

#[test]
fn orders_to_connections() {
    let prepare = |lab: &mut Lab<u32>| {
        let conn = lab.timers().connection(ConnLimits::default().read_idle(FAR)).unwrap();
        let told = Rc::new(Cell::new(false));
        let noted = Rc::clone(&told);
        conn.on_event(move |_, _| noted.set(true));
        (conn, told)
    };
    check("drain", prepare, |lab, (conn, told)| {
        lab.handle().on(SHARD).drain(FAR).unwrap();
        is_set(&told, conn)
    });
    check("idlest", prepare, |lab, (conn, told)| {
        lab.handle().on(SHARD).close_idlest(1).unwrap();
        is_set(&told, conn)
    });
}

#[test]
fn scale_that_makes_timeouts_due() {
    let prepare = |lab: &mut Lab<u32>| {
        let ended = Rc::new(Cell::new(false));
        let noted = Rc::clone(&ended);
        let timeouts =
            ScaledTimeouts::new(lab.timers(), ms(5), FAR, move |(), _| noted.set(true)).unwrap();
        let timeout = timeouts.start(()).unwrap();
        lab.advance(ms(50));
        (ended, (timeouts, timeout))
    };
    check("a scale", prepare, |lab, (ended, timeouts)| {
        lab.timers().set_scale(Scale::new(0.0).unwrap());
        is_set(&ended, timeouts)
    });
}

#[test]
fn requests_to_the_shard_itself() {
    let prepare = |lab: &mut Lab<u32>| keep(lab, Cell::new(7));
    check("a command", prepare, |_, kept| {
        comes(kept.try_run(Cell::get).unwrap(), |value| value == Ok(7))
    });
    let schedule = |lab: &mut Lab<u32>| lab.timers().schedule(FAR, 1).unwrap();
    check("a cancel", schedule, |lab, timer| {
        comes(lab.timers().handle().cancel(timer), |outcome| outcome.unwrap().won())
    });
    check("a reset", schedule, |lab, timer| {
        comes(lab.timers().handle().reset(timer, FAR * 2), |_| true)
    });
    let nothing = |_: &mut Lab<u32>| ();
    check("a new value", nothing, |lab, ()| {
        comes(lab.handle().on(SHARD).keep(|_| ()).unwrap(), |_| true)
    });
    check("a shutdown", nothing, |lab, ()| {
        comes(lab.service.begin_shutdown(ShutdownPolicy::Drop).unwrap(), |_| true)
    });
}

#[test]
fn earlier_deadlines_of_timers_and_futures_end_the_wait_earlier() {
    let mut lab = Lab::<u32>::at_windows(builder(1));
    let begin = lab.clock.now();
    let after = lab.turn();
    assert_eq!(after, Turn::Idle);
    let mut sleep = lab.timers().sleep(ms(30));
    assert!(look(&mut sleep).is_none());
    let (_alarm, waker) = Alarm::new();
    assert_eq!(lab.shards[0].prepare_to_sleep(after, &waker), Turn::Next(begin + ms(30)));
    let after = lab.turn();
    let mut other = lab.timers().handle().sleep(ms(3));
    assert!(look(&mut other).is_none());
    let slept = lab.shards[0].prepare_to_sleep(after, &waker);
    assert!(slept == Turn::More || slept == Turn::Next(begin + ms(3)), "{slept:?}");
}

#[test]
fn timer_of_a_waker_that_is_dropped_as_the_loop_falls_asleep_is_on_time() {
    let mut lab = Lab::new(builder(1));
    let timers = lab.timers().clone();
    let schedules = OnDrop(move || _ = timers.schedule(ms(5), 9).unwrap());
    let schedules = waker_of(move || _ = &schedules);
    let after = lab.turn();
    assert_eq!(lab.shards[0].prepare_to_sleep(after, &schedules), Turn::Idle);
    drop(schedules);
    let after = lab.turn();
    let (alarm, waker) = Alarm::new();
    assert_eq!(lab.shards[0].prepare_to_sleep(after, &waker), Turn::More);
    let begin = lab.clock.now();
    assert_eq!(lab.fall_asleep(&waker), Turn::Next(begin + ms(5)));
    assert_eq!(alarm.count(), 0);
}

#[test]
fn tasks_of_a_manual_clock_wait_for_commands_at_the_present_moment() {
    for has_timer in [false, true] {
        let mut lab = Lab::<u32>::new(builder(2));
        if has_timer {
            lab.timers().schedule(ms(10_000), 1).unwrap();
        }
        let begin = lab.clock.now();
        let (kept, clock) = (keep(&lab, Cell::new(0)), lab.clock.clone());
        let ran = Rc::new(RefCell::new(Vec::new()));
        let tasks = async {
            for _ in 0..3 {
                let add = kept.run(|value| value.replace(value.get() + 1));
                let value = add.await;
                ran.borrow_mut().push((value, clock.now() - begin));
            }
        };
        let turn = ManualClock::run_until_idle(&lab.clock, &mut lab.shards, FAR, tasks);
        assert_eq!(turn, Turn::Idle);
        let expected: Vec<_> = (0..3).map(|value| (Ok(value), ms(0))).collect();
        assert_eq!(ran.take(), expected, "with a timer: {has_timer}");
        assert_eq!(lab.clock.now() - begin, if has_timer { ms(10_000) } else { ms(0) });
    }
}

/// A service of one shard, and a value that is kept there.
fn keeping_seven(host: Host) -> (Running<u32>, Kept<Cell<usize>>) {
    let running = Running::idle(host, builder(1));
    let kept = running.service.handle().on(SHARD).keep(|_| Cell::new(7)).unwrap();
    (running, kept.wait().unwrap())
}

#[test]
fn command_of_a_callback_runs_on_every_host() {
    for host in Host::all() {
        let (running, kept) = keeping_seven(host);
        let (sender, reply) = mpsc::channel();
        let call = move |_: &_| sender.send(kept.try_run(Cell::get).unwrap()).unwrap();
        while running.service.handle().on(SHARD).schedule_fn(ms(1), call.clone()).is_err() {
            thread::yield_now();
        }
        let reply = reply.recv_timeout(PATIENCE).unwrap();
        assert_eq!(block_on(reply), Ok(7), "{host:?}");
    }
}

/// On the thread of the driver itself there is no client, and no timer that would cause a turn.
#[test]
fn command_of_a_task_and_of_the_closure_that_makes_it_runs_on_every_executor() {
    for host in Host::executors() {
        let (running, kept) = keeping_seven(host);
        let spawned = running.service.spawn_on(SHARD, move |_| kept.try_run(Cell::get).unwrap());
        assert_eq!(block_on(spawned.unwrap()), Ok(Ok(7)), "{host:?}");
        let last = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&last);
        let spawned = running.service.spawn_on(SHARD, move |timers| async move {
            let kept = timers.keep(Cell::new(0)).unwrap();
            for _ in 0..50 {
                let add = kept.run(|value: &Cell<usize>| value.replace(value.get() + 1));
                noted.store(add.await.unwrap(), Ordering::SeqCst);
            }
            noted.fetch_add(1_000, Ordering::SeqCst);
        });
        assert_eq!(block_on(spawned.unwrap()), Ok(()), "{host:?}");
        assert_eq!(last.load(Ordering::SeqCst), 1_049, "{host:?}: it ran to its end");
    }
}

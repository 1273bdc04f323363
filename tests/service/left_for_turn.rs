//! What a shard's own thread leaves for a turn, between the last turn and the sleep of the driver
//! and while the driver sleeps: no driver sleeps beside it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use corewheel::attach::Turn;
use corewheel::clock::ManualClock;
use corewheel::conn::ConnLimits;
use corewheel::kept::Kept;
use corewheel::settings::Scale;
use corewheel::{Fired, ShutdownPolicy, Timers};
use corewheel_kit::scaled::ScaledTimeouts;

use corewheel_test_support::{
    Alarm, FAR, Guard, Host, Lab, PATIENCE, Running, SHARD, block_on, builder, look, ms,
};

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

fn seen(flag: &Rc<Cell<bool>>) -> IsDone {
    let flag = Rc::clone(flag);
    Box::new(move || flag.get())
}

#[test]
fn command_to_a_kept_value() {
    check(
        "a command",
        |lab| keep(lab, Cell::new(7)),
        |_, kept| {
            let mut reply = kept.try_run(Cell::get).unwrap();
            Box::new(move || look(&mut reply) == Some(Ok(7)))
        },
    );
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
    let keeping = |conn, told: &Rc<Cell<bool>>| -> IsDone {
        let mut is_told = seen(told);
        Box::new(move || {
            let _conn = &conn;
            is_told()
        })
    };
    check("drain", prepare, |lab, (conn, told)| {
        lab.timers().handle().on(SHARD).drain(FAR).unwrap();
        keeping(conn, &told)
    });
    check("idlest", prepare, |lab, (conn, told)| {
        lab.timers().handle().on(SHARD).close_idlest(1).unwrap();
        keeping(conn, &told)
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
        (timeouts, timeout, ended)
    };
    check("a scale", prepare, |lab, (timeouts, timeout, ended)| {
        lab.timers().set_scale(Scale::new(0.0).unwrap());
        let mut is_over = seen(&ended);
        Box::new(move || {
            let _timeouts = (&timeouts, &timeout);
            is_over()
        })
    });
}

#[test]
fn requests_to_the_shard_itself() {
    check(
        "a cancel",
        |lab| lab.timers().schedule(FAR, 1).unwrap(),
        |lab, timer| {
            let mut reply = lab.timers().handle().cancel(timer);
            Box::new(move || look(&mut reply).is_some_and(|outcome| outcome.unwrap().won()))
        },
    );
    check(
        "a reset",
        |lab| lab.timers().schedule(FAR, 1).unwrap(),
        |lab, timer| {
            let mut reply = lab.timers().handle().reset(timer, FAR * 2);
            Box::new(move || look(&mut reply).is_some())
        },
    );
    check(
        "a new value",
        |_| (),
        |lab, ()| {
            let mut reply = lab.service.handle().on(SHARD).keep(|_| ()).unwrap();
            Box::new(move || look(&mut reply).is_some())
        },
    );
}

#[test]
fn shutdown_of_the_service() {
    check(
        "a shutdown",
        |_| (),
        |lab, ()| {
            let report = lab.service.begin_shutdown(ShutdownPolicy::Drop).unwrap();
            let mut report = Box::pin(report);
            Box::new(move || look(&mut report).is_some())
        },
    );
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

thread_local! {
    static TIMERS: RefCell<Option<Timers<u32>>> = const { RefCell::new(None) };
}

/// A waker whose drop schedules a timer.
struct Schedules;

impl Wake for Schedules {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Schedules {
    fn drop(&mut self) {
        TIMERS.with_borrow(|timers| timers.as_ref().unwrap().schedule(ms(5), 9).unwrap());
    }
}

#[test]
fn timer_of_a_waker_that_is_dropped_as_the_loop_falls_asleep_is_on_time() {
    let mut lab = Lab::new(builder(1));
    TIMERS.set(Some(lab.timers().clone()));
    let after = lab.turn();
    assert_eq!(
        lab.shards[0].prepare_to_sleep(after, &Waker::from(Arc::new(Schedules))),
        Turn::Idle
    );
    let after = lab.turn();
    let (alarm, waker) = Alarm::new();
    assert_eq!(lab.shards[0].prepare_to_sleep(after, &waker), Turn::More);
    let begin = lab.clock.now();
    assert_eq!(lab.fall_asleep(&waker), Turn::Next(begin + ms(5)));
    assert_eq!(alarm.count(), 0);
    TIMERS.set(None);
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

#[test]
fn command_of_a_callback_runs_on_every_host() {
    for host in Host::all() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u32>, _: &Timers<u32>| {});
        let kept =
            running.service.handle().on(SHARD).keep(|_| Cell::new(7)).unwrap().wait().unwrap();
        let (sender, reply) = std::sync::mpsc::channel();
        let call = move |_: &_| sender.send(kept.try_run(Cell::get).unwrap()).unwrap();
        let shard = running.service.handle().on(SHARD);
        block_on(async {
            loop {
                match shard.schedule_fn(ms(1), call.clone()) {
                    Ok(_) => break,
                    Err(_) => std::thread::yield_now(),
                }
            }
        });
        let reply = reply.recv_timeout(PATIENCE).unwrap();
        assert_eq!(block_on(reply), Ok(7), "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn command_of_a_closure_that_makes_a_future_runs_on_every_executor() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u32>, _: &Timers<u32>| {});
        let kept =
            running.service.handle().on(SHARD).keep(|_| Cell::new(7)).unwrap().wait().unwrap();
        // The future waits for nothing of the shard, so that only the command causes a turn.
        let make = move |_| kept.try_run(Cell::get).unwrap();
        let spawned = running.service.spawn_on(SHARD, make);
        assert_eq!(block_on(spawned.unwrap()), Ok(Ok(7)), "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
}

/// On the thread of the driver itself there is no client, and no timer that would cause a turn.
#[test]
fn command_of_a_task_runs_on_every_executor() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u32>, _: &Timers<u32>| {});
        let ran = Arc::new((AtomicBool::new(false), AtomicUsize::new(0)));
        let noted = Arc::clone(&ran);
        let spawned = running.service.spawn_on(SHARD, move |timers| async move {
            let kept = timers.keep(Cell::new(0)).unwrap();
            for _ in 0..50 {
                let add = kept.run(|value: &Cell<usize>| value.replace(value.get() + 1));
                noted.1.store(add.await.unwrap(), Ordering::SeqCst);
            }
            noted.0.store(true, Ordering::SeqCst);
        });
        assert_eq!(block_on(spawned.unwrap()), Ok(()), "{host:?}");
        assert_eq!((ran.0.load(Ordering::SeqCst), ran.1.load(Ordering::SeqCst)), (true, 49));
        running.end(ShutdownPolicy::Drop);
    }
}

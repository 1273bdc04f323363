//! Connections: what they have not done in time, and that they are never said to be idle early.

mod hostile;
mod looks;
mod model;

use std::cell::{Cell, RefCell};
use std::future::ready;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewheel::DeadlineKind::{
    AllIdle, Handshake, Heartbeat, MaxAge, Own, ReadIdle, Request, WriteIdle, WriteTimeout,
};
use corewheel::{
    AdoptError, ArmError, ConnError, ConnLimits, ConnTimers, DeadlineKind, Fired, IdleEvent,
    LoopSleep, Raced, ShutdownPolicy, Timers, Turn,
};
use fastrand::Rng;

use crate::support::{
    Alarm, Host, Lab, PATIENCE, Running, SHARD, block_on, builder, check_law, look, ms, next,
    ticks_of, wait_until,
};

const NONE: ConnLimits = ConnLimits {
    read_idle: Duration::ZERO,
    write_idle: Duration::ZERO,
    all_idle: Duration::ZERO,
    heartbeat: Duration::ZERO,
    write_timeout: Duration::ZERO,
    handshake: Duration::ZERO,
    max_age: Duration::ZERO,
};
const READ_IDLE: ConnLimits = ConnLimits { read_idle: ms(100), ..NONE };

fn lab() -> Lab<u8> {
    Lab::new(builder(1))
}

fn poll(conn: &ConnTimers<u8>) -> Poll<Option<IdleEvent>> {
    conn.poll_next(&mut Context::from_waker(Waker::noop()))
}

/// The kind of the next event that has come, and whether it is the first.
fn event(conn: &ConnTimers<u8>) -> Option<(DeadlineKind, bool)> {
    match poll(conn) {
        Poll::Ready(event) => event.map(|event| (event.kind, event.first)),
        Poll::Pending => None,
    }
}

/// Lets so many milliseconds pass, one at a time. What came, with when it did.
fn run(
    lab: &mut Lab<u8>,
    conn: &ConnTimers<u8>,
    milliseconds: u64,
) -> Vec<(u64, DeadlineKind, bool)> {
    let mut events = Vec::new();
    for _ in 0..milliseconds {
        lab.advance(ms(1));
        while let Some((kind, first)) = event(conn) {
            events.push((ticks_of(lab.timers()), kind, first));
        }
    }
    events
}

#[test]
fn an_idle_connection_is_told_for_the_first_time_and_then_again_and_again() {
    for (kind, limits) in [
        (ReadIdle, ConnLimits { read_idle: ms(100), ..NONE }),
        (WriteIdle, ConnLimits { write_idle: ms(100), ..NONE }),
        (AllIdle, ConnLimits { all_idle: ms(100), ..NONE }),
        (Heartbeat, ConnLimits { heartbeat: ms(100), ..NONE }),
    ] {
        let mut lab = lab();
        let conn = lab.timers().connection(limits).unwrap();
        let events = run(&mut lab, &conn, 350);
        assert_eq!(events, [(100, kind, true), (200, kind, false), (300, kind, false)]);
        check_law(&lab.counts());
    }
}

#[test]
fn activity_at_half_a_period_puts_it_off_by_that_half() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    for round in 1..=20 {
        assert_eq!(run(&mut lab, &conn, 50), [], "round {round}");
        conn.touch_read_at(lab.clock.now());
    }
    assert_eq!(run(&mut lab, &conn, 100), [(1_100, ReadIdle, true)]);
}

#[test]
fn a_touch_counts_as_up_to_ten_milliseconds_and_a_tick_later_than_it_is() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    for at in 1..300 {
        assert_eq!(run(&mut lab, &conn, 1), [], "at {at}");
        conn.touch_read();
    }
    let events = run(&mut lab, &conn, 112);
    let [(at, ReadIdle, true)] = events[..] else { panic!("{events:?}") };
    assert!((399..=410).contains(&at), "{at}");
}

#[test]
fn activity_after_an_event_makes_the_next_one_the_first() {
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(100), write_idle: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    let both = [(100, ReadIdle, true), (100, WriteIdle, true)];
    assert_eq!(run(&mut lab, &conn, 150), both);
    conn.touch_read_at(lab.clock.now());
    let events = run(&mut lab, &conn, 120);
    assert_eq!(events, [(200, WriteIdle, false), (250, ReadIdle, true)]);
    conn.touch();
    let events = run(&mut lab, &conn, 200);
    assert_eq!(events[0].1, ReadIdle);
    assert!(events[..2].iter().all(|(at, _, first)| *first && (370..=381).contains(at)));
}

#[test]
fn reading_and_writing_are_told_apart_and_both_are_activity() {
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(100), write_idle: ms(100), all_idle: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    for _ in 0..3 {
        let _ = run(&mut lab, &conn, 40);
        conn.touch_write_at(lab.clock.now());
    }
    assert_eq!(lab.timers().connections(), 1);
    let _ = run(&mut lab, &conn, 10);
    assert_eq!(conn.deadline(ReadIdle).unwrap(), lab.clock.now() + ms(70), "told at 100");
    let events = run(&mut lab, &conn, 90);
    assert_eq!(events, [(200, ReadIdle, false), (220, WriteIdle, true), (220, AllIdle, true)]);
}

#[test]
fn a_long_write_that_gets_on_is_activity() {
    let mut lab = lab();
    let limits = ConnLimits { write_idle: ms(100), all_idle: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    let write = conn.begin_write();
    for _ in 0..10 {
        assert_eq!(run(&mut lab, &conn, 80), []);
        write.progress();
    }
    assert!(write.finish(), "there is no limit for it");
    assert_eq!(run(&mut lab, &conn, 99), []);
    assert_eq!(run(&mut lab, &conn, 15).len(), 2);
}

#[test]
fn a_read_in_progress_is_no_idle_time() {
    let mut lab = lab();
    let limits =
        ConnLimits { read_idle: ms(100), all_idle: ms(150), write_idle: ms(1_000), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    let read = conn.begin_read();
    let another = conn.begin_read();
    assert_eq!(run(&mut lab, &conn, 500), []);
    drop(read);
    assert_eq!(run(&mut lab, &conn, 520), [(1_000, WriteIdle, true)]);
    drop(another);
    let events = run(&mut lab, &conn, 111);
    let [(at, ReadIdle, true)] = events[..] else { panic!("{events:?}") };
    assert!((1_120..=1_131).contains(&at), "{at}");
}

#[test]
fn connections_are_counted_by_a_shard_that_sleeps_too() {
    let mut lab = lab();
    let counted = |lab: &Lab<u8>| lab.counts().connections;
    let first = lab.timers().connection(ConnLimits { max_age: ms(100), ..NONE }).unwrap();
    let mut turn = lab.turn();
    assert_eq!(counted(&lab), 1);
    // Until something is due it takes no turn.
    while lab.shards[0].prepare_to_sleep(turn, Waker::noop()) == LoopSleep::No {
        turn = lab.turn();
    }
    let second = lab.timers().connection(NONE).unwrap();
    assert_eq!((counted(&lab), lab.timers().connections()), (2, 2));
    assert!(first.close());
    drop((first, second));
    assert_eq!(counted(&lab), 0);
}

#[test]
fn no_number_of_reads_in_progress_is_too_many() {
    let mut lab = lab();
    let conn = lab.timers().connection(ConnLimits { read_idle: ms(100), ..NONE }).unwrap();
    let mut reads: Vec<_> = (0..3_000).map(|_| conn.begin_read()).collect();
    assert_eq!(run(&mut lab, &conn, 500), []);
    // All are over but one that is counted.
    reads.truncate(1);
    assert_eq!(run(&mut lab, &conn, 500), []);
    drop(reads);
    let events = run(&mut lab, &conn, 111);
    let [(_, ReadIdle, true)] = events[..] else { panic!("{events:?}") };
}

#[test]
fn zero_is_off_and_a_quiet_shard_is_not_woken() {
    let mut lab = lab();
    let conn = lab.timers().connection(NONE).unwrap();
    assert!(is_quiet(lab.turn()));
    for kind in [ReadIdle, WriteIdle, AllIdle, Heartbeat, WriteTimeout, Handshake, MaxAge, Own(3)] {
        assert_eq!(conn.deadline(kind), None, "{kind}");
    }
    lab.advance(Duration::from_hours(24 * 365 * 100));
    assert_eq!(poll(&conn), Poll::Pending);
    // Its activity makes the shard look at the clock, and no longer.
    conn.touch_read();
    assert!(!is_quiet(lab.turn()));
    lab.advance(ms(11));
    assert!(is_quiet(lab.turn()));
}

/// Whether a turn leaves nothing to be done for a thousand years.
fn is_quiet(turn: Turn) -> bool {
    match turn {
        Turn::Idle => true,
        Turn::Next(tick) => tick.index() > 1 << 45,
        _ => false,
    }
}

#[test]
fn huge_limits_mean_never() {
    let mut lab = lab();
    let huge = Duration::MAX;
    let limits = ConnLimits {
        read_idle: huge,
        write_idle: huge,
        all_idle: huge,
        heartbeat: huge,
        write_timeout: huge,
        handshake: huge,
        max_age: huge,
    };
    let conn = lab.timers().connection(limits).unwrap();
    conn.touch();
    let write = conn.begin_write();
    conn.arm(Request, huge).unwrap();
    lab.advance(Duration::from_hours(24 * 365 * 500));
    assert_eq!(poll(&conn), Poll::Pending);
    assert!(write.finish());
}

#[test]
fn a_value_that_comes_with_its_deadline_wins() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.advance(ms(100));
    // The event has come; something is read before anybody asks for it.
    conn.touch_read();
    assert_eq!(poll(&conn), Poll::Pending);
    assert_eq!(run(&mut lab, &conn, 100), []);
    lab.advance(ms(11));
    let cx = &mut Context::from_waker(Waker::noop());
    {
        let mut race = pin!(conn.race(ready(7)));
        assert_eq!(race.as_mut().poll(cx), Poll::Ready(Raced::Done(7)));
    }
    assert_eq!(event(&conn), Some((ReadIdle, true)), "nothing was read");
    let mut race = pin!(conn.race(std::future::pending::<u8>()));
    assert!(race.as_mut().poll(cx).is_pending());
    lab.advance(ms(100));
    let idle = IdleEvent { kind: ReadIdle, first: false };
    assert_eq!(race.as_mut().poll(cx), Poll::Ready(Raced::Event(idle)));
}

#[test]
fn old_age_comes_before_a_value() {
    let mut lab = lab();
    let limits = ConnLimits { max_age: ms(100), read_idle: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    lab.advance(ms(100));
    let mut race = pin!(conn.race(ready(7)));
    let old = IdleEvent { kind: MaxAge, first: true };
    let cx = &mut Context::from_waker(Waker::noop());
    assert_eq!(race.as_mut().poll(cx), Poll::Ready(Raced::Event(old)));
    assert_eq!(run(&mut lab, &conn, 100)[0], (101, ReadIdle, true), "told when asked for");
    assert_eq!(conn.deadline(MaxAge), None, "it comes once");
}

#[test]
fn a_connection_is_closed_once_and_all_its_deadlines_with_it() {
    let mut lab = lab();
    let limits = ConnLimits {
        read_idle: ms(10),
        write_idle: ms(10),
        all_idle: ms(10),
        heartbeat: ms(10),
        write_timeout: ms(10),
        handshake: ms(10),
        max_age: ms(10),
    };
    let conn = lab.timers().connection(limits).unwrap();
    for number in 0..DeadlineKind::OWN_COUNT {
        conn.arm(Own(number), ms(10)).unwrap();
    }
    let write = conn.begin_write();
    assert_eq!(lab.timers().len(), 1, "all of them are one entry");
    lab.advance(ms(10));
    let (alarm, waker) = Alarm::new();
    while let Poll::Ready(event) = conn.poll_next(&mut Context::from_waker(&waker)) {
        assert!(event.is_some());
    }
    assert!(conn.close());
    assert_eq!(alarm.count(), 1, "who waits is told");
    assert!(!conn.close(), "once");
    assert_eq!(poll(&conn), Poll::Ready(None));
    conn.touch();
    assert_eq!(conn.arm(Request, ms(1)), Err(ArmError::Closed));
    assert!(lab.timers().is_empty());
    lab.advance(ms(100));
    assert_eq!(poll(&conn), Poll::Ready(None));
    assert!(conn.is_closed() && conn.deadline(ReadIdle).is_none());
    drop(write);
    drop(conn);
    assert_eq!(lab.timers().connections(), 0);
    lab.settle();
    check_law(&lab.counts());
}

#[test]
fn what_came_before_it_was_closed_is_not_told() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.advance(ms(100));
    conn.close();
    assert_eq!(poll(&conn), Poll::Ready(None));
    // Another connection gets its record, and nothing else of it.
    drop(conn);
    let conn = lab.timers().connection(NONE).unwrap();
    lab.advance(ms(1_000));
    assert_eq!(poll(&conn), Poll::Pending);
}

#[test]
fn each_write_has_its_own_time() {
    let mut lab = lab();
    let conn = lab.timers().connection(ConnLimits { write_timeout: ms(100), ..NONE }).unwrap();
    let first = conn.begin_write();
    lab.advance(ms(40));
    let second = conn.begin_write();
    lab.advance(ms(40));
    let third = conn.begin_write();
    assert!(second.finish());
    // The progress of a write does not give it more time.
    first.progress();
    assert_eq!(run(&mut lab, &conn, 60), [(100, WriteTimeout, true)]);
    assert!(!first.finish(), "its time was up");
    assert_eq!(conn.deadline(WriteTimeout).unwrap(), lab.clock.now() + ms(40));
    drop(third);
    assert_eq!(run(&mut lab, &conn, 200), []);
}

#[test]
fn deadlines_that_come_once_can_be_armed_moved_and_disarmed() {
    let mut lab = lab();
    let limits = ConnLimits { handshake: ms(50), max_age: ms(1_000), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    assert_eq!(conn.disarm(Handshake), Ok(true));
    assert_eq!(conn.disarm(Handshake), Ok(false));
    conn.arm(Request, ms(500)).unwrap();
    conn.arm(Own(0), ms(300)).unwrap();
    conn.arm(Own(7), ms(200)).unwrap();
    // One that comes nearer must not wait for what was filed before.
    conn.arm(Request, ms(100)).unwrap();
    conn.arm_at(Own(7), lab.clock.now() + ms(400)).unwrap();
    let events = run(&mut lab, &conn, 600);
    assert_eq!(events, [(100, Request, true), (300, Own(0), true), (400, Own(7), true)]);
    conn.arm(MaxAge, ms(50)).unwrap();
    conn.arm(Own(1), Duration::ZERO).unwrap();
    assert_eq!(run(&mut lab, &conn, 1_000), [(601, Own(1), true), (650, MaxAge, true)]);
    // What has come and was not told can still be disarmed.
    conn.arm(Request, ms(1)).unwrap();
    lab.advance(ms(5));
    assert_eq!(conn.disarm(Request), Ok(true));
    assert_eq!(poll(&conn), Poll::Pending);
}

#[test]
fn bad_deadlines_are_refused_by_name() {
    let lab = lab();
    let conn = lab.timers().connection(NONE).unwrap();
    for kind in [ReadIdle, WriteIdle, AllIdle, Heartbeat, WriteTimeout] {
        assert_eq!(conn.arm(kind, ms(1)), Err(ArmError::ByLimits(kind)));
    }
    let error = conn.disarm(Own(8)).unwrap_err();
    assert_eq!(error, ArmError::NoSuchDeadline(Own(8)));
    let said = error.to_string();
    assert!(said.contains("own deadline 8") && said.contains("0 to 7"), "{said}");
    let said = ArmError::ByLimits(ReadIdle).to_string();
    assert!(said.contains("read idle") && said.contains("set_limits"), "{said}");
}

#[test]
fn other_limits_hold_from_what_the_connection_last_did() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    assert_eq!(run(&mut lab, &conn, 50), []);
    conn.set_limits(ConnLimits { read_idle: ms(60), ..NONE });
    assert_eq!(conn.limits().read_idle, ms(60));
    assert_eq!(run(&mut lab, &conn, 20), [(60, ReadIdle, true)]);
    conn.set_limits(ConnLimits { read_idle: ms(500), ..NONE });
    assert_eq!(run(&mut lab, &conn, 600), [(500, ReadIdle, true)], "from 0 on");
    conn.set_limits(NONE);
    assert_eq!(run(&mut lab, &conn, 1_000), []);
}

#[test]
fn a_stall_is_followed_by_one_event_and_not_by_a_burst() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.advance(ms(1_050));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    assert_eq!(event(&conn), None);
    assert_eq!(run(&mut lab, &conn, 100), [(1_150, ReadIdle, false)]);
}

#[test]
fn events_that_nobody_asks_for_do_not_pile_up() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    for _ in 0..1_000 {
        lab.advance(ms(1));
    }
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    assert_eq!(event(&conn), None);
}

#[test]
fn a_connection_is_never_idle_early_however_the_shard_is_held_up() {
    let given = std::env::var("COREWHEEL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    let mut rng = Rng::with_seed(seed);
    for history in 0..300 {
        let mut lab = lab();
        let limits = ConnLimits { read_idle: ms(rng.u64(1..60)), ..NONE };
        let conn = lab.timers().connection(limits).unwrap();
        let mut touched = lab.clock.now();
        let mut held_up = Duration::ZERO;
        for _ in 0..200 {
            match rng.u32(..5) {
                // Time passes, and the shard does not get to run.
                0 => {
                    let by = Duration::from_micros(rng.u64(..40_000));
                    lab.clock.advance(by);
                    held_up += by;
                }
                1 => lab.clock.advance(Duration::from_micros(rng.u64(..2_000))),
                2 if rng.bool() => {
                    conn.touch_read_at(lab.clock.now());
                    touched = lab.clock.now();
                }
                2 => {
                    conn.touch_read();
                    touched = lab.clock.now();
                }
                _ => {
                    lab.settle();
                    let idle = lab.clock.now() - touched;
                    if let Some((kind, first)) = event(&conn) {
                        assert_eq!(kind, ReadIdle, "seed {seed}, {history}");
                        assert!(idle >= limits.read_idle, "seed {seed}, {history}: {idle:?}");
                        if first {
                            let most = limits.read_idle + held_up + ms(70);
                            assert!(idle <= most, "seed {seed}, {history}: {idle:?}");
                            held_up = Duration::ZERO;
                        }
                    }
                }
            }
        }
        check_law(&lab.counts());
    }
}

#[test]
fn a_callback_is_told_what_is_armed_again_already() {
    let mut lab = lab();
    let conn = Rc::new(lab.timers().connection(READ_IDLE).unwrap());
    let told = Rc::new(RefCell::new(Vec::new()));
    let (noted, itself) = (Rc::clone(&told), Rc::downgrade(&conn));
    conn.on_event(move |timers, event| {
        let conn = itself.upgrade().unwrap();
        assert_eq!(conn.deadline(ReadIdle), Some(timers.now() + ms(100)));
        noted.borrow_mut().push((ticks_of(timers), event.first));
        if event.first {
            // Nothing of the shard's is borrowed.
            timers.schedule(ms(1), 9).unwrap();
            conn.arm(Own(0), ms(5)).unwrap();
            assert_eq!(conn.disarm(Own(0)), Ok(true));
        }
    });
    assert_eq!(run(&mut lab, &conn, 250), [], "nobody else is told");
    assert_eq!(told.take(), [(100, true), (200, false)]);
    assert_eq!(lab.fired(), [(9, 101)]);
    conn.clear_on_event();
    assert_eq!(run(&mut lab, &conn, 100), [(300, ReadIdle, false)]);
}

#[test]
fn a_callback_may_end_its_own_connection() {
    let mut lab = lab();
    for how in 0..4 {
        let limits = ConnLimits { read_idle: ms(10), write_idle: ms(10), ..NONE };
        let conn = Rc::new(RefCell::new(Some(lab.timers().connection(limits).unwrap())));
        let (calls, held) = (Rc::new(Cell::new(0)), Rc::clone(&conn));
        let counted = Rc::clone(&calls);
        let guard = Rc::new(());
        let kept = Rc::clone(&guard);
        conn.borrow().as_ref().unwrap().on_event(move |timers, _| {
            assert_eq!(*kept, ());
            counted.set(counted.get() + 1);
            match how {
                0 => drop(held.borrow_mut().take()),
                1 => {
                    held.borrow().as_ref().unwrap().close();
                }
                2 => held.borrow().as_ref().unwrap().clear_on_event(),
                _ => {
                    // Its record goes to another connection at once.
                    drop(held.borrow_mut().take());
                    *held.borrow_mut() = Some(timers.connection(limits).unwrap());
                }
            }
        });
        lab.advance(ms(10));
        assert_eq!(calls.get(), 1, "of two events, when the first ends it by {how}");
        lab.advance(ms(10));
        assert_eq!(calls.get(), 1, "{how}");
        drop(conn.take());
        assert_eq!(Rc::strong_count(&guard), 1, "the callback is dropped: {how}");
        assert!(lab.timers().is_empty());
    }
    check_law(&lab.counts());
}

#[test]
fn a_callback_that_panics_is_counted_and_called_again() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let calls = Rc::new(Cell::new(0));
    let counted = Rc::clone(&calls);
    conn.on_event(move |_, _| {
        counted.set(counted.get() + 1);
        panic!("as the test wants it");
    });
    lab.advance(ms(100));
    lab.advance(ms(100));
    assert_eq!((calls.get(), lab.counts().panicked), (2, 2));
}

#[test]
fn a_full_shard_refuses_a_connection_and_says_so() {
    let mut lab = Lab::<u8>::new(builder(1).capacity(2));
    let mut conns = Vec::new();
    let refused = loop {
        match lab.timers().connection(READ_IDLE) {
            Ok(conn) => conns.push(conn),
            Err(error) => break error,
        }
    };
    assert_eq!((refused, conns.len()), (ConnError::Full, 2));
    assert_eq!(lab.timers().connections(), 2);
    // A full shard still tells its connections again and again.
    assert_eq!(run(&mut lab, &conns[1], 200).len(), 2);
    drop(conns.pop());
    conns.push(lab.timers().connection(READ_IDLE).unwrap());
    let timers = lab.timers().clone();
    let _ = lab.end(ShutdownPolicy::Drop);
    assert_eq!(timers.connection(READ_IDLE).unwrap_err(), ConnError::Closed);
}

#[test]
fn a_connection_takes_its_deadlines_along_to_another_shard() {
    let mut lab = Lab::<u8>::new(builder(2));
    let limits = ConnLimits { read_idle: ms(100), max_age: ms(500), handshake: ms(20), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    conn.disarm(Handshake).unwrap();
    conn.arm(Own(2), ms(130)).unwrap();
    lab.advance(ms(60));
    conn.touch_read_at(lab.clock.now());
    lab.advance(ms(5));
    let packed = conn.pack().unwrap();
    assert!(lab.timers().is_empty(), "nothing is left behind");
    // It is `Send`, and time passes on the way.
    let packed = std::thread::spawn(move || packed).join().unwrap();
    lab.advance(ms(5));
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    assert_eq!(conn.limits(), limits);
    let events = run(&mut lab, &conn, 500);
    let expected = [
        (130, Own(2), true),
        (160, ReadIdle, true),
        (260, ReadIdle, false),
        (360, ReadIdle, false),
        (460, ReadIdle, false),
        (500, MaxAge, true),
        (560, ReadIdle, false),
    ];
    assert_eq!(events, expected);
    let closed = lab.shards[1].timers().connection(limits).unwrap();
    closed.close();
    assert!(closed.pack().is_none());
}

#[test]
fn what_was_noted_just_before_the_move_is_not_taken_for_older() {
    let mut lab = Lab::<u8>::new(builder(2));
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    conn.touch_read();
    // The shard is held up, and the same moment is noted.
    lab.clock.advance(ms(90));
    conn.touch_read();
    let packed = conn.pack().unwrap();
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    assert_eq!(run(&mut lab, &conn, 99), []);
    assert_eq!(run(&mut lab, &conn, 15).len(), 1);
}

#[test]
fn a_shard_that_cannot_adopt_gives_back_what_it_was_given() {
    let mut lab = Lab::<u8>::new(builder(2).capacity(1));
    let packed = lab.timers().connection(READ_IDLE).unwrap().pack().unwrap();
    let other = lab.shards[1].timers().clone();
    let there = other.connection(READ_IDLE).unwrap();
    let error = other.adopt(packed).unwrap_err();
    assert!(matches!(error, AdoptError::Full(_)) && error.to_string().contains("capacity"));
    let packed = error.into_connection();
    assert_eq!(packed.limits(), READ_IDLE);
    drop(there);
    let conn = other.adopt(packed).unwrap();
    assert_eq!(run(&mut lab, &conn, 100).len(), 1);
}

#[test]
fn the_end_of_a_shard_closes_its_connections_and_tells_none_early() {
    for policy in [ShutdownPolicy::Fire, ShutdownPolicy::Return, ShutdownPolicy::Drop] {
        let mut lab = lab();
        let conn = lab.timers().connection(READ_IDLE).unwrap();
        let called = lab.timers().connection(READ_IDLE).unwrap();
        called.on_event(|_, event| panic!("told {event:?}"));
        let (alarm, waker) = Alarm::new();
        assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
        let report = lab.end(policy);
        assert_eq!((alarm.count(), poll(&conn)), (1, Poll::Ready(None)), "{policy:?}");
        assert!(conn.is_closed() && called.is_closed());
        assert_eq!(report.counts.panicked, 0);
        check_law(&report.counts);
        conn.touch();
        drop((conn, called));
    }
}

#[test]
fn many_connections_are_looked_at_only_when_they_may_be_idle() {
    const CONNECTIONS: usize = 1_000;
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(1_000), ..NONE };
    let open = |_| lab.timers().connection(limits).unwrap();
    let conns: Vec<_> = (0..CONNECTIONS).map(open).collect();
    for _ in 0..5_000 {
        lab.clock.advance(ms(1));
        conns.iter().step_by(2).for_each(ConnTimers::touch_read);
        lab.settle();
    }
    let active = conns.iter().step_by(2).filter(|conn| poll(conn).is_ready()).count();
    let idle = conns.iter().skip(1).step_by(2).filter(|conn| poll(conn).is_ready()).count();
    assert_eq!((active, idle), (0, CONNECTIONS / 2));
    let counts = lab.counts();
    assert_eq!(counts.fired, 5 * CONNECTIONS as u64 / 2, "the active ones never fire");
    assert_eq!(lab.timers().len(), CONNECTIONS);
    assert!(matches!(lab.turn(), Turn::Next(_)));
    check_law(&counts);
}

#[test]
fn a_quiet_connection_leaves_its_shard_asleep_until_it_is_due() {
    let mut lab = lab();
    let _conn = lab.timers().connection(READ_IDLE).unwrap();
    // The wheel may bring it nearer once a level.
    assert!(matches!(lab.turn(), Turn::Next(_)));
    lab.advance(ms(99));
    assert_eq!(lab.turn(), next(100));
}

#[test]
fn connections_are_told_on_every_executor() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let spawned = running.service.spawn_on(SHARD, |timers: Timers<u8>| async move {
            let limits = ConnLimits { read_idle: ms(40), heartbeat: ms(15), ..NONE };
            let conn = timers.connection(limits).unwrap();
            let mut beats = 0;
            // Something is read at half the time, several times.
            for _ in 0..6 {
                timers.sleep(ms(20)).await.unwrap();
                conn.touch_read();
                while let Poll::Ready(event) = poll(&conn) {
                    assert_eq!(event.unwrap().kind, Heartbeat, "it is not idle");
                    beats += 1;
                }
            }
            let touched = timers.now();
            loop {
                let event = conn.next().await.unwrap();
                if event.kind == ReadIdle {
                    assert!(event.first);
                    return (timers.now() - touched, beats);
                }
            }
        });
        let (idle, beats) = block_on(spawned.unwrap()).unwrap();
        assert!(idle >= ms(40) && idle < PATIENCE, "{host:?}: {idle:?}");
        assert!(beats >= 1, "{host:?}");
        let report = running.end(ShutdownPolicy::Return);
        check_law(&report.shards[0].counts);
    }
}

#[test]
fn connections_are_told_by_callbacks_everywhere() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    for host in Host::all() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        let told = Arc::new(AtomicU64::new(0));
        let noted = Arc::clone(&told);
        let begin = move |timers: &Timers<u8>| {
            let limits = ConnLimits { all_idle: ms(20), ..NONE };
            let conn = Rc::new(timers.connection(limits).unwrap());
            conn.touch();
            let (touched, kept) = (timers.now(), Rc::clone(&conn));
            conn.on_event(move |timers, event| {
                assert_eq!((event.kind, event.first), (AllIdle, true));
                let idle = timers.now() - touched;
                noted.store(idle.as_micros() as u64, Ordering::SeqCst);
                kept.close();
            });
        };
        running.client().schedule_fn_on(SHARD, Duration::ZERO, begin).unwrap();
        wait_until("a connection is idle", || told.load(Ordering::SeqCst) > 0);
        assert!(told.load(Ordering::SeqCst) >= 20_000, "{host:?}: it was early");
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(report.shards[0].counts.panicked, 0, "{host:?}");
    }
}

#[test]
fn a_wait_for_an_event_can_be_given_up_and_begun_again() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    {
        let mut wait = Box::pin(conn.next());
        assert_eq!(look(&mut wait), None);
    }
    lab.advance(ms(100));
    let mut wait = Box::pin(conn.next());
    assert_eq!(look(&mut wait), Some(Some(IdleEvent { kind: ReadIdle, first: true })));
}

#[test]
fn what_a_future_begins_before_it_first_waits_is_told_in_time() {
    for host in Host::executors() {
        let running = Running::start(host, builder(1), |_| |_: Fired<u8>, _: &Timers<u8>| {});
        // The shard sleeps until it is asked for something.
        std::thread::sleep(ms(20));
        let spawned = running.service.spawn_on(SHARD, |timers: Timers<u8>| {
            let conn = timers.connection(ConnLimits { read_idle: ms(20), ..NONE }).unwrap();
            async move { conn.next().await }
        });
        let told = block_on(spawned.unwrap()).unwrap();
        assert_eq!(told, Some(IdleEvent { kind: ReadIdle, first: true }), "{host:?}");
        running.end(ShutdownPolicy::Return);
    }
}

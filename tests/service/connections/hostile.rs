//! Connections under those who want to prove them wrong: shards that are held up again and again,
//! callbacks and wakers that turn on their connection, and ends at the wrong moment.

use std::sync::Arc;
use std::task::Wake;

use super::*;

/// Lets time pass in steps that are a little too long for what is noted to hold: each leaves a gap.
fn run_held_up(lab: &mut Lab<u8>, milliseconds: u64, mut each: impl FnMut(&mut Lab<u8>)) {
    let end = lab.clock.now() + ms(milliseconds);
    while lab.clock.now() < end {
        lab.clock.advance(Duration::from_micros(13_100));
        lab.settle();
        each(lab);
    }
}

#[test]
fn a_connection_is_idle_in_time_on_a_shard_that_is_held_up_all_the_time() {
    let mut lab = lab();
    let limits = ConnLimits { read_idle: ms(60_000), ..NONE };
    let quiet = lab.timers().connection(limits).unwrap();
    let others: Vec<_> = (0..200).map(|_| lab.timers().connection(NONE).unwrap()).collect();
    quiet.touch_read();
    let touched = lab.clock.now();
    let mut told = Vec::new();
    run_held_up(&mut lab, 130_000, |lab| {
        others.iter().for_each(ConnTimers::touch_read);
        told.extend(event(&quiet).map(|event| (lab.clock.now() - touched, event)));
    });
    let [(first, (ReadIdle, true)), (second, (ReadIdle, false))] = told[..] else {
        panic!("{told:?}")
    };
    assert!((ms(60_000)..ms(60_030)).contains(&first), "{first:?}");
    assert!((ms(60_000)..ms(60_030)).contains(&second.checked_sub(first).unwrap()), "{second:?}");
}

#[test]
fn an_event_is_the_first_again_even_if_nobody_asked_for_the_last_one() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    assert_eq!(run(&mut lab, &conn, 100), [(100, ReadIdle, true)]);
    // This one is withdrawn, as nobody asks before something is read.
    lab.advance(ms(100));
    conn.touch_read_at(lab.clock.now());
    lab.advance(ms(100));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
}

#[test]
fn who_waits_beside_a_callback_is_told_of_the_end() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    conn.on_event(|_, _| {});
    let (alarm, waker) = Alarm::new();
    assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
    lab.advance(ms(100));
    assert_eq!(alarm.count(), 0, "the callback is told instead");
    conn.close();
    assert_eq!(alarm.count(), 1);
}

#[test]
fn who_waits_is_told_what_a_callback_leaves_that_is_cleared() {
    let mut lab = lab();
    let conn = Rc::new(lab.timers().connection(READ_IDLE).unwrap());
    conn.arm(Own(0), ms(100)).unwrap();
    let itself = Rc::downgrade(&conn);
    conn.on_event(move |_, event| {
        assert_eq!(event.kind, ReadIdle);
        itself.upgrade().unwrap().clear_on_event();
    });
    let (alarm, waker) = Alarm::new();
    assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
    lab.advance(ms(100));
    assert_eq!(alarm.count(), 1);
    assert_eq!(event(&conn), Some((Own(0), true)));
}

#[test]
fn a_callback_is_told_what_came_before_it_was_there() {
    let mut lab = lab();
    let limits = ConnLimits { max_age: ms(100), ..NONE };
    let conn = Rc::new(lab.timers().connection(limits).unwrap());
    lab.advance(ms(150));
    let told = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&told);
    conn.on_event(move |timers, event| noted.borrow_mut().push((ticks_of(timers), event.kind)));
    assert_eq!(told.take(), [], "not while it is set");
    lab.advance(ms(1));
    assert_eq!(told.take(), [(151, MaxAge)]);
    // One that replaces itself leaves what has come to its successor.
    let (itself, noted) = (Rc::downgrade(&conn), Rc::clone(&told));
    conn.on_event(move |_, event| {
        assert_eq!(event.kind, Own(1));
        let noted = Rc::clone(&noted);
        itself.upgrade().unwrap().on_event(move |timers, event| {
            noted.borrow_mut().push((ticks_of(timers), event.kind));
        });
    });
    for number in 1..4 {
        conn.arm(Own(number), ms(10)).unwrap();
    }
    lab.advance(ms(10));
    assert_eq!(told.take(), [(161, Own(2)), (161, Own(3))]);
    lab.advance(ms(1_000));
    assert_eq!(told.take(), []);
}

#[test]
fn what_has_come_and_was_not_told_goes_along_to_another_shard() {
    let mut lab = Lab::<u8>::new(builder(2));
    let limits = ConnLimits { max_age: ms(100), read_idle: ms(50), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    conn.arm(Own(4), ms(20)).unwrap();
    lab.advance(ms(110));
    let packed = conn.pack().unwrap();
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    assert_eq!(event(&conn), Some((MaxAge, true)));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    assert_eq!(event(&conn), Some((Own(4), true)));
    assert_eq!(event(&conn), None);
    assert_eq!(run(&mut lab, &conn, 60), [(160, ReadIdle, false)]);
}

#[test]
fn a_read_that_begins_brings_no_deadline_nearer() {
    let mut lab = lab();
    let limits = ConnLimits { all_idle: ms(100), ..READ_IDLE };
    let conn = lab.timers().connection(limits).unwrap();
    conn.touch();
    lab.clock.advance(ms(70));
    let deadlines = || [ReadIdle, AllIdle].map(|kind| conn.deadline(kind).unwrap());
    let before = deadlines();
    let reading = conn.begin_read();
    assert_eq!(deadlines(), before);
    lab.settle();
    let meanwhile = deadlines();
    assert!(meanwhile > before);
    drop(reading);
    assert!(deadlines() >= meanwhile);
}

#[test]
fn an_event_that_comes_along_is_withdrawn_by_a_read_on_a_shard_that_has_not_looked() {
    let mut lab = Lab::<u8>::new(builder(2));
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    lab.clock.advance(ms(100));
    let _ = lab.shards[0].turn();
    let conn = lab.shards[1].timers().adopt(conn.pack().unwrap()).unwrap();
    let reading = conn.begin_read();
    assert_eq!(event(&conn), None);
    drop(reading);
    assert_eq!(run(&mut lab, &conn, 109), []);
    assert_eq!(run(&mut lab, &conn, 1), [(210, ReadIdle, true)]);
}

#[test]
fn a_moment_that_is_known_is_not_taken_for_one_before_the_clock_was_looked_at() {
    let mut lab = lab();
    let others = lab.timers().connection(NONE).unwrap();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    // For now on this shard the moment is noted that comes in 10 ms.
    others.touch_read();
    lab.clock.advance(ms(10));
    conn.touch_read_at(lab.clock.now());
    let opened = lab.timers().connection(READ_IDLE).unwrap();
    // It is held up.
    lab.clock.advance(ms(490));
    lab.settle();
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    assert_eq!(event(&opened), Some((ReadIdle, true)));
}

#[test]
fn a_connection_that_comes_along_is_not_taken_for_active_where_a_shard_was_held_up() {
    for looks_first in [false, true] {
        let mut lab = Lab::<u8>::new(builder(2));
        let conn = lab.timers().connection(READ_IDLE).unwrap();
        let other = lab.shards[1].timers().connection(NONE).unwrap();
        // The same moment is noted on both shards; only the first looks in time.
        conn.touch_read();
        other.touch_read();
        lab.clock.advance(ms(10));
        let _ = lab.shards[0].turn();
        lab.clock.advance(ms(80));
        if looks_first {
            let _ = lab.shards[1].turn();
        }
        lab.clock.advance(ms(20));
        let conn = lab.shards[1].timers().adopt(conn.pack().unwrap()).unwrap();
        assert_eq!(run(&mut lab, &conn, 1), [(111, ReadIdle, true)]);
    }
}

#[test]
fn what_was_read_before_an_event_and_is_noted_after_it_brings_the_next_one_nearer() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let _ = run(&mut lab, &conn, 50);
    let read = lab.clock.now();
    assert_eq!(run(&mut lab, &conn, 60), [(100, ReadIdle, true)]);
    conn.touch_read_at(read);
    assert_eq!(run(&mut lab, &conn, 100), [(150, ReadIdle, true)]);
}

#[test]
fn a_moment_that_is_past_takes_nothing_back() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let before = lab.clock.now();
    lab.advance(ms(80));
    conn.touch_read_at(lab.clock.now());
    conn.touch_write();
    conn.touch_read_at(before);
    conn.touch_write_at(before);
    assert_eq!(run(&mut lab, &conn, 99), []);
    assert_eq!(run(&mut lab, &conn, 1), [(180, ReadIdle, true)]);
}

thread_local! {
    /// The connection that a waker of this thread turns on.
    static PREY: RefCell<Option<Rc<ConnTimers<u8>>>> = const { RefCell::new(None) };
}

/// Closes the prey when the last waker of it is dropped.
struct ClosesWhenDropped;

impl Wake for ClosesWhenDropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for ClosesWhenDropped {
    fn drop(&mut self) {
        let prey = PREY.with_borrow(Clone::clone);
        prey.expect("there is one").close();
    }
}

#[test]
fn a_waker_that_closes_the_connection_when_it_is_dropped_leaves_nobody_waiting() {
    let lab = lab();
    let conn = Rc::new(lab.timers().connection(READ_IDLE).unwrap());
    PREY.set(Some(Rc::clone(&conn)));
    let closes = Waker::from(Arc::new(ClosesWhenDropped));
    assert!(conn.poll_next(&mut Context::from_waker(&closes)).is_pending());
    drop(closes);
    // The connection has the last one, and lets go of it for another.
    let (alarm, waker) = Alarm::new();
    assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!((alarm.count(), poll(&conn)), (1, Poll::Ready(None)));
    PREY.set(None);
}

/// Panics when it is woken.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("as the test wants it");
    }
}

#[test]
fn a_waker_that_panics_does_not_keep_its_connection() {
    let mut lab = lab();
    let waker = Waker::from(Arc::new(Panics));
    for _ in 0..2 {
        let conn = lab.timers().connection(READ_IDLE).unwrap();
        assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
        drop(conn);
        assert_eq!((lab.timers().connections(), lab.timers().len()), (0, 0));
    }
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
    lab.advance(ms(100));
    assert_eq!((event(&conn), lab.counts().panicked), (Some((ReadIdle, true)), 3));
}

#[test]
fn writes_that_time_out_together_are_one_event_and_one_that_no_turn_saw_is_in_time() {
    let mut lab = lab();
    let limits = ConnLimits { write_timeout: ms(50), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    let (first, second) = (conn.begin_write(), conn.begin_write());
    assert_eq!(run(&mut lab, &conn, 200), [(50, WriteTimeout, true)]);
    assert!(!first.finish() && !second.finish());
    let overdue = conn.begin_write();
    lab.clock.advance(ms(60));
    assert!(overdue.finish());
    assert_eq!(run(&mut lab, &conn, 200), []);
}

#[test]
fn an_event_after_longer_limits_is_the_first() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    assert_eq!(run(&mut lab, &conn, 100), [(100, ReadIdle, true)]);
    conn.set_limits(ConnLimits { read_idle: ms(150), ..NONE });
    assert_eq!(run(&mut lab, &conn, 50), [(150, ReadIdle, true)]);
}

#[test]
fn a_connection_is_counted_until_it_is_dropped() {
    let lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    conn.close();
    assert_eq!((lab.timers().connections(), lab.timers().len()), (1, 0));
    drop(conn);
    assert_eq!(lab.timers().connections(), 0);
}

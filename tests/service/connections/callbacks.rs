//! The callback of `on_event`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use corewheel::ShutdownPolicy;

use super::*;
use corewheel_test_support::check_law;

#[test]
fn callback_finds_idle_deadline_armed_again() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let events = Rc::new(RefCell::new(Vec::new()));
    let (seen, timers) = (Rc::clone(&events), lab.timers().clone());
    conn.on_event(move |conn, event| {
        assert_eq!(conn.deadline(ReadIdle), Some(timers.now() + ms(100)));
        seen.borrow_mut().push((ticks_of(&timers), event.first));
        if event.first {
            // Nothing of the shard is borrowed.
            timers.schedule(ms(1), 9).unwrap();
            conn.arm(Custom(0), ms(5)).unwrap();
            assert_eq!(conn.disarm(Custom(0)), Ok(true));
        }
    });
    assert_eq!(run(&mut lab, &conn, 250), [], "the callback has taken the events");
    assert_eq!(events.take(), [(100, true), (200, false)]);
    assert_eq!(lab.fired(), [(9, 101)]);
}

#[test]
fn callback_may_end_its_own_connection() {
    let mut lab = lab_with(builder(1).capacity(1));
    for how in 0..3 {
        let limits = ConnLimits { read_idle: ms(10), write_idle: ms(10), ..NONE };
        let conn = Rc::new(RefCell::new(Some(lab.timers().connection(limits).unwrap())));
        let (calls, held) = (Rc::new(Cell::new(0)), Rc::clone(&conn));
        let (count, timers) = (Rc::clone(&calls), lab.timers().clone());
        let guard = Rc::new(());
        let kept = Rc::clone(&guard);
        conn.borrow().as_ref().unwrap().on_event(move |conn, _| {
            assert_eq!(*kept, ());
            count.set(count.get() + 1);
            match how {
                0 => drop(held.borrow_mut().take()),
                1 => {
                    conn.close();
                }
                _ => {
                    // There is room for one connection: its place is free at once.
                    drop(held.borrow_mut().take());
                    *held.borrow_mut() = Some(timers.connection(limits).unwrap());
                    assert!(conn.is_closed());
                }
            }
        });
        lab.advance(ms(10));
        assert_eq!(calls.get(), 1, "of two events, as the first ends it: {how}");
        lab.advance(ms(10));
        assert_eq!(calls.get(), 1, "{how}");
        drop(conn.take());
        assert_eq!(Rc::strong_count(&guard), 1, "the callback is dropped: {how}");
        assert!(lab.timers().is_empty());
    }
    check_law(&lab.counts());
}

#[test]
fn callback_that_panics_is_counted_and_called_again() {
    let mut lab = lab();
    let conn = lab.timers().connection(READ_IDLE).unwrap();
    let calls = Rc::new(Cell::new(0));
    let count = Rc::clone(&calls);
    conn.on_event(move |_, _| {
        count.set(count.get() + 1);
        panic!("the test asks for it");
    });
    lab.advance(ms(100));
    lab.advance(ms(100));
    assert_eq!((calls.get(), lab.counts().panicked), (2, 2));
}

#[test]
fn callback_gets_events_that_came_before_it_was_set() {
    let mut lab = lab();
    let limits = ConnLimits { max_age: ms(100), ..NONE };
    let conn = lab.timers().connection(limits).unwrap();
    lab.advance(ms(150));
    let events = Rc::new(RefCell::new(Vec::new()));
    let collect = {
        let (events, timers) = (Rc::clone(&events), lab.timers().clone());
        move |_: &ConnTimers, event: ConnEvent| {
            events.borrow_mut().push((ticks_of(&timers), event.kind));
        }
    };
    conn.on_event(collect.clone());
    assert_eq!(events.take(), [], "not in the call that sets the callback");
    lab.advance(ms(1));
    assert_eq!(events.take(), [(151, MaxAge)]);
    // A callback that replaces itself leaves the other events to its successor.
    conn.on_event(move |conn, event| {
        assert_eq!(event.kind, Custom(1));
        conn.on_event(collect.clone());
    });
    for number in 1..4 {
        conn.arm(Custom(number), ms(10)).unwrap();
    }
    lab.advance(ms(10));
    assert_eq!(events.take(), [(161, Custom(2)), (161, Custom(3))]);
    lab.advance(ms(1_000));
    assert_eq!(events.take(), []);
}

#[test]
fn callback_that_drops_the_last_handle_ends_the_connection_at_once() {
    let mut lab = lab();
    let held = Rc::new(RefCell::new(None));
    let limits = READ_IDLE.write_idle(ms(100));
    let conn = lab.timers().connection(limits).unwrap();
    let (itself, calls, timers) = (Rc::clone(&held), Rc::new(Cell::new(0)), lab.timers().clone());
    let count = Rc::clone(&calls);
    conn.on_event(move |conn, _| {
        count.set(count.get() + 1);
        drop(itself.borrow_mut().take());
        assert!(conn.is_closed() && timers.is_empty());
        // A clone of what the callback is given is a handle of a closed connection.
        *itself.borrow_mut() = Some(conn.clone());
    });
    *held.borrow_mut() = Some(conn);
    lab.advance(ms(100));
    assert_eq!(calls.get(), 1);
    assert_eq!(counted(&mut lab), 1, "the clone");
    let conn = held.take().unwrap();
    assert_eq!(poll(&conn), Poll::Ready(None));
    // The record is still this connection's.
    let other = lab.timers().connection(READ_IDLE).unwrap();
    assert!(conn.is_closed() && !other.is_closed());
    drop(conn);
    assert_eq!(counted(&mut lab), 1);
    assert_eq!(run(&mut lab, &other, 100), [(200, ReadIdle, true)]);
}

#[test]
fn close_and_the_end_of_the_shard_drop_a_callback_that_holds_its_connection() {
    for closes in [true, false] {
        let mut lab = lab();
        let guard = Rc::new(());
        let conn = lab.timers().connection(READ_IDLE).unwrap();
        let held = (conn.clone(), Rc::clone(&guard));
        conn.on_event(move |_, _| {
            let _held = &held;
        });
        drop(conn.clone());
        if closes {
            conn.close();
        } else {
            lab.end(ShutdownPolicy::Drop);
        }
        assert_eq!(Rc::strong_count(&guard), 1, "closes: {closes}");
    }
}

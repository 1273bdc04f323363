//! The callback of `on_event`.

use super::*;

#[test]
fn callback_finds_idle_deadline_armed_again() {
    let mut lab = lab();
    let conn = Timers::open(&lab, READ_IDLE);
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
    let mut lab = Lab::<u8>::new(builder(1).capacity(1));
    let limits = NONE.read_idle(ms(10)).write_idle(ms(10));
    for how in 0..4 {
        let conn = Rc::new(RefCell::new(Some(Timers::open(&lab, limits))));
        let (calls, held) = (Rc::new(Cell::new(0)), Rc::clone(&conn));
        let (count, timers) = (Rc::clone(&calls), lab.timers().clone());
        conn.borrow().as_ref().unwrap().on_event(move |conn, _| {
            count.set(count.get() + 1);
            if how == 0 {
                assert!(conn.close());
            } else {
                drop(held.take());
            }
            assert!(conn.is_closed() && timers.is_empty());
            match how {
                // There is room for one connection: its place is free at once.
                2 => drop(held.replace(Some(timers.connection(limits).unwrap()))),
                // A clone of what the callback is given is a handle of a closed connection.
                3 => drop(held.replace(Some(conn.clone()))),
                _ => {}
            }
        });
        lab.advance(ms(10));
        assert_eq!(calls.get(), 1, "of two events, as the first ends it: {how}");
        lab.advance(ms(10));
        assert_eq!(calls.get(), 1, "{how}");
        let left = conn.take();
        assert_eq!(Rc::strong_count(&calls), 1, "the callback is dropped: {how}");
        assert_eq!(counted(&mut lab), u64::from(left.is_some()), "{how}");
        if let (3, Some(left)) = (how, left) {
            assert_eq!(poll(&left), Poll::Ready(None));
            // The record is still this connection's.
            let other = Timers::open(&lab, limits);
            assert!(left.is_closed() && !other.is_closed());
            drop(left);
            assert_eq!((counted(&mut lab), run(&mut lab, &other, 10).len()), (1, 2));
        }
        assert!(lab.timers().is_empty());
    }
}

#[test]
fn callback_that_panics_is_counted_and_called_again() {
    let mut lab = lab();
    let conn = Timers::open(&lab, READ_IDLE);
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
    let conn = Timers::open(&lab, NONE.max_age(ms(100)));
    lab.advance(ms(150));
    let events = Rc::new(RefCell::new(Vec::new()));
    let (seen, timers) = (Rc::clone(&events), lab.timers().clone());
    let collect = move |_: &ConnTimers, event: ConnEvent| {
        seen.borrow_mut().push((ticks_of(&timers), event.kind));
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
fn close_and_the_end_of_the_shard_drop_a_callback_that_holds_its_connection() {
    for closes in [true, false] {
        let mut lab = lab();
        let guard = Rc::new(());
        let conn = Timers::open(&lab, READ_IDLE);
        let held = (conn.clone(), Rc::clone(&guard));
        conn.on_event(move |_, _| _ = &held);
        drop(conn.clone());
        if closes {
            conn.close();
        } else {
            lab.end(ShutdownPolicy::Drop);
        }
        assert_eq!(Rc::strong_count(&guard), 1, "closes: {closes}");
    }
}

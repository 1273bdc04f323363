//! Idle events: when they come, what delays them, and that they are never early.

use super::*;

#[test]
fn entry_expires_only_when_the_connection_may_be_idle() {
    const CONNECTIONS: usize = 1_000;
    let mut lab = lab();
    let limits = NONE.read_idle(ms(1_000));
    let conns: Vec<_> = (0..CONNECTIONS).map(|_| Timers::open(&lab, limits)).collect();
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
}

#[test]
fn quiet_connection_leaves_its_shard_asleep_until_the_deadline() {
    let mut lab = lab();
    let _conn = lab.timers().connection(READ_IDLE).unwrap();
    // The wheel may take a turn for each level.
    assert!(matches!(lab.turn(), Turn::Next(_)));
    lab.advance(ms(99));
    assert_eq!(lab.turn(), next(100));
}

#[test]
fn idle_event_comes_in_time_on_a_shard_that_is_held_up_all_the_time() {
    let mut lab = lab();
    let quiet = Timers::open(&lab, NONE.read_idle(ms(60_000)));
    let others: Vec<_> = (0..200).map(|_| Timers::open(&lab, NONE)).collect();
    quiet.touch_read();
    let touched = lab.clock.now();
    let mut events = Vec::new();
    while lab.clock.now() < touched + ms(130_000) {
        // A little too long for a stamp: each makes a gap.
        lab.advance(Duration::from_micros(13_100));
        others.iter().for_each(ConnTimers::touch_read);
        events.extend(event(&quiet).map(|event| (lab.clock.now() - touched, event)));
    }
    let [(first, (ReadIdle, true)), (second, (ReadIdle, false))] = events[..] else {
        panic!("{events:?}")
    };
    assert!((ms(60_000)..ms(60_030)).contains(&first), "{first:?}");
    assert!((ms(60_000)..ms(60_030)).contains(&second.checked_sub(first).unwrap()), "{second:?}");
}

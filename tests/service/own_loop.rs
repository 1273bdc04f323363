//! Shards in loops of the user: waits between turns, and shutdown.

use super::*;

#[test]
fn shutdown_fires_into_the_handler_and_counts() {
    for (policy, expected) in [
        (ShutdownPolicy::Fire, (vec![1, 2], 2, 0, 0)),
        (ShutdownPolicy::Return, (vec![], 0, 2, 0)),
        (ShutdownPolicy::Drop, (vec![], 0, 0, 2)),
    ] {
        let fired = Rc::<RefCell<Vec<u8>>>::default();
        let mut lab = Lab::with_handler(builder(1), |_| {
            let fired = Rc::clone(&fired);
            move |one: Fired<u8>, _: &_| fired.borrow_mut().push(one.payload)
        });
        lab.timers().schedule(FAR, 2).unwrap();
        lab.timers().schedule(ms(1), 1).unwrap();
        let report = lab.end(policy);
        assert_eq!(Rc::strong_count(&fired), 1, "the handler is dropped");
        let counts = report.shards[0].counts;
        let found = (fired.take(), counts.fired, counts.returned, counts.dropped);
        assert_eq!(found, expected, "{policy:?}");
        assert_eq!(report.returned.len() as u64, counts.returned);
    }
}

#[test]
fn wait_ends_at_earliest_deadline_even_of_a_timer_scheduled_after_the_turn() {
    // From its beginning. A shard also wants a turn where ticks of a coarser level of its wheel
    // begin, which is none of the next 9 then.
    let mut lab = Lab::<u8>::at_epoch(builder(1));
    let (start, shard) = (lab.epoch, &mut lab.shards[0]);
    let after = shard.turn();
    assert_eq!(after, Turn::Idle);
    assert_eq!(shard.prepare_to_sleep(after, Waker::noop()), Turn::Idle);
    shard.timers().schedule(ms(9), 1).unwrap();
    assert_eq!(shard.prepare_to_sleep(after, Waker::noop()), Turn::Next(start + ms(9)));
    let after = shard.turn();
    assert_eq!(after, Turn::Next(start + ms(9)));
    shard.timers().schedule(ms(4), 2).unwrap();
    assert_eq!(shard.prepare_to_sleep(after, Waker::noop()), Turn::Next(start + ms(4)));
    assert_eq!(shard.prepare_to_sleep(Turn::More, Waker::noop()), Turn::More);
    assert_eq!(shard.prepare_to_sleep(Turn::Closed, Waker::noop()), Turn::Closed);
}

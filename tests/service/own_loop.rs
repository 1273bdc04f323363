//! Shards in loops of the user: waits between turns, and shutdown.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::{Fired, ShutdownPolicy, TimerService, Timers};

use corewheel_test_support::{FAR, SHARD, builder, check_law, ms, seeds};

/// A loop whose own handler panics, since no test calls it.
fn bare_loop(clock: &ManualClock) -> (TimerService<u8>, ShardLoop<u8>) {
    let service = builder(1).clock(clock).start_attached_with().unwrap();
    let attachment = service.attach(SHARD).unwrap();
    let handler: fn(Fired<u8>, &Timers<u8>) = |_, _| panic!("the loop's own handler");
    (service, attachment.into_loop(handler).unwrap())
}

#[test]
fn shutdown_fires_into_the_handler_and_counts() {
    for (policy, expected) in [
        (ShutdownPolicy::Fire, (vec![1, 2], 2, 0, 0)),
        (ShutdownPolicy::Return, (vec![], 0, 2, 0)),
        (ShutdownPolicy::Drop, (vec![], 0, 0, 2)),
    ] {
        let clock = seeds::clock();
        let service = builder(1).clock(&clock).start_attached_with().unwrap();
        let fired = Rc::new(RefCell::new(Vec::new()));
        let values = Rc::clone(&fired);
        let handler = move |one: Fired<u8>, _: &_| values.borrow_mut().push(one.payload);
        let shard = service.attach(SHARD).unwrap().into_loop(handler).unwrap();
        shard.timers().schedule(FAR, 2).unwrap();
        shard.timers().schedule(ms(1), 1).unwrap();
        let report = shard.shutdown(policy);
        assert_eq!(Rc::strong_count(&fired), 1, "the handler is dropped");
        let counts = report.shards[0].counts;
        check_law(&counts);
        let found = (fired.take(), counts.fired, counts.returned, counts.dropped);
        assert_eq!(found, expected, "{policy:?}");
        assert_eq!(report.returned.len() as u64, counts.returned);
    }
}

#[test]
fn wait_ends_at_earliest_deadline_even_of_a_timer_scheduled_after_the_turn() {
    // From its beginning. A shard also wants a turn where ticks of a coarser level of its wheel
    // begin, which is none of the next 9 then.
    let clock = ManualClock::new();
    let start = clock.now();
    let (_service, mut shard) = bare_loop(&clock);
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

//! Shards in loops of the user: waits between turns, and shutdown.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Waker;

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::{Fired, Handler, ShutdownPolicy, TimerService};

use crate::support::{FAR, SHARD, builder, check_law, look, ms, seeds};

/// A loop whose own handler panics, since no test calls it.
fn bare_loop(clock: &ManualClock) -> (TimerService<u8>, ShardLoop<u8, impl Handler<u8>>) {
    let service = builder(1).clock(clock).start_attached_with().unwrap();
    let attachment = service.attach(SHARD).unwrap();
    let shard = attachment.into_loop(|_, _| panic!("the loop's own handler")).unwrap();
    (service, shard)
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
        let counts = report.counts;
        check_law(&counts);
        let found = (fired.take(), counts.fired, counts.returned, counts.dropped);
        assert_eq!(found, expected, "{policy:?}");
        assert_eq!(report.unfired, counts.returned + counts.dropped);
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

/// A future that waits for other threads and wakes itself, and what it has seen.
async fn works(timers: corewheel::Timers<u8>) -> (u32, bool) {
    let mut polls = 0;
    // It is always ready, and returns to the loop each time.
    for _ in 0..50 {
        let mut has_waited = false;
        std::future::poll_fn(|cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            let waited = std::mem::replace(&mut has_waited, true);
            if waited { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }
    let slept = timers.sleep(ms(5)).await.is_ok() && timers.handle().sleep(ms(5)).await.is_ok();
    (polls, slept)
}

#[test]
fn loop_polls_spawned_futures_in_its_turns_and_goes_by_its_clock() {
    let clock = seeds::clock();
    let (service, shard) = bare_loop(&clock);
    let mut replies: Vec<_> = (0..3).map(|_| service.spawn_on(SHARD, works).unwrap()).collect();
    let begun = clock.now();
    let mut shards = [shard];
    assert_eq!(clock.run_until_idle(&mut shards, FAR, std::future::pending()), Turn::Idle);
    assert_eq!(clock.now() - begun, ms(10));
    for reply in &mut replies {
        assert_eq!(look(reply), Some(Ok((100, true))));
    }
}

#[test]
fn loop_does_not_sleep_beside_a_future_that_another_thread_wakes() {
    let clock = seeds::clock();
    let (service, mut shard) = bare_loop(&clock);
    let (sender, receiver) = oneshot::async_channel::<u8>();
    let mut reply = service.spawn_on(SHARD, |_| async move { receiver.await.unwrap() }).unwrap();
    assert_eq!(shard.turn(), Turn::More, "the future is not polled yet");
    let turn = shard.turn();
    assert_eq!(turn, Turn::Idle);
    let (alarm, waker) = crate::support::Alarm::new();
    assert_eq!(shard.prepare_to_sleep(turn, &waker), Turn::Idle);
    std::thread::spawn(move || sender.send(7).unwrap()).join().unwrap();
    assert_eq!(alarm.count(), 1, "the loop is woken");
    // Woken between a turn and the sleep, it does not fall asleep.
    assert_eq!(shard.prepare_to_sleep(turn, &waker), Turn::More);
    let _turn = shard.turn();
    assert_eq!(look(&mut reply), Some(Ok(7)));
}

#[test]
fn future_that_is_always_ready_keeps_no_loop_from_its_end() {
    for policy in [ShutdownPolicy::Fire, ShutdownPolicy::Return, ShutdownPolicy::Drop] {
        let clock = seeds::clock();
        let (service, mut shard) = bare_loop(&clock);
        let endless = |_| {
            std::future::poll_fn(|cx| -> std::task::Poll<()> {
                cx.waker().wake_by_ref();
                std::task::Poll::Pending
            })
        };
        let mut reply = service.spawn_on(SHARD, endless).unwrap();
        for _ in 0..5 {
            assert_eq!(shard.turn(), Turn::More, "the future is ready");
        }
        shard.shutdown(policy);
        assert_eq!(look(&mut reply), Some(Err(corewheel::ReplyError::Closed)), "{policy:?}");
    }
}

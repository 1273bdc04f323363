//! Handles of another service, and guards and futures that are forgotten: none of them
//! affects another timer.

use std::mem::forget;

use corewheel_glommio::Runtime;
use corewheel_kit::queue::DelayQueue;

use super::*;
use corewheel_test_support::key_of;

/// Two services, and a timer of each with the same shard and key.
fn two_labs() -> [(Lab<u64>, TimerId); 2] {
    let labs = [(); 2].map(|()| {
        let lab = Lab::new(builder(2));
        let timer = lab.timers().schedule(ms(5), 7).unwrap();
        (lab, timer)
    });
    let [(_, first), (_, second)] = &labs;
    assert_eq!((first.shard(), key_of(*first)), (second.shard(), key_of(*second)));
    assert_ne!(first, second);
    labs
}

#[test]
fn handle_of_another_service_on_the_core_is_foreign_and_changes_nothing() {
    let [(lab, foreign), (mut other, own)] = two_labs();
    let timers = other.timers().clone();
    assert_eq!(timers.reset(foreign, FAR), ResetOutcome::Foreign);
    assert_eq!(timers.reset(foreign, timers.now() + FAR), ResetOutcome::Foreign);
    assert_eq!(timers.reset(foreign, timers.deadline(FAR)), ResetOutcome::Foreign);
    assert!(matches!(timers.cancel(foreign), CancelOutcome::Foreign));
    assert_eq!((timers.due(foreign), timers.remaining(foreign)), (None, None));
    // The shard of a foreign handle makes no difference.
    let elsewhere = lab.shards[1].timers().schedule(ms(5), 8).unwrap();
    assert!(matches!(timers.cancel(elsewhere), CancelOutcome::Foreign));
    let ended = timers.cancel(own);
    assert!(matches!(ended, CancelOutcome::Cancelled { payload: Payload::Value(7), .. }));
    timers.schedule(ms(5), 9).unwrap();
    other.advance(ms(5));
    assert_eq!((other.fired(), lab.timers().len()), (vec![(9, 5)], 1));
}

#[test]
fn handle_of_another_service_given_to_a_client_is_foreign_without_a_turn() {
    let [(_lab, foreign), (mut other, own)] = two_labs();
    let (client, handle) = (other.client(), other.handle());
    // The client replies itself: no shard takes a turn meanwhile.
    let client = thread::spawn(move || {
        assert!(matches!(client.cancel(foreign).wait(), Ok(CancelOutcome::Foreign)));
        assert_eq!(client.reset(foreign, FAR).wait(), Ok(ResetOutcome::Foreign));
        assert_eq!(client.reset(foreign, client.now()).wait(), Ok(ResetOutcome::Foreign));
        let outcomes = client.cancel_many(&[foreign, foreign]).wait().unwrap();
        assert!(matches!(outcomes[..], [Ok(CancelOutcome::Foreign), Ok(CancelOutcome::Foreign)]));
        let outcomes = handle.cancel_many(&[foreign]).wait().unwrap();
        assert!(matches!(outcomes[..], [Ok(CancelOutcome::Foreign)]));
        client.cancel_detached(foreign);
        client.cancel_many(&[foreign]).detach();
        client.reset_detached(foreign, FAR);
        client
    });
    let client = client.join().unwrap();
    // The outcomes are in the order of the handles.
    let outcomes = other.reply(client.cancel_many(&[foreign, own, foreign])).unwrap();
    let [Ok(CancelOutcome::Foreign), Ok(ended), Ok(CancelOutcome::Foreign)] = &outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert!(ended.won());
}

#[test]
fn cancel_of_a_handle_of_a_dropped_service_is_foreign() {
    let ended = Lab::<u64>::new(builder(1));
    let foreign = ended.timers().schedule(FAR, 1).unwrap();
    drop(ended);
    let running = Running::<u64>::idle(Host::Own(Runtime::Thread), builder(1));
    let outcome = running.client().cancel(foreign).wait();
    assert!(matches!(outcome, Ok(CancelOutcome::Foreign)));
}

/// Polls a future once and forgets it.
fn poll_and_forget<F: Future>(future: F) {
    let mut future = Box::pin(future);
    assert!(look(&mut future).is_none());
    forget(future);
}

#[test]
fn forgotten_futures_and_replies_do_not_change_later_timers() {
    let mut lab = Lab::<u64>::new(builder(1));
    let (timers, client) = (lab.timers().clone(), Box::leak(Box::new(lab.client())));
    let queue = DelayQueue::<u8>::new(&timers);
    lab.settle();
    for round in 0..20 {
        let timer = timers.schedule(ms(1), round).unwrap();
        poll_and_forget(timers.sleep(ms(1)));
        poll_and_forget(timers.timeout(ms(2), pending::<()>()));
        poll_and_forget(lab.handle().on(SHARD).sleep(ms(1)));
        forget(client.reset(timer, ms(2)));
        forget(client.cancel_many(&[timer]));
        let key = queue.insert(1, ms(9)).unwrap();
        poll_and_forget(queue.next());
        queue.remove(key).unwrap();
        let own = timers.schedule(ms(3), 100 + round).unwrap();
        let sent = client.on(SHARD).schedule(ms(3), 200 + round).unwrap();
        lab.settle();
        let mut slept = Box::pin(timers.sleep(ms(3)));
        assert!(look(&mut slept).is_none());
        lab.advance(ms(2));
        assert!(look(&mut slept).is_none() && timers.remaining(own) == Some(ms(1)));
        assert_eq!(timers.cancel(sent).payload().and_then(Payload::into_value), Some(200 + round));
        lab.advance(ms(1));
        assert_eq!(look(&mut slept), Some(Ok(())));
        assert_eq!(lab.fired().last(), Some(&(100 + round, 3 * round + 3)));
    }
}

#[test]
fn forgotten_read_and_write_guards_do_not_change_the_next_connection() {
    let mut lab = Lab::<u64>::new(builder(1));
    let limits = ConnLimits { read_idle: ms(50), write_timeout: ms(20), ..ConnLimits::default() };
    let is_over =
        |conn: &ConnTimers| conn.poll_next(&mut Context::from_waker(Waker::noop())).is_ready();
    for _ in 0..20 {
        let conn = lab.timers().connection(limits).unwrap();
        forget(conn.begin_read());
        forget(conn.begin_write());
        forget(conn.begin_request());
        drop(conn);
        let next = lab.timers().connection(limits).unwrap();
        let write = next.begin_write();
        lab.advance(ms(10));
        assert!(write.finish(), "the write is in time");
        lab.advance(ms(30));
        assert!(!is_over(&next));
        lab.advance(ms(10));
        assert!(is_over(&next), "the read timeout has passed");
    }
    assert_eq!(lab.settled().connections, 0);
}

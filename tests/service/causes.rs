//! Refusals name their cause: a shard that nothing drives yet, and a service that was dropped while
//! it is used.

use std::future::IntoFuture;

use corewheel::Runtime;

use super::*;

#[test]
fn shard_that_nothing_has_attached_refuses_with_that_cause() {
    let service: TimerService<u8> = builder(2).start_attached_with().unwrap();
    let _other = service.attach(OTHER).unwrap();
    let client = service.handle();
    // An attachment that waits to be used drives nothing either.
    for shard in [SHARD, OTHER] {
        let timers = client.on(shard);
        let refused = timers.schedule(FAR, 7).unwrap_err();
        assert_eq!(refused, Refused::NotAttached(7));
        assert!(refused.to_string().contains("TimerService::attach"), "{refused}");
        let refused = timers.schedule_fn(FAR, |_| {}).unwrap_err();
        assert_eq!(refused.kind(), RefusedKind::NotAttached);
    }
}

#[test]
fn futures_wait_for_a_shard_to_be_attached_and_one_warning_says_so() {
    let service: TimerService<u8> = builder(1).start_attached_with().unwrap();
    let client = service.handle();
    let timers = client.on(SHARD);
    let mut scheduled = std::pin::pin!(timers.schedule_when_room(FAR, 7));
    let mut slept = service.handle().sleep(FAR);
    let log = logged(|| {
        for _ in 0..2 {
            assert!(look(&mut scheduled).is_none());
            assert!(look(&mut slept).is_none());
        }
    });
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("WARN") && log.contains("not attached") && log.contains("shard=0"));

    let attachment = service.attach(SHARD).unwrap();
    let mut shard = attachment.into_loop(|_: Fired<u8>, _: &Timers<u8>| {}).unwrap();
    wait_until("the timer is scheduled", || {
        let _next = shard.turn();
        look(&mut scheduled).is_some_and(|scheduled| scheduled.is_ok())
    });
    assert_eq!(timers.schedule(FAR, 8).map_err(|refused| refused.kind()).err(), None);
}

#[test]
fn handles_of_a_dropped_service_find_it_closed_and_say_what_to_do() {
    let request = TimerClass::new("request");
    let builder = builder(1).runtime(Runtime::Thread).class(request);
    let service: TimerService<u8> = builder.start_with(|_| |_, _: &_| {}).unwrap();
    let (client, handle) = (service.handle(), service.handle());
    let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
    let mut slept = handle.sleep(FAR);
    assert!(look(&mut slept).is_none());
    drop(service);

    let refused = client.on(SHARD).schedule(FAR, 7).unwrap_err();
    assert_eq!(refused, Refused::Closed(7));
    let text = refused.to_string();
    assert!(text.contains("dropped") && text.contains("keep the TimerService"), "{text}");
    assert_eq!(block_on(client.on(SHARD).sleep(FAR)), Err(RefusedKind::Closed));
    let reply = block_on(client.cancel(timer).into_future());
    assert!(reply.unwrap_err().to_string().contains("dropped"));

    assert_eq!(look(&mut slept), Some(Err(RefusedKind::Closed)));
    let never = pending::<()>();
    let late = block_on(handle.timeout(FAR, never)).unwrap_err();
    assert!(late.to_string().contains("dropped"), "{late}");
    let unknown = handle.of_class(request).unwrap_err();
    assert!(unknown.to_string().contains("dropped"), "{unknown}");
    // A thread that has not used the service before.
    let other = thread::spawn(move || block_on(handle.sleep(FAR)));
    assert_eq!(other.join().unwrap(), Err(RefusedKind::Closed));
    assert!(matches!(client.on(OTHER).schedule(FAR, 7), Err(Refused::NoSuchShard(7))));
}

#[test]
fn attached_shard_of_a_dropped_service_is_closed() {
    let service: TimerService<u8> = builder(1).start_attached_with().unwrap();
    let attachment = service.attach(SHARD).unwrap();
    let mut shard = attachment.into_loop(|_: Fired<u8>, _: &Timers<u8>| {}).unwrap();
    let timers = shard.timers().clone();
    let mut slept = timers.sleep(FAR);
    drop(service);
    let _next = shard.turn();
    assert_eq!(timers.schedule(FAR, 7), Err(Refused::Closed(7)));
    assert_eq!(look(&mut slept), Some(Err(RefusedKind::Closed)));
}

//! Schedules of clients that wait until their lane has room.

use corewheel_glommio::Runtime;

use super::*;

#[test]
fn schedules_of_5000_fresh_clients_wait_for_room_and_are_accepted() {
    const CLIENTS: usize = 5_000;
    let mut lab = Lab::new(builder(1));
    let clients: Vec<_> = (0..CLIENTS).map(|_| lab.client()).collect();
    let schedules = clients.iter().enumerate().map(|(number, client)| {
        let schedule = client.on(SHARD).schedule_when_room(FAR, number);
        (Box::pin(schedule), Alarm::new(), 0)
    });
    let mut waiting: Vec<_> = schedules.collect();
    let mut polls = 0;
    for round in 0..100 {
        waiting.retain_mut(|(schedule, (woken, waker), seen)| {
            if round > 0 && woken.count() == *seen {
                return true;
            }
            *seen = woken.count();
            polls += 1;
            let polled = poll(schedule, waker);
            !matches!(polled, Poll::Ready(Ok(_)))
        });
        if round == 0 {
            assert!(waiting.len() > CLIENTS / 2, "{} wait", waiting.len());
        }
        lab.advance(ms(1));
        if waiting.is_empty() {
            break;
        }
    }
    assert_eq!(waiting.len(), 0, "they wait for ever or are refused");
    assert!(polls <= 4 * CLIENTS, "{polls} polls");
    assert_eq!(lab.counts().pending, CLIENTS as u64);
    lab.advance(FAR);
    assert!(sorted(lab.values()).into_iter().eq(0..CLIENTS));
}

#[test]
fn thread_that_blocks_on_the_first_schedule_of_each_client_is_served() {
    for runtime in [Runtime::Thread, Runtime::Tokio] {
        let running = Running::idle(Host::Own(runtime), builder(1));
        let clients: Vec<_> = (0..500).map(|_| running.client()).collect();
        for (client, number) in clients.iter().zip(0..) {
            let schedule = client.on(SHARD).schedule_when_room(FAR, number);
            block_on(schedule).unwrap_or_else(|refused| panic!("{number}: {refused}"));
        }
        let counts = running.end(ShutdownPolicy::Return).shards[0].counts;
        assert_eq!(counts.returned as usize, clients.len(), "{runtime:?}");
    }
}

#[test]
fn deadline_of_a_schedule_that_waits_counts_from_the_call() {
    let mut lab = Lab::new(builder(1).capacity(1_024));
    let clients: Vec<_> = (0..40).map(|_| lab.client()).collect();
    let mut schedules = Vec::new();
    for (client, number) in clients.iter().zip(0..) {
        let mut schedule = Box::pin(client.on(SHARD).schedule_when_room(ms(10), number));
        let is_pending = look(&mut schedule).is_none();
        schedules.push((schedule, is_pending));
    }
    assert!(schedules.iter().any(|(_, is_pending)| *is_pending));
    lab.advance(ms(6));
    for (mut schedule, is_pending) in schedules {
        assert!(!is_pending || matches!(look(&mut schedule), Some(Ok(_))));
    }
    lab.settle();
    lab.advance(ms(3));
    assert_eq!(lab.fired(), []);
    lab.advance(ms(1));
    assert_eq!(lab.fired().len(), 40);
}

#[test]
fn drop_of_a_schedule_that_waits_drops_its_value_and_schedules_nothing() {
    let mut lab = Lab::<Guard>::new(builder(1).capacity(64));
    let clients: Vec<_> = (0..40).map(|_| lab.client()).collect();
    let (guard, dropped) = Guard::new();
    let (woken, waker) = Alarm::new();
    let mut waits = 0;
    for client in &clients {
        let mut schedule = Box::pin(client.on(SHARD).schedule_when_room(FAR, guard.clone()));
        if poll(&mut schedule, &waker).is_pending() {
            waits += 1;
            drop(schedule);
            assert_eq!(dropped.load(Ordering::SeqCst), waits);
        }
    }
    assert!(waits > 0);
    lab.settle();
    assert_eq!(lab.settled().pending, (clients.len() - waits) as u64);
    assert_eq!(dropped.load(Ordering::SeqCst), waits);
    drop(waker);
    assert_eq!(Arc::strong_count(&woken), 1, "the waker is kept");
}

#[test]
fn schedule_without_room_returns_its_value() {
    let lab = Lab::new(builder(1).capacity(2));
    let client = lab.client();
    let there = client.on(SHARD);
    let nowhere = client.on(ShardId::new(9));
    let refused = block_on(nowhere.schedule_when_room(FAR, 1)).unwrap_err();
    assert_eq!((refused.kind(), refused.into_value()), (RefusedKind::NoSuchShard, 1));
    while lab.timers().schedule(FAR, 0).is_ok() {}
    let mut schedule = Box::pin(there.schedule_when_room(FAR, 2));
    let refused = look(&mut schedule).unwrap().unwrap_err();
    assert_eq!((refused.kind(), refused.into_value()), (RefusedKind::Full, 2));
}

#[test]
fn schedule_that_waits_for_a_shard_that_ends_returns_its_value() {
    let mut lab = Lab::new(builder(1).capacity(1_024));
    let clients: Vec<_> = (0..40).map(|_| lab.client()).collect();
    let (woken, waker) = Alarm::new();
    let schedule = |client: &Handle<u32>| Box::pin(client.on(SHARD).schedule_when_room(FAR, 3));
    let mut waiting: Vec<_> = clients.iter().map(|client| schedule(client)).collect();
    waiting.retain_mut(|schedule| poll(schedule, &waker).is_pending());
    assert!(!waiting.is_empty());
    drop(lab.end(ShutdownPolicy::Drop));
    assert!(woken.count() >= 1);
    for schedule in &mut waiting {
        let refused = look(schedule).unwrap().unwrap_err();
        assert_eq!((refused.kind(), refused.into_value()), (RefusedKind::Closed, 3));
    }
}

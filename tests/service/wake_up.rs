//! Wake-ups: which requests and commands wake a sleeping shard.

use super::*;

/// A shard with a timer of a client that it knows.
fn connected(builder: TimerServiceBuilder) -> (Lab<u32>, Thread<u32>) {
    let mut lab = Lab::new(builder);
    let client = lab.client();
    client.on(SHARD).schedule(FAR, 0).unwrap();
    lab.settle();
    (lab, client)
}

/// Lets the driver of a shard fall asleep.
fn fall_asleep<T: Send + 'static>(lab: &mut Lab<T>) -> (Arc<Alarm>, Waker) {
    let (alarm, waker) = Alarm::new();
    let _ = lab.fall_asleep(&waker);
    (alarm, waker)
}

/// A shard that sleeps until a local timer at `ms(1_000)`, or for ever without one, and a connected
/// client.
fn asleep(has_timer: bool) -> (Lab<u32>, Thread<u32>, Arc<Alarm>, Waker) {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    client.cancel_detached(client.on(SHARD).schedule(FAR, 0).unwrap());
    lab.settle();
    if has_timer {
        lab.timers().schedule(ms(1_000), 0).unwrap();
    }
    let (alarm, waker) = fall_asleep(&mut lab);
    (lab, client, alarm, waker)
}

fn wake_ups(lab: &Lab<u32>) -> (u64, u64) {
    (lab.counts().wakeups_made, lab.counts().wakeups_saved)
}

/// A command beside a shard that sleeps for a second, whose client has a timer for later.
type Command = fn(&Lab<u32>, &Thread<u32>, TimerId);

#[test]
fn command_wakes_a_shard_that_sleeps_for_a_second_if_it_cannot_wait() {
    const COMMANDS: [(&str, u64, Command); 10] = [
        ("timer for later", 0, |_, client, _| _ = client.on(SHARD).schedule(FAR, 2).unwrap()),
        // The wheel may want a turn before its timer is due, but never later.
        ("timer for then", 0, |_, client, _| _ = client.on(SHARD).schedule(ms(1_000), 1).unwrap()),
        ("timer for before", 1, |_, client, _| _ = client.on(SHARD).schedule(ms(5), 1).unwrap()),
        ("detached cancel", 0, |_, client, timer| client.cancel_detached(timer)),
        ("cancel", 1, |_, client, timer| drop(client.cancel(timer))),
        ("detached reset to later", 0, |_, client, timer| client.reset_detached(timer, FAR * 2)),
        ("detached reset to earlier", 1, |_, client, timer| client.reset_detached(timer, ms(3))),
        ("reset", 1, |_, client, timer| drop(client.reset(timer, FAR))),
        ("local timer for later", 0, |lab, _, _| _ = lab.timers().schedule(FAR, 1).unwrap()),
        ("local timer for before", 1, |lab, _, _| _ = lab.timers().schedule(ms(5), 1).unwrap()),
    ];
    for (command, woken, run) in COMMANDS {
        let (mut lab, client, alarm, _) = asleep(true);
        let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
        let (made, saved) = wake_ups(&lab);
        run(&lab, &client, timer);
        assert_eq!(alarm.count() as u64, woken, "{command}");
        let is_local = command.starts_with("local");
        let expected = (made + woken, saved + 1 - woken);
        assert!(is_local || wake_ups(&lab) == expected, "{command}");
        lab.advance(ms(1_000));
        assert!(lab.fired().contains(&(0, 1_000)), "{command}");
    }
    // A driver that is awake is not woken, and one whose timer is reset to earlier is.
    let (lab, _, alarm, _) = asleep(true);
    let timer = lab.timers().schedule(FAR, 1).unwrap();
    let _ = lab.timers().reset(timer, ms(5));
    lab.timers().schedule(ms(1), 1).unwrap();
    assert_eq!(alarm.count(), 1);
}

#[test]
fn earlier_timers_wake_a_sleeping_shard_once() {
    for has_timer in [false, true] {
        let (mut lab, client, alarm, waker) = asleep(has_timer);
        let (made, saved) = wake_ups(&lab);
        for n in 0..5 {
            client.on(SHARD).schedule(ms(5), n).unwrap();
        }
        assert_eq!(alarm.count(), 1);
        assert_eq!(wake_ups(&lab), (made + 1, saved + 4));
        assert!(matches!(lab.fall_asleep(&waker), Turn::Next(_)));
        client.on(SHARD).schedule(ms(4), 9).unwrap();
        assert_eq!(alarm.count(), 2, "the next sleep is ended once too");
    }
}

#[test]
fn client_with_few_keys_left_wakes_the_shard() {
    // 32 keys of 1,024 are the most that a client is granted.
    let (mut lab, client) = connected(builder(1).capacity(1_024));
    let (alarm, waker) = fall_asleep(&mut lab);
    let mut sent = 0;
    while alarm.count() == 0 {
        client.on(SHARD).schedule(FAR, 1).expect("the client wakes the shard in time");
        sent += 1;
    }
    assert!((8..=16).contains(&sent), "the client has used half of its keys: {sent}");
    let _ = lab.fall_asleep(&waker);
    // The client wakes the shard again whenever half of its keys are used.
    for n in 0..200 {
        client.on(SHARD).schedule(FAR, n).unwrap();
        if alarm.count() > 1 {
            let _ = lab.fall_asleep(&waker);
        }
    }
}

#[test]
fn client_of_a_long_lane_wakes_the_shard_after_8192_timers() {
    let (mut lab, client) = connected(builder(1).capacity(1 << 20).lane_capacity(1 << 16));
    let (alarm, waker) = Alarm::new();
    let (mut sent, mut most, mut alarms) = (0, 0, 0);
    for n in 0..100_000 {
        if alarm.count() > alarms || n == 0 {
            alarms = alarm.count();
            (sent, most) = (0, most.max(sent));
            let _ = lab.fall_asleep(&waker);
        }
        client.on(SHARD).schedule(FAR, n).expect("the client has keys");
        sent += 1;
    }
    assert_eq!(most, 8_192);
}

#[test]
fn refused_client_wakes_the_shard() {
    let mut lab = Lab::new(builder(1).capacity(2));
    let keep = lab.timers().schedule(FAR, 0).unwrap();
    lab.timers().schedule(FAR, 0).unwrap();
    let client = lab.client();
    let (alarm, waker) = fall_asleep(&mut lab);
    assert!(client.on(SHARD).schedule(FAR, 1).is_err());
    assert!(alarm.count() >= 1);
    assert!(lab.timers().cancel(keep).won());
    let _ = lab.fall_asleep(&waker);
    client.on(SHARD).schedule(FAR, 1).unwrap();
}

#[test]
fn shard_with_requests_or_mail_does_not_fall_asleep() {
    let mut lab = Lab::new(builder(1));
    let client = lab.client();
    client.on(SHARD).schedule(FAR, 1).unwrap();
    let (alarm, waker) = Alarm::new();
    let turn = lab.turn();
    client.on(SHARD).schedule(ms(5), 2).unwrap();
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::More);
    let turn = lab.turn();
    // A new client puts its lane into the mailbox.
    let newcomer = lab.client();
    newcomer.on(SHARD).schedule(FAR, 3).unwrap();
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::More);
    assert_eq!(lab.shards[0].prepare_to_sleep(Turn::More, &waker), Turn::More);
    assert_eq!(alarm.count(), 0);
}

#[test]
fn shard_beside_a_half_full_lane_does_not_fall_asleep() {
    // 32 keys of 1,024 are the most that a client is granted.
    let (mut lab, client) = connected(builder(1).capacity(1_024));
    let (alarm, waker) = Alarm::new();
    let turn = lab.turn();
    let send = |count| assert!((0..count).all(|n| client.on(SHARD).schedule(FAR, n).is_ok()));
    send(15);
    assert!(matches!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::Next(_)));
    let turn = lab.turn();
    send(16);
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::More);
    assert_eq!(alarm.count(), 0);
}

#[test]
fn shard_falls_asleep_beside_requests_that_may_wait() {
    let (mut lab, client, alarm, waker) = asleep(true);
    let turn = lab.turn();
    let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
    client.cancel_detached(client.on(SHARD).schedule(FAR, 2).unwrap());
    assert!(matches!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::Next(_)));
    assert_eq!((alarm.count(), lab.counts().lane_depth), (0, 0), "as of the last turn");
    // A caller waits for a reply.
    let turn = lab.turn();
    assert_eq!(lab.counts().pending, 2);
    let _reply = client.reset(timer, FAR * 2);
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::More);
    // The client is about to run out of keys, and woke no thread, as the shard was awake.
    let turn = lab.turn();
    while client.on(SHARD).schedule(FAR, 3).is_ok() {}
    assert_eq!(lab.shards[0].prepare_to_sleep(turn, &waker), Turn::More);
}

#[test]
fn overflow_of_a_full_lane_wakes_the_shard() {
    let mut lab = Lab::new(builder(1).lane_capacity(1));
    let client = lab.client();
    let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
    lab.settle();
    // The shard sleeps for a second, so that a cancel does not wake it.
    lab.timers().schedule(ms(1_000), 0).unwrap();
    let (alarm, waker) = fall_asleep(&mut lab);
    client.cancel_detached(timer);
    assert_eq!(alarm.count(), 0, "the cancel fits into the ring");
    client.cancel_detached(timer);
    assert_eq!(alarm.count(), 1, "the ring is full until the shard receives");
    let _ = lab.fall_asleep(&waker);
    assert_eq!((lab.counts().cancelled, lab.counts().stale), (1, 1));
}

#[test]
fn loop_sleep_lasts_until_the_next_deadline() {
    let mut lab = Lab::<u32>::new(builder(1));
    let (_, waker) = Alarm::new();
    assert_eq!(lab.fall_asleep(&waker), Turn::Idle);
    lab.timers().schedule(ms(7), 1).unwrap();
    let epoch = lab.clock.now();
    assert_eq!(lab.fall_asleep(&waker), Turn::Next(epoch + ms(7)));
    assert_eq!(lab.turn(), next(7));
    lab.timers().schedule(Duration::MAX, 1).unwrap();
    lab.advance(ms(7));
    assert_eq!(lab.counts().fired, 1);
}

#[test]
fn reset_to_an_earlier_deadline_wakes_a_sleeping_shard_on_every_runtime() {
    for host in Host::all() {
        let (running, fired) = Running::<u8>::sending(host, builder(1));
        let client = running.client();
        for (n, way) in [(1, "reset"), (2, "detached"), (3, "instant"), (4, "cancel")] {
            let timer = block_on(client.on(SHARD).schedule_when_room(FAR, n)).unwrap();
            thread::sleep(ms(20));
            match way {
                "reset" => assert_eq!(client.reset(timer, ms(5)).wait(), Ok(ResetOutcome::Reset)),
                "detached" => client.reset_detached(timer, ms(5)),
                "instant" => {
                    let reset = client.reset(timer, client.now() + ms(5));
                    assert_eq!(reset.wait(), Ok(ResetOutcome::Reset));
                }
                _ => {
                    assert!(client.cancel(timer).wait().unwrap().won());
                    continue;
                }
            }
            assert_eq!(fired.recv_timeout(PATIENCE), Ok(n), "{host:?}, {way}");
        }
    }
}

#[test]
fn local_reset_to_an_earlier_deadline_wakes_the_driver() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        let spawned = running.service.spawn_on(SHARD, |timers| async move {
            let (sender, fired) = oneshot::async_channel();
            let timer = timers.schedule_fn(FAR, move |_| sender.send(()).unwrap()).unwrap();
            timers.sleep(ms(20)).await.unwrap();
            assert_eq!(timers.reset(timer, ms(5)), ResetOutcome::Reset);
            fired.await.is_ok()
        });
        assert_eq!(spawned.unwrap().wait(), Ok(true), "{host:?}");
    }
}

#[test]
fn reset_on_the_shard_of_a_timer_that_has_not_come_wakes_the_shard() {
    let (mut lab, client, alarm, waker) = asleep(true);
    // The shard sleeps until an earlier deadline, so the timer does not wake it.
    let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
    assert_eq!(alarm.count(), 0);
    assert_eq!(lab.timers().reset(timer, ms(5)), ResetOutcome::Overtook);
    assert_eq!(alarm.count(), 1, "the shard sleeps past the deadline");
    assert!(matches!(lab.fall_asleep(&waker), Turn::Next(_)));
    lab.advance(ms(5));
    assert_eq!(lab.fired().last().map(|fired| fired.0), Some(1));
}

#[test]
fn reset_on_the_shard_of_a_sleep_that_has_not_come_wakes_the_shard() {
    let (mut lab, ..) = asleep(true);
    let there = Elsewhere::new(lab.handle().untyped());
    // The lane is there and has keys when the second sleep is polled.
    let _first = there.sleep(FAR);
    lab.settle();
    let (alarm, waker) = Alarm::new();
    assert!(matches!(lab.fall_asleep(&waker), Turn::Next(_)));
    let mut sleep = there.sleep(FAR);
    assert_eq!(alarm.count(), 0);
    sleep.reset(ms(5));
    assert_eq!(alarm.count(), 1, "the shard sleeps past the deadline");
    lab.settle();
    lab.advance(ms(5));
    assert_eq!(look(&mut sleep), Some(Ok(())));
}

#[test]
fn sleep_dropped_on_another_thread_wakes_a_shard_that_sleeps_for_long() {
    let (mut lab, there) = Lab::<()>::with_thread(builder(1));
    let sleep = there.sleep(FAR);
    lab.settle();
    let (alarm, waker) = Alarm::new();
    assert!(matches!(lab.fall_asleep(&waker), Turn::Next(_)));
    thread::spawn(move || drop(sleep)).join().unwrap();
    assert_eq!(alarm.count(), 1, "the shard would keep the waker until its look at the timers");
}

#[test]
fn timer_armed_after_a_shard_has_chosen_until_when_it_sleeps_is_not_slept_past() {
    for is_new in [true, false] {
        let (mut lab, there) = Lab::<()>::with_thread(builder(1));
        let _before = (!is_new).then(|| there.sleep(FAR));
        let (armed, all_armed) = mpsc::channel();
        let there = Arc::new(there);
        // The thread arms a sleep where the waker is dropped.
        let arming = Arc::clone(&there);
        let arms = OnDrop(move || armed.send(arming.sleep(ms(10))).unwrap());
        let _ = lab.fall_asleep(&waker_that(move || {
            let _kept = &arms;
        }));
        let turn = lab.turn();
        // The shard drops the other waker when it knows until when it sleeps, before it sleeps.
        let next = lab.shards[0].prepare_to_sleep(turn, &Alarm::new().1);
        let _sleep = all_armed.try_recv().expect("the waker was dropped meanwhile");
        assert_eq!(next, Turn::More, "the shard sleeps past the timer of a new thread: {is_new}");
    }
}

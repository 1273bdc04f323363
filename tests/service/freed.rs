//! Cancels that no caller waits for: a shard that sleeps drops the payload within a second, and
//! many such cancels share a wake-up.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
/// Later than the timer until which the shards of these tests sleep.
const LATER: Duration = Duration::from_hours(2);

/// A shard that sleeps for an hour, and a client whose lane has keys.
struct Asleep {
    lab: Lab<Option<Guard>>,
    client: Thread<Option<Guard>>,
    alarm: Arc<Alarm>,
    waker: Waker,
}

impl Asleep {
    /// `prepare` runs before the shard sleeps.
    fn after<R>(
        prepare: impl FnOnce(&mut Lab<Option<Guard>>, Handle<Option<Guard>>) -> R,
    ) -> (Self, R) {
        // Elsewhere a window of the wheel may begin soon, in which the timers are filed again.
        let mut lab = Lab::at_windows(builder(1).capacity(1 << 16));
        let client = lab.client();
        client.on(SHARD).schedule(LATER, None).unwrap();
        lab.settle();
        let prepared = prepare(&mut lab, *client);
        lab.settle();
        lab.timers().schedule(FAR, None).unwrap();
        let (alarm, waker) = Alarm::new();
        let mut asleep = Self { lab, client, alarm, waker };
        asleep.sleeps_long();
        (asleep, prepared)
    }

    /// Takes turns until the shard sleeps for more than a second, and fails if it takes them at a
    /// moment of its own before.
    fn sleeps_long(&mut self) {
        let slept = self.lab.fall_asleep(&self.waker);
        let long = self.lab.clock.now() + 10 * SECOND;
        assert!(matches!(slept, Turn::Next(at) if at > long), "{slept:?}");
    }
}

/// Schedules a timer, and tells how often its payload was dropped.
fn schedule(client: Handle<Option<Guard>>) -> (TimerId, Arc<AtomicUsize>) {
    let (guard, dropped) = Guard::new();
    (client.on(SHARD).schedule(LATER, Some(guard)).unwrap(), dropped)
}

/// A cancel without a reply wakes a shard that sleeps for an hour, which drops the payload at once
/// and then takes one more turn, a second later.
#[test]
fn cancel_without_a_reply_frees_the_payload_of_a_sleeping_shard() {
    for is_in_lane in [false, true] {
        let (mut asleep, received) =
            Asleep::after(|_, client| (!is_in_lane).then(|| schedule(client)));
        let (timer, dropped) = received.unwrap_or_else(|| schedule(*asleep.client));
        assert_eq!(asleep.alarm.count(), 0, "the timer may wait");
        let begin = asleep.lab.clock.now();
        asleep.client.cancel_detached(timer);
        assert_eq!((asleep.alarm.count(), count(&dropped)), (1, 0), "in its lane: {is_in_lane}");
        assert_eq!(
            asleep.lab.fall_asleep(&asleep.waker),
            Turn::Next(begin + SECOND),
            "in its lane: {is_in_lane}"
        );
        assert_eq!(count(&dropped), 1, "in its lane: {is_in_lane}");
        let requests = if is_in_lane { 2 } else { 3 };
        assert_eq!(asleep.lab.counts().requests, requests, "a cancel in the lane is no message");
        asleep.lab.clock.advance(SECOND);
        asleep.sleeps_long();
        assert_eq!((asleep.alarm.count(), asleep.lab.counts().pending), (1, 2));
    }
}

#[test]
fn cancel_between_a_turn_and_the_sleep_frees_the_payload() {
    for is_in_lane in [false, true] {
        let (mut asleep, received) =
            Asleep::after(|_, client| (!is_in_lane).then(|| schedule(client)));
        let after = asleep.lab.turn();
        let (timer, dropped) = received.unwrap_or_else(|| schedule(*asleep.client));
        asleep.client.cancel_detached(timer);
        let sleep = asleep.lab.shards[0].prepare_to_sleep(after, &asleep.waker);
        assert_eq!((sleep, count(&dropped)), (Turn::More, 0), "in its lane: {is_in_lane}");
        let _next = asleep.lab.fall_asleep(&asleep.waker);
        assert_eq!((count(&dropped), asleep.alarm.count()), (1, 0), "in its lane: {is_in_lane}");
    }
}

/// The shard's own thread cancels a timer of another thread that lies in its lane.
#[test]
fn timer_in_its_lane_that_its_shard_cancels_is_freed_within_a_second() {
    for is_asleep in [false, true] {
        let (mut asleep, ()) = Asleep::after(|_, _| ());
        let after = if is_asleep { Turn::Idle } else { asleep.lab.turn() };
        let (timer, dropped) = schedule(*asleep.client);
        let outcome = asleep.lab.timers().cancel(timer);
        assert!(matches!(outcome, CancelOutcome::Overtook));
        let end = asleep.lab.clock.now() + SECOND;
        if is_asleep {
            assert_eq!(asleep.alarm.count(), 1);
        } else {
            let sleep = asleep.lab.shards[0].prepare_to_sleep(after, &asleep.waker);
            assert_eq!(sleep, Turn::Next(end));
            asleep.lab.clock.advance(SECOND);
        }
        let _next = asleep.lab.turn();
        assert_eq!(count(&dropped), 1, "asleep: {is_asleep}");
    }
}

/// Cancels, one in each millisecond, against a driver that sleeps as it is told to. Returns how
/// often the shard was woken, and how many turns it took.
fn cancel_one_by_one(number: usize) -> (usize, usize) {
    let (mut asleep, timers) = Asleep::after(|lab, client| {
        let schedule = |_| {
            lab.settle();
            schedule(client)
        };
        (0..number).map(schedule).collect::<Vec<_>>()
    });
    let (mut woken, mut turns, mut until) = (0, 0, None);
    for sent in 0..number + 2_000 {
        if let Some((timer, _)) = timers.get(sent) {
            asleep.client.cancel_detached(*timer);
        }
        let now = asleep.lab.clock.now();
        if asleep.alarm.count() > woken || until.is_some_and(|at| at <= now) {
            woken = asleep.alarm.count();
            turns += 1;
            let Turn::Next(at) = asleep.lab.fall_asleep(&asleep.waker) else {
                panic!("it sleeps for ever")
            };
            until = Some(at);
        }
        if let Some(past) = sent.checked_sub(1_000).filter(|past| *past < number) {
            assert_eq!(count(&timers[past].1), 1, "timer {past} is not freed within a second");
        }
        asleep.lab.clock.advance(ms(1));
    }
    assert_eq!(asleep.lab.counts().pending, 2);
    asleep.sleeps_long();
    (asleep.alarm.count(), turns)
}

#[test]
fn cancels_of_a_second_share_a_wake_up() {
    assert_eq!(cancel_one_by_one(1), (1, 2), "a turn for the cancel, and one a second later");
    // They fit into the lane.
    assert_eq!(cancel_one_by_one(40), (1, 3));
    // A lane that is full wakes the shard three times, and is larger then.
    let (woken, turns) = cancel_one_by_one(5_000);
    assert!(woken <= 4 && turns <= 14, "{woken} wake-ups and {turns} turns for 5,000 cancels");
}

#[test]
fn sleeping_shards_of_all_hosts_free_what_is_cancelled() {
    for (_, running) in Running::<Guard>::each(Host::all(), 1) {
        let shard = running.service.handle().on(SHARD);
        for is_marked in [false, true] {
            let (guard, dropped) = Guard::new();
            let timer = block_on(shard.schedule_when_room(LATER, guard)).unwrap();
            if !is_marked {
                // The shard has received the timer, and sleeps.
                assert!(block_on(shard.remaining(timer)).unwrap().is_some());
            }
            shard.cancel_detached(timer);
            wait_until("the payload is dropped", || count(&dropped) == 1);
        }
    }
}

#[test]
fn thousand_cancels_of_real_threads_make_few_wake_ups() {
    for (host, running) in Running::<Guard>::each(Host::all(), 1) {
        let shard = running.service.handle().on(SHARD);
        let schedule = |_| {
            let (guard, dropped) = Guard::new();
            (block_on(shard.schedule_when_room(LATER, guard)).unwrap(), dropped)
        };
        let (timers, all): (Vec<_>, Vec<_>) = (0..1_000).map(schedule).unzip();
        assert!(block_on(shard.remaining(timers[999])).unwrap().is_some());
        let (before, begin) = (running.counts().wakeups_made, Instant::now());
        for timer in timers {
            shard.cancel_detached(timer);
            thread::sleep(Duration::from_micros(100));
        }
        wait_until("all payloads are dropped", || all.iter().all(|dropped| count(dropped) == 1));
        let made = running.counts().wakeups_made - before;
        let seconds = begin.elapsed().as_secs();
        // Three times the lane is full, and grows.
        assert!(made <= 4 + seconds, "{host:?}: {made} wake-ups in {seconds} s");
    }
}

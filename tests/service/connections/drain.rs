//! Drains and the idlest connections, on a shard and on any thread: which connections are told to
//! end, when, and when they are cut.

use super::*;

type Seen = Vec<(u64, DeadlineKind)>;

/// A connection whose task polls when it is woken.
pub(super) struct Watched<S: Opened> {
    pub(super) conn: ConnTimers<S>,
    pub(super) alarm: Arc<Alarm>,
    /// The events that it was given, each with its tick.
    pub(super) seen: Seen,
}

impl<S: Opened> Watched<S> {
    pub(super) fn new(lab: &Lab<u8>, limits: ConnLimits) -> Self {
        let conn = S::open(lab, limits);
        let mut watched = Self { conn, alarm: Arc::default(), seen: Vec::new() };
        watched.run_task(lab);
        watched
    }

    pub(super) fn many(lab: &Lab<u8>, count: usize, limits: ConnLimits) -> Vec<Self> {
        (0..count).map(|_| Self::new(lab, limits)).collect()
    }

    fn run_task(&mut self, lab: &Lab<u8>) {
        let waker = Waker::from(Arc::clone(&self.alarm));
        while let Poll::Ready(Some(event)) = poll_with(&self.conn, &waker) {
            self.seen.push((ticks_of(lab.timers()), event.kind));
        }
    }

    fn is_told(&self) -> bool {
        !self.seen.is_empty()
    }
}

/// Lets a number of milliseconds pass, one at a time. The tasks that are woken poll.
pub(super) fn pass<S: Opened>(lab: &mut Lab<u8>, conns: &mut [Watched<S>], milliseconds: u64) {
    for tick in 0..=milliseconds {
        if tick > 0 {
            lab.advance(ms(1));
        }
        conns.iter_mut().filter(|conn| conn.alarm.rang()).for_each(|conn| conn.run_task(lab));
    }
}

/// When a connection was told to end; fails if it was not told and cut at that tick.
#[track_caller]
fn told_and_cut<S: Opened>(conn: &Watched<S>, cut: u64) -> u64 {
    match conn.seen[..] {
        [(told, MaxAge), (at, AgeGrace)] if at == cut => told,
        _ => panic!("{:?}", conn.seen),
    }
}

#[test]
fn connections_are_told_once_evenly_over_the_window_and_cut_at_its_end() {
    on_both!(|S| {
        let mut lab = lab();
        let limits = NONE.read_idle(Duration::from_hours(1));
        let mut conns = Watched::<S>::many(&lab, 100, limits);
        pass(&mut lab, &mut conns, 5);
        lab.service.drain(ms(1_000));
        lab.settle();
        pass(&mut lab, &mut conns, 2_000);
        let told = sorted(conns.iter().map(|conn| told_and_cut(conn, 1_005)));
        let even: Vec<_> = (0..100).map(|conn| 5 + conn * 10).collect();
        assert_eq!(told, even);
    });
}

#[test]
fn connection_that_begins_during_a_drain_is_told_at_once_and_cut_at_its_end() {
    on_both!(|S| {
        let mut lab = lab();
        lab.service.drain(ms(100));
        let mut conns = Vec::new();
        for after in [40, 100, 40] {
            conns.push(Watched::<S>::new(&lab, NONE));
            pass(&mut lab, &mut conns, after);
        }
        for (conn, at, end) in [(&conns[0], 0, 100), (&conns[1], 40, 100), (&conns[2], 140, 140)] {
            let [(told, MaxAge), (cut, AgeGrace)] = conn.seen[..] else {
                panic!("{:?}", conn.seen)
            };
            assert!((at..=at + 1).contains(&told) && (end..=end + 1).contains(&cut), "{at}");
        }
    });
}

#[test]
fn grace_neither_cuts_before_the_end_of_a_drain_nor_goes_on_after_it() {
    on_both!(|S| {
        for grace in [10, 5_000] {
            let mut lab = lab();
            let limits = NONE.max_age_grace(ms(grace));
            // The first is told by its age before the drain, the second by the drain.
            let mut conns =
                [limits.max_age(ms(50)), NONE].map(|limits| Watched::<S>::new(&lab, limits));
            pass(&mut lab, &mut conns, 55);
            conns[1].conn.set_limits(limits);
            lab.service.drain(ms(100));
            pass(&mut lab, &mut conns, 6_000);
            assert_eq!(told_and_cut(&conns[0], (50 + grace).min(155)), 50, "{grace}");
            assert!((55..155).contains(&told_and_cut(&conns[1], 155)), "{grace}");
        }
    });
}

#[test]
fn connections_that_have_ended_are_not_told_and_do_not_stop_a_drain() {
    on_both!(|S| {
        let mut lab = lab();
        let mut conns = Watched::<S>::many(&lab, 40, NONE);
        assert!(conns.iter().step_by(2).all(|conn| conn.conn.close()));
        // The places of these are free.
        conns.drain(..10);
        lab.service.drain(ms(100));
        pass(&mut lab, &mut conns, 20);
        assert!(conns.pop().unwrap().conn.close());
        pass(&mut lab, &mut conns, 200);
        for (number, conn) in conns.iter().enumerate() {
            let kinds: Vec<_> = conn.seen.iter().map(|event| event.1).collect();
            let expected: &[_] = if number % 2 == 0 { &[] } else { &[MaxAge, AgeGrace] };
            assert_eq!(kinds, expected, "{number}");
        }
    });
}

#[test]
fn later_drain_replaces_the_window_and_tells_nothing_twice() {
    on_both!(|S| {
        let mut lab = lab();
        let mut conns = Watched::<S>::many(&lab, 20, NONE);
        let shard = lab.timers().shard_id();
        lab.client().on(shard).drain(Duration::from_secs(1_000)).unwrap();
        pass(&mut lab, &mut conns, 1);
        assert_eq!(conns.iter().filter(|conn| conn.is_told()).count(), 1);
        lab.service.drain(ms(100));
        pass(&mut lab, &mut conns, 200);
        for conn in &conns {
            told_and_cut(conn, 101);
        }
    });
}

#[test]
fn drain_of_one_shard_leaves_others_alone_and_waits_until_it_is_attached() {
    let clock = seeds::clock();
    let service = builder(2).clock(&clock).start_attached_with::<u8>().unwrap();
    let shards: Vec<_> = service.shards().collect();
    let handle = service.handle();
    let conns = [0, 1].map(|shard| handle.on(shards[shard]).connection(NONE));
    Thread::of(&service).on(shards[1]).drain(ms(50)).unwrap();
    let ignore: fn(Fired<u8>, &Timers<u8>) = |_, _| {};
    let attach = |shard: &_| service.attach(*shard).unwrap().into_loop(ignore).unwrap();
    let mut loops: Vec<_> = shards.iter().map(attach).collect();
    let mut events = || {
        for shard in &mut loops {
            while shard.turn() == Turn::More {}
        }
        [0, 1].map(|conn: usize| event(&conns[conn]))
    };
    assert_eq!(events(), [None, Some((MaxAge, true))]);
    clock.advance(ms(50));
    assert_eq!(events(), [None, Some((AgeGrace, true))]);
    clock.advance(ms(500));
    assert_eq!(events(), [None, None]);
}

#[test]
fn visits_of_many_connections_keep_to_the_budget_of_a_turn() {
    const COUNT: usize = 5_000;
    on_both!(|S| {
        // No window of the wheel ends within the delays: its end takes a turn.
        let mut lab = Lab::<u8>::at_windows(TimerService::builder().shards(1));
        let mut conns = Watched::<S>::many(&lab, COUNT, NONE);
        for delay in (1..=20).flat_map(|delay| [delay; 50]) {
            lab.timers().schedule(ms(delay), 0).unwrap();
        }
        lab.service.drain(ms(20));
        for tick in 1..20 {
            lab.clock.advance(ms(1));
            let _ = lab.turn();
            assert_eq!(lab.fired().len(), 50, "timers of a tick are late");
            pass(&mut lab, &mut conns, 0);
            // 250 in each tick, and one at once: no turn visits more than 256.
            let told = conns.iter().filter(|conn| conn.is_told()).count();
            assert_eq!(told, 250 * tick + 1);
        }
        lab.settle();
        pass(&mut lab, &mut conns, 0);
        assert_eq!(conns.iter().filter(|conn| conn.is_told()).count(), COUNT - 249);
    });
}

#[test]
fn idlest_of_many_are_found_and_told_in_many_turns_between_other_timers() {
    const COUNT: usize = 5_000;
    on_both!(|S| {
        let mut lab = Lab::<u8>::new(TimerService::builder().shards(1));
        let mut conns = Watched::<S>::many(&lab, COUNT, NONE);
        lab.service.close_idlest(usize::MAX);
        let (mut turns, mut before) = (0, 0);
        while before < COUNT {
            (0..100).for_each(|_| _ = lab.timers().schedule(Duration::ZERO, 0).unwrap());
            lab.clock.advance(ms(1));
            let more = lab.turn();
            turns += 1;
            assert_eq!(lab.fired().len(), 100, "timers are late");
            pass(&mut lab, &mut conns, 0);
            let now = conns.iter().filter(|conn| conn.is_told()).count();
            assert!(now - before <= 256, "{now} after {before}");
            assert!(now == COUNT || more == Turn::More, "the rest follows at once");
            before = now;
        }
        assert!(turns >= 2 * COUNT / 256, "{turns}");
    });
}

#[test]
fn orders_of_a_service_without_connections_and_of_one_that_has_ended_do_nothing() {
    let mut lab = lab();
    lab.service.drain(ms(10));
    lab.service.close_idlest(7);
    lab.advance(ms(20));
    assert_eq!(lab.fall_asleep(Waker::noop()), Turn::Idle, "there is nothing to visit");
    let (client, shard) = (lab.client(), lab.timers().shard_id());
    let conn = lab.service.handle().connection(NONE);
    lab.end(ShutdownPolicy::Drop);
    assert_eq!(client.on(shard).drain(ms(1)), Err(RefusedKind::Closed));
    assert_eq!(client.on(shard).close_idlest(1), Err(RefusedKind::Closed));
    lab.service.drain(ms(10));
    drop(conn);
}

/// The task is not polled between the end of the write's time and the order.
#[test]
fn connection_whose_writes_are_all_due_is_among_the_idlest_and_others_are_not() {
    for has_later in [false, true] {
        on_both!(NONE.write_timeout(ms(50)), |lab, conn| {
            let _write = conn.begin_write();
            lab.advance(ms(30));
            let _later = has_later.then(|| conn.begin_write());
            lab.advance(ms(30));
            lab.service.close_idlest(1);
            lab.settle();
            if !has_later {
                assert_eq!(event(conn), Some((MaxAge, true)));
            }
            let found = [event(conn), event(conn)];
            assert_eq!(found, [Some((WriteTimeout, true)), None], "{has_later}");
        });
    }
}

/// Its task, which is not polled before the order, has yet to take the event.
#[test]
fn connection_whose_age_is_due_takes_no_place_among_the_idlest() {
    on_both!(|S| {
        let mut lab = lab();
        let old = Watched::<S>::new(&lab, NONE.max_age(ms(50)));
        lab.advance(ms(20));
        let mut conns = [Watched::<S>::new(&lab, NONE), old];
        lab.advance(ms(40));
        lab.service.close_idlest(1);
        lab.settle();
        pass(&mut lab, &mut conns, 1);
        assert!(conns.iter().all(|conn| conn.seen.len() == 1), "the place is lost");
    });
}

//! Drains and the idlest connections, on a shard and on any thread: which connections are told to
//! end, when, and when they are cut.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use corewheel::{Fired, ShutdownPolicy};

use super::*;
use corewheel_test_support::{Alarm, seeds};

/// One connection with the events that it was given, each with its tick.
pub(super) enum Conn {
    OnShard(ConnTimers, Rc<RefCell<Vec<(u64, DeadlineKind)>>>),
    AnyThread { conn: ConnTimers<Handle>, alarm: Arc<Alarm>, woken: usize, seen: Seen },
}

type Seen = Vec<(u64, DeadlineKind)>;

impl Conn {
    /// A connection on the first shard, whose server notes what it is told.
    pub(super) fn on_shard(lab: &Lab<u8>, limits: ConnLimits) -> Self {
        let conn = lab.timers().connection(limits).unwrap();
        let (seen, timers) = (Rc::<RefCell<Seen>>::default(), lab.timers().clone());
        let noted = Rc::clone(&seen);
        conn.on_event(move |_, event| noted.borrow_mut().push((ticks_of(&timers), event.kind)));
        Self::OnShard(conn, seen)
    }

    /// A connection on any thread, whose task waits.
    pub(super) fn any_thread(lab: &Lab<u8>, limits: ConnLimits) -> Self {
        let conn = lab.service.handle().connection(limits);
        let mut any = Self::AnyThread { conn, alarm: Alarm::new().0, woken: 0, seen: Vec::new() };
        any.run_task(lab, true);
        any
    }

    pub(super) fn of(side: usize, lab: &Lab<u8>, limits: ConnLimits) -> Self {
        if side == 0 { Self::on_shard(lab, limits) } else { Self::any_thread(lab, limits) }
    }

    /// Polls as a task does, when it was woken.
    pub(super) fn run_task(&mut self, lab: &Lab<u8>, is_first: bool) {
        let Self::AnyThread { conn, alarm, woken, seen } = self else { return };
        if alarm.count() == *woken && !is_first {
            return;
        }
        *woken = alarm.count();
        let waker = Waker::from(Arc::clone(alarm));
        while let Poll::Ready(Ok(Some(event))) = conn.poll_next(&mut Context::from_waker(&waker)) {
            seen.push((ticks_of(lab.timers()), event.kind));
        }
    }

    pub(super) fn seen(&self) -> Seen {
        match self {
            Self::OnShard(_, seen) => seen.borrow().clone(),
            Self::AnyThread { seen, .. } => seen.clone(),
        }
    }

    pub(super) fn touch(&self) {
        match self {
            Self::OnShard(conn, _) => conn.touch(),
            Self::AnyThread { conn, .. } => conn.touch(),
        }
    }

    pub(super) fn set_limits(&self, limits: ConnLimits) {
        match self {
            Self::OnShard(conn, _) => conn.set_limits(limits),
            Self::AnyThread { conn, .. } => conn.set_limits(limits),
        }
    }

    fn close(&self) -> bool {
        match self {
            Self::OnShard(conn, _) => conn.close(),
            Self::AnyThread { conn, .. } => conn.close(),
        }
    }
}

/// Lets a number of milliseconds pass, one at a time.
pub(super) fn pass(lab: &mut Lab<u8>, conns: &mut [Conn], milliseconds: u64) {
    let mut run_tasks = |lab: &Lab<u8>| {
        for conn in &mut *conns {
            conn.run_task(lab, false);
        }
    };
    run_tasks(lab);
    for _ in 0..milliseconds {
        lab.advance(ms(1));
        run_tasks(lab);
    }
}

fn many(lab: &Lab<u8>, side: usize, count: usize, limits: ConnLimits) -> Vec<Conn> {
    (0..count).map(|_| Conn::of(side, lab, limits)).collect()
}

#[test]
fn connections_are_told_once_evenly_over_the_window_and_cut_at_its_end() {
    for side in 0..2 {
        let mut lab = lab();
        let mut conns = many(&lab, side, 100, NONE.read_idle(Duration::from_hours(1)));
        pass(&mut lab, &mut conns, 5);
        lab.service.drain(ms(1_000));
        lab.settle();
        pass(&mut lab, &mut conns, 0);
        pass(&mut lab, &mut conns, 2_000);
        let mut told = Vec::new();
        for conn in &conns {
            let [(at, MaxAge), (1_005, AgeGrace)] = conn.seen()[..] else {
                panic!("side {side}: {:?}", conn.seen());
            };
            told.push(at);
        }
        told.sort_unstable();
        let even: Vec<_> = (0..100).map(|conn| 5 + conn * 10).collect();
        assert_eq!(told, even, "side {side}");
    }
}

#[test]
fn connection_that_begins_during_a_drain_is_told_at_once_and_cut_at_its_end() {
    for side in 0..2 {
        let mut lab = lab();
        lab.service.drain(ms(100));
        let mut conns = vec![Conn::of(side, &lab, NONE)];
        pass(&mut lab, &mut conns, 40);
        conns.push(Conn::of(side, &lab, NONE));
        pass(&mut lab, &mut conns, 100);
        conns.push(Conn::of(side, &lab, NONE));
        pass(&mut lab, &mut conns, 40);
        let seen: Vec<_> = conns.iter().map(Conn::seen).collect();
        let told = |at: u64| at..=at + 1;
        for (seen, at, cut) in [(&seen[0], 0, 100), (&seen[1], 40, 100), (&seen[2], 140, 140)] {
            let [(first, MaxAge), (last, AgeGrace)] = seen[..] else { panic!("{side}: {seen:?}") };
            assert!(told(at).contains(&first) && told(cut).contains(&last), "{side}: {seen:?}");
        }
    }
}

#[test]
fn grace_neither_cuts_before_the_end_of_a_drain_nor_goes_on_after_it() {
    for side in 0..2 {
        for grace in [10, 5_000] {
            let mut lab = lab();
            let limits = NONE.max_age(ms(50)).max_age_grace(ms(grace));
            // The first is told by its age before the drain, the second by the drain.
            let mut conns = vec![Conn::of(side, &lab, limits), Conn::of(side, &lab, NONE)];
            pass(&mut lab, &mut conns, 55);
            conns[1].set_limits(NONE.max_age_grace(ms(grace)));
            lab.service.drain(ms(100));
            pass(&mut lab, &mut conns, 6_000);
            let cut = (50 + grace).min(155);
            assert_eq!(conns[0].seen(), [(50, MaxAge), (cut, AgeGrace)], "{side}, {grace}");
            let [(told, MaxAge), (155, AgeGrace)] = conns[1].seen()[..] else {
                panic!("{side}, {grace}: {:?}", conns[1].seen());
            };
            assert!((55..155).contains(&told), "{side}, {grace}");
        }
    }
}

#[test]
fn connections_that_have_ended_are_not_told_and_do_not_stop_a_drain() {
    for side in 0..2 {
        let mut lab = lab();
        let mut conns = many(&lab, side, 40, NONE);
        for conn in conns.iter().step_by(2) {
            assert!(conn.close());
        }
        // The places of these are free.
        conns.drain(..10);
        lab.service.drain(ms(100));
        pass(&mut lab, &mut conns, 20);
        assert!(conns.pop().unwrap().close());
        pass(&mut lab, &mut conns, 200);
        for (number, conn) in conns.iter().enumerate() {
            let kinds: Vec<_> = conn.seen().iter().map(|event| event.1).collect();
            let expected: &[_] = if number % 2 == 0 { &[] } else { &[MaxAge, AgeGrace] };
            assert_eq!(kinds, expected, "side {side}, {number}");
        }
    }
}

#[test]
fn later_drain_replaces_the_window_and_tells_nothing_twice() {
    for side in 0..2 {
        let mut lab = lab();
        let mut conns = many(&lab, side, 20, NONE);
        lab.timers()
            .handle()
            .on(lab.timers().shard_id())
            .drain(Duration::from_secs(1_000))
            .unwrap();
        pass(&mut lab, &mut conns, 1);
        assert_eq!(conns.iter().filter(|conn| !conn.seen().is_empty()).count(), 1);
        lab.service.drain(ms(100));
        pass(&mut lab, &mut conns, 200);
        for conn in &conns {
            let seen = conn.seen();
            assert!(matches!(seen[..], [(_, MaxAge), (101, AgeGrace)]), "side {side}: {seen:?}");
        }
    }
}

#[test]
fn drain_of_one_shard_leaves_others_alone_and_waits_until_it_is_attached() {
    let clock = seeds::clock();
    let service = builder(2).clock(&clock).start_attached_with::<u8>().unwrap();
    let shards: Vec<_> = service.shards().collect();
    let handle = service.handle();
    let conns = [0, 1].map(|shard| handle.on(shards[shard]).connection(NONE));
    corewheel::sim::Thread::of(&service).on(shards[1]).drain(ms(50)).unwrap();
    let ignore: fn(Fired<u8>, &Timers<u8>) = |_, _| {};
    let attach = |shard: &_| service.attach(*shard).unwrap().into_loop(ignore).unwrap();
    let mut loops: Vec<_> = shards.iter().map(attach).collect();
    let mut events = || {
        for shard in &mut loops {
            while shard.turn() == Turn::More {}
        }
        [0, 1].map(|conn: usize| shared::event(&conns[conn]))
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
    for side in 0..2 {
        // No window of the wheel ends within the delays: its end takes a turn.
        let mut lab = Lab::<u8>::at_windows(corewheel::TimerService::builder().shards(1));
        let mut conns = many(&lab, side, COUNT, NONE);
        for delay in 1..=20 {
            for _ in 0..50 {
                lab.timers().schedule(ms(delay), 0).unwrap();
            }
        }
        lab.service.drain(ms(20));
        let told = |conns: &[Conn]| conns.iter().filter(|conn| !conn.seen().is_empty()).count();
        let mut before = 0;
        for tick in 1..20 {
            lab.clock.advance(ms(1));
            let _ = lab.turn();
            assert_eq!(lab.fired().len(), 50, "side {side}: timers of a tick are late");
            pass(&mut lab, &mut conns, 0);
            let now = told(&conns);
            assert_eq!((now, now - before <= 256), (250 * tick + 1, true), "side {side}");
            before = now;
        }
        lab.settle();
        pass(&mut lab, &mut conns, 0);
        assert_eq!(told(&conns), COUNT - 249);
    }
}

#[test]
fn idlest_of_many_are_found_and_told_in_many_turns_between_other_timers() {
    const COUNT: usize = 5_000;
    for side in 0..2 {
        let mut lab = lab_with(corewheel::TimerService::builder().shards(1));
        let mut conns = many(&lab, side, COUNT, NONE);
        lab.service.close_idlest(usize::MAX);
        let (mut turns, mut before) = (0, 0);
        while before < COUNT {
            for _ in 0..100 {
                lab.timers().schedule(Duration::ZERO, 0).unwrap();
            }
            lab.clock.advance(ms(1));
            let more = lab.turn();
            turns += 1;
            assert_eq!(lab.fired().len(), 100, "side {side}: timers are late");
            pass(&mut lab, &mut conns, 0);
            let now = conns.iter().filter(|conn| !conn.seen().is_empty()).count();
            assert!(now - before <= 256, "side {side}: {now} after {before}");
            assert!(now == COUNT || more == Turn::More, "side {side}: the rest follows at once");
            before = now;
        }
        assert!(turns >= 2 * COUNT / 256, "side {side}: {turns}");
    }
}

#[test]
fn orders_of_a_service_without_connections_and_of_one_that_has_ended_do_nothing() {
    let mut lab = lab();
    lab.service.drain(ms(10));
    lab.service.close_idlest(7);
    lab.advance(ms(20));
    let waker = Waker::noop();
    assert_eq!(lab.fall_asleep(waker), Turn::Idle, "there is nothing to visit");
    let (client, shard) = (lab.client(), lab.timers().shard_id());
    let conn = lab.service.handle().connection(NONE);
    lab.end(ShutdownPolicy::Drop);
    assert_eq!(client.on(shard).drain(ms(1)), Err(RefusedKind::Closed));
    assert_eq!(client.on(shard).close_idlest(1), Err(RefusedKind::Closed));
    lab.service.drain(ms(10));
    drop(conn);
}

#[test]
fn idlest_connections_are_told_and_no_others() {
    for side in 0..2 {
        let mut lab = lab();
        let grace = NONE.max_age_grace(ms(30));
        let mut conns = many(&lab, side, 10, grace);
        for conn in [3, 1, 7, 0, 9, 2, 4, 5, 6, 8] {
            pass(&mut lab, &mut conns, 20);
            conns[conn].touch();
        }
        pass(&mut lab, &mut conns, 20);
        lab.service.close_idlest(2);
        // Told before, they do not count.
        pass(&mut lab, &mut conns, 1);
        lab.service.close_idlest(1);
        pass(&mut lab, &mut conns, 100);
        let told: Vec<_> = (0..10).filter(|conn| !conns[*conn].seen().is_empty()).collect();
        assert_eq!(told, [1, 3, 7], "side {side}");
        for conn in [1, 3] {
            let [(at, MaxAge), (cut, AgeGrace)] = conns[conn].seen()[..] else {
                panic!("side {side}: {:?}", conns[conn].seen());
            };
            assert_eq!(cut, at + 30, "side {side}");
        }
        lab.service.close_idlest(usize::MAX);
        pass(&mut lab, &mut conns, 1);
        assert!(conns.iter().all(|conn| !conn.seen().is_empty()));
    }
}

#[test]
fn connection_with_a_request_in_flight_is_not_among_the_idlest() {
    let mut lab = lab();
    let here = [0, 1].map(|_| lab.timers().connection(NONE).unwrap());
    let shared = [0, 1].map(|_| lab.service.handle().connection(NONE));
    lab.advance(ms(50));
    here[1].touch();
    shared[1].touch();
    lab.advance(ms(50));
    let requests = (here[0].begin_request(), shared[0].begin_request());
    lab.service.close_idlest(2);
    lab.advance(ms(1));
    assert_eq!((event(&here[0]), shared::event(&shared[0])), (None, None));
    let told = Some((MaxAge, true));
    assert_eq!((event(&here[1]), shared::event(&shared[1])), (told, told));
    drop(requests);
}

/// The task is not polled between the end of the write's time and the order.
#[test]
fn connection_whose_writes_are_all_due_is_among_the_idlest_and_others_are_not() {
    let limits = NONE.write_timeout(ms(50));
    for has_later in [false, true] {
        let mut lab = lab();
        let (here, shared) =
            (lab.timers().connection(limits).unwrap(), shared::connect(&lab, limits));
        let _writes = (here.begin_write(), shared.begin_write());
        lab.advance(ms(30));
        let _later = has_later.then(|| (here.begin_write(), shared.begin_write()));
        lab.advance(ms(30));
        lab.service.close_idlest(2);
        lab.settle();
        let told = (!has_later).then_some((MaxAge, true));
        for expected in told.into_iter().chain([(WriteTimeout, true)]) {
            let expected = Some(expected);
            assert_eq!((event(&here), shared::event(&shared)), (expected, expected), "{has_later}");
        }
        assert_eq!((event(&here), shared::event(&shared)), (None, None), "{has_later}");
    }
}

/// Its task, which is not polled before the order, has yet to take the event.
#[test]
fn connection_whose_age_is_due_takes_no_place_among_the_idlest() {
    for side in 0..2 {
        let mut lab = lab();
        let old = Conn::of(side, &lab, NONE.max_age(ms(50)));
        lab.advance(ms(20));
        let mut conns = [Conn::of(side, &lab, NONE), old];
        lab.advance(ms(40));
        lab.service.close_idlest(1);
        lab.settle();
        pass(&mut lab, &mut conns, 1);
        assert!(conns.iter().all(|conn| conn.seen().len() == 1), "side {side}: the place is lost");
    }
}

//! Limits that shrink under pressure, on a shard and on any thread.

use super::drain::{Watched, pass};
use super::*;

fn set_scale(lab: &Lab<u8>, factor: f64) {
    lab.service.set_scale(Scale::new(factor).unwrap());
}

#[test]
fn each_limit_that_names_a_least_time_shrinks_to_it_and_between() {
    let cases = [
        (MaxAge, NONE.max_age(ms(100)).max_age_least(ms(20))),
        (Handshake, NONE.handshake(ms(100)).handshake_least(ms(20))),
        (ReadIdle, NONE.read_idle(ms(100)).read_idle_least(ms(20))),
        (WriteIdle, NONE.write_idle(ms(100)).write_idle_least(ms(20))),
        (AllIdle, NONE.all_idle(ms(100)).all_idle_least(ms(20))),
    ];
    for (kind, limits) in cases {
        for (factor, due) in [(1.0, 100), (0.5, 60), (0.0, 20)] {
            on_both!(limits, |lab, conn| {
                set_scale(lab, factor);
                assert_eq!(run(lab, conn, 100)[0], (due, kind, true), "{factor}");
            });
        }
    }
}

#[test]
fn limit_without_a_least_time_or_with_a_longer_one_does_not_shrink() {
    let still = NONE.read_idle(ms(100)).heartbeat(ms(90));
    let events: &[_] = &[(90, Heartbeat, true), (100, ReadIdle, true)];
    let cases = [
        (still, events),
        (still.read_idle_least(ms(300)), events),
        (NONE.read_idle_least(ms(10)), &[]),
    ];
    for (limits, expected) in cases {
        on_both!(|S| {
            let mut lab = lab();
            set_scale(&lab, 0.0);
            let conn = S::open(&lab, limits);
            assert_eq!(event(&conn), None);
            assert_eq!(run(&mut lab, &conn, 100), expected, "{limits:?}");
        });
    }
}

#[test]
fn pressure_reaches_idle_connections_within_turns_and_wakes_no_task_that_has_time() {
    on_both!(|S| {
        let mut lab = Lab::<u8>::new(TimerService::builder().shards(1));
        let limits = NONE.read_idle(FAR).read_idle_least(ms(500));
        let mut conns = Watched::<S>::many(&lab, 2_000, limits);
        pass(&mut lab, &mut conns[..1], 100);
        conns[7].conn.touch();
        set_scale(&lab, 0.0);
        lab.settle();
        assert!(conns.iter().all(|conn| conn.alarm.count() == 0));
        pass(&mut lab, &mut conns, 420);
        for (number, conn) in conns.iter().enumerate() {
            let expected: &[_] = if number == 7 { &[] } else { &[(500, ReadIdle)] };
            assert_eq!(conn.seen, expected, "{number}");
        }
    });
}

#[test]
fn pressure_that_ends_gives_the_time_back_and_changes_that_come_often_reach_all() {
    on_both!(|S| {
        let mut lab = Lab::<u8>::new(TimerService::builder().shards(1));
        let limits = NONE.read_idle(FAR).read_idle_least(ms(100));
        let mut conns = Watched::<S>::many(&lab, 3_000, limits);
        set_scale(&lab, 0.0);
        lab.settle();
        set_scale(&lab, 1.0);
        pass(&mut lab, &mut conns, 200);
        assert!(conns.iter().all(|conn| conn.seen.is_empty()));
        // Before one visit of all is over, the scale has changed again.
        for step in (0..20).rev() {
            set_scale(&lab, f64::from(step) / 20.0);
            lab.clock.advance(ms(1));
            let _ = lab.turn();
        }
        pass(&mut lab, &mut conns, 200);
        assert!(conns.iter().all(|conn| !conn.seen.is_empty()));
    });
}

/// The shard has taken over neither scale when the connection begins.
#[test]
fn scale_that_shrinks_again_before_the_next_turn_reaches_the_connections() {
    on_both!(|S| {
        let mut lab = lab();
        set_scale(&lab, 0.0);
        lab.settle();
        set_scale(&lab, 1.0);
        let conn = S::open(&lab, NONE.read_idle(ms(100)).read_idle_least(ms(20)));
        assert_eq!(event(&conn), None);
        set_scale(&lab, 0.5);
        assert_eq!(run(&mut lab, &conn, 100)[0], (60, ReadIdle, true));
    });
}

/// A turn visits at most this many connections, as `shard::sweep` says.
const VISITS_MAX: usize = 256;

/// Each connection is overdue when it is visited, which wakes its task. `COREWHEEL_CONNECTIONS` is
/// how many connections there are.
#[test]
#[allow(clippy::print_stdout, reason = "a run says what it has run")]
fn pressure_visits_few_of_many_connections_in_each_turn_and_delays_no_timer() {
    let count = std::env::var("COREWHEEL_CONNECTIONS").ok().map(|text| text.parse().unwrap());
    let count = count.unwrap_or(20_000);
    on_both!(|S| {
        let mut lab = Lab::<u8>::new(builder(1).capacity(count as u32 * 2));
        let limits = NONE.read_idle(FAR).read_idle_least(FAR / 2);
        let (alarm, waker) = Alarm::new();
        let conns: Vec<_> = (0..count).map(|_| S::open(&lab, limits)).collect();
        assert!(conns.iter().all(|conn| poll_with(conn, &waker).is_pending()));
        lab.advance(FAR / 2 + ms(5));
        // One other timer comes in each of the turns, which are a millisecond apart. A place of the
        // list may be vacant, which costs a visit.
        let turns_max = count * 2 / VISITS_MAX + 2;
        let start = ticks_of(lab.timers());
        for turn in 1..=turns_max as u64 {
            lab.timers().schedule(ms(turn), 7).unwrap();
        }
        lab.service.set_scale(Scale::ZERO);
        let (mut most, mut turns, mut longest) = (0, 0, Duration::ZERO);
        for turn in 1..=turns_max as u64 {
            let before = alarm.count();
            lab.clock.advance(ms(1));
            let begin = Instant::now();
            let _ = lab.turn();
            longest = longest.max(begin.elapsed());
            let visited = alarm.count() - before;
            most = visited.max(most);
            turns += u64::from(visited > 0);
            assert!(visited <= VISITS_MAX, "turn {turn}: {visited} visits");
            assert_eq!(lab.fired(), [(7, start + turn)], "another timer is late");
        }
        assert_eq!(alarm.count(), count, "after {turns_max} turns");
        println!("{turns} turns, at most {most} visits and {longest:?} in one");
    });
}

//! Limits that shrink under pressure, on a shard and on any thread.

use corewheel::scaled::Scale;

use super::drain::{Conn, pass};
use super::*;

const HOUR: Duration = Duration::from_hours(1);

fn scale(factor: f64) -> Scale {
    Scale::new(factor).unwrap()
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
            for side in 0..2 {
                let mut lab = lab();
                let mut conns = [Conn::of(side, &lab, limits)];
                lab.service.set_scale(scale(factor));
                pass(&mut lab, &mut conns, 100);
                assert_eq!(conns[0].seen().first(), Some(&(due, kind)), "{kind}, {factor}, {side}");
            }
        }
    }
}

#[test]
fn limit_without_a_least_time_or_with_a_longer_one_does_not_shrink() {
    let still = NONE.read_idle(ms(100)).heartbeat(ms(90));
    for limits in [still, still.read_idle_least(ms(300)), NONE.read_idle_least(ms(10))] {
        for side in 0..2 {
            let mut lab = lab();
            lab.service.set_scale(Scale::ZERO);
            let mut conns = [Conn::of(side, &lab, limits)];
            pass(&mut lab, &mut conns, 100);
            let expected: &[_] =
                if limits.read_idle.is_zero() { &[] } else { &[(90, Heartbeat), (100, ReadIdle)] };
            assert_eq!(conns[0].seen(), expected, "side {side}: {limits:?}");
        }
    }
}

#[test]
fn pressure_reaches_idle_connections_within_turns_and_wakes_no_task_that_has_time() {
    for side in 0..2 {
        let mut lab = Lab::<u8>::new(corewheel::TimerService::builder().shards(1));
        let limits = NONE.read_idle(HOUR).read_idle_least(ms(500));
        let mut conns: Vec<_> = (0..2_000).map(|_| Conn::of(side, &lab, limits)).collect();
        pass(&mut lab, &mut conns[..1], 100);
        conns[7].touch();
        lab.service.set_scale(Scale::ZERO);
        lab.settle();
        let is_woken = |conn: &Conn| match conn {
            Conn::AnyThread { alarm, woken, .. } => alarm.count() > *woken,
            Conn::OnShard(..) => false,
        };
        assert_eq!(conns.iter().filter(|conn| is_woken(conn)).count(), 0);
        pass(&mut lab, &mut conns, 420);
        for (number, conn) in conns.iter().enumerate() {
            let expected: &[_] = if number == 7 { &[] } else { &[(500, ReadIdle)] };
            assert_eq!(conn.seen(), expected, "side {side}, {number}");
        }
    }
}

#[test]
fn pressure_that_ends_gives_the_time_back_and_changes_that_come_often_reach_all() {
    for side in 0..2 {
        let mut lab = Lab::<u8>::new(corewheel::TimerService::builder().shards(1));
        let limits = NONE.read_idle(HOUR).read_idle_least(ms(100));
        let mut conns: Vec<_> = (0..3_000).map(|_| Conn::of(side, &lab, limits)).collect();
        lab.service.set_scale(Scale::ZERO);
        lab.settle();
        lab.service.set_scale(Scale::ONE);
        pass(&mut lab, &mut conns, 200);
        assert!(conns.iter().all(|conn| conn.seen().is_empty()), "side {side}");
        // Before one visit of all is over, the scale has changed again.
        for step in (0..20).rev() {
            lab.service.set_scale(scale(f64::from(step) / 20.0));
            lab.clock.advance(ms(1));
            let _ = lab.turn();
        }
        pass(&mut lab, &mut conns, 200);
        assert!(conns.iter().all(|conn| !conn.seen().is_empty()), "side {side}");
    }
}

/// The shard has taken over neither scale when the connection begins.
#[test]
fn scale_that_shrinks_again_before_the_next_turn_reaches_the_connections() {
    for side in 0..2 {
        let mut lab = lab();
        lab.service.set_scale(Scale::ZERO);
        lab.settle();
        lab.service.set_scale(Scale::ONE);
        let limits = NONE.read_idle(ms(100)).read_idle_least(ms(20));
        let mut conns = [Conn::of(side, &lab, limits)];
        lab.service.set_scale(scale(0.5));
        pass(&mut lab, &mut conns, 100);
        assert_eq!(conns[0].seen().first(), Some(&(60, ReadIdle)), "side {side}");
    }
}

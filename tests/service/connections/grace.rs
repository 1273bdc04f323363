//! The time between a connection's greatest age and its cut, on a shard and on any thread.

use super::*;

const LIMITS: ConnLimits = NONE.max_age(ms(100)).max_age_grace(ms(50));

#[test]
fn connection_that_never_pauses_is_told_and_cut() {
    on_both!(LIMITS.read_idle(ms(100)), |lab, conn| {
        let mut seen = Vec::new();
        for tick in 1..=180 {
            lab.advance(ms(1));
            // A task on a shard returns to its executor now and then.
            if let Some(Raced::Event(event)) = race(conn, ready(7)) {
                seen.push((tick, event.kind));
            }
        }
        assert_eq!(seen, [(100, MaxAge), (150, AgeGrace)], "the value is ready");
        assert_eq!(event(conn), Some((ReadIdle, true)), "the event is still there");
        assert_eq!(conn.deadline(MaxAge), None, "it comes once");
    });
}

/// The thread is held up, and an order comes before the shard has found what is due.
#[test]
fn grace_that_is_over_before_the_connection_is_told_cuts_it() {
    // With other timers that expire before, the shard tells the connection before its own timer.
    for others in [0, 20] {
        on_both!(NONE.max_age_grace(ms(50)), |lab, conn| {
            (0..others).for_each(|_| _ = lab.timers().schedule(ms(5), 0).unwrap());
            conn.arm(AgeGrace, ms(10)).unwrap();
            lab.clock.advance(ms(29));
            lab.service.close_idlest(1);
            let expected = [(30, MaxAge, true), (30, AgeGrace, true), (80, AgeGrace, true)];
            assert_eq!(run(lab, conn, 1_000), expected, "{others} timers");
        });
    }
}

#[test]
fn drain_without_a_window_cuts_in_the_next_tick_whatever_else_is_due() {
    for others in [0, 1, 20] {
        on_both!(NONE, |lab, conn| {
            (0..others).for_each(|_| _ = lab.timers().schedule(ms(5), 0).unwrap());
            conn.arm(Custom(0), ms(10)).unwrap();
            lab.clock.advance(Duration::from_micros(29_500));
            lab.service.drain(Duration::ZERO);
            let expected = [(29, MaxAge, true), (29, Custom(0), true)];
            assert_eq!(found(lab, conn), expected, "{others} timers");
            assert_eq!(run(lab, conn, 10), [(30, AgeGrace, true)], "{others} timers");
        });
    }
}

/// As of a connection that was warned, and was left to go on.
#[test]
fn another_age_is_told_and_cut_by_its_own_grace_and_by_a_drain() {
    on_both!(LIMITS, |lab, conn| {
        assert_eq!(run(lab, conn, 200), [(100, MaxAge, true), (150, AgeGrace, true)]);
        conn.arm(MaxAge, ms(100)).unwrap();
        assert_eq!(run(lab, conn, 200), [(300, MaxAge, true), (350, AgeGrace, true)]);
        conn.arm(MaxAge, ms(500)).unwrap();
        lab.clock.advance(Duration::from_micros(500));
        lab.service.drain(Duration::ZERO);
        assert_eq!(found(lab, conn), [(400, MaxAge, true)]);
        assert_eq!(run(lab, conn, 1_000), [(401, AgeGrace, true)]);
    });
}

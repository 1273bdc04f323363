//! What counts as idle: each row of the table in the documentation, on a shard and on any thread.

use super::*;

const LIMITS: ConnLimits =
    NONE.read_idle(ms(100)).write_idle(ms(100)).all_idle(ms(100)).heartbeat(ms(100));
const IDLE: [DeadlineKind; 4] = [ReadIdle, WriteIdle, AllIdle, Heartbeat];

/// Which idle times a case makes begin again, which it holds back, and which go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Effect {
    Begins,
    Held,
    None,
}
use Effect::{Begins, Held};

/// Begins something that goes on for 250.5 ms from 50 ms after the beginning of the connection.
type Begin<S> = fn(&ConnTimers<S>) -> Box<dyn std::any::Any>;

fn check<S: Opened>((case, effects, begin): (&str, [Effect; 4], Begin<S>)) {
    let mut lab = lab();
    let conn = S::open(&lab, LIMITS);
    let mut first = [None; 4];
    let mut run = |lab: &mut Lab<u8>, milliseconds: u64| {
        for (at, kind, _) in run(lab, &conn, milliseconds) {
            let kind = IDLE.iter().position(|idle| *idle == kind).unwrap();
            first[kind].get_or_insert(at);
        }
    };
    assert_eq!(event(&conn), None);
    run(&mut lab, 50);
    let guard = begin(&conn);
    run(&mut lab, 250);
    // Between two polls.
    lab.clock.advance(Duration::from_micros(500));
    drop(guard);
    lab.clock.advance(Duration::from_micros(500));
    run(&mut lab, 200);
    for ((kind, effect), first) in IDLE.into_iter().zip(effects).zip(first) {
        // On a shard, a stamp is up to 11 ms later than the activity.
        let expected = match effect {
            Effect::None => 100..=100,
            Begins => 150..=161,
            Held => 401..=412,
        };
        let first = first.expect("each idle time comes in the end");
        assert!(expected.contains(&first), "{case}, {kind}: at {first}, not {effect:?}");
    }
}

#[test]
fn each_case_of_silence_has_its_effect_on_each_idle_time() {
    let none = Effect::None;
    on_both!(|S| {
        let cases: [(_, _, Begin<S>); 8] = [
            ("nothing", [none; 4], |_| Box::new(())),
            ("a byte is read", [Begins, none, Begins, none], |conn| {
                conn.touch_read();
                Box::new(())
            }),
            ("a write is accepted", [none, Begins, Begins, Begins], |conn| {
                conn.touch_write();
                Box::new(())
            }),
            ("a read takes long", [Held, none, Held, none], |conn| Box::new(conn.begin_read())),
            ("a request is served", [Held, Held, Held, none], |conn| {
                Box::new(conn.begin_request())
            }),
            ("a write waits", [none; 4], |conn| Box::new(conn.begin_write())),
            ("a write waits whose time is limited", [Held, Held, Held, none], |conn| {
                conn.set_limits(conn.limits().write_timeout(ms(1_000)));
                Box::new(conn.begin_write())
            }),
            ("a write that had to wait goes on", [Begins; 4], |conn| {
                let write = conn.begin_write();
                conn.touch();
                Box::new(write)
            }),
        ];
        cases.into_iter().for_each(check::<S>);
    });
}

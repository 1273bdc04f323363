//! What the statistics say has ended a connection, on a shard and on any thread.

use super::*;

/// The connections that have ended, by what has ended them.
fn ended(service: &TimerService<u8>) -> Vec<(&'static str, u64)> {
    let stats = service.stats();
    let by_kind = stats.deadlines.iter().map(|of| (of.kind, of.ended));
    let all = by_kind.chain([("close", stats.connections_closed)]);
    all.filter(|(_, count)| *count > 0).collect()
}

/// What becomes of a connection before it is closed.
#[derive(Clone, Copy)]
enum Step {
    /// So many milliseconds pass, and no event is taken.
    Pass(u64),
    /// So many milliseconds pass, and each event is taken.
    Take(u64),
    /// So many milliseconds pass while a write is in progress, and each event is taken.
    Write(u64),
    /// A kind is armed after so many milliseconds.
    Arm(DeadlineKind, u64),
    Read,
    CloseIdlest,
}
use Step::{Arm, CloseIdlest, Pass, Read, Take, Write};

fn live<S: Opened>(lab: &mut Lab<u8>, conn: &ConnTimers<S>, step: Step) {
    match step {
        Pass(time) => lab.advance(ms(time)),
        Take(time) => _ = run(lab, conn, time),
        Write(time) => {
            let _write = conn.begin_write();
            run(lab, conn, time);
        }
        Arm(kind, after) => assert!(conn.arm(kind, ms(after)).is_ok()),
        Read => conn.touch_read(),
        CloseIdlest => lab.service.close_idlest(1),
    }
}

#[test]
fn connection_is_ended_by_the_last_deadline_that_was_taken() {
    let age = NONE.max_age(ms(100));
    let cases: [(&str, &str, ConnLimits, &[Step]); 14] = [
        ("no deadline", "close", NONE, &[Pass(1)]),
        ("idle", "read idle", READ_IDLE, &[Take(120)]),
        ("idle, and not taken", "close", READ_IDLE, &[Pass(120)]),
        ("active since", "close", READ_IDLE, &[Take(120), Pass(30), Read, Pass(30)]),
        ("heartbeat", "close", NONE.heartbeat(ms(100)), &[Take(120)]),
        ("custom", "close", NONE, &[Arm(Custom(3), 5), Take(10)]),
        ("handshake", "handshake", NONE.handshake(ms(5)), &[Take(10)]),
        ("request", "request", NONE, &[Arm(Request, 5), Take(10)]),
        ("told then", "max age", NONE, &[Arm(Request, 5), Take(10), CloseIdlest, Take(5)]),
        ("greatest age", "max age", age, &[Take(105), Read]),
        ("age not taken", "close", age, &[Pass(105)]),
        ("another age", "close", age, &[Take(105), Arm(MaxAge, 500), Pass(5)]),
        ("grace", "age grace", age.max_age_grace(ms(50)), &[Take(105), Take(60)]),
        ("write", "write timeout", NONE.write_timeout(ms(10)), &[Write(20)]),
    ];
    for (case, by, limits, steps) in cases {
        on_both!(limits, |lab, conn| {
            for step in steps {
                live(lab, conn, *step);
            }
            let clone = conn.clone();
            assert!(clone.close());
            assert_eq!(ended(&lab.service), [(by, 1)], "{case}");
            assert!(!conn.close());
            assert_eq!(ended(&lab.service), [(by, 1)], "{case}: closed twice");
        });
    }
}

#[test]
fn connection_whose_last_handle_is_dropped_has_ended_once() {
    on_both!(|S| {
        let mut lab = lab();
        let conn = S::open(&lab, READ_IDLE);
        assert_eq!(event(&conn), None);
        assert_eq!(run(&mut lab, &conn, 100).len(), 1);
        let clone = conn.clone();
        drop(conn);
        assert_eq!(ended(&lab.service), [], "one handle is left");
        drop(clone);
        assert_eq!(ended(&lab.service), [("read idle", 1)]);
    });
}

#[test]
fn connection_that_goes_to_another_shard_has_not_ended_and_takes_its_event_along() {
    let mut lab = Lab::<u8>::new(builder(2));
    let conn = Timers::open(&lab, READ_IDLE);
    lab.advance(ms(120));
    assert_eq!(event(&conn), Some((ReadIdle, true)));
    let packed = conn.pack().unwrap();
    assert_eq!(ended(&lab.service), []);
    let conn = lab.shards[1].timers().adopt(packed).unwrap();
    drop(conn);
    assert_eq!(ended(&lab.service), [("read idle", 1)]);
}

#[test]
fn ends_on_several_shards_and_on_none_are_counted_together() {
    let mut lab = Lab::<u8>::new(builder(3));
    let here = |lab: &Lab<u8>, shard: usize, limits| {
        lab.shards[shard].timers().connection(limits).unwrap()
    };
    let (idle, other) = (here(&lab, 0, READ_IDLE), here(&lab, 2, READ_IDLE));
    let (closed, of_any) = (here(&lab, 1, NONE), Handle::open(&lab, NONE));
    lab.advance(ms(120));
    assert_eq!([&idle, &other].map(event), [Some((ReadIdle, true)); 2]);
    drop((idle, other, closed, of_any));
    assert_eq!(ended(&lab.service), [("read idle", 2), ("close", 2)]);
}

#[test]
fn connection_that_ends_with_its_shard_is_not_counted() {
    let mut lab = lab();
    let here = Timers::open(&lab, READ_IDLE);
    let source = lab.service.stats_source();
    let _ended = lab.service.begin_shutdown(ShutdownPolicy::Drop);
    lab.settle();
    drop(here);
    assert_eq!(source().connections_closed, 0);
}

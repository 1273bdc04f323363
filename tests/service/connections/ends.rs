//! What the statistics say has ended a connection, on a shard and on any thread.

use corewheel::{ShutdownPolicy, TimerService};

use super::*;

/// The connections that have ended, by what has ended them.
fn ended(service: &TimerService<u8>) -> Vec<(&'static str, u64)> {
    let stats = service.stats();
    let by_kind = stats.deadlines.iter().map(|of| (of.kind, of.ended));
    let all = by_kind.chain([("close", stats.connections_closed)]);
    all.filter(|(_, count)| *count > 0).collect()
}

/// What becomes of a connection before it is closed.
trait Life<S: Side>: Fn(&mut Lab<u8>, &ConnTimers<S>, &dyn Fn(&ConnTimers<S>)) {}
impl<S: Side, F: Fn(&mut Lab<u8>, &ConnTimers<S>, &dyn Fn(&ConnTimers<S>))> Life<S> for F {}

/// Runs a life, in which events are taken by its third argument, and drops the connection.
fn check<S: Opened>(case: &str, by: &'static str, limits: ConnLimits, life: impl Life<S>) {
    let mut lab = lab();
    let conn = S::open(&lab, limits);
    let take = |conn: &ConnTimers<S>| while S::event(conn).is_some() {};
    take(&conn);
    life(&mut lab, &conn, &take);
    let clone = conn.clone();
    drop(conn);
    assert_eq!(ended(&lab.service), [], "{case}: one handle is left");
    clone.close();
    assert_eq!(ended(&lab.service), [(by, 1)], "{case}");
    assert!(!clone.close());
    drop(clone);
    assert_eq!(ended(&lab.service), [(by, 1)], "{case}: closed twice");
}

macro_rules! lives {
    ($($case:literal: $by:literal, $limits:expr, $life:expr;)*) => {$(
        check::<Timers>($case, $by, $limits, $life);
        check::<Handle>($case, $by, $limits, $life);
    )*};
}

#[test]
fn connection_is_ended_by_the_last_deadline_that_was_taken() {
    lives! {
        "no deadline": "close", NONE, |lab, _, _| lab.advance(ms(1));
        "idle": "read idle", READ_IDLE, |lab, conn, take| {
            lab.advance(ms(120));
            take(conn);
        };
        "idle, and not taken": "close", READ_IDLE, |lab, _, _| lab.advance(ms(120));
        "idle, and active since": "close", READ_IDLE, |lab, conn, take| {
            lab.advance(ms(120));
            take(conn);
            lab.advance(ms(30));
            conn.touch_read();
            lab.advance(ms(30));
        };
        "heartbeat": "close", NONE.heartbeat(ms(100)), |lab, conn, take| {
            lab.advance(ms(120));
            take(conn);
        };
        "custom": "close", NONE, |lab, conn, take| {
            conn.arm(Custom(3), ms(5)).unwrap();
            lab.advance(ms(10));
            take(conn);
        };
        "handshake": "handshake", NONE.handshake(ms(5)), |lab, conn, take| {
            lab.advance(ms(10));
            take(conn);
        };
        "request": "request", NONE, |lab, conn, take| {
            conn.arm(Request, ms(5)).unwrap();
            lab.advance(ms(10));
            take(conn);
        };
        "request, then told to end": "max age", NONE, |lab, conn, take| {
            conn.arm(Request, ms(5)).unwrap();
            lab.advance(ms(10));
            take(conn);
            lab.service.close_idlest(1);
            lab.advance(ms(5));
            lab.settle();
            take(conn);
        };
        "greatest age": "max age", NONE.max_age(ms(100)), |lab, conn, take| {
            lab.advance(ms(105));
            take(conn);
            conn.touch_read();
        };
        "greatest age, and not taken": "close", NONE.max_age(ms(100)), |lab, _, _| {
            lab.advance(ms(105));
        };
        "another age": "close", NONE.max_age(ms(100)), |lab, conn, take| {
            lab.advance(ms(105));
            take(conn);
            conn.arm(MaxAge, ms(500)).unwrap();
            lab.advance(ms(5));
        };
        "grace": "age grace", NONE.max_age(ms(100)).max_age_grace(ms(50)), |lab, conn, take| {
            lab.advance(ms(105));
            take(conn);
            lab.advance(ms(60));
            take(conn);
        };
        "write": "write timeout", NONE.write_timeout(ms(10)), |lab, conn, take| {
            let _write = conn.begin_write();
            take(conn);
            lab.advance(ms(20));
            take(conn);
        };
    }
}

#[test]
fn connection_that_goes_to_another_shard_has_not_ended_and_takes_its_event_along() {
    let mut lab = lab_with(builder(2));
    let conn = lab.timers().connection(READ_IDLE).unwrap();
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
    let mut lab = lab_with(builder(3));
    let here = |lab: &Lab<u8>, shard: usize, limits| {
        lab.shards[shard].timers().connection(limits).unwrap()
    };
    let (idle, other) = (here(&lab, 0, READ_IDLE), here(&lab, 2, READ_IDLE));
    let (closed, of_any) = (here(&lab, 1, NONE), shared::connect(&lab, NONE));
    lab.advance(ms(120));
    assert_eq!([&idle, &other].map(event), [Some((ReadIdle, true)); 2]);
    drop((idle, other, closed, of_any));
    assert_eq!(ended(&lab.service), [("read idle", 2), ("close", 2)]);
}

#[test]
fn connection_that_ends_with_its_shard_is_not_counted() {
    let mut lab = lab();
    let here = lab.timers().connection(READ_IDLE).unwrap();
    let source = lab.service.stats_source();
    let _ended = lab.service.begin_shutdown(ShutdownPolicy::Drop);
    lab.settle();
    drop(here);
    assert_eq!(source().connections_closed, 0);
}

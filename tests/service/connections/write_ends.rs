//! The end of a write of a connection's own, as the task sees it that the end wakes.

use super::*;

/// The task looks in its wake-up already, as one on another thread may before the call returns that
/// has woken it.
#[test]
fn task_that_the_end_of_a_write_wakes_does_not_find_the_connection_idle() {
    let cases = [
        (ReadIdle, NONE.read_idle(ms(100))),
        (WriteIdle, NONE.write_idle(ms(100))),
        (AllIdle, NONE.all_idle(ms(100))),
    ];
    for (kind, limits) in cases {
        let mut lab = lab();
        let conn = Handle::open(&lab, limits.write_timeout(ms(1_000)));
        let found = Arc::new(Mutex::new(Vec::new()));
        let (looker, seen) = (conn.clone(), Arc::clone(&found));
        let waker = waker_that(move || seen.lock().unwrap().push(event(&looker)));
        let write = conn.begin_write();
        lab.advance(ms(90));
        // As of this poll, the idle time counts from here.
        assert!(poll_with(&conn, &waker).is_pending(), "{kind}");
        lab.advance(ms(60));
        drop(write);
        assert_eq!(conn.deadline(kind), Some(lab.clock.now() + ms(100)), "{kind}");
        let found = found.lock().unwrap();
        assert!(found.iter().all(Option::is_none), "{kind}: {found:?}");
    }
}

/// As a server does that sends a byte at each heartbeat, three of which are an idle time.
#[test]
fn write_that_begins_when_the_idle_time_is_over_leaves_it_over() {
    on_both!(NONE.read_idle(ms(90)).write_timeout(ms(1_000)), |lab, conn| {
        lab.advance(ms(90));
        assert!(conn.begin_write().finish());
        assert_eq!(event(conn), Some((ReadIdle, true)));
    });
}

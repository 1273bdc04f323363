//! The end of a write of a connection's own, as the task sees it that the end wakes.

use std::sync::{Arc, Mutex};
use std::task::Wake;

use super::shared::connect;
use super::*;

/// A task that looks in its wake-up already, as one on another thread may before the call returns
/// that has woken it.
struct Looker {
    conn: ConnTimers<Handle>,
    /// The kind of the event that each wake-up has found; `None` where it has found none.
    found: Mutex<Vec<Option<DeadlineKind>>>,
}

impl Wake for Looker {
    fn wake(self: Arc<Self>) {
        let found = match self.conn.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(event) => event.unwrap().map(|event| event.kind),
            Poll::Pending => None,
        };
        self.found.lock().unwrap().push(found);
    }
}

#[test]
fn task_that_the_end_of_a_write_wakes_does_not_find_the_connection_idle() {
    let cases = [
        (ReadIdle, NONE.read_idle(ms(100))),
        (WriteIdle, NONE.write_idle(ms(100))),
        (AllIdle, NONE.all_idle(ms(100))),
    ];
    for (kind, limits) in cases {
        let mut lab = lab();
        let conn = connect(&lab, limits.write_timeout(ms(1_000)));
        let found = Mutex::default();
        let looker = Arc::new(Looker { conn: conn.clone(), found });
        let waker = Waker::from(Arc::clone(&looker));
        let write = conn.begin_write();
        lab.advance(ms(90));
        // As of this poll, the idle time counts from here.
        assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending(), "{kind}");
        lab.advance(ms(60));
        drop(write);
        assert_eq!(conn.deadline(kind), Some(lab.clock.now() + ms(100)), "{kind}");
        let found = looker.found.lock().unwrap();
        assert!(found.iter().all(Option::is_none), "{kind}: {found:?}");
    }
}

/// As a server does that sends a byte at each heartbeat, three of which are an idle time.
#[test]
fn write_that_begins_when_the_idle_time_is_over_leaves_it_over() {
    let limits = NONE.read_idle(ms(90)).write_timeout(ms(1_000));
    let mut lab = lab();
    let here = lab.timers().connection(limits).unwrap();
    let shared = connect(&lab, limits);
    lab.advance(ms(90));
    assert!(here.begin_write().finish() && shared.begin_write().finish());
    assert_eq!(event(&here), Some((ReadIdle, true)));
    let found = shared.poll_next(&mut Context::from_waker(Waker::noop()));
    let found = found.map(|event| event.unwrap().map(|event| event.kind));
    assert_eq!(found, Poll::Ready(Some(ReadIdle)));
}

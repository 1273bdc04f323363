//! A poll between the two steps by which a host ends a pass.

use std::sync::{Arc, Mutex};
use std::task::Context;
use std::time::Duration;

use corewheel_test_support::Alarm;

use super::super::moment::Moment;
use super::inner::Inner;
use crate::clock::ManualClock;
use crate::conn::side::Connection;
use crate::conn::{ConnLimits, DeadlineKind};
use crate::pass::looks::LOOKS;
use crate::pass::simulated::within;
use crate::pass::{Runtime, Wait};
use crate::{TimerService, Timers};

/// A runtime that ends a pass when the test says so.
#[derive(Default)]
struct Host(Mutex<Option<Arc<Wait>>>);

impl Runtime for Host {
    fn number(&self) -> u64 {
        7
    }

    fn has_budget(&self) -> bool {
        true
    }

    fn ask(&self, wait: Arc<Wait>) {
        *self.0.lock().unwrap() = Some(wait);
    }
}

#[test]
fn poll_that_finds_a_pass_over_wakes_the_task_for_the_event_that_it_leaves() {
    const LIMIT: Duration = Duration::from_millis(10);
    let clock = ManualClock::new();
    clock.advance(Duration::from_secs(12_345));
    let service = TimerService::builder().shards(1).clock(&clock).start_attached().unwrap();
    let attachment = service.attach(service.shard_for(0)).unwrap();
    let mut shard = attachment.into_loop(|_, _: &Timers| {}).unwrap();
    let host = Arc::new(Host::default());
    let (alarm, waker) = Alarm::new();
    let conn = Inner::new(service.handle().untyped(), ConnLimits::default().read_idle(LIMIT));
    let poll = |takes: bool| {
        let wanted = |_: DeadlineKind, _: Option<Moment>| takes;
        let poll = || conn.poll(&mut Context::from_waker(&waker), None, wanted);
        within(Some(Arc::clone(&host) as _), poll)
    };
    assert!(poll(true).is_pending());
    clock.advance(LIMIT);
    let _ = shard.turn();
    assert!(poll(true).is_pending(), "the sockets come first");
    let wait = host.0.lock().unwrap().take().expect("the poll has asked for a pass");
    LOOKS.add(0);
    wait.set_over();
    let woken = || alarm.count();
    // A write of the same task, which takes no event.
    assert!(poll(false).is_pending());
    let before = woken();
    wait.end();
    assert!(woken() > before, "the event waits for a poll");
    let takes = (0..10).any(|_| poll(true).is_ready());
    assert!(takes);
}

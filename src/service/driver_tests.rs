//! A driver whose executor has other tasks.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use super::TimerService;
use crate::driver::host::Host;
use crate::shard::timers::LocalFuture;
use crate::values::ids::ShardId;

const SHARD: ShardId = ShardId::new(0);

/// An executor on which another thread asks the shard for something each time that its driver falls
/// asleep, some times in a row.
struct Busy {
    service: Arc<TimerService>,
    left: Rc<Cell<u32>>,
}

impl Host for Busy {
    fn arm(&mut self, _after: Duration) {}

    fn poll_alarm(&mut self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    fn waker<'a>(&'a mut self, cx: &'a Context<'_>) -> &'a Waker {
        if self.left.get() > 0 {
            self.left.set(self.left.get() - 1);
            let service = &self.service;
            let ask = || drop(service.spawn_on(SHARD, |_| async {}).unwrap());
            thread::scope(|scope| scope.spawn(ask).join().unwrap());
        }
        cx.waker()
    }

    async fn read_sockets(&mut self, _connections: usize) {}

    async fn step_aside(&mut self) {
        let mut has_waited = false;
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if mem::replace(&mut has_waited, true) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn spawn(&self, future: LocalFuture) {
        drop(future);
    }
}

#[test]
fn driver_steps_aside_where_a_request_arrives_after_each_turn() {
    let service = Arc::new(TimerService::builder().shards(1).start_attached().unwrap());
    let left = Rc::new(Cell::new(100));
    let host = Busy { service: Arc::clone(&service), left: Rc::clone(&left) };
    let attachment = service.attach(SHARD).unwrap();
    let (_timers, driver) = attachment.attach(host, |_, _| {}).unwrap();
    let mut driver = pin!(driver);
    let mut poll = || driver.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    for expected in (0..100).rev() {
        assert!(poll().is_pending());
        assert_eq!(left.get(), expected, "the driver has taken several turns in a poll");
    }
}

//! Code of the user that runs during a bulk command: wakers that use a shard of the same thread,
//! and payloads that panic when they are dropped.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Wake, Waker};

use corewheel::{Refused, Timers};

use crate::support::{FAR, Lab, builder, check_law, ms};

thread_local! {
    /// The action of the next wake-up of a shard on this thread.
    static WHEN_WOKEN: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

struct Acts;

impl Wake for Acts {
    fn wake(self: Arc<Self>) {
        if let Some(act) = WHEN_WOKEN.take() {
            act();
        }
    }
}

/// Lets a shard of the lab fall asleep. `act` runs when the shard is woken.
fn when_woken<T: Send + 'static>(lab: &mut Lab<T>, shard: usize, act: impl FnOnce() + 'static) {
    lab.settle();
    let turn = lab.shards[shard].turn();
    let _ = lab.shards[shard].prepare_to_sleep(turn, &Waker::from(Arc::new(Acts)));
    WHEN_WOKEN.set(Some(Box::new(act)));
}

#[test]
fn schedule_many_schedules_all_timers_though_a_waker_fills_the_shard() {
    let mut lab: Lab<u32> = Lab::new(builder(1).capacity(64));
    let timers = lab.timers().clone();
    let mut room = 0;
    while timers.schedule_many((0..=room).map(|n| (FAR, n))).map(drop).is_ok() {
        room += 1;
        lab.clear();
    }
    lab.clear();
    let on_core = timers.clone();
    when_woken(&mut lab, 0, move || while on_core.schedule(FAR, 1_000).is_ok() {});
    let handles = timers.schedule_many((0..room).map(|n| (ms(5), n))).unwrap();
    assert_eq!(handles.len(), room as usize);
    assert!(WHEN_WOKEN.take().is_none(), "the shard was woken");
    let refused = timers.schedule_many([(ms(5), 1)]).unwrap_err();
    assert!(matches!(refused, Refused::Full(_)));
    lab.advance(ms(5));
    assert!(lab.fired().into_iter().map(|(n, _)| n).eq(0..room));
    check_law(&lab.counts());
}

trait Clear {
    fn clear(&mut self);
}

impl Clear for Lab<u32> {
    /// Lets all pending timers fire.
    fn clear(&mut self) {
        self.advance(FAR);
        drop(self.fired());
    }
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a payload that panics when it is dropped");
    }
}

#[test]
fn payloads_of_cancel_many_that_panic_when_dropped_are_counted() {
    let mut lab: Lab<Bomb> = Lab::new(builder(1));
    let timers: Timers<Bomb> = lab.timers().clone();
    let client = lab.client();
    let handles = timers.schedule_many((0..3).map(|_| (FAR, Bomb))).unwrap();
    // The caller does not wait for the reply, so the payloads are dropped on the core.
    drop(client.cancel_many(&handles));
    let more = timers.schedule_many((0..3).map(|_| (FAR, Bomb))).unwrap();
    client.cancel_many_detached(&more);
    lab.settle();
    assert_eq!((lab.counts().cancelled, lab.counts().panicked), (6, 6));
    check_law(&lab.counts());
}

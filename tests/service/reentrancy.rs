//! Code of the user that runs during a migration or a bulk command: wakers that use a shard of the
//! same thread or panic, and payloads that panic when they are dropped.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Wake, Waker};

use corewheel::migrate::MigrateError;
use corewheel::{CancelOutcome, Refused, ShutdownPolicy, Timers};

use crate::support::{FAR, Lab, OTHER, SHARD, builder, check_law, look, ms};

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
fn timer_cancelled_while_its_new_shard_wakes_does_not_migrate() {
    let mut lab: Lab<u32> = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let [a, b] = [1, 2].map(|n| timers.schedule(ms(5), n).unwrap());
    // Opening the lane wakes the other shard before the timer is sent.
    let on_core = timers.clone();
    when_woken(&mut lab, 1, move || assert!(on_core.cancel(a).won()));
    assert_eq!(timers.migrate(a, OTHER), Err(MigrateError::NotPending));
    assert_eq!(timers.migrated_to(a), None);
    lab.settle();
    // The failed migration has used no key, so the next handle names its own timer.
    let migrated = timers.migrate(b, OTHER).unwrap();
    lab.settle();
    assert!(lab.shards[1].timers().cancel(migrated).won());
    lab.advance(ms(5));
    assert_eq!(lab.fired(), []);
    check_law(&lab.counts());
    check_law(&lab.counts_of(OTHER));
}

#[test]
fn waker_run_by_a_migration_finds_the_timer_gone() {
    let mut lab: Lab<u32> = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let opens = timers.schedule(FAR, 0).unwrap();
    let _ = timers.migrate(opens, OTHER).unwrap();
    let timer = timers.schedule(ms(5), 1).unwrap();
    let on_core = timers.clone();
    let (sender, seen) = std::sync::mpsc::channel();
    when_woken(&mut lab, 1, move || {
        sender.send((on_core.migrated_to(timer), on_core.len())).unwrap();
        assert!(matches!(on_core.cancel(timer), CancelOutcome::Elsewhere(OTHER)));
        panic!("a waker that panics");
    });
    let migrated = timers.migrate(timer, OTHER).unwrap();
    assert_eq!(seen.try_recv(), Ok((Some(migrated), 0)));
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(1, 5)]);
    assert_eq!(lab.counts().migrated_out, 2);
    check_law(&lab.counts());
}

#[test]
fn timer_that_cannot_migrate_keeps_its_slot_though_a_waker_fills_the_shard() {
    let mut lab: Lab<u32> = Lab::new(builder(2).capacity(64));
    let timers = lab.timers().clone();
    let opens = timers.schedule(FAR, 0).unwrap();
    let _ = timers.migrate(opens, OTHER).unwrap();
    let timer = timers.schedule(ms(5), 1).unwrap();
    let on_core = timers.clone();
    let fill = move || while on_core.schedule(FAR, 2).is_ok() {};
    fill();
    // The other shard closes while it sleeps; the lane still has keys.
    when_woken(&mut lab, 1, fill);
    let _ = lab.shards.remove(1).shutdown(ShutdownPolicy::Drop);
    let pending = timers.len();
    assert_eq!(timers.migrate(timer, OTHER), Err(MigrateError::Closed(OTHER)));
    assert!(WHEN_WOKEN.take().is_none(), "the other shard was woken");
    assert_eq!(timers.len(), pending);
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(1, 5)]);
    assert_eq!(lab.counts().migrated_out, 2, "the timer has left and come back");
    check_law(&lab.counts());
}

#[test]
fn migrate_all_continues_after_a_waker_has_panicked() {
    let mut lab: Lab<u32> = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let client = lab.client();
    timers.schedule_many((0..50).map(|n| (ms(5), n))).unwrap();
    let mut reply = client.migrate_all(SHARD, &[OTHER]).into_future();
    other_shard_panics_when_woken(&mut lab);
    lab.settle();
    assert!(WHEN_WOKEN.take().is_none() && look(&mut reply).is_none(), "the shard tries again");
    lab.advance(ms(1));
    assert_eq!(look(&mut reply).unwrap().unwrap().unwrap().migrated, 50);
    lab.advance(ms(5));
    let mut fired: Vec<_> = lab.fired().into_iter().map(|(n, _)| n).collect();
    fired.sort_unstable();
    assert!(fired.into_iter().eq(0..50));
    check_law(&lab.counts());
}

/// Lets the other shard fall asleep with a waker that panics. The first shard takes no turn.
fn other_shard_panics_when_woken(lab: &mut Lab<u32>) {
    let turn = lab.shards[1].turn();
    let _ = lab.shards[1].prepare_to_sleep(turn, &Waker::from(Arc::new(Acts)));
    WHEN_WOKEN.set(Some(Box::new(|| panic!("a waker that panics"))));
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

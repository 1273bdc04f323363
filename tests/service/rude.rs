//! What is the user's and runs in the midst of many commands or of a move: wakers of other shards
//! that use this one, and tasks that panic when they are dropped.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::{Wake, Waker};

use corewheel::{CancelOutcome, MoveError, ScheduleManyError, ShutdownPolicy, Timers};

use crate::support::{FAR, Lab, OTHER, SHARD, builder, check_law, look, ms};

thread_local! {
    /// What is done when a shard of this thread is woken.
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

/// Lets a shard of the lab fall asleep, and has something done when it is woken.
fn when_woken<T: Send + 'static>(lab: &mut Lab<T>, shard: usize, act: impl FnOnce() + 'static) {
    lab.settle();
    let turn = lab.shards[shard].turn();
    let _ = lab.shards[shard].prepare_to_sleep(turn, &Waker::from(Arc::new(Acts)));
    WHEN_WOKEN.set(Some(Box::new(act)));
}

#[test]
fn a_timer_that_is_cancelled_while_its_new_shard_is_woken_is_not_moved() {
    let mut lab: Lab<u32> = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let [a, b] = [1, 2].map(|n| timers.schedule(ms(5), n).unwrap());
    // There is no lane yet, so the other shard is woken before the timer is sent.
    let on_core = timers.clone();
    when_woken(&mut lab, 1, move || assert!(on_core.cancel(a).won()));
    assert_eq!(timers.move_to(a, OTHER), Err(MoveError::NotPending));
    assert_eq!(timers.moved_to(a), None);
    lab.settle();
    // No key was wasted: handles name what they should.
    let moved = timers.move_to(b, OTHER).unwrap();
    lab.settle();
    assert!(lab.shards[1].timers().cancel(moved).won());
    lab.advance(ms(5));
    assert_eq!(lab.fired(), []);
    check_law(&lab.counts());
    check_law(&lab.counts_of(OTHER));
}

#[test]
fn who_is_woken_by_a_move_already_finds_the_timer_gone() {
    let mut lab: Lab<u32> = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let opens = timers.schedule(FAR, 0).unwrap();
    let _ = timers.move_to(opens, OTHER).unwrap();
    let timer = timers.schedule(ms(5), 1).unwrap();
    let on_core = timers.clone();
    let (sender, seen) = std::sync::mpsc::channel();
    when_woken(&mut lab, 1, move || {
        sender.send((on_core.moved_to(timer), on_core.len())).unwrap();
        assert!(matches!(on_core.cancel(timer), CancelOutcome::Elsewhere(OTHER)));
        // What is woken may also fail.
        panic!("a waker that panics");
    });
    let moved = timers.move_to(timer, OTHER).unwrap();
    assert_eq!(seen.try_recv(), Ok((Some(moved), 0)));
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(1, 5)]);
    assert_eq!(lab.counts().moved_out, 2);
    check_law(&lab.counts());
}

#[test]
fn a_timer_that_cannot_leave_has_room_though_who_is_woken_takes_all_there_is() {
    let mut lab: Lab<u32> = Lab::new(builder(2).capacity(64));
    let timers = lab.timers().clone();
    let opens = timers.schedule(FAR, 0).unwrap();
    let _ = timers.move_to(opens, OTHER).unwrap();
    let timer = timers.schedule(ms(5), 1).unwrap();
    let on_core = timers.clone();
    let fill = move || while on_core.schedule(FAR, 2).is_ok() {};
    fill();
    // It is closed while it sleeps, with keys on the lane.
    when_woken(&mut lab, 1, fill);
    let _ = lab.shards.remove(1).shutdown(ShutdownPolicy::Drop);
    let pending = timers.len();
    assert_eq!(timers.move_to(timer, OTHER), Err(MoveError::Closed(OTHER)));
    assert!(WHEN_WOKEN.take().is_none(), "it was woken");
    assert_eq!(timers.len(), pending);
    lab.advance(ms(5));
    assert_eq!(lab.fired(), [(1, 5)]);
    assert_eq!(lab.counts().moved_out, 2, "it went and came back");
    check_law(&lab.counts());
}

#[test]
fn a_drain_goes_on_when_what_it_wakes_panics() {
    let mut lab: Lab<u32> = Lab::new(builder(2));
    let timers = lab.timers().clone();
    let client = lab.client();
    timers.schedule_many((0..50).map(|n| (ms(5), n))).unwrap();
    let mut answer = client.drain_shard(SHARD, &[OTHER]).into_future();
    when_woken_alone(&mut lab);
    lab.settle();
    assert!(WHEN_WOKEN.take().is_none() && look(&mut answer).is_none(), "it tries again");
    lab.advance(ms(1));
    assert_eq!(look(&mut answer).unwrap().unwrap().unwrap().moved, 50);
    lab.advance(ms(5));
    let mut fired: Vec<_> = lab.fired().into_iter().map(|(n, _)| n).collect();
    fired.sort_unstable();
    assert!(fired.into_iter().eq(0..50));
    check_law(&lab.counts());
}

/// The other shard sleeps, and what wakes it panics; the first one has not taken its turn.
fn when_woken_alone(lab: &mut Lab<u32>) {
    let turn = lab.shards[1].turn();
    let _ = lab.shards[1].prepare_to_sleep(turn, &Waker::from(Arc::new(Acts)));
    WHEN_WOKEN.set(Some(Box::new(|| panic!("a waker that panics"))));
}

#[test]
fn many_are_scheduled_whole_though_who_is_woken_wants_the_room() {
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
    assert!(WHEN_WOKEN.take().is_none(), "it was woken");
    let refused = timers.schedule_many([(ms(5), 1)]).unwrap_err();
    assert!(matches!(refused, ScheduleManyError::Full(_)));
    lab.advance(ms(5));
    assert!(lab.fired().into_iter().map(|(n, _)| n).eq(0..room));
    check_law(&lab.counts());
}

trait Clear {
    fn clear(&mut self);
}

impl Clear for Lab<u32> {
    /// Ends all that is pending.
    fn clear(&mut self) {
        self.advance(FAR);
        drop(self.fired());
    }
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("a task that panics when it is dropped");
    }
}

#[test]
fn many_tasks_that_panic_when_they_are_dropped_harm_nobody() {
    let mut lab: Lab<Bomb> = Lab::new(builder(1));
    let timers: Timers<Bomb> = lab.timers().clone();
    let client = lab.client();
    let handles = timers.schedule_many((0..3).map(|_| (FAR, Bomb))).unwrap();
    // Whoever asked does not wait for the answer, so all of them are dropped on the core.
    drop(client.cancel_many(&handles));
    let more = timers.schedule_many((0..3).map(|_| (FAR, Bomb))).unwrap();
    client.cancel_many_detached(&more);
    lab.settle();
    assert_eq!((lab.counts().cancelled, lab.counts().panicked), (6, 6));
    check_law(&lab.counts());
}

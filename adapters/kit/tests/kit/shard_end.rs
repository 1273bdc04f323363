//! The end of a shard with pending operations and scaled timeouts: by a shutdown that a handler
//! begins, or by the drop of its driver.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewheel::attach::Turn;
use corewheel::settings::Scale;
use corewheel::stats::ShardState;
use corewheel::{Refused, ShutdownPolicy, TimerService, Timers};
use corewheel_kit::purgatory::Purgatory;
use corewheel_kit::scaled::ScaledTimeouts;

use corewheel_test_support::operation_fn::{Completion, OperationFn};
use corewheel_test_support::{
    FAR, Host, Lab, PATIENCE, POLICIES, Running, SHARD, builder, check_law, ms, shared, wait_until,
};

type Timeouts = ScaledTimeouts<u32>;
type Operations = Purgatory<&'static str, OperationFn>;

const MANY: u32 = 1_500;

thread_local! {
    /// Containers that a thread still holds when its shard has ended.
    static HELD: RefCell<Option<(Timeouts, Operations)>> = const { RefCell::new(None) };
}

/// Reports the end of each timeout and operation, by its kind and number.
type Ends = mpsc::Sender<(&'static str, u32)>;

fn open(timers: &Timers<()>, service: Weak<TimerService<()>>, policy: ShutdownPolicy, ends: Ends) {
    let begin = move || {
        if let Some(service) = service.upgrade() {
            drop(service.begin_shutdown(policy));
        }
    };
    let timeout_ends = ends.clone();
    let handle = move |number, timeouts: &Timeouts| {
        if number == 0 {
            begin();
        }
        let refused = timeouts.start(MANY + number);
        if let Err(Refused::Closed(number)) = refused {
            timeout_ends.send(("closed", number - MANY)).unwrap();
        }
        timeout_ends.send(("timeout", number)).unwrap();
    };
    let timeouts = ScaledTimeouts::new(timers, ms(1), FAR, handle).unwrap();
    let operations = Purgatory::new(timers);
    for number in 0..MANY {
        timeouts.start(number).unwrap();
        let ends = ends.clone();
        let end = move |how| {
            assert_eq!(how, Completion::Deadline);
            ends.send(("operation", number)).unwrap();
        };
        let op = OperationFn::new(|| false, end);
        assert!(!operations.try_complete_else_watch(op, FAR, ["k"]).unwrap());
    }
    HELD.set(Some((timeouts, operations)));
    timers.set_scale(Scale::ZERO);
}

#[test]
fn shutdown_begun_by_a_handler_ends_operations_and_timeouts_by_its_policy() {
    for (host, policy) in Host::all().flat_map(|host| POLICIES.map(|policy| (host, policy))) {
        let running = Running::idle(host, builder(1));
        let (sender, ends) = mpsc::channel();
        let service = Arc::downgrade(&running.service);
        let call = move |timers: &Timers<()>| open(timers, service, policy, sender);
        running.client().on(SHARD).schedule_fn(Duration::ZERO, call).unwrap();
        // The channel ends when the thread of the shard has dropped all senders.
        let mut all = vec![ends.recv_timeout(PATIENCE).unwrap()];
        if matches!(host, Host::Own(_)) {
            drop(running);
        } else {
            let state = || running.service.stats().shards[0].state;
            wait_until("the shard is closed", || state() == ShardState::Closed);
            running.stop();
        }
        all.extend(ends);
        let of = |which| {
            let picked = all.iter().filter(move |(kind, _)| *kind == which);
            picked.map(|(_, number)| *number).collect::<Vec<_>>()
        };
        let (timeouts, operations) = (of("timeout"), of("operation"));
        let in_order = timeouts.iter().copied().eq(0..timeouts.len() as u32);
        assert!(in_order, "{host:?}, {policy:?}: each timeout ends once, in order");
        if policy == ShutdownPolicy::Fire {
            assert!(timeouts.len() as u32 >= MANY, "{host:?}: {}", timeouts.len());
            assert!(operations.into_iter().eq(0..MANY), "{host:?}");
            assert!(!of("closed").is_empty(), "{host:?}: a closed shard refuses timeouts");
        } else {
            assert!(operations.is_empty(), "{host:?}, {policy:?}");
            assert!(!timeouts.is_empty() && of("closed").is_empty(), "{host:?}, {policy:?}");
        }
    }
}

#[test]
fn dead_shard_keeps_operations_and_timeouts_until_they_are_drained() {
    let mut lab = Lab::<()>::new(builder(1));
    let (ended, count) = shared::<Cell<u32>>();
    let handle = move |_, _: &Timeouts| count.set(count.get() + 1);
    let timers = lab.timers().clone();
    let timeouts = ScaledTimeouts::new(&timers, ms(1), FAR, handle).unwrap();
    let operations: Operations = Purgatory::new(&timers);
    let keys: Vec<_> = (0..MANY).map(|number| timeouts.start(number).unwrap()).collect();
    let ready = Rc::<Cell<bool>>::default();
    let op = || {
        let ready = Rc::clone(&ready);
        OperationFn::new(move || ready.get(), |how| assert_eq!(how, Completion::Event))
    };
    for _ in 0..3 {
        assert!(operations.try_complete_else_watch(op(), FAR, ["k"]).is_ok());
    }
    lab.advance(ms(5));
    lab.timers().set_scale(Scale::ZERO);
    assert_eq!(lab.turn(), Turn::More);
    let fired = ended.get();
    assert!(fired > 0 && fired < MANY, "the shard dies while it delivers the timeouts");
    drop(lab.shards.remove(0));
    lab.clock.advance(FAR);
    timers.set_scale(Scale::ONE);
    timers.set_scale(Scale::ZERO);
    assert_eq!(timeouts.start(7), Err(Refused::Closed(7)));
    assert!(timeouts.reset(keys[keys.len() - 1]), "the timeout is still pending");
    assert_eq!(timeouts.cancel(keys[fired as usize]), Some(fired));
    assert!(timeouts.drain().into_iter().eq(fired + 1..MANY));
    let refused = operations.try_complete_else_watch(op(), FAR, ["k"]);
    assert!(matches!(refused, Err(Refused::Closed(_))));
    ready.set(true);
    assert_eq!((operations.check_and_complete("k"), operations.stats().delayed), (3, 0));
    let counts = lab.counts();
    assert_eq!((ended.get(), counts.panicked), (fired, 0));
    check_law(&counts);
}

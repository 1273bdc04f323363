//! The end of a shard on which operations and scaled timeouts are under way: begun by one of them,
//! or by the death of what drives it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewheel::{
    Completion, Fired, InsertError, OperationFn, Purgatory, Scale, ScaledTimeouts, ShardState,
    ShutdownPolicy, TimerService, Timers, Turn, Watch, WatchError,
};

use crate::support::{
    FAR, Host, Lab, PATIENCE, Running, SHARD, builder, check_law, ms, wait_until,
};

type Timeouts = ScaledTimeouts<u32, ()>;
type Operations = Purgatory<&'static str, OperationFn, ()>;

const MANY: u32 = 1_500;
const POLICIES: [ShutdownPolicy; 3] =
    [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];

thread_local! {
    /// What a thread is left with when its shard is gone.
    static LEFT: RefCell<Option<(Timeouts, Operations)>> = const { RefCell::new(None) };
}

/// What the threads of a service tell.
type Told = mpsc::Sender<(&'static str, u32)>;

fn open(timers: &Timers<()>, service: Weak<TimerService<()>>, policy: ShutdownPolicy, told: Told) {
    let begin = move || {
        if let Some(service) = service.upgrade() {
            drop(service.begin_shutdown(policy));
        }
    };
    let noted = told.clone();
    let handle = move |number, timeouts: &Timeouts| {
        if number == 0 {
            begin();
        }
        let refused = timeouts.start(MANY + number);
        if let Err(InsertError::Closed(number)) = refused {
            noted.send(("closed", number - MANY)).unwrap();
        }
        noted.send(("timeout", number)).unwrap();
    };
    let timeouts = ScaledTimeouts::new(timers, ms(1), FAR, handle).unwrap();
    let operations = Purgatory::new(timers);
    for number in 0..MANY {
        timeouts.start(number).unwrap();
        let told = told.clone();
        let op = OperationFn::new(
            || false,
            move |how| {
                assert_eq!(how, Completion::Deadline);
                told.send(("operation", number)).unwrap();
            },
        );
        assert!(matches!(
            operations.try_complete_else_watch(op, FAR, ["k"]),
            Ok(Watch::Watched(_))
        ));
    }
    LEFT.set(Some((timeouts, operations)));
    timers.set_scale(Scale::ZERO);
}

#[test]
fn a_shutdown_that_a_timeout_begins_ends_what_is_under_way_by_its_policy() {
    for (host, policy) in Host::all().flat_map(|host| POLICIES.map(|policy| (host, policy))) {
        let running = Running::start(host, builder(1), |_| |_: Fired<()>, _: &_| {});
        let (told, ends) = mpsc::channel();
        let service = Arc::downgrade(&running.service);
        let call = move |timers: &Timers<()>| open(timers, service, policy, told);
        running.client().schedule_fn_on(SHARD, Duration::ZERO, call).unwrap();
        // The channel ends when all that holds it is dropped: with its thread, at the latest.
        let mut all = Vec::new();
        let first = ends.recv_timeout(PATIENCE).unwrap();
        all.push(first);
        if matches!(host, Host::Own(_)) {
            drop(running);
        } else {
            let state = || running.service.stats().shards[0].state;
            wait_until("it is closed", || state() == ShardState::Closed);
            running.stop();
        }
        all.extend(ends);
        let of = |which| {
            let picked = all.iter().filter(move |(kind, _)| *kind == which);
            picked.map(|(_, number)| *number).collect::<Vec<_>>()
        };
        let (timeouts, operations) = (of("timeout"), of("operation"));
        let expected = timeouts.iter().copied().eq(0..timeouts.len() as u32);
        assert!(expected, "{host:?}, {policy:?}: in order, each once");
        if policy == ShutdownPolicy::Fire {
            assert!(timeouts.len() as u32 >= MANY, "{host:?}: {}", timeouts.len());
            assert!(operations.into_iter().eq(0..MANY), "{host:?}");
            assert!(!of("closed").is_empty(), "{host:?}: what is started then comes back");
        } else {
            assert!(operations.is_empty(), "{host:?}, {policy:?}");
            assert!(!timeouts.is_empty() && of("closed").is_empty(), "{host:?}, {policy:?}");
        }
    }
}

#[test]
fn what_is_under_way_when_a_shard_dies_stays_and_comes_back() {
    let mut lab = Lab::<()>::new(builder(1));
    let ended = Rc::new(Cell::new(0));
    let count = Rc::clone(&ended);
    let handle = move |_, _: &Timeouts| count.set(count.get() + 1);
    let timeouts = ScaledTimeouts::new(lab.timers(), ms(1), FAR, handle).unwrap();
    let operations: Operations = Purgatory::new(lab.timers());
    let keys: Vec<_> = (0..MANY).map(|number| timeouts.start(number).unwrap()).collect();
    let ready = Rc::new(Cell::new(false));
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
    let gone = ended.get();
    assert!(gone > 0 && gone < MANY, "it dies while they are being delivered");
    drop(lab.shards.remove(0));
    lab.clock.advance(FAR);
    timeouts.timers().set_scale(Scale::ONE);
    timeouts.timers().set_scale(Scale::ZERO);
    assert_eq!(timeouts.start(7), Err(InsertError::Closed(7)));
    assert!(timeouts.reset(keys[keys.len() - 1]), "it is still there");
    assert_eq!(timeouts.cancel(keys[gone as usize]), Some(gone));
    assert!(timeouts.drain().into_iter().eq(gone + 1..MANY));
    let refused = operations.try_complete_else_watch(op(), FAR, ["k"]);
    assert!(matches!(refused, Err(WatchError::Closed(_))));
    ready.set(true);
    assert_eq!(operations.check_and_complete_up_to("k", 2), 2);
    assert_eq!(operations.drain().len(), 1);
    let counts = lab.counts();
    assert_eq!((counts.scaled_pending, counts.scaled_fired), (0, u64::from(gone)));
    assert_eq!((ended.get(), counts.panicked), (gone, 0));
    check_law(&counts);
}

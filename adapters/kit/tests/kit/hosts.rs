//! All containers of one shard, on every host.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corewheel::settings::Scale;
use corewheel::{ShutdownPolicy, Timers};
use corewheel_kit::keyed::KeyedTimers;
use corewheel_kit::purgatory::Purgatory;
use corewheel_kit::queue::DelayQueue;
use corewheel_kit::repeat::{PeriodicRun, Repeat};
use corewheel_kit::scaled::ScaledTimeouts;

use crate::scaled::{CLASS, known};
use corewheel_test_support::operation_fn::{Completion, OperationFn};
use corewheel_test_support::{
    FAR, Host, PATIENCE, Running, SHARD, builder, check_law, ms, wait_until,
};

/// How many scaled timeouts there are.
const MANY: u64 = 2_000;

/// What came, its number, and when.
type Event = (&'static str, u64, Instant);

#[derive(Clone)]
struct Mine {
    keyed: KeyedTimers<&'static str, u64, u32>,
    operations: Purgatory<&'static str, OperationFn>,
    scaled: ScaledTimeouts<u64>,
}

thread_local! {
    static MINE: RefCell<Option<Mine>> = const { RefCell::new(None) };
}

fn fill(timers: &Timers<()>, sender: &mpsc::Sender<Event>) {
    let note = |what| {
        let (sender, clock) = (sender.clone(), timers.clone());
        move |number| sender.send((what, number, clock.now())).unwrap()
    };
    let fired = note("keyed");
    let keyed = KeyedTimers::in_groups(timers, move |one, _| fired(one.value));
    // The sooner one first, as the machine may be busy between two of them.
    for (key, delay, value) in [("soon", 10, 10), ("late", 30, 30), ("moved", 5, 50)] {
        assert_eq!(keyed.insert(key, value, ms(delay)), Ok(None));
    }
    for key in ["x", "y"] {
        assert_eq!(keyed.insert_in(1, key, 0, ms(1)), Ok(None));
    }
    assert!(keyed.reset("moved", ms(50)));
    assert_eq!(keyed.remove_group(&1).len(), 2);

    let (operations, ready) = (Purgatory::new(timers), Rc::new(Cell::new(false)));
    for (name, key, delay) in [("late", "never", ms(30)), ("soon", "k", FAR)] {
        let (ready, due, event) = (Rc::clone(&ready), note("expired"), note("completed"));
        let end = move |how| if how == Completion::Event { event(0) } else { due(30) };
        let op = OperationFn::new(move || name == "soon" && ready.get(), end);
        assert!(operations.try_complete_else_watch(op, delay, [key, "both"]).is_ok());
    }
    ready.set(true);

    let queue = DelayQueue::new(timers);
    (0..3).for_each(|n| assert!(queue.insert(n, ms(10)).is_ok()));
    let taken = note("taken");
    let take = move |_: &Timers<()>| {
        let mut buffer = Vec::new();
        assert_eq!(queue.drain_expired_into(&mut buffer, 10), 3);
        for expired in buffer {
            taken(expired.value);
        }
    };
    timers.schedule_fn(ms(20), take).unwrap();

    let ended = note("scaled");
    let of_class = timers.of_class(CLASS).unwrap();
    let scaled = ScaledTimeouts::new(&of_class, ms(20), FAR, move |n, _| ended(n)).unwrap();
    (0..MANY).for_each(|number| assert!(scaled.start(number).is_ok()));

    let rate = Repeat::at_fixed_rate(ms(3)).unwrap();
    for repeat in [rate, Repeat::with_fixed_delay(ms(3)).unwrap()] {
        let run = note("run");
        let call = move |one: &mut PeriodicRun<'_, ()>| {
            assert!(one.timers.now() >= one.due, "a run is early");
            if one.number == 4 {
                one.stop();
            }
            run(one.number);
        };
        repeat.begin(timers, call).unwrap();
    }
    MINE.set(Some(Mine { keyed, operations, scaled }));
}

#[test]
fn containers_work_on_every_host() {
    for host in Host::all() {
        let running = Running::idle(host, builder(1).class(CLASS));
        let client = running.client();
        let on_shard = |delay, call: fn(Mine, &mpsc::Sender<Event>)| {
            let (sender, answers) = mpsc::channel();
            let call = move |_: &Timers<()>| {
                call(MINE.with_borrow(Option::clone).unwrap(), &sender);
            };
            client.on(SHARD).schedule_fn(delay, call).unwrap();
            answers
        };
        let (sender, events) = mpsc::channel();
        let start = running.service.now();
        let fill = move |timers: &Timers<()>| fill(timers, &sender);
        client.on(SHARD).schedule_fn(Duration::ZERO, fill).unwrap();
        wait_until("all are pending", || known(&running.service).0 == MANY);
        on_shard(ms(1), |mine, _| assert_eq!(mine.operations.check_and_complete("k"), 1));
        client.on(SHARD).set_scale(Scale::ZERO).unwrap();
        let all = (0..3 + 2 + 3 + MANY + 10).map(|_| events.recv_timeout(PATIENCE).unwrap());
        let all: Vec<_> = all.collect();
        let of = |what| {
            let of_what = all.iter().filter(move |(kind, ..)| *kind == what);
            of_what.map(|(_, number, _)| *number).collect::<Vec<_>>()
        };
        assert_eq!(of("keyed"), [10, 30, 50], "{host:?}");
        assert_eq!((of("completed"), of("expired")), (vec![0], vec![30]), "{host:?}");
        assert_eq!(of("taken"), [0, 1, 2], "{host:?}");
        assert!(of("scaled").into_iter().eq(0..MANY), "{host:?}: they are in order");
        let mut runs = of("run");
        runs.sort_unstable();
        assert!(runs.into_iter().eq((0..10).map(|run| run / 2)), "{host:?}");
        for (what, number, at) in all {
            let least = match what {
                "keyed" | "expired" => number,
                "taken" | "scaled" => 20,
                _ => 0,
            };
            assert!(at >= start + ms(least), "{host:?}: {what} {number} is early");
        }
        client.on(SHARD).set_scale(Scale::ONE).unwrap();
        on_shard(Duration::ZERO, |mine, _| assert!(mine.scaled.start(7).is_ok()));
        let left = on_shard(ms(60), |mine, sender| {
            MINE.take();
            let stats = mine.operations.stats();
            assert_eq!((stats.completed, stats.expired, stats.delayed), (1, 1, 0));
            assert!(mine.keyed.is_empty());
            let now = Instant::now();
            mine.scaled.drain().into_iter().for_each(|n| sender.send(("left", n, now)).unwrap());
        });
        assert_eq!(left.recv_timeout(PATIENCE).unwrap().1, 7, "{host:?}");
        assert!(left.recv().is_err(), "{host:?}: one was left");
        let pending =
            || running.service.stats().shards[0].counts.pending + known(&running.service).0;
        wait_until("no timer is left", || pending() == 0);
        assert_eq!(known(&running.service).1, MANY, "{host:?}");
        let counts = running.end(ShutdownPolicy::Drop).shards[0].counts;
        check_law(&counts);
        assert_eq!(counts.panicked, 0, "{host:?}");
    }
}

//! Purgatories: operations complete by an event or by their deadline, exactly once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::Hash;
use std::rc::Rc;
use std::time::Duration;

use corewheel::{Refused, ShutdownPolicy};
use corewheel_kit::purgatory::{Operation, Purgatory, PurgatoryStats};
use fastrand::Rng;

use corewheel_test_support::operation_fn::{Completion, OperationFn};
use corewheel_test_support::{FAR, Lab, builder, check_law, ms, seeds, shared, ticks_of};

pub(crate) type Keys = &'static str;

/// The lines that operations log, in order.
type Log = Rc<RefCell<Vec<String>>>;

/// Complete when its flag is set. Its end runs `then`.
struct Op {
    name: &'static str,
    ready: Rc<Cell<bool>>,
    log: Log,
    then: Option<Box<dyn FnOnce()>>,
}

impl Operation for Op {
    fn try_complete(&mut self) -> bool {
        self.log.borrow_mut().push(format!("{} tried", self.name));
        self.ready.get()
    }

    fn completed(self) {
        self.end("completed");
    }

    fn expired(self) {
        self.end("expired");
    }
}

impl Op {
    fn end(mut self, how: &str) {
        self.log.borrow_mut().push(format!("{} {how}", self.name));
        self.then.take().into_iter().for_each(|then| then());
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

struct Scene {
    lab: Lab<()>,
    purgatory: Rc<Purgatory<Keys, Op>>,
    log: Log,
}

impl Scene {
    fn new() -> Self {
        let lab = Lab::new(builder(1));
        let purgatory = Rc::new(Purgatory::new(lab.timers()));
        Self { lab, purgatory, log: Log::default() }
    }

    fn op(&self, name: &'static str) -> (Op, Rc<Cell<bool>>) {
        let (ready, flag) = shared::<Cell<bool>>();
        (Op { name, ready: flag, log: self.log.clone(), then: None }, ready)
    }

    fn watch(
        &self,
        name: &'static str,
        delay: Duration,
        keys: &[Keys],
        then: impl FnOnce() + 'static,
    ) -> Rc<Cell<bool>> {
        let (mut op, ready) = self.op(name);
        op.then = Some(Box::new(then));
        let keys = keys.iter().copied();
        assert!(!self.purgatory.try_complete_else_watch(op, delay, keys).unwrap());
        ready
    }

    /// The log without the tries.
    fn ends(&self) -> Vec<String> {
        self.log.take().into_iter().filter(|line| !line.ends_with("tried")).collect()
    }
}

/// Operations of two closures, in a lab of their own.
pub(crate) fn operations<K: Hash + Eq + 'static>() -> (Lab<()>, Rc<Purgatory<K, OperationFn>>) {
    let lab = Lab::new(builder(1));
    let purgatory = Rc::new(Purgatory::new(lab.timers()));
    (lab, purgatory)
}

/// Lets such an operation wait for a key.
#[track_caller]
pub(crate) fn watch<K: Hash + Eq + 'static>(
    purgatory: &Purgatory<K, OperationFn>,
    delay: Duration,
    keys: impl IntoIterator<Item = K>,
    is_complete: impl FnMut() -> bool + 'static,
    end: impl FnOnce(Completion) + 'static,
) {
    let operation = OperationFn::new(is_complete, end);
    assert!(!purgatory.try_complete_else_watch(operation, delay, keys).unwrap());
}

#[track_caller]
pub(crate) fn check_stats(stats: PurgatoryStats) {
    let PurgatoryStats { delayed, accepted, completed, expired, cancelled, .. } = stats;
    assert_eq!(accepted, delayed + completed + expired + cancelled, "{stats:?}");
}

#[track_caller]
fn check_empty(scene: &mut Scene) {
    let stats = scene.purgatory.stats();
    assert_eq!((stats.delayed, stats.watched, stats.keys), (0, 0, 0));
    check_stats(stats);
    assert_eq!(scene.lab.timers().len(), 0, "no timer is left");
    scene.lab.advance(FAR * 2);
    assert_eq!(scene.ends(), [""; 0], "nothing happens any more");
    check_law(&scene.lab.counts());
}

#[test]
fn completed_operation_may_watch_check_and_cancel_under_its_key() {
    let mut scene = Scene::new();
    let purgatory = Rc::downgrade(&scene.purgatory);
    let (late, late_is_ready) = scene.op("late");
    let ready = scene.watch("a", FAR, &["k"], move || {
        let purgatory = purgatory.upgrade().unwrap();
        // "b" is next in the walk that this runs in.
        let cancelled = purgatory.cancel_for_key("b's");
        assert_eq!(cancelled[0].name, "b");
        assert!(!purgatory.try_complete_else_watch(late, FAR, ["k"]).unwrap());
        assert_eq!(purgatory.check_and_complete("k"), 0, "it is left to the check around it");
    });
    scene.watch("b", FAR, &["k", "b's"], || {}).set(true);
    scene.watch("c", FAR, &["k"], || {}).set(true);
    let d = scene.watch("d", FAR, &["k"], || {});
    scene.log.take();
    ready.set(true);
    assert_eq!(scene.purgatory.check_and_complete("k"), 2, "a and c");
    let log = scene.log.take();
    // "late" comes meanwhile, and is not in the walk that began before.
    let expected =
        "a tried, a completed, late tried, c tried, c completed, d tried, d tried, late tried";
    assert_eq!(log.join(", "), expected);
    d.set(true);
    late_is_ready.set(true);
    assert_eq!(scene.purgatory.check_and_complete("k"), 2);
    scene.ends();
    check_empty(&mut scene);
}

#[test]
fn expired_operation_may_watch_again_and_complete_others() {
    let mut scene = Scene::new();
    let purgatory = Rc::downgrade(&scene.purgatory);
    let (again, _) = scene.op("again");
    let b = scene.watch("b", FAR, &["k"], || {});
    scene.watch("a", ms(3), &["k"], move || {
        let purgatory = purgatory.upgrade().unwrap();
        b.set(true);
        assert_eq!(purgatory.check_and_complete("k"), 1);
        let watch = purgatory.try_complete_else_watch(again, Duration::ZERO, ["k"]);
        assert!(!watch.unwrap(), "and it expires in the next turn");
    });
    scene.lab.clock.advance(ms(3));
    let _ = scene.lab.turn();
    assert_eq!(scene.ends(), ["a expired", "b completed"]);
    let _ = scene.lab.turn();
    assert_eq!(scene.ends(), ["again expired"]);
    check_empty(&mut scene);
}

/// The event comes within the operation's own try, after that has read the flag.
#[test]
fn check_during_a_try_leads_to_another_try() {
    for watched_before in [false, true] {
        let (_lab, purgatory) = operations::<Keys>();
        let (known, ready) = (Rc::downgrade(&purgatory), Cell::new(false));
        let (fires, comes) = shared::<Cell<bool>>();
        let (done, ends) = shared::<Cell<Option<_>>>();
        fires.set(!watched_before);
        let is_complete = move || {
            let was_ready = ready.get();
            if comes.take() {
                ready.set(true);
                let purgatory = known.upgrade().unwrap();
                assert_eq!(purgatory.check_and_complete("k"), 0, "it is being tried");
                assert!(purgatory.cancel_for_key("k").is_empty());
            }
            was_ready
        };
        let op = OperationFn::new(is_complete, move |how| ends.set(Some(how)));
        let watch = purgatory.try_complete_else_watch(op, FAR, ["k"]).unwrap();
        assert_eq!(watch, !watched_before);
        fires.set(true);
        assert_eq!(purgatory.check_and_complete("k"), usize::from(watched_before));
        assert_eq!(done.get(), Some(Completion::Event));
        assert_eq!(purgatory.stats().delayed, 0);
        check_stats(purgatory.stats());
    }
}

#[test]
fn operation_whose_deadline_comes_within_its_own_try_expires() {
    let (lab, purgatory) = operations::<Keys>();
    let (stands, held) = shared::<RefCell<Option<_>>>();
    let (ended, noted) = shared::<Cell<Option<_>>>();
    let is_complete = move || {
        held.take().iter_mut().for_each(|lab: &mut Lab<()>| lab.advance(ms(5)));
        false
    };
    watch(&purgatory, ms(5), ["k"], is_complete, move |how| noted.set(Some(how)));
    stands.replace(Some(lab));
    assert_eq!(purgatory.check_and_complete("k"), 0);
    assert_eq!(ended.get(), Some(Completion::Deadline));
    assert_eq!(purgatory.stats().delayed, 0);
    check_stats(purgatory.stats());
}

#[test]
fn operation_that_checks_its_key_in_each_try_is_tried_a_bounded_number_of_times() {
    let (_lab, purgatory) = operations::<Keys>();
    let (tries, counted) = shared::<Cell<u32>>();
    let weak = Rc::downgrade(&purgatory);
    let is_complete = move || {
        counted.set(counted.get() + 1);
        weak.upgrade().unwrap().check_and_complete("k");
        false
    };
    watch(&purgatory, FAR, ["k"], is_complete, |_| panic!("it never ends"));
    assert_eq!(purgatory.check_and_complete("k"), 0);
    assert!(tries.get() < 200);
    assert_eq!(purgatory.drain().len(), 1);
}

#[test]
fn lock_is_handed_down_a_queue_of_any_length() {
    const QUEUE: usize = 20_000;
    let (_lab, purgatory) = operations::<u8>();
    let (free, order) = (Rc::<Cell<bool>>::default(), Rc::<RefCell<Vec<_>>>::default());
    for n in 0..QUEUE {
        let (weak, order) = (Rc::downgrade(&purgatory), Rc::clone(&order));
        let (take, give) = (Rc::clone(&free), Rc::clone(&free));
        let free_the_lock = move |_| {
            order.borrow_mut().push(n);
            give.set(true);
            weak.upgrade().unwrap().check_and_complete(&1);
        };
        watch(&purgatory, FAR, [1], move || take.replace(false), free_the_lock);
    }
    free.set(true);
    assert!(purgatory.check_and_complete(&1) > 0);
    assert!(order.borrow().iter().copied().eq(0..QUEUE), "one after the other, none left");
    assert_eq!(purgatory.stats().delayed, 0);
}

/// Each completes the one that came before it, which the check has tried already.
#[test]
fn check_goes_on_while_one_operation_completes_in_each_round() {
    const COUNT: usize = 200;
    let (_lab, purgatory) = operations::<u8>();
    let left = Rc::new(Cell::new(COUNT + 1));
    for n in 1..=COUNT {
        let (weak, left, ends) = (Rc::downgrade(&purgatory), Rc::clone(&left), Rc::clone(&left));
        let end = move |_| {
            ends.set(n - 1);
            weak.upgrade().unwrap().check_and_complete(&1);
        };
        watch(&purgatory, FAR, [1], move || left.get() == n, end);
    }
    left.set(COUNT);
    assert_eq!(purgatory.check_and_complete(&1), COUNT);
    assert_eq!((left.get(), purgatory.stats().delayed), (0, 0));
}

#[test]
fn refused_operation_is_returned_and_leaves_nothing_behind() {
    let mut lab = Lab::<()>::new(builder(1).capacity(2));
    let log = Log::default();
    let op = |name| Op { name, ready: Rc::default(), log: log.clone(), then: None };
    let check = |refused: Result<bool, Refused<Op>>, name| match refused {
        Err(Refused::Full(op)) => assert_eq!(op.name, name),
        other => panic!("{other:?}"),
    };
    // Four keys for each of two timers.
    let purgatory = Purgatory::<u32, Op>::new(lab.timers());
    check(purgatory.try_complete_else_watch(op("many keys"), FAR, 0..), "many keys");
    let _ = purgatory.try_complete_else_watch(op("a"), FAR, 1..=7).unwrap();
    check(purgatory.try_complete_else_watch(op("watches"), FAR, [1, 2]), "watches");
    let _ = purgatory.try_complete_else_watch(op("b"), FAR, [1]).unwrap();
    check(purgatory.try_complete_else_watch(op("operations"), FAR, []), "operations");
    let stats = purgatory.stats();
    assert_eq!((stats.delayed, stats.watched, stats.keys, stats.refused), (2, 8, 7, 3));
    check_stats(stats);
    // The shard is full.
    let timers = lab.timers().clone();
    purgatory.drain();
    while timers.schedule(FAR, ()).is_ok() {}
    check(purgatory.try_complete_else_watch(op("no timer"), FAR, [1, 2]), "no timer");
    let stats = purgatory.stats();
    assert_eq!((stats.delayed, stats.watched, stats.keys), (0, 0, 0));
    // Closed.
    let report = lab.end(ShutdownPolicy::Drop);
    check_law(&report.shards[0].counts);
    let closed = purgatory.try_complete_else_watch(op("closed"), FAR, [1]);
    assert!(matches!(closed, Err(Refused::Closed(op)) if op.name == "closed"));
}

/// The twin is a list of operations, each with its keys and its deadline. With the code it shares
/// the order of operations that one turn ends, by their deadlines and then as they came, which is a
/// promise. Delays are whole ticks, so that nothing is rounded.
#[test]
fn random_history_of_operations_equals_that_of_a_list() {
    struct Twin {
        number: u64,
        keys: Vec<u32>,
        due: u64,
        ready: Rc<Cell<bool>>,
    }
    seeds::each(40, |seed| {
        let mut rng = Rng::with_seed(seed);
        let (mut lab, purgatory) = operations::<u32>();
        let ends = Rc::new(RefCell::new(Vec::new()));
        let mut twin: Vec<Twin> = Vec::new();
        let (mut completed, mut expired, mut cancelled) = (0, 0, 0);
        for number in 0..400 {
            let key = rng.u32(..8);
            let mut expected: Vec<_> = Vec::new();
            match rng.u32(..10) {
                0..5 => {
                    let keys: Vec<_> = (0..rng.usize(..4)).map(|_| rng.u32(..8)).collect();
                    let delay = rng.u64(..60);
                    let ((ready, flag), ends) = (shared::<Cell<bool>>(), Rc::clone(&ends));
                    let end = move |how| ends.borrow_mut().push((number, how));
                    watch(&purgatory, ms(delay), keys.clone(), move || flag.get(), end);
                    let due = ticks_of(lab.timers()) + delay;
                    twin.push(Twin { number, keys, due, ready });
                }
                5 | 6 => {
                    for op in &twin {
                        op.ready.set(op.ready.get() || rng.bool());
                    }
                    let now = purgatory.check_and_complete(&key);
                    let ends = twin.extract_if(.., |op| op.ready.get() && op.keys.contains(&key));
                    expected = ends.map(|op| (op.number, Completion::Event)).collect();
                    assert_eq!(now, expected.len(), "seed {seed}");
                    completed += now as u64;
                }
                7 => {
                    let all = rng.u32(..5) == 0;
                    let back = if all { purgatory.drain() } else { purgatory.cancel_for_key(&key) };
                    // They are told apart by their ends, which are run here.
                    back.into_iter().for_each(Operation::completed);
                    let ends = twin.extract_if(.., |op| all || op.keys.contains(&key));
                    expected = ends.map(|op| (op.number, Completion::Event)).collect();
                    cancelled += expected.len() as u64;
                }
                _ => {
                    lab.advance(ms(rng.u64(1..20)));
                    let now = ticks_of(lab.timers());
                    let mut due: Vec<_> = twin.extract_if(.., |op| op.due <= now).collect();
                    due.sort_by_key(|op| op.due);
                    expected = due.iter().map(|op| (op.number, Completion::Deadline)).collect();
                    expired += expected.len() as u64;
                }
            }
            assert_eq!(ends.take(), expected, "seed {seed}, step {number}");
            let stats = purgatory.stats();
            check_stats(stats);
            let ended = [stats.completed, stats.expired, stats.cancelled];
            assert_eq!(ended, [completed, expired, cancelled], "seed {seed}, step {number}");
            let keys_of = |op: &Twin| op.keys.iter().copied().collect::<BTreeSet<_>>();
            let watched = twin.iter().map(|op| keys_of(op).len()).sum::<usize>();
            let keys = twin.iter().flat_map(keys_of).collect::<BTreeSet<_>>().len();
            let expected = [twin.len(), watched, keys].map(|count| count as u64);
            let found = [stats.delayed, stats.watched, stats.keys];
            assert_eq!(found, expected, "seed {seed}, step {number}");
            assert_eq!(lab.timers().len(), twin.len(), "one timer for each, seed {seed}");
        }
    });
}

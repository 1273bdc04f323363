//! A kept container that the tasks of many simulated threads use, while its shard is slow or dies.
//!
//! The model of a task is an array of its own keys, and shares nothing with the code: all values
//! have an hour, so that no rule of time takes part.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use corewheel::kept::Kept;
use corewheel::sim::Simulation;
use corewheel::{ReplyError, ShardId, ShutdownPolicy, TimerService, Timers};
use corewheel_kit::keyed::KeyedTimers;
use fastrand::Rng;

use crate::judge::{given, start};

const SHARD: ShardId = ShardId::new(0);
const TASKS: u32 = 12;
const COMMANDS: u32 = 20;

/// What the tasks of a history have seen.
#[derive(Default)]
struct Seen {
    tasks_done: Cell<u32>,
    commands: Cell<u32>,
    closed: Cell<u32>,
}

/// A task that owns some keys, and knows what each of its commands must return.
async fn work(
    map: Kept<KeyedTimers<u32, u32>>,
    task: u32,
    mut rng: Rng,
    seen: Rc<Seen>,
) -> Result<(), ReplyError> {
    let mut model = [None; 4];
    for number in 0..COMMANDS {
        let slot = rng.usize(..4);
        let (key, known) = (task * 4 + slot as u32, model[slot]);
        let returned = match rng.u8(..4) {
            0 | 1 => {
                model[slot] = Some(number);
                let far = Duration::from_hours(1);
                let insert = map.run(move |map| map.insert(key, number, far));
                let Ok(old) = insert.await? else { return Err(ReplyError::Closed) };
                old.map(|old| old.value)
            }
            2 => {
                model[slot] = None;
                map.run(move |map| map.remove(&key)).await?.map(|old| old.value)
            }
            _ => map.run(move |map| map.with(&key, |value| *value)).await?,
        };
        assert_eq!(returned, known, "key {key}, command {number}");
        seen.commands.set(seen.commands.get() + 1);
    }
    Ok(())
}

fn run(seed: u64) -> (bool, u32) {
    let builder = TimerService::builder().shards(2).capacity(100).lane_capacity(3);
    let mut sim: Simulation<()> = start(seed, builder);
    let mut rng = sim.rng();
    let make = |timers: &Timers<()>| KeyedTimers::<u32, u32>::new(timers, |_, _| {});
    let reply = sim.service().handle().on(SHARD).keep(make).expect("the shard is open");
    let map = sim.run(reply).expect("it is made");
    let record = Rc::new(Seen::default());
    for task in 0..TASKS {
        let (map, random, noted) = (map.clone(), sim.rng(), Rc::clone(&record));
        drop(sim.spawn(async move {
            let done = work(map, task, random, Rc::clone(&noted)).await;
            noted.closed.set(noted.closed.get() + u32::from(done.is_err()));
            noted.tasks_done.set(noted.tasks_done.get() + 1);
        }));
    }
    drop(map);
    let is_ended = rng.bool();
    for _ in 0..rng.u32(..200) {
        sim.step();
    }
    if rng.bool() {
        sim.stall(SHARD, Duration::from_millis(rng.u64(1..50)));
    }
    match (is_ended, rng.u8(..3)) {
        (true, 0) => sim.kill(SHARD),
        (true, policy) => {
            let policy = [ShutdownPolicy::Fire, ShutdownPolicy::Return][usize::from(policy - 1)];
            let report = sim.service().begin_shutdown(policy).expect("it is open");
            assert!(sim.run(report).dead.is_empty());
        }
        (false, _) => {}
    }
    sim.run_for(Duration::from_secs(1));
    assert_eq!(record.tasks_done.get(), TASKS, "seed {seed}: a task waits for ever");
    if !is_ended {
        assert_eq!(
            (record.closed.get(), record.commands.get()),
            (0, TASKS * COMMANDS),
            "seed {seed}"
        );
        assert_eq!(sim.timers(SHARD).len(), 0, "seed {seed}: the map outlives its handles");
    }
    (is_ended, record.closed.get())
}

/// The driver makes the future of a closure between its turn and its sleep.
#[test]
fn command_of_a_closure_that_makes_a_future_is_not_lost_to_sleep() {
    for seed in 0..50 {
        let mut sim = given(seed);
        let reply =
            sim.service().handle().on(SHARD).keep(|_| Cell::new(7)).expect("the shard is open");
        let kept = sim.run(reply).expect("it is made");
        let spawned = sim
            .service()
            .spawn_on(SHARD, move |_| kept.try_run(Cell::get).expect("the shard is open"));
        let value = sim.run(spawned.expect("the shard is open"));
        assert_eq!(value, Ok(Ok(7)), "seed {seed}");
        assert_eq!(sim.elapsed(), Duration::ZERO, "seed {seed}");
    }
}

#[test]
fn kept_map_agrees_with_the_model_of_each_task_for_many_seeds() {
    let (mut ended, mut closed) = (0, 0);
    for seed in 0..400 {
        let (is_ended, refused) = run(seed);
        ended += u32::from(is_ended);
        closed += u32::from(refused > 0);
    }
    assert!(ended > 100 && ended < 300, "{ended} shards have ended");
    assert!(closed > 50, "{closed} histories have seen the end");
}

//! Where the threads of a service run by default, on the machine of this test. `.ci/many-cpus` runs
//! it on others, and reads the line that it prints.

use std::thread::available_parallelism;

use rustix::thread::{CpuSet, sched_getaffinity};

use super::*;

/// The cpus that the calling thread may use.
fn own_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// The cpus that the thread of each shard may use.
fn cpus_of_shards(builder: TimerServiceBuilder) -> Vec<Vec<usize>> {
    let service = builder.start().unwrap();
    let client = Thread::of(&service);
    let cpus = service.shards().map(|shard| {
        let (sender, seen) = mpsc::channel();
        let call = move |_: &_| sender.send(own_cpus()).unwrap();
        client.on(shard).schedule_fn(ms(0), call).unwrap();
        seen.recv().unwrap()
    });
    let cpus = cpus.collect();
    service.shutdown(ShutdownPolicy::Drop).unwrap();
    cpus
}

#[test]
#[allow(clippy::print_stdout, reason = "`.ci/many-cpus` reads it")]
fn service_has_a_shard_for_each_cpu_and_pins_its_thread_unless_there_is_a_quota() {
    let (own, count) = (own_cpus(), available_parallelism().unwrap().get());
    let has_quota = count < own.len();
    let shards = cpus_of_shards(TimerService::builder());
    println!("{} shards on cpus {shards:?} of {own:?}", shards.len());
    assert_eq!(shards.len(), count);
    for (shard, cpus) in shards.iter().enumerate() {
        assert_eq!(*cpus, if has_quota { own.clone() } else { vec![own[shard]] });
    }

    // Further shards begin with the first cpu again.
    let many = cpus_of_shards(TimerService::builder().shards(count + 1));
    assert_eq!(many.last(), many.first());

    let unpinned = TimerService::builder().shards(2).unpinned();
    assert_eq!(cpus_of_shards(unpinned), [own.clone(), own.clone()]);
    assert_eq!(cpus_of_shards(TimerService::beside_runtime()), vec![own; count.div_ceil(8)]);
}

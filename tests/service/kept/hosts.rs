//! Kept containers on every host, used by many threads and by the tasks of a multi-thread runtime.

use std::sync::mpsc;
use std::thread;

use corewheel::{Fired, ShutdownPolicy, Timers};
use corewheel_kit::keyed::KeyedTimers;
use corewheel_kit::purgatory::Purgatory;
use corewheel_kit::queue::DelayQueue;

use corewheel_test_support::operation_fn::{Completion, OperationFn};
use corewheel_test_support::{
    FAR, Host, PATIENCE, Running, SHARD, block_on, builder, check_law, ms,
};

fn start(host: Host) -> Running<u32> {
    Running::start(host, builder(2), |_| |_: Fired<u32>, _: &Timers<u32>| {})
}

const THREADS: u32 = 4;
const EACH: u32 = 200;

#[test]
fn keyed_jobs_of_many_threads_expire_or_are_removed_exactly_once() {
    for host in Host::all() {
        let running = start(host);
        let (sender, due) = mpsc::channel();
        let make = move |timers: &Timers<u32>| {
            KeyedTimers::<u32, u32>::new(timers, move |job, _| sender.send(job.value).unwrap())
        };
        let jobs = running.service.handle().on(SHARD).keep(make).unwrap().wait().unwrap();
        let work = |thread: u32| {
            let jobs = jobs.clone();
            move || {
                let mut removed = 0;
                for number in thread * EACH..(thread + 1) * EACH {
                    let delay = if number % 2 == 0 { ms(2) } else { FAR };
                    let insert = jobs.run(move |jobs| jobs.insert(number, number, delay).is_ok());
                    assert_eq!(block_on(insert), Ok(true), "{host:?}");
                    if number % 4 == 1 {
                        let remove = jobs.run(move |jobs| jobs.remove(&number).is_some());
                        removed += u32::from(block_on(remove).unwrap());
                    } else if number % 4 == 3 {
                        let reset = jobs.run(move |jobs| jobs.reset(&number, ms(1)));
                        assert_eq!(block_on(reset), Ok(true), "{host:?}");
                    }
                }
                removed
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| thread::spawn(work(thread))).collect();
        let removed: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(removed, THREADS * EACH / 4, "{host:?}");
        let all = 0..THREADS * EACH - removed;
        let mut fired: Vec<_> = all.map(|_| due.recv_timeout(PATIENCE).unwrap()).collect();
        fired.sort_unstable();
        let expected = (0..THREADS * EACH).filter(|number| number % 4 != 1);
        assert!(fired.into_iter().eq(expected), "{host:?}");
        assert_eq!(block_on(jobs.run(KeyedTimers::len)), Ok(0), "{host:?}");
        let report = running.end(ShutdownPolicy::Drop);
        report.shards.iter().for_each(|shard| check_law(&shard.counts));
    }
}

#[test]
fn queue_is_filled_and_emptied_by_tasks_of_a_multi_thread_runtime() {
    for host in Host::all() {
        let running = start(host);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .unwrap();
        let reply = running.service.handle().on(SHARD).keep(DelayQueue::<u32>::new).unwrap();
        let values = runtime.block_on(async {
            let queue = reply.await.unwrap();
            let reader = queue.clone();
            let taken = tokio::spawn(async move {
                let mut values = Vec::new();
                while values.len() < (THREADS * EACH) as usize {
                    // Everything that is due comes with one reply.
                    let batch = reader.run(|queue| {
                        let mut batch = Vec::new();
                        queue.drain_expired_into(&mut batch, 99);
                        batch
                    });
                    values.extend(batch.await.unwrap().into_iter().map(|due| due.value));
                    tokio::time::sleep(ms(1)).await;
                }
                values
            });
            let put = |task: u32| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    for number in task * EACH..(task + 1) * EACH {
                        let insert = queue.run(move |queue| queue.insert(number, ms(1)).is_ok());
                        assert_eq!(insert.await, Ok(true), "{host:?}");
                    }
                })
            };
            for task in (0..THREADS).map(put).collect::<Vec<_>>() {
                task.await.unwrap();
            }
            tokio::time::timeout(PATIENCE, taken).await
        });
        let mut values =
            values.unwrap_or_else(|_| panic!("{host:?}: a value does not come")).unwrap();
        values.sort_unstable();
        assert!(values.into_iter().eq(0..THREADS * EACH), "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
}

#[test]
fn purgatory_is_watched_and_checked_from_different_threads() {
    for host in Host::all() {
        let running = start(host);
        let (sender, completed) = mpsc::channel();
        // The operations are not `Send`; each is made on the shard.
        let make = Purgatory::<u32, OperationFn>::new;
        let waits = running.service.handle().on(SHARD).keep(make).unwrap().wait().unwrap();
        let watch = |number: u32| {
            let sender = sender.clone();
            waits.run(move |waits| {
                let done = move |how| sender.send((number, how)).unwrap();
                let operation = OperationFn::new(|| false, done);
                let time = if number == 0 { ms(1) } else { FAR };
                waits
                    .try_complete_else_watch(operation, time, [number])
                    .is_ok_and(|completed| !completed)
            })
        };
        for number in 0..20 {
            assert_eq!(block_on(watch(number)), Ok(true), "{host:?}");
        }
        assert_eq!(completed.recv_timeout(PATIENCE).unwrap(), (0, Completion::Deadline));
        let other = waits.clone();
        let cancelled = thread::spawn(move || block_on(other.run(|waits| waits.drain().len())));
        assert_eq!(cancelled.join().unwrap(), Ok(19), "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
}

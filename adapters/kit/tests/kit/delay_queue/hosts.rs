//! Queues on every host whose shards can run futures.

use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use corewheel::{ShutdownPolicy, Timers};
use corewheel_kit::queue::DelayQueue;

use corewheel_test_support::{FAR, Host, PATIENCE, Running, SHARD, block_on, ms, wait_until};

#[test]
fn next_and_recv_work_on_every_executor() {
    for (host, running) in Running::<()>::each(Host::executors(), 1) {
        let start = running.service.now();
        let taken = running.service.spawn_on(SHARD, |timers| async move {
            let queue = Rc::new(DelayQueue::new(&timers));
            for (value, delay) in [(3, 30), (1, 10), (9, 3_600_000), (2, 20)] {
                queue.insert(value, ms(delay)).unwrap();
            }
            // A callback takes the part of another task.
            let shared = Rc::clone(&queue);
            let put = move |_: &Timers<()>| {
                shared.insert(4, Duration::ZERO).unwrap();
                shared.insert(5, ms(40)).unwrap();
            };
            timers.schedule_fn(ms(1), put).unwrap();
            let mut taken = Vec::new();
            while taken.len() < 5 {
                let expired = queue.next().await.unwrap();
                assert!(expired.deadline <= timers.now(), "a value is early");
                taken.push(expired.value);
            }
            assert_eq!((queue.len(), timers.len()), (1, 0));
            (taken, timers.now())
        });
        let (mut taken, end) = block_on(taken.unwrap()).unwrap();
        // The callback may have run late.
        assert!(taken.contains(&4), "{host:?}");
        taken.retain(|value| *value != 4);
        assert_eq!(taken, [1, 2, 3, 5], "{host:?}");
        assert!(end >= start + ms(40), "{host:?}: a value is early");
        wait_until("no timer is left", || running.service.stats().shards[0].counts.pending == 0);
        // A shutdown wakes a task that waits.
        let (sender, ended) = mpsc::channel();
        let waits = running.service.spawn_on(SHARD, |timers| async move {
            let queue = DelayQueue::<u8>::new(&timers);
            queue.insert(1, FAR).unwrap();
            timers.schedule_fn(ms(1), move |_| sender.send(()).unwrap()).unwrap();
            queue.recv().await
        });
        ended.recv_timeout(PATIENCE).unwrap();
        let waits = waits.unwrap();
        running.service.shutdown(ShutdownPolicy::Drop).unwrap();
        let end = block_on(waits);
        assert!(matches!(end, Ok(None) | Err(_)), "{host:?}");
        running.stop();
    }
}

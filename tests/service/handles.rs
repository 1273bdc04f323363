//! Commands of handles, by the thread that sends them.

use corewheel::Runtime;

use super::*;

/// The shards of two timers in a row that a thread without a shard schedules by a handle which
/// names none.
fn shards_of_a_new_thread(handle: Handle<u32>) -> [ShardId; 2] {
    let schedule = || block_on(handle.schedule_when_room(FAR, 1)).unwrap().shard();
    thread::scope(|scope| scope.spawn(|| [schedule(), schedule()]).join().unwrap())
}

#[test]
fn timer_of_a_handle_without_a_shard_is_on_that_of_its_thread_or_a_given_one() {
    for (host, running) in Running::each(Host::executors(), 2) {
        let handle = running.service.handle();
        for shard in [SHARD, OTHER] {
            let schedule = move |_| async move { handle.schedule_when_room(FAR, 1).await };
            let timer = running.service.spawn_on(shard, schedule).unwrap();
            assert_eq!(block_on(timer).unwrap().unwrap().shard(), shard, "{host:?}");
        }
        let given = [shards_of_a_new_thread(handle), shards_of_a_new_thread(handle)];
        assert!(given.iter().all(|[first, second]| first == second), "{host:?}: {given:?}");
        assert_ne!(given[0], given[1], "{host:?}: threads are given the shards in turn");
    }
}

#[test]
fn handle_is_used_by_the_last_destructors_of_a_thread() {
    type Last = OnDrop<Box<dyn FnMut()>>;
    thread_local! {
        // Made before the table of services of its thread, so it is dropped after that.
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    for (host, running) in Running::each(Host::all(), 1) {
        let (handle, (told, what)) = (running.service.handle(), mpsc::channel());
        let thread = thread::spawn(move || {
            let schedule =
                move |value| block_on(handle.on(SHARD).schedule_when_room(FAR, value)).unwrap();
            let last = move || {
                // The shard falls asleep, so that the first command wakes it.
                thread::sleep(ms(10));
                let (timer, detached) = (schedule(7), schedule(8));
                handle.cancel_detached(detached);
                let payload = block_on(handle.cancel(timer)).unwrap().payload();
                told.send((payload.and_then(Payload::into_value), detached)).unwrap();
            };
            LAST.set(Some(OnDrop(Box::new(last))));
            // Tokio makes its thread-local after that, and destroys it before. It panics where a
            // `LocalSet` is woken without it.
            drop(LocalSet::new().enter());
            schedule(1)
        });
        let timer = thread.join().unwrap();
        let (value, detached) = what.recv().unwrap();
        assert_eq!(value, Some(7), "{host:?}");
        assert_eq!(block_on(handle.remaining(detached)), Ok(None), "{host:?}");
        assert!(block_on(handle.remaining(timer)).unwrap().is_some(), "{host:?}");
    }
}

/// Wants timeouts only.
async fn time_out(timers: AnyHandle) -> TimeoutError {
    timers.timeout(ms(2), pending::<()>()).await.unwrap_err()
}

#[test]
fn untyped_handle_of_a_service_of_any_values_is_taken_for_timeouts() {
    let builder = || builder(1).runtime(Runtime::Thread);
    let callbacks = builder().start().unwrap();
    let strings = builder().start_with(|_| |_: Fired<String>, _: &Timers<String>| {}).unwrap();
    for timers in [callbacks.handle().untyped(), strings.handle().untyped()] {
        assert_eq!(block_on(time_out(timers)), TimeoutError::Elapsed);
        assert_eq!(timers.untyped(), timers);
    }
    // The timers stay on the shard of the handle, which the service does not have.
    let of_no_shard =
        [callbacks.handle().on(OTHER).untyped(), strings.handle().on(OTHER).untyped()];
    for timers in of_no_shard {
        let refused = TimeoutError::NoTimer(RefusedKind::NoSuchShard);
        assert_eq!(block_on(time_out(timers)), refused);
    }
}

//! The runtimes of a service, and which of them accept futures.

use corewheel::host::Engine;
use corewheel_glommio::Runtime;

use super::*;

const NOWHERE: ShardId = ShardId::new(7);

#[test]
fn service_on_a_chosen_runtime_names_that_runtime() {
    for runtime in runtimes() {
        let service = builder(1).runtime(runtime).start().unwrap();
        assert_eq!(service.runtime(), Some(runtime.name()));
        assert_eq!(service.runtime_reason(), "asked for");
        assert_eq!(service.stats().runtime, runtime.name());
        assert!(matches!(service.attach(SHARD), Err(ShardError::NotAttachable)));
    }
}

#[test]
fn service_of_attached_shards_has_no_runtime() {
    let service = builder(1).start_attached_with::<()>().unwrap();
    assert_eq!((service.runtime(), service.stats().runtime), (None, "attached"));
}

#[test]
fn auto_runtime_accepts_callbacks_and_refuses_futures() {
    let service = builder(1).runtime(Runtime::Auto).start().unwrap();
    assert!(service.runtime().is_some());
    let (sender, fired) = mpsc::channel();
    let call = move |_: &_| sender.send(()).unwrap();
    Thread::of(&service).on(SHARD).schedule_fn(ms(1), call).unwrap();
    assert_eq!(fired.recv_timeout(PATIENCE), Ok(()));
    let refused = service.spawn_on(SHARD, |_| async {}).map(drop).unwrap_err();
    assert_eq!(refused, ShardError::RuntimeNotChosen);
    assert!(refused.to_string().contains("GlommioOrTokio of corewheel-glommio"), "{refused}");
}

#[test]
fn glommio_or_tokio_runtime_accepts_futures() {
    let service = builder(1).runtime(Runtime::GlommioOrTokio).start().unwrap();
    let runtime = if glommio_works() { Runtime::Glommio } else { Runtime::Tokio };
    assert_eq!(service.runtime(), Some(runtime.name()));
    let slept = service.spawn_on(SHARD, |timers| async move { timers.sleep(ms(1)).await });
    assert_eq!(slept.unwrap().wait(), Ok(Ok(())));
}

#[test]
fn spawn_on_is_refused_without_an_executor_and_for_an_unknown_shard() {
    for (host, running) in Running::<()>::each(Host::all(), 2) {
        let accepts = Host::executors().any(|executor| executor == host);
        let expected = if accepts { Ok(()) } else { Err(ShardError::NoExecutor) };
        let unknown = Err(ShardError::NoSuchShard(NOWHERE));
        for (shard, expected) in [(SHARD, expected), (NOWHERE, unknown)] {
            let spawned = running.service.spawn_on(shard, |_| async {}).map(drop);
            assert_eq!(spawned, expected, "{host:?}");
        }
    }
}

#[test]
fn hash_names_the_same_shard_for_the_service_and_its_clients() {
    let service: TimerService<()> = builder(3).start_attached_with().unwrap();
    let client = Thread::of(&service);
    assert_eq!((service.shards().count(), client.shards().count()), (3, 3));
    for hash in [0, 1, 2, 3, 1_000, u64::MAX] {
        let shard = service.shard_for(hash);
        assert_eq!(u64::from(shard.number()), hash % 3);
        assert_eq!(client.shard_for(hash), shard);
    }
}

#[test]
fn manual_clock_is_refused_by_a_service_with_threads_of_its_own() {
    let clock = ManualClock::new();
    let refused = builder(1).clock(&clock).start().map(drop);
    assert!(matches!(refused, Err(StartError::Config(error)) if error.field() == "clock"));
}

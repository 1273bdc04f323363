//! The statistics of a service as a value.

use corewheel::Runtime;
use corewheel::stats::WarningKind;

use super::*;

#[test]
fn statistics_serialize_to_json_with_all_counts() {
    let mut lab = Lab::new(builder(2).name("a name"));
    let client = lab.client();
    client.on(SHARD).schedule(ms(3), 1).unwrap();
    lab.timers().schedule(FAR, 2).unwrap();
    lab.advance(ms(1));
    lab.advance(ms(4));
    let source = lab.service.stats_source();
    let stats = lab.service.stats();
    assert_eq!(source(), stats);
    let json: serde_json::Value =
        serde_json::from_str(&serde_json::to_string(&stats).unwrap()).unwrap();
    assert_eq!((&json["name"], &json["runtime"]), (&"a name".into(), &"attached".into()));
    assert_eq!(json["tick_ns"], 1_000_000);
    let shard = &json["shards"][0];
    assert_eq!((&shard["shard"], &shard["state"]), (&0.into(), &"running".into()));
    for (field, value) in [
        ("pending", 1),
        ("capacity", 1 << 16),
        ("scheduled_local", 1),
        ("scheduled_remote", 1),
        ("fired", 1),
        ("cancelled", 0),
        ("returned", 0),
        ("lanes", 1),
    ] {
        assert_eq!(shard[field], value, "{field}");
    }
    assert_eq!(shard["lateness"]["count"], 1);
    assert!(shard["lateness"]["p99_ns"].as_u64().unwrap() >= 2_000_000, "two ticks late");
    assert_eq!(shard["ring_delay"]["count"], 1);
    for (name, value) in stats.shards[0].counts.iter() {
        assert_eq!(shard[name], value, "{name} is in the JSON");
    }
    drop(lab);
    assert_eq!(source().shards[0].counts.pending, 0, "the source outlives the service");
}

#[test]
fn readers_at_once_count_each_occurrence_of_a_warning_once() {
    let builder = builder(1).runtime(Runtime::Thread).unpinned().class(REQUEST);
    let service = builder.overrun(Duration::from_micros(1)).start().unwrap();
    let timers = service.handle().on(SHARD).of_class(REQUEST).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    service.stats();
                }
            });
        }
        for _ in 0..3_000 {
            let slow = |_: &Timers<_>| {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_micros(5) {}
            };
            // A lane that is full is no fault here.
            let _full = timers.schedule_fn(Duration::ZERO, slow);
            thread::sleep(Duration::from_micros(50));
        }
        done.store(true, Ordering::Relaxed);
    });
    let stats = service.stats();
    let overrun = stats.shards[0].counts.overrun;
    assert!(overrun > 100, "{overrun}");
    let slow = stats.warnings.iter().filter(|one| one.kind == WarningKind::HandlerSlow);
    assert_eq!(slow.map(|one| one.count).sum::<u64>(), overrun);
}

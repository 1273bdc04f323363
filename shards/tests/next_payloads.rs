//! The payloads of the timers that are handed out next.

use corewheel_shard::{Budget, Shard, ShardConfig, Tick, TimerKey, WheelKind};

fn payloads(shard: &Shard<u64>) -> Vec<u64> {
    shard.next_payloads().copied().collect()
}

fn shard_with_due_timers(kind: WheelKind, count: u64) -> (Shard<u64>, Vec<TimerKey>) {
    let config = ShardConfig { wheel: kind, capacity: 1_024, ..ShardConfig::default() };
    let mut shard = Shard::new(config).expect("there is memory");
    let schedule = |payload| shard.schedule(Tick::new(3), payload).expect("there is room");
    let keys = (0..count).map(schedule).collect();
    shard.advance(Tick::new(3), Budget::UNLIMITED);
    (shard, keys)
}

#[test]
fn next_payloads_are_those_that_are_handed_out_next() {
    for kind in [WheelKind::Hierarchical, WheelKind::Hashed] {
        let (mut shard, keys) = shard_with_due_timers(kind, 5);
        assert_eq!(payloads(&shard), [0; 0], "no timer was looked at");
        assert_eq!(shard.pop_expired().map(|expired| expired.payload), Some(0));
        assert_eq!(payloads(&shard), [1, 2, 3, 4]);
        let _payload = shard.cancel(keys[2]);
        let _key = shard.schedule(Tick::new(9), 9).expect("there is room");
        assert_eq!(payloads(&shard), [1, 3, 4]);
        let left: Vec<_> = std::iter::from_fn(|| shard.pop_expired()).collect();
        assert_eq!(left.iter().map(|expired| expired.payload).collect::<Vec<_>>(), [1, 3, 4]);
        assert_eq!(payloads(&shard), [0; 0], "the timer in the slot of another is not due");
    }
}

#[test]
fn next_payloads_of_a_large_tick_are_all_handed_out_in_order() {
    let (mut shard, _keys) = shard_with_due_timers(WheelKind::Hierarchical, 1_000);
    let mut next = Vec::new();
    let mut expected = 0;
    while let Some(expired) = shard.pop_expired() {
        assert_eq!(expired.payload, expected);
        expected += 1;
        if next.is_empty() {
            next = payloads(&shard);
            assert!(next.len() <= 64, "{} payloads at once", next.len());
        } else {
            assert_eq!(next.remove(0), expired.payload);
        }
    }
    assert_eq!((expected, next.len()), (1_000, 0));
}

//! `Shard::pending_in`, with which a caller walks over all timers in slices.

use corewheel_shard::{Shard, ShardConfig, Tick};

#[test]
fn pending_in_names_first_pending_timer_of_slot_range() {
    let mut shard = Shard::new(ShardConfig { capacity: 10, ..ShardConfig::default() }).unwrap();
    assert_eq!(shard.pending_in(0..10), None);
    let keys: Vec<_> = (0..4).map(|n| shard.schedule(Tick::new(n), n).unwrap()).collect();
    let _ = shard.cancel(keys[1]);
    let granted = shard.grant().unwrap();
    assert_eq!(granted.index(), 1);
    assert_eq!(shard.pending_in(0..10), Some(keys[0]));
    assert_eq!(shard.pending_in(1..2), None, "a granted slot holds no timer");
    assert_eq!(shard.pending_in(1..10), Some(keys[2]));
    assert_eq!(shard.pending_in(3..u32::MAX), Some(keys[3]));
    assert_eq!(shard.pending_in(4..u32::MAX), None);
}

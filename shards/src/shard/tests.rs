//! A shard whose slots have few generations.

use super::*;

#[test]
fn key_of_retired_slot_stays_stale() {
    let mut shard = Shard::new(ShardConfig { capacity: 3, ..ShardConfig::default() }).unwrap();
    shard.slab.limit_generations(3);
    let keys = [(); 6].map(|()| {
        let key = shard.schedule(Tick::new(5), ()).unwrap();
        assert!(shard.cancel(key).payload().is_some());
        shard.check_invariants();
        key
    });
    assert_eq!(shard.retired(), 3);
    assert!(shard.schedule(Tick::new(5), ()).is_err());
    for key in keys {
        assert_eq!(shard.cancel(key), CancelOutcome::Stale);
        assert_eq!(shard.reset(key, Tick::new(9)), ResetOutcome::Stale);
    }
}

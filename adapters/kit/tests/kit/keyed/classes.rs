//! Keyed timers that count for the class of the view that made them.

use corewheel::class::TimerClass;
use corewheel::stats::ClassStats;
use corewheel_kit::keyed::KeyedTimers;

use corewheel_test_support::{FAR, Lab, SHARD, builder, check_law, ms};

const LEASE: TimerClass = TimerClass::new("lease");

fn stats(lab: &Lab<()>) -> ClassStats {
    lab.service.stats().shards[usize::from(SHARD.number())].classes[0]
}

#[test]
fn keys_count_for_the_class_of_the_view() {
    let mut lab = Lab::<()>::new(builder(1).capacity(4).class(LEASE));
    let plain = KeyedTimers::<u32, ()>::new(lab.timers(), |_, _| {});
    assert!(plain.insert(0, (), FAR).is_ok());
    let leases = KeyedTimers::<u32, ()>::new(&lab.timers().of_class(LEASE).unwrap(), |_, _| {});
    for key in 1..4 {
        assert!(leases.insert(key, (), ms(u64::from(key))).is_ok());
    }
    assert!(leases.insert(4, (), ms(5)).is_err(), "the shard has no room");
    assert!(leases.insert(3, (), ms(4)).is_ok(), "an insert of a known key is a reset");
    assert!(leases.remove(&1).is_some());
    lab.advance(ms(2));
    let ClassStats { pending, scheduled, fired, cancelled, refused, oldest, .. } = stats(&lab);
    assert_eq!([pending, scheduled, fired, cancelled, refused], [1, 3, 1, 1, 1]);
    assert_eq!(oldest, Some(ms(2)));
    drop(leases);
    lab.settle();
    assert_eq!((stats(&lab).pending, stats(&lab).cancelled), (0, 2));
    check_law(&lab.counts());
}

//! Keyed timers whose shard is shut down, or ends without a shutdown.

use std::cell::RefCell;

use corewheel::{Refused, ShutdownPolicy};
use corewheel_kit::keyed::{Expired, KeyedTimers};

use super::{Scene, keys};
use corewheel_test_support::{FAR, Lab, POLICIES, builder, check_law, ms, shared, unfired};

#[test]
fn shutdown_fires_or_keeps_entries_by_its_policy() {
    for policy in POLICIES {
        let mut lab = Lab::<()>::new(builder(1));
        let (fired, noted) = shared::<RefCell<Vec<_>>>();
        let handler = move |one: Expired<u32, u32>, timers: &KeyedTimers<u32, u32, u32>| {
            let again = timers.insert(one.key, 0, ms(1));
            assert_eq!(again, Err(Refused::Closed((one.key, 0))));
            noted.borrow_mut().push(one.key);
        };
        let timers = KeyedTimers::in_groups(lab.timers(), handler);
        assert_eq!(timers.insert_in(1, 1, 0, FAR), Ok(None));
        assert_eq!(timers.insert_in(1, 2, 0, ms(5)), Ok(None));
        let dropped = KeyedTimers::new(lab.timers(), |_, _| panic!("its timers have ended"));
        (0..4).for_each(|key| assert_eq!(dropped.insert(key, key, ms(5)), Ok(None)));
        drop(dropped);
        let own = lab.timers().clone();
        let report = lab.end(policy);
        check_law(&report.shards[0].counts);
        assert_eq!(report.shards[0].counts.panicked, 0, "{policy:?}");
        let returned = if policy == ShutdownPolicy::Return { 2 } else { 0 };
        assert_eq!(report.returned.len(), returned, "{policy:?}");
        let late = KeyedTimers::<u32, u32>::new(&own, |_, _| {});
        assert_eq!(late.insert(1, 1, ms(1)), Err(Refused::Closed((1, 1))), "{policy:?}");
        if policy == ShutdownPolicy::Fire {
            assert_eq!((fired.take(), timers.len()), (vec![2, 1], 0));
            continue;
        }
        assert_eq!((unfired(&report.shards[0].counts), timers.len()), (2, 2), "{policy:?}");
        assert!(!timers.reset(&1, ms(1)), "{policy:?}: it does not fire any more");
        drop(report);
        let drained = timers.drain();
        assert!(drained.into_iter().map(|one| one.key).eq([2, 1]), "{policy:?}");
    }
}

#[test]
fn death_of_the_shard_keeps_entries_and_refuses_new_ones() {
    let mut scene = Scene::new();
    let _ = scene.put_in(1, "a", 5, 1);
    let _ = scene.put("b", 5, 2);
    drop(scene.lab.shards.remove(0));
    assert!(!scene.timers.reset("a", ms(1)));
    let refused = scene.timers.insert("b".to_owned(), 3, ms(1));
    assert_eq!(refused, Err(Refused::Closed(("b".to_owned(), 3))));
    assert_eq!(keys(&scene.timers.remove_group(&1)), ["a"]);
    assert_eq!(keys(&scene.timers.drain()), ["b"]);
    assert_eq!(scene.fired(), []);
}

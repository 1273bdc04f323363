//! Ids of timers of other shards, and ids whose timers are gone.

use corewheel::{CancelOutcome, ResetOutcome, ShardId};

use corewheel_test_support::{FAR, Lab, OTHER, builder, check_law, look, ms, slot_of};

#[test]
fn id_of_another_shard_is_reported_as_elsewhere_and_its_timer_stays() {
    let mut lab = Lab::<()>::new(builder(2));
    let elsewhere = lab.shards[1].timers().schedule(FAR, ()).unwrap();
    let timers = lab.timers().clone();
    assert_eq!(elsewhere.shard(), OTHER);
    assert!(matches!(timers.cancel(elsewhere), CancelOutcome::Elsewhere(OTHER)));
    assert_eq!(timers.reset(elsewhere, ms(1)), ResetOutcome::Elsewhere(OTHER));
    assert_eq!(timers.reset(elsewhere, timers.now()), ResetOutcome::Elsewhere(OTHER));
    lab.advance(ms(5));
    assert!(lab.fired().is_empty());
    let mut reply = timers.handle().cancel(elsewhere).into_future();
    lab.settle();
    assert!(look(&mut reply).unwrap().unwrap().won(), "a handle reaches the other shard");
}

#[test]
fn id_of_a_reused_slot_is_stale() {
    let mut lab = Lab::<()>::new(builder(1));
    let client = lab.client();
    let timers: Vec<_> = (0..10)
        .map(|_| {
            let timer = lab.timers().schedule(FAR, ()).unwrap();
            assert!(lab.timers().cancel(timer).won());
            timer
        })
        .collect();
    assert!(timers.iter().all(|timer| slot_of(*timer) == slot_of(timers[0])));
    for timer in timers {
        assert!(matches!(lab.timers().cancel(timer), CancelOutcome::Stale));
        let mut reset = client.reset(timer, ms(1)).into_future();
        lab.settle();
        assert_eq!(look(&mut reset), Some(Ok(ResetOutcome::Stale)), "{timer:?}");
    }
    assert!(client.on(ShardId::new(999)).schedule(ms(1), ()).is_err());
    assert!(client.on(ShardId::new(1)).schedule(ms(1), ()).is_err());
    check_law(&lab.counts());
}

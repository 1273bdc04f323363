//! Ids of timers of other shards, and ids whose timers are gone.

use super::*;

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
    let reply = lab.reply(timers.handle().cancel(elsewhere));
    assert!(reply.unwrap().won(), "a handle reaches the other shard");
}

#[test]
fn id_of_a_reused_slot_is_stale() {
    let mut lab = Lab::<()>::new(builder(1));
    let client = lab.client();
    let timers = [(); 10].map(|()| {
        let timer = lab.timers().schedule(FAR, ()).unwrap();
        assert!(lab.timers().cancel(timer).won());
        timer
    });
    assert!(timers.iter().all(|timer| slot_of(*timer) == slot_of(timers[0])));
    for timer in timers {
        assert!(matches!(lab.timers().cancel(timer), CancelOutcome::Stale));
        assert_eq!(lab.reply(client.reset(timer, ms(1))), Ok(ResetOutcome::Stale), "{timer:?}");
    }
    assert!(client.on(ShardId::new(999)).schedule(ms(1), ()).is_err());
    assert!(client.on(ShardId::new(1)).schedule(ms(1), ()).is_err());
}

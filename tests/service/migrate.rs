//! Timers that go to another shard by a cancel and a schedule, as the guide `per_core` shows. In
//! `random_commands`, threads cancel and schedule at random, also where shards are full and where a
//! shutdown comes between.

use super::*;

#[test]
fn timer_put_on_another_shard_fires_there_at_its_deadline() {
    let mut lab = Lab::<u32>::new(builder(2));
    let (timers, client) = (lab.timers().clone(), lab.client());
    let due = timers.now() + ms(10);
    let timer = timers.schedule(due, 7).unwrap();
    lab.advance(ms(4));
    // On the shard's own core the cancel has its outcome at once.
    let outcome = timers.cancel(timer);
    let CancelOutcome::Cancelled { remaining, payload: Payload::Value(7) } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(remaining, ms(6));
    let there = client.on(OTHER).schedule(due, 7).unwrap();
    let old = lab.reply(client.cancel(timer));
    assert!(matches!(old, Ok(CancelOutcome::Stale)), "the old id is stale");
    assert_eq!((there.shard(), lab.counts().pending), (OTHER, 0));
    lab.advance(ms(5));
    assert_eq!(lab.fired(), []);
    lab.advance(ms(1));
    assert_eq!(lab.fired(), [(7, 10)]);
    assert_eq!((lab.counts().fired, lab.counts_of(OTHER).fired), (0, 1));
    assert_eq!(timer.shard(), SHARD);
}

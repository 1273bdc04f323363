//! Refusals: a full shard, calls that a runtime does not support, and a closed loop.

use super::*;

#[test]
fn full_shard_refuses_a_schedule_and_returns_its_payload() {
    for capacity in [1, 2, 4, 40] {
        let mut lab = Lab::new(builder(1).capacity(capacity));
        assert_eq!(lab.counts().granted, 1, "one key is reserved for clients");
        let timers: Vec<_> =
            (0..capacity).map(|n| lab.timers().schedule(FAR, n).unwrap()).collect();
        assert!(matches!(lab.timers().schedule(FAR, 99), Err(Refused::Full(99))));
        assert!(matches!(lab.timers().schedule_fn(FAR, |_| {}), Err(Refused::Full(_))));
        let client = lab.service.handle();
        let there = client.on(SHARD);
        // The client learns that the shard is full only after the shard has seen the lane.
        assert!(matches!(there.schedule(FAR, 99), Err(Refused::Busy(99))));
        lab.settle();
        assert!(matches!(there.schedule_fn(FAR, |_| {}), Err(Refused::Full(_))));
        assert_eq!(block_on(there.sleep(FAR)), Err(RefusedKind::Full));
        let counts = lab.settled();
        assert_eq!((counts.pending, counts.granted), (u64::from(capacity), 0));
        assert_eq!(counts.refused, 5);
        // A slot becomes free and is used again.
        assert!(lab.timers().cancel(timers[0]).won());
        lab.settle();
        client.on(SHARD).schedule(ms(1), 7).unwrap();
        lab.advance(ms(1));
        assert_eq!(lab.fired(), [(7, 1)]);
    }
}

#[test]
fn wait_on_a_shards_own_thread_returns_an_error() {
    for (host, running) in Running::<u8>::each(Host::all(), 1) {
        let (sender, replies) = mpsc::channel();
        let client = running.service.handle();
        let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
        let call = move |timers: &Timers<u8>| {
            sender.send(timers.handle().cancel(timer).wait().map(drop)).unwrap();
        };
        client.on(SHARD).schedule_fn(ms(1), call).unwrap();
        let reply = replies.recv_timeout(PATIENCE).unwrap();
        assert_eq!(reply, Err(ReplyError::OnShard), "{host:?}");
        wait_until("the shard has executed the cancel all the same", || {
            running.counts().cancelled == 1
        });
    }
}

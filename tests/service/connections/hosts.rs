//! Connections on every executor and every kind of thread.

use super::*;

#[test]
fn task_gets_events_on_every_executor() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        let spawned = running.service.spawn_on(SHARD, |timers: Timers<u8>| async move {
            let conn = timers.connection(NONE.read_idle(ms(40)).heartbeat(ms(15))).unwrap();
            let mut beats = 0;
            // A read comes after half the limit, several times.
            for _ in 0..6 {
                timers.sleep(ms(20)).await.unwrap();
                conn.touch_read();
                while let Poll::Ready(event) = poll(&conn) {
                    assert_eq!(event.unwrap().kind, Heartbeat, "it is not idle");
                    beats += 1;
                }
            }
            let touched = timers.now();
            loop {
                let event = conn.next().await.unwrap();
                if event.kind == ReadIdle {
                    assert!(event.first);
                    return (timers.now() - touched, beats);
                }
            }
        });
        let (idle, beats) = block_on(spawned.unwrap()).unwrap();
        assert!(idle >= ms(40) && idle < PATIENCE, "{host:?}: {idle:?}");
        assert!(beats >= 1, "{host:?}");
    }
}

#[test]
fn callback_gets_events_on_every_host() {
    for (host, running) in Running::<u8>::each(Host::all(), 1) {
        let idle_micros = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&idle_micros);
        let begin = move |timers: &Timers<u8>| {
            let conn = timers.connection(NONE.all_idle(ms(20))).unwrap();
            conn.touch();
            // The callback keeps its connection open, and closes it.
            let (touched, timers, kept) = (timers.now(), timers.clone(), conn.clone());
            conn.on_event(move |conn, event| {
                assert_eq!((event.kind, event.first), (AllIdle, true));
                let idle = timers.now() - touched;
                seen.store(idle.as_micros() as u64, Ordering::SeqCst);
                assert!(conn.close() && kept.is_closed());
            });
        };
        running.client().on(SHARD).schedule_fn(Duration::ZERO, begin).unwrap();
        wait_until("a connection is idle", || idle_micros.load(Ordering::SeqCst) > 0);
        assert!(idle_micros.load(Ordering::SeqCst) >= 20_000, "{host:?}: it was early");
        let report = running.end(ShutdownPolicy::Return);
        assert_eq!(report.shards[0].counts.panicked, 0, "{host:?}");
    }
}

#[test]
fn connection_opened_before_the_first_poll_gets_its_event_in_time() {
    for (host, running) in Running::<u8>::each(Host::executors(), 1) {
        // The shard sleeps until it gets a request.
        thread::sleep(ms(20));
        let spawned = running.service.spawn_on(SHARD, |timers: Timers<u8>| {
            let conn = timers.connection(NONE.read_idle(ms(20))).unwrap();
            async move { conn.next().await }
        });
        let event = block_on(spawned.unwrap()).unwrap();
        assert_eq!(event, Some(ConnEvent { kind: ReadIdle, first: true }), "{host:?}");
    }
}

#[test]
fn spawned_future_sees_its_connection_closed_when_its_shard_is_shut_down() {
    for (host, running) in Running::<()>::each(Host::all(), 1) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let spawned = running.service.spawn_on(SHARD, move |timers: Timers<()>| async move {
            let connection = timers.connection(NONE.read_idle(FAR)).unwrap();
            noted.lock().unwrap().push("open");
            let raced = connection.race(pending::<()>()).await;
            assert!(matches!(raced, Raced::Closed) && connection.is_closed());
            assert!(connection.next().await.is_none());
            assert_eq!(connection.deadline(ReadIdle), None);
            noted.lock().unwrap().push("closed");
        });
        let Ok(reply) = spawned else {
            running.end(ShutdownPolicy::Drop);
            continue;
        };
        wait_until("the connection is open", || !seen.lock().unwrap().is_empty());
        running.end(ShutdownPolicy::Return);
        assert_eq!(*seen.lock().unwrap(), ["open", "closed"], "{host:?}");
        assert_eq!(reply.wait(), Ok(()), "{host:?}");
    }
}

//! Futures on a shard: they run, sleep, and end with it.

use std::future::pending;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use corewheel::{ReplyError, ShutdownPolicy};

use crate::bed::{Bed, FAR, look, ms};

pub(crate) fn check(bed: &Bed) {
    sleeps(bed);
    for policy in [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop] {
        pending_at_the_end(bed, policy);
    }
}

fn sleeps(bed: &Bed) {
    let running = bed.start_plain();
    let handle = running.service.handle();
    let all: Vec<_> = (0..50)
        .map(|n| {
            running.spawn(move |timers| async move {
                let mut is_early = false;
                for delay in [n % 7, 3, 0, n % 20] {
                    let due = Instant::now() + ms(delay);
                    timers.sleep(due).await.expect("there is room");
                    is_early |= Instant::now() < due;
                    // The futures of a handle work on the shard's own thread, too.
                    let due = Instant::now() + ms(delay);
                    handle.sleep(due).await.expect("there is room");
                    is_early |= Instant::now() < due;
                }
                let elapsed = timers.timeout(ms(2), pending::<()>()).await.is_err();
                let in_time = timers.timeout(FAR, async { 7 }).await == Ok(7);
                !is_early && elapsed && in_time
            })
        })
        .collect();
    for reply in all {
        let is_right = running.reply(reply, "run a future that sleeps");
        running.must("end no sleep early, and each timeout in time", is_right == Ok(true));
    }
    running.end(ShutdownPolicy::Drop);
}

/// Tells when it is dropped, and on which thread.
struct Noted(mpsc::Sender<thread::ThreadId>);

impl Drop for Noted {
    fn drop(&mut self) {
        let _told = self.0.send(thread::current().id());
    }
}

fn pending_at_the_end(bed: &Bed, policy: ShutdownPolicy) {
    let running = bed.start_plain();
    let (sender, dropped) = mpsc::channel();
    let (begun, begins) = mpsc::channel();
    let mut replies = Vec::new();
    for n in 0..10 {
        let (noted, begun) = (Noted(sender.clone()), begun.clone());
        replies.push(running.spawn(move |timers| async move {
            let _noted = noted;
            let _told = begun.send(thread::current().id());
            if n % 2 == 0 {
                pending::<()>().await;
            }
            timers.sleep(FAR).await.is_ok()
        }));
    }
    let threads: Vec<_> = replies.iter().map(|_| running.next(&begins, "start a future")).collect();
    let _report = running.service.stats();
    let done = running.end(policy);
    assert_eq!(done.shards[0].counts.pending, 0, "{policy:?}: no timer is left");
    for (thread, mut reply) in threads.into_iter().zip(replies) {
        let at = dropped.try_recv().expect("each future that is pending is dropped at the end");
        assert_eq!(at, thread, "{policy:?}: a future is dropped on the thread of its shard");
        let reply = look(&mut reply).expect("the reply of a future that was dropped has come");
        // A future that waits for the shard may see its end, and end itself.
        assert!(matches!(reply, Err(ReplyError::Closed) | Ok(_)), "{policy:?}: {reply:?}");
    }
}

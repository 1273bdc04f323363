//! No timer is early, and what is late by a stall comes in its order.

use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use corewheel::{Fired, ResetOutcome, ShutdownPolicy, Timers};

use crate::bed::{Bed, FAR, SHARD, ms};

/// The delays that are tried, in milliseconds: some fall, so that an alarm is set for less than
/// before, and some are far apart.
const DELAYS: [u64; 16] = [40, 30, 20, 10, 5, 3, 2, 1, 0, 7, 7, 60, 1, 33, 90, 4];

pub(crate) fn check(bed: &Bed) {
    of_other_threads(bed);
    of_the_shards_thread(bed);
    resets(bed);
    after_a_stall(bed);
}

/// What the handler has seen of a value: its deadline by the caller, and the time.
type Seen = (Instant, Instant);

/// Makes handlers that note what they see.
fn noting(sender: mpsc::Sender<Seen>) -> impl Fn() -> Noting + Send + Sync {
    let sender = Mutex::new(sender);
    move || {
        let sender = sender.lock().expect("no code panics with it").clone();
        Box::new(move |fired: Fired<Instant>, _: &Timers<Instant>| {
            let _told = sender.send((fired.payload, Instant::now()));
        })
    }
}

type Noting = Box<dyn FnMut(Fired<Instant>, &Timers<Instant>)>;

fn of_other_threads(bed: &Bed) {
    let (sender, seen) = mpsc::channel();
    let running = bed.start(noting(sender));
    let handle = running.service.handle();
    for round in 0..4 {
        for delay in DELAYS {
            let due = Instant::now() + ms(delay);
            running.must("take a timer", handle.on(SHARD).schedule(due, due).is_ok());
            if round % 2 == 1 {
                // The driver falls asleep in between.
                std::thread::sleep(ms(2));
            }
        }
        for _ in DELAYS {
            let (due, at) = running.next(&seen, "fire a timer that another thread has scheduled");
            running.must("fire no timer early", at >= due);
        }
    }
    running.end(ShutdownPolicy::Drop);
}

fn of_the_shards_thread(bed: &Bed) {
    let (sender, seen) = mpsc::channel();
    let running = bed.start(noting(sender));
    let all = |timers: &Timers<Instant>| {
        for delay in DELAYS {
            let due = Instant::now() + ms(delay);
            timers.schedule(due, due).expect("there is room");
            let scheduled = timers.schedule_fn(due, move |timers: &Timers<Instant>| {
                // Each leaves another behind, from within a turn.
                let due = timers.now() + ms(delay);
                timers.schedule(due, due).expect("there is room");
            });
            assert!(scheduled.is_ok(), "there is room");
        }
    };
    let scheduled = running.service.handle().on(SHARD).schedule_fn(Duration::ZERO, all);
    running.must("take a callback", scheduled.is_ok());
    for _ in 0..2 * DELAYS.len() {
        let (due, at) = running.next(&seen, "fire a timer of its own thread");
        running.must("fire no timer early", at >= due);
    }
    running.end(ShutdownPolicy::Drop);
}

fn resets(bed: &Bed) {
    let (sender, seen) = mpsc::channel();
    let running = bed.start(noting(sender));
    let handle = running.service.handle();
    for (from, to) in [(FAR, ms(5)), (ms(5), ms(30)), (FAR, ms(0)), (ms(20), ms(1))] {
        let due = Instant::now() + to;
        let timer = handle.on(SHARD).schedule(from, due);
        let timer = timer.unwrap_or_else(|_| running.fail("take a timer"));
        let outcome = running.reply(handle.reset(timer, due), "reply to a reset");
        if outcome == Ok(ResetOutcome::Reset) {
            let (due, at) = running.next(&seen, "fire a timer whose deadline was changed");
            running.must("fire no timer early", at >= due);
        } else {
            // It has fired before the reset came.
            running.next(&seen, "fire a timer that could not be reset");
        }
    }
    running.end(ShutdownPolicy::Drop);
}

fn after_a_stall(bed: &Bed) {
    let (sender, seen) = mpsc::channel();
    let running = bed.start(noting(sender));
    let handle = running.service.handle();
    let mut expected = Vec::new();
    running.stall(|| {
        let begun = Instant::now();
        for n in [7, 3, 9, 1, 5, 8, 2, 6, 4, 0_u32] {
            let due = begun + ms(10) * n;
            running.must("take a timer", handle.on(SHARD).schedule(due, due).is_ok());
            expected.push(due);
        }
        begun + ms(150)
    });
    expected.sort_unstable();
    for due in expected {
        let (fired, at) = running.next(&seen, "fire what came due while its thread was stalled");
        running.must("deliver in the order of the deadlines after a stall", fired == due);
        running.must("fire no timer early", at >= due);
    }
    running.end(ShutdownPolicy::Drop);
}

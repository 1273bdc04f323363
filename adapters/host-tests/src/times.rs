//! No timer is early, and each comes.

use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use corewheel::{Fired, ShutdownPolicy, Timers};

use crate::bed::{Bed, ms};

/// The delays that are tried, in milliseconds: some fall, so that an alarm is set for less than
/// before, and some are far apart.
const DELAYS: [u64; 16] = [40, 30, 20, 10, 5, 3, 2, 1, 0, 7, 7, 60, 1, 33, 90, 4];

pub(crate) fn check(bed: &Bed) {
    of_other_threads(bed);
    of_the_shards_thread(bed);
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
    for round in 0..4 {
        for delay in DELAYS {
            let due = Instant::now() + ms(delay);
            running.deliver(due, due);
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
    running.call(Duration::ZERO, all);
    for _ in 0..2 * DELAYS.len() {
        let (due, at) = running.next(&seen, "fire a timer of its own thread");
        running.must("fire no timer early", at >= due);
    }
    running.end(ShutdownPolicy::Drop);
}

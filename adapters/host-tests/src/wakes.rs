//! Other threads wake a shard that sleeps.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use corewheel::{ShutdownPolicy, Timers};

use crate::bed::{Bed, FAR, Running, SHARD, ms, tells};

/// How often a shard that sleeps is woken.
const WAKES: u64 = 300;
/// How many threads wake it at once.
const THREADS: usize = 8;

pub(crate) fn check(bed: &Bed) {
    alone(bed);
    at_once(bed);
}

/// Has a callback run at once, which answers.
fn ask(running: &Running<()>) {
    let (sender, ran) = mpsc::channel();
    running.call(Duration::ZERO, tells(sender));
    running.next(&ran, "wake when another thread sends a timer that is due");
}

fn alone(bed: &Bed) {
    for pending in [None, Some(FAR), Some(ms(50))] {
        let running = bed.start_plain();
        if let Some(delay) = pending {
            // Its alarm is set for later than what comes.
            running.deliver(delay, ());
        }
        for n in 0..WAKES {
            if n % 8 == 0 {
                thread::sleep(ms(1));
            }
            ask(&running);
        }
        running.end(ShutdownPolicy::Drop);
    }
}

fn at_once(bed: &Bed) {
    let running = bed.start_plain();
    let handle = running.service.handle();
    let (sender, ran) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let sender = sender.clone();
            scope.spawn(move || {
                for n in 0..WAKES {
                    let sender = sender.clone();
                    let call = tells(sender);
                    // A lane that is full refuses it for a moment.
                    let mut call = Box::new(call) as Box<dyn FnOnce(&Timers<()>) + Send>;
                    while let Err(refused) = handle.on(SHARD).schedule_fn(ms(n % 3), call) {
                        call = refused.into_value();
                        thread::sleep(ms(1));
                    }
                }
            });
        }
    });
    for _ in 0..THREADS as u64 * WAKES {
        running.next(&ran, "receive what many threads send at once");
    }
    running.end(ShutdownPolicy::Drop);
}

//! A shutdown gives each timer that was accepted one outcome.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use corewheel::{Fired, Refused, ShutdownPolicy, Timers};

use crate::bed::{Bed, FAR, SHARD, ms};

const POLICIES: [ShutdownPolicy; 3] =
    [ShutdownPolicy::Return, ShutdownPolicy::Fire, ShutdownPolicy::Drop];
const TIMERS: u64 = 500;

pub(crate) fn check(bed: &Bed) {
    for policy in POLICIES {
        at_rest(bed, policy);
        while_others_send(bed, policy);
    }
}

fn at_rest(bed: &Bed, policy: ShutdownPolicy) {
    let fired = Arc::<Mutex<Vec<u64>>>::default();
    let noted = Arc::clone(&fired);
    let running = bed.start(move || {
        let noted = Arc::clone(&noted);
        move |fired: Fired<u64>, _: &Timers<u64>| {
            noted.lock().expect("no code panics with it").push(fired.payload);
        }
    });
    let handle = running.service.handle();
    for n in 0..TIMERS {
        let scheduled = handle.on(SHARD).schedule(FAR + ms(n), n);
        running.must("take a timer", scheduled.is_ok());
    }
    let report = running.end(policy);
    let fired = std::mem::take(&mut *fired.lock().expect("no code panics with it"));
    let counts = report.counts;
    let ended = (counts.returned, counts.fired, counts.dropped);
    let (expected, values): (_, Vec<u64>) = match policy {
        ShutdownPolicy::Return => ((TIMERS, 0, 0), Vec::new()),
        ShutdownPolicy::Fire => ((0, TIMERS, 0), (0..TIMERS).collect()),
        ShutdownPolicy::Drop => ((0, 0, TIMERS), Vec::new()),
    };
    assert_eq!(ended, expected, "the timers end as the policy {policy:?} says");
    assert_eq!(fired, values, "the values come in the order of their deadlines: {policy:?}");
    assert_eq!(counts.pending, 0, "{policy:?}: no timer is left");
}

fn while_others_send(bed: &Bed, policy: ShutdownPolicy) {
    let running = bed.start_plain();
    let handle = running.service.handle();
    let (begun, begins) = mpsc::channel();
    let sender = thread::spawn(move || {
        let mut accepted = 0_u64;
        loop {
            match handle.on(SHARD).schedule(FAR, ()) {
                Ok(_) => accepted += 1,
                Err(Refused::Closed(())) => return accepted,
                // For want of room, for a moment or until the end.
                Err(_) => thread::yield_now(),
            }
            if accepted == 100 {
                let _told = begun.send(());
            }
        }
    });
    running.next(&begins, "take timers");
    let counts = running.end(policy).counts;
    let accepted = sender.join().expect("the sender does not panic");
    let ended = counts.returned + counts.fired + counts.dropped + counts.cancelled;
    assert_eq!(ended, accepted, "{policy:?}: each timer that was accepted has one outcome");
    assert_eq!(counts.pending, 0, "{policy:?}: no timer is left");
}

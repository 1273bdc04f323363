//! Timers fire and other tasks run while the shard has always something to do.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use corewheel::part::{Part, PartHandle, Wants};
use corewheel::{ShutdownPolicy, Timers};

use crate::bed::{Bed, FAR, Running, SHARD, ms, tells};

pub(crate) fn check(bed: &Bed) {
    of_requests(bed);
    if bed.has_executor() {
        of_tasks(bed);
        between_turns(bed);
    }
}

/// Runs `work` while other threads send and cancel timers without a pause.
fn flooded(running: &Running<()>, work: impl FnOnce()) {
    let is_over = Arc::new(AtomicBool::new(false));
    let handle = running.service.handle();
    let senders: Vec<_> = (0..2)
        .map(|_| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(timer) = handle.on(SHARD).schedule(FAR, ()) {
                        handle.cancel(timer).detach();
                    }
                    // Each is due at once, so that the shard is woken for it.
                    let _timer = handle.on(SHARD).schedule(Duration::ZERO, ());
                }
            })
        })
        .collect();
    work();
    is_over.store(true, Ordering::Relaxed);
    for sender in senders {
        sender.join().expect("a sender does not panic");
    }
}

fn of_requests(bed: &Bed) {
    let running = bed.start_plain();
    flooded(&running, || {
        let (sender, ran) = mpsc::channel();
        let call = move |timers: &Timers<()>| {
            let sender = sender.clone();
            let call = tells(sender);
            timers.schedule_fn(ms(20), call).expect("there is room");
        };
        let scheduled = retry(|| {
            let call = call.clone();
            running.service.handle().on(SHARD).schedule_fn(ms(1), call).is_ok()
        });
        running.must("take a callback", scheduled);
        running.next(&ran, "fire timers while other threads send without a pause");
        if bed.has_executor() {
            // Its executor runs other tasks, and those are woken by others.
            let other = running.spawn(|timers| async move {
                for _ in 0..20 {
                    timers.sleep(ms(1)).await.expect("there is room");
                }
            });
            running.finish(other, "run tasks while other threads send without a pause");
        }
    });
    running.end(ShutdownPolicy::Drop);
}

/// Tries something that other threads may leave no room for.
fn retry(mut tries: impl FnMut() -> bool) -> bool {
    (0..10_000).any(|_| {
        let is_done = tries();
        if !is_done {
            thread::sleep(ms(1));
        }
        is_done
    })
}

/// Tasks whose results are always ready.
fn of_tasks(bed: &Bed) {
    let running = bed.start_plain();
    let busy = (0..3).map(|_| {
        running.spawn(|timers| async move {
            let is_due = Rc::new(Cell::new(false));
            let due = Rc::clone(&is_due);
            timers.schedule_fn(ms(30), move |_| due.set(true)).expect("there is room");
            while !is_due.get() {
                // What a task does for each packet that it has not waited for.
                timers.consume_budget().await;
                std::hint::spin_loop();
            }
        })
    });
    for busy in busy.collect::<Vec<_>>() {
        running.finish(busy, "fire timers beside tasks that are always ready");
    }
    running.end(ShutdownPolicy::Drop);
}

/// A container that always has something for the next turn, until a future has run.
struct Endless {
    shard: PartHandle,
    is_over: Cell<bool>,
    /// How many turns there were.
    turns: Cell<u32>,
}

impl Endless {
    /// Adds it to a shard, whose turns follow each other at once from now on.
    fn begin(timers: &Timers<()>) -> Rc<Self> {
        let (is_over, turns) = (Cell::new(false), Cell::new(0));
        let endless = timers.add_part(|shard| Self { shard, is_over, turns });
        endless.shard.wake();
        endless
    }
}

impl Part for Endless {
    fn takes_turns(&self) -> bool {
        true
    }

    fn turn_begins(&self, _now: Duration) {
        self.turns.set(self.turns.get() + 1);
    }

    fn wants(&self) -> Wants {
        if self.is_over.get() { Wants::Nothing } else { Wants::NextTurn }
    }
}

/// How often turns are counted that follow each other without another task.
const COUNTS: usize = 31;
/// How many turns may do so. A host that lets other tasks run only when it reads its sockets takes
/// turns for the whole of a tick, which are thousands in a tick of [`LONG_TICK`].
const TURNS_MAX: u32 = 32;
/// A tick in which a thread takes thousands of turns, also where others have its cpu for most of
/// the time.
const LONG_TICK: Duration = ms(100);

/// Turns that follow each other at once let another task run that is always ready, and not only
/// once in a tick, when the sockets are read.
fn between_turns(bed: &Bed) {
    let running = bed.with_tick(LONG_TICK).start_plain();
    let spawned = running.spawn(|timers| async move {
        let endless = Endless::begin(&timers);
        let mut in_a_row = Vec::with_capacity(COUNTS);
        while in_a_row.len() < COUNTS {
            let before = endless.turns.get();
            yield_now().await;
            let turns = endless.turns.get() - before;
            // The executor may poll a task several times before it goes back to the driver.
            in_a_row.extend((turns > 0).then_some(turns));
        }
        endless.is_over.set(true);
        in_a_row.sort_unstable();
        // A thread that loses its cpu may have its runtime be fair to the driver by many turns.
        in_a_row[COUNTS / 2]
    });
    let must = "run other tasks between two turns that follow each other at once";
    let in_a_row = running.reply(spawned, must);
    running.must(must, in_a_row.is_ok_and(|turns| turns <= TURNS_MAX));
    running.end(ShutdownPolicy::Drop);
}

/// Lets other tasks run: ready when it is polled again, which it asks for at once.
async fn yield_now() {
    let mut is_polled = false;
    poll_fn(|cx| {
        if is_polled {
            return Poll::Ready(());
        }
        is_polled = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

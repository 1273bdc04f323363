//! Many tasks that sleep, on one thread of tokio: by the timers of the shard on that thread, which
//! are done in the shard's turn, by a handle, which are done by the clock, and by tokio's own.
//!
//! The figure is the thread's processor time for each sleep, from the first poll to the task's next
//! sleep. Wall-clock time would show only the length of the sleeps.

use std::rc::Rc;
use std::thread;
use std::time::Duration;

use corewheel::{Fired, TimerService, Timers};
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use super::processor_time;
use crate::Payload;
use crate::figure::{Entrant, Figure};

/// A sleep of a few milliseconds in each of many tasks.
pub const SLEEPS: &str = "tasks sleeping on tokio, processor time a sleep";
const SEED: u64 = 0x0C0D_E5EE_D000_000A;

/// How often each of so many tasks sleeps.
fn sleeps_each(tasks: usize) -> usize {
    (2_000_000 / tasks).clamp(4, 20)
}

fn delays(task: usize, tasks: usize) -> impl Iterator<Item = Duration> {
    let mut rng = fastrand::Rng::with_seed(SEED + task as u64);
    (0..sleeps_each(tasks)).map(move |_| Duration::from_micros(rng.u64(1_000..20_000)))
}

/// Runs on a thread of its own, since an attached shard stays on its thread.
fn on_a_thread(run: impl FnOnce() -> f64 + Send) -> f64 {
    thread::scope(|scope| scope.spawn(run).join().expect("it does not panic"))
}

/// By what a task sleeps.
#[derive(Clone, Copy)]
enum By {
    Timers,
    Handle,
}

fn ours(tasks: usize, by: By) -> f64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let service: TimerService<Payload> = TimerService::builder()
        .shards(1)
        .capacity(1 << 21)
        .start_attached_with()
        .expect("it starts");
    let service = Rc::new(service);
    LocalSet::new().block_on(&runtime, async {
        let shard = service.shards().next().expect("it has one");
        let attachment = service.attach(shard).expect("it is free");
        let handler =
            |_: Fired<Payload>, _: &Timers<Payload>| unreachable!("there are sleeps only");
        let timers = attachment.attach_tokio(handler).expect("there is memory");
        let start = processor_time();
        let task = |task| {
            let (timers, handle) = (timers.clone(), timers.handle());
            tokio::task::spawn_local(async move {
                for delay in delays(task, tasks) {
                    match by {
                        By::Timers => timers.sleep(delay).await.expect("there is room"),
                        By::Handle => handle.sleep(delay).await.expect("there is room"),
                    }
                }
            })
        };
        let all: Vec<_> = (0..tasks).map(task).collect();
        for task in all {
            task.await.expect("it does not panic");
        }
        each(tasks, start)
    })
}

fn theirs(tasks: usize) -> f64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        let start = processor_time();
        let task = |task| {
            tokio::task::spawn_local(async move {
                for delay in delays(task, tasks) {
                    tokio::time::sleep(delay).await;
                }
            })
        };
        let all: Vec<_> = (0..tasks).map(task).collect();
        for task in all {
            task.await.expect("it does not panic");
        }
        each(tasks, start)
    })
}

fn each(tasks: usize, start: Duration) -> f64 {
    let spent = processor_time().saturating_sub(start);
    spent.as_nanos() as f64 / (tasks * sleeps_each(tasks)) as f64
}

/// Runs this many tasks, with corewheel's timers or with tokio's.
pub fn sleeps(tasks: usize) -> Vec<Entrant> {
    let figure = |contender| Figure::new(SLEEPS, tasks, contender, "ns");
    vec![
        Entrant::new(figure("corewheel"), move || on_a_thread(|| ours(tasks, By::Timers))),
        Entrant::new(figure("corewheel, by a handle"), move || {
            on_a_thread(|| ours(tasks, By::Handle))
        }),
        Entrant::new(figure("tokio::time::Sleep"), move || on_a_thread(|| theirs(tasks))),
    ]
}

//! Many tasks that sleep, on one thread of tokio: by the timers of the shard on that thread, which
//! are done in the shard's turn, by a handle, which are done by the clock, and by tokio's own.
//!
//! The figure is the thread's processor time for each sleep, from the first poll to the task's next
//! sleep. Wall-clock time would show only the length of the sleeps.

use std::thread;
use std::time::Duration;

use corewheel::{Fired, TimerService, Timers};
use tokio::runtime::Builder;
use tokio::task::{LocalSet, spawn_local};

use super::processor_time;
use crate::Payload;
use crate::report::Entrant;

/// The title of the table.
pub const TABLE: &str = "a task that sleeps on tokio, processor time, ns";
/// A sleep of a few milliseconds in each of many tasks.
pub const ROW: &str = "sleep of 1 to 20 ms";

fn delays(task: usize, each: usize) -> impl Iterator<Item = Duration> {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_000A + task as u64);
    (0..each).map(move |_| Duration::from_micros(rng.u64(1_000..20_000)))
}

/// By what a task sleeps.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Timers,
    Handle,
    Tokio,
}

/// The processor time for each sleep of so many tasks. A thread has one attached shard in its life,
/// so each round has a thread of its own.
fn round(tasks: usize, by: By) -> f64 {
    let each = (2_000_000 / tasks).clamp(4, 20);
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let builder = TimerService::builder().shards(1).capacity(1 << 21);
    let service: TimerService<Payload> = builder.start_attached_with().expect("it starts");
    LocalSet::new().block_on(&runtime, async {
        let timers = (by != By::Tokio).then(|| {
            let shard = service.shards().next().expect("it has one");
            let handler = |_: Fired<Payload>, _: &Timers<Payload>| {};
            let attachment = service.attach(shard).expect("it is free");
            attachment.attach_tokio(handler).expect("there is memory")
        });
        let start = processor_time();
        let task = |task| {
            let timers = timers.clone();
            spawn_local(async move {
                let handle = timers.as_ref().map(Timers::handle);
                for delay in delays(task, each) {
                    let slept = match (&timers, handle) {
                        (Some(timers), _) if by == By::Timers => timers.sleep(delay).await,
                        (_, Some(handle)) => handle.sleep(delay).await,
                        _ => {
                            tokio::time::sleep(delay).await;
                            Ok(())
                        }
                    };
                    slept.expect("there is room");
                }
            })
        };
        let all: Vec<_> = (0..tasks).map(task).collect();
        for task in all {
            task.await.expect("it does not panic");
        }
        let spent = processor_time().saturating_sub(start);
        spent.as_nanos() as f64 / (tasks * each) as f64
    })
}

/// Runs this many tasks, with corewheel's timers or with tokio's.
pub fn sleeps(tasks: usize) -> Vec<Entrant> {
    let entrant = |(contender, by)| {
        Entrant::new(contender, move || {
            thread::spawn(move || round(tasks, by)).join().expect("it does not panic")
        })
    };
    [
        ("corewheel", By::Timers),
        ("corewheel, by a handle", By::Handle),
        ("tokio::time::Sleep", By::Tokio),
    ]
    .map(entrant)
    .into()
}

//! A queue of requests that are retried with a back-off until they succeed or are given up.
//!
//! A task on a shard takes the requests that are due and tries them. A request that fails goes back
//! into the queue with twice the delay; a request that another replica answers is removed by its
//! key. The exit status says whether each request ended as it should.
//!
//! ```text
//! cargo run --example delay_queue
//! ```
//!
//! To try: another `TRIES_MAX`, and which requests are given up then.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::rc::Rc;
use std::time::Duration;

use corewheel::{Fired, RefusedKind, ShutdownPolicy, TimerService, Timers};
use corewheel_glommio::Runtime;
use corewheel_kit::queue::DelayQueue;

const FIRST_DELAY: Duration = Duration::from_millis(10);
const TRIES_MAX: u32 = 5;

/// A request that fails so many times.
#[derive(Clone, Copy)]
struct Request {
    name: &'static str,
    failures: u32,
    tries: u32,
}

fn request(name: &'static str, failures: u32) -> Request {
    Request { name, failures, tries: 0 }
}

/// Tries what is due until the queue is empty. Returns how the requests have ended, in order.
async fn retry(queue: &DelayQueue<Request>) -> Result<Vec<String>, RefusedKind> {
    let mut ended = Vec::new();
    while let Some(expired) = queue.next().await {
        let mut request = expired.value;
        request.tries += 1;
        let Request { name, failures, tries } = request;
        if tries > failures {
            ended.push(format!("{name} is answered by try {tries}"));
        } else if tries == TRIES_MAX {
            ended.push(format!("{name} is given up after {tries} tries"));
        } else {
            let delay = FIRST_DELAY * 2_u32.pow(tries - 1);
            println!("{name} has failed, and is tried again in {delay:?}");
            queue.insert(request, delay)?;
        }
    }
    Ok(ended)
}

async fn run(timers: Timers<()>) -> Result<Vec<String>, RefusedKind> {
    let queue = Rc::new(DelayQueue::new(&timers));
    queue.insert(request("GET /a", 0), Duration::ZERO)?;
    queue.insert(request("GET /b", 2), Duration::ZERO)?;
    queue.insert(request("PUT /c", 9), Duration::ZERO)?;
    // Another replica answers this request long before it is due.
    let slow = queue.insert(request("GET /d", 0), Duration::from_hours(1))?;
    let shared = Rc::clone(&queue);
    timers.schedule_fn(FIRST_DELAY, move |_| {
        if let Some(removed) = shared.remove(slow) {
            println!("{} is answered by another replica", removed.value.name);
        }
    })?;
    retry(&queue).await
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = TimerService::builder()
        .shards(1)
        .runtime(Runtime::GlommioOrTokio)
        .start_with(|_| |_: Fired<()>, _: &Timers<()>| {})?;
    let shard = service.shards().next().ok_or("there is no shard")?;
    let ended = service.spawn_on(shard, run)?.wait()??;
    let report = service.shutdown(ShutdownPolicy::Drop)?;
    let expected = [
        "GET /a is answered by try 1",
        "GET /b is answered by try 3",
        "PUT /c is given up after 5 tries",
    ];
    if ended != expected || report.shards[0].counts.panicked > 0 {
        return Err(format!("the requests ended as {ended:?} instead of {expected:?}").into());
    }
    println!("all of them came to their end");
    Ok(())
}

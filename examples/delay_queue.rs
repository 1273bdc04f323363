//! A queue of requests that are tried again with a back-off until they succeed or have been tried
//! often enough.
//!
//! A task on a shard takes from the queue whatever is due and tries it. A request that fails goes
//! back with twice the delay; one that is answered meanwhile, as by another replica, is removed by
//! its key. The exit status says whether all of them came to the end that they should.
//!
//! ```text
//! cargo run --example delay_queue
//! ```

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use corewheel::{
    DelayQueue, Fired, InsertError, Runtime, ShutdownPolicy, SpawnError, TimerService, Timers,
};

const FIRST_DELAY: Duration = Duration::from_millis(10);
const TRIES_MAX: u32 = 5;

/// What is tried: a request that fails so many times.
#[derive(Clone, Copy, Debug)]
struct Request {
    name: &'static str,
    failures: u32,
    tries: u32,
    /// Not to be tried before this.
    not_before: Instant,
}

/// How the requests came out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    answered: Vec<(&'static str, u32)>,
    given_up: Vec<&'static str>,
    removed: Vec<&'static str>,
}

type Queue = DelayQueue<Request, ()>;

/// Tries what is due until nothing is left to be tried.
async fn retry(queue: &Queue, outcome: &mut Outcome) -> Result<(), Box<dyn Error>> {
    while let Some(expired) = queue.next().await {
        let mut request = expired.into_inner();
        if queue.timers().now() < request.not_before {
            return Err(format!("{} is tried too early", request.name).into());
        }
        request.tries += 1;
        if request.tries > request.failures {
            println!("{} is answered by try {}", request.name, request.tries);
            outcome.answered.push((request.name, request.tries));
        } else if request.tries == TRIES_MAX {
            println!("{} is given up after {TRIES_MAX} tries", request.name);
            outcome.given_up.push(request.name);
        } else {
            let delay = FIRST_DELAY * 2_u32.pow(request.tries - 1);
            println!("{} has failed {} times, again in {delay:?}", request.name, request.tries);
            request.not_before = queue.timers().now() + delay;
            match queue.insert(request, delay) {
                Ok(_) => {}
                // The request comes back, and the server answers that it is too busy.
                Err(InsertError::Full(request)) => outcome.given_up.push(request.name),
                Err(InsertError::Closed(_)) => return Err("the shard is closed".into()),
            }
        }
    }
    Ok(())
}

async fn run(timers: Timers<()>) -> Result<Outcome, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let queue: Queue = DelayQueue::with_capacity(&timers, 64).map_err(|error| text(&error))?;
    let queue = Rc::new(queue);
    let now = timers.now();
    for (name, failures) in [("GET /a", 0), ("GET /b", 2), ("PUT /c", 9)] {
        let request = Request { name, failures, tries: 0, not_before: now };
        queue.insert(request, Duration::ZERO).map_err(|error| text(&error))?;
    }
    // One that waits for long, and is answered otherwise before that.
    let request = Request { name: "GET /d", failures: 0, tries: 0, not_before: now };
    let slow = queue.insert(request, Duration::from_hours(1)).map_err(|error| text(&error))?;
    let shared = Rc::clone(&queue);
    let answer = move |_: &Timers<()>| {
        let removed = shared.remove(slow).map(|expired| expired.value.name);
        println!("{removed:?} is answered by another replica");
    };
    timers.schedule_fn(FIRST_DELAY * 2, answer).map_err(|error| text(&error))?;
    let mut outcome = Outcome::default();
    retry(&queue, &mut outcome).await.map_err(|error| text(&*error))?;
    if queue.deadline(slow).is_none() {
        outcome.removed.push("GET /d");
    }
    Ok(outcome)
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = TimerService::builder()
        .shards(1)
        .runtime(Runtime::Auto)
        .start_with(|_| |_: Fired<()>, _: &Timers<()>| {})?;
    let shard = service.shards().next().ok_or("there is no shard")?;
    let outcome = match service.spawn_on(shard, run) {
        Ok(running) => running.wait()??,
        Err(SpawnError::NoExecutor) => {
            return Err("tasks need glommio or tokio, and neither works here".into());
        }
        Err(error) => return Err(error.into()),
    };
    let report = service.shutdown(ShutdownPolicy::Drop)?;
    let expected = Outcome {
        answered: vec![("GET /a", 1), ("GET /b", 3)],
        given_up: vec!["PUT /c"],
        removed: vec!["GET /d"],
    };
    if outcome != expected || report.shards[0].counts.panicked > 0 {
        return Err(format!("it came to {outcome:?} instead of {expected:?}").into());
    }
    println!("all of them came to their end");
    Ok(())
}

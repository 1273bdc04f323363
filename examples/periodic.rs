//! Work that comes again and again, and work whose result is awaited, on whatever runtime works
//! here.
//!
//! - a heartbeat at a fixed rate, with jitter, so that servers that start together do not beat
//!   together;
//! - a poller that waits between its looks and stops itself when it has found what it looks for;
//! - attempts that wait twice as long each time, by a plan;
//! - a task that runs once, later, and whose result is awaited.
//!
//! It ends by itself, after a good half second, and fails if anything was not as it says.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use corewheel::{
    Client, Jitter, MissedTickBehavior, PeriodicRun, Repeat, ShardId, ShutdownPolicy, StopOutcome,
    TimerService, Timers,
};

type Outcome<V = ()> = Result<V, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(20);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn main() -> Outcome {
    let service = TimerService::builder().shards(1).start()?;
    println!("on {}", service.runtime());
    let shard = service.shards().next().ok_or("there is no shard")?;
    let client = service.client();
    heartbeat(&client, shard)?;
    poller(&client, shard)?;
    backoff(&client, shard)?;
    task(&client, shard)?;
    let counts = service.stats().shards[0].counts;
    let report = service.shutdown(ShutdownPolicy::Return)?;
    check(counts.panicked == 0, "nothing has panicked")?;
    check(report.shards.iter().all(|shard| shard.returned.is_empty()), "nothing is left over")
}

fn check(is_so: bool, what: &str) -> Outcome {
    if is_so { Ok(()) } else { Err(format!("it is not so: {what}").into()) }
}

/// Beats every 20 ms and up to 10 ms later, until it is stopped from here.
fn heartbeat(client: &Client, shard: ShardId) -> Outcome {
    let (period, longest) = (ms(20), ms(10));
    let (sender, beats) = mpsc::channel();
    let seed = u64::from(std::process::id());
    let repeat = Repeat::at_fixed_rate(period)?
        .missed_tick_behavior(MissedTickBehavior::Skip)
        .jitter(Jitter::up_to(longest, seed));
    let beat = move |run: &mut PeriodicRun<'_>| {
        // Nobody listens any more when this is over.
        let _ = sender.send((run.due(), run.now(), run.missed()));
    };
    let heart = client.repeat_on(shard, repeat, beat)?;
    let mut next: Option<Instant> = None;
    for _ in 0..8 {
        let (due, now, missed) = beats.recv_timeout(PATIENCE)?;
        check(now >= due, "a beat is not early")?;
        check(next.is_none_or(|next| due == next), "the grid is kept, whatever the jitter")?;
        next = Some(due + period * (missed as u32 + 1));
    }
    let outcome = heart.stop(client);
    let stopped = Instant::now();
    check(outcome != StopOutcome::AlreadyOver, "it beat until it was stopped")?;
    let last = u64::from(outcome == StopOutcome::LastRun);
    std::thread::sleep(ms(60));
    // There may have been more before the stop.
    let after = beats.try_iter().filter(|(_, now, _)| *now > stopped);
    check(after.count() as u64 <= last, "it does not beat after that")?;
    check(heart.is_over(), "it is over")?;
    println!("heartbeat: 8 beats, then {outcome:?}");
    Ok(())
}

/// Looks every 15 ms, beginning at once, and stops itself at the fifth look.
fn poller(client: &Client, shard: ShardId) -> Outcome {
    let (sender, looks) = mpsc::channel();
    let repeat = Repeat::with_fixed_delay(ms(15))?.first_in(Duration::ZERO);
    let found = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&found);
    let look = move |run: &mut PeriodicRun<'_>| {
        let begun = run.now();
        if count.fetch_add(1, Ordering::Relaxed) == 4 {
            run.stop();
        }
        let _ = sender.send((begun, run.timers().now()));
    };
    let poller = client.repeat_on(shard, repeat, look)?;
    let mut ended: Option<Instant> = None;
    for _ in 0..5 {
        let (begun, end) = looks.recv_timeout(PATIENCE)?;
        let apart = ended.is_none_or(|ended| begun >= ended + ms(15));
        check(apart, "from the end of a look to the next it is 15 ms")?;
        ended = Some(end);
    }
    // It is dropped when it has ended, and with it the sender.
    check(looks.recv_timeout(PATIENCE).is_err(), "there is no sixth look")?;
    check(poller.is_over() && found.load(Ordering::Relaxed) == 5, "it has stopped itself")?;
    println!("poller: found it at the fifth look");
    Ok(())
}

/// Attempts after 10, 30, 70 and 150 ms, of which the last succeeds.
fn backoff(client: &Client, shard: ShardId) -> Outcome {
    let (sender, attempts) = mpsc::channel();
    let start = client.now();
    let mut wait = ms(10);
    let plan = move |before: Instant| {
        wait *= 2;
        (wait <= ms(80)).then(|| before + wait)
    };
    let attempt = move |run: &mut PeriodicRun<'_>| {
        let _ = sender.send((run.due(), run.now() >= run.due(), run.next_due().is_none()));
    };
    let _ = client.repeat_by_plan_on(shard, start + ms(10), plan, attempt)?;
    for after in [10, 30, 70, 150] {
        let (due, in_time, is_last) = attempts.recv_timeout(PATIENCE)?;
        check(due == start + ms(after) && in_time, "an attempt comes when it was planned")?;
        check(is_last == (after == 150), "the plan is over with the last one")?;
    }
    check(attempts.recv_timeout(PATIENCE).is_err(), "there is no fifth attempt")?;
    println!("backoff: four attempts");
    Ok(())
}

/// Computes something on the shard's core in 25 ms.
fn task(client: &Client, shard: ShardId) -> Outcome {
    let start = Instant::now();
    let sum = |_: &Timers| (1..=100).sum::<u32>();
    let answer = client.schedule_task_on(shard, ms(25), sum)?.wait()?;
    check(start.elapsed() >= ms(25), "the result is not early")?;
    check(answer == 5_050, "it is the right one")?;
    println!("task: {answer}");
    Ok(())
}

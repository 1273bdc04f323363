//! Callbacks that run again and again, and a callback whose result is awaited, on the runtime that
//! works on this machine.
//!
//! - a callback that runs once, later, and whose result is awaited;
//! - a heartbeat at a fixed rate, with jitter, so that servers that start together do not beat
//!   together;
//! - a poller with a fixed delay that stops itself when it has found what it looks for;
//! - attempts that wait twice as long each time, by a plan.
//!
//! It ends by itself after about a second, and fails if a run came at a wrong time.
//!
//! ```text
//! cargo run --example periodic
//! ```
//!
//! To try: another `MissedTickBehavior`, and when the runs come then.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corewheel::interval::MissedTickBehavior;
use corewheel::{Handle, ShutdownPolicy, TimerService, Timers};
use corewheel_glommio::Runtime;
use corewheel_kit::herd::Jitter;
use corewheel_kit::repeat::{Periodic, Repeat};

type Outcome<V = ()> = Result<V, Box<dyn Error>>;

const PATIENCE: Duration = Duration::from_secs(20);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn main() -> Outcome {
    let service = TimerService::builder().runtime(Runtime::Auto).shards(1).start()?;
    println!("on {}", service.stats().runtime);
    let shard = service.handle().on(service.shards().next().ok_or("there is no shard")?);
    let sum = task(shard)?;
    heartbeat(shard)?;
    poller(shard)?;
    backoff(shard)?;
    let panicked = service.stats().shards[0].counts.panicked;
    let report = service.shutdown(ShutdownPolicy::Return)?;
    check(panicked == 0, "no callback has panicked")?;
    check(report.returned.is_empty(), "no timer is left")?;
    println!("task: {sum}");
    Ok(())
}

fn check(is_so: bool, what: &str) -> Outcome {
    if is_so { Ok(()) } else { Err(format!("this is not so: {what}").into()) }
}

/// Computes a sum on the shard's core in 25 ms.
fn task(shard: Handle) -> Outcome<u32> {
    let start = Instant::now();
    let (_timer, reply) = shard.schedule_task(ms(25), |_| (1..=100).sum::<u32>())?;
    let sum = reply.wait()?;
    check(start.elapsed() >= ms(25), "the result is not early")?;
    check(sum == 5_050, "the sum is right")?;
    Ok(sum)
}

/// Beats every 20 ms and up to 10 ms later, until this thread stops it.
fn heartbeat(shard: Handle) -> Outcome {
    let (sender, beats) = mpsc::channel();
    let repeat = Repeat::at_fixed_rate(ms(20))?
        .missed_tick_behavior(MissedTickBehavior::Skip)
        .jitter(Jitter::random(ms(10), u64::from(std::process::id())));
    let begin = move |timers: &Timers| {
        let heart = repeat.begin(timers, move |run| {
            // The receiver is gone when this function has returned.
            let _ = sender.send((run.due, run.timers.now(), run.missed));
        });
        heart.expect("there is room")
    };
    // The callback goes on without it; it is what this thread stops the callback by.
    let heart = shard.keep(begin)?.wait()?;
    let mut next: Option<Instant> = None;
    for _ in 0..8 {
        let (due, now, missed) = beats.recv_timeout(PATIENCE)?;
        check(now >= due, "a beat is not early")?;
        check(next.is_none_or(|next| due == next), "the jitter does not move the grid")?;
        next = Some(due + ms(20) * (missed as u32 + 1));
    }
    check(heart.try_run(Periodic::stop)?.wait()?, "it beats until it is stopped")?;
    // Beats may have come meanwhile. The callback is dropped, and its sender with it.
    let ended = loop {
        match beats.recv_timeout(PATIENCE) {
            Ok(_) => {}
            Err(ended) => break ended,
        }
    };
    check(ended == mpsc::RecvTimeoutError::Disconnected, "it does not beat after the stop")?;
    println!("heartbeat: 8 beats, then it is stopped");
    Ok(())
}

/// Looks at once, and then 15 ms after the end of each look. Stops itself at the fifth look.
fn poller(shard: Handle) -> Outcome {
    let (sender, looks) = mpsc::channel();
    let repeat = Repeat::with_fixed_delay(ms(15))?.first(Duration::ZERO);
    let look = move |timers: &Timers| {
        let looking = repeat.begin(timers, move |run| {
            let begun = run.timers.now();
            if run.number == 4 {
                run.stop();
            }
            let _ = sender.send((begun, run.timers.now()));
        });
        looking.expect("there is room")
    };
    let _looking = shard.keep(look)?.wait()?;
    let mut ended: Option<Instant> = None;
    for _ in 0..5 {
        let (begun, end) = looks.recv_timeout(PATIENCE)?;
        let apart = ended.is_none_or(|ended| begun >= ended + ms(15));
        check(apart, "a look begins 15 ms after the end of the look before")?;
        ended = Some(end);
    }
    // The callback is dropped when it has ended, and its sender with it.
    check(looks.recv_timeout(PATIENCE).is_err(), "there is no sixth look")?;
    println!("poller: found at the fifth look");
    Ok(())
}

/// Attempts after 10, 30, 70 and 150 ms.
fn backoff(shard: Handle) -> Outcome {
    let (sender, attempts) = mpsc::channel();
    let start = shard.now();
    let mut wait = ms(10);
    let plan = move |before: Instant| {
        wait *= 2;
        (wait <= ms(80)).then(|| before + wait)
    };
    let first = start + wait;
    let attempt = move |timers: &Timers| {
        let attempts = Repeat::by_plan(timers, first, plan, move |run| {
            let _ = sender.send((run.due, run.timers.now() >= run.due));
        });
        attempts.expect("there is room")
    };
    let _attempts = shard.keep(attempt)?.wait()?;
    for after in [10, 30, 70, 150] {
        let (due, in_time) = attempts.recv_timeout(PATIENCE)?;
        check(due == start + ms(after) && in_time, "an attempt comes when it was planned")?;
    }
    check(attempts.recv_timeout(PATIENCE).is_err(), "there is no fifth attempt")?;
    println!("backoff: four attempts");
    Ok(())
}

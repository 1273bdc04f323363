//! A service with many timers an hour away and nothing else to do: to look at what it does
//! meanwhile, which is nothing.
//!
//! ```text
//! idle_timers glommio 1000000
//! ```
//!
//! It says `ready` when all timers are pending, and ends when its input does.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::io::{Read, stdin};
use std::num::NonZeroU64;
use std::time::Duration;

use corewheel::{Fired, Runtime, ScheduleError, ShardId, ShutdownPolicy, TimerService, Timers};

const HOUR: Duration = Duration::from_hours(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(runtime), Some(count)) = (arguments.next(), arguments.next()) else {
        return Err("the first argument is glommio, tokio or thread, the second a number".into());
    };
    let runtime = match &*runtime {
        "glommio" => Runtime::Glommio,
        "tokio" => Runtime::Tokio,
        "thread" => Runtime::Thread,
        other => return Err(format!("there is no runtime {other}").into()),
    };
    let count: u32 = count.parse()?;
    let service = TimerService::builder()
        .shards(1)
        .capacity(count.saturating_add(1 << 17))
        .lane_capacity(1 << 16)
        .runtime(runtime)
        .start_with(|_| |_: Fired<NonZeroU64>, _: &Timers<NonZeroU64>| {})?;
    let mut client = service.client();
    let mut left = u64::from(count);
    while left > 0 {
        let mut batch = client.batch(ShardId::new(0));
        while let Some(task) = NonZeroU64::new(left) {
            match batch.schedule(HOUR + Duration::from_millis(left % 60_000), task) {
                Ok(_) => left -= 1,
                // The shard has not taken in yet what it was sent.
                Err(ScheduleError::Full(_)) => break,
                Err(ScheduleError::Closed(_)) => return Err("the shard is closed".into()),
            }
        }
        batch.send().map_err(|_| "the shard is closed")?;
        std::thread::sleep(Duration::from_millis(1));
    }
    // The shard sleeps: nothing that it was sent is due before it wakes. One that is due at once
    // makes it take all of them in.
    while client.schedule_on(ShardId::new(0), Duration::ZERO, NonZeroU64::MIN).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    while service.stats().shards[0].counts.fired == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("ready");
    stdin().read_to_end(&mut Vec::new())?;
    let report = service.shutdown(ShutdownPolicy::Drop)?;
    println!("{} were pending", report.shards[0].counts.returned);
    Ok(())
}

//! A service with many timers that are due in an hour: it shows that a shard with nothing due
//! sleeps.
//!
//! ```text
//! idle_timers glommio 1000000
//! ```
//!
//! It prints `ready` when all timers are pending, and ends when its input ends.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::error::Error;
use std::io::{Read, stdin};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use corewheel::host::Engine;
use corewheel::{Fired, Refused, ShardId, ShutdownPolicy, TimerService, Timers};
use corewheel_compio::Compio;
use corewheel_glommio::Runtime;

const HOUR: Duration = Duration::from_hours(1);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(runtime), Some(count)) = (arguments.next(), arguments.next()) else {
        return Err(
            "the first argument is compio, glommio, tokio or thread, the second a number".into()
        );
    };
    let runtime: Arc<dyn Engine> = match &*runtime {
        "compio" => Arc::new(Compio),
        "glommio" => Arc::new(Runtime::Glommio),
        "tokio" => Arc::new(Runtime::Tokio),
        "thread" => Arc::new(Runtime::Thread),
        other => return Err(format!("there is no runtime {other}").into()),
    };
    let count: u32 = count.parse()?;
    let service = TimerService::builder()
        .shards(1)
        .capacity(count.saturating_add(1 << 17))
        .lane_capacity(1 << 16)
        .runtime(runtime)
        .start_with(|_| |_: Fired<NonZeroU64>, _: &Timers<NonZeroU64>| {})?;
    let handle = service.handle();
    let mut left = u64::from(count);
    while left > 0 {
        while let Some(payload) = NonZeroU64::new(left) {
            let delay = HOUR + Duration::from_millis(left % 60_000);
            match handle.on(ShardId::new(0)).schedule(delay, payload) {
                Ok(_) => left -= 1,
                // The shard has not received the earlier timers yet.
                Err(Refused::Full(_) | Refused::Busy(_)) => break,
                Err(refused) => return Err(refused.kind().into()),
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // The shard sleeps, as no timer is due. A timer that is due at once makes it receive all.
    while handle.on(ShardId::new(0)).schedule(Duration::ZERO, NonZeroU64::MIN).is_err() {
        std::thread::sleep(Duration::from_millis(1));
    }
    while service.stats().shards[0].counts.fired == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("ready");
    stdin().read_to_end(&mut Vec::new())?;
    let report = service.shutdown(ShutdownPolicy::Drop)?;
    println!("{} were pending", report.shards[0].counts.dropped);
    Ok(())
}

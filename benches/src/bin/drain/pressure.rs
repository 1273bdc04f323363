//! Connections whose idle times shrink under pressure, while other timers come on their shard.
//!
//! Three windows: without pressure; with pressure that shortens each idle time and ends no
//! connection; and with the greatest pressure, which ends them all.

use std::cell::Cell;
use std::error::Error;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use corewheel::settings::Scale;
use corewheel::{ConnLimits, ConnTimers, RefusedKind, Runtime, TimerService, Timers};

use crate::PATIENCE;
use crate::others::{OTHERS, Others};

/// How long a connection may be idle, without pressure and under the greatest.
const LONGEST: Duration = Duration::from_hours(1);
const LEAST: Duration = Duration::from_secs(1);

fn limits() -> ConnLimits {
    ConnLimits::default().read_idle(LONGEST).read_idle_least(LEAST)
}

fn service(count: u32) -> Result<TimerService, Box<dyn Error>> {
    let builder = TimerService::builder().name("pressure").shards(1).runtime(Runtime::Tokio);
    Ok(builder.capacity(count + 2 * OTHERS).start()?)
}

/// Connections that live on the shard.
pub(crate) fn on_shard(count: u32, window: Duration) -> Result<bool, Box<dyn Error>> {
    let service = service(count)?;
    let shard = service.shard_for(0);
    let seen = service.spawn_on(shard, move |timers: Timers| async move {
        let ended: Rc<Cell<u32>> = Rc::default();
        let open = |_| {
            let (conn, ended) = (timers.connection(limits())?, Rc::clone(&ended));
            conn.on_event(move |conn, _| {
                conn.close();
                ended.set(ended.get() + 1);
            });
            Ok(conn)
        };
        let kept: Result<Vec<ConnTimers>, RefusedKind> = (0..count).map(open).collect();
        let kept = kept?;
        let seen = windows(&timers, count, window, || ended.get()).await;
        drop(kept);
        seen
    })?;
    Ok(report("on the shard", count, &seen.wait()??))
}

/// Connections of tasks on a multi-thread runtime.
pub(crate) fn on_any_thread(count: u32, window: Duration) -> Result<bool, Box<dyn Error>> {
    let service = service(count)?;
    let handle = service.handle();
    let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
    let ended: Arc<AtomicU32> = Arc::default();
    for _ in 0..count {
        let (conn, ended) = (handle.connection(limits()), Arc::clone(&ended));
        runtime.spawn(async move {
            // A connection without a timer does not end, which the count shows.
            if let Ok(Some(_)) = conn.next().await {
                ended.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let shard = service.shard_for(0);
    let seen = service.spawn_on(shard, move |timers: Timers| async move {
        windows(&timers, count, window, || ended.load(Ordering::Relaxed)).await
    })?;
    Ok(report("of tasks on any thread", count, &seen.wait()??))
}

/// What was seen in the three windows.
struct Seen {
    late: [String; 3],
    /// How many connections had ended after the second window, and after the last.
    ended: [u32; 2],
    /// From the greatest pressure to the end of the last connection.
    took: Duration,
}

async fn windows(
    timers: &Timers,
    count: u32,
    window: Duration,
    ended: impl Fn() -> u32,
) -> Result<Seen, RefusedKind> {
    let half = Scale::new(0.5).expect("it is between zero and one");
    let (mut late, mut few, mut took) = (Vec::new(), 0, Duration::ZERO);
    for scale in [None, Some(half), Some(Scale::ZERO)] {
        let others = Others::schedule(timers, window);
        let end = timers.now() + window;
        if let Some(scale) = scale {
            timers.sleep(window / 4).await?;
            few = ended();
            timers.set_scale(scale);
        }
        if scale == Some(Scale::ZERO) {
            let began = timers.now();
            while ended() < count && took < PATIENCE {
                timers.sleep(Duration::from_millis(10)).await?;
                took = timers.now() - began;
            }
        }
        timers.sleep(end + Duration::from_secs(1)).await?;
        late.push(others.lateness());
    }
    let late = late.try_into().expect("there are three windows");
    Ok(Seen { late, ended: [few, ended()], took })
}

fn report(which: &str, count: u32, seen: &Seen) -> bool {
    let Seen { late: [before, shortened, greatest], ended: [few, all], took } = seen;
    println!("{count} idle connections {which}; lateness of {OTHERS} other timers");
    println!("- without pressure: {before}");
    println!("- each idle time is shortened, {few} connections ended: {shortened}");
    println!("- the greatest pressure, {all} connections ended within {took:.2?}: {greatest}");
    *few == 0 && *all == count
}

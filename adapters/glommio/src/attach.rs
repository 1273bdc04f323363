//! Shards in glommio executors that a server has already.

use corewheel::attach::Attachment;
use corewheel::{Fired, StartError, Timers};

use crate::host::{GlommioHost, start};

/// Drives a shard in the glommio executor that this is called in, in a task queue of its own.
///
/// While tasks are ready to run, glommio reads its timers and sockets once in the period of the
/// executor's preempt timer, 100 ms by default. It has no budget that makes a task return whose
/// socket is always ready. [`ConnTimers::race`](corewheel::ConnTimers::race) and
/// [`Timers::timeout`] return after 8 results in a row and wake the driver when its time has
/// come; a future that was started by [`spawn_on`](corewheel::TimerService::spawn_on) wakes it
/// whenever it returns. The driver then has the executor read its sockets as well. A task that
/// uses none of them awaits [`Timers::consume_budget`] for each packet, or delays all timers of
/// the shard by 100 ms and multiples.
///
/// Leave the preempt timer at 100 ms: the shorter it is, the more often glommio goes to
/// sleep with tasks that are ready to run, on a busy machine, until something else happens. The
/// shard wakes it a second later if it has woken the driver or a future of `spawn_on`.
///
/// Call it in the task queue that the connections run in, so that after a stall they read the
/// data in their sockets before the shard delivers their idle events. It takes two descriptors.
///
/// ```
/// use corewheel::{ShutdownPolicy, TimerService};
/// use corewheel_glommio::attach;
/// use glommio::LocalExecutorBuilder;
/// use std::time::Duration;
///
/// # let Ok(executor) = LocalExecutorBuilder::default().make() else { return Ok(()) };
/// let service = TimerService::builder().shards(1).start_attached_with::<&str>()?;
/// let attachment = service.attach(service.shard_for(0))?;
/// executor.run(async move {
///     let timers = attach(attachment, |fired, _| println!("{}", fired.payload))?;
///     timers.schedule(Duration::from_millis(1), "a millisecond later")?;
///     timers.sleep(Duration::from_millis(5)).await?;
///     let report = service.begin_shutdown(ShutdownPolicy::Drop)?.await;
///     assert_eq!(report.shards[0].counts.fired, 2);
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// There is no memory for the shard's timers.
///
/// # Panics
///
/// Outside of a glommio executor.
pub fn attach<T: Send + 'static>(
    attachment: Attachment<T>,
    handler: impl FnMut(Fired<T>, &Timers<T>) + 'static,
) -> Result<Timers<T>, StartError> {
    let (timers, driver) = attachment.attach(GlommioHost::new(), handler)?;
    drop(start(driver));
    Ok(timers)
}

//! Commands onto one shard that are sent together.

use std::fmt;
use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use super::Client;
use crate::class::{ClassId, TimerClass, UnknownClass};
use crate::contain::drop_each;
use crate::error::ScheduleError;
use crate::handle::{ShardId, TimerHandle};
use crate::lane::{Refusal, Request};

/// Requests that a [`Batch`] sends together.
pub(super) const BATCH: usize = 64;

/// A timer of a batch that was not accepted, because the shard was closed meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Refused<T> {
    /// What it was scheduled with.
    pub task: T,
}

/// Commands onto one shard that are sent together, 64 at a time; made by [`Client::batch`].
///
/// What is gathered is sent when there are that many, by [`send`](Self::send), or when the batch is
/// dropped.
///
/// ```
/// use corewheel::{Fired, Runtime, ShardId, ShutdownPolicy, TimerService, Timers};
/// use std::time::Duration;
///
/// let service = TimerService::builder()
///     .shards(1)
///     .runtime(Runtime::Thread)
///     .start_with(|_| |_: Fired<u64>, _: &Timers<u64>| {})?;
/// let mut client = service.client();
/// let mut batch = client.batch(ShardId::new(0));
/// let minute = Duration::from_secs(60);
/// let handles: Vec<_> = (0..100).map(|n| batch.schedule(minute, n)).collect::<Result<_, _>>()?;
/// for handle in &handles[..50] {
///     batch.reset_detached(*handle, 2 * minute);
/// }
/// batch.send().expect("the shard is open");
/// let report = service.shutdown(ShutdownPolicy::Return)?;
/// assert_eq!(report.into_returned().count(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "call `send` to learn whether everything was accepted"]
pub struct Batch<'a, T: Send + 'static> {
    pub(super) client: &'a mut Client<T>,
    pub(super) shard: ShardId,
    pub(super) class: ClassId,
    pub(super) staged: Vec<Request<T>>,
    pub(super) refused: Vec<Refused<T>>,
}

impl<T: Send + 'static> Batch<'_, T> {
    /// The timers that are added from now on are of this class.
    ///
    /// # Errors
    ///
    /// The service has no such class.
    pub fn class(&mut self, class: TimerClass) -> Result<&mut Self, UnknownClass> {
        self.class = self.client.directory.settings.classes.find(class)?;
        Ok(self)
    }

    /// Adds a typed timer, due `delay` from now.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task. What was added before stays.
    #[inline]
    pub fn schedule(&mut self, delay: Duration, task: T) -> Result<TimerHandle, ScheduleError<T>> {
        let now = self.client.clock.nanos();
        self.schedule_tick(self.client.tick_after(now, delay), now, task)
    }

    /// Adds a typed timer, due at a moment.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the task. What was added before stays.
    #[inline]
    pub fn schedule_at(&mut self, at: Instant, task: T) -> Result<TimerHandle, ScheduleError<T>> {
        let now = self.client.clock.nanos();
        self.schedule_tick(self.client.tick_at(at), now, task)
    }

    /// Adds a cancel that asks for no answer. A timer of another shard is cancelled at once
    /// instead.
    #[inline]
    pub fn cancel_detached(&mut self, timer: TimerHandle) {
        self.stage(timer, Request::Cancel { key: timer.key(), answer: None });
    }

    /// Adds a reset to `delay` from now that asks for no answer. A timer of another shard is reset
    /// at once instead.
    #[inline]
    pub fn reset_detached(&mut self, timer: TimerHandle, delay: Duration) {
        let deadline = self.client.tick_after(self.client.clock.nanos(), delay);
        self.stage(timer, Request::Reset { key: timer.key(), deadline, answer: None });
    }

    /// Sends what has been gathered.
    ///
    /// # Errors
    ///
    /// The timers that were not accepted after all, as the shard was closed meanwhile; their
    /// handles name nothing.
    pub fn send(mut self) -> Result<(), Vec<Refused<T>>> {
        self.flush();
        let refused = std::mem::take(&mut self.refused);
        if refused.is_empty() { Ok(()) } else { Err(refused) }
    }

    #[inline]
    fn schedule_tick(
        &mut self,
        deadline: Tick,
        now: u64,
        task: T,
    ) -> Result<TimerHandle, ScheduleError<T>> {
        if self.staged.len() >= BATCH {
            self.flush();
        }
        loop {
            let staged = self.staged.len();
            let mut lanes = self.client.lanes.borrow_mut();
            let Ok((lane, door)) = self.client.lane(&mut lanes, self.shard) else {
                return Err(ScheduleError::Closed(task));
            };
            match lane.take_key(&door.bell, staged) {
                Ok(key) => {
                    let sent_us = (now / 1_000) as u32;
                    let class = self.class;
                    self.staged.push(Request::Schedule { deadline, sent_us, class, task });
                    return Ok(TimerHandle::new(self.shard, key));
                }
                Err(Refusal::Full) => {
                    door.note_refused(self.class);
                    return Err(ScheduleError::Full(task));
                }
                // The lane was closed, perhaps only for being idle; what it has not accepted is
                // sorted out, and another is opened.
                Err(Refusal::Closed) if staged == 0 => lanes[self.shard.index()] = None,
                Err(Refusal::Closed) => {
                    drop(lanes);
                    self.flush();
                }
            }
        }
    }

    #[inline]
    fn stage(&mut self, timer: TimerHandle, request: Request<T>) {
        if timer.shard() != self.shard {
            self.client.send(timer.shard(), request);
            return;
        }
        if self.staged.len() >= BATCH {
            self.flush();
        }
        self.staged.push(request);
    }

    fn flush(&mut self) {
        let mut lanes = self.client.lanes.borrow_mut();
        let Ok((lane, door)) = self.client.lane(&mut lanes, self.shard) else {
            // Only cancels and resets can have been gathered for a shard that is closed.
            drop(lanes);
            return self.client.send_after(self.shard, std::mem::take(&mut self.staged));
        };
        lane.send_all(&mut self.staged, &door.bell);
        if self.staged.is_empty() {
            return;
        }
        let mut commands = Vec::new();
        for request in self.staged.drain(..) {
            match request {
                Request::Schedule { task, .. } => self.refused.push(Refused { task }),
                request => commands.push(request),
            }
        }
        let unsent = self.client.resend(&mut lanes, self.shard, commands);
        drop(lanes);
        self.client.send_after(self.shard, unsent);
    }
}

impl<T: Send + 'static> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        self.flush();
        self.client.room = std::mem::take(&mut self.staged);
        drop_each(std::mem::take(&mut self.refused));
    }
}

impl<T: Send + 'static> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("staged", &self.staged.len()).finish_non_exhaustive()
    }
}

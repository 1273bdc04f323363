//! Commands onto one shard that are sent together.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use corewheel_shard::Tick;

use super::{Client, Request};
use crate::link::lane::Refusal;
use crate::values::class::{ClassId, TimerClass, UnknownClass};
use crate::values::contain::drop_each;
use crate::values::error::{Closed, ScheduleError};
use crate::values::handle::{ShardId, TimerHandle};

/// Requests that a [`Batch`] sends together.
const BATCH: usize = 64;

/// What a batch has gathered and not sent yet.
///
/// It lies in the client and not in the batch: the keys of the timers are taken from the client's
/// lane, and the owner of the lane gives keys to timers in the order in which it granted them. A
/// key that were taken and never used would shift the keys of all later timers of the lane. So what
/// a forgotten batch has gathered is sent before anything else of its client.
pub(super) struct Gathered<T: 'static> {
    /// The shard, where a batch gathers for it, or was forgotten while it did.
    shard: Cell<Option<ShardId>>,
    requests: RefCell<Vec<Request<T>>>,
    /// The lane from which the keys are.
    lane: Cell<u64>,
}

impl<T> Gathered<T> {
    pub(super) fn new() -> Self {
        Self { shard: Cell::new(None), requests: RefCell::default(), lane: Cell::new(0) }
    }
}

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
/// dropped. What a [forgotten](std::mem::forget) batch has gathered is sent before the next command
/// of its client; if there is none, it is dropped with the client.
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
    client: &'a mut Client<T>,
    shard: ShardId,
    class: ClassId,
    refused: Vec<Refused<T>>,
}

impl<'a, T: Send + 'static> Batch<'a, T> {
    pub(super) fn new(client: &'a mut Client<T>, shard: ShardId) -> Self {
        client.send_forgotten();
        client.gathered.requests.get_mut().reserve(BATCH);
        client.gathered.shard.set(Some(shard));
        Self { client, shard, class: ClassId::NONE, refused: Vec::new() }
    }
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
    /// instead; nothing is done about a timer of another service.
    #[inline]
    pub fn cancel_detached(&mut self, timer: TimerHandle) {
        self.stage(timer, Request::Cancel { key: timer.key(), reply: None });
    }

    /// Adds a reset to `delay` from now that asks for no answer. A timer of another shard is reset
    /// at once instead; nothing is done about a timer of another service.
    #[inline]
    pub fn reset_detached(&mut self, timer: TimerHandle, delay: Duration) {
        let deadline = self.client.tick_after(self.client.clock.nanos(), delay);
        self.stage(timer, Request::Reset { key: timer.key(), deadline, reply: None });
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
        if self.gathered().len() >= BATCH {
            self.flush();
        }
        loop {
            let gathered = self.gathered().len();
            let client = &*self.client;
            let taken = client.on_lane(self.shard, |lane, post| {
                match lane.take_key(&post.doorbell, gathered) {
                    Ok(key) => {
                        client.gathered.lane.set(lane.number);
                        ControlFlow::Break(Ok(key))
                    }
                    Err(Refusal::Closed) if gathered == 0 => ControlFlow::Continue(()),
                    Err(refusal) => {
                        if refusal == Refusal::Full {
                            post.note_refused(self.class);
                        }
                        ControlFlow::Break(Err(refusal))
                    }
                }
            });
            match taken {
                Ok(Ok(key)) => {
                    let (sent_us, class) = ((now / 1_000) as u32, self.class);
                    let request = Request::Schedule { deadline, sent_us, class, value: task };
                    self.gathered().push(request);
                    return Ok(self.client.service.home(self.shard).handle(key));
                }
                Ok(Err(Refusal::Full)) => return Err(ScheduleError::Full(task)),
                // What the closed lane has not accepted is sorted out first.
                Ok(Err(Refusal::Closed)) => self.flush(),
                Err(Closed) => return Err(ScheduleError::Closed(task)),
            }
        }
    }

    #[inline]
    fn stage(&mut self, timer: TimerHandle, request: Request<T>) {
        let service = self.client.service;
        if !timer.is_of(service) {
            return;
        }
        if timer.shard() != self.shard {
            return self.client.send_now(timer.shard(), request);
        }
        if self.gathered().len() >= BATCH {
            self.flush();
        }
        self.gathered().push(request);
    }

    #[inline]
    fn gathered(&mut self) -> &mut Vec<Request<T>> {
        self.client.gathered.requests.get_mut()
    }

    fn flush(&mut self) {
        self.client.flush(self.shard, &mut self.refused);
    }
}

impl<T: 'static> Client<T> {
    /// Sends what a forgotten batch has gathered. Nothing may be borrowed.
    #[inline]
    pub(super) fn send_forgotten(&self) {
        if self.gathered.shard.get().is_some() {
            self.send_forgotten_now();
        }
    }

    #[cold]
    fn send_forgotten_now(&self) {
        if let Some(shard) = self.gathered.shard.take() {
            // There is no batch any more to tell what is refused.
            self.flush(shard, &mut Vec::new());
        }
    }

    /// Sends what was gathered for a shard; timers that are not accepted are refused.
    fn flush(&self, shard: ShardId, refused: &mut Vec<Refused<T>>) {
        let mut requests = self.gathered.requests.take();
        {
            let mut lanes = self.lanes.borrow_mut();
            let is_timer = |request: &Request<T>| matches!(request, Request::Schedule { .. });
            // Where the lane was replaced, the keys of the timers are gone with the old one.
            if let Ok((lane, post)) = self.lane(&mut lanes, shard)
                && (lane.number == self.gathered.lane.get() || !requests.iter().any(is_timer))
            {
                lane.send_all(&mut requests, &post.doorbell);
            }
        }
        let mut unsent = Vec::new();
        for request in requests.drain(..) {
            match request {
                Request::Schedule { value, .. } => refused.push(Refused { task: value }),
                request => unsent.push(request),
            }
        }
        self.gathered.requests.replace(requests);
        if !unsent.is_empty() {
            self.send_commands(shard, unsent);
        }
    }
}

impl<T: Send + 'static> Drop for Batch<'_, T> {
    fn drop(&mut self) {
        self.flush();
        self.client.gathered.shard.set(None);
        drop_each(std::mem::take(&mut self.refused));
    }
}

impl<T: Send + 'static> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gathered = self.client.gathered.requests.borrow().len();
        f.debug_struct("Batch").field("gathered", &gathered).finish_non_exhaustive()
    }
}

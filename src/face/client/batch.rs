//! Commands to one shard that are sent together.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::ControlFlow;

use corewheel_shard::{Tick, TimerKey};

use super::{Client, Request};
use crate::clock::when::When;
use crate::link::lane::Refusal;
use crate::values::class::ClassId;
use crate::values::contain::drop_each;
use crate::values::handle::{ShardId, TimerId};
use crate::values::refused::Refused;

/// Requests that a [`Batch`] sends together.
const BATCH: usize = 64;

/// The requests that a batch has gathered and not sent yet.
///
/// They lie in the client and not in the batch: the keys of the timers are taken from the client's
/// lane, and the owner of the lane gives keys to timers in the order in which it granted them. A
/// key that was taken and never used would shift the keys of all later timers of the lane. So the
/// client sends these requests before any other of its own, whether their batch is still open or
/// was forgotten.
pub(super) struct Gathered<T: 'static> {
    /// The number of the batch that has gathered something; 0 if none has.
    batch: Cell<u64>,
    shard: Cell<ShardId>,
    requests: RefCell<Vec<Request<T>>>,
    /// The keys of the gathered timers, with the places of their requests.
    keys: RefCell<Vec<(usize, TimerKey)>>,
    /// The number of the lane from which the keys are; 0 if no timer is gathered.
    lane: Cell<u64>,
    /// How many batches there were.
    batches: Cell<u64>,
    /// Values that a closed shard did not accept, by the numbers of their batches.
    refused: RefCell<Vec<(u64, T)>>,
}

impl<T> Gathered<T> {
    pub(super) fn new() -> Self {
        Self {
            batch: Cell::new(0),
            shard: Cell::new(ShardId::new(0)),
            requests: RefCell::default(),
            keys: RefCell::default(),
            lane: Cell::new(0),
            batches: Cell::new(0),
            refused: RefCell::default(),
        }
    }

    /// The values of a batch that a closed shard did not accept.
    fn take_refused(&self, batch: u64) -> Vec<T> {
        let mut refused = self.refused.borrow_mut();
        refused.extract_if(.., |(number, _)| *number == batch).map(|(_, value)| value).collect()
    }
}

/// Commands to one shard that are sent together, 64 at a time; made by
/// [`RemoteTimers::batch`](crate::RemoteTimers::batch).
///
/// The client sends the gathered requests when there are 64, by [`send`](Self::send), when the
/// batch is dropped, and before any other command of its own. The requests of a
/// [forgotten](std::mem::forget) batch are dropped with the client if no command follows.
///
/// ```
/// use corewheel::{Fired, Runtime, ShardId, ShutdownPolicy, TimerService, Timers};
/// use std::time::Duration;
///
/// let service = TimerService::builder()
///     .shards(1)
///     .runtime(Runtime::Thread)
///     .start_with(|_| |_: Fired<u64>, _: &Timers<u64>| {})?;
/// let client = service.client();
/// let mut batch = client.shard(ShardId::new(0)).batch();
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
    client: &'a Client<T>,
    number: u64,
    shard: ShardId,
    class: ClassId,
}

impl<'a, T: Send + 'static> Batch<'a, T> {
    pub(super) fn new(client: &'a Client<T>, shard: ShardId, class: ClassId) -> Self {
        let gathered = &client.gathered;
        let number = gathered.batches.get() + 1;
        gathered.batches.set(number);
        gathered.requests.borrow_mut().reserve(BATCH);
        Self { client, number, shard, class }
    }
}

impl<T: Send + 'static> Batch<'_, T> {
    /// Adds a timer that carries a value.
    ///
    /// # Errors
    ///
    /// `Full`, `Busy`, `Closed` or `NoSuchShard`, with the value. The requests that were added
    /// before stay.
    #[inline]
    pub fn schedule<W: When>(&mut self, when: W, payload: T) -> Result<TimerId, Refused<T>> {
        let now = self.client.clock.nanos();
        let deadline = self.client.directory.time.tick_of(when, || now);
        self.schedule_tick(deadline, now, payload)
    }

    /// Adds a cancel that asks for no reply. A timer of another shard is cancelled at once
    /// instead; a timer of another service is left as it is.
    #[inline]
    pub fn cancel_detached(&mut self, timer: TimerId) {
        self.stage(timer, Request::Cancel { key: timer.key(), reply: None });
    }

    /// Adds a reset that asks for no reply. A timer of another shard is reset at once instead;
    /// a timer of another service is left as it is.
    #[inline]
    pub fn reset_detached<W: When>(&mut self, timer: TimerId, when: W) {
        let deadline = self.client.tick_of(when);
        self.stage(timer, Request::Reset { key: timer.key(), deadline, reply: None });
    }

    /// Sends the requests that are gathered.
    ///
    /// # Errors
    ///
    /// `Closed`, with the values of the timers that were not accepted after all, as the shard was
    /// closed meanwhile; their handles name nothing. `Busy`, with these values, if the shard is
    /// open and has closed the client's lane, as the client sent nothing for a minute.
    pub fn send(self) -> Result<(), Refused<Vec<T>>> {
        self.flush();
        let refused = self.client.gathered.take_refused(self.number);
        let post = self.client.directory.post(self.shard);
        if refused.is_empty() {
            Ok(())
        } else if post.is_none_or(|post| post.mailbox.is_closed()) {
            Err(self.client.directory.why_closed().of(refused))
        } else {
            Err(Refused::Busy(refused))
        }
    }

    #[inline]
    fn schedule_tick(
        &mut self,
        deadline: Tick,
        now: u64,
        payload: T,
    ) -> Result<TimerId, Refused<T>> {
        let mut gathered = self.gather();
        loop {
            let client = self.client;
            let taken = client.on_lane(self.shard, |lane, post| {
                // The shard may have closed the lane since the client last sent, as it was idle.
                // The first timer finds that out, since a key of a closed lane is of no use.
                let is_first = client.gathered.lane.get() != lane.number;
                if is_first && lane.is_closed() {
                    return match gathered {
                        0 => ControlFlow::Continue(()),
                        _ => ControlFlow::Break(Err(Refusal::Closed)),
                    };
                }
                match lane.take_key(&post.doorbell, gathered) {
                    Ok(key) => {
                        client.gathered.lane.set(lane.number);
                        ControlFlow::Break(Ok(key))
                    }
                    Err(Refusal::Closed) if gathered == 0 => ControlFlow::Continue(()),
                    Err(refusal) => {
                        if refusal != Refusal::Closed {
                            post.note_refused(self.class);
                        }
                        ControlFlow::Break(Err(refusal))
                    }
                }
            });
            match taken {
                Ok(Ok(key)) => {
                    let (sent_us, class) = ((now / 1_000) as u32, self.class);
                    let request = Request::Schedule { deadline, sent_us, class, value: payload };
                    self.client.gathered.keys.borrow_mut().push((gathered, key));
                    self.push(request);
                    return Ok(client.service.home(self.shard).handle(key));
                }
                // The requests that the closed lane has not accepted are sent or refused first.
                Ok(Err(Refusal::Closed)) => {
                    self.flush();
                    gathered = self.gather();
                }
                Ok(Err(refusal)) => {
                    let post = self.client.directory.post(self.shard);
                    let kind = refusal.kind();
                    return Err(post.map_or(kind, |post| post.refusal(kind)).of(payload));
                }
                Err(kind) => return Err(kind.of(payload)),
            }
        }
    }

    #[inline]
    fn stage(&mut self, timer: TimerId, request: Request<T>) {
        let service = self.client.service;
        if !timer.is_of(service) {
            return;
        }
        if timer.shard() != self.shard {
            return self.client.send_now(timer.shard(), request);
        }
        self.gather();
        self.push(request);
    }

    /// Makes sure that the gathered requests are of this batch, and that another fits. Returns how
    /// many are gathered.
    #[inline]
    fn gather(&mut self) -> usize {
        let gathered = &self.client.gathered;
        if gathered.batch.get() != self.number {
            self.client.send_gathered();
            gathered.batch.set(self.number);
            gathered.shard.set(self.shard);
            gathered.lane.set(0);
        }
        let count = gathered.requests.borrow().len();
        if count < BATCH {
            return count;
        }
        self.client.flush();
        0
    }

    #[inline]
    fn push(&mut self, request: Request<T>) {
        self.client.gathered.requests.borrow_mut().push(request);
    }

    /// Sends the requests that this batch has gathered.
    fn flush(&self) {
        if self.client.gathered.batch.get() == self.number {
            self.client.send_gathered();
        }
    }
}

impl<T: 'static> Client<T> {
    /// Sends the requests that a batch has gathered. Nothing may be borrowed.
    #[inline]
    pub(super) fn send_gathered(&self) {
        if self.gathered.batch.get() != 0 {
            self.flush();
            self.gathered.batch.set(0);
        }
    }

    /// Sends the gathered requests; the values of timers that are not accepted are kept as refused.
    #[cold]
    fn flush(&self) {
        let shard = self.gathered.shard.get();
        let mut requests = self.gathered.requests.take();
        {
            let mut lanes = self.lanes.borrow_mut();
            let is_timer = |request: &Request<T>| matches!(request, Request::Schedule { .. });
            // Where the lane was replaced, the keys of the timers are gone with the old one.
            if let Ok((lane, post)) = self.lane(&mut lanes, shard)
                && (lane.number == self.gathered.lane.get() || !requests.iter().any(is_timer))
            {
                lane.send_all(&mut requests, &self.gathered.keys.borrow(), &post.doorbell);
            }
        }
        self.gathered.keys.borrow_mut().clear();
        self.gathered.lane.set(0);
        let batch = self.gathered.batch.get();
        let mut unsent = Vec::new();
        for request in requests.drain(..) {
            match request {
                Request::Schedule { value, .. } => {
                    self.gathered.refused.borrow_mut().push((batch, value));
                }
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
        drop_each(self.client.gathered.take_refused(self.number));
    }
}

impl<T: Send + 'static> fmt::Debug for Batch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gathered = self.client.gathered.requests.borrow().len();
        f.debug_struct("Batch").field("gathered", &gathered).finish_non_exhaustive()
    }
}

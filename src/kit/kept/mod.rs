//! An actor on a shard: a value that stays there, and that any thread reaches by a handle. The
//! value may be `!Send`, as containers are.
//!
//! For multi-thread servers that want a container of a shard. By hand it is a channel of boxed
//! closures into a task on the shard, with a channel for each reply. A command here costs two more
//! boxes and two short locks, and needs no executor on the shard.
//!
//! ```
//! use corewheel::{TimerService, Timers};
//! use corewheel_kit::TimersExt;
//! use std::time::Duration;
//!
//! let service = TimerService::beside_runtime().start()?;
//! // Jobs by their numbers. The closure runs on the shard, and so does the handler of the jobs,
//! // which sends each job that is due to the workers. A job that finds no room is due again.
//! let (sender, mut due) = tokio::sync::mpsc::channel::<&str>(1_000);
//! let jobs = service.handle().on(service.shard_for(0)).keep(move |timers: &Timers| {
//!     timers.keyed::<u64, &str>(move |job, jobs| {
//!         if sender.try_send(job.value).is_err() {
//!             let _again = jobs.insert(job.key, job.value, Duration::from_millis(100));
//!         }
//!     })
//! })?;
//!
//! let runtime = tokio::runtime::Builder::new_multi_thread().build()?;
//! let first = runtime.block_on(async move {
//!     let jobs = jobs.await?;
//!     // Any task on any thread, with a clone of the handle.
//!     for (number, job) in [(7, "send a mail"), (8, "bill a customer")] {
//!         let insert = jobs.run(move |jobs| jobs.insert(number, job, Duration::from_millis(5)));
//!         let inserted = tokio::spawn(insert).await??;
//!         assert!(inserted.is_ok_and(|old| old.is_none()));
//!     }
//!     // The customer has paid, so the job is taken back.
//!     let taken = jobs.run(|jobs| jobs.remove(&8)).await?;
//!     println!("{} was not due", taken.expect("it is not due yet").value);
//!     Ok::<_, Box<dyn std::error::Error>>(due.recv().await)
//! })?;
//! assert_eq!(first, Some("send a mail"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A callback that another thread sends to a shard is `Send`, and a container is not: the callback
//! can neither bring a container along nor find one that is there, and a container that it makes is
//! dropped when it returns. A [`Kept`] names a value that stays. It is `Clone`, `Send` and `Sync`,
//! and sends closures that are lent the value on its shard.
//!
//! Why not a lock around the container: its timers fire on the shard, so each expiry would take the
//! lock, and a task that holds it would delay the timers of the shard.
//!
//! # Life
//!
//! The value lives until the last clone of its handle is dropped and the commands that were sent
//! before have run, or until its shard ends. It is made, used and dropped on the thread of its
//! shard. A shutdown, by whichever policy, first runs the commands that the shard has accepted:
//! containers refuse new values as `Closed` by then, and values can still be removed and drained.
//! After the end every command is refused as `Closed`, with its closure. If the thread of a shard
//! dies, commands that have not run are dropped and their replies are [`ReplyError::Closed`].
//!
//! # Room
//!
//! At most `lane_capacity` commands are on their way to one value. [`Kept::try_run`] and
//! [`Kept::try_poll_fn`] refuse another one as `Busy`; [`Kept::run`] and [`Kept::poll_fn`] wait. A
//! closure that polls takes its room until it is ready. Commands need no slot of the shard, so a
//! container on a shard that is full can still be emptied. The shard runs them in the order in
//! which it receives them, within the budget of its turns and alternating with timers that are due.
//! Commands of one thread keep their order.
//!
//! # Time
//!
//! A delay within a closure counts from the moment at which the closure runs. A caller whose delay
//! counts from now computes the `Instant` and has the closure use that.
//!
//! # Cost
//!
//! Nothing for a service without kept values. A command is a request on the lane of its thread,
//! three boxes, a channel for the reply and two short locks, and wakes the shard if it sleeps. On
//! the shard's own thread it takes no lane.

mod part;
mod room;

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use self::part::{ClosureWaker, Command, KeptPart, PollUntilReady, Run, Sender};
use self::room::{Permit, Room};
use crate::face::handle::Handle;
use crate::face::part::PartSender;
use crate::face::reply::Reply;
use crate::face::timers::Timers;
use crate::shard::request::Control;
use crate::shard::timers::SendCall;
use crate::values::error::{ReplyError, ShardError};
use crate::values::ids::ShardId;
use crate::values::refused::Refused;

/// A handle of a value that is kept on a shard; made by [`Timers::keep`] and [`Handle::keep`]. See
/// the [module](self) for an example and for the life of the value.
///
/// `Send` and `Sync`, whatever the value is, and as cheap to clone as an [`Arc`]. The value is
/// dropped when the last clone is. A handle does not keep the service alive.
pub struct Kept<C: 'static> {
    shared: Arc<Shared>,
    value: PhantomData<fn(&C)>,
}

/// What the handles of a value share.
struct Shared {
    part: PartSender<KeptPart>,
    /// The place of the value on its shard. It is free when this is dropped.
    place: usize,
    room: Arc<Room>,
}

impl<C: 'static> Kept<C> {
    /// The shard that keeps the value.
    pub fn shard_id(&self) -> ShardId {
        self.shared.part.shard_id()
    }

    /// Runs a closure on the shard, which is lent the value; the reply is its result. The closure
    /// runs even if the reply is dropped.
    ///
    /// The closure runs between timers, so it must be short, and must not block. On the shard's own
    /// thread it runs later in this turn or in the next one, never within this call. If it panics,
    /// the reply is [`ReplyError::Panicked`], the shard counts the panic, and the value stays as
    /// the closure has left it.
    ///
    /// # Errors
    ///
    /// `Busy` if too many commands are on their way to the value, or `Closed` if the shard has
    /// ended; both with the closure. If the thread of the shard dies before the closure has run,
    /// the closure is dropped and the reply is [`ReplyError::Closed`].
    pub fn try_run<R, F>(&self, call: F) -> Result<Reply<R>, Refused<F>>
    where
        F: FnOnce(&C) -> R + Send + 'static,
        R: Send + 'static,
    {
        match self.shared.room.enter() {
            Some(permit) => self.send_run(permit, call),
            None => Err(Refused::Busy(call)),
        }
    }

    /// Runs a closure on the shard as [`try_run`](Self::try_run) does, waits while too many
    /// commands are on their way, and returns its result.
    ///
    /// The closure is sent when the future first finds room, at its first poll if there is any. A
    /// future that is dropped before sends nothing; after that the closure runs all the same. The
    /// future is `Send` and `'static`.
    ///
    /// # Errors
    ///
    /// `Closed` if the shard has ended, and `Panicked`. The closure is dropped then.
    pub fn run<R, F>(&self, call: F) -> impl Future<Output = Result<R, ReplyError>> + use<C, R, F>
    where
        F: FnOnce(&C) -> R + Send + 'static,
        R: Send + 'static,
    {
        self.when_free(|kept, permit| kept.send_run(permit, call), None)
    }

    /// Polls a closure on the shard until it is ready; the reply is its result. So a thread waits
    /// for an event of the value, such as the next value of a queue that is due.
    /// [`poll_fn`](Self::poll_fn) waits for room, too.
    ///
    /// ```
    /// use corewheel::{TimerService, Timers};
    /// use corewheel_kit::TimersExt;
    /// use std::time::Duration;
    ///
    /// let service = TimerService::beside_runtime().start()?;
    /// let make = |timers: &Timers| timers.delay_queue::<&str>();
    /// let queue = service.handle().on(service.shard_for(0)).keep(make)?.wait()?;
    /// // A thread of its own takes the values, the oldest first.
    /// let taker = queue.clone();
    /// let due = std::thread::spawn(move || {
    ///     let next = taker.try_poll_fn(|queue, cx| queue.poll_recv(cx));
    ///     next.map_err(|refused| refused.kind().to_string())?.wait().map_err(|e| e.to_string())
    /// });
    /// let insert = queue.try_run(|queue| queue.insert("a mail", Duration::from_millis(2)));
    /// assert!(insert?.wait()?.is_ok());
    /// let due = due.join().expect("the thread has not panicked")?;
    /// assert_eq!(due.map(|due| due.value), Some("a mail"));
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    ///
    /// The closure is given a context whose waker makes the shard poll it again. It takes the room
    /// of a command until it is ready, and is polled no more when the reply is dropped: its room is
    /// free when its waker is woken next. [`poll_fn`](Self::poll_fn) frees it at once. Let a task
    /// of its own wait for the reply: a value that the closure has taken is dropped with a reply
    /// that is dropped while the value is on its way. Of several closures that poll one queue by
    /// `poll_recv`, the queue wakes the last.
    ///
    /// # Errors
    ///
    /// Those of [`try_run`](Self::try_run). The reply is `Closed` if the shard ends or the last
    /// handle of the value is dropped before the closure is ready.
    pub fn try_poll_fn<R, F>(&self, poll: F) -> Result<Reply<R>, Refused<F>>
    where
        F: FnMut(&C, &mut Context<'_>) -> Poll<R> + Send + 'static,
        R: Send + 'static,
    {
        match self.shared.room.enter() {
            Some(permit) => self.send_poll(permit, poll, None),
            None => Err(Refused::Busy(poll)),
        }
    }

    /// Polls a closure on the shard until it is ready as [`try_poll_fn`](Self::try_poll_fn) does,
    /// waits while too many commands are on their way, and returns its result.
    ///
    /// ```
    /// use corewheel::{TimerService, Timers};
    /// use corewheel_kit::TimersExt;
    /// use std::time::Duration;
    ///
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// let service = TimerService::beside_runtime().start()?;
    /// let make = |timers: &Timers| timers.delay_queue::<&str>();
    /// let queue = service.handle().on(service.shard_for(0)).keep(make)?.await?;
    /// let inserted = queue.run(|queue| queue.insert("a mail", Duration::from_millis(2))).await?;
    /// assert!(inserted.is_ok());
    /// let due = queue.poll_fn(|queue, cx| queue.poll_recv(cx)).await?;
    /// assert_eq!(due.map(|due| due.value), Some("a mail"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// The closure is sent when the future first finds room, at its first poll if there is any. A
    /// future that is dropped before sends nothing; when it is dropped after that, the closure is
    /// polled no more. The future is `Send` and `'static`, and keeps the value as a handle does.
    ///
    /// # Errors
    ///
    /// `Closed` if the shard has ended, or ends before the closure is ready, and `Panicked`. The
    /// closure is dropped then.
    pub fn poll_fn<R, F>(
        &self,
        poll: F,
    ) -> impl Future<Output = Result<R, ReplyError>> + use<C, R, F>
    where
        F: FnMut(&C, &mut Context<'_>) -> Poll<R> + Send + 'static,
        R: Send + 'static,
    {
        let caller = Caller::default();
        let waker = Arc::clone(&caller.waker);
        self.when_free(|kept, permit| kept.send_poll(permit, poll, Some(waker)), Some(caller))
    }

    /// Waits for room, sends a command by `send`, and waits for its result. `caller` is dropped
    /// with the future, after the reply.
    fn when_free<R, F, S>(
        &self,
        send: S,
        mut caller: Option<Caller>,
    ) -> impl Future<Output = Result<R, ReplyError>> + use<C, R, F, S>
    where
        S: FnOnce(&Self, Permit) -> Result<Reply<R>, Refused<F>>,
    {
        let kept = self.clone();
        async move {
            let permit = kept.shared.room.enter_when_free().await;
            let reply = send(&kept, permit).map_err(|_| ReplyError::Closed)?;
            let result = reply.await;
            if let Some(caller) = &mut caller {
                caller.has_result = true;
            }
            result
        }
    }

    fn send_poll<R, F>(
        &self,
        permit: Permit,
        poll: F,
        waker: Option<Arc<ClosureWaker>>,
    ) -> Result<Reply<R>, Refused<F>>
    where
        F: FnMut(&C, &mut Context<'_>) -> Poll<R> + Send + 'static,
        R: Send + 'static,
    {
        let (sender, reply) = Self::reply();
        let to = Arc::clone(&self.shared);
        let message = PollUntilReady { to, permit, poll, sender, waker, value: self.value };
        self.send(message, |message| message.poll).map(|()| reply)
    }

    fn send_run<R, F>(&self, permit: Permit, call: F) -> Result<Reply<R>, Refused<F>>
    where
        F: FnOnce(&C) -> R + Send + 'static,
        R: Send + 'static,
    {
        let (sender, reply) = Self::reply();
        let to = Arc::clone(&self.shared);
        let message = Run { to, permit, call, sender, value: self.value };
        self.send(message, |message| message.call).map(|()| reply)
    }

    /// Sends a command. `Closed` with what `take` takes out of it if the shard is closed.
    fn send<M: Command + Send + 'static, F>(
        &self,
        command: M,
        take: impl FnOnce(M) -> F,
    ) -> Result<(), Refused<F>> {
        let sent = self.shared.part.send(command, |part, command| part.accept(command));
        sent.map_err(|refused| refused.map(take))
    }

    fn reply<R>() -> (Sender<R>, Reply<R>) {
        let (sender, reply) = Reply::of_result();
        (Sender::new(sender, || true), reply)
    }
}

/// The caller of a closure that is polled on a shard. When it goes without a result, the shard
/// polls the closure once more, and so drops it and frees its room.
#[derive(Default)]
struct Caller {
    waker: Arc<ClosureWaker>,
    has_result: bool,
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.has_result {
            self.waker.wake();
        }
    }
}

/// Values that are kept.
impl<T: Send + 'static> Timers<T> {
    /// Keeps a value on this shard and returns a handle for any thread. A clone of a container, or
    /// an [`Rc`](std::rc::Rc) of a queue, may be used here as well.
    ///
    /// ```
    /// use corewheel::attach::ShardLoop;
    /// use corewheel::{Fired, TimerService, Timers};
    /// use corewheel_kit::TimersExt;
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start_attached_with::<()>()?;
    /// let attachment = service.attach(service.shard_for(0))?;
    /// let mut shard = attachment.into_loop(|_: Fired<()>, _: &Timers<()>| {})?;
    ///
    /// let sessions = shard.timers().keyed::<u32, &str>(|_expired, _sessions| {});
    /// let handle = shard.timers().keep(sessions.clone())?;
    /// std::thread::scope(|scope| {
    ///     let insert = |sessions: &corewheel_kit::keyed::KeyedTimers<u32, &str>| {
    ///         sessions.insert(7, "red", Duration::from_secs(60)).is_ok()
    ///     };
    ///     scope.spawn(move || drop(handle.try_run(insert)));
    /// });
    /// let _next = shard.turn();
    /// assert_eq!(sessions.with(&7, |session| *session), Some("red"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Closed`, with the value.
    pub fn keep<C: 'static>(&self, value: C) -> Result<Kept<C>, Refused<C>> {
        let core = self.core();
        if core.is_closed() {
            return Err(Refused::Closed(value));
        }
        let part = KeptPart::of(self);
        let shared = Shared {
            part: part.sender(),
            place: part.keep(Box::new(value)),
            room: Room::new(core.directory().settings.lane_capacity),
        };
        Ok(Kept { shared: Arc::new(shared), value: PhantomData })
    }
}

/// Values that are kept.
impl<T: Send + 'static> Handle<T> {
    /// Makes a value on the shard of this handle, or of this thread, and keeps it there, such as a
    /// container: `make` is called on the shard's thread with the shard's timers. The reply is a
    /// [`Kept`], by which any thread runs closures on the value. See [`kept`](crate::kept) for an
    /// example.
    ///
    /// Each runtime takes it. A shard that is not attached yet calls `make` when it is. The reply
    /// is [`ReplyError::Panicked`] if `make` panics, and [`ReplyError::Closed`] if the shard ends
    /// before. A value whose reply is dropped unread is dropped on its shard.
    ///
    /// Cost: a box, a channel and a lock of the shard's mailbox.
    ///
    /// # Errors
    ///
    /// `NoSuchShard`; `Closed` after the end.
    pub fn keep<C: 'static>(
        &self,
        make: impl FnOnce(&Timers<T>) -> C + Send + 'static,
    ) -> Result<Reply<Kept<C>>, ShardError> {
        let (lanes, shard) = self.shard_lanes().map_err(|_| ShardError::Closed)?;
        let post = lanes.directory().post(shard).ok_or(ShardError::NoSuchShard(shard))?;
        let (sender, reply) = Kept::<C>::reply();
        let call: SendCall<T> = Box::new(move |timers| {
            let keep = || timers.keep(make(timers)).map_err(|_| ReplyError::Closed);
            sender.run(|run| timers.core().contain(run), keep);
        });
        let sent = post.mailbox.send(Control::Call(call), &post.doorbell);
        sent.map_or(Err(ShardError::Closed), |()| Ok(reply))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A shard that is closed has dropped the value.
        let _ = self.part.send(self.place, |part, place| part.release(place));
    }
}

impl<C: 'static> Clone for Kept<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), value: PhantomData }
    }
}

debug_fields!([C: 'static] Kept<C>, |it| shard: it.shared.part.shard_id());

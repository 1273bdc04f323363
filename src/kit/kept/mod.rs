//! An actor on a shard: a value that stays there, and that any thread reaches by a handle. The
//! value may be `!Send`, as containers are.
//!
//! For multi-thread servers that want a container of a shard. By hand it is a channel of boxed
//! closures into a task on the shard, with a channel for each reply. A command here costs two more
//! boxes, and needs no executor on the shard.
//!
//! ```
//! use corewheel::{TimerService, Timers};
//! use corewheel_kit::keyed::KeyedTimers;
//! use std::time::Duration;
//!
//! let service = TimerService::beside_runtime().start()?;
//! // Jobs by their numbers. The closure runs on the shard, and so does the handler of the jobs,
//! // which sends each job that is due to the workers. A job that finds no room is due again.
//! let (sender, mut due) = tokio::sync::mpsc::channel::<&str>(1_000);
//! let jobs = service.handle().on(service.shard_for(0)).keep(move |timers: &Timers| {
//!     KeyedTimers::<u64, &str>::new(timers, move |job, jobs| {
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
//!     for (number, job, ms) in [(7, "send a mail", 5), (8, "bill a customer", 60_000)] {
//!         let insert = jobs.run(move |jobs| jobs.insert(number, job, Duration::from_millis(ms)));
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
//! At most `lane_capacity` commands are on their way to one value. [`Kept::try_run`]
//! refuses another one as `Busy`; [`Kept::run`] tries again in each tick.
//! Commands need no slot of the shard, so a
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
//! three boxes and a channel for the reply, and wakes the shard if it sleeps. On
//! the shard's own thread it takes no lane.

mod part;
mod room;

use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use self::part::{KeptPart, Run, Sender};
use self::room::Room;
use crate::face::handle::Handle;
use crate::face::part::PartSender;
use crate::face::reply::Reply;
use crate::face::timers::Timers;
use crate::shard::request::Control;
use crate::shard::timers::SendCall;
use crate::values::error::{ReplyError, ShardError};
use crate::values::ids::ShardId;
use crate::values::refused::{Refused, RefusedKind};

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
        let Some(permit) = self.shared.room.enter() else { return Err(Refused::Busy(call)) };
        let (sender, reply) = Self::reply();
        let to = Arc::clone(&self.shared);
        let command = Run { to, permit, call, sender, value: self.value };
        let sent =
            self.shared.part.send(command, |part, command| part.accept(|part| command.run(part)));
        sent.map_err(|refused| refused.map(|command| command.call)).map(|()| reply)
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
        let (kept, mut call) = (self.clone(), call);
        async move {
            loop {
                match kept.try_run(call) {
                    Ok(reply) => return reply.await,
                    Err(Refused::Busy(back)) => call = back,
                    Err(_) => return Err(ReplyError::Closed),
                }
                match kept.shared.part.handle().sleep(Duration::from_nanos(1)).await {
                    Err(RefusedKind::Closed) => return Err(ReplyError::Closed),
                    Err(_full) => yield_once().await,
                    Ok(()) => {}
                }
            }
        }
    }

    fn reply<R>() -> (Sender<R>, Reply<R>) {
        let (sender, reply) = Reply::of_result();
        (Sender::new(sender, || true), reply)
    }
}

/// Lets the other tasks run.
async fn yield_once() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Values that are kept.
impl<T: Send + 'static> Timers<T> {
    /// Keeps a value on this shard and returns a handle for any thread. A clone of a container, or
    /// an [`Rc`](std::rc::Rc) of a queue, may be used here as well.
    ///
    /// ```
    /// use corewheel::attach::ShardLoop;
    /// use corewheel::{Fired, TimerService, Timers};
    /// use corewheel_kit::keyed::KeyedTimers;
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start_attached_with::<()>()?;
    /// let attachment = service.attach(service.shard_for(0))?;
    /// let mut shard = attachment.into_loop(|_: Fired<()>, _: &Timers<()>| {})?;
    ///
    /// let sessions = KeyedTimers::<u32, &str>::new(shard.timers(), |_expired, _sessions| {});
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
            place: part.keep(Rc::new(value)),
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
        let _ = self.part.send(self.place, |part, place| {
            part.accept(move |part| part.release(place));
        });
    }
}

impl<C: 'static> Clone for Kept<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), value: PhantomData }
    }
}

debug_fields!([C: 'static] Kept<C>, |it| shard: it.shared.part.shard_id());

//! A callback that runs once, later, and whose result is awaited.
//!
//! For work with a result on a shard without an executor. By hand it is a callback that sends its
//! result into a channel, at the same cost; a channel that is dropped does not say why.
//!
//! Why not a future that sleeps first: it needs an executor on the shard. This runs on a plain
//! thread and in the user's own loop as well.
//!
//! Invariants: a caller that waits gets one reply, whatever becomes of the callback: its result, or
//! that it was cancelled, that it panicked, that its shard has ended.
//!
//! Cost: a timer with a boxed callback, and a channel for the result.

use std::sync::Arc;

use super::handle::Handle;
use super::reply::Reply;
use super::timers::Timers;
use crate::clock::when::When;
use crate::shard::timers::{LocalCall, SendCall};
use crate::values::contain::each;
use crate::values::error::ReplyError;
use crate::values::ids::TimerId;
use crate::values::refused::Refused;

/// Sends the result of a callback, or says why there is none when it is dropped before it has run.
pub(crate) struct ResultSender<R, S: Fn() -> bool> {
    sender: Option<oneshot::Sender<Result<R, ReplyError>>>,
    /// Whether the shard has ended. It is called when the callback is dropped, and not when the
    /// caller takes the reply: by then the shard may have ended since.
    is_closed: S,
}

impl<R, S: Fn() -> bool> ResultSender<R, S> {
    pub(crate) fn new(sender: oneshot::Sender<Result<R, ReplyError>>, is_closed: S) -> Self {
        Self { sender: Some(sender), is_closed }
    }

    /// Calls `call` and sends its result. `contain` runs code of the user on the shard.
    pub(crate) fn run(
        mut self,
        contain: impl Fn(&mut dyn FnMut()) -> bool,
        call: impl FnOnce() -> Result<R, ReplyError>,
    ) {
        let (mut result, mut call) = (Err(ReplyError::Panicked), Some(call));
        // A panic is caught here and not in the turn, so that the caller that waits is woken when
        // no panic unwinds the stack.
        contain(&mut || {
            if let Some(call) = call.take() {
                result = call();
            }
        });
        let mut sent = self.sender.take().map(|sender| (sender, result));
        // Runs the waker of the caller that waits, or drops the result if no caller waits.
        contain(&mut || drop(sent.take().map(|(sender, result)| sender.send(result))));
    }
}

impl<R, S: Fn() -> bool> Drop for ResultSender<R, S> {
    fn drop(&mut self) {
        if let Some(sender) = self.sender.take() {
            let is_closed = (self.is_closed)();
            let error = if is_closed { ReplyError::Closed } else { ReplyError::Cancelled };
            // Runs a waker, perhaps while another panic unwinds the stack.
            each([sender], |sender| drop(sender.send(Err(error))));
        }
    }
}

/// Callbacks with a result.
impl<T: Send + 'static> Timers<T> {
    /// Schedules a callback whose result is awaited: as [`schedule_fn`](Self::schedule_fn), with a
    /// reply that has the value that the callback returns.
    ///
    /// Dropping the reply does not cancel the callback; [`cancel`](Self::cancel) does, and the
    /// reply is [`Cancelled`](ReplyError::Cancelled) then.
    ///
    /// ```
    /// use corewheel::clock::ManualClock;
    /// use corewheel::{Fired, TimerService, Timers};
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll, Waker};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let builder = TimerService::builder().shards(1).clock(&clock);
    /// let service = builder.start_attached_with::<()>()?;
    /// let shard = service.attach(service.shards().next().unwrap())?;
    /// let mut shard = shard.into_loop(|_: Fired<()>, _: &_| {})?;
    ///
    /// let count = |timers: &Timers<()>| timers.len();
    /// let (_timer, mut count) = shard.timers().schedule_task(Duration::from_secs(2), count)?;
    /// let _ = shard.turn();
    /// // On an executor this would be `count.await`.
    /// let mut look = || Pin::new(&mut count).poll(&mut Context::from_waker(Waker::noop()));
    /// assert!(look().is_pending());
    /// clock.advance(Duration::from_secs(2));
    /// let _ = shard.turn();
    /// assert_eq!(look(), Poll::Ready(Ok(0)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with a callback that runs `task` and drops its result.
    pub fn schedule_task<W: When, R: 'static>(
        &self,
        when: W,
        task: impl FnOnce(&Self) -> R + 'static,
    ) -> Result<(TimerId, Reply<R>), Refused<LocalCall<T>>> {
        let (sender, reply) = Reply::of_result();
        // Weakly: the shard holds the callback.
        let core = self.downgrade();
        let is_closed = move || core.upgrade().is_none_or(|core| core.is_closed());
        let sender = ResultSender::new(sender, is_closed);
        let call = move |timers: &Self| {
            sender.run(|run| timers.core().contain(run), || Ok(task(timers)));
        };
        Ok((self.schedule_fn(when, call)?, reply))
    }
}

/// Callbacks with a result.
impl<T: Send + 'static> Handle<T> {
    /// Schedules a callback whose result is awaited here, as
    /// [`Timers::schedule_task`] does there.
    ///
    /// ```
    /// use corewheel::{ReplyError, TimerService, Timers};
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).start()?;
    /// let handle = service.handle();
    /// let shard = handle.on(service.shards().next().unwrap());
    ///
    /// let soon = Duration::from_millis(2);
    /// let (_timer, pending) = shard.schedule_task(soon, |timers: &Timers| timers.len())?;
    /// // In a future this would be `pending.await`.
    /// assert_eq!(pending.wait(), Ok(0));
    ///
    /// let (timer, never) = shard.schedule_task(Duration::MAX, |_| ())?;
    /// handle.cancel(timer).wait()?;
    /// assert_eq!(never.wait(), Err(ReplyError::Cancelled));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `Full`, `Busy`, `Closed` or `NoSuchShard`, with a callback that runs `task` and drops its
    /// result.
    pub fn schedule_task<W: When, R: Send + 'static>(
        &self,
        when: W,
        task: impl FnOnce(&Timers<T>) -> R + Send + 'static,
    ) -> Result<(TimerId, Reply<R>), Refused<SendCall<T>>> {
        let (sender, reply) = Reply::of_result();
        let known = self.shard_lanes().map(|(lanes, shard)| (Arc::clone(lanes.directory()), shard));
        let is_closed = move || {
            let post = known.as_ref().ok().and_then(|(directory, shard)| directory.post(*shard));
            post.is_none_or(|post| post.mailbox.is_closed())
        };
        let sender = ResultSender::new(sender, is_closed);
        let call = move |timers: &Timers<T>| {
            sender.run(|run| timers.core().contain(run), || Ok(task(timers)));
        };
        Ok((self.schedule_fn(when, call)?, reply))
    }
}

//! What comes back from another thread: the outcome of a command, the output of a future that was
//! spawned on a shard, the result of a callback.
//!
//! Why not the channel itself: a shard's own thread must not block for a reply, since it would wait
//! for itself or for a shard that waits for it. A reply to many commands is put together from the
//! replies of several shards.
//!
//! Cost: one allocation for the reply of one command, made when the command is sent, and one to
//! block for it. The reply of many commands has a box, too.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use crate::directory::here::is_shard_thread;
use crate::values::error::ReplyError;

/// A value that another thread will send: the outcome of [`Handle::cancel`](crate::Handle::cancel),
/// the output of a future of [`spawn_on`](crate::TimerService::spawn_on), the result of a callback
/// of [`schedule_task`](crate::Timers::schedule_task).
///
/// A reply is a future: await it, block the thread for it with [`wait`](Self::wait), or look with
/// [`try_take`](Self::try_take) whether the value is there. The command is carried out either way:
/// a reply that is dropped cancels nothing.
///
/// # Panics
///
/// If it is polled again after it has returned its value.
#[must_use = "its command is carried out either way, but the outcome is lost"]
pub struct Reply<O>(State<O>);

enum State<O> {
    Ready(Result<O, ReplyError>),
    Outcome(oneshot::AsyncReceiver<O>),
    Result(oneshot::AsyncReceiver<Result<O, ReplyError>>),
    Gathered(Gathered<O>),
    Taken,
}

/// A reply that is put together from several.
struct Gathered<O> {
    replies: Pin<Box<dyn Future<Output = O> + Send>>,
    /// The waker of the last poll that was pending, if there was one.
    waker: Option<Waker>,
}

impl<O> Reply<O> {
    /// A reply that is there already, for a method of your own that sends a command only where it
    /// must.
    pub fn ready(outcome: O) -> Self {
        Self(State::Ready(Ok(outcome)))
    }

    /// A reply that the owner of the sender sends; `Closed` if the sender is dropped.
    pub(crate) fn of_outcome() -> (oneshot::Sender<O>, Self) {
        let (sender, receiver) = oneshot::async_channel();
        (sender, Self(State::Outcome(receiver)))
    }

    /// A reply whose sender may also send the reason why there is no value.
    pub(crate) fn of_result() -> (oneshot::Sender<Result<O, ReplyError>>, Self) {
        let (sender, receiver) = oneshot::async_channel();
        (sender, Self(State::Result(receiver)))
    }

    pub(crate) fn gathered(replies: impl Future<Output = O> + Send + 'static) -> Self {
        Self(State::Gathered(Gathered { replies: Box::pin(replies), waker: None }))
    }

    /// Blocks this thread until the value is there.
    ///
    /// A task awaits the reply instead: a thread of its runtime that blocks here runs no other task
    /// meanwhile. The shard runs on another thread and needs nothing of that runtime, so the wait
    /// ends, unless a handler or callback on the shard waits for a task of the blocked thread.
    ///
    /// # Errors
    ///
    /// `OnShard` on a thread that drives a shard of any service, where the wait could last for
    /// ever; else why there is no value.
    pub fn wait(self) -> Result<O, ReplyError> {
        if is_shard_thread() {
            return Err(ReplyError::OnShard);
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut cx = Context::from_waker(&waker);
        let mut reply = pin!(self);
        loop {
            match reply.as_mut().poll(&mut cx) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    /// Drops the reply. The command is carried out, and a future or a callback goes on; only the
    /// value is lost. It says in code what a drop does.
    ///
    /// ```
    /// use corewheel::{Runtime, ShutdownPolicy, TimerService};
    /// use std::time::Duration;
    ///
    /// let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start()?;
    /// let handle = service.handle();
    /// let far = Duration::from_secs(60);
    /// let timer = handle.on(service.shard_for(0)).schedule_fn(far, |_| {})?;
    /// handle.cancel(timer).detach();
    /// let report = service.shutdown(ShutdownPolicy::Return)?;
    /// assert_eq!(report.shards[0].counts.cancelled, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn detach(self) {}

    /// The value, or why there is none, if that is known already; `None` also after it was taken.
    /// Does not wait, on any thread, and does not disturb a task that has polled the reply before.
    pub fn try_take(&mut self) -> Option<Result<O, ReplyError>> {
        // A task that has polled the reply before is still woken by it, so its waker stays.
        let waker = match &self.0 {
            State::Taken => return None,
            State::Outcome(sent) if !sent.has_message() && !sent.is_closed() => return None,
            State::Result(sent) if !sent.has_message() && !sent.is_closed() => return None,
            State::Gathered(Gathered { waker: Some(waker), .. }) => waker.clone(),
            _ => Waker::noop().clone(),
        };
        match Pin::new(self).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }
}

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

// Nothing in it is pinned, but what is boxed.
impl<O> Unpin for Reply<O> {}

impl<O> Future for Reply<O> {
    type Output = Result<O, ReplyError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polled = match &mut self.0 {
            State::Ready(_) => Poll::Ready(None),
            State::Outcome(receiver) => {
                let output = Pin::new(receiver).poll(cx);
                output.map(|value| Some(value.map_err(|_| ReplyError::Closed)))
            }
            State::Result(receiver) => {
                let output = Pin::new(receiver).poll(cx);
                output.map(|value| Some(value.unwrap_or(Err(ReplyError::Closed))))
            }
            State::Gathered(Gathered { replies, waker }) => {
                let gathered = replies.as_mut().poll(cx);
                if gathered.is_pending() {
                    waker.get_or_insert_with(|| cx.waker().clone()).clone_from(cx.waker());
                }
                gathered.map(|value| Some(Ok(value)))
            }
            State::Taken => panic!("a reply is polled after it has returned its value"),
        };
        let value = match polled {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(value) => value,
        };
        match (std::mem::replace(&mut self.0, State::Taken), value) {
            (State::Ready(value), _) | (_, Some(value)) => Poll::Ready(value),
            (_, None) => unreachable!("a value that was not there already was received"),
        }
    }
}

debug_fields!([O] Reply<O>, |_it|);

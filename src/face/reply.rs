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
use std::task::{Context, Poll, Wake, Waker, ready};
use std::thread::Thread;

use crate::directory::here::is_shard_thread;
use crate::values::error::ReplyError;

/// A value that another thread will send: the outcome of [`Handle::cancel`](crate::Handle::cancel),
/// the output of a future of [`spawn_on`](crate::TimerService::spawn_on), the result of a callback
/// of [`schedule_task`](crate::Timers::schedule_task).
///
/// A reply is a future: await it, or block the thread for it with [`wait`](Self::wait). The command
/// is carried out either way: a reply that is dropped cancels nothing.
///
/// # Panics
///
/// If it is polled again after it has returned its value.
#[must_use = "its command is carried out either way, but the outcome is lost"]
pub struct Reply<O>(State<O>);

enum State<O> {
    /// `None` after the value was taken.
    Ready(Option<Result<O, ReplyError>>),
    /// A sender that is dropped says nothing: the shard has ended.
    Sent(oneshot::AsyncReceiver<Result<O, ReplyError>>),
    Gathered(Pin<Box<dyn Future<Output = O> + Send>>),
}

impl<O> Reply<O> {
    /// A reply that is there already, for a method of your own that sends a command only where it
    /// must.
    pub fn ready(outcome: O) -> Self {
        Self(State::Ready(Some(Ok(outcome))))
    }

    /// A reply that the owner of the sender sends, or the reason why there is none; `Closed` if the
    /// sender is dropped.
    pub(crate) fn of_result() -> (oneshot::Sender<Result<O, ReplyError>>, Self) {
        let (sender, receiver) = oneshot::async_channel();
        (sender, Self(State::Sent(receiver)))
    }

    pub(crate) fn gathered(replies: impl Future<Output = O> + Send + 'static) -> Self {
        Self(State::Gathered(Box::pin(replies)))
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
        let value = match &mut self.0 {
            State::Ready(value) => {
                let value = value.take();
                return Poll::Ready(value.expect("a reply is polled until it returns its value"));
            }
            State::Sent(receiver) => {
                ready!(Pin::new(receiver).poll(cx)).unwrap_or(Err(ReplyError::Closed))
            }
            State::Gathered(replies) => Ok(ready!(replies.as_mut().poll(cx))),
        };
        self.0 = State::Ready(None);
        Poll::Ready(value)
    }
}

debug_fields!([O] Reply<O>, |_it|);

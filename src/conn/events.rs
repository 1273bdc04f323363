//! The events of a connection, and the ways to wait for them.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::kinds::DeadlineKind;
use super::limits::ConnEvent;
use super::side::{Connection, Side};
use super::timers::ConnTimers;

/// Events. There are five ways to them, and an event goes to the first that takes it. `next` is for
/// a task that only waits, and `race` for a task that reads or writes meanwhile. `poll_next` is for
/// a future of the caller's own, and the `Stream` for its combinators. On a shard, `on_event` is
/// for a loop without tasks.
impl<S: Side> ConnTimers<S> {
    /// Waits for the next event; `None` when the connection is closed.
    ///
    /// May be dropped and called again, on any thread if the side allows it, and no event is lost.
    /// One task waits for a connection at a time: the last that has called this on any of the
    /// handles.
    ///
    /// # Errors
    ///
    /// On any thread, the errors of a [`Sleep`](crate::Sleep): `Full` if the shard has no room for
    /// the connection's timer, `Closed` or `Dropped` if the service has ended, `NoSuchShard`; see
    /// [above](Self#on-any-thread-when-there-is-no-timer).
    pub async fn next(&self) -> S::Polled<Option<ConnEvent>> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next event, as [`next`](Self::next) does.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next).
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<S::Polled<Option<ConnEvent>>> {
        self.poll_any(cx).map(S::polled)
    }

    /// Waits for a future, such as a read or a write, or for the next event.
    ///
    /// A future that an async function or block makes is pinned by the caller, and lent. Where an
    /// event does not end the connection, another `race` polls it on. Only so is no byte lost where
    /// the kernel reads into a buffer that the future owns: a read of compio that is dropped may
    /// have read already. A read of tokio or of glommio's sockets loses nothing by its drop, so a
    /// new one may be made for each `race`.
    ///
    /// A value that is ready at the same time as a deadline wins, also where there is no timer, and
    /// where its data lay in a socket then, see [above](Self#how-late).
    /// Only [`MaxAge`](DeadlineKind::MaxAge) and [`AgeGrace`](DeadlineKind::AgeGrace) come before
    /// it, as otherwise a connection that never pauses would never end.
    ///
    /// On a shard, the task returns to its executor after 8 values in a row that were ready at
    /// once, counted for all connections of the shard. It goes on when the other tasks have run. So
    /// a peer that sends without a pause delays neither timers nor other connections. One call in
    /// 16 reads the clock, and wakes the shard's driver if its time has come.
    ///
    /// ```
    /// use corewheel::conn::Raced;
    /// use corewheel::{ConnTimers, DeadlineKind, Handle, RefusedKind};
    /// use std::future::Future;
    /// use std::pin::pin;
    ///
    /// /// Waits for a read, and tells the peer meanwhile that the server lives. `None` when the
    /// /// peer is idle.
    /// async fn read<O>(
    ///     conn: &ConnTimers<Handle>,
    ///     reads: impl Future<Output = O>,
    ///     beat: impl AsyncFn(),
    /// ) -> Result<Option<O>, RefusedKind> {
    ///     let mut reads = pin!(reads);
    ///     loop {
    ///         match conn.race(reads.as_mut()).await? {
    ///             Raced::Done(read) => return Ok(Some(read)),
    ///             Raced::Event(event) if event.kind == DeadlineKind::Heartbeat => beat().await,
    ///             Raced::Event(_) | Raced::Closed => return Ok(None),
    ///         }
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next).
    pub async fn race<F: Future + Unpin>(&self, mut future: F) -> S::Polled<Raced<F::Output>> {
        let mut is_first = true;
        poll_fn(|cx| {
            let at_once = std::mem::replace(&mut is_first, false);
            ready!(self.begin_poll(at_once, cx));
            if let Some(age) = self.conn().take(DeadlineKind::is_of_age) {
                return Poll::Ready(S::polled(Ok(Raced::Event(age))));
            }
            let seen = self.conn().passes();
            let value = Pin::new(&mut future).poll(cx);
            self.note_ready(at_once, value.is_ready());
            if let Poll::Ready(value) = value {
                return Poll::Ready(S::polled(Ok(Raced::Done(value))));
            }
            let event = self.conn().poll(cx, Some(seen), |_| true);
            event.map(|event| {
                S::polled(event.map(|event| event.map_or(Raced::Closed, Raced::Event)))
            })
        })
        .await
    }
}

/// What came first; see [`ConnTimers::race`].
#[must_use = "it says whether the future is done"]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Raced<V> {
    /// The future is done.
    Done(V),
    /// A deadline has come. A future that was lent goes on by the next poll.
    Event(ConnEvent),
    /// The connection is closed.
    Closed,
}

impl<S: Side> Stream for ConnTimers<S> {
    type Item = S::Polled<ConnEvent>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_any(cx).map(|event| event.transpose().map(S::polled))
    }
}

/// The budget of polls of a shard.
impl<S: Side> ConnTimers<S> {
    fn poll_any(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<ConnEvent>, <S::Conn as Connection>::Error>> {
        if let Some(shard) = self.conn().budget() {
            shard.count_poll();
        }
        self.conn().poll(cx, None, |_| true)
    }

    /// Begins a poll for a result, `is_first` if it is the first for that result. Pending if the
    /// task must return to its executor first; its waker has been woken then.
    #[inline]
    pub(crate) fn begin_poll(&self, is_first: bool, cx: &Context<'_>) -> Poll<()> {
        self.conn().budget().map_or(Poll::Ready(()), |shard| shard.begin_poll(is_first, cx))
    }

    /// A poll for a result has ended.
    #[inline]
    pub(crate) fn note_ready(&self, is_first: bool, is_ready: bool) {
        if let Some(shard) = self.conn().budget() {
            shard.note_ready(is_first, is_ready);
        }
    }
}

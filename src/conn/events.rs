//! The events of a connection, and the ways to wait for them.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::acknowledged::{PeerSocket, UnsentBound};
use super::kinds::DeadlineKind;
use super::limits::{ConnEvent, NEVER};
use super::measured::BoundWait;
use super::rules;
use super::side::{Connection, Sealed, Side, Wakes};
use super::timers::ConnTimers;
use crate::pass::looks;

/// Events. There are five ways to them, and an event goes to the first that takes it. `next` is for
/// a task that only waits, `race` for a task that reads meanwhile, and `race_write` for a task that
/// writes. `poll_next` is for a future of the caller's own. On a shard, `on_event` is for a loop
/// without tasks.
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
    /// the connection's timer, `Closed` if the service has ended, `NoSuchShard`; see
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
        if let Some(shard) = self.conn().budget() {
            shard.count_poll();
        }
        self.conn().poll(cx, None, |_, _| true).map(S::polled)
    }

    /// Waits for a future, such as a read, or for the next event. A write to a socket is for
    /// [`race_write`](Self::race_write).
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
            self.poll_race(&mut is_first, &mut future, cx, |cx, looks| {
                self.conn().poll(cx, Some(looks), |_, _| true)
            })
        })
        .await
    }

    /// Waits for a write to a socket, or for the next event, as [`race`](Self::race) does. The
    /// limits of writing are judged by what the peer has acknowledged, and what they end is reset.
    ///
    /// The system accepts up to 4 MB for a peer that reads nothing, and goes on to accept for a
    /// slow one when a third of that is free. So a `race` cuts a reader of 100 kB/s after a
    /// [`write_timeout`](crate::ConnLimits::write_timeout) of ten seconds. Here the time of a
    /// [write](Self::begin_write) that waits begins again when the peer has acknowledged something.
    /// A [measured write](Self::begin_measured_write) counts what was acknowledged from its first
    /// wait on, and not what was [added](super::InProgress::add). A lump gives no more time in
    /// advance than [`DataRate::LUMP_MAX`](super::DataRate::LUMP_MAX).
    ///
    /// The socket is asked four times in the limit of a write, and when a peer is below its rate.
    /// So a peer that takes nothing is cut up to a quarter of the limit later, and the
    /// [deadline](Self::deadline) of such a write is the next look. Progress counts as
    /// [activity](Self::touch). When this returns the [event](Raced::Event) of a
    /// [limit](DeadlineKind::WriteTimeout) of a [write](DeadlineKind::WriteRate), the close of the
    /// socket resets the connection, and the system keeps nothing of what the peer has not taken.
    ///
    /// With [`unsent_max`](crate::ConnLimits::unsent_max), the system has no more than that for a
    /// peer that takes slowly. While there is a bound, each poll of a write that waits asks the
    /// socket.
    ///
    /// Where the system does not say what was acknowledged, the limits are those of a `race`: see
    /// [`PeerSocket::acknowledged`].
    ///
    /// A write that is ready at once costs as much as a `race`. A write that waits takes the
    /// connection's lock once more on any thread, and the first of a connection asks the socket,
    /// which is a system call. So does the first wait of a measured write, and each look.
    ///
    /// ```
    /// # #[cfg(feature = "tokio")] {
    /// use corewheel::conn::Raced;
    /// use corewheel::{ConnTimers, Handle};
    /// use std::io;
    /// use std::pin::pin;
    /// use tokio::io::AsyncWriteExt;
    /// use tokio::net::TcpStream;
    ///
    /// /// Sends an answer, however long its peer takes for it.
    /// async fn send(
    ///     socket: &mut TcpStream,
    ///     conn: &ConnTimers<Handle>,
    ///     answer: &[u8],
    /// ) -> io::Result<()> {
    ///     let (reader, mut writer) = socket.split();
    ///     let _writing = conn.begin_write();
    ///     let write = pin!(writer.write_all(answer));
    ///     match conn.race_write(reader.as_ref(), write).await {
    ///         Ok(Raced::Done(written)) => written,
    ///         // The peer takes nothing. The caller drops the socket.
    ///         _ => Err(io::ErrorKind::TimedOut.into()),
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next).
    pub async fn race_write<F: Future + Unpin>(
        &self,
        socket: &impl PeerSocket,
        mut future: F,
    ) -> S::Polled<Raced<F::Output>> {
        let (mut is_first, mut is_named, mut wait) = (true, false, None);
        poll_fn(|cx| {
            self.follow_bound(socket, &mut wait);
            self.poll_race(&mut is_first, &mut future, cx, |cx, looks| {
                if !std::mem::replace(&mut is_named, true) {
                    wait = self.name_socket(socket);
                }
                self.poll_judged(socket, &mut wait, cx, looks)
            })
        })
        .await
    }
}

/// How an event is polled for.
type Polled<S> = Poll<Result<Option<ConnEvent>, <<S as Sealed>::Conn as Connection>::Error>>;

impl<S: Side> ConnTimers<S> {
    /// Polls a future, and by `events` for the next event if the future is not ready.
    #[inline]
    fn poll_race<F: Future + Unpin>(
        &self,
        is_first: &mut bool,
        future: &mut F,
        cx: &mut Context<'_>,
        events: impl FnOnce(&mut Context<'_>, u64) -> Polled<S>,
    ) -> Poll<S::Polled<Raced<F::Output>>> {
        let at_once = std::mem::replace(is_first, false);
        ready!(self.begin_poll(at_once, cx));
        if let Some(age) = self.conn().take(|kind, _| kind.is_of_age()) {
            return Poll::Ready(S::polled(Ok(Raced::Event(age))));
        }
        let looks = looks();
        let value = Pin::new(future).poll(cx);
        self.note_ready(at_once, value.is_ready());
        if let Poll::Ready(value) = value {
            return Poll::Ready(S::polled(Ok(Raced::Done(value))));
        }
        let event = events(cx, looks);
        event.map(|event| S::polled(event.map(|event| event.map_or(Raced::Closed, Raced::Event))))
    }

    /// A peer that has acknowledged so many bytes, and has so many left, reaches a limit of
    /// writing.
    pub(crate) fn count_bytes(&self, kind: DeadlineKind, acknowledged: u64, left: u64) {
        if let Some(kind) = kind.index() {
            self.conn().with_tally(|tally| tally.count_bytes(kind, acknowledged, left));
        }
    }

    /// A write begins to wait: what limits it is judged by a socket from now on. Returns the wait
    /// if there is a bound of what the system has not sent.
    fn name_socket(&self, socket: &impl PeerSocket) -> Option<BoundWait> {
        let unsent_max = self.conn().with_limits(|limits| limits.unsent_max);
        let (wants_socket, wants_bytes, is_bound) = self.conn().look(|facts| {
            let Some(transfers) = rules::transfers(facts) else { return (false, false, false) };
            let (wants_socket, wants_bytes) = transfers.wants_socket();
            let bound = transfers.bound().map_or(0, |bound| bound.present());
            (wants_socket, wants_bytes, wants_bytes && unsent_max > 0 || bound > 0)
        });
        let asks = wants_bytes || is_bound;
        let bytes = if asks { socket.acknowledged() } else { None };
        if asks != bytes.is_some() || !(wants_socket || is_bound) {
            return None;
        }
        let now = self.conn().now();
        let bound = self.conn().change(Wakes::Nothing, |facts| {
            let Some(transfers) = rules::transfers(facts) else { return (None, NEVER) };
            bytes.map(|bytes| transfers.look(bytes, now));
            transfers.ask(|_| true, now);
            (transfers.bound().and_then(|bound| bound.begin(unsent_max)), 0)
        });
        bound.map(|bound| socket.set_unsent_max(bound));
        bytes.filter(|_| is_bound).map(|bytes| BoundWait { since: now, bytes })
    }

    /// A write that waits is polled again.
    #[inline]
    fn follow_bound(&self, socket: &impl PeerSocket, wait: &mut Option<BoundWait>) {
        let Some(since) = wait else { return };
        let Some(bytes) = socket.acknowledged() else { return };
        let now = self.conn().now();
        let (bound, is_bound) = self.conn().look(|facts| {
            rules::transfers(facts).map_or((None, false), |all| all.follow(since, bytes, now))
        });
        bound.map(|bound| socket.set_unsent_max(bound));
        *wait = wait.filter(|_| is_bound);
    }

    /// Polls for the next event. A limit of writing that has passed asks the socket.
    fn poll_judged(
        &self,
        socket: &impl PeerSocket,
        wait: &mut Option<BoundWait>,
        cx: &mut Context<'_>,
        looks: u64,
    ) -> Polled<S> {
        // The kinds of writes come before those that a write holds back.
        let passed = Cell::new(0);
        let event = self.conn().poll(cx, Some(looks), |kind, _| {
            passed.set(passed.get() | kind.bit_of_writing());
            passed.get() == 0
        });
        if event.is_ready() || passed.get() == 0 {
            return event;
        }
        if let Some(bytes) = socket.acknowledged() {
            let now = self.conn().now();
            let (has_moved, bound) = self.conn().change(Wakes::Nothing, |facts| {
                let looked = rules::transfers(facts).map_or((false, None), |all| {
                    // The write has waited for a part of a limit.
                    (all.look(bytes, now), all.bound().and_then(UnsentBound::begin_anew))
                });
                (looked, 0)
            });
            if let Some(bound) = bound {
                socket.set_unsent_max(bound);
                *wait = Some(BoundWait { since: now, bytes });
            }
            if has_moved {
                self.touch();
            }
        }
        // One that has passed since is left to the next poll, which asks again.
        let event = self.conn().poll(cx, Some(looks), |kind, _| {
            let bit = kind.bit_of_writing();
            bit & passed.get() == bit
        });
        if let Poll::Ready(Ok(Some(event))) = event {
            if event.kind.bit_of_writing() != 0 {
                if let Some((acknowledged, left)) = socket.acknowledged().zip(socket.left()) {
                    self.count_bytes(event.kind, acknowledged, left);
                }
                socket.reset_at_close();
            }
        }
        event
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

/// The budget of polls of a shard.
impl<S: Side> ConnTimers<S> {
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

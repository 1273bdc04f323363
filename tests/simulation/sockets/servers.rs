//! Servers, each with another guard of its reads and writes.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use corewheel::conn::{ConnTimers, Raced, Side};
use corewheel::sim::net::Stream;
use corewheel::stream::{StreamLimits, StreamTimeout, TimedIo};
use corewheel::{ConnEvent, ConnLimits, DeadlineKind, Handle, TimeoutError, Timers};
use fastrand::Rng;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::World;
use super::laws::{End, Seen};
use super::rates::{Noted, READ, WRITE, random_rate};

/// What ends the waits of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    HandleTimeout,
    Race,
    /// `next` beside a read, in any order.
    Select,
    /// `TimedIo` with `read_idle`.
    Stream,
    /// `TimedIo` with `idle`.
    StreamIdle,
    /// Two halves of a `TimedIo`, which read and write at the same time.
    Halves,
    ControlTimeout,
    ShardTimeout,
    ShardRace,
    ShardSelect,
    ShardStream,
    ShardHalves,
    /// Measured reads and writes, by which the server says when it waits.
    Rated,
    ShardRated,
    /// `TimedIo` with least rates.
    StreamRated,
    ShardStreamRated,
    /// A byte is sent at each heartbeat.
    Beats,
    ShardBeats,
}

pub(crate) const GUARDS: [Guard; 18] = [
    Guard::HandleTimeout,
    Guard::Race,
    Guard::Select,
    Guard::Stream,
    Guard::StreamIdle,
    Guard::Halves,
    Guard::ControlTimeout,
    Guard::ShardTimeout,
    Guard::ShardRace,
    Guard::ShardSelect,
    Guard::ShardStream,
    Guard::ShardHalves,
    Guard::Rated,
    Guard::ShardRated,
    Guard::StreamRated,
    Guard::ShardStreamRated,
    Guard::Beats,
    Guard::ShardBeats,
];

impl Guard {
    pub(crate) fn is_on_shard(self) -> bool {
        use Guard::{ShardBeats, ShardHalves, ShardRace, ShardRated, ShardSelect};
        use Guard::{ShardStream, ShardStreamRated, ShardTimeout};
        matches!(self, ShardTimeout | ShardRace | ShardSelect | ShardStream | ShardHalves)
            || matches!(self, ShardRated | ShardStreamRated | ShardBeats)
    }

    pub(crate) fn beats(self) -> bool {
        matches!(self, Self::Beats | Self::ShardBeats)
    }

    /// Whether the service knows the connection and counts its end by the reason.
    pub(crate) fn has_connection(self) -> bool {
        !matches!(self, Self::HandleTimeout | Self::ShardTimeout | Self::ControlTimeout)
    }

    /// Whether it may ask the socket what the peer has acknowledged.
    pub(crate) fn may_ask(self) -> bool {
        self.asks_by_stream() || self.asks_by_race()
    }

    /// Whether a stream asks the socket. Bytes that are left are a write that waits then.
    pub(crate) fn asks_by_stream(self) -> bool {
        use Guard::{Halves, ShardHalves, ShardStream, ShardStreamRated};
        use Guard::{Stream, StreamIdle, StreamRated};
        matches!(self, Stream | StreamIdle | Halves | ShardStream | ShardHalves)
            || matches!(self, StreamRated | ShardStreamRated)
    }

    fn asks_by_race(self) -> bool {
        use Guard::{Race, Rated, ShardRace, ShardRated};
        matches!(self, Race | ShardRace | Rated | ShardRated)
    }

    /// Whether a least rate bounds its writes, and no time without progress.
    pub(crate) fn is_rated(self) -> bool {
        use Guard::{Rated, ShardRated, ShardStreamRated, StreamRated};
        matches!(self, Rated | ShardRated | StreamRated | ShardStreamRated)
    }

    /// The name of its idle deadline in the statistics.
    pub(crate) fn idle_name(self) -> &'static str {
        if self == Self::StreamIdle { "all idle" } else { "read idle" }
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve(
    world: &World,
    seen: &Rc<Seen>,
    stream: Stream,
    handle: Handle<u8>,
    timers: Option<Timers<u8>>,
    mut rng: Rng,
) -> End {
    let age = rng.bool().then(|| Duration::from_millis(rng.u64(50..1_500)));
    if seen.guard.has_connection() {
        seen.max_age.set(age);
    }
    let age = age.unwrap_or_default();
    let limits = ConnLimits::default().read_idle(seen.limit).write_timeout(seen.stall).max_age(age);
    let stream_limits = StreamLimits::default().write_stall(seen.stall).max_age(age);
    let by_read = stream_limits.read_idle(seen.limit);
    let rate = random_rate(&mut rng, seen.limit / 2);
    seen.rate.set(rate);
    let rates = ConnLimits::default().min_read_rate(rate).min_write_rate(rate).max_age(age);
    let stream_rates = StreamLimits::default().min_read_rate(rate).min_write_rate(rate);
    // A message begins with its first byte, so something else bounds the wait for that.
    let stream_rates = stream_rates.read_idle(seen.limit).max_age(age);
    let beats = limits.heartbeat(seen.beat());
    seen.began.set(Some(world.now()));
    let served = Served { world, seen, rng };
    let shard = || timers.as_ref().expect("it is on a shard");
    let on_shard = |limits| shard().connection(limits).expect("there is room");
    match seen.guard {
        Guard::HandleTimeout => served.within_handle(stream, handle).await,
        Guard::ShardTimeout => served.within_shard(stream, shard().clone()).await,
        Guard::ControlTimeout => {
            let stream = TimedIo::new(stream, handle, StreamLimits::default());
            served.within_control(stream).await
        }
        Guard::Race => served.race(stream, handle.connection(limits)).await,
        Guard::ShardRace => served.race(stream, on_shard(limits)).await,
        Guard::Select => served.select(stream, handle.connection(limits)).await,
        Guard::ShardSelect => served.select(stream, on_shard(limits)).await,
        Guard::Rated => served.rated(stream, handle.connection(rates)).await,
        Guard::ShardRated => served.rated(stream, on_shard(rates)).await,
        Guard::Beats => served.beats(stream, handle.connection(beats)).await,
        Guard::ShardBeats => served.beats(stream, on_shard(beats)).await,
        Guard::Stream => served.stream(judged(TimedIo::new(stream, handle, by_read), seen)).await,
        Guard::StreamIdle => {
            let limits = stream_limits.idle(seen.limit);
            served.stream(judged(TimedIo::new(stream, handle, limits), seen)).await
        }
        Guard::Halves => served.halves(judged(TimedIo::new(stream, handle, by_read), seen)).await,
        Guard::StreamRated => {
            let stream = Noted { stream, world, seen };
            served.stream_rated(judged(TimedIo::new(stream, handle, stream_rates), seen)).await
        }
        Guard::ShardStream => {
            let stream = TimedIo::on_shard(stream, shard(), by_read).expect("there is room");
            served.stream(judged(stream, seen)).await
        }
        Guard::ShardHalves => {
            let stream = TimedIo::on_shard(stream, shard(), by_read).expect("there is room");
            served.halves(judged(stream, seen)).await
        }
        Guard::ShardStreamRated => {
            let stream = Noted { stream, world, seen };
            let stream = TimedIo::on_shard(stream, shard(), stream_rates);
            served.stream_rated(judged(stream.expect("there is room"), seen)).await
        }
    }
}

/// The stream, which asks its socket what the peer has acknowledged if the connection does.
fn judged<S: AsRef<Stream>, M: Side>(stream: TimedIo<S, M>, seen: &Seen) -> TimedIo<S, M> {
    if seen.asks { stream.with_simulated_socket() } else { stream }
}

/// The end of a wait: how many bytes, or the end of the connection.
pub(crate) type Waited = Result<usize, End>;

pub(super) struct Served<'a> {
    pub(super) world: &'a World,
    pub(super) seen: &'a Rc<Seen>,
    pub(super) rng: Rng,
}

pub(super) fn of_io(result: io::Result<usize>) -> Waited {
    let error = match result {
        Ok(count) => return Ok(count),
        Err(error) => error,
    };
    let timeout = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamTimeout>());
    Err(match (timeout, error.kind()) {
        (Some(StreamTimeout::ReadIdle(_) | StreamTimeout::Idle(_)), _) => End::Idle,
        (Some(StreamTimeout::WriteStall(_)), _) => End::Stalled,
        (Some(StreamTimeout::MaxAge(_)), _) => End::Aged,
        (Some(StreamTimeout::ReadRate(_)), _) => End::TooSlow(READ),
        (Some(StreamTimeout::WriteRate(_)), _) => End::TooSlow(WRITE),
        (None, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => End::ByPeer,
        _ => End::Other,
    })
}

fn of_timeout(result: Result<io::Result<usize>, TimeoutError>, end: End) -> Waited {
    match result {
        Ok(done) => of_io(done),
        Err(TimeoutError::Elapsed) => Err(end),
        Err(TimeoutError::NoTimer(_)) => Err(End::Other),
    }
}

fn of_event(event: ConnEvent) -> End {
    match event.kind {
        DeadlineKind::ReadIdle => End::Idle,
        DeadlineKind::WriteTimeout => End::Stalled,
        DeadlineKind::MaxAge => End::Aged,
        DeadlineKind::ReadRate => End::TooSlow(READ),
        DeadlineKind::WriteRate => End::TooSlow(WRITE),
        DeadlineKind::Heartbeat => End::Beat,
        _ => End::Other,
    }
}

/// What both sides return from a wait for events.
pub(crate) trait Events: Side {
    fn raced(raced: Self::Polled<Raced<io::Result<usize>>>) -> Waited;
    fn next(event: Self::Polled<Option<ConnEvent>>) -> End;
}

fn of_race(raced: Raced<io::Result<usize>>) -> Waited {
    match raced {
        Raced::Done(done) => of_io(done),
        Raced::Event(event) => Err(of_event(event)),
        Raced::Closed => Err(End::Other),
    }
}

impl Events for Handle {
    fn raced(raced: Self::Polled<Raced<io::Result<usize>>>) -> Waited {
        raced.map_or(Err(End::Other), of_race)
    }

    fn next(event: Self::Polled<Option<ConnEvent>>) -> End {
        event.ok().flatten().map_or(End::Other, of_event)
    }
}

impl Events for Timers {
    fn raced(raced: Self::Polled<Raced<io::Result<usize>>>) -> Waited {
        of_race(raced)
    }

    fn next(event: Self::Polled<Option<ConnEvent>>) -> End {
        event.map_or(End::Other, of_event)
    }
}

/// Reads and answers, by waits that a guard makes.
macro_rules! talk {
    ($self:ident, $stream:ident, $read:expr, $write:expr) => {{
        let mut buffer = [0; 64];
        loop {
            let room = $self.rng.usize(1..=buffer.len());
            $self.begin_read();
            match $read(&mut $self, &mut $stream, &mut buffer[..room]).await {
                Ok(0) => return End::ByPeer,
                Ok(_) => $self.seen.reads.set(None),
                Err(end) => return end,
            }
            let mut left = $self.answer();
            while left > 0 {
                let part = vec![b'b'; left];
                $self.begin_write();
                match $write(&mut $self, &mut $stream, &part).await {
                    Ok(count) => left -= count,
                    Err(end) => return end,
                }
                $self.seen.writes.set(None);
            }
        }
    }};
}

impl Served<'_> {
    pub(super) fn count_timer(&self) {
        self.world.count("timers", 1);
    }

    pub(super) fn begin_read(&self) {
        self.seen.reads.set(Some(self.world.now()));
        self.count_timer();
    }

    pub(super) fn begin_write(&self) {
        self.seen.writes.set(Some(self.world.now()));
        self.count_timer();
    }

    /// The length of an answer. Most have none.
    pub(super) fn answer(&mut self) -> usize {
        match self.rng.u8(..6) {
            0 => self.rng.usize(1..=self.world.answer_max.min(20)),
            1 => self.rng.usize(1..=self.world.answer_max),
            _ => 0,
        }
    }

    async fn within_handle(mut self, mut stream: Stream, handle: Handle<u8>) -> End {
        let (limit, stall) = (self.seen.limit, self.seen.stall);
        talk!(
            self,
            stream,
            async |_: &mut Self, stream: &mut Stream, buffer: &mut [u8]| of_timeout(
                handle.timeout(limit, stream.read(buffer)).await,
                End::Idle
            ),
            async |_: &mut Self, stream: &mut Stream, part: &[u8]| of_timeout(
                handle.timeout(stall, stream.write(part)).await,
                End::Stalled
            )
        )
    }

    async fn within_shard(mut self, mut stream: Stream, timers: Timers<u8>) -> End {
        let (limit, stall) = (self.seen.limit, self.seen.stall);
        talk!(
            self,
            stream,
            async |_: &mut Self, stream: &mut Stream, buffer: &mut [u8]| of_timeout(
                timers.timeout(limit, stream.read(buffer)).await,
                End::Idle
            ),
            async |_: &mut Self, stream: &mut Stream, part: &[u8]| of_timeout(
                timers.timeout(stall, stream.write(part)).await,
                End::Stalled
            )
        )
    }

    async fn within_control(mut self, mut stream: TimedIo<Stream>) -> End {
        let (limit, stall, control) = (self.seen.limit, self.seen.stall, stream.control());
        talk!(
            self,
            stream,
            async |_: &mut Self, stream: &mut TimedIo<Stream>, buffer: &mut [u8]| of_timeout(
                control.timeout(limit, stream.read(buffer)).await,
                End::Idle
            ),
            async |_: &mut Self, stream: &mut TimedIo<Stream>, part: &[u8]| of_timeout(
                control.timeout(stall, stream.write(part)).await,
                End::Stalled
            )
        )
    }

    async fn race<M: Events>(mut self, mut stream: Stream, conn: ConnTimers<M>) -> End {
        talk!(
            self,
            stream,
            async |_: &mut Self, stream: &mut Stream, buffer: &mut [u8]| {
                conn.touch_read();
                M::raced(conn.race(pin!(stream.read(buffer))).await)
            },
            async |this: &mut Self, stream: &mut Stream, part: &[u8]| {
                let _writing = conn.begin_write();
                this.race_write(stream, &conn, part).await
            }
        )
    }

    /// Races a write, which the socket judges if the connection asks it.
    pub(super) async fn race_write<M: Events>(
        &self,
        stream: &mut Stream,
        conn: &ConnTimers<M>,
        part: &[u8],
    ) -> Waited {
        if !self.seen.asks {
            return M::raced(conn.race(pin!(stream.write(part))).await);
        }
        let socket = stream.socket();
        let mut write = pin!(stream.write(part));
        let noted = poll_fn(|cx| {
            let polled = write.as_mut().poll(cx);
            if polled.is_pending() && self.seen.waits_from.get().is_none() {
                self.seen.waits_from.set(Some(self.world.now()));
            }
            polled
        });
        M::raced(conn.race_write(&socket, pin!(noted)).await)
    }

    async fn select<M: Events>(mut self, mut stream: Stream, conn: ConnTimers<M>) -> End {
        talk!(
            self,
            stream,
            async |this: &mut Self, stream: &mut Stream, buffer: &mut [u8]| {
                conn.touch_read();
                this.either(stream.read(buffer), &conn).await
            },
            async |this: &mut Self, stream: &mut Stream, part: &[u8]| {
                let _writing = conn.begin_write();
                this.either(stream.write(part), &conn).await
            }
        )
    }

    /// Polls a read or write and `next` in any order, as `select!` does.
    async fn either<M: Events>(
        &mut self,
        done: impl Future<Output = io::Result<usize>>,
        conn: &ConnTimers<M>,
    ) -> Waited {
        let (mut done, mut next) = (pin!(done), pin!(conn.next()));
        poll_fn(|cx| {
            let is_first = self.rng.bool();
            for polls_read in [is_first, !is_first] {
                if polls_read {
                    if let Poll::Ready(done) = done.as_mut().poll(cx) {
                        return Poll::Ready(of_io(done));
                    }
                } else if let Poll::Ready(event) = next.as_mut().poll(cx) {
                    return Poll::Ready(Err(M::next(event)));
                }
            }
            Poll::Pending
        })
        .await
    }

    async fn stream<M: Side>(mut self, mut stream: TimedIo<Stream, M>) -> End {
        talk!(
            self,
            stream,
            async |_: &mut Self, stream: &mut TimedIo<Stream, M>, buffer: &mut [u8]| of_io(
                stream.read(buffer).await
            ),
            async |_: &mut Self, stream: &mut TimedIo<Stream, M>, part: &[u8]| of_io(
                stream.write(part).await
            )
        )
    }

    /// Reads all the time, and answers beside that.
    async fn halves<M: Side>(mut self, stream: TimedIo<Stream, M>) -> End {
        let (mut reads, mut writes) = tokio::io::split(stream);
        let answer = vec![b'b'; self.world.answer_max];
        let (mut left, mut buffer) = (0, [0; 64]);
        self.begin_read();
        poll_fn(|cx| {
            let is_first = self.rng.bool();
            let mut goes_on = true;
            while goes_on {
                goes_on = false;
                for is_read in [is_first, !is_first] {
                    if is_read {
                        let mut part = tokio::io::ReadBuf::new(&mut buffer);
                        let read = pin!(&mut reads).poll_read(cx, &mut part);
                        match read.map_ok(|()| part.filled().len()).map(of_io) {
                            Poll::Ready(Ok(0)) => return Poll::Ready(End::ByPeer),
                            Poll::Ready(Ok(_)) => {
                                goes_on = true;
                                self.begin_read();
                                if left == 0 {
                                    left = self.answer();
                                }
                            }
                            Poll::Ready(Err(end)) => return Poll::Ready(end),
                            Poll::Pending => {}
                        }
                    } else if left > 0 {
                        match pin!(&mut writes).poll_write(cx, &answer[..left]).map(of_io) {
                            Poll::Ready(Ok(count)) => {
                                goes_on = true;
                                left -= count;
                                if self.seen.writes.take().is_some() {
                                    self.seen.wrote_at.set(self.world.now());
                                }
                            }
                            Poll::Ready(Err(end)) => return Poll::Ready(end),
                            Poll::Pending if self.seen.writes.get().is_none() => self.begin_write(),
                            Poll::Pending => {}
                        }
                    }
                }
            }
            Poll::Pending
        })
        .await
    }
}

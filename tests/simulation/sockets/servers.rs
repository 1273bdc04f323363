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
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::World;
use super::laws::{End, Seen};
use super::rates::{Noted, READ, WRITE, random_rate};
use crate::judge::{Place, poll_read};

/// What ends the waits of a server, and whether it is on a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard {
    pub(crate) waits: Waits,
    pub(crate) is_on_shard: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waits {
    Timeout,
    ControlTimeout,
    Race,
    /// `next` beside a read, in any order.
    Select,
    /// `TimedIo` with `read_idle`.
    Stream,
    /// `TimedIo` with `idle`.
    StreamIdle,
    /// Two halves of a `TimedIo`, which read and write at the same time.
    Halves,
    /// Measured reads and writes, by which the server says when it waits.
    Rated,
    /// `TimedIo` with least rates.
    StreamRated,
    /// A byte is sent at each heartbeat.
    Beats,
}

impl Guard {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        use Waits::{Beats, ControlTimeout, Halves, Race, Rated};
        use Waits::{Select, Stream, StreamIdle, StreamRated, Timeout};
        let streams = [Stream, StreamIdle, Halves, StreamRated];
        let all = [Timeout, ControlTimeout, Race, Select, Rated, Beats].into_iter().chain(streams);
        all.flat_map(|waits| [false, true].map(|is_on_shard| Self { waits, is_on_shard }))
    }

    pub(crate) fn beats(self) -> bool {
        self.waits == Waits::Beats
    }

    /// Whether the service knows the connection and counts its end by the reason.
    pub(crate) fn has_connection(self) -> bool {
        !matches!(self.waits, Waits::Timeout | Waits::ControlTimeout)
    }

    /// Whether it may ask the socket what the peer has acknowledged.
    pub(crate) fn may_ask(self) -> bool {
        self.asks_by_stream() || matches!(self.waits, Waits::Race | Waits::Rated)
    }

    /// Whether a stream asks the socket. Bytes that are left are a write that waits then.
    pub(crate) fn asks_by_stream(self) -> bool {
        use Waits::{Halves, Stream, StreamIdle, StreamRated};
        matches!(self.waits, Stream | StreamIdle | Halves | StreamRated)
    }

    /// Whether a least rate bounds its writes, and no time without progress.
    pub(crate) fn is_rated(self) -> bool {
        matches!(self.waits, Waits::Rated | Waits::StreamRated)
    }

    /// The name of its idle deadline in the statistics.
    pub(crate) fn idle_name(self) -> &'static str {
        if self.waits == Waits::StreamIdle { "all idle" } else { "read idle" }
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve<P: Place<Side: Events>>(
    world: &World,
    seen: &Rc<Seen>,
    stream: Stream,
    place: P,
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
    match seen.guard.waits {
        Waits::Timeout => served.within(stream, place).await,
        Waits::ControlTimeout => {
            served.within_control(place.limited(stream, StreamLimits::default())).await
        }
        Waits::Race => served.race(stream, place.connection(limits)).await,
        Waits::Select => served.select(stream, place.connection(limits)).await,
        Waits::Rated => served.rated(stream, place.connection(rates)).await,
        Waits::Beats => served.beats(stream, place.connection(beats)).await,
        Waits::Stream => served.stream(place.stream(stream, by_read, seen.asks)).await,
        Waits::StreamIdle => {
            let limits = stream_limits.idle(seen.limit);
            served.stream(place.stream(stream, limits, seen.asks)).await
        }
        Waits::Halves => served.halves(place.stream(stream, by_read, seen.asks)).await,
        Waits::StreamRated => {
            let stream = Noted { stream, world, seen };
            served.stream_rated(place.stream(stream, stream_rates, seen.asks)).await
        }
    }
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
    ($self:ident, |$buffer:ident| $read:expr, |$part:ident| $write:expr) => {{
        let mut buffer = [0; 64];
        loop {
            let room = $self.rng.usize(1..=buffer.len());
            $self.begin_read();
            let $buffer = &mut buffer[..room];
            match $read {
                Ok(0) => return End::ByPeer,
                Ok(_) => $self.seen.reads.set(None),
                Err(end) => return end,
            }
            let mut left = $self.answer();
            while left > 0 {
                let $part = &vec![b'b'; left];
                $self.begin_write();
                match $write {
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

    async fn within(mut self, mut stream: Stream, place: impl Place) -> End {
        let (limit, stall) = (self.seen.limit, self.seen.stall);
        talk!(
            self,
            |buffer| of_timeout(place.timeout(limit, stream.read(buffer)).await, End::Idle),
            |part| of_timeout(place.timeout(stall, stream.write(part)).await, End::Stalled)
        )
    }

    async fn within_control<M: Side>(mut self, mut stream: TimedIo<Stream, M>) -> End {
        let (limit, stall, control) = (self.seen.limit, self.seen.stall, stream.control());
        talk!(
            self,
            |buffer| of_timeout(control.timeout(limit, stream.read(buffer)).await, End::Idle),
            |part| of_timeout(control.timeout(stall, stream.write(part)).await, End::Stalled)
        )
    }

    async fn race<M: Events>(mut self, mut stream: Stream, conn: ConnTimers<M>) -> End {
        talk!(
            self,
            |buffer| {
                conn.touch_read();
                M::raced(conn.race(pin!(stream.read(buffer))).await)
            },
            |part| {
                let _writing = conn.begin_write();
                self.race_write(&mut stream, &conn, part).await
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
            |buffer| {
                conn.touch_read();
                self.either(stream.read(buffer), &conn).await
            },
            |part| {
                let _writing = conn.begin_write();
                self.either(stream.write(part), &conn).await
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
        talk!(self, |buffer| of_io(stream.read(buffer).await), |part| of_io(
            stream.write(part).await
        ))
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
                        match poll_read(&mut reads, cx, &mut buffer).map(of_io) {
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

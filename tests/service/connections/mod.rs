//! Connection timers: the events that each connection gets, and when.

mod beginnings;
mod by_socket;
mod callbacks;
mod drain;
mod ends;
mod grace;
mod handles;
mod hosts;
mod idle;
mod in_progress;
mod jitter;
mod limits;
mod measured;
mod model;
mod packing;
mod phase;
mod pressure;
mod rates;
mod shared;
mod shared_histories;
mod shared_refusals;
mod silence;
mod sockets;
mod stamps;
mod waits;
mod write_ends;

use corewheel::DeadlineKind::{
    AgeGrace, AllIdle, Custom, Handshake, Heartbeat, MaxAge, ReadIdle, ReadRate, Request,
    RequestIdle, WriteIdle, WriteRate, WriteTimeout,
};
use corewheel::conn::{DataRate, Side};
use corewheel::{ConnEvent, DeadlineKind};

use super::*;

const NONE: ConnLimits = ConnLimits {
    read_idle: Duration::ZERO,
    write_idle: Duration::ZERO,
    all_idle: Duration::ZERO,
    heartbeat: Duration::ZERO,
    request_idle: Duration::ZERO,
    write_timeout: Duration::ZERO,
    handshake: Duration::ZERO,
    max_age: Duration::ZERO,
    max_age_jitter: Duration::ZERO,
    max_age_grace: Duration::ZERO,
    max_age_least: Duration::ZERO,
    handshake_least: Duration::ZERO,
    read_idle_least: Duration::ZERO,
    write_idle_least: Duration::ZERO,
    all_idle_least: Duration::ZERO,
    heartbeat_phase: false,
    min_read_rate: DataRate::OFF,
    min_write_rate: DataRate::OFF,
    unsent_max: 0,
};
const READ_IDLE: ConnLimits = NONE.read_idle(ms(100));

/// All limits are as long.
fn each_limit(limit: Duration) -> ConnLimits {
    let rate = DataRate::new(1, limit);
    let limits = NONE.read_idle(limit).write_idle(limit).all_idle(limit).request_idle(limit);
    let limits = limits.heartbeat(limit).min_read_rate(rate).min_write_rate(rate);
    let limits = limits.write_timeout(limit).handshake(limit);
    limits.max_age(limit).max_age_jitter(limit).max_age_grace(limit)
}

/// All kinds of deadlines, in the order in which events of one turn are delivered.
const KINDS: [DeadlineKind; 20] = [
    MaxAge,
    AgeGrace,
    Handshake,
    Request,
    WriteTimeout,
    ReadRate,
    WriteRate,
    ReadIdle,
    WriteIdle,
    AllIdle,
    RequestIdle,
    Heartbeat,
    Custom(0),
    Custom(1),
    Custom(2),
    Custom(3),
    Custom(4),
    Custom(5),
    Custom(6),
    Custom(7),
];
/// Kinds of deadlines that are armed.
const ARMED: [DeadlineKind; 7] =
    [MaxAge, AgeGrace, Handshake, Request, Custom(0), Custom(1), Custom(7)];

fn lab() -> Lab<u8> {
    Lab::new(builder(1))
}

/// A connection on a shard, or one of tasks on any thread.
trait Opened: Side {
    const NAME: &'static str;
    fn open(lab: &Lab<u8>, limits: ConnLimits) -> ConnTimers<Self>;
    /// What a wait returns.
    fn value<V>(polled: Self::Polled<V>) -> V;
}

impl Opened for Timers {
    const NAME: &'static str = "on a shard";

    fn open(lab: &Lab<u8>, limits: ConnLimits) -> ConnTimers {
        lab.timers().connection(limits).unwrap()
    }

    fn value<V>(polled: V) -> V {
        polled
    }
}

impl Opened for Handle {
    const NAME: &'static str = "on any thread";

    fn open(lab: &Lab<u8>, limits: ConnLimits) -> ConnTimers<Self> {
        lab.service.handle().connection(limits)
    }

    fn value<V>(polled: Result<V, RefusedKind>) -> V {
        polled.unwrap()
    }
}

#[expect(clippy::print_stdout, reason = "a test that fails shows its side")]
fn show_side<S: Opened>() {
    println!("{}", S::NAME);
}

/// Runs a case on a shard, and on any thread: of any connections, or of one whose task waits.
macro_rules! on_both {
    (|$side:ident| $case:block) => {{
        {
            type $side = Timers;
            show_side::<$side>();
            $case
        }
        {
            type $side = Handle;
            show_side::<$side>();
            $case
        }
    }};
    ($limits:expr, |$lab:ident, $conn:ident| $case:block) => {
        on_both!(|S| {
            let $lab = &mut lab();
            let $conn = &S::open($lab, $limits);
            assert_eq!(event($conn), None);
            $case
        })
    };
}

use on_both;

fn poll_with<S: Opened>(conn: &ConnTimers<S>, waker: &Waker) -> Poll<Option<ConnEvent>> {
    conn.poll_next(&mut Context::from_waker(waker)).map(S::value::<Option<ConnEvent>>)
}

fn poll<S: Opened>(conn: &ConnTimers<S>) -> Poll<Option<ConnEvent>> {
    poll_with(conn, Waker::noop())
}

/// The kind of the next event that has come, and whether it is the first.
fn event<S: Opened>(conn: &ConnTimers<S>) -> Option<(DeadlineKind, bool)> {
    match poll(conn) {
        Poll::Ready(event) => event.map(|event| (event.kind, event.first)),
        Poll::Pending => None,
    }
}

/// What comes first, if it has come.
fn race<S: Opened, F: Future + Unpin>(conn: &ConnTimers<S>, of: F) -> Option<Raced<F::Output>> {
    look(&mut pin!(conn.race(of))).map(S::value)
}

type Events = Vec<(u64, DeadlineKind, bool)>;

/// The events that have come, each with its tick.
fn found<S: Opened>(lab: &mut Lab<u8>, conn: &ConnTimers<S>) -> Events {
    lab.settle();
    let events = std::iter::from_fn(|| event(conn));
    events.map(|(kind, first)| (ticks_of(lab.timers()), kind, first)).collect()
}

/// Lets a number of milliseconds pass, one at a time. Returns the events, each with its tick.
fn run<S: Opened>(lab: &mut Lab<u8>, conn: &ConnTimers<S>, milliseconds: u64) -> Events {
    let mut events = Vec::new();
    for _ in 0..milliseconds {
        lab.clock.advance(ms(1));
        events.extend(found(lab, conn));
    }
    events
}

/// A waker that closes a connection when its last clone is dropped.
fn closes_when_dropped<S: Side + 'static>(conn: &ConnTimers<S>) -> Waker {
    let conn = conn.clone();
    let closes = OnDrop(move || _ = conn.close());
    waker_of(move || _ = &closes)
}

/// How many connections the shard's gauge shows, after a turn.
fn counted(lab: &mut Lab<u8>) -> u64 {
    let _ = lab.turn();
    lab.counts().connections
}

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

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use corewheel::DeadlineKind::{
    AgeGrace, AllIdle, Custom, Handshake, Heartbeat, MaxAge, ReadIdle, ReadRate, Request,
    RequestIdle, WriteIdle, WriteRate, WriteTimeout,
};
use corewheel::attach::Turn;
use corewheel::conn::{DataRate, Side};
use corewheel::{
    ConnEvent, ConnLimits, ConnTimers, DeadlineKind, Handle, RefusedKind, TimerServiceBuilder,
    Timers,
};

use corewheel_test_support::{Lab, builder, ms, ticks_of, waker_of};

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
    lab_with(builder(1))
}

fn lab_with(builder: TimerServiceBuilder) -> Lab<u8> {
    Lab::new(builder)
}

fn poll(conn: &ConnTimers) -> Poll<Option<ConnEvent>> {
    conn.poll_next(&mut Context::from_waker(Waker::noop()))
}

/// The kind of the next event that has come, and whether it is the first.
fn event(conn: &ConnTimers) -> Option<(DeadlineKind, bool)> {
    match poll(conn) {
        Poll::Ready(event) => event.map(|event| (event.kind, event.first)),
        Poll::Pending => None,
    }
}

/// A connection on a shard, or one of tasks on any thread.
trait Opened: Side {
    fn open(lab: &Lab<u8>, limits: ConnLimits) -> ConnTimers<Self>;
    /// The kind of the next event that has come, and whether it is the first.
    fn event(conn: &ConnTimers<Self>) -> Option<(DeadlineKind, bool)>;
}

impl Opened for Timers {
    fn open(lab: &Lab<u8>, limits: ConnLimits) -> ConnTimers {
        lab.timers().connection(limits).unwrap()
    }

    fn event(conn: &ConnTimers) -> Option<(DeadlineKind, bool)> {
        event(conn)
    }
}

impl Opened for Handle {
    fn open(lab: &Lab<u8>, limits: ConnLimits) -> ConnTimers<Self> {
        shared::connect(lab, limits)
    }

    fn event(conn: &ConnTimers<Self>) -> Option<(DeadlineKind, bool)> {
        shared::event(conn)
    }
}

/// Lets a number of milliseconds pass, one at a time. Returns the events, each with its tick.
fn run<S: Opened>(
    lab: &mut Lab<u8>,
    conn: &ConnTimers<S>,
    milliseconds: u64,
) -> Vec<(u64, DeadlineKind, bool)> {
    let mut events = Vec::new();
    for _ in 0..milliseconds {
        lab.advance(ms(1));
        while let Some((kind, first)) = S::event(conn) {
            events.push((ticks_of(lab.timers()), kind, first));
        }
    }
    events
}

/// Closes its connection when it is dropped.
struct ClosesWhenDropped<S: Side>(ConnTimers<S>);

impl<S: Side> Drop for ClosesWhenDropped<S> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A waker that closes a connection when its last clone is dropped.
fn closes_when_dropped<S: Side>(conn: &ConnTimers<S>) -> Waker {
    let closes = ClosesWhenDropped(conn.clone());
    waker_of(move || _ = &closes)
}

/// How many connections the shard's gauge shows, after a turn.
fn counted(lab: &mut Lab<u8>) -> u64 {
    let _ = lab.turn();
    lab.counts().connections
}

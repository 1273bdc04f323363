//! Streams with their timeouts: each limit by a manual clock, for both kinds of timers, and servers
//! over real sockets.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

mod acknowledged;
mod control;
mod framework;
mod http;
mod hyper_traits;
mod limits;
mod orders;
mod rates;
mod refusals;
mod servers;
mod timeouts;
mod waits;

use corewheel::stream::StreamControl;
use corewheel::{RefusedKind, Runtime, TimerId};
use corewheel_test_support::stream::*;

/// A stream with its peer's side and its control, in a lab of its own.
fn controlled<K: Kind>(limits: StreamLimits) -> (Lab, Duplex<K>, DuplexStream, StreamControl<K>) {
    let (lab, stream, peer) = open(limits);
    let control = stream.control();
    (lab, stream, peer, control)
}

/// A lab whose shard has room for one timer, which is there.
fn full() -> (Lab, TimerId) {
    let lab = Lab::new(builder(1).capacity(1));
    let timer = lab.timers().schedule(ms(60_000), 7).unwrap();
    (lab, timer)
}

/// Makes room on such a shard.
fn free(lab: &mut Lab, timer: TimerId) {
    let _ = lab.timers().cancel(timer);
    lab.settle();
}

/// The output of a poll, once the shard has looked for room.
fn once_settled<V>(lab: &mut Lab, mut poll: impl FnMut() -> Poll<V>) -> Poll<V> {
    let polled = poll();
    if polled.is_pending() {
        lab.settle();
        return poll();
    }
    polled
}

/// Polls again if it must wait: on a shard, a task returns to its executor after some reads.
fn again<V>(mut poll: impl FnMut() -> Polled<V>) -> Polled<V> {
    let polled = poll();
    if polled.is_pending() { poll() } else { polled }
}

/// The peer sends bytes, a read returns them, and the next one waits.
#[track_caller]
fn receive_and_wait<K: Kind>(stream: &mut Duplex<K>, peer: &mut DuplexStream, bytes: &[u8]) {
    receive(stream, peer, bytes);
    assert!(read(stream).is_pending());
}

/// Lets ticks pass, after which a read waits.
#[track_caller]
fn check_waits<K: Kind>(lab: &mut Lab, ticks: u64, stream: &mut Duplex<K>) {
    lab.advance_ticks(ticks);
    assert!(read(stream).is_pending());
}

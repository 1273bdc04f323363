//! hyper's traits of a stream whose own stream has them: limits, and the count of bytes.

use corewheel::stream::StreamTimeout::{FirstByte, ReadRate, WriteStall};
use hyper::rt::{Read, ReadBuf as HyperBuf, Write};
use hyper_util::rt::TokioIo;

use super::*;

type Stream<K> = TimedIo<TokioIo<DuplexStream>, K>;

fn over_hyper<K: Kind>(lab: &Lab, limits: StreamLimits, room: usize) -> (Stream<K>, DuplexStream) {
    let (stream, peer) = tokio::io::duplex(room);
    (K::open(lab, TokioIo::new(stream), limits), peer)
}

/// Polls a read of up to `len` bytes. Returns the bytes.
fn poll_read<S: Read + Unpin>(stream: &mut S, len: usize) -> Polled<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut buf = HyperBuf::new(&mut bytes);
    let cx = &mut Context::from_waker(Waker::noop());
    let polled = Pin::new(stream).poll_read(cx, buf.unfilled());
    polled.map_ok(|()| buf.filled().to_vec())
}

fn poll_write<S: Write + Unpin>(stream: &mut S, bytes: &[u8]) -> Polled<usize> {
    Pin::new(stream).poll_write(&mut Context::from_waker(Waker::noop()), bytes)
}

both_sides!(stream_of_hyper_ends_at_its_limits);
fn stream_of_hyper_ends_at_its_limits<K: Kind>() {
    let mut lab = lab();
    let limits = NONE.first_byte(ms(LIMIT)).write_stall(ms(LIMIT));
    let (mut stream, _peer) = over_hyper::<K>(&lab, limits, ROOM);
    check_ends::<K, _>(&mut lab, LIMIT, FirstByte(ms(LIMIT)), || poll_read(&mut stream, 4));
    let (mut stream, mut peer) = over_hyper::<K>(&lab, limits, ROOM);
    ready(write(&mut peer, b"a"));
    assert_eq!(ready(poll_read(&mut stream, 4)), b"a");
    assert_eq!(ready(poll_write(&mut stream, &[7; ROOM])), ROOM);
    let cx = &mut Context::from_waker(Waker::noop());
    check_ends::<K, _>(&mut lab, LIMIT, WriteStall(ms(LIMIT)), || poll_write(&mut stream, b"a"));
    assert_eq!(timeout(Pin::new(&mut stream).poll_flush(cx)), Some(WriteStall(ms(LIMIT))));
    ready(Pin::new(&mut stream).poll_shutdown(cx));
}

both_sides!(bytes_of_a_measured_message_are_counted_through_hyper_traits);
fn bytes_of_a_measured_message_are_counted_through_hyper_traits<K: Kind>() {
    let mut lab = lab();
    // One byte in 10 ms, after a grace period of 100 ms.
    let rate = DataRate::new(100, ms(LIMIT));
    let (mut stream, mut peer) = over_hyper::<K>(&lab, NONE.min_read_rate(rate), ROOM);
    stream.control().begin_message();
    for _ in 0..20 {
        ready(write(&mut peer, b"abcd"));
        assert_eq!(ready(poll_read(&mut stream, 64)), b"abcd");
        assert!(poll_read(&mut stream, 64).is_pending());
        lab.advance_ticks(40);
    }
    // Of 80 bytes, the last is due after 800 ms.
    check_ends::<K, _>(&mut lab, 0, ReadRate(rate), || poll_read(&mut stream, 64));
}

both_sides!(long_measured_message_is_read_whole_through_hyper_traits);
fn long_measured_message_is_read_whole_through_hyper_traits<K: Kind>() {
    let lab = lab();
    let rate = DataRate::new(100, ms(LIMIT));
    let sent: Vec<u8> = (0..50_000_u32).map(|at| (at / 7) as u8).collect();
    let (mut stream, mut peer) = over_hyper::<K>(&lab, NONE.min_read_rate(rate), sent.len());
    stream.control().begin_message();
    assert_eq!(ready(write(&mut peer, &sent)), sent.len());
    let mut received = Vec::new();
    while received.len() < sent.len() {
        // A task with a budget returns to its executor now and then.
        let bytes = ready(again(|| poll_read(&mut stream, 20_000)));
        assert!(!bytes.is_empty());
        received.extend(bytes);
    }
    assert_eq!(received, sent);
    drop(peer);
    // The end of the data.
    assert_eq!(ready(again(|| poll_read(&mut stream, 4))), b"");
}

//! Streams without a timer: a shard that is full, a service that has ended, timers that are closed.

use std::future::{Future, pending};
use std::pin::pin;

use corewheel::TimeoutError;

use super::control::refusal;
use super::*;

const FULL: (io::ErrorKind, RefusedKind) = (io::ErrorKind::ResourceBusy, RefusedKind::Full);
const CLOSED: (io::ErrorKind, RefusedKind) = (io::ErrorKind::Other, RefusedKind::Closed);

/// What a poll is refused with, once the shard has looked for room.
#[track_caller]
fn refused<V: Debug>(
    lab: &mut Lab,
    poll: impl FnMut() -> Polled<V>,
) -> (io::ErrorKind, RefusedKind) {
    refusal(once_settled(lab, poll))
}

#[test]
fn full_shard_fails_what_would_wait_and_passes_on_what_is_ready() {
    let (mut lab, timer) = full();
    let (mut stream, mut peer) = duplex::<Handle>(&lab, NONE.read_idle(ms(LIMIT)));
    let control = stream.control();
    assert_eq!(refused(&mut lab, || read(&mut stream)), FULL);
    let cx = &mut Context::from_waker(Waker::noop());
    assert_eq!(refused(&mut lab, || pin!(control.heartbeat()).poll(cx)), FULL);
    receive(&mut stream, &mut peer, b"a");
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    assert_eq!(refused(&mut lab, || write(&mut stream, b"a")), FULL);
    // When there is room, the stream goes on.
    free(&mut lab, timer);
    let expected = StreamTimeout::ReadIdle(ms(LIMIT));
    check_ends::<Handle, _>(&mut lab, LIMIT, expected, || read(&mut stream));
}

#[test]
fn full_shard_gives_the_stream_back_and_so_does_one_that_has_ended() {
    let (mut lab, timer) = full();
    let open = |lab: &Lab| {
        let refused = TimedIo::on_shard("stream", lab.timers(), NONE).unwrap_err();
        (refused.kind(), refused.into_value())
    };
    assert_eq!(open(&lab), (RefusedKind::Full, "stream"));
    let _ = lab.timers().cancel(timer);
    lab.close();
    assert_eq!(open(&lab), (RefusedKind::Closed, "stream"));
}

#[test]
fn full_shard_does_not_keep_a_stream_beyond_its_greatest_age() {
    let (mut lab, _timer) = full();
    let (mut stream, mut peer) = duplex::<Handle>(&lab, NONE.max_age(ms(LIMIT)));
    for _ in 0..LIMIT {
        receive(&mut stream, &mut peer, b"a");
        lab.advance_ticks(1);
    }
    ready(write(&mut peer, b"a"));
    assert_eq!(timeout(read(&mut stream)), Some(StreamTimeout::MaxAge(ms(LIMIT))));
}

both_sides!(ended_service_wakes_and_fails_what_waits_and_passes_on_what_is_ready);
fn ended_service_wakes_and_fails_what_waits_and_passes_on_what_is_ready<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.read_idle(ms(LIMIT)));
    let (alarm, waker) = Alarm::new();
    assert!(read_with(&mut stream, &waker).is_pending());
    alarm.rang();
    lab.close();
    assert!(alarm.rang(), "the task is woken");
    ready(write(&mut peer, b"abcde"));
    assert_eq!(ready(read_with(&mut stream, &waker)), b"abcd");
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    for _ in 0..3 {
        assert_eq!(refusal(write(&mut stream, b"a")), CLOSED);
    }
    assert_eq!(ready(read_with(&mut stream, &waker)), b"e");
    for _ in 0..3 {
        assert_eq!(refusal(read_with(&mut stream, &waker)), CLOSED);
    }
    ready(shutdown(&mut stream));
}

#[test]
fn stream_that_begins_after_the_end_of_its_service_never_waits() {
    let mut lab = lab();
    let handle = lab.service.handle();
    lab.close();
    drop(lab);
    let (stream, mut peer) = tokio::io::duplex(ROOM);
    let mut stream = TimedIo::new(stream, handle, NONE);
    assert_eq!(refusal(read(&mut stream)), CLOSED);
    receive(&mut stream, &mut peer, b"a");
    assert_eq!(refusal(read(&mut stream)), CLOSED);
}

/// A wait of a stream, or of its owner.
type Wait<K> = fn(&mut Duplex<K>, &mut Context<'_>) -> Polled<()>;

both_sides!(dropped_service_fails_each_wait_of_a_stream_as_an_end_that_stays);
fn dropped_service_fails_each_wait_of_a_stream_as_an_end_that_stays<K: Kind>() {
    let timeout = |stream: &mut Duplex<K>, cx: &mut Context<'_>| {
        let control = stream.control();
        let polled = pin!(control.timeout(ms(LIMIT), pending::<()>())).poll(cx);
        polled.map_err(|error| match error {
            TimeoutError::NoTimer(refused) => io::Error::other(refused),
            TimeoutError::Elapsed => io::ErrorKind::TimedOut.into(),
        })
    };
    let waits: [(&str, Wait<K>); 6] = [
        ("read", |stream, _| read(stream).map_ok(drop)),
        ("write", |stream, _| write(stream, b"a").map_ok(drop)),
        ("heartbeat", |stream, cx| pin!(stream.control().heartbeat()).poll(cx)),
        ("request idle", |stream, cx| pin!(stream.control().request_idle()).poll(cx)),
        ("max age", |stream, cx| pin!(stream.control().max_age_reached()).poll(cx)),
        ("timeout", timeout),
    ];
    for (name, wait) in waits {
        let (lab, mut stream, _peer) = open::<K>(NONE.read_idle(ms(LIMIT)));
        assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
        let Lab { service, mut shards, .. } = lab;
        drop(service);
        while shards[0].turn() != Turn::Closed {}
        let cx = &mut Context::from_waker(Waker::noop());
        for round in 0..3 {
            let refused = refusal(wait(&mut stream, cx));
            assert_eq!(refused, CLOSED, "{name}, {round}");
        }
    }
}

both_sides!(timers_that_are_closed_from_elsewhere_end_the_read_that_waits);
fn timers_that_are_closed_from_elsewhere_end_the_read_that_waits<K: Kind>() {
    let (_lab, mut stream, mut peer) = open::<K>(NONE);
    let (alarm, waker) = Alarm::new();
    assert!(read_with(&mut stream, &waker).is_pending());
    let control = stream.control();
    assert!(control.timers().close());
    assert!(alarm.rang(), "the task is woken");
    assert_eq!(refusal(read_with(&mut stream, &waker)), CLOSED);
    receive(&mut stream, &mut peer, b"a");
    ready(shutdown(&mut stream));
}

//! What comes first where a stream is ready at its deadline, and streams of which two tasks have a
//! half each.

use std::io::IoSlice;
use std::marker::PhantomPinned;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use corewheel::stream::StreamTimeout::{Idle, MaxAge, ReadIdle, WriteRate, WriteStall};

use super::*;

both_sides!(data_that_has_come_before_it_is_read_is_in_time);
fn data_that_has_come_before_it_is_read_is_in_time<K: Kind>() {
    let limits = NONE.read_idle(ms(LIMIT)).idle(ms(LIMIT)).first_byte(ms(LIMIT));
    let (mut lab, mut stream, mut peer) = open::<K>(limits);
    assert!(read(&mut stream).is_pending());
    lab.advance_ticks(LIMIT - 1);
    ready(write(&mut peer, b"a"));
    // The task runs much too late. Its timers have expired.
    lab.advance_ticks(5 * LIMIT);
    assert_eq!(ready(read(&mut stream)), b"a");
    check_ends::<K, _>(&mut lab, LIMIT, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

both_sides!(write_that_is_accepted_after_its_deadline_is_in_time);
fn write_that_is_accepted_after_its_deadline_is_in_time<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.write_stall(ms(LIMIT)));
    fill(&mut stream);
    lab.advance_ticks(5 * LIMIT);
    // The event has come. The reading half looks at it first, and leaves it to the writing half.
    assert!(read(&mut stream).is_pending());
    take(&mut peer, &mut stream);
    // Nothing is left of the event for the next write that waits.
    check_ends::<K, _>(&mut lab, LIMIT, WriteStall(ms(LIMIT)), || write(&mut stream, b"a"));
}

fn check_halves<K: Kind>(limits: StreamLimits, expected: StreamTimeout, reader_first: bool) {
    let (mut lab, stream, _peer) = open::<K>(limits);
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (read_alarm, read_waker) = Alarm::new();
    let (write_alarm, write_waker) = Alarm::new();
    ready(write(&mut writer, &[7; ROOM]));
    // The order in which tasks are polled decides nothing.
    assert!(read_with(&mut reader, &read_waker).is_pending());
    assert!(write_with(&mut writer, b"a", &write_waker).is_pending());
    if reader_first {
        assert!(read_with(&mut reader, &read_waker).is_pending());
    }
    let (mut read_ended, mut write_ended) = (None, None);
    for tick in 0..=LIMIT + K::LATE {
        // Only a task that is woken polls, and again as long as it is woken.
        loop {
            let (is_read_woken, is_write_woken) = (read_alarm.rang(), write_alarm.rang());
            if is_read_woken && read_ended.is_none() {
                read_ended = timeout(read_with(&mut reader, &read_waker));
            }
            if is_write_woken && write_ended.is_none() {
                write_ended = timeout(write_with(&mut writer, b"a", &write_waker));
            }
            if !is_read_woken && !is_write_woken {
                break;
            }
        }
        if tick < LIMIT {
            assert_eq!((read_ended, write_ended), (None, None), "after {tick} ticks");
        }
        lab.advance_ticks(1);
    }
    assert_eq!((read_ended, write_ended), (Some(expected), Some(expected)));
}

both_sides!(both_halves_of_a_split_stream_are_woken_and_receive_the_error);
fn both_halves_of_a_split_stream_are_woken_and_receive_the_error<K: Kind>() {
    let limit = ms(LIMIT);
    for reader_first in [false, true] {
        check_halves::<K>(NONE.read_idle(limit), ReadIdle(limit), reader_first);
        check_halves::<K>(NONE.write_stall(limit), WriteStall(limit), reader_first);
        check_halves::<K>(NONE.idle(limit), Idle(limit), reader_first);
        check_halves::<K>(NONE.max_age(limit), MaxAge(limit), reader_first);
        let with_others = NONE.write_stall(limit).heartbeat(ms(7)).read_idle(2 * limit);
        check_halves::<K>(with_others, WriteStall(limit), reader_first);
    }
}

both_sides!(writing_half_does_not_end_a_read_whose_data_has_come);
fn writing_half_does_not_end_a_read_whose_data_has_come<K: Kind>() {
    let (mut lab, stream, mut peer) = open::<K>(NONE.idle(ms(LIMIT)).read_idle(ms(LIMIT)));
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (alarm, waker) = Alarm::new();
    ready(write(&mut writer, &[7; ROOM]));
    assert!(read_with(&mut reader, &waker).is_pending());
    assert!(write(&mut writer, b"a").is_pending());
    ready(write(&mut peer, b"a"));
    lab.advance_ticks(5 * LIMIT);
    alarm.rang();
    // The writing half is polled first. It does not end a read whose data has come.
    assert!(write(&mut writer, b"a").is_pending());
    assert_eq!(ready(read_with(&mut reader, &waker)), b"a");
    assert!(write(&mut writer, b"a").is_pending());
    assert!(read_with(&mut reader, &waker).is_pending());
}

both_sides!(half_that_finds_the_deadline_of_the_other_half_wakes_it);
/// A task that begins to wait finds the deadline of another before the timer wakes that one.
fn half_that_finds_the_deadline_of_the_other_half_wakes_it<K: Kind>() {
    // With a limit of its own, the write that waits would hold the idle time back.
    let limits = NONE.read_idle(ms(LIMIT));
    let (mut lab, stream, _peer) = open::<K>(limits);
    let (mut reader, mut writer) = tokio::io::split(stream);
    let (reads, reads_waker) = Alarm::new();
    ready(write(&mut writer, &[7; ROOM]));
    assert!(read_with(&mut reader, &reads_waker).is_pending());
    // The clock has passed the deadline, and the shard takes no turn, so its timer wakes no task.
    lab.advance_ticks(20);
    lab.clock.advance(ms(LIMIT + K::LATE - 20));
    reads.rang();
    // The flush is done at once and looks at nothing, the write finds the event.
    ready(flush(&mut writer));
    assert!(write(&mut writer, b"a").is_pending());
    if !K::FINDS_IN_POLLS {
        lab.settle();
    }
    assert!(reads.rang(), "the reading half is woken");
    lab.settle();
    assert_eq!(timeout(read_with(&mut reader, &reads_waker)), Some(ReadIdle(ms(LIMIT))));
    assert_eq!(timeout(write(&mut writer, b"a")), Some(ReadIdle(ms(LIMIT))));
}

both_sides!(wait_that_begins_does_not_wake_its_own_task);
fn wait_that_begins_does_not_wake_its_own_task<K: Kind>() {
    // The first write that waits, a head, and a message that goes on after a long pause: each has
    // an earlier deadline than there was before.
    let rate = DataRate::new(1, ms(LIMIT));
    let limits = NONE.idle(ms(90 * LIMIT)).min_read_rate(rate);
    let (mut lab, mut stream, mut peer) = open::<K>(limits.write_stall(ms(80 * LIMIT)));
    let (alarm, waker) = Alarm::new();
    assert!(read_with(&mut stream, &waker).is_pending());
    ready(write(&mut stream, &[7; ROOM]));
    alarm.rang();
    assert!(write_with(&mut stream, b"a", &waker).is_pending());
    assert!(!alarm.rang(), "a write that begins to wait wakes its own task");

    stream.control().begin_message();
    receive(&mut stream, &mut peer, b"a");
    lab.advance_ticks(10 * LIMIT);
    assert!(write_with(&mut stream, b"a", &waker).is_pending());
    lab.settle();
    alarm.rang();
    assert!(read_with(&mut stream, &waker).is_pending());
    assert!(!alarm.rang(), "a message that goes on wakes its own task");

    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.idle(ms(90 * LIMIT)).head(ms(LIMIT)));
    assert!(read_with(&mut stream, &waker).is_pending());
    ready(write(&mut peer, b"a"));
    alarm.rang();
    assert_eq!(ready(read_with(&mut stream, &waker)), b"a");
    assert!(read_with(&mut stream, &waker).is_pending());
    assert!(!alarm.rang(), "a head that begins wakes its own task");
}

#[test]
fn stream_on_a_shard_returns_to_its_executor_after_eight_ready_results() {
    let (_lab, mut stream, mut peer) = open::<Timers>(NONE);
    let (alarm, waker) = Alarm::new();
    for _ in 0..3 {
        for _ in 0..4 {
            ready(write(&mut peer, b"a"));
            assert_eq!(ready(read_with(&mut stream, &waker)), b"a");
            assert_eq!(ready(write_with(&mut stream, b"b", &waker)), 1);
            assert_eq!(ready(read(&mut peer)), b"b");
        }
        ready(write(&mut peer, b"a"));
        assert!(!alarm.rang());
        assert!(read_with(&mut stream, &waker).is_pending());
        assert!(alarm.rang(), "the task goes on when other tasks have run");
        // The read that goes on counts for the next time.
        assert_eq!(ready(read_with(&mut stream, &waker)), b"a");
        assert_eq!(ready(write_with(&mut stream, b"b", &waker)), 1);
        assert_eq!(ready(read(&mut peer)), b"b");
        // A read that must wait begins the count again.
        assert!(read_with(&mut stream, &waker).is_pending());
        ready(write(&mut peer, b"a"));
        assert!(alarm.rang());
        assert_eq!(ready(read_with(&mut stream, &waker)), b"a");
    }
}

/// A stream that the test lets go on.
#[derive(Clone, Default)]
struct Gate {
    is_open: Arc<AtomicBool>,
    calls: Arc<Mutex<Vec<&'static str>>>,
    _pinned: PhantomPinned,
}

impl Gate {
    fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::SeqCst);
    }

    fn poll(&self, call: &'static str) -> Polled<()> {
        self.calls.lock().unwrap().push(call);
        if self.is_open.load(Ordering::SeqCst) { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

/// A stream that must not be moved, and its gate, which is closed.
fn gated<K: Kind>(limits: StreamLimits) -> (Lab, Pin<Box<TimedIo<Gate, K>>>, Gate) {
    let (lab, gate) = (lab(), Gate::default());
    let stream = Box::pin(K::open(&lab, gate.clone(), limits));
    (lab, stream, gate)
}

fn write_vectored<S: AsyncWrite + Unpin>(stream: &mut S) -> Polled<usize> {
    let bufs = [IoSlice::new(b"ab"), IoSlice::new(b"cd")];
    Pin::new(stream).poll_write_vectored(&mut Context::from_waker(Waker::noop()), &bufs)
}

impl AsyncRead for Gate {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Polled<()> {
        self.poll("read")
    }
}

impl AsyncWrite for Gate {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Polled<usize> {
        self.poll("write").map_ok(|()| bytes.len())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Polled<usize> {
        self.poll("write vectored").map_ok(|()| bufs.iter().map(|buf| buf.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Polled<()> {
        self.poll("flush")
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Polled<()> {
        self.poll("shutdown")
    }
}

both_sides!(write_that_is_not_polled_again_holds_idle_times_back_until_its_limit);
fn write_that_is_not_polled_again_holds_idle_times_back_until_its_limit<K: Kind>() {
    let idle = NONE.idle(ms(LIMIT));
    let rate = DataRate::new(1, ms(3 * LIMIT));
    // A stall leaves the stamps of before, and the end of a wait for a rate is one.
    for (limits, after) in
        [(idle.write_stall(ms(3 * LIMIT)), 3 * LIMIT), (idle.min_write_rate(rate), 4 * LIMIT)]
    {
        let (mut lab, mut stream, _peer) = open::<K>(limits);
        fill(&mut stream);
        check_ends::<K, _>(&mut lab, after, Idle(ms(LIMIT)), || read(&mut stream));
    }
}

both_sides!(write_that_waited_and_goes_on_begins_the_time_of_a_read_again);
fn write_that_waited_and_goes_on_begins_the_time_of_a_read_again<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.read_idle(ms(LIMIT)));
    ready(write(&mut stream, &[7; ROOM]));
    assert!(read(&mut stream).is_pending());
    for _ in 0..20 {
        assert!(write(&mut stream, b"aaaa").is_pending());
        check_waits(&mut lab, LIMIT - 1, &mut stream);
        // The peer sends nothing, and takes 4 bytes.
        take(&mut peer, &mut stream);
    }
    // A write that waits, and does not go on, is no activity.
    assert!(write(&mut stream, b"a").is_pending());
    check_ends::<K, _>(&mut lab, LIMIT, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

both_sides!(write_that_is_accepted_at_once_is_no_activity_of_the_peer);
fn write_that_is_accepted_at_once_is_no_activity_of_the_peer<K: Kind>() {
    let (mut lab, mut stream, _peer) = open::<K>(NONE.read_idle(ms(LIMIT)));
    assert!(read(&mut stream).is_pending());
    for _ in 0..4 {
        lab.advance_ticks(LIMIT / 5);
        // There is room for it, whatever the peer does.
        ready(write(&mut stream, b"aaaa"));
    }
    check_ends::<K, _>(&mut lab, LIMIT / 5, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

both_sides!(each_operation_of_a_write_is_passed_on_and_ends_when_it_stalls);
fn each_operation_of_a_write_is_passed_on_and_ends_when_it_stalls<K: Kind>() {
    let stall = WriteStall(ms(LIMIT));
    for operation in ["write", "write vectored", "flush", "shutdown"] {
        let (mut lab, mut stream, gate) = gated::<K>(NONE.write_stall(ms(LIMIT)));
        assert!(stream.is_write_vectored());
        let mut poll = || match operation {
            "write" => write(&mut stream, b"abc").map_ok(drop),
            "write vectored" => write_vectored(&mut stream).map_ok(drop),
            "flush" => flush(&mut stream),
            _ => shutdown(&mut stream),
        };
        assert!(poll().is_pending(), "{operation}");
        assert_eq!(*gate.calls.lock().unwrap(), [operation]);
        check_ends::<K, _>(&mut lab, LIMIT, stall, poll);
        // A shutdown is tried again, and has the same time again.
        gate.calls.lock().unwrap().clear();
        let (ticks, again) = ends(&mut lab, || shutdown(&mut stream));
        assert_eq!((ticks, again), (LIMIT, stall), "{operation}");
        assert!(gate.calls.lock().unwrap().iter().all(|call| *call == "shutdown"));
    }
}

both_sides!(reads_in_a_row_that_are_ready_begin_the_idle_time_of_what_waits_after_them);
fn reads_in_a_row_that_are_ready_begin_the_idle_time_of_what_waits_after_them<K: Kind>() {
    for (reads, reads_on) in [(1, false), (1, true), (3, true), (7, false), (8, true), (9, false)] {
        let (mut lab, mut stream, mut peer) = open::<K>(NONE.idle(ms(LIMIT)));
        let read_all = |stream: &mut Duplex<K>, peer: &mut DuplexStream| {
            for _ in 0..reads {
                ready(write(peer, b"a"));
                assert_eq!(ready(again(|| read(stream))), b"a");
            }
        };
        // An idle time begins with the reads, or with the wait after them.
        lab.advance_ticks(60);
        read_all(&mut stream, &mut peer);
        assert_eq!(ready(again(|| write(&mut stream, &[0; ROOM]))), ROOM);
        lab.advance_ticks(60);
        read_all(&mut stream, &mut peer);
        assert!(again(|| write(&mut stream, b"b")).is_pending());
        if reads_on {
            lab.advance_ticks(50);
            read_all(&mut stream, &mut peer);
        }
        check_ends::<K, _>(&mut lab, LIMIT, Idle(ms(LIMIT)), || write(&mut stream, b"b"));
    }
}

both_sides!(idle_time_of_a_write_counts_from_its_wait_whatever_was_read_before);
fn idle_time_of_a_write_counts_from_its_wait_whatever_was_read_before<K: Kind>() {
    for reads in [0, 1, 7, 8, 9, 16] {
        for read_waits in [false, true] {
            let (mut lab, mut stream, mut peer) = open::<K>(NONE.idle(ms(LIMIT)));
            assert_eq!(ready(again(|| write(&mut stream, &[0; ROOM]))), ROOM);
            for _ in 0..reads {
                ready(write(&mut peer, b"a"));
                assert_eq!(ready(again(|| read(&mut stream))), b"a");
            }
            if read_waits {
                assert!(again(|| read(&mut stream)).is_pending());
            }
            // The owner works. Where a read waits, this is silence of the peer.
            lab.advance_ticks(60);
            assert!(again(|| write(&mut stream, b"b")).is_pending());
            let idle = Idle(ms(LIMIT));
            if read_waits {
                check_ends::<K, _>(&mut lab, LIMIT - 60, idle, || read(&mut stream));
            } else {
                check_ends::<K, _>(&mut lab, LIMIT, idle, || write(&mut stream, b"b"));
            }
        }
    }
}

both_sides!(limit_that_has_ended_a_stream_is_counted_also_when_its_shutdown_has_to_wait);
fn limit_that_has_ended_a_stream_is_counted_also_when_its_shutdown_has_to_wait<K: Kind>() {
    let (mut lab, mut stream, gate) = gated::<K>(NONE.idle(ms(LIMIT)).write_stall(ms(LIMIT)));
    check_ends::<K, _>(&mut lab, LIMIT, Idle(ms(LIMIT)), || read(&mut stream));
    assert!(shutdown(&mut stream).is_pending());
    lab.advance_ticks(50);
    gate.set_open(true);
    ready(shutdown(&mut stream));
    drop(stream);
    let stats = lab.service.stats();
    let ended = stats.deadlines.iter().filter(|of| of.ended > 0).map(|of| (of.kind, of.ended));
    assert_eq!(ended.collect::<Vec<_>>(), [("all idle", 1)]);
    assert_eq!(stats.connections_closed, 0);
}

both_sides!(read_without_a_byte_is_no_activity);
fn read_without_a_byte_is_no_activity<K: Kind>() {
    let (mut lab, mut stream, gate) = gated::<K>(NONE.idle(ms(LIMIT)));
    check_ends::<K, _>(&mut lab, LIMIT, Idle(ms(LIMIT)), || {
        gate.set_open(true);
        // A task with a budget returns to its executor now and then.
        if let Poll::Ready(read) = read(&mut stream) {
            assert_eq!(read?, b"");
        }
        gate.set_open(false);
        write(&mut stream, b"a")
    });
}

both_sides!(flush_that_has_waited_gives_the_next_one_its_whole_time);
fn flush_that_has_waited_gives_the_next_one_its_whole_time<K: Kind>() {
    let (mut lab, mut stream, gate) = gated::<K>(NONE.write_stall(ms(LIMIT)));
    for _ in 0..3 {
        assert!(flush(&mut stream).is_pending());
        lab.advance_ticks(LIMIT - 1);
        assert!(flush(&mut stream).is_pending());
        gate.set_open(true);
        ready(flush(&mut stream));
        gate.set_open(false);
        lab.advance_ticks(LIMIT);
    }
    check_ends::<K, _>(&mut lab, LIMIT, WriteStall(ms(LIMIT)), || flush(&mut stream));
}

both_sides!(write_that_waits_after_a_flush_ends_at_its_least_rate);
fn write_that_waits_after_a_flush_ends_at_its_least_rate<K: Kind>() {
    let rate = DataRate::new(100, ms(LIMIT));
    let limits = NONE.write_stall(ms(10 * LIMIT)).min_write_rate(rate);
    let (mut lab, mut stream, _gate) = gated::<K>(limits);
    assert!(flush(&mut stream).is_pending());
    check_ends::<K, _>(&mut lab, LIMIT, WriteRate(rate), || write(&mut stream, b"a"));
}

both_sides!(write_that_waits_after_its_limit_was_shortened_ends_at_the_new_limit);
fn write_that_waits_after_its_limit_was_shortened_ends_at_the_new_limit<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.write_stall(ms(10 * LIMIT)));
    fill(&mut stream);
    assert_eq!(ready(read(&mut peer)), [7; 4]);
    ready(write(&mut stream, &[7; 4]));
    stream.timers().set_limits(ConnLimits::default().write_timeout(ms(LIMIT)));
    lab.settle();
    check_ends::<K, _>(&mut lab, LIMIT, WriteStall(ms(LIMIT)), || write(&mut stream, b"a"));
}

both_sides!(operations_that_are_ready_return_their_results);
fn operations_that_are_ready_return_their_results<K: Kind>() {
    let (_lab, mut stream, gate) = gated::<K>(NONE.write_stall(ms(LIMIT)));
    gate.set_open(true);
    assert_eq!(ready(write_vectored(&mut stream)), 4);
    assert_eq!(ready(write(&mut stream, b"abc")), 3);
    ready(flush(&mut stream));
    ready(shutdown(&mut stream));
}

#[test]
fn stream_with_shared_timers_is_send_sync_and_static() {
    fn check<V: Send + Sync + 'static>() {}
    check::<Duplex<Handle>>();
    check::<StreamControl>();
}

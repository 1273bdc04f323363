//! What an adapter of an HTTP library tells a stream, for both kinds of timers. The test is the
//! library.

use std::future::Future;
use std::io::Write;
use std::net::TcpStream as Client;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use corewheel::stream::StreamTimeout::{Head, Idle, WriteStall};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::*;

const IDLE: StreamLimits = NONE.idle(ms(LIMIT));
/// A write that waits does not end within a test.
const BOUND: StreamLimits = IDLE.write_stall(ms(20 * LIMIT));

/// Checks that a stream goes on for several times the limit.
#[track_caller]
fn check_open<K: Kind>(lab: &mut Lab, stream: &mut Duplex<K>) {
    for _ in 0..3 * LIMIT {
        assert_eq!(timeout(read(stream)), None);
        lab.advance_ticks(1);
    }
    assert_eq!(timeout(read(stream)), None);
}

#[track_caller]
fn check_idle<K: Kind>(lab: &mut Lab, stream: &mut Duplex<K>) {
    check_ends::<K, _>(lab, LIMIT, Idle(ms(LIMIT)), || read(stream));
}

both_sides!(held_requests_hold_idle_time_back_until_the_last_has_ended);
fn held_requests_hold_idle_time_back_until_the_last_has_ended<K: Kind>() {
    let (mut lab, mut stream, _peer, control) = controlled::<K>(IDLE);
    assert!(!control.bounds_writes());
    control.hold_request();
    control.hold_request();
    check_open(&mut lab, &mut stream);
    control.release_request();
    check_open(&mut lab, &mut stream);
    // No limit bounds a write, so the request ends although nothing was flushed.
    control.end_request_at_flush();
    check_idle(&mut lab, &mut stream);
}

/// When the owner is to end a connection without requests; `None` while there is one.
fn request_idle<K: Kind>(lab: &Lab, stream: &Duplex<K>) -> Option<Duration> {
    let due = stream.timers().deadline(DeadlineKind::RequestIdle)?;
    Some(due - lab.clock.now())
}

/// Checks that a request, whose response waits in the stream, ends when the stream accepts all.
fn check_end<K: Kind>(end: fn(&StreamControl<K>)) {
    let (mut lab, mut stream, mut peer, control) = controlled::<K>(BOUND.request_idle(ms(LIMIT)));
    assert!(control.bounds_writes());
    control.hold_request();
    // More than the peer has room for.
    while write(&mut stream, b"long").is_ready() {}
    end(&control);
    check_open(&mut lab, &mut stream);
    assert!(write(&mut stream, b"last").is_pending());
    lab.advance_ticks(LIMIT / 2);
    ready(read(&mut peer));
    ready(write(&mut stream, b"last"));
    ready(flush(&mut stream));
    let left = request_idle(&lab, &stream).expect("the request has ended");
    assert!((ms(LIMIT)..=ms(LIMIT + 1 + K::LATE)).contains(&left), "{left:?}");
    check_idle(&mut lab, &mut stream);
}

both_sides!(request_whose_response_waits_ends_when_the_stream_has_accepted_all_of_it);
fn request_whose_response_waits_ends_when_the_stream_has_accepted_all_of_it<K: Kind>() {
    check_end::<K>(StreamControl::end_request_at_flush);
    check_end::<K>(StreamControl::end_request_at_write);
}

both_sides!(request_that_waits_for_no_write_ends_at_once_or_with_the_next_flush);
fn request_that_waits_for_no_write_ends_at_once_or_with_the_next_flush<K: Kind>() {
    for is_flushed in [true, false] {
        let (mut lab, mut stream, _peer, control) = controlled::<K>(BOUND.request_idle(ms(LIMIT)));
        control.hold_request();
        lab.advance_ticks(LIMIT);
        if is_flushed {
            control.end_request_at_flush();
        } else {
            control.end_request_at_write();
        }
        lab.advance_ticks(LIMIT / 2);
        // A library that has nothing to write flushes later than it ends, if at all.
        if is_flushed {
            ready(flush(&mut stream));
        }
        let left = request_idle(&lab, &stream).expect("the request has ended");
        let expected = if is_flushed { LIMIT } else { LIMIT / 2 };
        assert!((ms(expected)..=ms(expected + 1 + K::LATE)).contains(&left), "{left:?}");
    }
}

both_sides!(any_thread_ends_a_request_whose_response_was_cut);
fn any_thread_ends_a_request_whose_response_was_cut<K: Kind>() {
    let (mut lab, mut stream, _peer, control) = controlled::<K>(BOUND);
    let shared = control.shared();
    control.hold_request();
    let (alarm, waker) = Alarm::new();
    assert!(read_with(&mut stream, &waker).is_pending());
    check_open(&mut lab, &mut stream);
    assert!(read_with(&mut stream, &waker).is_pending());
    alarm.rang();
    thread::spawn(move || shared.end_request()).join().unwrap();
    assert!(alarm.rang(), "the task that reads is not woken");
    check_idle(&mut lab, &mut stream);
}

both_sides!(piece_that_is_kept_is_a_stalled_write_until_all_of_it_is_taken);
fn piece_that_is_kept_is_a_stalled_write_until_all_of_it_is_taken<K: Kind>() {
    let limits = NONE.write_stall(ms(LIMIT)).idle(ms(100 * LIMIT));
    let (mut lab, mut stream, _peer, control) = controlled::<K>(limits);
    control.begin_piece();
    control.take_piece(5);
    let flushed = |stream: &mut Duplex<K>| match flush(stream) {
        Poll::Ready(Ok(())) => Poll::Pending,
        ended => ended,
    };
    // The library keeps the rest, as the peer gives no window.
    check_ends::<K, _>(&mut lab, LIMIT, WriteStall(ms(LIMIT)), || flushed(&mut stream));

    let mut lab = super::lab();
    let (mut stream, _peer) = duplex::<K>(&lab, limits);
    let control = stream.control();
    control.begin_piece();
    for _ in 0..3 {
        assert_eq!(timeout(flushed(&mut stream)), None);
        lab.advance_ticks(LIMIT / 2);
        control.take_piece(2);
    }
    control.take_piece(2);
    control.end_piece(true);
    ready(flush(&mut stream));
    for _ in 0..3 {
        lab.advance_ticks(LIMIT);
        assert_eq!(timeout(flushed(&mut stream)), None, "no piece is left");
    }
}

both_sides!(piece_that_is_dropped_wakes_the_task_unless_its_bytes_were_taken);
fn piece_that_is_dropped_wakes_the_task_unless_its_bytes_were_taken<K: Kind>() {
    for (taken, wakes) in [(0, true), (8, false)] {
        let (_lab, mut stream, _peer) = open::<K>(NONE.write_stall(ms(LIMIT)));
        let (alarm, waker) = Alarm::new();
        let control = stream.control();
        control.begin_piece();
        // The task waits for a window from here on.
        ready(Pin::new(&mut stream).poll_flush(&mut Context::from_waker(&waker)));
        control.take_piece(taken);
        control.end_piece(!wakes);
        assert_eq!(alarm.rang(), wakes, "{taken} bytes were taken");
    }
}

fn receive<K: Kind>(stream: &mut Duplex<K>, peer: &mut DuplexStream, bytes: &[u8]) {
    ready(write(peer, bytes));
    let mut buffer = [0; ROOM];
    let mut buf = ReadBuf::new(&mut buffer);
    ready(Pin::new(stream).poll_read(&mut Context::from_waker(Waker::noop()), &mut buf));
    assert_eq!(buf.filled(), bytes);
}

both_sides!(bytes_behind_the_known_end_of_a_message_begin_the_next_head);
fn bytes_behind_the_known_end_of_a_message_begin_the_next_head<K: Kind>() {
    let message = b"A\r\n\r\nbody";
    // By a known end, bytes behind it are those of the next head, which is due then.
    for (behind, body, is_known) in
        [(&b""[..], 4, true), (b"B", 4, true), (b"B", 5, true), (b"B", 4, false)]
    {
        let (mut lab, mut stream, mut peer, control) = controlled::<K>(NONE.head(ms(LIMIT)));
        control.begin_message();
        receive(&mut stream, &mut peer, &[message, behind].concat());
        control.head_complete();
        let head = control.take_head_end();
        assert_eq!((head, control.take_head_end()), (Some(5), None));
        if is_known {
            control.message_ends_at(5 + body);
        } else {
            control.message_complete();
        }
        control.begin_message();
        if is_known && body == 4 && !behind.is_empty() {
            let read = || read(&mut stream);
            check_ends::<K, _>(&mut lab, LIMIT, Head(ms(LIMIT)), read);
        } else {
            check_open(&mut lab, &mut stream);
        }
    }
}

#[test]
fn decision_by_a_clock_that_a_test_moves_is_made_at_once() {
    let (_lab, stream, _peer) = open::<Handle>(NONE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let _entered = runtime.enter();
    let (decided, is_decided) = mpsc::channel();
    stream
        .control()
        .shared()
        .decide(Instant::now(), move || decided.send(thread::current().id()).unwrap());
    assert_eq!(is_decided.try_recv(), Ok(thread::current().id()));
    assert_eq!(is_decided.try_recv(), Err(mpsc::TryRecvError::Disconnected), "it is made once");
}

both_sides!(bytes_that_a_read_waited_for_move_their_stream_when_they_are_read);
fn bytes_that_a_read_waited_for_move_their_stream_when_they_are_read<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE);
    let shared = stream.control().shared();
    let begin = lab.clock.now();
    assert!(read(&mut stream).is_pending() && !shared.has_moved_since(begin));
    lab.advance_ticks(1);
    let moved = lab.clock.now();
    assert_eq!(ready(write(&mut peer, b"a")), 1);
    assert!(!shared.has_moved_since(begin), "nothing was read");
    ready(read(&mut stream));
    assert!(shared.has_moved_since(begin) && shared.has_moved_since(moved));
    assert!(read(&mut stream).is_pending());
    // A stamp of a shard is good for a few ticks.
    lab.advance_ticks(LIMIT);
    assert!(!shared.has_moved_since(lab.clock.now()));
}

#[test]
fn decision_comes_after_what_lay_in_the_socket_has_reached_its_consumer() {
    let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start().unwrap();
    let timers = service.handle();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let found = runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = Client::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let mut stream = TimedIo::new(socket, timers, IDLE.idle(Duration::from_secs(3_600)));
        let control: StreamControl = stream.control();
        let (sender, mut consumer) = tokio::sync::mpsc::unbounded_channel();
        let reading = tokio::spawn(async move {
            while let Ok(byte) = stream.read_u8().await {
                // An owner that has gone reads no more.
                let _ = sender.send(byte);
            }
        });
        client.write_all(b"a").unwrap();
        assert_eq!(consumer.recv().await, Some(b'a'));
        // The runtime is held up, and its client is in time.
        client.write_all(b"b").unwrap();
        let (decided, found) = tokio::sync::oneshot::channel();
        control.shared().decide(Instant::now(), move || decided.send(consumer.try_recv()).unwrap());
        let found = found.await.unwrap();
        reading.abort();
        found
    });
    assert_eq!(found, Ok(b'b'));
}

#[test]
fn decision_of_a_runtime_that_shuts_down_is_made_nevertheless() {
    let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (stream, _peer) = tokio::io::duplex(ROOM);
    let stream = TimedIo::new(stream, service.handle(), NONE);
    let (decided, is_decided) = mpsc::channel();
    runtime.block_on(async {
        stream.control().shared().decide(Instant::now(), move || decided.send(()).unwrap());
        assert_eq!(is_decided.try_recv(), Err(mpsc::TryRecvError::Empty), "there is no proof yet");
    });
    drop(runtime);
    assert_eq!(is_decided.try_recv(), Ok(()));
}

#[test]
fn handle_of_a_control_makes_timers_on_the_shard_of_its_stream() {
    let (mut lab, stream, _peer) = open::<Timers>(NONE);
    let mut sleep = stream.control().handle().sleep(ms(LIMIT));
    let (alarm, waker) = Alarm::new();
    assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker)).is_pending());
    lab.advance_ticks(LIMIT);
    assert!(alarm.rang());
}

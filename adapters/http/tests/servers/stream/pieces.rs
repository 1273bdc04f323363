//! Pieces of HTTP/2 responses that wait for a window, for both kinds of timers. The test is the
//! framework: it takes the pieces, writes other frames and flushes.

use corewheel::stream::StreamTimeout::{WriteRate, WriteStall};
use hyper::body::Buf;

use super::requests::{Conn, piece};
use super::*;

const STALL: StreamLimits = NONE.write_stall(ms(LIMIT)).idle(ms(1_000 * LIMIT));
/// How many bytes a framework copies before it writes: those of an HTTP/2 frame.
const COPIED: usize = 16 << 10;
static LONG: [u8; 1 << 20] = [b'x'; 1 << 20];

/// Checks that a connection that flushes is a stalled write so many ticks from now.
#[track_caller]
fn check_stalls<K: Kind>(conn: &mut Conn<K>, after: u64) {
    let stream = &mut conn.stream;
    check_ends::<K, _>(&mut conn.lab, after, WriteStall(ms(LIMIT)), || match flush(stream) {
        Poll::Ready(Ok(())) => Poll::Pending,
        ended => ended,
    });
}

both_sides!(piece_that_comes_after_the_last_flush_is_a_stalled_write_without_a_window);
fn piece_that_comes_after_the_last_flush_is_a_stalled_write_without_a_window<K: Kind>() {
    let mut conn = Conn::<K>::new(STALL);
    let (alarm, waker) = Alarm::new();
    let (feed, mut body) = conn.answer(&mut conn.get_http2());
    // The head of the response is written, and the framework has nothing else.
    ready(write(&mut conn.stream, b"head"));
    ready(flush(&mut conn.stream));
    assert!(read_with(&mut conn.stream, &waker).is_pending());
    conn.lab.advance_ticks(2 * LIMIT);
    assert!(!alarm.rang());
    feed.push(b"late");
    let _piece = piece(&mut body);
    assert!(alarm.rang(), "no poll of the stream finds the piece");
    assert!(read_with(&mut conn.stream, &waker).is_pending());
    check_stalls(&mut conn, LIMIT);
}

/// Other frames fill the peer's side, until no more is accepted.
fn fill<K: Kind>(conn: &mut Conn<K>) -> io::Result<()> {
    while let Poll::Ready(written) = write(&mut conn.stream, b"pong") {
        written?;
    }
    Ok(())
}

/// The peer takes some of what lies on its side.
fn take<K: Kind>(conn: &mut Conn<K>, bytes: usize) {
    for _ in 0..bytes / 4 {
        ready(read(&mut conn.peer));
    }
}

/// In how many ticks, and by which limit, a stream ends in which this happens in each of them.
fn end_of<K: Kind>(
    conn: &mut Conn<K>,
    mut round: impl FnMut(&mut Conn<K>) -> io::Result<()>,
) -> (u64, StreamTimeout) {
    for ticks in 0..100_000 {
        if let Err(error) = round(conn) {
            return (ticks, timeout(Poll::Ready(Err::<(), _>(error))).unwrap());
        }
        conn.lab.advance_ticks(1);
    }
    panic!("no limit was reached");
}

both_sides!(peer_that_fills_and_empties_the_socket_does_not_begin_its_stall_again);
fn peer_that_fills_and_empties_the_socket_does_not_begin_its_stall_again<K: Kind>() {
    let mut conn = Conn::<K>::new(STALL);
    let (_feed, _body, _piece) = conn.answer_http2(&LONG[..10], false);
    ready(flush(&mut conn.stream));
    let (ticks, limit) = end_of(&mut conn, |conn| {
        fill(conn)?;
        take(conn, ROOM);
        ready_or_error(write(&mut conn.stream, b"pong"))?;
        ready_or_error(flush(&mut conn.stream))?;
        take(conn, 4);
        Ok(())
    });
    assert_eq!(limit, WriteStall(ms(LIMIT)));
    assert!((LIMIT..=LIMIT + K::LATE).contains(&ticks), "{ticks}");
}

#[track_caller]
fn ready_or_error<V>(polled: Polled<V>) -> io::Result<V> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("it must wait"),
    }
}

both_sides!(peer_that_keeps_the_socket_full_of_other_frames_is_a_stalled_write);
fn peer_that_keeps_the_socket_full_of_other_frames_is_a_stalled_write<K: Kind>() {
    let mut conn = Conn::<K>::new(STALL);
    let (_feed, _body, _piece) = conn.answer_http2(&LONG[..10], false);
    // The framework never flushes, as a write always waits.
    let (ticks, limit) = end_of(&mut conn, |conn| {
        fill(conn)?;
        take(conn, ROOM);
        Ok(())
    });
    assert_eq!(limit, WriteStall(ms(LIMIT)));
    let copied = 2 * (COPIED / ROOM) as u64;
    assert!((copied..=copied + LIMIT + K::LATE).contains(&ticks), "{ticks}");
}

both_sides!(peer_that_takes_copied_data_slowly_is_not_cut);
fn peer_that_takes_copied_data_slowly_is_not_cut<K: Kind>() {
    let mut conn = Conn::<K>::new(STALL);
    let (_feed, _body, mut piece) = conn.answer_http2(&LONG[..10 * COPIED], false);
    // The framework takes a frame, copies it, and writes it for a long time.
    for _ in 0..10 {
        fill(&mut conn).unwrap();
        piece.advance(COPIED);
        for _ in 0..COPIED / ROOM {
            take(&mut conn, ROOM);
            fill(&mut conn).unwrap();
            conn.lab.advance_ticks(1);
        }
    }
    conn.lab.advance_ticks(LIMIT + K::LATE);
    let limit = timeout(write(&mut conn.stream, b"pong"));
    assert_eq!(limit, Some(WriteStall(ms(LIMIT))), "it takes no more");
}

/// Bytes come from the peer and are read, and the stream waits for more.
fn receive<K: Kind>(conn: &mut Conn<K>, bytes: &[u8]) {
    conn.receive_all(bytes);
    assert!(read(&mut conn.stream).is_pending());
}

both_sides!(window_for_a_response_that_its_peer_has_reset_begins_a_stall_again);
fn window_for_a_response_that_its_peer_has_reset_begins_a_stall_again<K: Kind>() {
    let mut conn = Conn::<K>::new(STALL);
    receive(&mut conn, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let (_feed, _body, piece) = conn.answer_http2(&LONG[..10], false);
    let (_other_feed, _other_body, other) = conn.answer_http2(&LONG[..10], false);
    ready(flush(&mut conn.stream));
    conn.lab.advance_ticks(LIMIT / 2);
    // A WINDOW_UPDATE of 5 bytes and a RST_STREAM, both of the first stream.
    receive(&mut conn, &[0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 0, 0, 5]);
    receive(&mut conn, &[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 8]);
    drop(piece);
    ready(flush(&mut conn.stream));
    conn.lab.advance_ticks(LIMIT / 2);
    // A PING, which gives nothing.
    receive(&mut conn, &[0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    check_stalls(&mut conn, LIMIT / 2);
    drop(other);
}

const RATE: DataRate = DataRate::new(1_000, ms(LIMIT));

both_sides!(bytes_that_end_a_wait_for_a_window_count_for_the_least_rate);
fn bytes_that_end_a_wait_for_a_window_count_for_the_least_rate<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.min_write_rate(RATE));
    let (feed, mut body, mut waiting) = conn.answer_http2(&LONG[..40], false);
    for _ in 0..20 {
        ready(flush(&mut conn.stream));
        conn.lab.advance_ticks(20);
        // The window is that of all that waits: 40 bytes in 20 ms, twice the least rate.
        waiting.advance(40);
        ready(flush(&mut conn.stream));
        conn.lab.advance_ticks(20);
        feed.push(&LONG[..40]);
        waiting = piece(&mut body);
    }
    let (ticks, limit) = end_of(&mut conn, |conn| ready_or_error(flush(&mut conn.stream)));
    assert_eq!(limit, WriteRate(RATE));
    // 800 bytes in the 400 ms of the waits before.
    assert!((400 - K::LATE..=400 + K::LATE).contains(&ticks), "{ticks}");
}

both_sides!(window_that_is_found_late_leaves_half_of_the_time_to_the_next_wait);
fn window_that_is_found_late_leaves_half_of_the_time_to_the_next_wait<K: Kind>() {
    let mut conn = Conn::<K>::new(NONE.min_write_rate(RATE));
    let (feed, mut body, mut waiting) = conn.answer_http2(&LONG[..40], false);
    ready(flush(&mut conn.stream));
    // The server is held up, and finds the window after the deadline.
    conn.lab.advance_ticks(LIMIT + 10);
    waiting.advance(40);
    ready(flush(&mut conn.stream));
    feed.push(&LONG[..40]);
    let _waiting = piece(&mut body);
    let (ticks, limit) = end_of(&mut conn, |conn| ready_or_error(flush(&mut conn.stream)));
    assert_eq!(limit, WriteRate(RATE));
    assert!((LIMIT / 2..=LIMIT / 2 + K::LATE).contains(&ticks), "{ticks}");
}

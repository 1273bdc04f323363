//! Least data rates: which bytes and which time count.

use corewheel::stream::StreamTimeout::{Head, ReadRate, WriteRate};

use super::*;

/// One byte in 10 ms, after a grace period of 100 ms.
const RATE: DataRate = DataRate::new(100, ms(LIMIT));

/// Lets a message begin with some bytes.
fn begin<K: Kind>(stream: &mut Duplex<K>, peer: &mut DuplexStream, bytes: &[u8]) {
    stream.control().begin_message();
    receive(stream, peer, bytes);
}

fn receive<M: Side>(stream: &mut TimedIo<DuplexStream, M>, peer: &mut DuplexStream, bytes: &[u8]) {
    ready(write(peer, bytes));
    assert_eq!(ready(read(stream)), bytes);
    assert!(read(stream).is_pending());
}

fn check_read_grace<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_read_rate(RATE));
    begin::<K>(&mut stream, &mut peer, b"abcd");
    check_ends::<K, _>(&mut lab, LIMIT, ReadRate(RATE), || read(&mut stream));
}

#[test]
fn message_that_stops_ends_the_stream_after_the_grace_period() {
    both!(check_read_grace);
}

fn check_rate_of_a_reader_that_waits<K: Kind>() {
    let mut lab = lab();
    let limits = NONE.read_idle(ms(10 * LIMIT)).min_read_rate(RATE);
    let (mut stream, mut peer) = duplex::<K>(&lab, limits);
    assert!(read(&mut stream).is_pending());
    begin::<K>(&mut stream, &mut peer, b"abcd");
    check_ends::<K, _>(&mut lab, LIMIT, ReadRate(RATE), || read(&mut stream));
}

#[test]
fn message_that_begins_while_a_read_waits_ends_the_stream_at_its_rate() {
    both!(check_rate_of_a_reader_that_waits);
}

fn check_bytes_before_a_wait<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_read_rate(RATE));
    stream.control().begin_message();
    // 16 bytes, of which each read finds 4 at once.
    ready(write(&mut peer, &[7; ROOM]));
    for _ in 0..ROOM / 4 {
        assert_eq!(ready(read(&mut stream)), [7; 4]);
    }
    // The owner is busy, and reads then.
    lab.advance_ticks(5 * LIMIT);
    check_ends::<K, _>(&mut lab, 160, ReadRate(RATE), || read(&mut stream));
}

#[test]
fn bytes_of_a_message_before_the_first_wait_give_it_their_time() {
    both!(check_bytes_before_a_wait);
}

fn check_slow_read<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_read_rate(RATE));
    begin::<K>(&mut stream, &mut peer, b"a");
    // At the rate: 40 bytes in 400 ms.
    for _ in 0..40 {
        lab.advance_ticks(9);
        receive(&mut stream, &mut peer, b"a");
        lab.advance_ticks(1);
        assert!(read(&mut stream).is_pending());
    }
    // Of 41 bytes, the last is due after 410 ms.
    check_ends::<K, _>(&mut lab, 10, ReadRate(RATE), || read(&mut stream));
}

#[test]
fn message_at_the_least_rate_goes_on_and_a_slower_one_ends_the_stream() {
    both!(check_slow_read);
}

fn check_paused_read<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_read_rate(RATE));
    begin::<K>(&mut stream, &mut peer, b"a");
    lab.advance_ticks(LIMIT / 2);
    assert!(read(&mut stream).is_pending());
    ready(write(&mut peer, b"b"));
    assert_eq!(ready(read(&mut stream)), b"b");
    // The owner works, and does not read.
    lab.advance_ticks(20 * LIMIT);
    check_ends::<K, _>(&mut lab, LIMIT / 2, ReadRate(RATE), || read(&mut stream));
}

#[test]
fn time_in_which_the_owner_does_not_read_does_not_count() {
    both!(check_paused_read);
}

fn check_unmeasured_read<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_read_rate(RATE));
    let control = stream.control();
    // The owner has not said that a message begins.
    receive(&mut stream, &mut peer, b"a");
    lab.advance_ticks(5 * LIMIT);
    assert!(read(&mut stream).is_pending());
    // No byte has come.
    control.begin_message();
    lab.advance_ticks(5 * LIMIT);
    assert!(read(&mut stream).is_pending());
    receive(&mut stream, &mut peer, b"a");
    lab.advance_ticks(LIMIT - 1);
    assert!(read(&mut stream).is_pending());
    // The read that waits learns that the message has ended.
    control.message_complete();
    lab.advance_ticks(5 * LIMIT);
    assert!(read(&mut stream).is_pending());
    // Bytes of no message, and a message that has ended before it began.
    receive(&mut stream, &mut peer, b"a");
    control.begin_message();
    control.message_complete();
    receive(&mut stream, &mut peer, b"a");
    lab.advance_ticks(5 * LIMIT);
    assert!(read(&mut stream).is_pending());
    // The next message has the whole time.
    begin::<K>(&mut stream, &mut peer, b"a");
    check_ends::<K, _>(&mut lab, LIMIT, ReadRate(RATE), || read(&mut stream));
}

#[test]
fn bytes_are_measured_between_begin_and_end_of_a_message_only() {
    both!(check_unmeasured_read);
}

fn check_end_after_deadline<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_read_rate(RATE));
    begin::<K>(&mut stream, &mut peer, b"a");
    // The event has come, and the owner says that the message has ended before a read looks.
    lab.advance_ticks(5 * LIMIT);
    stream.control().message_complete();
    assert!(read(&mut stream).is_pending());
    lab.advance_ticks(5 * LIMIT);
    assert!(read(&mut stream).is_pending());
}

#[test]
fn message_that_has_ended_does_not_end_the_stream() {
    both!(check_end_after_deadline);
}

const HEAD: Duration = ms(3 * LIMIT);

fn check_half_head<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.head(HEAD).min_read_rate(RATE));
    let control = stream.control();
    // Half a head comes after the call, and the next one with the end of the message before.
    begin::<K>(&mut stream, &mut peer, b"ab");
    lab.advance_ticks(2 * LIMIT);
    receive(&mut stream, &mut peer, b"cd");
    control.message_complete();
    receive(&mut stream, &mut peer, b"GE");
    lab.advance_ticks(5 * LIMIT);
    control.begin_message();
    check_ends::<K, _>(&mut lab, 3 * LIMIT, Head(HEAD), || read(&mut stream));
}

#[test]
fn half_a_head_ends_the_stream_at_its_own_limit_and_not_at_the_rate() {
    both!(check_half_head);
    both!(check_half_first_head);
}

fn check_half_first_head<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.head(HEAD).min_read_rate(RATE));
    begin::<K>(&mut stream, &mut peer, b"ab");
    check_ends::<K, _>(&mut lab, 3 * LIMIT, Head(HEAD), || read(&mut stream));
}

/// Two bytes in 20 ms, without a grace period.
const AT_ONCE: DataRate = DataRate::new(100, Duration::ZERO);

fn check_body_after_head<K: Kind>() {
    for waits_before in [false, true] {
        let mut lab = lab();
        let (mut stream, mut peer) = duplex::<K>(&lab, NONE.head(HEAD).min_read_rate(AT_ONCE));
        let (alarm, waker) = Alarm::new();
        begin::<K>(&mut stream, &mut peer, b"a");
        for bytes in [b"bcde", b"fghi", b"jklm"] {
            lab.advance_ticks(50);
            receive(&mut stream, &mut peer, bytes);
        }
        ready(write(&mut peer, b"nB"));
        assert_eq!(ready(read(&mut stream)), b"nB");
        if waits_before {
            assert!(read_with(&mut stream, &waker).is_pending());
            lab.advance_ticks(50);
            alarm.rang();
            stream.control().head_complete();
            assert!(alarm.rang(), "the read that waits begins to measure");
        } else {
            stream.control().head_complete();
            // The owner works, and does not read.
            lab.advance_ticks(50);
        }
        // Of the head, only the last read counts.
        check_ends::<K, _>(&mut lab, 20, ReadRate(AT_ONCE), || read(&mut stream));
    }
}

#[test]
fn rate_of_a_message_counts_from_the_end_of_a_head_that_has_a_limit() {
    both!(check_body_after_head);
}

fn check_written<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_write_rate(RATE));
    // The room of the peer's side gives no credit.
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    lab.advance_ticks(5 * LIMIT);
    assert!(write(&mut stream, b"aaaa").is_pending());
    assert_eq!(ready(read(&mut peer)).len(), 4);
    assert_eq!(ready(write(&mut stream, b"aaaa")), 4);
    assert!(write(&mut stream, b"aaaa").is_pending());
    for _ in 0..20 {
        // The peer takes 4 bytes in 40 ms.
        lab.advance_ticks(39);
        assert!(write(&mut stream, b"aaaa").is_pending());
        assert_eq!(ready(read(&mut peer)).len(), 4);
        assert_eq!(ready(write(&mut stream, b"aaaa")), 4);
        // The owner does not write for a while.
        lab.advance_ticks(3 * LIMIT);
        assert!(write(&mut stream, b"aaaa").is_pending());
        lab.advance_ticks(1);
        assert!(write(&mut stream, b"aaaa").is_pending());
    }
    // 84 bytes were accepted in 800 ms of waiting.
    check_ends::<K, _>(&mut lab, 40, WriteRate(RATE), || write(&mut stream, b"a"));
}

#[test]
fn write_at_the_least_rate_goes_on_and_a_slower_one_ends_the_stream() {
    both!(check_written);
}

fn check_write_grace<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_write_rate(RATE));
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    assert!(write(&mut stream, b"a").is_pending());
    lab.advance_ticks(LIMIT / 2);
    assert_eq!(ready(read(&mut peer)).len(), 4);
    assert_eq!(ready(write(&mut stream, b"aaaa")), 4);
    // Without a write that waits, no time counts, and no byte.
    lab.advance_ticks(20 * LIMIT);
    while read(&mut peer).is_ready() {}
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    check_ends::<K, _>(&mut lab, LIMIT / 2, WriteRate(RATE), || write(&mut stream, b"a"));
}

#[test]
fn time_in_which_no_write_waits_does_not_count() {
    both!(check_write_grace);
}

fn check_accepted_after_event<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_write_rate(RATE));
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    assert!(write(&mut stream, b"a").is_pending());
    lab.advance_ticks(LIMIT + 10);
    // The event has come, and the peer has read before the write looks.
    for _ in 0..4 {
        assert_eq!(ready(read(&mut peer)).len(), 4);
    }
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    // 16 bytes give 160 ms. Of the wait that was found over late, half of its time counts.
    assert!(write(&mut stream, b"a").is_pending());
    check_ends::<K, _>(&mut lab, 110, WriteRate(RATE), || write(&mut stream, b"a"));
}

#[test]
fn bytes_that_are_accepted_late_withdraw_the_event() {
    both!(check_accepted_after_event);
}

fn check_found_late<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_read_rate(RATE));
    begin::<K>(&mut stream, &mut peer, b"a");
    // The server is held up in each wait, until the deadline is over.
    for left in [100, 50, 25] {
        lab.advance_ticks(left + 2);
        receive(&mut stream, &mut peer, b"a");
    }
    check_ends::<K, _>(&mut lab, 13, ReadRate(RATE), || read(&mut stream));
}

#[test]
fn wait_that_is_found_over_late_leaves_half_of_its_time_to_the_next() {
    both!(check_found_late);
}

fn check_found_in_time<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.min_read_rate(RATE));
    begin::<K>(&mut stream, &mut peer, b"a");
    lab.advance_ticks(LIMIT - 10);
    receive(&mut stream, &mut peer, b"a");
    check_ends::<K, _>(&mut lab, 10, ReadRate(RATE), || read(&mut stream));
}

#[test]
fn wait_that_ends_in_time_counts_as_a_whole() {
    both!(check_found_in_time);
}

fn check_rate_halves<K: Kind>() {
    let mut lab = lab();
    let limits = NONE.min_read_rate(RATE).min_write_rate(RATE);
    let (mut stream, mut peer) = duplex::<K>(&lab, limits);
    begin::<K>(&mut stream, &mut peer, b"a");
    ready(write(&mut stream, &[7; ROOM]));
    assert!(write(&mut stream, b"a").is_pending());
    lab.advance_ticks(LIMIT);
    // Each direction takes its own event.
    assert_eq!(timeout(write(&mut stream, b"a")), Some(WriteRate(RATE)));
    assert_eq!(timeout(read(&mut stream)), Some(WriteRate(RATE)));
}

#[test]
fn write_ends_by_its_own_rate_and_not_by_the_rate_of_a_read() {
    both!(check_rate_halves);
}

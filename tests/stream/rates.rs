//! Least data rates: which bytes and which time count.

use corewheel::stream::StreamTimeout::{Head, ReadRate, WriteRate};

use super::*;

/// One byte in 10 ms, after a grace period of 100 ms.
const RATE: DataRate = DataRate::new(100, ms(LIMIT));

/// Lets a message begin with some bytes.
fn begin<K: Kind>(stream: &mut Duplex<K>, peer: &mut DuplexStream, bytes: &[u8]) {
    stream.control().begin_message();
    receive_and_wait(stream, peer, bytes);
}

both_sides!(wait_counts_as_a_whole_in_time_and_by_half_where_it_is_found_over_late);
fn wait_counts_as_a_whole_in_time_and_by_half_where_it_is_found_over_late<K: Kind>() {
    // How long each further byte is waited for, and the time that is left after them. The grace
    // period is over after 100 ticks.
    for (waits, left) in [(&[][..], LIMIT), (&[LIMIT - 10], 10), (&[102, 52, 27], 13)] {
        for reads_before in [false, true] {
            let limits = NONE.min_read_rate(RATE);
            let with_idle = limits.read_idle(ms(10 * LIMIT));
            let limits = if reads_before { with_idle } else { limits };
            let (mut lab, mut stream, mut peer) = open::<K>(limits);
            assert!(!reads_before || read(&mut stream).is_pending());
            begin(&mut stream, &mut peer, b"abcd");
            for ticks in waits {
                lab.advance_ticks(*ticks);
                receive_and_wait(&mut stream, &mut peer, b"a");
            }
            check_ends::<K, _>(&mut lab, left, ReadRate(RATE), || read(&mut stream));
        }
    }
}

both_sides!(bytes_of_a_message_before_the_first_wait_give_it_their_time);
fn bytes_of_a_message_before_the_first_wait_give_it_their_time<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.min_read_rate(RATE));
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

both_sides!(message_at_the_least_rate_goes_on_and_a_slower_one_ends_the_stream);
fn message_at_the_least_rate_goes_on_and_a_slower_one_ends_the_stream<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.min_read_rate(RATE));
    begin(&mut stream, &mut peer, b"a");
    // At the rate: 40 bytes in 400 ms.
    for _ in 0..40 {
        lab.advance_ticks(9);
        receive_and_wait(&mut stream, &mut peer, b"a");
        check_waits(&mut lab, 1, &mut stream);
    }
    // Of 41 bytes, the last is due after 410 ms.
    check_ends::<K, _>(&mut lab, 10, ReadRate(RATE), || read(&mut stream));
}

both_sides!(time_in_which_the_owner_does_not_read_does_not_count);
fn time_in_which_the_owner_does_not_read_does_not_count<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.min_read_rate(RATE));
    begin(&mut stream, &mut peer, b"a");
    check_waits(&mut lab, LIMIT / 2, &mut stream);
    receive(&mut stream, &mut peer, b"b");
    // The owner works, and does not read.
    lab.advance_ticks(20 * LIMIT);
    check_ends::<K, _>(&mut lab, LIMIT / 2, ReadRate(RATE), || read(&mut stream));
}

both_sides!(bytes_are_measured_between_begin_and_end_of_a_message_only);
fn bytes_are_measured_between_begin_and_end_of_a_message_only<K: Kind>() {
    let (mut lab, mut stream, mut peer, control) = controlled::<K>(NONE.min_read_rate(RATE));
    // The owner has not said that a message begins.
    receive_and_wait(&mut stream, &mut peer, b"a");
    check_waits(&mut lab, 5 * LIMIT, &mut stream);
    // No byte has come.
    control.begin_message();
    check_waits(&mut lab, 5 * LIMIT, &mut stream);
    receive_and_wait(&mut stream, &mut peer, b"a");
    check_waits(&mut lab, LIMIT - 1, &mut stream);
    // The read that waits learns that the message has ended.
    control.message_complete();
    check_waits(&mut lab, 5 * LIMIT, &mut stream);
    // Bytes of no message, and a message that has ended before it began.
    receive_and_wait(&mut stream, &mut peer, b"a");
    control.begin_message();
    control.message_complete();
    receive_and_wait(&mut stream, &mut peer, b"a");
    check_waits(&mut lab, 5 * LIMIT, &mut stream);
    // The next message has the whole time.
    begin(&mut stream, &mut peer, b"a");
    check_ends::<K, _>(&mut lab, LIMIT, ReadRate(RATE), || read(&mut stream));
}

both_sides!(message_that_has_ended_does_not_end_the_stream);
fn message_that_has_ended_does_not_end_the_stream<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.min_read_rate(RATE));
    begin(&mut stream, &mut peer, b"a");
    // The event has come, and the owner says that the message has ended before a read looks.
    lab.advance_ticks(5 * LIMIT);
    stream.control().message_complete();
    assert!(read(&mut stream).is_pending());
    check_waits(&mut lab, 5 * LIMIT, &mut stream);
}

const HEAD: Duration = ms(3 * LIMIT);

both_sides!(half_a_head_ends_the_stream_at_its_own_limit_and_not_at_the_rate);
fn half_a_head_ends_the_stream_at_its_own_limit_and_not_at_the_rate<K: Kind>() {
    let (mut lab, mut stream, mut peer, control) =
        controlled::<K>(NONE.head(HEAD).min_read_rate(RATE));
    // Half a head comes after the call, and the next one with the end of the message before.
    begin(&mut stream, &mut peer, b"ab");
    lab.advance_ticks(2 * LIMIT);
    receive_and_wait(&mut stream, &mut peer, b"cd");
    control.message_complete();
    receive_and_wait(&mut stream, &mut peer, b"GE");
    lab.advance_ticks(5 * LIMIT);
    control.begin_message();
    check_ends::<K, _>(&mut lab, 3 * LIMIT, Head(HEAD), || read(&mut stream));
    // The first head of a stream.
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.head(HEAD).min_read_rate(RATE));
    begin(&mut stream, &mut peer, b"ab");
    check_ends::<K, _>(&mut lab, 3 * LIMIT, Head(HEAD), || read(&mut stream));
}

/// Two bytes in 20 ms, without a grace period.
const AT_ONCE: DataRate = DataRate::new(100, Duration::ZERO);

both_sides!(rate_of_a_message_counts_from_the_end_of_a_head_that_has_a_limit);
fn rate_of_a_message_counts_from_the_end_of_a_head_that_has_a_limit<K: Kind>() {
    for waits_before in [false, true] {
        let (mut lab, mut stream, mut peer) = open::<K>(NONE.head(HEAD).min_read_rate(AT_ONCE));
        let (alarm, waker) = Alarm::new();
        begin(&mut stream, &mut peer, b"a");
        for bytes in [b"bcde", b"fghi", b"jklm"] {
            lab.advance_ticks(50);
            receive_and_wait(&mut stream, &mut peer, bytes);
        }
        receive(&mut stream, &mut peer, b"nB");
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

both_sides!(write_at_the_least_rate_goes_on_and_a_slower_one_ends_the_stream);
fn write_at_the_least_rate_goes_on_and_a_slower_one_ends_the_stream<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.min_write_rate(RATE));
    // The room of the peer's side gives no credit.
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    lab.advance_ticks(5 * LIMIT);
    assert!(write(&mut stream, b"aaaa").is_pending());
    take(&mut peer, &mut stream);
    assert!(write(&mut stream, b"aaaa").is_pending());
    for _ in 0..20 {
        // The peer takes 4 bytes in 40 ms.
        lab.advance_ticks(39);
        assert!(write(&mut stream, b"aaaa").is_pending());
        take(&mut peer, &mut stream);
        // The owner does not write for a while.
        lab.advance_ticks(3 * LIMIT);
        assert!(write(&mut stream, b"aaaa").is_pending());
        lab.advance_ticks(1);
        assert!(write(&mut stream, b"aaaa").is_pending());
    }
    // 84 bytes were accepted in 800 ms of waiting.
    check_ends::<K, _>(&mut lab, 40, WriteRate(RATE), || write(&mut stream, b"a"));
}

both_sides!(time_in_which_no_write_waits_does_not_count);
fn time_in_which_no_write_waits_does_not_count<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.min_write_rate(RATE));
    fill(&mut stream);
    lab.advance_ticks(LIMIT / 2);
    take(&mut peer, &mut stream);
    // Without a write that waits, no time counts, and no byte.
    lab.advance_ticks(20 * LIMIT);
    while read(&mut peer).is_ready() {}
    assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    check_ends::<K, _>(&mut lab, LIMIT / 2, WriteRate(RATE), || write(&mut stream, b"a"));
}

both_sides!(bytes_that_are_accepted_late_withdraw_the_event);
fn bytes_that_are_accepted_late_withdraw_the_event<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.min_write_rate(RATE));
    fill(&mut stream);
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

both_sides!(write_ends_by_its_own_rate_and_not_by_the_rate_of_a_read);
fn write_ends_by_its_own_rate_and_not_by_the_rate_of_a_read<K: Kind>() {
    let limits = NONE.min_read_rate(RATE).min_write_rate(RATE);
    let (mut lab, mut stream, mut peer) = open::<K>(limits);
    begin(&mut stream, &mut peer, b"a");
    fill(&mut stream);
    lab.advance_ticks(LIMIT);
    // Each direction takes its own event.
    assert_eq!(timeout(write(&mut stream, b"a")), Some(WriteRate(RATE)));
    assert_eq!(timeout(read(&mut stream)), Some(WriteRate(RATE)));
}

//! Each limit: when it ends a stream, with which error, and what holds it back.

use super::*;
use corewheel::stream::StreamTimeout::{
    FirstByte, Head, Idle, MaxAge, Other, ReadIdle, ReadRate, WriteRate, WriteStall,
};

/// Polls a read, or a write. Returns the limit that has ended it.
fn wait<K: Kind>(stream: &mut Duplex<K>, writes: bool, waker: &Waker) -> Option<StreamTimeout> {
    if writes {
        timeout(write_with(stream, b"7", waker))
    } else {
        timeout(read_with(stream, waker))
    }
}

/// A limit that ends a wait of a fresh stream after 100 ticks: not one tick before, and then with
/// each read, write and flush.
fn check_fresh<K: Kind>(limits: StreamLimits, expected: StreamTimeout, writes: bool) {
    let (mut lab, mut stream, mut peer) = open::<K>(limits);
    let (alarm, waker) = Alarm::new();
    if writes {
        assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    }
    let mut wait = || wait(&mut stream, writes, &waker);
    assert_eq!(wait(), None, "{expected}");
    lab.advance_ticks(LIMIT - 1);
    alarm.rang();
    assert_eq!(wait(), None, "{expected}: a tick early");
    // A write and the beginning of a wait count as activity.
    let is_put_off = matches!(expected, ReadIdle(_) | Idle(_));
    lab.advance_ticks(1 + if is_put_off { K::LATE } else { 0 });
    assert!(alarm.rang(), "{expected}: the task is woken");
    assert_eq!(wait(), Some(expected));
    // The peer sends and reads, and the stream has ended nevertheless.
    assert!(write(&mut peer, b"late").is_ready());
    assert!(read(&mut peer).is_ready() || !writes);
    assert_eq!(timeout(read(&mut stream)), Some(expected));
    assert_eq!(timeout(write(&mut stream, b"7")), Some(expected));
    assert_eq!(timeout(flush(&mut stream)), Some(expected));
    assert_eq!(stream.control().limit_reached(), Some(expected));
    ready(shutdown(&mut stream));
}

both_sides!(each_limit_ends_the_stream_at_its_deadline_and_not_a_tick_before);
fn each_limit_ends_the_stream_at_its_deadline_and_not_a_tick_before<K: Kind>() {
    let limit = ms(LIMIT);
    check_fresh::<K>(NONE.first_byte(limit), FirstByte(limit), false);
    check_fresh::<K>(NONE.read_idle(limit), ReadIdle(limit), false);
    check_fresh::<K>(NONE.idle(limit), Idle(limit), false);
    check_fresh::<K>(NONE.idle(limit), Idle(limit), true);
    check_fresh::<K>(NONE.max_age(limit), MaxAge(limit), false);
    check_fresh::<K>(NONE.max_age(limit), MaxAge(limit), true);
    check_fresh::<K>(NONE.write_stall(limit), WriteStall(limit), true);
}

both_sides!(limits_of_zero_let_the_stream_wait_for_ever);
fn limits_of_zero_let_the_stream_wait_for_ever<K: Kind>() {
    let (mut lab, mut stream, _peer) = open::<K>(StreamLimits::default());
    assert_eq!(NONE, StreamLimits::default());
    ready(write(&mut stream, &[7; ROOM]));
    lab.advance_ticks(5_000);
    assert!(read(&mut stream).is_pending() && write(&mut stream, b"7").is_pending());
}

both_sides!(first_byte_disarms_its_limit_for_good);
fn first_byte_disarms_its_limit_for_good<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.first_byte(ms(LIMIT)));
    assert!(read(&mut stream).is_pending());
    lab.advance_ticks(LIMIT - 1);
    receive_and_wait(&mut stream, &mut peer, b"a");
    check_waits(&mut lab, 10 * LIMIT, &mut stream);
}

both_sides!(slow_head_ends_the_stream_at_its_deadline_although_bytes_come);
fn slow_head_ends_the_stream_at_its_deadline_although_bytes_come<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.head(ms(LIMIT)));
    assert!(read(&mut stream).is_pending());
    // No message has begun.
    check_waits(&mut lab, 3 * LIMIT, &mut stream);
    // A byte now and then does not put the deadline off.
    for byte in 0..4 {
        ready(write(&mut peer, &[byte]));
        assert_eq!(ready(read(&mut stream)), [byte]);
        assert!(read(&mut stream).is_pending());
        if byte < 3 {
            lab.advance_ticks(30);
        }
    }
    check_ends::<K, _>(&mut lab, 10, Head(ms(LIMIT)), || read(&mut stream));
}

both_sides!(head_of_each_message_has_its_deadline_from_its_first_byte);
fn head_of_each_message_has_its_deadline_from_its_first_byte<K: Kind>() {
    let (mut lab, mut stream, mut peer, control) = controlled::<K>(NONE.head(ms(LIMIT)));
    receive_and_wait(&mut stream, &mut peer, b"head");
    lab.advance_ticks(LIMIT - 1);
    control.clone().head_complete();
    lab.advance_ticks(3 * LIMIT);
    // The body, of which the owner says nothing.
    receive_and_wait(&mut stream, &mut peer, b"body");
    check_waits(&mut lab, 3 * LIMIT, &mut stream);
    // The time before the first byte of the next message does not count.
    control.begin_message();
    check_waits(&mut lab, 3 * LIMIT, &mut stream);
    receive(&mut stream, &mut peer, b"h");
    check_ends::<K, _>(&mut lab, LIMIT, Head(ms(LIMIT)), || read(&mut stream));
}

both_sides!(head_that_is_complete_before_its_first_byte_has_no_deadline);
fn head_that_is_complete_before_its_first_byte_has_no_deadline<K: Kind>() {
    let says: [fn(&StreamControl<K>); 2] =
        [StreamControl::head_complete, StreamControl::message_complete];
    for say in says {
        let (mut lab, mut stream, mut peer) = open::<K>(NONE.head(ms(LIMIT)));
        // A message that the owner knows already, as from a buffer of its own.
        say(&stream.control());
        receive(&mut stream, &mut peer, b"a");
        check_waits(&mut lab, 3 * LIMIT, &mut stream);
    }
}

both_sides!(deadline_of_a_head_counts_from_its_first_byte_whenever_a_read_waits);
fn deadline_of_a_head_counts_from_its_first_byte_whenever_a_read_waits<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.head(ms(LIMIT)));
    receive(&mut stream, &mut peer, b"h");
    // The owner is busy, and reads then.
    lab.advance_ticks(60);
    check_ends::<K, _>(&mut lab, LIMIT - 60, Head(ms(LIMIT)), || read(&mut stream));
}

both_sides!(head_that_comes_at_once_or_is_complete_in_time_leaves_no_deadline);
fn head_that_comes_at_once_or_is_complete_in_time_leaves_no_deadline<K: Kind>() {
    let says: [fn(&StreamControl<K>); 3] = [
        StreamControl::head_complete,
        StreamControl::message_complete,
        StreamControl::begin_message,
    ];
    for say in says {
        let (mut lab, mut stream, mut peer, control) = controlled::<K>(NONE.head(ms(LIMIT)));
        for is_waited_for in [false, true] {
            control.begin_message();
            receive(&mut stream, &mut peer, b"head");
            if is_waited_for {
                assert!(read(&mut stream).is_pending());
            }
            let is_armed = || stream.timers().deadline(DeadlineKind::Request).is_some();
            assert_eq!(is_armed(), is_waited_for);
            say(&control);
            assert!(!is_armed());
            check_waits(&mut lab, 3 * LIMIT, &mut stream);
        }
    }
}

both_sides!(read_idle_counts_from_the_last_byte_while_a_read_waits);
fn read_idle_counts_from_the_last_byte_while_a_read_waits<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.read_idle(ms(LIMIT)));
    for _ in 0..5 {
        assert!(read(&mut stream).is_pending());
        check_waits(&mut lab, LIMIT - 1, &mut stream);
        receive(&mut stream, &mut peer, b"a");
    }
    // The owner is busy for a long time, and reads then.
    lab.advance_ticks(5 * LIMIT);
    check_ends::<K, _>(&mut lab, LIMIT, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

both_sides!(write_that_waits_may_be_slow_as_long_as_bytes_are_accepted);
fn write_that_waits_may_be_slow_as_long_as_bytes_are_accepted<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.write_stall(ms(LIMIT)));
    ready(write(&mut stream, &[7; ROOM]));
    // The owner does not write for a long time.
    lab.advance_ticks(5 * LIMIT);
    for _ in 0..5 {
        assert!(write(&mut stream, b"aaaa").is_pending());
        lab.advance_ticks(LIMIT - 1);
        assert!(write(&mut stream, b"aaaa").is_pending());
        // The peer reads 4 bytes, and 4 are accepted.
        take(&mut peer, &mut stream);
        // A flush that is done is no progress of a write that waits.
        assert!(write(&mut stream, b"a").is_pending());
        lab.advance_ticks(LIMIT / 2);
        ready(flush(&mut stream));
        lab.advance_ticks(LIMIT / 2 - 1);
        assert!(write(&mut stream, b"a").is_pending());
        take(&mut peer, &mut stream);
    }
    lab.advance_ticks(5 * LIMIT);
    assert!(write(&mut stream, b"a").is_pending());
    lab.advance_ticks(LIMIT / 2);
    ready(flush(&mut stream));
    check_ends::<K, _>(&mut lab, LIMIT / 2, WriteStall(ms(LIMIT)), || write(&mut stream, b"a"));
}

both_sides!(idle_counts_from_the_last_read_or_write_or_request);
fn idle_counts_from_the_last_read_or_write_or_request<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.idle(ms(LIMIT)));
    for round in 0..6 {
        assert!(read(&mut stream).is_pending());
        check_waits(&mut lab, LIMIT - 1, &mut stream);
        if round % 2 == 0 {
            receive(&mut stream, &mut peer, b"a");
        } else {
            ready(write(&mut stream, b"a"));
            assert_eq!(ready(read(&mut peer)), b"a");
        }
    }
    let request = stream.control().begin_request();
    assert!(read(&mut stream).is_pending());
    check_waits(&mut lab, 5 * LIMIT, &mut stream);
    drop(request);
    check_ends::<K, _>(&mut lab, LIMIT, Idle(ms(LIMIT)), || read(&mut stream));
}

both_sides!(greatest_age_ends_a_stream_that_is_always_ready);
fn greatest_age_ends_a_stream_that_is_always_ready<K: Kind>() {
    let (mut lab, mut stream, mut peer) = open::<K>(NONE.max_age(ms(LIMIT)));
    // The stream never waits.
    for tick in 0..LIMIT {
        ready(write(&mut peer, b"a"));
        // A task with a budget returns to its executor now and then.
        let bytes = ready(again(|| read(&mut stream)));
        assert_eq!(bytes, b"a", "after {tick} ticks");
        lab.advance_ticks(1);
    }
    ready(write(&mut peer, b"a"));
    assert_eq!(timeout(read(&mut stream)), Some(MaxAge(ms(LIMIT))));
}

both_sides!(jitter_spreads_the_ends_of_streams_that_began_together);
fn jitter_spreads_the_ends_of_streams_that_began_together<K: Kind>() {
    let mut lab = lab();
    let limits = NONE.max_age(ms(LIMIT)).max_age_jitter(ms(50));
    let mut streams: Vec<_> = (0..16).map(|_| duplex::<K>(&lab, limits)).collect();
    let mut ages = Vec::new();
    for tick in 0..=LIMIT + 50 {
        streams.retain_mut(|(stream, _)| {
            let timeout = timeout(read(stream));
            if timeout.is_some() {
                assert_eq!(timeout, Some(MaxAge(ms(LIMIT))));
                ages.push(tick);
            }
            timeout.is_none()
        });
        lab.advance_ticks(1);
    }
    assert_eq!(streams.len(), 0);
    assert!(ages[0] >= LIMIT, "{ages:?}");
    ages.dedup();
    assert!(ages.len() > 8, "the ends are spread: {ages:?}");
}

/// A stream without a limit has moved bytes and waits, and then gets one. Its task polls it only
/// when it is woken.
fn check_limit_set_later<K: Kind>(writes: bool, arms: bool) {
    let (mut lab, mut stream, mut peer, control) = controlled::<K>(NONE);
    let (alarm, waker) = Alarm::new();
    for _ in 0..3 {
        assert!(read_with(&mut stream, &waker).is_pending());
        lab.advance_ticks(7);
        ready(write(&mut peer, b"abc"));
        assert!(alarm.rang());
        assert_eq!(ready(read_with(&mut stream, &waker)), b"abc");
    }
    if writes {
        ready(write(&mut stream, &[7; ROOM]));
    }
    let mut wait = || wait(&mut stream, writes, &waker);
    assert_eq!(wait(), None);
    lab.advance_ticks(LIMIT / 2);
    assert!(!alarm.rang(), "there is nothing to look at");
    let (timers, custom) = (control.timers(), DeadlineKind::Custom(3));
    if arms {
        timers.arm(custom, ms(LIMIT / 2)).unwrap();
    } else {
        timers.set_limits(ConnLimits::default().all_idle(ms(LIMIT)));
    }
    let mut ended = (0, None);
    while ended.1.is_none() && ended.0 < LIMIT {
        if alarm.rang() {
            ended.1 = wait();
        }
        if ended.1.is_none() {
            lab.advance_ticks(1);
            ended.0 += 1;
        }
    }
    // Idle times count from the last byte.
    let (expected, late) = if arms { (Other(custom), 0) } else { (Idle(ms(LIMIT)), K::LATE) };
    assert_eq!(ended.1, Some(expected));
    let due = LIMIT / 2;
    assert!((due..=due + late).contains(&ended.0), "{expected} after {} ticks", ended.0);
}

#[test]
fn limit_that_is_set_while_a_stream_without_any_waits_ends_the_wait() {
    for (writes, arms) in [(false, false), (true, false), (false, true), (true, true)] {
        check_limit_set_later::<Handle>(writes, arms);
        check_limit_set_later::<Timers>(writes, arms);
    }
}

#[test]
fn timeout_says_which_limit_was_reached_and_how_long_it_was() {
    let (limit, rate) = (ms(1_500), DataRate::new(240, ms(5_000)));
    let texts = [
        (FirstByte(limit), "no byte was read within 1.5s"),
        (Head(limit), "a message's head was not complete within 1.5s"),
        (ReadIdle(limit), "no byte was read for 1.5s"),
        (WriteStall(limit), "no byte could be written for 1.5s"),
        (Idle(limit), "nothing was read or written for 1.5s"),
        (MaxAge(limit), "the connection is older than 1.5s"),
        (ReadRate(rate), "a message was read at less than 240 bytes a second"),
        (WriteRate(rate), "writes were accepted at less than 240 bytes a second"),
        (Other(DeadlineKind::Custom(1)), "the connection's custom deadline 1 has come"),
    ];
    for (timeout, text) in texts {
        assert_eq!(timeout.to_string(), text);
        assert_eq!(io::Error::from(timeout).to_string(), text);
    }
}

//! Each limit: when it ends a stream, with which error, and what holds it back.

use super::*;
use corewheel::stream::StreamControl;
use corewheel::stream::StreamTimeout::{
    FirstByte, Head, Idle, MaxAge, Other, ReadIdle, ReadRate, WriteRate, WriteStall,
};

/// A limit that ends a wait of a fresh stream after 100 ticks: not one tick before, and then with
/// each read, write and flush.
fn check_fresh<K: Kind>(limits: StreamLimits, expected: StreamTimeout, writes: bool) {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, limits);
    let (alarm, waker) = Alarm::new();
    if writes {
        assert_eq!(ready(write(&mut stream, &[7; ROOM])), ROOM);
    }
    let mut wait = || {
        if writes {
            timeout(write_with(&mut stream, b"7", &waker))
        } else {
            timeout(read_with(&mut stream, &waker))
        }
    };
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

fn check_each_limit<K: Kind>() {
    let limit = ms(LIMIT);
    check_fresh::<K>(NONE.first_byte(limit), FirstByte(limit), false);
    check_fresh::<K>(NONE.read_idle(limit), ReadIdle(limit), false);
    check_fresh::<K>(NONE.idle(limit), Idle(limit), false);
    check_fresh::<K>(NONE.idle(limit), Idle(limit), true);
    check_fresh::<K>(NONE.max_age(limit), MaxAge(limit), false);
    check_fresh::<K>(NONE.max_age(limit), MaxAge(limit), true);
    check_fresh::<K>(NONE.write_stall(limit), WriteStall(limit), true);
}

#[test]
fn each_limit_ends_the_stream_at_its_deadline_and_not_a_tick_before() {
    both!(check_each_limit);
}

fn check_zero<K: Kind>() {
    let mut lab = lab();
    let (mut stream, _peer) = duplex::<K>(&lab, StreamLimits::default());
    assert_eq!(NONE, StreamLimits::default());
    ready(write(&mut stream, &[7; ROOM]));
    lab.advance_ticks(5_000);
    assert!(read(&mut stream).is_pending() && write(&mut stream, b"7").is_pending());
}

#[test]
fn limits_of_zero_let_the_stream_wait_for_ever() {
    both!(check_zero);
}

fn check_first_byte<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.first_byte(ms(LIMIT)));
    assert!(read(&mut stream).is_pending());
    lab.advance_ticks(LIMIT - 1);
    ready(write(&mut peer, b"a"));
    assert_eq!(ready(read(&mut stream)), b"a");
    assert!(read(&mut stream).is_pending());
    lab.advance_ticks(10 * LIMIT);
    assert!(read(&mut stream).is_pending());
}

#[test]
fn first_byte_disarms_its_limit_for_good() {
    both!(check_first_byte);
}

fn check_head<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.head(ms(LIMIT)));
    assert!(read(&mut stream).is_pending());
    // No message has begun.
    lab.advance_ticks(3 * LIMIT);
    assert!(read(&mut stream).is_pending());
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

#[test]
fn slow_head_ends_the_stream_at_its_deadline_although_bytes_come() {
    both!(check_head);
}

fn check_heads<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.head(ms(LIMIT)));
    let control = stream.control();
    let mut receive = |stream: &mut _, bytes: &[u8]| {
        ready(write(&mut peer, bytes));
        assert_eq!(ready(read(stream)), bytes);
        assert!(read(stream).is_pending());
    };
    receive(&mut stream, b"head");
    lab.advance_ticks(LIMIT - 1);
    control.clone().head_complete();
    lab.advance_ticks(3 * LIMIT);
    // The body, of which the owner says nothing.
    receive(&mut stream, b"body");
    lab.advance_ticks(3 * LIMIT);
    assert!(read(&mut stream).is_pending());
    // The time before the first byte of the next message does not count.
    control.begin_message();
    lab.advance_ticks(3 * LIMIT);
    assert!(read(&mut stream).is_pending());
    receive(&mut stream, b"h");
    check_ends::<K, _>(&mut lab, LIMIT, Head(ms(LIMIT)), || read(&mut stream));
}

#[test]
fn head_of_each_message_has_its_deadline_from_its_first_byte() {
    both!(check_heads);
}

fn check_head_complete_before<K: Kind>() {
    let says: [fn(&StreamControl<K>); 2] =
        [StreamControl::head_complete, StreamControl::message_complete];
    for say in says {
        let mut lab = lab();
        let (mut stream, mut peer) = duplex::<K>(&lab, NONE.head(ms(LIMIT)));
        // A message that the owner knows already, as from a buffer of its own.
        say(&stream.control());
        ready(write(&mut peer, b"a"));
        assert_eq!(ready(read(&mut stream)), b"a");
        lab.advance_ticks(3 * LIMIT);
        assert!(read(&mut stream).is_pending());
    }
}

#[test]
fn head_that_is_complete_before_its_first_byte_has_no_deadline() {
    both!(check_head_complete_before);
}

fn check_head_with_busy_owner<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.head(ms(LIMIT)));
    ready(write(&mut peer, b"h"));
    assert_eq!(ready(read(&mut stream)), b"h");
    // The owner is busy, and reads then.
    lab.advance_ticks(60);
    check_ends::<K, _>(&mut lab, LIMIT - 60, Head(ms(LIMIT)), || read(&mut stream));
}

#[test]
fn deadline_of_a_head_counts_from_its_first_byte_whenever_a_read_waits() {
    both!(check_head_with_busy_owner);
}

fn check_head_at_once<K: Kind>() {
    let says: [fn(&StreamControl<K>); 3] = [
        StreamControl::head_complete,
        StreamControl::message_complete,
        StreamControl::begin_message,
    ];
    for say in says {
        let mut lab = lab();
        let (mut stream, mut peer) = duplex::<K>(&lab, NONE.head(ms(LIMIT)));
        let control = stream.control();
        for is_waited_for in [false, true] {
            control.begin_message();
            ready(write(&mut peer, b"head"));
            assert_eq!(ready(read(&mut stream)), b"head");
            if is_waited_for {
                assert!(read(&mut stream).is_pending());
            }
            let is_armed = || stream.timers().deadline(DeadlineKind::Request).is_some();
            assert_eq!(is_armed(), is_waited_for);
            say(&control);
            assert!(!is_armed());
            lab.advance_ticks(3 * LIMIT);
            assert!(read(&mut stream).is_pending());
        }
    }
}

#[test]
fn head_that_comes_at_once_or_is_complete_in_time_leaves_no_deadline() {
    both!(check_head_at_once);
}

fn check_read_idle<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.read_idle(ms(LIMIT)));
    for _ in 0..5 {
        assert!(read(&mut stream).is_pending());
        lab.advance_ticks(LIMIT - 1);
        assert!(read(&mut stream).is_pending());
        ready(write(&mut peer, b"a"));
        assert_eq!(ready(read(&mut stream)), b"a");
    }
    // The owner is busy for a long time, and reads then.
    lab.advance_ticks(5 * LIMIT);
    check_ends::<K, _>(&mut lab, LIMIT, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

#[test]
fn read_idle_counts_from_the_last_byte_while_a_read_waits() {
    both!(check_read_idle);
}

fn check_write_stall<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.write_stall(ms(LIMIT)));
    ready(write(&mut stream, &[7; ROOM]));
    // The owner does not write for a long time.
    lab.advance_ticks(5 * LIMIT);
    for _ in 0..5 {
        assert!(write(&mut stream, b"aaaa").is_pending());
        lab.advance_ticks(LIMIT - 1);
        assert!(write(&mut stream, b"aaaa").is_pending());
        // The peer reads 4 bytes, and 4 are accepted.
        assert_eq!(ready(read(&mut peer)).len(), 4);
        assert_eq!(ready(write(&mut stream, b"aaaa")), 4);
        // A flush that is done is no progress of a write that waits.
        assert!(write(&mut stream, b"a").is_pending());
        lab.advance_ticks(LIMIT / 2);
        ready(flush(&mut stream));
        lab.advance_ticks(LIMIT / 2 - 1);
        assert!(write(&mut stream, b"a").is_pending());
        assert_eq!(ready(read(&mut peer)).len(), 4);
        assert_eq!(ready(write(&mut stream, b"aaaa")), 4);
    }
    lab.advance_ticks(5 * LIMIT);
    assert!(write(&mut stream, b"a").is_pending());
    lab.advance_ticks(LIMIT / 2);
    ready(flush(&mut stream));
    check_ends::<K, _>(&mut lab, LIMIT / 2, WriteStall(ms(LIMIT)), || write(&mut stream, b"a"));
}

#[test]
fn write_that_waits_may_be_slow_as_long_as_bytes_are_accepted() {
    both!(check_write_stall);
}

fn check_idle<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.idle(ms(LIMIT)));
    for round in 0..6 {
        assert!(read(&mut stream).is_pending());
        lab.advance_ticks(LIMIT - 1);
        assert!(read(&mut stream).is_pending());
        if round % 2 == 0 {
            ready(write(&mut peer, b"a"));
            assert_eq!(ready(read(&mut stream)), b"a");
        } else {
            ready(write(&mut stream, b"a"));
            assert_eq!(ready(read(&mut peer)), b"a");
        }
    }
    let request = stream.control().begin_request();
    assert!(read(&mut stream).is_pending());
    lab.advance_ticks(5 * LIMIT);
    assert!(read(&mut stream).is_pending());
    drop(request);
    check_ends::<K, _>(&mut lab, LIMIT, Idle(ms(LIMIT)), || read(&mut stream));
}

#[test]
fn idle_counts_from_the_last_read_or_write_or_request() {
    both!(check_idle);
}

fn check_age<K: Kind>() {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE.max_age(ms(LIMIT)));
    // The stream never waits.
    for tick in 0..LIMIT {
        ready(write(&mut peer, b"a"));
        // A task with a budget returns to its executor now and then.
        let bytes = loop {
            if let Poll::Ready(bytes) = read(&mut stream) {
                break bytes.unwrap();
            }
        };
        assert_eq!(bytes, b"a", "after {tick} ticks");
        lab.advance_ticks(1);
    }
    ready(write(&mut peer, b"a"));
    assert_eq!(timeout(read(&mut stream)), Some(MaxAge(ms(LIMIT))));
}

#[test]
fn greatest_age_ends_a_stream_that_is_always_ready() {
    both!(check_age);
}

fn check_jitter<K: Kind>() {
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

#[test]
fn jitter_spreads_the_ends_of_streams_that_began_together() {
    both!(check_jitter);
}

fn check_own_deadline<K: Kind>() {
    let mut lab = lab();
    let (mut stream, _peer) = duplex::<K>(&lab, NONE);
    stream.timers().arm(DeadlineKind::Custom(3), ms(LIMIT)).unwrap();
    let expected = Other(DeadlineKind::Custom(3));
    check_ends::<K, _>(&mut lab, LIMIT, expected, || read(&mut stream));
}

#[test]
fn deadline_that_the_owner_arms_ends_the_stream() {
    both!(check_own_deadline);
}

/// A stream without a limit has moved bytes and waits, and then gets one. Its task polls it only
/// when it is woken.
fn check_limit_set_later<K: Kind>(writes: bool, arms: bool) {
    let mut lab = lab();
    let (mut stream, mut peer) = duplex::<K>(&lab, NONE);
    let control = stream.control();
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
    let mut wait = || {
        if writes {
            timeout(write_with(&mut stream, b"7", &waker))
        } else {
            timeout(read_with(&mut stream, &waker))
        }
    };
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

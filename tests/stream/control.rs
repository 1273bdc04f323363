//! What the owner of a stream learns and says by its control: heartbeats, and the end.

use std::future::Future;
use std::pin::pin;
use std::thread;

use corewheel::RefusedKind;
use corewheel::stream::StreamTimeout::{AgeGrace, Idle, MaxAge, ReadIdle};

use super::*;

fn beat<M: Side>(control: &StreamControl<M>) -> Polled<()> {
    pin!(control.heartbeat()).poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets a number of ticks pass. Returns those in which a heartbeat was due.
fn beats<M: Side>(lab: &mut Lab, control: &StreamControl<M>, ticks: u64) -> Vec<u64> {
    let mut due = Vec::new();
    for tick in 1..=ticks {
        lab.advance_ticks(1);
        while let Poll::Ready(beat) = beat(control) {
            beat.unwrap();
            due.push(tick);
        }
    }
    due
}

both_sides!(heartbeat_is_due_after_each_time_without_a_write);
fn heartbeat_is_due_after_each_time_without_a_write<K: Kind>() {
    let (mut lab, mut stream, _peer, control) = controlled::<K>(NONE.heartbeat(ms(LIMIT)));
    assert!(beat(&control).is_pending());
    // Nothing is read or written.
    assert_eq!(beats(&mut lab, &control, 250), [100, 200]);
    ready(write(&mut stream, b"PING"));
    let due = beats(&mut lab, &control, 100 + K::LATE);
    assert!(matches!(due[..], [tick] if (100..=100 + K::LATE).contains(&tick)), "{due:?}");
    assert_eq!(control.limit_reached(), None);
    assert!(read(&mut stream).is_pending(), "a heartbeat ends nothing");
}

both_sides!(owner_is_told_after_the_whole_time_since_the_stream_began_without_a_request);
/// Streams begin one after another, so each of them finds the service older than the one before.
fn owner_is_told_after_the_whole_time_since_the_stream_began_without_a_request<K: Kind>() {
    let mut lab = lab();
    for round in 0..5 {
        let (stream, _peer) = duplex::<K>(&lab, NONE.request_idle(ms(LIMIT)));
        let control = stream.control();
        let mut told = pin!(control.request_idle());
        let mut poll = || told.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        for tick in 0..LIMIT {
            assert!(poll().is_pending(), "round {round}: the owner is told after {tick} ticks");
            lab.advance_ticks(1);
        }
        ready(poll());
        lab.advance_ticks(37 * round);
    }
}

both_sides!(heartbeat_that_a_reading_task_finds_wakes_its_own_task);
fn heartbeat_that_a_reading_task_finds_wakes_its_own_task<K: Kind>() {
    let (mut lab, mut stream, mut peer, control) =
        controlled::<K>(NONE.heartbeat(ms(LIMIT)).max_age(ms(5_000)));
    let (alarm, waker) = Alarm::new();
    let mut heartbeat = Box::pin(control.heartbeat());
    let mut poll = |waker: &Waker| heartbeat.as_mut().poll(&mut Context::from_waker(waker));
    assert!(poll(&waker).is_pending());
    let (reads, reads_waker) = Alarm::new();
    alarm.rang();
    lab.clock.advance(ms(LIMIT));
    // The reading task waits for the first time and finds the heartbeat, and leaves it to the other
    // task.
    assert!(read_with(&mut stream, &reads_waker).is_pending());
    if !K::FINDS_IN_POLLS {
        lab.settle();
    }
    assert!(alarm.rang(), "the task of the heartbeat is woken");
    lab.settle();
    ready(poll(&waker));
    // The reading task does not go round in circles meanwhile.
    reads.rang();
    assert!(read_with(&mut stream, &reads_waker).is_pending());
    assert!(!reads.rang());
    receive(&mut stream, &mut peer, b"a");
}

both_sides!(heartbeat_that_no_task_awaits_holds_nothing_up);
fn heartbeat_that_no_task_awaits_holds_nothing_up<K: Kind>() {
    let limits = NONE.heartbeat(ms(10)).read_idle(ms(LIMIT));
    let (mut lab, mut stream, _peer) = open::<K>(limits);
    check_ends::<K, _>(&mut lab, LIMIT, ReadIdle(ms(LIMIT)), || read(&mut stream));
}

both_sides!(limit_that_the_task_of_the_heartbeat_finds_ends_the_read);
fn limit_that_the_task_of_the_heartbeat_finds_ends_the_read<K: Kind>() {
    let (mut lab, mut stream, _peer, control) =
        controlled::<K>(NONE.heartbeat(ms(LIMIT)).idle(ms(LIMIT)));
    let (reads, reads_waker) = Alarm::new();
    assert!(read_with(&mut stream, &reads_waker).is_pending());
    assert!(beat(&control).is_pending());
    lab.advance_ticks(20);
    reads.rang();
    lab.clock.advance(ms(LIMIT + K::LATE - 20));
    // The task of the heartbeat finds both events, and takes its own.
    let due = beat(&control);
    if !K::FINDS_IN_POLLS {
        lab.settle();
    }
    assert!(reads.rang(), "the reading task is woken");
    lab.settle();
    ready(if due.is_ready() { due } else { beat(&control) });
    assert_eq!(timeout(read_with(&mut stream, &reads_waker)), Some(Idle(ms(LIMIT))));
}

both_sides!(heartbeat_ends_with_the_limit_that_ends_the_stream);
fn heartbeat_ends_with_the_limit_that_ends_the_stream<K: Kind>() {
    let (mut lab, mut stream, _peer, control) = controlled::<K>(NONE.idle(ms(LIMIT)));
    let (alarm, waker) = Alarm::new();
    let mut heartbeat = pin!(control.heartbeat());
    let cx = &mut Context::from_waker(&waker);
    assert!(heartbeat.as_mut().poll(cx).is_pending());
    let (_, expected) = ends(&mut lab, || read(&mut stream));
    assert!(alarm.rang(), "the end of the stream wakes the task");
    assert_eq!(timeout(heartbeat.as_mut().poll(cx)), Some(expected));
    assert_eq!(control.limit_reached(), Some(expected));
}

/// The kind of an error, and why there is no timer.
#[track_caller]
pub(super) fn refusal<V: Debug>(polled: Polled<V>) -> (io::ErrorKind, RefusedKind) {
    let Poll::Ready(result) = polled else { panic!("it waits") };
    let error = result.unwrap_err();
    (error.kind(), *error.get_ref().unwrap().downcast_ref().unwrap())
}

both_sides!(stream_that_is_dropped_ends_the_heartbeat_and_its_deadlines);
fn stream_that_is_dropped_ends_the_heartbeat_and_its_deadlines<K: Kind>() {
    let mut lab = lab();
    for into_inner in [false, true] {
        let (stream, mut peer) = duplex::<K>(&lab, NONE.heartbeat(ms(LIMIT)));
        let control = stream.control();
        let (alarm, waker) = Alarm::new();
        let cx = &mut Context::from_waker(&waker);
        assert!(pin!(control.heartbeat()).poll(cx).is_pending());
        alarm.rang();
        if into_inner {
            let mut stream = stream.into_inner();
            receive(&mut stream, &mut peer, b"a");
        } else {
            drop(stream);
        }
        assert!(alarm.rang());
        drop(waker);
        assert_eq!(Arc::strong_count(&alarm), 1, "the control keeps no waker");
        let closed = (io::ErrorKind::Other, RefusedKind::Closed);
        assert_eq!(refusal(beat(&control)), closed);
        lab.advance_ticks(2 * LIMIT);
        assert_eq!(refusal(beat(&control)), closed);
    }
}

#[test]
fn control_of_a_stream_works_on_another_thread() {
    let limits = NONE.head(ms(LIMIT)).idle(ms(LIMIT));
    let (mut lab, mut stream, mut peer) = open::<Handle>(limits);
    receive(&mut stream, &mut peer, b"head");
    let control = stream.control();
    let request = thread::spawn(move || {
        control.head_complete();
        control.begin_request()
    });
    let request = request.join().unwrap();
    check_waits(&mut lab, 5 * LIMIT, &mut stream);
    thread::spawn(move || drop(request)).join().unwrap();
    check_ends::<Handle, _>(&mut lab, LIMIT, Idle(ms(LIMIT)), || read(&mut stream));
}

pub(super) fn told<M: Side>(control: &StreamControl<M>, waker: &Waker) -> Polled<()> {
    pin!(control.max_age_reached()).poll(&mut Context::from_waker(waker))
}

both_sides!(owner_is_told_of_the_greatest_age_and_the_stream_is_cut_after_the_grace);
fn owner_is_told_of_the_greatest_age_and_the_stream_is_cut_after_the_grace<K: Kind>() {
    let limits = NONE.max_age(ms(LIMIT)).max_age_grace(ms(50));
    let (mut lab, mut stream, mut peer, control) = controlled::<K>(limits);
    let (alarm, waker) = Alarm::new();
    assert!(told(&control, &waker).is_pending());
    check_waits(&mut lab, LIMIT - 1, &mut stream);
    assert!(!alarm.rang() && told(&control, &waker).is_pending());
    lab.advance_ticks(1);
    assert!(alarm.rang(), "the owner is woken");
    // The task that reads may find it first.
    assert!(read(&mut stream).is_pending(), "the stream goes on");
    ready(told(&control, &waker));
    ready(told(&control, &waker));
    assert_eq!(ready(write(&mut stream, b"last")), 4);
    assert_eq!(ready(read(&mut peer)), b"last");
    check_waits(&mut lab, 49, &mut stream);
    assert!(write(&mut peer, b"next").is_ready());
    lab.advance_ticks(1);
    // It is cut though it is ready.
    assert_eq!(timeout(read(&mut stream)), Some(AgeGrace(ms(50))));
    assert_eq!(timeout(write(&mut stream, b"more")), Some(AgeGrace(ms(50))));
    assert_eq!(timeout(told(&control, &waker)), Some(AgeGrace(ms(50))));
}

both_sides!(owner_is_told_of_the_greatest_age_where_no_task_reads);
fn owner_is_told_of_the_greatest_age_where_no_task_reads<K: Kind>() {
    let (mut lab, mut stream, _peer, control) =
        controlled::<K>(NONE.max_age(ms(LIMIT)).max_age_grace(ms(50)));
    assert!(told(&control, Waker::noop()).is_pending());
    // Nothing reads or writes.
    lab.advance_ticks(LIMIT);
    ready(told(&control, Waker::noop()));
    lab.advance_ticks(50);
    assert_eq!(timeout(read(&mut stream)), Some(AgeGrace(ms(50))));
}

both_sides!(owner_that_waits_for_a_greatest_age_without_grace_learns_of_the_end);
fn owner_that_waits_for_a_greatest_age_without_grace_learns_of_the_end<K: Kind>() {
    let (mut lab, mut stream, _peer, control) = controlled::<K>(NONE.max_age(ms(LIMIT)));
    let (alarm, waker) = Alarm::new();
    assert!(told(&control, &waker).is_pending());
    lab.advance_ticks(LIMIT);
    // A task that is woken polls again.
    while alarm.rang() {
        assert!(told(&control, &waker).is_pending(), "the stream has not ended");
    }
    assert_eq!(timeout(read(&mut stream)), Some(MaxAge(ms(LIMIT))));
    assert!(alarm.rang(), "the owner learns of the end");
    assert_eq!(timeout(told(&control, &waker)), Some(MaxAge(ms(LIMIT))));
}

both_sides!(stream_whose_owner_does_not_read_is_not_idle);
fn stream_whose_owner_does_not_read_is_not_idle<K: Kind>() {
    let (mut lab, mut stream, mut peer, control) =
        controlled::<K>(NONE.idle(ms(LIMIT)).read_idle(ms(LIMIT)));
    ready(write(&mut stream, &[7; ROOM]));
    let paused = control.timers().begin_read();
    // A write waits for the peer, and no read does.
    for _ in 0..3 * LIMIT {
        assert!(write(&mut stream, b"a").is_pending());
        lab.advance_ticks(1);
    }
    while read(&mut peer).is_ready() {}
    ready(write(&mut stream, b"a"));
    drop(paused);
    assert!(read(&mut stream).is_pending());
    let ended = ends(&mut lab, || read(&mut stream)).0;
    assert!((LIMIT..=LIMIT + K::LATE).contains(&ended), "after {ended}");
}

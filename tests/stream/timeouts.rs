//! Timeouts of a connection: when they are over, and what they leave to the stream.

use std::future::{pending, poll_fn};
use std::pin::pin;

use corewheel::TimeoutError::{self, Elapsed, NoTimer};
use corewheel_test_support::{look, poll};

use super::*;

type Timed<'a, V> = Pin<Box<dyn Future<Output = Result<V, TimeoutError>> + 'a>>;

const CLOSED: Option<Result<(), TimeoutError>> = Some(Err(NoTimer(RefusedKind::Closed)));

/// A timeout of something that never comes.
fn begin<M: Side>(control: &StreamControl<M>, milliseconds: u64) -> Timed<'_, ()> {
    Box::pin(control.timeout(ms(milliseconds), pending()))
}

#[track_caller]
fn is_over(timed: &mut Timed<'_, ()>) -> bool {
    let polled = look(timed);
    assert!([None, Some(Err(Elapsed))].contains(&polled), "{polled:?}");
    polled.is_some()
}

/// Checks that a timeout is over a number of ticks from now, and not before.
#[track_caller]
fn check_over(lab: &mut Lab, after: u64, mut timed: Timed<'_, ()>) {
    for tick in 0..after {
        assert!(!is_over(&mut timed), "over after {tick} ticks instead of {after}");
        lab.advance_ticks(1);
    }
    assert!(is_over(&mut timed), "not over after {after} ticks");
}

both_sides!(timeout_is_over_at_its_deadline_and_the_stream_goes_on);
fn timeout_is_over_at_its_deadline_and_the_stream_goes_on<K: Kind>() {
    let (mut lab, mut stream, mut peer, control) =
        controlled::<K>(NONE.idle(ms(LIMIT)).read_idle(ms(LIMIT)));
    for _ in 0..3 {
        check_over(&mut lab, LIMIT - 20, begin(&control, LIMIT - 20));
        // The stream goes on.
        assert_eq!(control.limit_reached(), None);
        receive_and_wait(&mut stream, &mut peer, b"a");
    }
    let mut never = begin(&control, u64::MAX);
    let (_, reached) = ends(&mut lab, || read(&mut stream));
    assert!(!is_over(&mut never));
    assert_eq!(control.limit_reached(), Some(reached));
    // A stream that has ended has its timer until it is dropped.
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
}

both_sides!(timeout_after_others_that_were_dropped_is_over_at_its_own_deadline);
fn timeout_after_others_that_were_dropped_is_over_at_its_own_deadline<K: Kind>() {
    let (mut lab, _stream, _peer, control) = controlled::<K>(NONE);
    // Each begins after one that has ended young.
    for _ in 0..5 {
        let mut timed = begin(&control, LIMIT);
        assert!(!is_over(&mut timed));
        lab.advance_ticks(30);
    }
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
    assert!(!is_over(&mut begin(&control, LIMIT)));
    lab.advance_ticks(3 * LIMIT);
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
    // One that is due earlier than the one before.
    assert!(!is_over(&mut begin(&control, 10 * LIMIT)));
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
    check_over(&mut lab, LIMIT / 2, begin(&control, LIMIT / 2));
}

both_sides!(task_of_a_timeout_is_woken_at_the_deadline);
fn task_of_a_timeout_is_woken_at_the_deadline<K: Kind>() {
    let (mut lab, _stream, _peer, control) = controlled::<K>(NONE.idle(ms(10 * LIMIT)));
    // Another one has ended before.
    assert!(!is_over(&mut begin(&control, LIMIT - 10)));
    let (first, first_waker) = Alarm::new();
    let (second, second_waker) = Alarm::new();
    let mut timed = begin(&control, LIMIT);
    assert!(poll(&mut timed, &first_waker).is_pending());
    assert!(poll(&mut timed, &second_waker).is_pending());
    first.rang();
    for tick in 1..=LIMIT {
        if second.rang() {
            assert!(poll(&mut timed, &second_waker).is_pending(), "over after {tick} ticks");
        }
        lab.advance_ticks(1);
    }
    assert!(second.rang(), "the task is woken at the deadline");
    assert!(!first.rang(), "the task that polled before is not woken");
    assert!(is_over(&mut timed));
}

both_sides!(timeouts_at_the_same_time_are_over_at_their_own_deadlines);
fn timeouts_at_the_same_time_are_over_at_their_own_deadlines<K: Kind>() {
    let (mut lab, _stream, _peer, control) = controlled::<K>(NONE);
    let limits = [50, 90, 20, 50];
    let mut timed: Vec<_> = limits.map(|limit| begin(&control, limit)).into();
    for tick in 0..LIMIT {
        for (timed, limit) in timed.iter_mut().zip(limits) {
            if tick <= limit {
                assert_eq!(is_over(timed), tick == limit, "{limit} after {tick} ticks");
            }
        }
        lab.advance_ticks(1);
    }
}

both_sides!(value_that_is_ready_at_the_deadline_wins);
fn value_that_is_ready_at_the_deadline_wins<K: Kind>() {
    let (mut lab, _stream, _peer, control) = controlled::<K>(NONE);
    assert_eq!(look(&mut pin!(control.timeout(ms(0), async { 7 }))), Some(Ok(7)));
    let (clock, due) = (lab.clock.clone(), lab.clock.now() + ms(LIMIT));
    let value = poll_fn(|_| if clock.now() >= due { Poll::Ready(7) } else { Poll::Pending });
    let mut timed = pin!(control.timeout(ms(LIMIT), value));
    assert_eq!(look(&mut timed), None);
    lab.advance_ticks(LIMIT);
    assert_eq!(look(&mut timed), Some(Ok(7)));
}

#[test]
fn timeout_on_a_full_shard_is_refused_until_there_is_room() {
    let (mut lab, timer) = full();
    let (stream, _peer) = duplex::<Handle>(&lab, NONE);
    let control = stream.control();
    for _ in 0..3 {
        let mut waiting = begin(&control, LIMIT);
        let polled = once_settled(&mut lab, || poll(&mut waiting, Waker::noop()));
        assert_eq!(polled, Poll::Ready(Err(NoTimer(RefusedKind::Full))));
    }
    free(&mut lab, timer);
    check_over(&mut lab, LIMIT, begin(&control, LIMIT));
}

both_sides!(timeout_ends_with_the_stream_and_with_the_service);
fn timeout_ends_with_the_stream_and_with_the_service<K: Kind>() {
    for ends_service in [false, true] {
        let (mut lab, stream, _peer, control) = controlled::<K>(NONE);
        let (alarm, waker) = Alarm::new();
        let mut timed = begin(&control, LIMIT);
        assert!(poll(&mut timed, &waker).is_pending());
        alarm.rang();
        if ends_service {
            lab.close();
            assert!(alarm.rang(), "the task is woken");
        } else {
            drop(stream);
        }
        assert_eq!(look(&mut timed), CLOSED);
        assert_eq!(look(&mut begin(&control, LIMIT)), CLOSED);
    }
}

#[test]
fn timeout_on_a_service_that_has_ended_is_refused_whatever_its_time_is() {
    let mut lab = lab();
    lab.close();
    let handle = lab.service.handle();
    let check = move || {
        for milliseconds in [LIMIT, u64::MAX] {
            let stream = TimedIo::new((), handle, NONE);
            let control = stream.control();
            assert_eq!(look(&mut begin(&control, milliseconds)), CLOSED);
        }
    };
    check();
    // A thread that has not used the service before its end.
    std::thread::spawn(check).join().unwrap();
}

#[test]
fn timeout_wakes_no_task_that_has_stopped_reading() {
    let service = TimerService::beside_runtime().start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (stream, mut peer) = tokio::io::duplex(ROOM);
        let mut stream = TimedIo::new(stream, service.handle(), NONE);
        let control = stream.control();
        let (alarm, waker) = Alarm::new();
        assert!(read_with(&mut stream, &waker).is_pending());
        ready(write(&mut peer, b"a"));
        assert_eq!(ready(read_with(&mut stream, &waker)), b"a");
        alarm.rang();
        assert!(control.timeout(ms(20), pending::<()>()).await.unwrap_err().is_elapsed());
        assert!(!alarm.rang(), "the task is asked for a read, and none waits");
        // A read that waits is asked what has come.
        assert!(read_with(&mut stream, &waker).is_pending());
        assert!(control.timeout(ms(20), pending::<()>()).await.unwrap_err().is_elapsed());
        assert!(alarm.rang());
    });
}

#[test]
fn timeout_of_a_shared_control_goes_from_thread_to_thread() {
    let (_lab, _stream, _peer, control) = controlled::<Handle>(NONE);
    let timed = control.timeout(ms(LIMIT), async { 7 });
    let poll = || look(&mut pin!(timed));
    let value = std::thread::scope(|scope| scope.spawn(poll).join().unwrap());
    assert_eq!(value, Some(Ok(7)));
}

//! Sleeps that return no error: on a shard with room, on a full one, and after the end of a
//! service.

use corewheel::fallback::InfallibleSleep;

use super::*;

/// A runtime of tokio whose clock is paused.
fn paused() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

/// Waits for a sleep, whose task has to be woken before each poll but the first.
fn wait_for_wakes(sleep: &mut InfallibleSleep, alarm: &Alarm, waker: &Waker) {
    let mut woken = alarm.count();
    while poll(sleep, waker).is_pending() {
        wait_until("the task is woken", || alarm.count() > woken);
        woken = alarm.count();
    }
    let now = Instant::now();
    assert!(now >= sleep.deadline(), "it is {:?} early", sleep.deadline() - now);
}

#[test]
fn infallible_sleep_is_done_within_a_tick_after_its_deadline_and_not_before() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.handle();
    let (alarm, waker) = Alarm::new();
    let deadline = handle.now() + ms(10) + ms(1) / 4;
    let mut sleep = InfallibleSleep::until(handle, deadline);
    assert_eq!(sleep.handle(), handle.untyped());
    assert!(poll(&mut sleep, &waker).is_pending());
    lab.settle();
    lab.advance(ms(10));
    assert!(poll(&mut sleep, &waker).is_pending() && alarm.count() == 0);
    lab.advance(ms(2));
    assert_eq!(alarm.count(), 1);
    // A poll after the end finds it done.
    assert_eq!([look(&mut sleep), look(&mut sleep)], [Some(()); 2]);
    assert!(!sleep.is_kept());
}

#[test]
fn infallible_sleep_that_is_reset_waits_for_its_new_deadline() {
    let mut lab = Lab::<()>::new(builder(1));
    let begin = lab.handle().now();
    let mut sleep = InfallibleSleep::after(lab.handle(), FAR);
    assert_eq!(look(&mut sleep), None);
    // To earlier, to later, and to later again after it was done.
    sleep.reset(begin + ms(20));
    assert_eq!(look(&mut sleep), None);
    for (deadline, wait) in [(ms(30), ms(29)), (ms(40), ms(8))] {
        sleep.reset(begin + deadline);
        assert_eq!(look(&mut sleep), None);
        lab.advance(wait);
        assert_eq!(look(&mut sleep), None, "it was reset to {deadline:?}");
        lab.advance(ms(2));
        assert_eq!(look(&mut sleep), Some(()), "it was reset to {deadline:?}");
    }
}

#[test]
fn delay_that_does_not_fit_is_never_done() {
    let mut lab = Lab::<()>::new(builder(1));
    let mut never = InfallibleSleep::after(lab.handle(), Duration::MAX);
    assert_eq!(look(&mut never), None);
    lab.advance(1_000 * FAR);
    assert_eq!(look(&mut never), None);
    drop(lab);
    assert_eq!(look(&mut never), None);
}

#[test]
fn following_sleep_of_a_manual_clock_goes_by_it_in_a_paused_runtime() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.handle();
    let runtime = paused();
    let _entered = runtime.enter();
    assert_eq!(InfallibleSleep::now(handle), lab.clock.now());
    let mut sleep = InfallibleSleep::after(handle, ms(10));
    assert!(!sleep.needs_pass() && sleep.handle() == handle.untyped());
    assert_eq!(look(&mut sleep), None);
    runtime.block_on(tokio::time::advance(FAR));
    assert_eq!(look(&mut sleep), None, "it follows the paused clock");
    lab.settle();
    lab.advance(ms(11));
    assert_eq!(look(&mut sleep), Some(()));
    sleep.reset(lab.clock.now() + ms(5));
    assert_eq!(look(&mut sleep), None);
    lab.advance(ms(6));
    assert_eq!(look(&mut sleep), Some(()));
}

#[test]
fn following_sleep_of_a_running_service_follows_a_clock_that_is_paused() {
    let service = TimerService::beside_runtime().shards(1).start().unwrap();
    let handle = service.handle();
    let runtime = paused();
    runtime.block_on(async {
        let begin = InfallibleSleep::now(handle);
        assert_eq!(begin, tokio::time::Instant::now().into_std());
        let mut sleep = InfallibleSleep::after(handle, FAR);
        assert_eq!(sleep.deadline(), begin + FAR);
        assert!(!sleep.needs_pass(), "no runtime holds a paused clock up");
        (&mut sleep).await;
        assert_eq!(InfallibleSleep::now(handle), begin + FAR);
        sleep.reset(begin + 2 * FAR);
        sleep.await;
        assert_eq!(InfallibleSleep::now(handle), begin + 2 * FAR);
    });
    // Without a paused clock it is a sleep of the service.
    let mut sleep = InfallibleSleep::until(handle, Instant::now() + ms(5));
    let begin = Instant::now();
    assert!(sleep.needs_pass() && InfallibleSleep::now(handle) >= begin);
    let (alarm, waker) = Alarm::new();
    wait_for_wakes(&mut sleep, &alarm, &waker);
}

/// Waits for a sleep that its service refuses.
fn check_kept(mut sleep: InfallibleSleep) {
    let (kept, (alarm, waker)) = (InfallibleSleep::fallback_count(), Alarm::new());
    // The shard may refuse only after it was asked more than once.
    wait_until("the fallback thread keeps the sleep", || {
        assert!(poll(&mut sleep, &waker).is_pending());
        sleep.is_kept()
    });
    assert!(InfallibleSleep::fallback_count() > kept);
    let deadline = Instant::now() + ms(20);
    sleep.reset(deadline);
    assert_eq!(sleep.deadline(), deadline);
    wait_for_wakes(&mut sleep, &alarm, &waker);
}

#[test]
fn infallible_sleep_of_a_full_shard_is_done_at_its_deadline() {
    let service = TimerService::beside_runtime().shards(1).capacity(2).start().unwrap();
    let handle = service.handle();
    let refused = || service.stats().shards[0].counts.refused;
    let mut slots: Vec<_> = (0..3).map(|_| InfallibleSleep::after(handle, FAR)).collect();
    wait_until("one of three is refused", || {
        assert!(slots.iter_mut().all(|slot| poll(slot, Waker::noop()).is_pending()));
        refused() > 0
    });
    thread::spawn(move || check_kept(InfallibleSleep::after(handle, FAR))).join().unwrap();
    drop(slots);
}

#[test]
fn infallible_sleep_of_an_ended_service_is_done_at_its_deadline() {
    let service = TimerService::beside_runtime().shards(1).start().unwrap();
    let handle = service.handle();
    let (alarm, waker) = Alarm::new();
    let mut before = InfallibleSleep::after(handle, FAR);
    assert!(poll(&mut before, &waker).is_pending());
    service.shutdown(ShutdownPolicy::Drop).unwrap();
    wait_until("the task of a sleep that waits is woken", || alarm.count() > 0);
    check_kept(before);
    check_kept(InfallibleSleep::until(handle, Instant::now() + FAR));
    // On a thread that has not used the service.
    thread::spawn(move || check_kept(InfallibleSleep::after(handle, FAR))).join().unwrap();
}

#[test]
fn deadline_is_rounded_up_to_the_tick_with_which_its_timer_fires() {
    let mut lab = Lab::<()>::new(builder(1));
    let handle = lab.handle();
    for micros in [9_999, 10_000, 10_001] {
        let deadline = lab.clock.now() + Duration::from_micros(micros);
        let due = handle.round_up(deadline);
        assert!(due >= deadline && due < deadline + ms(1));
        assert_eq!(handle.round_up(due), due);
        let mut sleep = handle.sleep(deadline);
        assert_eq!(look(&mut sleep), None);
        lab.settle();
        let nanosecond = Duration::from_nanos(1);
        lab.advance((due - lab.clock.now()).saturating_sub(nanosecond));
        assert_eq!(look(&mut sleep), None, "{micros} µs");
        lab.advance(nanosecond);
        assert_eq!(look(&mut sleep), Some(Ok(())), "{micros} µs");
    }
    let now = lab.clock.now();
    drop(lab);
    assert_eq!(thread::spawn(move || handle.round_up(now)).join().unwrap(), now);
}

#[test]
fn clock_of_a_handle_outlives_its_service() {
    let lab = Lab::<()>::new(builder(1));
    let (manual, clock) = (lab.clock.clone(), lab.handle().clock());
    assert!(clock.is_manual());
    drop(lab);
    manual.advance(ms(7));
    assert_eq!(clock.now(), manual.now());
    let service = TimerService::builder().shards(1).start().unwrap();
    let (before, clock) = (Instant::now(), service.handle().clock());
    assert!(!clock.is_manual() && clock.now() >= before && clock.now() <= Instant::now());
}

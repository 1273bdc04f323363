//! Timers of futures, which stay with their thread.

use std::collections::VecDeque;

use corewheel::Runtime;
use tokio::runtime::Builder;

use super::*;

/// What the shard counts for the class.
fn class(lab: &Lab<()>) -> ClassStats {
    lab.service.stats().shards[0].classes[0]
}

/// Lets the shard sleep and wake as a driver does, until it sleeps with nothing to wake for or
/// `end` has come. Returns how often it was woken.
fn sleep_and_wake(lab: &mut Lab<()>, bell: &(Arc<Alarm>, Waker), end: Duration) -> usize {
    let (start, mut woken) = (lab.clock.now(), 0);
    let rung = bell.0.count();
    loop {
        match lab.fall_asleep(&bell.1) {
            Turn::Next(at) if at <= start + end => {
                lab.clock.advance(at.saturating_duration_since(lab.clock.now()));
                woken += 1;
            }
            _ => break,
        }
    }
    woken + (bell.0.count() - rung)
}

#[test]
fn lone_timeout_costs_at_most_three_wake_ups_and_a_short_lived_one_two() {
    for delay in [5, 15, 20, 30, 50, 100, 400, 1_000, 7_000, 11_000, 30_000, 100_000] {
        // The first look at the list of the longest timeouts comes after 6 s.
        for ends_after in [None, Some((delay / 3).min(5_999))] {
            let mut lab = Lab::<()>::at_windows(builder(1));
            let there = Elsewhere::new(lab.handle().untyped());
            let bell = Alarm::new();
            assert_eq!(sleep_and_wake(&mut lab, &bell, FAR), 0, "a shard without timers is woken");
            let sleep = there.sleep(ms(delay));
            let mut woken = bell.0.count();
            assert_eq!(woken, 1, "a shard that sleeps is told of the first timeout");
            if let Some(after) = ends_after {
                woken += sleep_and_wake(&mut lab, &bell, ms(after));
                there.run(move || drop(sleep));
            }
            woken += sleep_and_wake(&mut lab, &bell, FAR * 2);
            // It comes up once on each level of the wheel that it passes.
            let levels = usize::from(delay > 64) + usize::from(delay > 4_096);
            let (fired, woken_max) = ends_after.map_or((1, 3 + levels), |_| (0, 2));
            let case = format!("{delay} ms that end after {ends_after:?} ms");
            assert_eq!(there.woken(), fired, "{case}");
            assert!(woken <= woken_max, "{woken} wake-ups for {case}");
            assert_eq!(sleep_and_wake(&mut lab, &bell, FAR), 0, "nothing is pending");
        }
    }
}

#[test]
fn round_timeout_that_ends_within_two_fifths_of_its_time_never_leaves_its_thread() {
    for delay in [50, 100, 200, 500, 1_000, 2_000, 5_000] {
        let (mut lab, there) = Lab::<()>::with_thread(builder(1));
        // One is armed in each tenth of the time, so the first look finds timers of all ages.
        let mut armed = VecDeque::new();
        for _ in 0..30 {
            armed.push_back(there.sleep(ms(delay)));
            lab.advance(ms(delay / 10));
            if armed.len() == 4 {
                let ended = armed.pop_front();
                there.run(move || drop(ended));
            }
        }
        there.run(move || drop(armed));
        // By then a look has counted them.
        lab.advance(ms(delay));
        let counts = lab.counts();
        assert_eq!((counts.ended_young, counts.cancelled), (30, 30), "{delay} ms");
    }
}

#[test]
fn old_timers_of_an_idle_thread_dropped_elsewhere_are_freed_within_a_second() {
    const COUNT: usize = 100_000;
    for ends in [false, true] {
        let (mut lab, mut there) = Lab::<()>::with_thread(builder(1).capacity(1 << 18));
        let sleeps = there.sleeps(vec![ms(3_000); COUNT]);
        // The second look at their list files them.
        lab.advance_steps(3, ms(600));
        assert_eq!((lab.counts().pending, there.kept()), (COUNT as u64, COUNT));
        if ends {
            there.end();
        }
        thread::spawn(move || drop(sleeps)).join().unwrap();
        sleep_and_wake(&mut lab, &Alarm::new(), ms(1_000));
        assert_eq!(there.kept(), 0, "wakers are kept for longer than a second");
        lab.settle();
        // The shard has their ends at its next look, which is at once.
        lab.advance(ms(1_000));
        let counts = lab.counts();
        let ended = (counts.pending, counts.cancelled, there.woken());
        assert_eq!(ended, (0, COUNT as u64, 0), "{ends}");
    }
}

#[test]
fn thread_itself_ends_its_timers_once_many_were_dropped_elsewhere() {
    let (mut lab, there) = Lab::<()>::with_thread(builder(1));
    // The clock stands still, so the shard ends none of them.
    for (dropped, left) in [(255, 255), (256, 0), (300, 0)] {
        drop(there.sleeps(vec![FAR; dropped]));
        assert_eq!(there.kept(), dropped, "the thread does nothing meanwhile");
        let sleep = there.sleep(FAR);
        assert_eq!(there.kept(), left + 1, "after {dropped}");
        there.run(move || drop(sleep));
        assert_eq!(there.kept(), left, "its own waker is dropped at once");
        lab.advance(ms(1_000));
        assert_eq!(there.kept(), 0, "the shard has ended the rest");
    }
    assert_eq!((lab.counts().pending, there.woken()), (0, 0));
}

#[test]
fn timers_end_in_place_wherever_they_are_dropped() {
    // Where the sleep is dropped, whether the shard has filed its timer, and whether its thread has
    // ended.
    for case in 0..8 {
        let [drops_there, is_old, has_ended] = [1, 2, 4].map(|bit| case & bit != 0);
        let (mut lab, mut there) = Lab::<()>::with_thread(builder(1));
        let mut sleep = Some(there.sleep(ms(100)));
        lab.settle();
        if is_old {
            lab.advance_steps(6, ms(15));
        }
        if drops_there {
            let sleep = sleep.take();
            there.run(move || drop(sleep));
            assert_eq!(there.kept(), 0, "case {case}: the thread drops its waker at once");
        }
        if has_ended {
            there.end();
        }
        drop(sleep);
        lab.advance(ms(1_000));
        assert_eq!((there.woken(), there.kept()), (0, 0), "case {case}");
        lab.advance(ms(7_000));
        let counts = lab.counts();
        assert_eq!((counts.scheduled_remote, counts.pending), (1, 0), "case {case}");
        assert_eq!(counts.cancelled + counts.fired, 1, "case {case}");
    }
}

#[test]
fn each_policy_of_a_shutdown_gives_each_timer_one_outcome() {
    for (policy, has_ended) in POLICIES.into_iter().flat_map(|one| [(one, false), (one, true)]) {
        let (mut lab, mut there) = Lab::<()>::with_thread(builder(1));
        let old = there.sleeps(vec![ms(100); 200]);
        lab.advance_steps(6, ms(15));
        let mut young = there.sleeps(vec![ms(30_000); 200]);
        let elsewhere = young.split_off(150);
        let ended = young.split_off(100);
        there.run(move || drop(ended));
        drop(elsewhere);
        if has_ended {
            there.end();
        }
        let counts = lab.end(policy).shards[0].counts;
        assert_eq!((counts.scheduled_remote, counts.pending), (400, 0), "{policy:?}");
        assert_eq!(counts.cancelled, 100, "{policy:?}: what had ended before");
        // The timers of futures have no payload to return.
        let fires = policy == ShutdownPolicy::Fire;
        let pending = if fires { counts.fired } else { counts.dropped };
        assert_eq!((pending, unfired(&counts) + counts.fired), (300, 300), "{policy:?}");
        assert_eq!((there.woken(), there.kept()), (300, 0), "{policy:?}: all are woken");
        for mut sleep in young.into_iter().chain(old) {
            assert_eq!(look(&mut sleep), Some(Err(RefusedKind::Closed)));
        }
    }
}

#[test]
fn shard_about_to_sleep_finds_the_timer_that_a_thread_has_just_armed() {
    let sleep_bell = Alarm::new().1;
    for has_timers in [true, false] {
        let (mut lab, there) = Lab::<()>::with_thread(builder(1));
        let _before = has_timers.then(|| there.sleep(ms(30_000)));
        lab.settle();
        let turn = lab.turn();
        let _sleep = there.sleep(ms(10));
        let next = lab.shards[0].prepare_to_sleep(turn, &sleep_bell);
        let due = lab.clock.now() + ms(10);
        let is_in_time = matches!(next, Turn::Next(at) if at <= due);
        assert!(next == Turn::More || is_in_time, "the shard sleeps past the timer: {next:?}");
    }
    // A timer that was refused has the shard look for a slot.
    let (mut lab, there) = Lab::<()>::with_thread(builder(1).capacity(7));
    let armed = there.fill(&mut lab);
    assert_eq!(armed.len(), 7);
    let turn = lab.turn();
    let _waits = there.sleep(FAR);
    let next = lab.shards[0].prepare_to_sleep(turn, &sleep_bell);
    assert_eq!(next, Turn::More, "the shard would leave a timer that waits for room");
}

#[test]
fn wakers_that_a_turn_has_no_time_for_are_woken_by_the_next_turns_or_the_end() {
    const COUNT: u64 = 20;
    for end in [None, Some(ShutdownPolicy::Fire)] {
        let budget = TurnBudget { time_max: Some(Duration::ZERO), ..TurnBudget::default() };
        let mut lab = Lab::<()>::new(builder(1).class(IDLE).budget(budget));
        let there = Elsewhere::new(lab.handle().untyped().of_class(IDLE).unwrap());
        let _sleeps = there.sleeps(vec![ms(10); COUNT as usize]);
        lab.clock.advance(ms(10));
        for woken in 1..=5 {
            assert_eq!(lab.turn(), Turn::More, "a turn has the time to wake one timer");
            assert_eq!(there.woken(), woken);
            lab.clock.advance(ms(100));
        }
        if let Some(policy) = end {
            lab.end(policy);
        } else {
            while lab.turn() == Turn::More {
                lab.clock.advance(ms(100));
            }
        }
        let (counts, class) = (lab.counts(), class(&lab));
        assert_eq!(there.woken(), COUNT as usize, "{end:?}");
        assert_eq!((counts.fired, counts.pending, counts.dropped), (COUNT, 0, 0), "{end:?}");
        assert_eq!((class.fired, class.pending), (COUNT, 0), "{end:?}");
        // All but the first were late, each by the time since its deadline.
        assert_eq!((counts.late, class.late), (COUNT - 1, COUNT - 1), "{end:?}");
    }
}

#[test]
fn timers_of_several_threads_and_values_that_are_due_together_all_fire() {
    let mut lab = Lab::<u32>::new(builder(1));
    let threads = [(); 2].map(|()| Elsewhere::new(lab.handle().untyped()));
    let woken = || threads.iter().map(Elsewhere::woken).sum::<usize>();
    let mut sleeps = Vec::new();
    for round in 0..50 {
        for there in &threads {
            sleeps.extend(there.sleeps(vec![ms(40); 3]));
        }
        lab.timers().schedule(ms(40), round).unwrap();
    }
    // Some are reset to later while they are young, and once they are old.
    sleeps.iter_mut().step_by(10).for_each(|sleep| sleep.reset(ms(60)));
    lab.advance(ms(20));
    sleeps.iter_mut().skip(5).step_by(10).for_each(|sleep| sleep.reset(ms(40)));
    lab.advance(ms(20));
    assert_eq!((woken(), lab.fired().len()), (240, 50));
    lab.advance(ms(20));
    assert_eq!((woken(), lab.counts().pending), (300, 0));
}

#[test]
fn counts_include_young_timers_before_a_look_and_after_it() {
    let (mut lab, there) = Lab::<()>::with_thread(builder(1).class(IDLE));
    let of_class = there.handle.of_class(IDLE).unwrap();
    let mut sleeps = there.sleeps_of(of_class, vec![ms(100); 30]);
    let plain = there.sleeps(vec![ms(100); 10]);
    let ended = sleeps.split_off(20);
    there.run(move || drop(ended));
    for until_look in [0, 50] {
        lab.advance(ms(until_look));
        let counts = lab.counts();
        assert_eq!((counts.scheduled_remote, counts.pending, counts.cancelled), (40, 30, 10));
        assert_eq!(counts.ended_young, 10);
        let class = class(&lab);
        assert_eq!((class.scheduled, class.pending, class.cancelled), (30, 20, 10));
    }
    lab.advance(ms(50));
    let (counts, class) = (lab.counts(), class(&lab));
    assert_eq!((counts.pending, counts.fired), (0, 30));
    assert_eq!((class.pending, class.fired), (0, 20));
    drop((sleeps, plain));
    // One that ends young, and one that the shard has filed.
    let young = there.sleeps_of(of_class, vec![ms(100)]);
    there.run(move || drop(young));
    assert_eq!(lab.counts().ended_young, 11, "before a look");
    let old = there.sleeps_of(of_class, vec![ms(100)]);
    lab.advance(ms(97));
    drop(old);
    lab.advance(ms(2_000));
    let counts = lab.counts();
    assert_eq!((counts.ended_young, counts.cancelled), (11, 12));
}

#[test]
fn timer_past_the_capacity_is_refused_as_full_once_the_shard_has_looked() {
    for capacity in [1, 7, 100, 5_000] {
        let (mut lab, there) = Lab::<()>::with_thread(builder(1).capacity(capacity));
        let armed = there.fill(&mut lab);
        // Some slots are reserved for clients, which the shard's own timers may take.
        let granted = lab.counts().granted as usize;
        assert_eq!(armed.len() + granted, capacity as usize, "a capacity of {capacity}");
        let schedule = |_| lab.timers().schedule(FAR, ());
        let mut timers: Vec<_> = (0..granted).map(schedule).collect();
        assert!(lab.timers().schedule(FAR, ()).is_err(), "the slots are lent");
        there.run(move || drop(armed));
        // The credit that is not used comes back when the shard needs it.
        timers.extend((granted..capacity as usize).map(schedule));
        assert!(timers.iter().all(Result::is_ok), "a capacity of {capacity}");
        let refused = there.settle(&mut lab, there.handle.sleep(FAR)).err();
        assert_eq!(refused, Some(RefusedKind::Full), "a capacity of {capacity}");
        lab.settle();
    }
}

#[test]
fn forgotten_futures_cost_a_slot_each_and_no_other_timer() {
    let (mut lab, mut there) = Lab::<()>::with_thread(builder(1));
    there.sleeps(vec![ms(50); 100]).into_iter().for_each(std::mem::forget);
    let mut sleep = there.sleep(ms(60));
    there.end();
    lab.advance_steps(10, ms(10));
    assert_eq!((there.woken(), there.kept()), (101, 0), "all have fired");
    assert_eq!(look(&mut sleep), Some(Ok(())));
    assert_eq!(lab.counts().pending, 0);
}

/// A waker that polls and drops sleeps where it is woken and where it is dropped, those of other
/// threads included.
fn busy(handle: AnyHandle, others: Vec<Sleep>) -> Waker {
    let others = Mutex::new(others);
    let work = Arc::new(move || {
        let mut sleep = handle.sleep(FAR);
        let _closed = look(&mut sleep);
        sleep.reset(ms(5));
        drop(sleep);
        let others = std::mem::take(&mut *others.lock().unwrap());
        for mut sleep in others {
            let _done = poll(&mut sleep, &Waker::from(Alarm::new().0));
        }
    });
    let again = Arc::clone(&work);
    let dropped = OnDrop(move || again());
    waker_that(move || {
        let _kept = &dropped;
        work();
    })
}

#[test]
fn waker_that_polls_and_drops_sleeps_inline_finds_nothing_locked() {
    for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Fire] {
        let (mut lab, mut there) = Lab::<()>::with_thread(builder(1));
        let busy = || busy(there.handle, there.sleeps(vec![ms(70), FAR]));
        let arm = |delay| there.poll(there.handle.sleep(delay), &busy());
        // The waker is dropped with the sleep, there and here.
        let sleeps: Vec<_> = (0..300).map(|_| arm(FAR)).collect();
        there.run(move || drop(sleeps));
        let sleeps: Vec<_> = (0..300).map(|_| arm(FAR)).collect();
        drop(sleeps);
        // The thread ends them when it next polls a sleep.
        drop(there.sleep(FAR));
        // It is replaced by another one, while the timer is young and when it is old.
        let mut sleep = arm(ms(100));
        for _ in 0..3 {
            sleep = there.poll(sleep, &busy());
            lab.advance(ms(20));
        }
        // The shard wakes it, and drops it after a second, and wakes it at its end.
        let fires = arm(ms(10));
        drop(arm(FAR));
        lab.advance(ms(10));
        lab.advance(ms(1_000));
        let ends = arm(FAR);
        lab.end(policy);
        drop((fires, ends, sleep));
        there.end();
    }
}

#[test]
fn sleeps_dropped_by_the_last_destructors_of_a_thread_are_freed() {
    thread_local! {
        // Made before the table of services of its thread, so it is dropped after that.
        static LAST: RefCell<Vec<Sleep>> = const { RefCell::new(Vec::new()) };
    }
    let (mut lab, other) = Lab::<()>::with_thread(builder(1));
    let (handle, of_other) = (other.handle, other.sleep(FAR));
    let (alarm, waker) = Alarm::new();
    let ends = thread::spawn(move || {
        assert!(LAST.with_borrow(Vec::is_empty));
        let mut sleep = handle.sleep(FAR);
        assert!(poll(&mut sleep, &waker).is_pending());
        LAST.set(vec![sleep, of_other]);
    });
    ends.join().unwrap();
    lab.advance(ms(1_000));
    assert_eq!((alarm.count(), Arc::strong_count(&alarm)), (0, 1));
    assert_eq!((other.woken(), other.kept()), (0, 0));
    let counts = lab.counts();
    assert_eq!((counts.pending, counts.cancelled), (0, 2));
}

#[test]
fn two_million_timeouts_of_many_tasks_are_never_refused() {
    // A quarter of the capacity is live, and there are more timeouts than it has slots.
    let each = if cfg!(debug_assertions) { 50_000 } else { 2_000_000 };
    for tasks in [100, 10_000] {
        let service = TimerService::beside_runtime().capacity(40_000).start().unwrap();
        let handle = service.handle();
        let runtime = Builder::new_multi_thread().worker_threads(4).build().unwrap();
        runtime.block_on(async {
            let run = move || async move {
                for _ in 0..each / tasks {
                    let ended = handle.timeout(Duration::from_secs(30), tokio::task::yield_now());
                    assert!(ended.await.is_ok(), "a timeout is refused");
                }
            };
            let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(run())).collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
        let report = service.shutdown(ShutdownPolicy::Return).unwrap();
        let counts = report.shards[0].counts;
        assert_eq!((counts.refused, counts.requests, counts.returned), (0, 0, 0));
        assert_eq!(counts.scheduled_remote, counts.cancelled);
        assert_eq!(counts.scheduled_remote, each);
    }
}

#[test]
fn runtime_that_ends_frees_the_timers_of_its_tasks() {
    let service = builder(1).runtime(Runtime::Thread).start().unwrap();
    let handle = service.handle();
    for _ in 0..3 {
        let runtime = Builder::new_multi_thread().worker_threads(3).build().unwrap();
        let tasks: Vec<_> = (0..1_000).map(|_| runtime.spawn(handle.sleep(FAR))).collect();
        wait_until("the timers are pending", || {
            runtime.block_on(handle.sleep(ms(1))).unwrap();
            tasks.iter().all(|task| !task.is_finished())
        });
        drop(runtime);
    }
    wait_until("all timers have ended", || service.stats().shards[0].counts.pending == 0);
}

#[test]
fn ticks_of_one_thread_fire_in_order_after_a_stall_of_any_length() {
    for stall in [7, 50, 5_000, 400_000] {
        let (mut lab, there) = Lab::<()>::with_thread(builder(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut sleeps = Vec::new();
        for round in 0..40 {
            for delay in [3, 40, 63, 64, 65, 130, 1_000, 4_200, 30_000, 300_000] {
                let (due, order) = (lab.clock.now() + ms(delay), Arc::clone(&order));
                let noted = waker_that(move || order.lock().unwrap().push(due));
                sleeps.push(there.poll(there.handle.sleep(ms(delay)), &noted));
            }
            lab.advance(ms(round));
        }
        lab.advance_steps(400_000 / stall + 1, ms(stall));
        let order = order.lock().unwrap();
        assert_eq!(order.len(), sleeps.len(), "stalls of {stall} ms");
        assert!(order.is_sorted(), "stalls of {stall} ms: {order:?}");
    }
}

#[test]
fn oldest_future_of_a_class_is_known_before_any_turn_and_after_it() {
    let (mut lab, there) = Lab::<()>::with_thread(builder(1).class(IDLE));
    let timers = lab.timers().of_class(IDLE).unwrap();
    let oldest = |lab: &Lab<()>| class(lab).oldest;
    assert_eq!(oldest(&lab), None);
    let first = there.sleeps_of(there.handle.of_class(IDLE).unwrap(), vec![FAR]);
    lab.clock.advance(ms(20));
    let mut second = timers.sleep(FAR);
    assert_eq!(look(&mut second), None);
    assert_eq!(oldest(&lab), Some(ms(20)));
    lab.advance(ms(10_000));
    assert_eq!(oldest(&lab), Some(ms(10_020)));
    there.run(move || drop(first));
    assert_eq!(oldest(&lab), Some(ms(10_000)));
    drop(second);
    assert_eq!(oldest(&lab), None);
}

#[test]
fn sleep_of_a_shards_own_thread_may_end_and_be_polled_on_another_one() {
    let (mut lab, there) = Lab::<()>::with_thread(builder(1));
    let (alarm, waker) = Alarm::new();
    let mut sleeps: Vec<_> = [FAR, ms(10), ms(10)].map(|after| lab.timers().sleep(after)).into();
    assert!(sleeps.iter_mut().all(|sleep| poll(sleep, &waker).is_pending()));
    let [ended, fired, mut polled] = [0, 1, 2].map(|_| sleeps.remove(0));
    there.run(move || drop(ended));
    lab.advance(ms(10));
    assert_eq!(alarm.count(), 2);
    assert_eq!(there.run(move || look(&mut polled)), Some(Ok(())));
    there.run(move || drop(fired));
    lab.advance(ms(1_000));
    assert_eq!(Arc::strong_count(&alarm), 2, "a waker is kept");
    assert_eq!((lab.counts().pending, lab.counts().cancelled), (0, 1));
}

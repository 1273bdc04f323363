//! Futures whose timers are due together: a turn wakes them one after the other, and counts them
//! afterwards.

use std::panic::panic_any;

use super::*;

/// What the wakers of a test have noted.
type Noted = Rc<RefCell<Vec<usize>>>;

/// A waker that notes a number, and then runs code.
fn noting(noted: &Noted, number: usize, run: impl Fn() + 'static) -> Waker {
    let noted = Rc::clone(noted);
    waker_of(move || {
        noted.borrow_mut().push(number);
        run();
    })
}

/// A sleep of 100 ms of a class, which is polled with a waker.
fn sleep(lab: &Lab<u32>, class: TimerClass, waker: &Waker) -> Sleep {
    let handle = lab.service.handle().untyped().of_class(class).unwrap();
    let mut sleep = handle.sleep(ms(100));
    assert_eq!(poll(&mut sleep, waker), Poll::Pending);
    sleep
}

fn lab(budget: TurnBudget) -> Lab<u32> {
    let builder = builder(1).classes([IDLE, REQUEST]).budget(budget);
    Lab::new(builder.overrun(ms(2)).lateness_bound(ms(3)))
}

#[test]
fn each_of_many_is_woken_once_and_a_turn_keeps_to_its_budget() {
    const COUNT: usize = 1_300;
    for (expired_max, turns) in [(500, vec![500, 1_000, COUNT]), (u32::MAX, vec![COUNT])] {
        let mut lab = lab(TurnBudget { expired_max, work_max: 10_000, ..TurnBudget::default() });
        let noted = Noted::default();
        let _sleeps: Vec<_> =
            (0..COUNT).map(|number| sleep(&lab, IDLE, &noting(&noted, number, || {}))).collect();
        lab.advance(ms(99));
        assert!(noted.borrow().is_empty());
        lab.clock.advance(ms(1));
        for woken in turns {
            let _ = lab.turn();
            assert_eq!(noted.borrow().len(), woken, "{expired_max}");
            check_law(&lab.counts());
        }
        assert!(sorted(noted.take()).into_iter().eq(0..COUNT), "{expired_max}");
        assert_eq!(lab.counts().fired, COUNT as u64);
    }
}

#[test]
fn panic_of_a_waker_is_counted_and_the_others_are_woken() {
    let mut lab = lab(TurnBudget::default());
    let noted = Noted::default();
    let panics = |number| {
        let run = move || {
            if number % 10 == 3 {
                panic_any("on purpose");
            }
        };
        sleep(&lab, IDLE, &noting(&noted, number, run))
    };
    let mut sleeps: Vec<_> = (0..50).map(panics).collect();
    lab.advance(ms(100));
    assert_eq!(noted.borrow().len(), 50);
    let counts = lab.counts();
    assert_eq!((counts.fired, counts.panicked, counts.overrun), (50, 5, 0));
    assert!(sleeps.iter_mut().all(|sleep| look(sleep) == Some(Ok(()))));
}

#[test]
fn slow_waker_makes_those_after_it_late_and_counts_for_its_class() {
    const SLOW: usize = 21;
    let mut lab = lab(TurnBudget::default());
    let noted = Noted::default();
    let may_be_slow = |number| {
        let clock = lab.clock.clone();
        let run = move || clock.advance(ms(if number == SLOW { 5 } else { 0 }));
        let class = if number / 10 % 2 == 0 { IDLE } else { REQUEST };
        sleep(&lab, class, &noting(&noted, number, run))
    };
    let _sleeps: Vec<_> = (0..60).map(may_be_slow).collect();
    lab.advance(ms(100));
    let woken = noted.borrow();
    let after_slow = woken.iter().skip_while(|number| **number != SLOW).count() as u64 - 1;
    let counts = lab.counts();
    assert_eq!((counts.fired, counts.overrun), (60, 1));
    // A wake that is timed with others may be taken for up to as much later as they took.
    assert!((after_slow..after_slow + 16).contains(&counts.late), "{after_slow} {counts:?}");
    let classes = &lab.service.stats().shards[0].classes;
    let of = |class: TimerClass| *classes.iter().find(|of| of.class == class.name()).unwrap();
    assert_eq!((of(IDLE).fired, of(IDLE).overrun), (30, 1));
    assert_eq!((of(REQUEST).fired, of(REQUEST).overrun), (30, 0));
    assert_eq!(of(IDLE).late + of(REQUEST).late, counts.late);
    assert_eq!((of(IDLE).pending, of(REQUEST).pending), (0, 0));
    let lateness = &lab.service.stats().shards[0].lateness;
    assert_eq!(lateness.count, 60);
    assert!(lateness.max_ns >= 5_000_000, "{}", lateness.max_ns);
}

#[test]
fn future_dropped_by_the_waker_of_another_has_fired_and_is_counted_once() {
    let mut lab = lab(TurnBudget::default());
    let noted = Noted::default();
    let others: Rc<RefCell<Vec<Sleep>>> = Rc::default();
    let ended = Rc::clone(&others);
    // Whichever is woken first ends all others.
    let end_all = move || drop(ended.take());
    for number in 0..40 {
        let sleep = sleep(&lab, IDLE, &noting(&noted, number, end_all.clone()));
        others.borrow_mut().push(sleep);
    }
    // By then the shard has filed the timers, so that it takes all of them out at once.
    lab.advance(ms(97));
    lab.advance(ms(3));
    assert_eq!(noted.borrow().len(), 40, "each waker is woken once");
    let counts = lab.counts();
    assert_eq!((counts.fired, counts.cancelled, counts.pending), (40, 0, 0));
    let class = lab.service.stats().shards[0].classes[0];
    assert_eq!((class.fired, class.cancelled, class.pending), (40, 0, 0));
}

#[test]
fn timer_due_after_futures_is_pending_until_they_are_woken() {
    let mut lab = lab(TurnBudget::default());
    let noted = Noted::default();
    // A timer that the waker cancels, and whether the cancel has prevented it from firing.
    let cancelled = Rc::new(Cell::new(None::<(Timers<u32>, TimerId)>));
    let won = Rc::new(Cell::new(None));
    let (known, noted_won) = (Rc::clone(&cancelled), Rc::clone(&won));
    let cancel = move || {
        if let Some((timers, timer)) = known.take() {
            noted_won.set(Some(timers.cancel(timer).won()));
        }
    };
    let wakes = |number| sleep(&lab, IDLE, &noting(&noted, number, cancel.clone()));
    let _sleeps: Vec<_> = (0..3).map(wakes).collect();
    // By then the shard has filed the timers of the futures.
    lab.advance(ms(97));
    let timer = lab.timers().schedule(ms(3), 7).unwrap();
    lab.timers().schedule(ms(3), 8).unwrap();
    cancelled.set(Some((lab.timers().clone(), timer)));
    lab.advance(ms(3));
    assert_eq!(noted.borrow().len(), 3);
    assert_eq!(won.get(), Some(true));
    assert_eq!(lab.fired(), [(8, 100)]);
    let counts = lab.counts();
    assert_eq!((counts.fired, counts.cancelled), (4, 1));
}

#[test]
fn waker_that_shuts_the_service_down_inline_is_in_no_turn_of_its_own() {
    for (host, running) in Running::<u8>::each(Host::all(), 1) {
        let (service, (sender, told)) = (Arc::downgrade(&running.service), mpsc::channel());
        let (alarm, other) = Alarm::new();
        let ends = waker_that(move || {
            let service = service.upgrade().unwrap();
            let blocked = service.shutdown(ShutdownPolicy::Fire).map(drop);
            let begun = service.begin_shutdown(ShutdownPolicy::Fire);
            sender.send((blocked, begun)).unwrap_or_else(|_| panic!("the test waits"));
        });
        let client = running.client();
        // Later than the polls, also on a busy machine.
        let due = Instant::now() + ms(250);
        let mut sleeps = [client.sleep(due), client.sleep(due), client.sleep(FAR)];
        for (sleep, waker) in sleeps.iter_mut().zip([&ends, &other, &other]) {
            assert_eq!(poll(sleep, waker), Poll::Pending, "{host:?}");
        }
        let (blocked, begun) = told.recv_timeout(PATIENCE).unwrap();
        assert_eq!(blocked, Err(ReplyError::OnShard), "{host:?}");
        let counts = block_on(begun.unwrap()).shards[0].counts;
        assert_eq!((counts.fired, counts.pending), (3, 0), "{host:?}");
        assert_eq!(alarm.count(), 2, "{host:?}");
        let ends = sleeps.each_mut().map(look);
        assert_eq!(ends, [Some(Ok(())), Some(Ok(())), Some(Err(RefusedKind::Closed))], "{host:?}");
    }
}

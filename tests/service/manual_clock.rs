//! A manual clock that takes shards, and tasks beside them, from deadline to deadline.

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::task::yield_now;

use super::*;

/// Lets the clock of a lab run with its shards and tasks.
fn run<T: Send + 'static>(
    lab: &mut Lab<T>,
    limit: Duration,
    tasks: impl Future<Output = ()>,
) -> Turn {
    lab.clock.run_until_idle(&mut lab.shards, limit, tasks)
}

#[test]
fn run_until_idle_delivers_every_timer_on_time_and_leaves_the_clock_at_the_last() {
    // The budget makes a shard take many turns at one moment.
    for budget in [TurnBudget::default(), TurnBudget { expired_max: 1, ..TurnBudget::default() }] {
        let fired = Rc::new(RefCell::new(Vec::new()));
        let mut lab = Lab::with_handler(builder(2).budget(budget), |_| {
            let fired = Rc::clone(&fired);
            move |one: Fired<u32>, timers: &Timers<u32>| {
                assert_eq!(one.lateness, Duration::ZERO);
                fired.borrow_mut().push((one.payload, timers.now()));
                if one.payload < 5 {
                    timers.schedule(FAR, one.payload + 1).unwrap();
                }
            }
        });
        let begin = lab.clock.now();
        lab.shards[0].timers().schedule(ms(7), 0).unwrap();
        for _ in 0..20 {
            lab.shards[1].timers().schedule(ms(3), 9).unwrap();
        }
        // Another thread's request, which lies in its lane.
        let client = lab.service.handle();
        thread::scope(|scope| {
            scope.spawn(move || client.on(OTHER).schedule(begin + 10 * FAR, 8).unwrap());
        });
        assert_eq!(run(&mut lab, 20 * FAR, pending()), Turn::Idle);
        assert_eq!(lab.clock.now() - begin, 10 * FAR);
        let mut expected = vec![(9, begin + ms(3)); 20];
        expected.extend((0..=5).map(|payload| (payload, begin + ms(7) + FAR * payload)));
        expected.push((8, begin + 10 * FAR));
        assert_eq!(fired.take(), expected);
    }
}

#[test]
fn run_until_idle_stops_at_its_limit_and_goes_on_from_there() {
    let mut lab: Lab = Lab::new(builder(2));
    let begin = lab.clock.now();
    let runs = Rc::new(Cell::new(0));
    let counted = Rc::clone(&runs);
    let rate = Repeat::at_fixed_rate(ms(300)).unwrap();
    let repeats = rate.begin(lab.shards[1].timers(), move |_| counted.set(counted.get() + 1));
    let repeats = repeats.unwrap();
    for (limit, next, expected) in [(ms(1_000), ms(1_200), 3), (ms(200), ms(1_500), 4)] {
        let end = lab.clock.now() + limit;
        let turn = run(&mut lab, limit, pending());
        // The shard may want a turn before the deadline.
        let is_next = matches!(turn, Turn::Next(at) if at > end && at <= begin + next);
        assert!(is_next, "{turn:?} is not after {end:?} and until {next:?}");
        assert_eq!((lab.clock.now(), runs.get()), (end, expected));
    }
    let _ = repeats.stop();
    assert_eq!(run(&mut lab, FAR, pending()), Turn::Idle);
    assert_eq!((lab.clock.now() - begin, runs.get()), (ms(1_200), 4));
}

#[test]
fn run_until_idle_is_idle_with_timers_that_never_fire_and_closed_after_the_end() {
    let mut lab = Lab::<u8>::new(builder(1));
    let begin = lab.clock.now();
    lab.shards[0].timers().schedule(Duration::MAX, 1).unwrap();
    assert_eq!(run(&mut lab, FAR, pending()), Turn::Idle);
    assert_eq!(lab.clock.now(), begin);
    let report = lab.service.begin_shutdown(ShutdownPolicy::Return).unwrap();
    assert_eq!(run(&mut lab, FAR, pending()), Turn::Closed);
    drop(report);
}

#[test]
fn run_until_idle_runs_tasks_that_wait_by_a_handle() {
    let mut lab: Lab = Lab::new(builder(2));
    let (begin, timers) = (lab.clock.now(), lab.service.handle());
    let seen = Rc::new(RefCell::new(Vec::new()));
    let clock = lab.clock.clone();
    let note = |what| seen.borrow_mut().push((what, clock.now() - begin));
    let (mut peer, mut stream) = duplex(8);
    let client = async {
        for _ in 0..2 {
            timers.on(OTHER).sleep(ms(20)).await.unwrap();
            peer.write_all(b"ping").await.unwrap();
            note("ping");
        }
        timers.sleep(FAR).await.unwrap();
        note("still there");
    };
    let server = async {
        let mut buffer = [0; 4];
        while timers.timeout(ms(30), stream.read_exact(&mut buffer)).await.is_ok() {
            note("pong");
            yield_now().await;
        }
        note("idle");
    };
    let tasks = async {
        tokio::join!(client, server);
    };
    assert_eq!(run(&mut lab, 2 * FAR, tasks), Turn::Idle);
    let expected = [
        ("ping", ms(20)),
        ("pong", ms(20)),
        ("ping", ms(40)),
        ("pong", ms(40)),
        ("idle", ms(70)),
        ("still there", ms(40) + FAR),
    ];
    assert_eq!(seen.take(), expected);
}

#[test]
fn tasks_of_a_local_set_go_on_in_the_next_run() {
    let mut lab: Lab = Lab::new(builder(1));
    let (begin, timers) = (lab.clock.now(), lab.service.handle());
    let mut tasks = LocalSet::new();
    let ended = Rc::new(RefCell::new(Vec::new()));
    for number in 0..200 {
        let ended = Rc::clone(&ended);
        tasks.spawn_local(async move {
            timers.sleep(ms(number * 10)).await?;
            ended.borrow_mut().push(number);
            Ok::<_, RefusedKind>(())
        });
    }
    let turn = run(&mut lab, ms(999), &mut tasks);
    assert!(matches!(turn, Turn::Next(at) if at <= begin + ms(1_000)), "{turn:?}");
    assert_eq!((lab.clock.now() - begin, ended.borrow().len()), (ms(999), 100));
    assert_eq!(run(&mut lab, FAR, &mut tasks), Turn::Idle);
    assert_eq!(lab.clock.now() - begin, ms(1_990));
    assert!(ended.borrow().is_sorted() && ended.borrow().len() == 200);
}

#[test]
#[should_panic(expected = "always has work, and the clock stands still")]
fn run_until_idle_panics_if_a_handler_always_schedules_at_once() {
    let mut lab = Lab::with_handler(builder(1), |_| {
        |one: Fired<u8>, timers: &Timers<u8>| {
            timers.schedule(Duration::ZERO, one.payload).unwrap();
        }
    });
    lab.shards[0].timers().schedule(ms(1), 1).unwrap();
    let _ = run(&mut lab, FAR, pending());
}

#[test]
#[should_panic(expected = "always has work, and the clock stands still")]
fn run_until_idle_panics_if_a_task_always_wakes_itself() {
    let mut lab: Lab = Lab::new(builder(1));
    let tasks = async {
        loop {
            yield_now().await;
        }
    };
    let _ = run(&mut lab, FAR, tasks);
}

#[test]
#[should_panic(expected = "goes by another clock than this one")]
fn run_until_idle_panics_if_a_shard_goes_by_another_clock() {
    let mut lab: Lab = Lab::new(builder(1));
    let _ = ManualClock::new().run_until_idle(&mut lab.shards, FAR, pending());
}

#[test]
fn clone_of_a_clock_runs_the_shards_of_the_clock() {
    let mut lab: Lab = Lab::new(builder(1));
    let begin = lab.clock.now();
    let timers = lab.service.handle();
    let slept = async { timers.sleep(ms(5)).await.unwrap() };
    assert_eq!(lab.clock.clone().run_until_idle(&mut lab.shards, FAR, slept), Turn::Idle);
    assert_eq!(lab.clock.now() - begin, ms(5));
}

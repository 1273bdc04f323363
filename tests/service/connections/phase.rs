//! Heartbeats, intervals and periodic callbacks that begin together and do not beat together.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use corewheel_kit::herd::Jitter;
use corewheel_kit::repeat::Repeat;

use super::*;
use corewheel_test_support::seeds;

const COUNT: usize = 300;
const PERIOD: u64 = 1_000;

/// The greatest number of beats in one tick, of those from tick `from` on.
fn most(beats: &[u64]) -> usize {
    let mut beats = beats.to_vec();
    beats.sort_unstable();
    beats.chunk_by(|a, b| a == b).map(<[u64]>::len).max().unwrap_or(0)
}

/// Whether each of the beats follows the one before of the same kind by a period.
fn check_period(beats: &[Vec<u64>]) {
    for beats in beats {
        assert!(beats.len() >= 3, "{beats:?}");
        // On a shard, a stamp may be some 10 ms later than what was written.
        let follows = |two: &[u64]| (PERIOD..PERIOD + 12).contains(&(two[1] - two[0]));
        assert!(beats.windows(2).all(follows), "{beats:?}");
        assert!(beats[0] <= PERIOD, "the first is within the period: {beats:?}");
    }
}

/// The ticks of the heartbeats of connections that begin together, on each side.
fn heartbeats(limits: ConnLimits) -> [Vec<Vec<u64>>; 2] {
    let mut lab = lab_with(corewheel::TimerService::builder().shards(1));
    let here: Vec<_> = (0..COUNT).map(|_| lab.timers().connection(limits).unwrap()).collect();
    let shared: Vec<ConnTimers<Handle>> =
        (0..COUNT).map(|_| lab.service.handle().connection(limits)).collect();
    // Every server greets its client.
    here.iter().for_each(ConnTimers::touch_write);
    shared.iter().for_each(ConnTimers::touch_write);
    let mut beats = [vec![Vec::new(); COUNT], vec![Vec::new(); COUNT]];
    for tick in 0..4 * PERIOD {
        lab.settle();
        for conn in 0..COUNT {
            if event(&here[conn]).is_some() {
                beats[0][conn].push(tick);
                here[conn].touch_write();
            }
            if shared::event(&shared[conn]).is_some() {
                beats[1][conn].push(tick);
                shared[conn].touch_write();
            }
        }
        lab.clock.advance(ms(1));
    }
    beats
}

#[test]
fn heartbeats_of_connections_that_begin_together_are_spread_and_keep_their_distance() {
    let limits = NONE.heartbeat(ms(PERIOD));
    let once = || {
        seeds::note(seeds::of_process());
        heartbeats(limits.heartbeat_phase(true))
    };
    let both = once();
    assert_eq!(both, once(), "a seed repeats them");
    for beats in both {
        check_period(&beats);
        assert!(most(&beats.concat()) < COUNT / 20, "{}", most(&beats.concat()));
        let early = beats.iter().filter(|beats| beats[0] < PERIOD / 2).count();
        assert!((COUNT / 3..COUNT * 2 / 3).contains(&early), "{early}");
    }
    for beats in heartbeats(limits) {
        assert!(most(&beats.concat()) >= COUNT, "without a phase they come together");
    }
}

#[test]
fn intervals_whose_first_tick_has_a_jitter_are_spread_and_keep_their_distance() {
    let mut lab = lab();
    let ticks: Rc<RefCell<Vec<Vec<u64>>>> = Rc::new(RefCell::new(vec![Vec::new(); 50]));
    let timers = lab.timers().clone();
    let tasks = (0..50).map(|number| {
        let (ticks, timers) = (Rc::clone(&ticks), timers.clone());
        let first = Jitter::random(ms(PERIOD), number).after(Duration::ZERO);
        let mut interval = timers.handle().interval_at(first, ms(PERIOD)).unwrap();
        let task = async move {
            while interval.tick().await.is_ok() {
                ticks.borrow_mut()[number as usize].push(ticks_of(&timers));
            }
        };
        Box::pin(task) as std::pin::Pin<Box<dyn Future<Output = ()>>>
    });
    let mut tasks: Vec<_> = tasks.collect();
    for _ in 0..=4 * PERIOD {
        for task in &mut tasks {
            let polled = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        }
        lab.advance(ms(1));
    }
    check_period(&ticks.borrow());
    assert!(most(&ticks.borrow().concat()) <= 4, "{}", most(&ticks.borrow().concat()));
}

#[test]
fn periodic_callbacks_whose_first_run_has_a_jitter_are_spread_over_the_period() {
    for is_rate in [true, false] {
        let mut lab = lab();
        let runs: Rc<RefCell<Vec<Vec<u64>>>> = Rc::new(RefCell::new(vec![Vec::new(); 50]));
        for number in 0..50 {
            let repeat = if is_rate { Repeat::at_fixed_rate } else { Repeat::with_fixed_delay };
            let first = Jitter::random(ms(PERIOD), number).after(Duration::ZERO);
            let repeat = repeat(ms(PERIOD)).unwrap().first(first);
            let runs = Rc::clone(&runs);
            let call = move |run: &mut corewheel_kit::repeat::PeriodicRun<'_, u8>| {
                runs.borrow_mut()[number as usize].push(ticks_of(run.timers));
            };
            let _periodic = repeat.begin(lab.timers(), call).unwrap();
        }
        for _ in 0..=4 * PERIOD {
            lab.advance(ms(1));
        }
        let runs = runs.borrow();
        // A fixed delay counts from the end of a run, which is not at the beginning of a tick.
        if is_rate {
            check_period(&runs);
        }
        assert!(most(&runs.concat()) <= 4, "{}", most(&runs.concat()));
        assert!(runs.iter().all(|runs| runs.len() >= 3 && runs[0] <= PERIOD + 1));
    }
}
/// The most heartbeats in a tick of the second period, of 100,000 connections that begin within
/// 100 ms and have a heartbeat of 10 s.
fn most_of_100_000(has_phase: bool) -> u32 {
    // The count depends on when the connections begin.
    let mut lab = Lab::<u8>::at_epoch(corewheel::TimerService::builder().shards(1));
    let limits = NONE.heartbeat(ms(10_000)).heartbeat_phase(has_phase);
    let beats = Rc::new(Cell::new(0));
    let mut conns = Vec::new();
    for _ in 0..100 {
        for _ in 0..1_000 {
            let conn = lab.timers().connection(limits).unwrap();
            let beats = Rc::clone(&beats);
            conn.on_event(move |conn, _| {
                beats.set(beats.get() + 1);
                conn.touch_write();
            });
            conns.push(conn);
            lab.clock.advance(Duration::from_micros(1));
        }
        lab.settle();
    }
    let mut most = 0;
    for tick in 0..20_000 {
        beats.set(0);
        lab.advance(ms(1));
        if tick >= 10_000 {
            most = most.max(beats.get());
        }
    }
    most
}

#[test]
fn fullest_tick_after_a_restart_has_a_fraction_of_the_heartbeats_with_a_phase() {
    // The mean is 10. The guide has these figures.
    assert_eq!([false, true].map(most_of_100_000), [1_000, 31]);
}

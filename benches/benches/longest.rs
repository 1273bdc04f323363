//! How long does a thread hold the lock of its timers at most, with a million of them?
//!
//! A sleep of a shard's own thread is armed and ended under that lock, so the longest of these
//! calls bounds the time for which the lock is held. Other work of the machine lengthens calls: the
//! figure is the least of the longest calls of several rounds. The figures are printed.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use corewheel::class::TimerClass;
use corewheel::{Fired, Sleep, TimerService, Timers};
use corewheel_bench::only_tested;

const ROUNDS: usize = 7;
const CLASS: TimerClass = TimerClass::new("longest");

fn main() {
    let counts: &[usize] =
        if only_tested() { &[1_000] } else { &[1_000, 10_000, 100_000, 1_000_000] };
    println!("the longest call, in microseconds, the least of {ROUNDS} rounds\n");
    println!(
        "| timers | class | armed | ended in order | ended in random order | a turn that fires |"
    );
    println!("|---|---|---|---|---|---|");
    for has_class in [false, true] {
        for &count in counts {
            let mut least = [Duration::MAX; 4];
            for _ in 0..ROUNDS {
                for (least, longest) in least.iter_mut().zip(round(count, has_class)) {
                    *least = longest.min(*least);
                }
            }
            let [armed, in_order, random, fired] = least.map(|time| time.as_nanos() as f64 / 1e3);
            println!(
                "| {count} | {has_class} | {armed:.1} | {in_order:.1} | {random:.1} | {fired:.1} |"
            );
        }
    }
}

/// The longest call of each kind, with timers of a thread that had none before.
fn round(count: usize, has_class: bool) -> [Duration; 4] {
    let builder = TimerService::builder().shards(1).capacity(2 * count as u32).class(CLASS);
    let service: TimerService<()> = builder.start_attached_with().expect("it starts");
    let shard = service.shards().next().expect("it has one");
    let attachment = service.attach(shard).expect("it is free");
    let handler = |_: Fired<()>, _: &Timers<()>| {};
    let mut shard = attachment.into_loop(handler).expect("there is memory");
    let mut timers = shard.timers().clone();
    if has_class {
        timers = timers.of_class(CLASS).expect("the class is known");
    }
    let far = Duration::from_mins(10);
    let make = |after: Duration| {
        let sleeps = (0..count).map(|_| Some(timers.sleep(after)));
        sleeps.collect::<Vec<Option<Sleep>>>()
    };
    let mut sleeps = make(far);
    let mut armed = arm(&mut sleeps);
    let in_order = longest(sleeps.iter_mut(), |sleep| drop(sleep.take()));
    let mut sleeps = make(far);
    armed = armed.max(arm(&mut sleeps));
    fastrand::Rng::with_seed(1).shuffle(&mut sleeps);
    let random = longest(sleeps.iter_mut(), |sleep| drop(sleep.take()));
    let mut sleeps = make(Duration::from_secs(2));
    armed = armed.max(arm(&mut sleeps));
    std::thread::sleep(Duration::from_secs(2));
    let mut fired = Duration::ZERO;
    while service.stats().shards[0].counts.fired < count as u64 {
        let begun = Instant::now();
        let _next = shard.turn();
        fired = fired.max(begun.elapsed());
    }
    [armed, in_order, random, fired]
}

fn arm(sleeps: &mut [Option<Sleep>]) -> Duration {
    let mut cx = Context::from_waker(Waker::noop());
    longest(sleeps.iter_mut(), |sleep| {
        let sleep = sleep.as_mut().expect("it is not over");
        assert!(matches!(Pin::new(sleep).poll(&mut cx), Poll::Pending), "it is armed");
    })
}

/// The longest call of `each`.
fn longest<I: Iterator>(items: I, mut each: impl FnMut(I::Item)) -> Duration {
    let mut longest = Duration::ZERO;
    for item in items {
        let begun = Instant::now();
        each(item);
        longest = longest.max(begun.elapsed());
    }
    longest
}

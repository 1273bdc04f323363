//! How many bytes does a timer take from the system, and how many a connection with five deadlines?
//!
//! The figures are printed. Each comes from a process of its own: this program again, with
//! arguments that say which row to measure.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::env;
use std::hint::black_box;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Waker};
use std::time::Duration;

use corewheel::{ConnLimits, Fired, TimerId, TimerService, Timers};
use corewheel_bench::{Contender, Held, Payload, contenders, only_tested, resident_bytes};

/// Fills a shard with [`count`] timers or connections. Returns how many bytes their handles take.
type Fill = fn(&Timers<Payload>) -> usize;

/// The rows of a shard, without the memory of the handles.
const ON_A_SHARD: [(&str, Fill); 4] = [
    ("a timer", with_timers),
    ("a sleep that is awaited", with_sleeps),
    ("a connection with five deadlines", with_connections),
    ("such a connection, awaited", with_awaited_connections),
];
const STATES: [(&str, Held); 2] = [("filled", Held::Filled), ("churned", Held::Churned)];

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--measure") {
        match &arguments[at + 2..] {
            [name] => println!("{}", measure_on_a_shard(name)),
            [name, state] => println!("{}", measure(name, state)),
            _ => panic!("--measure takes a number and one or two names"),
        }
        return;
    }
    println!("resident bytes for each of {} timers\n", count());
    println!("| contender | just filled | after four cancels and schedules for each |");
    println!("|---|---|---|");
    for Contender { name, .. } in contenders() {
        let [filled, churned] = STATES.map(|(state, _)| measure_apart(&[name, state]));
        println!("| {name} | {filled:.1} | {churned:.1} |");
    }
    println!("\nresident bytes of a shard for each of {}\n", count());
    println!("| what | bytes |");
    println!("|---|---|");
    for (name, _) in ON_A_SHARD {
        println!("| {name} | {:.1} |", measure_apart(&[name]));
    }
}

/// How many to measure: the argument of this process, or a million.
fn count() -> usize {
    let mut arguments = env::args().skip_while(|argument| argument != "--measure").skip(1);
    match arguments.next() {
        Some(count) => count.parse().expect("--measure takes a number first"),
        None if only_tested() => 200_000,
        None => 1_000_000,
    }
}

fn measure_apart(what: &[&str]) -> f64 {
    let name = what[0];
    let this = env::current_exe().expect("the path of this process");
    let output = Command::new(this).arg("--measure").arg(count().to_string()).args(what).output();
    let output = output.expect("this process can be started again");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let figure = String::from_utf8_lossy(&output.stdout);
    figure.trim().parse().expect("a number was printed")
}

fn measure(name: &str, state: &str) -> f64 {
    let contender = contenders().into_iter().find(|contender| contender.name == name);
    let contender = contender.expect("a contender has this name");
    let (_, held) = STATES.into_iter().find(|(name, _)| *name == state).expect("a state");
    (contender.resident_bytes_per_timer)(count(), held)
}

fn measure_on_a_shard(name: &str) -> f64 {
    let (_, fill) = ON_A_SHARD.into_iter().find(|(known, _)| *known == name).expect("a kind");
    let builder = TimerService::builder().shards(1).capacity(count() as u32 + 1);
    let service: TimerService<Payload> = builder.start_attached_with().expect("it starts");
    let shard = service.shards().next().expect("it has one");
    let deliver = |_: Fired<Payload>, _: &Timers<Payload>| unreachable!("nothing is due");
    let attachment = service.attach(shard).expect("it is free");
    let mut shard = attachment.into_loop(deliver).expect("there is memory");
    // The first connection allocates memory that all share, which is not included.
    let timers = shard.timers().clone();
    drop(timers.connection(limits(0)).expect("there is room"));
    let _ = shard.turn();
    let before = resident_bytes();
    let held = fill(&timers);
    let grown = resident_bytes() - before - held;
    grown as f64 / count() as f64
}

fn delay(n: usize) -> Duration {
    Duration::from_millis(600_000 + n as u64 % 60_000)
}

fn limits(n: usize) -> ConnLimits {
    ConnLimits {
        read_idle: delay(n % 4),
        write_idle: delay(n % 4 + 1),
        all_idle: delay(n % 4 + 2),
        heartbeat: delay(n % 4 + 3),
        max_age: delay(n % 4 + 4),
        ..ConnLimits::default()
    }
}

/// Makes [`count`] handles and holds them. Returns how many bytes they take.
fn hold<H>(make: impl FnMut(usize) -> H) -> usize {
    let mut held = Vec::with_capacity(count());
    held.extend((0..count()).map(make));
    // The handles are not dropped before the process ends, after the measurement.
    let held = std::mem::ManuallyDrop::new(black_box(held));
    held.len() * size_of::<H>()
}

fn with_timers(timers: &Timers<Payload>) -> usize {
    hold(|n| -> TimerId { timers.schedule(delay(n), Payload::MIN).expect("there is room") })
}

fn with_sleeps(timers: &Timers<Payload>) -> usize {
    hold(|n| {
        let mut sleep = timers.sleep(delay(n));
        poll_once(Pin::new(&mut sleep));
        sleep
    })
}

fn with_connections(timers: &Timers<Payload>) -> usize {
    hold(|n| timers.connection(limits(n)).expect("there is room"))
}

fn with_awaited_connections(timers: &Timers<Payload>) -> usize {
    hold(|n| {
        let connection = timers.connection(limits(n)).expect("there is room");
        assert!(connection.poll_next(&mut Context::from_waker(Waker::noop())).is_pending());
        connection
    })
}

fn poll_once(future: Pin<&mut impl Future>) {
    assert!(future.poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

//! How many bytes does a timer take from the system?
//!
//! Printed, not timed. Each figure comes from a process of its own: this one again, told by its
//! arguments what to measure.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::env;
use std::process::Command;

use corewheel_bench::{Contender, Held, contenders};

const TIMERS: usize = 1_000_000;
const STATES: [(&str, Held); 2] = [("filled", Held::Filled), ("churned", Held::Churned)];

fn main() {
    let arguments: Vec<String> = env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--measure") {
        let [name, state] = &arguments[at + 1..] else { panic!("--measure takes two values") };
        println!("{}", measure(name, state));
        return;
    }
    println!("resident bytes for each of {TIMERS} timers\n");
    println!("| contender | just filled | after 4,000,000 cancels and schedules |");
    println!("|---|---|---|");
    for Contender { name, .. } in contenders() {
        let [filled, churned] = STATES.map(|(state, _)| measure_apart(name, state));
        println!("| {name} | {filled:.1} | {churned:.1} |");
    }
}

fn measure_apart(name: &str, state: &str) -> f64 {
    let this = env::current_exe().expect("the path of this process");
    let output = Command::new(this).args(["--measure", name, state]).output();
    let output = output.expect("this process can be started again");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let figure = String::from_utf8_lossy(&output.stdout);
    figure.trim().parse().expect("a number was printed")
}

fn measure(name: &str, state: &str) -> f64 {
    let contender = contenders().into_iter().find(|contender| contender.name == name);
    let contender = contender.expect("a contender has this name");
    let (_, held) = STATES.into_iter().find(|(name, _)| *name == state).expect("a state");
    (contender.resident_bytes_per_timer)(TIMERS, held)
}

//! How long do single turns of a shard take?
//!
//! The times are printed, not averaged: the longest turn matters to a server. Only the shard's own
//! work is timed, and the shortest of three identical runs counts for each turn.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use corewheel_bench::pin_to_one_core;
use corewheel_bench::sections::turns::all;

fn main() {
    pin_to_one_core();
    println!("| single turns, us | turns | p50 | p99 | p99.9 | p99.99 | longest |");
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for turns in all() {
        let [p50, p99, p999, p9999, longest] =
            [50.0, 99.0, 99.9, 99.99, 100.0].map(|of_100| turns.percentile(of_100));
        println!(
            "| {} | {} | {p50:.1} | {p99:.1} | {p999:.1} | {p9999:.1} | {longest:.1} |",
            turns.scenario,
            turns.micros.len()
        );
    }
}

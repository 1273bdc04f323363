//! Random histories of a whole service under the simulation, each compared with a model after every
//! step.
//!
//! * `COREWHEEL_SIM_SECONDS` is how long to run, 20 s by default;
//! * `COREWHEEL_SIM_SEED` is the first seed, 1 by default. Others give other histories.

#![allow(clippy::print_stdout, reason = "a run says what it has run")]

mod commands;
mod connections;
mod containers;
mod history;
mod http;
mod kept;
mod ledger;
mod operations;
mod requests;
mod scaled;
mod shared;
mod sockets;
mod spawned;
mod world;

use std::cell::Cell;
use std::env;
use std::time::{Duration, Instant};

use corewheel::sim::explore;
use fastrand::Rng;

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("the variable is a number"))
}

#[test]
fn random_histories_of_a_service_agree_with_the_model() {
    let seconds = variable("COREWHEEL_SIM_SECONDS").unwrap_or(20);
    let first = variable("COREWHEEL_SIM_SEED").unwrap_or(1);
    let end = Instant::now() + Duration::from_secs(seconds);
    let (seeds, operations, steps) = (Cell::new(0), Cell::new(0), Cell::new(0));
    println!("the first seed is {first}");
    let all = (first..).take_while(|_| seeds.get() == 0 || Instant::now() < end);
    explore(all, commands::plan, |seed, list| {
        let (taken, _) = history::run(seed, list);
        seeds.set(seeds.get() + 1);
        operations.set(operations.get() + list.len());
        steps.set(steps.get() + taken);
    });
    let (seeds, operations, steps) = (seeds.get(), operations.get(), steps.get());
    println!("{seeds} seeds, {operations} operations, {steps} steps in {seconds} s");
}

#[test]
fn random_histories_of_connections_agree_with_their_model() {
    let seconds = variable("COREWHEEL_SIM_SECONDS").unwrap_or(20);
    let first = variable("COREWHEEL_SIM_SEED").unwrap_or(1);
    let (end, seeds) = (Instant::now() + Duration::from_secs(seconds / 2), Cell::new(0));
    println!("the first seed is {first}");
    let all = (first..).take_while(|_| seeds.get() == 0 || Instant::now() < end);
    explore(all, connections::plan, |seed, list| {
        connections::run(seed, list);
        seeds.set(seeds.get() + 1);
    });
    println!("{} seeds in {} s", seeds.get(), seconds / 2);
}

#[test]
fn random_histories_of_sockets_obey_the_laws() {
    let seconds = variable("COREWHEEL_SIM_SECONDS").unwrap_or(20);
    let first = variable("COREWHEEL_SIM_SEED").unwrap_or(1);
    let (begin, all) = (Instant::now(), Cell::new(sockets::Done::default()));
    let (end, seeds) = (begin + Duration::from_secs(seconds / 2), Cell::new(0));
    println!("the first seed is {first}");
    let range = (first..).take_while(|_| seeds.get() == 0 || Instant::now() < end);
    explore(range, sockets::plan, |seed, list| {
        let mut done = all.get();
        done.add(sockets::run(seed, list));
        all.set(done);
        seeds.set(seeds.get() + 1);
    });
    println!("{} seeds of sockets, {:?} in {:?}", seeds.get(), all.get(), begin.elapsed());
}

#[test]
fn random_histories_of_http_servers_obey_the_laws() {
    let seconds = variable("COREWHEEL_SIM_SECONDS").unwrap_or(20);
    let first = variable("COREWHEEL_SIM_SEED").unwrap_or(1);
    let (begin, all) = (Instant::now(), Cell::new(http::Done::default()));
    let (end, seeds) = (begin + Duration::from_secs(seconds / 2), Cell::new(0));
    println!("the first seed is {first}");
    let range = (first..).take_while(|_| seeds.get() == 0 || Instant::now() < end);
    explore(range, http::plan, |seed, list| {
        let mut done = all.get();
        done.add(http::run(seed, list));
        all.set(done);
        seeds.set(seeds.get() + 1);
    });
    println!("{} seeds of HTTP, {:?} in {:?}", seeds.get(), all.get(), begin.elapsed());
}

#[test]
fn history_of_sockets_of_a_seed_is_the_same_in_every_run() {
    for seed in 0..50 {
        let list = sockets::plan(&mut Rng::with_seed(seed));
        let runs = [(); 2].map(|()| sockets::run_recorded(seed, &list, true).1);
        let lines = runs[0].lines().zip(runs[1].lines());
        for (number, (first, second)) in lines.enumerate() {
            assert_eq!(first, second, "seed {seed}: line {number}");
        }
        assert!(runs[0] == runs[1] && !runs[0].is_empty(), "seed {seed}");
    }
}

#[test]
fn history_of_a_seed_is_the_same_in_every_run() {
    for seed in 0..200 {
        let list = commands::plan(&mut Rng::with_seed(seed));
        let runs = [(); 2].map(|()| history::run_recorded(seed, &list, true));
        assert_eq!(runs[0].0, runs[1].0, "seed {seed}: the number of steps");
        let lines = runs[0].1.lines().zip(runs[1].1.lines());
        for (number, (first, second)) in lines.enumerate() {
            assert_eq!(first, second, "seed {seed}: line {number}");
        }
        assert!(runs[0].1 == runs[1].1 && !runs[0].1.is_empty(), "seed {seed}");
    }
}

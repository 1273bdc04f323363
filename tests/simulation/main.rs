//! Random histories of a whole service under the simulation, each compared with a model after every
//! step.
//!
//! * `COREWHEEL_SIM_SECONDS` is how long to run on two cores, 10 s by default;
//! * `COREWHEEL_SIM_SEED` is the first seed, 1 by default. Others give other histories.
//!
//! # What each check asks
//!
//! No check asks the function that it judges. What each one decides by, and what it asks the code:
//!
//! - `ledger`, `requests`, `operations`: what was sent, and the clock. The replies that they judge.
//!   A shard that sleeps beside work is found by the commands that were sent and have not run.
//! - `history`, whether a client gets room: the ledger, and where that is not sure of any, the
//!   number of timers of the shard. The law of the counts: sums of the counts.
//! - `connections`, `scaled`, `kept`, `containers`: a model of each. The events that they judge,
//!   and how many turns a shard took.
//! - `sockets::laws`: the simulated kernel, as what came, what was acknowledged and what is left.
//!   The counts of connections that have ended, which it compares.
//! - `sockets::rates`: its own sum of the runs of a transfer. Nothing.
//! - `proofs`, `completion`: when a byte came. Nothing.
//! - `http::tunnels`: when the client and the server have last sent. Nothing.
//! - `http::responses`: what the client has given and received, and when the handler has answered.
//!   How many connections have ended by a limit, which it compares.
//! - `http::seen`: the length of a response, and the simulated kernel. Nothing.
//! - `same`: the sockets of the system. Nothing.
//! - `brim`: how many sleeps the test holds. The number of pending timers, until it is that.
//! - `Simulation::check`: the state of the code, compared with itself. It finds no rule that is
//!   wrong, so no other check relies on it.
//!
//! The models of `src/link/loom_tests` decide by what their threads have received. `is_short` and
//! `has_mail` are in them what an owner looks at before it sleeps. A look that misses something
//! leaves a model without an end, which the checker reports.

#![allow(clippy::print_stdout, reason = "a run says what it has run")]

mod brim;
mod commands;
mod completion;
mod connections;
mod containers;
mod halves;
mod history;
mod http;
mod judge;
mod kept;
mod late;
mod ledger;
mod operations;
mod proofs;
mod requests;
mod same;
mod scaled;
mod shared;
mod sockets;
mod spawned;
mod world;

use std::cell::{Cell, RefCell};
use std::env;
use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use corewheel::sim::explore;
use fastrand::Rng;

use crate::judge::Done;

/// Says which seed fails first, before its list is shortened.
struct Failing {
    begin: Instant,
    is_told: Cell<bool>,
}

struct OfSeed<'a> {
    seed: u64,
    failing: &'a Failing,
}

impl Drop for OfSeed<'_> {
    fn drop(&mut self) {
        if thread::panicking() && !self.failing.is_told.replace(true) {
            println!("seed {} fails after {:?}", self.seed, self.failing.begin.elapsed());
        }
    }
}

/// So many seeds are run twice. Fewer where nothing is optimised, as most tests of a change run so.
const REPEATED: u64 = if cfg!(debug_assertions) { 40 } else { 200 };

fn variable(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().expect("the variable is a number"))
}

/// Runs a history for each seed, for a part of the time. `run` returns what one has done.
fn explore_for<C: Clone + Debug>(
    eighths: u64,
    plan: impl Fn(&mut Rng) -> Vec<C>,
    mut run: impl FnMut(u64, &[C]) -> Done,
) {
    let seconds = variable("COREWHEEL_SIM_SECONDS").unwrap_or(10);
    let first = variable("COREWHEEL_SIM_SEED").unwrap_or(1);
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds) * eighths as u32 / 8;
    let (seeds, run) = (Cell::new(0), RefCell::new(&mut run));
    let done = RefCell::new(Done::default());
    println!("the first seed is {first}");
    let range = (first..).take_while(|_| seeds.get() == 0 || Instant::now() < end);
    let failing = Failing { begin, is_told: Cell::new(false) };
    explore(range, plan, |seed, list| {
        let _seed = OfSeed { seed, failing: &failing };
        let one = run.borrow_mut()(seed, list);
        done.borrow_mut().add(one);
        seeds.set(seeds.get() + 1);
    });
    println!("{} seeds in {:?}: {:?}", seeds.get(), begin.elapsed(), done.into_inner());
}

#[test]
fn random_histories_of_a_service_agree_with_the_model() {
    explore_for(3, commands::plan, |seed, list| {
        Done::of([("operations", list.len() as u64), ("steps", history::run(seed, list))])
    });
}

#[test]
fn random_histories_of_connections_agree_with_their_model() {
    explore_for(1, connections::plan, connections::run);
}

#[test]
fn random_histories_of_sockets_obey_the_laws() {
    explore_for(4, sockets::plan, judge::run::<sockets::Known>);
}

#[test]
fn random_histories_of_waits_for_another_task_end_none_whose_byte_had_come() {
    explore_for(1, proofs::plan, judge::run::<proofs::Known>);
}

#[test]
fn random_histories_of_reads_by_completion_lose_no_byte() {
    explore_for(1, completion::plan, judge::run::<completion::Known>);
}

#[test]
fn random_histories_of_tunnels_and_uploads_obey_the_laws() {
    explore_for(1, http::tunnels::plan, judge::run::<http::tunnels::Known>);
}

#[test]
fn random_histories_of_responses_through_small_windows_obey_the_laws() {
    explore_for(1, http::responses::plan, judge::run::<http::responses::Known>);
}

#[test]
fn random_histories_of_http_servers_obey_the_laws() {
    explore_for(4, http::plan, judge::run::<http::Known>);
}

#[test]
fn history_of_sockets_of_a_seed_is_the_same_in_every_run() {
    for seed in 0..REPEATED / 4 {
        let list = sockets::plan(&mut Rng::with_seed(seed));
        check_same(seed, || judge::record::<sockets::Known>(seed, &list));
    }
}

#[test]
fn history_of_a_seed_is_the_same_in_every_run() {
    for seed in 0..REPEATED {
        let list = commands::plan(&mut Rng::with_seed(seed));
        check_same(seed, || history::record(seed, &list));
    }
}

fn check_same(seed: u64, run: impl Fn() -> Vec<String>) {
    let (first, second) = (run(), run());
    assert_eq!(first.len(), second.len(), "seed {seed}");
    for (number, (first, second)) in first.iter().zip(&second).enumerate() {
        assert_eq!(first, second, "seed {seed}: command {number}");
    }
}

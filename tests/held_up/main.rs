//! Limits in a runtime that is held up: no client is cut whose bytes lay in its socket at the
//! deadline, and each silent client is.
//!
//! In each round the clients make a first exchange, with which their limits begin. Then the runtime
//! is held up, the clients send, and the runtime goes on when all limits are over. The clients look
//! at the clock when they have sent: on a machine that is too busy for the limit, the round is
//! repeated with a longer one. So no client is late, whatever the load.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

mod client;
mod edges;
mod on_shard;
mod pool;
mod rows;
mod server;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::client::{check, check_from};
use crate::rows::{ROWS, Row};
use crate::server::Place;
use corewheel_test_support::held::{Flavour, Hold};

/// Lets the process open as many files as it may. One test at a time opens thousands.
fn many_files() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    alone
}

fn named(names: &[&str]) -> Vec<&'static Row> {
    let rows: Vec<_> = ROWS.iter().filter(|row| names.contains(&row.name)).collect();
    assert_eq!(rows.len(), names.len());
    rows
}

fn all() -> Vec<&'static Row> {
    ROWS.iter().collect()
}

#[test]
fn runtime_whose_workers_block_cuts_no_client_that_was_in_time() {
    for flavour in Flavour::ALL {
        // A runtime looks at its sockets after some tasks. With a runtime for each row, all clients
        // of the row come before that.
        thread::scope(|scope| {
            for row in &ROWS {
                scope.spawn(move || check(&[row], 8, (flavour, Place::Tasks), Hold::Blocked));
            }
        });
    }
}

#[test]
fn more_workers_than_processors_cut_no_client_whose_body_another_task_waits_for() {
    let rows = named(&[
        "TimedHttp, body of HTTP/2",
        "StreamControl::timeout around a body of HTTP/2",
        "TimedHttp, window of HTTP/2",
    ]);
    for _ in 0..3 {
        thread::scope(|scope| {
            for row in rows.iter().cycle().take(24) {
                let served = (Flavour::MultiThread, Place::Tasks);
                scope.spawn(move || check(&[row], 8, served, Hold::Blocked));
            }
        });
    }
}

#[test]
fn runtime_with_many_handlers_that_compute_cuts_no_client_that_was_in_time() {
    check_each(&all(), 8, Place::Tasks, &[Hold::Computing]);
}

#[test]
fn stopped_process_cuts_no_client_that_was_in_time() {
    check_each(&all(), 8, Place::Tasks, &[Hold::Stopped]);
}

/// Rows whose future reads the socket in the task that waits for the deadline.
fn plain() -> Vec<&'static Row> {
    ROWS.iter().filter(|row| row.is_plain).collect()
}

/// Checks rows on each flavour by each of some holds.
fn check_each(rows: &[&'static Row], clients: usize, place: Place, holds: &[Hold]) {
    // Only workers of a multi-thread runtime can give their tasks away.
    let flavours = Flavour::ALL
        .into_iter()
        .filter(|flavour| place != Place::Blocking || *flavour == Flavour::MultiThread);
    for flavour in flavours {
        for hold in holds {
            check(rows, clients, (flavour, place), *hold);
        }
    }
}

#[test]
fn main_future_cuts_no_client_that_was_in_time() {
    check_each(&plain(), 8, Place::Main, &Hold::ALL);
}

#[test]
fn futures_of_one_task_cut_no_client_that_was_in_time() {
    check_each(&plain(), 40, Place::OneTask, &Hold::ALL);
}

#[test]
fn futures_of_a_join_all_cut_no_client_that_was_in_time() {
    check_each(&plain(), 40, Place::JoinAll, &Hold::ALL);
}

#[test]
fn local_set_cuts_no_client_that_was_in_time() {
    check_each(&plain(), 8, Place::LocalSet, &Hold::ALL);
}

#[test]
fn worker_in_block_in_place_cuts_no_client_that_was_in_time() {
    check_each(&plain(), 1, Place::Blocking, &Hold::ALL);
}

#[test]
fn second_runtime_of_a_process_cuts_no_client_that_was_in_time() {
    check_each(&plain(), 8, Place::SecondRuntime, &Hold::ALL);
}

#[test]
fn runtime_with_thousands_of_sockets_cuts_no_client_that_was_in_time() {
    let _files = many_files();
    let rows = named(&["Handle::timeout", "TimedIo, idle"]);
    check_each(&rows, 2_500, Place::Tasks, &[Hold::Blocked, Hold::Stopped]);
}

#[test]
#[ignore = "it stops a process for 21 seconds: `.ci/run host-faults`"]
fn process_stopped_for_21_seconds_cuts_none_of_two_thousand_clients() {
    let _files = many_files();
    let limit = Duration::from_secs(14);
    for flavour in Flavour::ALL {
        check_from(limit, &all(), 2_000 / ROWS.len() + 1, (flavour, Place::Tasks), Hold::Stopped);
    }
}

#[test]
fn select_with_next_cuts_none_of_ten_thousand_clients_that_were_in_time() {
    let _files = many_files();
    let rows = named(&["select! with next"]);
    check_each(&rows, 2_500, Place::Tasks, &[Hold::Blocked, Hold::Stopped]);
}

//! Random bytes for the parsers that face clients: requests of HTTP for a `Server` of
//! `corewheel-http`, requests of the example `resp_cache`, and the hosts of requests for the
//! statistics.
//!
//! Each subject is a server on a real socket. A client sends the same bytes twice: whole, and cut
//! into random pieces. A reply must not depend on the pieces, each connection must end, and no
//! thread may panic. Inputs are made of tokens of the protocol and of single bytes, so that they
//! come past the first line of a parser.
//!
//! ```text
//! fuzz [http] [cache] [hosts] [--seconds N] [--seed 0x...] [--cache PATH]
//! ```
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program says what it does")]

mod cache;
mod hosts;
mod http;
mod session;

use std::panic::{set_hook, take_hook};
use std::path::PathBuf;
use std::process::exit;
use std::time::{Duration, Instant};

use arbtest::arbitrary::{Result, Unstructured};
use arbtest::arbtest;
use lexopt::prelude::{Long, Value, ValueExt};

/// What the caller asks for.
struct Options {
    subjects: Vec<String>,
    seconds: u64,
    seed: Option<u64>,
    cache: PathBuf,
}

fn options() -> std::result::Result<Options, lexopt::Error> {
    let cache = PathBuf::from("target/debug/resp_cache");
    let mut options = Options { subjects: Vec::new(), seconds: 30, seed: None, cache };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Value(name) => options.subjects.push(name.string()?),
            Long("seconds") => options.seconds = parser.value()?.parse()?,
            Long("seed") => {
                let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
                options.seed = Some(parser.value()?.parse_with(hex)?);
            }
            Long("cache") => options.cache = parser.value()?.into(),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(options)
}

/// A panic of any thread ends the program, after the seed was printed where it was the first one.
fn end_with_the_first_panic() {
    let main = std::thread::current().id();
    let print = take_hook();
    set_hook(Box::new(move |info| {
        print(info);
        if std::thread::current().id() != main {
            eprintln!("a thread of a server has panicked");
            exit(101);
        }
    }));
}

/// Tries a property for the time that the caller gives.
fn run(options: &Options, name: &str, mut property: impl FnMut(&mut Unstructured) -> Result<()>) {
    let (begin, mut count) = (Instant::now(), 0_u64);
    let counted = |bytes: &mut Unstructured| {
        count += 1;
        property(bytes)
    };
    let budget = Duration::from_secs(options.seconds);
    // A request is short, and a longer input finds no more.
    let search = arbtest(counted).size_max(1 << 12).budget(budget);
    match options.seed {
        Some(seed) => search.seed(seed).run(),
        None => search.run(),
    }
    println!("{name}: {count} inputs in {} s, no fault", begin.elapsed().as_secs());
}

fn main() {
    let options = options().unwrap_or_else(|error| {
        eprintln!(
            "{error}; fuzz [http] [cache] [hosts] [--seconds N] [--seed 0x...] [--cache PATH]"
        );
        exit(2);
    });
    end_with_the_first_panic();
    let wants = |name: &str| {
        options.subjects.is_empty() || options.subjects.iter().any(|subject| subject == name)
    };
    if wants("http") {
        let server = http::Server::start();
        run(&options, "http", |bytes| server.check(bytes));
    }
    if wants("hosts") {
        let server = hosts::Server::start();
        run(&options, "hosts", |bytes| server.check(bytes));
    }
    if wants("cache") {
        let server = cache::Server::start(&options.cache);
        run(&options, "cache", |bytes| server.check(bytes));
    }
}

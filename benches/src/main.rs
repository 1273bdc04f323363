//! Measures what corewheel costs beside its peers, and prints tables.
//!
//! ```text
//! cargo run --release -p corewheel-bench                      # the wheel, in a minute
//! cargo run --release -p corewheel-bench -- compare           # the wheel and the service
//! cargo run --release -p corewheel-bench -- timeouts --rounds 1
//! cargo run --release -p corewheel-bench -- help
//! ```
//!
//! The contenders of a row take turns for `--rounds` rounds, so that other load on the machine
//! affects all of them. A cell is the median of the rounds, with the least and the greatest, and
//! its ratio to the first contender. Tables, JSON and plots go to a folder of `target`, unless
//! `--out` names another one.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]

use std::error::Error;
use std::path::PathBuf;
use std::thread::available_parallelism;

use clap::{Args, Parser, Subcommand};
use corewheel_bench::report::Report;
use corewheel_bench::rows::{self, Run, broker, bytes, growth};
use corewheel_bench::{cells, judges, targets};

#[derive(Parser, Debug)]
#[command(
    about = "What corewheel costs beside its peers; without a command, the wheel in a minute"
)]
struct Options {
    #[command(subcommand)]
    command: Option<What>,
    #[command(flatten)]
    how: How,
}

/// How each command measures.
#[derive(Args, Clone, Debug)]
struct How {
    /// How often each contender is measured.
    #[arg(long, global = true, default_value_t = 3)]
    rounds: usize,
    /// Only the tables and rows whose name contains this text.
    #[arg(long, global = true, default_value = "")]
    only: String,
    /// The folder of the results.
    #[arg(long, global = true)]
    out: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum What {
    /// The wheel and the service beside their peers, some 20 minutes.
    Compare {
        /// Ten million timers, too.
        #[arg(long)]
        large: bool,
    },
    /// A timeout on multi-thread tokio, by tokio, pingora and corewheel.
    Timeouts {
        /// How many timeouts a pass has; fewer in passes that wait.
        #[arg(long, default_value_t = 625_000)]
        timeouts: usize,
        /// How many others are pending, in the rows that have others.
        #[arg(long, default_value_t = 1_000_000)]
        others: usize,
    },
    /// What grows with the threads of a server.
    Growth {
        #[arg(long)]
        threads: Option<usize>,
        #[arg(long, default_value_t = 200_000)]
        operations: u64,
        /// No other number of threads, for a tool that counts, as `shared_lines` does.
        #[arg(long)]
        exactly: bool,
    },
    /// The example `mqtt_broker` beside the same broker on `tokio::time`.
    Broker {
        #[arg(long, default_value_t = 5_000)]
        clients: usize,
        #[arg(long, default_value_t = 10)]
        seconds: u64,
    },
    /// The example `reverse_proxy` beside others, some 25 minutes; `proxy -- --help` says
    /// which parts there are.
    Proxy {
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// The example `resp_cache` beside redis, some 30 minutes; `cache -- --help` says which tables
    /// there are.
    Cache {
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// The tables, plots and targets of a report that was stored as JSON.
    Show { report: PathBuf },
    #[command(name = bytes::ARGUMENT, hide = true)]
    Bytes { count: usize, row: String, contender: String },
}

fn main() -> Result<(), Box<dyn Error>> {
    let Options { command, how } = Options::parse();
    let mut run = Run::new(how.rounds.max(1), &how.only);
    let (name, report) = match command {
        None => {
            run.wheel(&[1, 1_000, 100_000]);
            ("wheel", run.report)
        }
        Some(What::Compare { large }) => {
            let counts = [1, 1_000, 100_000, 1_000_000, 10_000_000];
            let counts = &counts[..if large { 5 } else { 4 }];
            // The rows across cores come before any thread is pinned.
            run.service(counts);
            run.wheel(counts);
            ("table", run.report)
        }
        Some(What::Growth { threads, operations, exactly }) => {
            let most = threads.unwrap_or(available_parallelism()?.get()).max(1);
            let mut counts: Vec<_> = (0..=most.ilog2()).map(|power| 1 << power).collect();
            counts.push(most);
            counts.dedup();
            counts.retain(|count| !exactly || *count == most);
            for (row, of) in growth::ROWS {
                let entrants = || growth::entrants(of, &counts, operations);
                run.measure((growth::TABLE, row, 0), entrants);
            }
            ("growth", run.report)
        }
        Some(What::Timeouts { timeouts, others }) => {
            rows::timeouts::compare(&mut run, timeouts, others)?;
            ("timeouts", run.report)
        }
        Some(What::Broker { clients, seconds }) => {
            broker::compare(&mut run, clients, seconds)?;
            ("broker", run.report)
        }
        Some(What::Proxy { arguments }) => {
            ("proxy", judges::judge("proxy", "corewheel-proxy", "reverse_proxy", &arguments)?)
        }
        Some(What::Cache { arguments }) => {
            ("cache", judges::judge("cache", "corewheel-resp-cache", "resp_cache", &arguments)?)
        }
        Some(What::Show { report }) => {
            let stored = serde_json::from_str(&std::fs::read_to_string(&report)?)?;
            return finish(&report.file_stem().unwrap_or_default().to_string_lossy(), stored, &how);
        }
        Some(What::Bytes { count, row, contender }) => {
            println!("{}", bytes::measure(count, &row, &contender));
            return Ok(());
        }
    };
    finish(name, report, &how)
}

/// Prints the tables and writes the files.
fn finish(name: &str, mut report: Report, how: &How) -> Result<(), Box<dyn Error>> {
    report.targets = targets::verdicts(&report);
    if report.text.is_empty() {
        let (compiler, cpus, rounds) = (cells::compiler()?, available_parallelism()?, how.rounds);
        report.text = format!("{compiler}; {cpus} cpus; {rounds} rounds, in turns\n");
    }
    println!("{}", report.markdown());
    let out = how.out.clone().unwrap_or_else(|| PathBuf::from("target/bench"));
    report.write(&out, name)?;
    eprintln!("{name}.md, {name}.json and plots are in {}", out.display());
    Ok(())
}

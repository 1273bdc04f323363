//! What a timeout costs on multi-thread tokio: tokio's own, by both of its timers, pingora's and
//! corewheel's. Writes one table, as Markdown and as JSON.
//!
//! `cargo run --release -p corewheel-bench --bin timeouts -- [--rounds N] [--workers 1,2]
//! [--pending 0,100000] [--only TEXT] [--out DIR] [--test]`
//!
//! Each cell is measured in a process of its own, by the package `corewheel-timeouts`, which this
//! command builds with and without `--cfg tokio_unstable`. The systems take turns, one process
//! each, for `--rounds` rounds (five by default), and another system is first in each round.
//! `--workers` and `--pending` are lists of numbers; `--only` keeps the rows whose name contains a
//! text; `--test` runs a little of everything once, to see that it runs. The files go to
//! `target/timeouts` unless another folder is named.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]

mod busy;
mod results;
mod table;
mod targets;

use std::error::Error;
use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, thread};

use corewheel_bench::verdict::{self, Verdict};
use corewheel_timeouts::{Cell, Row, System};
use results::Results;
use serde_json::{Map, Value, json};

/// The runtime's workers in the row of memory, which does not depend on their number.
const MEMORY_WORKERS: usize = 2;

struct Options {
    rounds: usize,
    workers: Vec<usize>,
    pending: Vec<usize>,
    only: String,
    out: PathBuf,
    /// The timeouts of a pass.
    timeouts: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cpus = thread::available_parallelism()?.get();
    let options = options(cpus)?;
    let (plain, unstable) = (build(false)?, build(true)?);
    let mut results = Results::default();
    let mut busy = Vec::new();
    for round in 0..options.rounds {
        busy.extend(busy::busy_while_asleep());
        for (row, pending, workers) in places(&options) {
            eprintln!("round {}: {row:?}, {pending} pending, {workers} workers", round + 1);
            for turn in 0..System::ALL.len() {
                let system = System::ALL[(round + turn) % System::ALL.len()];
                let binary = if system == System::TokioAlternative { &unstable } else { &plain };
                let timeouts = options.timeouts;
                let cell = Cell { row, pending, workers, system, timeouts };
                for (quantity, value) in measure(binary, cell)? {
                    let value = value.as_f64().ok_or("a value is no number")?;
                    results.push(cell, &quantity, value);
                }
            }
        }
    }
    let verdicts = targets::verdicts(&results);

    fs::create_dir_all(&options.out)?;
    let mut text = preface(cpus, options.rounds, &busy)?;
    table::write_markdown(&mut text, &results)?;
    verdict::write_markdown(&mut text, &verdicts)?;
    println!("{text}");
    fs::write(options.out.join("table.md"), &text)?;
    let report = json!({
        "cpus": cpus,
        "rounds": options.rounds,
        "busy_before_rounds": busy,
        "rows": results.to_json(),
        "targets": verdicts.iter().map(Verdict::to_json).collect::<Vec<_>>(),
    });
    fs::write(options.out.join("table.json"), serde_json::to_string_pretty(&report)?)?;
    eprintln!("table.md and table.json are in {}", options.out.display());
    Ok(())
}

/// What the tables show, and how far they can be trusted.
fn preface(cpus: usize, rounds: usize, busy: &[f64]) -> Result<String, fmt::Error> {
    let mut text = String::new();
    writeln!(text, "{cpus} cpus; {rounds} interleaved rounds. Medians, with the least of the")?;
    writeln!(text, "rounds in brackets. With more workers than cpus, threads wait for cpus.")?;
    if let Some(most) = busy.iter().copied().max_by(f64::total_cmp) {
        writeln!(text, "Before a round, other processes kept up to {:.0} % of the", most * 100.0)?;
        writeln!(text, "cpus busy. Where they do, workers run at the same time less often,")?;
        writeln!(text, "and threads wait for the locks of timers less often.")?;
    }
    Ok(text)
}

fn options(cpus: usize) -> Result<Options, Box<dyn Error>> {
    use lexopt::prelude::{Long, ValueExt as _};
    let mut options = Options {
        rounds: 5,
        workers: [1, 2, 4, 8, 16].into_iter().filter(|workers| *workers <= cpus.max(8)).collect(),
        pending: vec![0, 100_000, 1_000_000],
        only: String::new(),
        out: PathBuf::from("target/timeouts"),
        timeouts: 500_000,
    };
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("rounds") => options.rounds = arguments.value()?.parse()?,
            Long("workers") => options.workers = numbers(&arguments.value()?.string()?)?,
            Long("pending") => options.pending = numbers(&arguments.value()?.string()?)?,
            Long("only") => options.only = arguments.value()?.string()?,
            Long("out") => options.out = arguments.value()?.into(),
            Long("test") => {
                (options.rounds, options.timeouts) = (1, 10_000);
                (options.workers, options.pending) = (vec![1, 2], vec![0, 1_000]);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if options.rounds == 0 || options.workers.contains(&0) {
        return Err("--rounds and --workers are at least 1".into());
    }
    Ok(options)
}

fn numbers(list: &str) -> Result<Vec<usize>, Box<dyn Error>> {
    list.split(',').map(|number| Ok(number.trim().parse()?)).collect()
}

/// Each row that is wanted, with how many others are pending and how many workers there are.
fn places(options: &Options) -> Vec<(Row, usize, usize)> {
    let mut places = Vec::new();
    for row in Row::ALL.into_iter().filter(|row| row.name().contains(&options.only)) {
        if row == Row::Memory {
            let most = options.pending.iter().copied().filter(|pending| *pending > 0).max();
            places.extend(most.map(|pending| (row, pending, MEMORY_WORKERS)));
            continue;
        }
        for pending in &options.pending {
            places.extend(options.workers.iter().map(|workers| (row, *pending, *workers)));
        }
    }
    places
}

/// Builds the binary that measures a cell, and returns its path. The build with tokio's alternative
/// timer has a folder of its own, so that neither replaces what the other has built.
fn build(is_unstable: bool) -> Result<PathBuf, Box<dyn Error>> {
    let this = env::current_exe()?;
    let target = this.ancestors().nth(2).ok_or("this binary lies in no target folder")?;
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--release", "--locked", "--package", "corewheel-timeouts"])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stderr(Stdio::inherit());
    if is_unstable {
        let flags = env::var("RUSTFLAGS").unwrap_or_default() + " --cfg tokio_unstable";
        command.env("RUSTFLAGS", flags).arg("--target-dir").arg(target.join("tokio_unstable"));
    } else {
        command.arg("--target-dir").arg(target);
    }
    let output = command.output()?;
    if !output.status.success() {
        return Err("cargo could not build the package `corewheel-timeouts`".into());
    }
    let messages = String::from_utf8(output.stdout)?;
    let mut artifacts = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    let binary =
        artifacts.find_map(|artifact: Value| Some(artifact["executable"].as_str()?.into()));
    binary.ok_or_else(|| "cargo named no executable of `corewheel-timeouts`".into())
}

/// Measures a cell in a process of its own, and returns the values with their names.
fn measure(binary: &Path, cell: Cell) -> Result<Map<String, Value>, Box<dyn Error>> {
    let output =
        Command::new(binary).args(cell.to_arguments()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{cell:?} could not be measured: {}", output.status).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

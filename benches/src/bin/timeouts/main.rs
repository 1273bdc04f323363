//! What a timeout costs on multi-thread tokio: tokio's own, by both of its timers, pingora's and
//! corewheel's. Writes its tables as Markdown and as JSON, and the README's table.
//!
//! `cargo run --release -p corewheel-bench --bin timeouts -- [--rounds N] [--timeouts N]
//! [--only TEXT] [--out DIR] [--test]`
//!
//! Each cell is measured in a process of its own, by the package `corewheel-timeouts`, which this
//! command builds with and without `--cfg tokio_unstable`. The systems take turns, one process
//! each, for `--rounds` rounds (five by default), and another system is first in each round.
//! `--timeouts` is how many timeouts a pass has: 625,000 by default, so that the passes of a cell
//! have two million, and fewer in passes that wait. `--only` keeps the rows whose name contains a
//! text; `--test` runs a little of everything once, to see that it runs. The files go to
//! `target/timeouts` unless another folder is named.
//!
//! A cell fails where corewheel refuses a timeout that never fires, or has one wait for its shard.
//!
//! Timeouts that fire are measured in two rows. Threads are woken once for all timeouts that are
//! due in a millisecond, so the cost of each depends on how many these are: some 70 in 1,000 tasks,
//! and 700 in 10,000. Delays are any number of microseconds, as a server's are. Whole milliseconds
//! in tasks that start together make both cheaper, since the tasks stay in step.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]

mod busy;
mod readme;
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

/// The workers in the rows that are measured while many others are pending, too.
const WORKERS_BESIDE_OTHERS: usize = 2;

struct Options {
    rounds: usize,
    /// How many others are pending, in the rows that have others.
    others: usize,
    only: String,
    out: PathBuf,
    /// The timeouts of a pass.
    timeouts: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let cpus = thread::available_parallelism()?.get();
    let options = options()?;
    let (plain, unstable) = (Built::new(false)?, Built::new(true)?);
    let mut results = Results::default();
    let mut busy = Vec::new();
    for round in 0..options.rounds {
        busy.extend(busy::busy_while_asleep());
        for (row, pending, workers) in places(&options) {
            eprintln!("round {}: {row:?}, {pending} pending, {workers} workers", round + 1);
            for turn in 0..System::ALL.len() {
                let system = System::ALL[(round + turn) % System::ALL.len()];
                if !row.is_known_to(system) {
                    continue;
                }
                let built = if system == System::TokioAlternative { &unstable } else { &plain };
                let binary = if row == Row::Memory { &built.counting } else { &built.plain };
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
    let mut text = preface(&plain.versions, cpus, options.rounds, &busy)?;
    table::write_markdown(&mut text, &results)?;
    verdict::write_markdown(&mut text, &verdicts)?;
    println!("{text}");
    fs::write(options.out.join("table.md"), &text)?;
    let mut text = String::new();
    readme::write_markdown(&mut text, &results)?;
    println!("The README's table:\n\n{text}");
    fs::write(options.out.join("readme.md"), &text)?;
    readme::draw(&options.out.join("timeouts.svg"), &results)?;
    let report = json!({
        "versions": plain.versions,
        "cpus": cpus,
        "rounds": options.rounds,
        "busy_before_rounds": busy,
        "rows": results.to_json(),
        "targets": verdicts.iter().map(Verdict::to_json).collect::<Vec<_>>(),
    });
    fs::write(options.out.join("table.json"), serde_json::to_string_pretty(&report)?)?;
    eprintln!("table.md, readme.md, timeouts.svg and table.json are in {}", options.out.display());
    Ok(())
}

/// What the tables show, and how far they can be trusted.
fn preface(
    versions: &[String],
    cpus: usize,
    rounds: usize,
    busy: &[f64],
) -> Result<String, fmt::Error> {
    let mut text = String::new();
    writeln!(text, "{}; {cpus} cpus; {rounds} interleaved", versions.join(", "))?;
    writeln!(text, "rounds. Medians, with the least of the rounds in brackets. With more workers")?;
    writeln!(text, "than cpus, threads wait for cpus.")?;
    if let Some(most) = busy.iter().copied().max_by(f64::total_cmp) {
        writeln!(text, "Before a round, other processes kept up to {:.0} % of the", most * 100.0)?;
        writeln!(text, "cpus busy. Where they do, workers run at the same time less often,")?;
        writeln!(text, "and threads wait for the locks of timers less often.")?;
    }
    text.push_str(ROWS);
    Ok(text)
}

/// What is measured in each row.
const ROWS: &str = "
- at once: 30 s around a future that is ready at its second poll. short: the same with 5 ms.
- reset: a sleep of 30 s that its task resets at each poll.
- lives: 30 s around a future that another thread makes ready after 5 ms, so that half of the
  timeouts end on another worker. old: 100 ms around one that is ready after 40 ms.
- moved: 30 s, armed on one thread and dropped on another.
- fired: 5 to 24 ms around a future that is never ready; some 70 are due in each millisecond in
  1,000 tasks, and 700 in 10,000. slept: the same by a sleep without a future. A timeout that has
  fired has its runtime look at its sockets first, which then wakes its task.
- time to arm: 20 to 200 ms, in 16 workers that do nothing else, beside a busy thread for each cpu.
- pending: minutes, a million of them, when they were armed or after 13 s, whichever is more. By
  then corewheel's shard has filed each. What a system allocates when it starts counts as resident
  only: of corewheel's shard, a slot for each timer.

A row is net of the same without a timeout, unless its name says that it is gross.
";

fn options() -> Result<Options, Box<dyn Error>> {
    use lexopt::prelude::{Long, ValueExt as _};
    let mut options = Options {
        rounds: 5,
        others: 1_000_000,
        only: String::new(),
        out: PathBuf::from("target/timeouts"),
        timeouts: 625_000,
    };
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("rounds") => options.rounds = arguments.value()?.parse()?,
            Long("timeouts") => options.timeouts = arguments.value()?.parse()?,
            Long("only") => options.only = arguments.value()?.string()?,
            Long("out") => options.out = arguments.value()?.into(),
            Long("test") => {
                (options.rounds, options.timeouts, options.others) = (1, 10_000, 1_000);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if options.rounds == 0 {
        return Err("--rounds is at least 1".into());
    }
    Ok(options)
}

/// Each row that is wanted, with how many others are pending and how many workers there are.
fn places(options: &Options) -> Vec<(Row, usize, usize)> {
    let mut places = Vec::new();
    for row in Row::ALL.into_iter().filter(|row| row.name().contains(&options.only)) {
        for workers in row.workers().iter().copied() {
            let has_others = match row {
                Row::Memory => [false, true],
                Row::AtOnceFew | Row::AtOnceMany => [true, workers == WORKERS_BESIDE_OTHERS],
                _ => [true, false],
            };
            let pending = [0, options.others].into_iter().zip(has_others);
            let wanted = pending.filter(|(_, is_wanted)| *is_wanted);
            places.extend(wanted.map(|(pending, _)| (row, pending, workers)));
        }
    }
    places
}

/// The binaries that measure a cell.
struct Built {
    plain: PathBuf,
    /// The one that counts what it allocates.
    counting: PathBuf,
    /// The compiler, and the peers that were built, with their versions.
    versions: Vec<String>,
}

impl Built {
    /// Builds the binaries. Those with tokio's alternative timer have a folder of their own, so
    /// that neither replaces what the other has built.
    fn new(is_unstable: bool) -> Result<Self, Box<dyn Error>> {
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
        let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
        let messages: Vec<Value> = messages.collect();
        let binary = |name: &str| {
            let mut artifacts =
                messages.iter().filter(|artifact| artifact["target"]["name"] == name);
            let path = artifacts.find_map(|artifact| artifact["executable"].as_str());
            path.map(PathBuf::from).ok_or_else(|| format!("cargo named no executable {name}"))
        };
        let mut versions = vec![compiler()?];
        for peer in ["tokio", "pingora-timeout"] {
            let built = messages.iter().filter_map(|artifact| artifact["package_id"].as_str());
            let mut versions_of_peer =
                built.filter_map(|id| id.rsplit_once('#')?.1.strip_prefix(peer)?.strip_prefix('@'));
            let version = versions_of_peer.next().ok_or_else(|| format!("{peer} was not built"))?;
            versions.push(format!("{peer} {version}"));
        }
        let counting = binary("corewheel-timeouts-counting")?;
        Ok(Self { plain: binary("corewheel-timeouts")?, counting, versions })
    }
}

/// The compiler's name and version.
fn compiler() -> Result<String, Box<dyn Error>> {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split(" (").next().unwrap_or(&text).trim().to_owned())
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

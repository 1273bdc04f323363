//! Runs every row of the comparison and prints one table.
//!
//! `cargo run --release -p corewheel-bench --bin compare -- [rounds] [--only TEXT] [--json PATH]`
//!
//! The contenders of a row take turns, one pass each, for as many rounds as asked for (five if
//! nothing is said), so that whatever else the machine does hits all of them. `--only` keeps the
//! rows and contenders whose name, written `row/timers/contender`, contains the text.
//! `COREWHEEL_BENCH_LARGE=1` adds ten million timers.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::error::Error;
use std::{env, fs};

use corewheel_bench::{Contender, Row, contenders, pin_to_one_core, sizes};
use serde_json::{Value, json};

struct Options {
    rounds: usize,
    only: String,
    json: Option<String>,
}

/// What one contender took, in nanoseconds for each operation.
struct Figure {
    contender: &'static str,
    nanos: Vec<f64>,
}

impl Figure {
    fn min(&self) -> f64 {
        self.nanos[0]
    }

    fn median(&self) -> f64 {
        self.nanos[self.nanos.len() / 2]
    }

    fn max(&self) -> f64 {
        self.nanos[self.nanos.len() - 1]
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let pinned = pin_to_one_core();
    let contenders = contenders();
    for contender in &contenders {
        (contender.verify)();
    }
    println!("nanoseconds for each operation, {} interleaved rounds", options.rounds);
    println!("ratios are of medians, to {}\n", contenders[0].name);
    println!("| row | timers | contender | median | min | max | ratio |");
    println!("|---|--:|---|--:|--:|--:|--:|");
    let mut rows = Vec::new();
    for row in Row::ALL {
        for count in sizes().into_iter().filter(|count| row.applies_to(*count)) {
            let figures = run(row, count, &contenders, &options);
            // Without the one to compare with, a ratio is left out.
            let base = figures.iter().find(|figure| figure.contender == contenders[0].name);
            let base = base.map(Figure::median);
            for figure in &figures {
                print(row, count, figure, base);
                rows.push(as_json(row, count, figure, base));
            }
        }
    }
    if let Some(path) = &options.json {
        let report = json!({ "rounds": options.rounds, "pinned": pinned, "rows": rows });
        fs::write(path, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options { rounds: 5, only: String::new(), json: None };
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--only" => options.only = arguments.next().ok_or("--only takes a text")?,
            "--json" => options.json = Some(arguments.next().ok_or("--json takes a path")?),
            rounds => options.rounds = rounds.parse()?,
        }
    }
    if options.rounds == 0 {
        return Err("at least one round".into());
    }
    Ok(options)
}

fn run(row: Row, count: usize, contenders: &[Contender], options: &Options) -> Vec<Figure> {
    let asked_for = contenders.iter().filter(|contender| {
        format!("{}/{count}/{}", row.name(), contender.name).contains(&options.only)
    });
    let mut cases: Vec<_> = asked_for
        .map(|contender| {
            let figure = Figure { contender: contender.name, nanos: Vec::new() };
            (figure, (contender.case)(row, count))
        })
        .collect();
    for _ in 0..options.rounds {
        for (figure, case) in &mut cases {
            figure.nanos.push(case.round().nanos());
        }
    }
    let sorted = |mut figure: Figure| {
        figure.nanos.sort_by(f64::total_cmp);
        figure
    };
    cases.into_iter().map(|(figure, _)| sorted(figure)).collect()
}

fn print(row: Row, count: usize, figure: &Figure, base: Option<f64>) {
    let Figure { contender, .. } = figure;
    let (median, min, max) = (figure.median(), figure.min(), figure.max());
    let ratio = base.map_or_else(String::new, |base| format!("{:.2}", median / base));
    println!(
        "| {} | {count} | {contender} | {median:.1} | {min:.1} | {max:.1} | {ratio} |",
        row.name()
    );
}

fn as_json(row: Row, count: usize, figure: &Figure, base: Option<f64>) -> Value {
    json!({
        "row": row.name(),
        "timers": count,
        "contender": figure.contender,
        "median_ns": figure.median(),
        "min_ns": figure.min(),
        "max_ns": figure.max(),
        "ratio": base.map(|base| figure.median() / base),
        "rounds_ns": figure.nanos,
    })
}

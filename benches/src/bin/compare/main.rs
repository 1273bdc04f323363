//! Measures everything and writes one table, as Markdown and as JSON, and a plot for each row.
//!
//! `cargo run --release -p corewheel-bench --bin compare -- [--rounds N] [--only TEXT] [--out DIR]`
//!
//! The contenders of a row take turns, one pass each, for `--rounds` rounds (five by default), so
//! that other load on the machine affects all of them. `--only` keeps the
//! rows whose name contains the text. `COREWHEEL_BENCH_LARGE=1` adds ten million timers. The files
//! go to `target/comparison` unless another folder is named.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "printing is what it is for")]

mod targets;

use std::error::Error;
use std::fmt::Write as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use corewheel_bench::figure::{Entrant, Figure, interleave};
use corewheel_bench::plot;
use corewheel_bench::sections::turns::{self, Turns};
use corewheel_bench::sections::{api, glommio_works, remote, scaling, server, sleeps};
use corewheel_bench::verdict::{self, Verdict};
use corewheel_bench::{Contender, Held, Row, contenders, pin_to_one_core, sizes};
use serde_json::{Value, json};

struct Options {
    rounds: usize,
    only: String,
    out: PathBuf,
}

impl Options {
    fn wants(&self, row: &str) -> bool {
        row.contains(&self.only)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [flag, name, held] = &arguments[..]
        && flag == "--measure-memory"
    {
        println!("{}", memory_of(name, held)?);
        return Ok(());
    }
    let options = options()?;
    let cores = scaling::cores();
    // Before this thread is pinned: the threads that it starts inherit its cores.
    let mut figures = cross_core(&options, &cores);
    let pinned = pin_to_one_core();
    let contenders = contenders();
    for contender in &contenders {
        (contender.verify)();
    }
    wheel(&options, &contenders, &mut figures);
    memory(&options, &contenders, &mut figures)?;
    on_a_core(&options, &mut figures);
    let turns = if options.wants("turns") { turns::all() } else { Vec::new() };
    let verdicts = targets::verdicts(&figures, &turns);

    fs::create_dir_all(&options.out)?;
    let table = markdown(&options, &figures, &turns, &verdicts)?;
    println!("{table}");
    fs::write(options.out.join("table.md"), &table)?;
    let report = as_json(&options, pinned, &figures, &turns, &verdicts);
    fs::write(options.out.join("table.json"), serde_json::to_string_pretty(&report)?)?;
    plots(&options.out, &figures)?;
    eprintln!("table.md, table.json and the plots are in {}", options.out.display());
    Ok(())
}

fn options() -> Result<Options, Box<dyn Error>> {
    use lexopt::prelude::{Long, ValueExt as _};
    let out = PathBuf::from("target/comparison");
    let mut options = Options { rounds: 5, only: String::new(), out };
    let mut arguments = lexopt::Parser::from_env();
    while let Some(argument) = arguments.next()? {
        match argument {
            Long("rounds") => options.rounds = arguments.value()?.parse()?,
            Long("only") => options.only = arguments.value()?.string()?,
            Long("out") => options.out = arguments.value()?.into(),
            other => return Err(other.unexpected().into()),
        }
    }
    if options.rounds == 0 {
        return Err("--rounds is 0; there must be one at least".into());
    }
    Ok(options)
}

fn wheel(options: &Options, contenders: &[Contender], figures: &mut Vec<Figure>) {
    for row in Row::ALL.into_iter().filter(|row| options.wants(row.name())) {
        for count in sizes().into_iter().filter(|count| row.applies_to(*count)) {
            let entrant = |contender: &Contender| {
                let mut case = (contender.case)(row, count);
                let figure = Figure::new(row.name(), count, contender.name, "ns");
                Entrant::new(figure, move || case.round().nanos())
            };
            eprintln!("{}, {count}", row.name());
            figures.extend(interleave(options.rounds, contenders.iter().map(entrant).collect()));
        }
    }
}

/// Measures each in a process of its own, since freed memory may stay resident.
fn memory(
    options: &Options,
    contenders: &[Contender],
    figures: &mut Vec<Figure>,
) -> Result<(), Box<dyn Error>> {
    const TIMERS: usize = 1_000_000;
    for held in ["filled", "churned"] {
        let row = format!("W6 resident bytes, {held}");
        for Contender { name, .. } in contenders.iter().filter(|_| options.wants(&row)) {
            let this = env::current_exe()?;
            let output =
                std::process::Command::new(this).args(["--measure-memory", name, held]).output()?;
            let mut figure = Figure::new(&row, TIMERS, name, "bytes");
            figure.push(String::from_utf8(output.stdout)?.trim().parse()?);
            figures.push(figure);
        }
    }
    Ok(())
}

fn memory_of(name: &str, held: &str) -> Result<f64, Box<dyn Error>> {
    let contender = contenders().into_iter().find(|contender| contender.name == name);
    let contender = contender.ok_or("there is no contender of this name")?;
    let held = if held == "churned" { Held::Churned } else { Held::Filled };
    Ok((contender.resident_bytes_per_timer)(1_000_000, held))
}

fn on_a_core(options: &Options, figures: &mut Vec<Figure>) {
    let glommio = glommio_works();
    if !glommio {
        eprintln!("io_uring cannot be used here: glommio is left out");
    }
    for (row, entrants) in
        [(api::CHURN, api::churn as fn(usize, bool) -> Vec<Entrant>), (api::RESET, api::resets)]
    {
        for count in sizes().into_iter().filter(|count| *count > 1 && options.wants(row)) {
            eprintln!("{row}, {count}");
            figures.extend(interleave(options.rounds, entrants(count, glommio)));
        }
    }
}

fn cross_core(options: &Options, cores: &[core_affinity::CoreId]) -> Vec<Figure> {
    let mut figures = Vec::new();
    let (here, home) = (cores[0], cores[1 % cores.len()]);
    let mut run = |row: &str, entrants: &(dyn Fn() -> Vec<Entrant> + Sync)| {
        if options.wants(row) {
            eprintln!("{row}");
            // These sections pin the thread that they run on.
            let measured = thread::scope(|scope| {
                scope.spawn(|| interleave(options.rounds, entrants())).join()
            });
            figures.extend(measured.unwrap_or_else(|panic| resume_unwind(panic)));
        }
    };
    run(scaling::LOCAL, &|| scaling::local(cores));
    run(remote::CROSS, &|| remote::cross(cores));
    run(remote::CLIENTS, &|| remote::clients(cores));
    for pending in [100_000, 1_000_000] {
        run(remote::PAIR, &|| remote::pairs(here, home, pending));
    }
    run(remote::REFUSAL, &remote::refusal);
    if glommio_works() {
        run(remote::WAKE, &|| remote::wake(here, home));
    }
    for tasks in [1_000, 100_000, 1_000_000] {
        run(sleeps::SLEEPS, &|| sleeps::sleeps(tasks));
    }
    if options.wants(server::THROUGHPUT) || options.wants(server::PROCESSOR) {
        for connections in [64, 512] {
            eprintln!("echo server, {connections} connections");
            figures.extend(server::measure(cores, options.rounds, connections, glommio_works()));
        }
    }
    figures
}

/// The figure with which the others of its row and count are compared.
fn base(figures: &[Figure], figure: &Figure) -> Option<f64> {
    let same = |other: &&Figure| other.row == figure.row && other.count == figure.count;
    figures.iter().find(same).map(Figure::median)
}

fn markdown(
    options: &Options,
    figures: &[Figure],
    turns: &[Turns],
    verdicts: &[Verdict],
) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    writeln!(text, "{} interleaved rounds; ratios are of medians, to the first", options.rounds)?;
    writeln!(text, "contender of a row.\n")?;
    writeln!(text, "| row | count | contender | unit | median | min | max | ratio |")?;
    writeln!(text, "|---|--:|---|---|--:|--:|--:|--:|")?;
    for figure in figures {
        let Figure { row, count, contender, unit, values } = figure;
        let (median, min, max) = (values.median(), values.min(), values.max());
        let ratio = base(figures, figure).map_or(0.0, |base| median / base);
        writeln!(
            text,
            "| {row} | {count} | {contender} | {unit} | {median:.1} | {min:.1} | {max:.1} \
             | {ratio:.2} |"
        )?;
    }
    if !turns.is_empty() {
        writeln!(text, "\n| single turns, µs | turns | p50 | p99 | p99.9 | p99.99 | longest |")?;
        writeln!(text, "|---|--:|--:|--:|--:|--:|--:|")?;
    }
    for turns in turns {
        let Turns { scenario, micros } = turns;
        let [p50, p99, p999, p9999, longest] =
            [50.0, 99.0, 99.9, 99.99, 100.0].map(|of_100| turns.percentile(of_100));
        writeln!(
            text,
            "| {scenario} | {} | {p50:.1} | {p99:.1} | {p999:.1} | {p9999:.1} | {longest:.1} |",
            micros.len()
        )?;
    }
    verdict::write_markdown(&mut text, verdicts)?;
    Ok(text)
}

fn as_json(
    options: &Options,
    pinned: bool,
    figures: &[Figure],
    turns: &[Turns],
    verdicts: &[Verdict],
) -> Value {
    let figure = |figure: &Figure| {
        let ratio = base(figures, figure).map(|base| figure.median() / base);
        figure.values.to_json(&[
            ("row", json!(figure.row)),
            ("count", json!(figure.count)),
            ("contender", json!(figure.contender)),
            ("unit", json!(figure.unit)),
            ("ratio", json!(ratio)),
        ])
    };
    let turn = |turns: &Turns| {
        let at = |of_100| turns.percentile(of_100);
        json!({
            "scenario": turns.scenario, "turns": turns.micros.len(), "p50_us": at(50.0),
            "p99_us": at(99.0), "p99.9_us": at(99.9), "p99.99_us": at(99.99), "max_us": at(100.0),
        })
    };
    json!({
        "rounds": options.rounds,
        "pinned": pinned,
        "rows": figures.iter().map(figure).collect::<Vec<_>>(),
        "turns": turns.iter().map(turn).collect::<Vec<_>>(),
        "targets": verdicts.iter().map(Verdict::to_json).collect::<Vec<_>>(),
    })
}

/// A plot for each row that was measured at more than one count.
fn plots(out: &Path, figures: &[Figure]) -> Result<(), Box<dyn Error>> {
    let mut rows: Vec<&str> = figures.iter().map(|figure| &*figure.row).collect();
    rows.dedup();
    for row in rows {
        let of_row: Vec<_> = figures.iter().filter(|figure| figure.row == row).collect();
        if of_row.iter().all(|figure| figure.count == of_row[0].count) {
            continue;
        }
        let letters = row.chars().map(|c| if c.is_alphanumeric() { c } else { '-' });
        plot::draw(
            &out.join(format!("{}.svg", letters.collect::<String>())),
            "timers pending",
            &of_row,
        )?;
    }
    Ok(())
}

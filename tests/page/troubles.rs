//! The troubles of the example `stats_trouble`, on real clocks.
//!
//! The first sentence of the page names each of them, and JSON, metrics and watchdog agree.
//!
//! With `COREWHEEL_PICTURES=DIRECTORY` in the environment the test writes a picture of each page
//! and the file `troubles.md`, which says what every view has shown.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use corewheel_test_support::child::Child;
use corewheel_test_support::sockets::get;
use serde_json::Value;

use crate::browser::Browser;
use crate::built::example;
use crate::server::json;
use crate::{PATIENCE, ms};

/// For how long a page shows a trouble before its picture is taken.
const EXPOSURE: Duration = Duration::from_secs(45);

/// What is wrong, the warning that names it, what else the page says of it, and the part of the
/// lateness to which the guide leads; `None` if no timer need be late.
const TROUBLES: [(&str, &str, &str, Option<&str>); 6] = [
    (
        "stalled-task",
        "executor-stalled",
        "A task on the shard's executor did not yield",
        Some("poll_delay"),
    ),
    ("slow-handler", "handler-slow", "move its work elsewhere", Some("handlers")),
    ("flooded-lane", "lane-flooded", "Each second the shard received", None),
    ("leaking-class", "class-leaks", "at this pace the shard is full in", None),
    (
        "busy-host",
        "host-overcommitted",
        "Other threads or processes take the cores",
        Some("poll_delay"),
    ),
    ("stuck-shard", "shard-stuck", "for class report", Some("handlers")),
];

/// The counts of a shard, in `/stats.json`, to which the guide leads from a part of the lateness.
fn counts_of(part: &str, shard: &Value) -> u64 {
    let count = |name: &str| shard[name].as_u64().unwrap();
    match part {
        "poll_delay" => count("stalls") + shard["thread_waited_ns"].as_u64().unwrap_or(0),
        "handlers" => count("overrun"),
        _ => panic!("no trouble leads to {part}"),
    }
}

/// The parts of the lateness of shard 1 so far, in milliseconds, the greatest first.
fn parts(json: &Value) -> Vec<(String, u64)> {
    let parts = json["shards"][1]["late_parts"].as_object().expect("it has parts");
    let millis = |times: &Value| times["sum_ns"].as_u64().unwrap() / 1_000_000;
    let mut parts: Vec<_> = parts.iter().map(|(name, of)| (name.clone(), millis(of))).collect();
    parts.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
    parts
}

/// What the guide says of a warning, in one line.
fn guide(id: &str) -> String {
    let guide = include_str!("../../src/guide/statistics.md");
    let (_, section) = guide.split_once(&format!("\n## {id}\n")).expect("it has a section");
    let section = section.split("\n#").next().unwrap_or_default();
    let advice = section.trim().split_once("\n\n").expect("the advice follows").1;
    advice.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The report has so many lines of a view in full.
const LINES_MAX: usize = 8;

/// A running example.
struct Run {
    child: Child,
    address: SocketAddr,
}

impl Run {
    fn start(trouble: &str) -> Self {
        let mut command = Command::new(example("stats_trouble"));
        command.arg(trouble).env_remove("RUST_LOG").stderr(Stdio::null());
        let child = Child::start(&mut command);
        let address = child.told("http://").trim_end_matches('/').parse().unwrap();
        Self { child, address }
    }

    /// The samples of the warnings that have occurred.
    fn metrics(&self) -> Vec<String> {
        let (_, body) = get(self.address, "/metrics");
        let of_warnings =
            |line: &&str| line.starts_with("corewheel_warnings_total{") && !line.ends_with(" 0");
        body.lines().filter(of_warnings).map(str::to_owned).collect()
    }

    /// The status of `/ready` and its sentence.
    fn ready(&self) -> String {
        let (head, body) = get(self.address, "/ready");
        let status = head.lines().next().unwrap_or_default();
        format!("{}: {}", status.trim_start_matches("HTTP/1.1 "), body.trim_end())
    }

    /// What the watchdog has said since the last call.
    fn watchdog(&self) -> impl Iterator<Item = String> {
        self.child.lines.try_iter()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // It ends by itself at the end of its input, with the processes that it has started.
        drop(self.child.process.stdin.take());
        self.child.wait();
    }
}

/// What the views have shown of a trouble.
struct Shown {
    page: String,
    json: Value,
    warnings: Vec<String>,
    metrics: Vec<String>,
    ready: String,
    watchdog: Vec<String>,
}

/// Waits until the page names the trouble first and says the rest, and reads the other views.
fn look(
    browser: &mut Browser,
    run: &Run,
    (id, rest): (&str, &str),
    pictures: Option<&Path>,
) -> Shown {
    browser.show(run.address);
    if pictures.is_some() {
        thread::sleep(EXPOSURE);
    }
    let text = |of: &str| format!("document.querySelector('#attention{of}').textContent");
    let mark = format!("{} === '▲ Attention: {id}'", text(" .mark"));
    browser.wait(&format!("{mark} && {}.includes(\"{rest}\")", text("")));
    let ready = run.ready();
    if let Some(path) = pictures {
        fs::write(path.with_extension("png"), browser.picture()).unwrap();
    }
    let page = browser.text("#attention");
    let json = json(run.address);
    let warnings = json["warnings"].as_array().expect("a list");
    let active = warnings.iter().filter(|one| one["is_active"] == true);
    let text = |one: &Value| {
        let (id, count) = (one["id"].as_str().unwrap(), &one["count"]);
        format!("{id} × {count}: {}", one["text"].as_str().unwrap())
    };
    assert!(warnings.iter().any(|one| one["id"] == id), "{warnings:?}");
    let (active, metrics) = (active.map(text).collect(), run.metrics());
    assert!(metrics.iter().any(|line| line.contains(id)), "{metrics:?}");
    browser.check_calm();
    if let Some(path) = pictures {
        browser.resize(390, 844);
        browser.wait("document.querySelector('#attention.bad')");
        let name = path.file_stem().unwrap().to_str().unwrap();
        fs::write(path.with_file_name(format!("{name}-phone.png")), browser.picture()).unwrap();
        browser.resize(1_280, 1_000);
    }
    Shown { page, json, warnings: active, metrics, ready, watchdog: run.watchdog().collect() }
}

fn write_down(report: &mut String, trouble: &str, id: &str, shown: &Shown) {
    let list = |lines: &[String]| match lines {
        [] => "nothing".to_owned(),
        [first, second, .., last] if lines.len() > LINES_MAX => {
            let others = lines.len() - 3;
            format!("`{first}`<br>`{second}`<br>{others} other lines<br>`{last}`")
        }
        lines => lines.iter().map(|line| format!("`{line}`")).collect::<Vec<_>>().join("<br>"),
    };
    let page: Vec<&str> =
        shown.page.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let parts = parts(&shown.json).into_iter().map(|(name, ms)| format!("{name} {ms} ms"));
    let rows = [
        ("page", page.join("<br>")),
        ("the guide, `statistics`", guide(id)),
        ("parts of the lateness of shard 1 so far", parts.collect::<Vec<_>>().join(", ")),
        ("`/stats.json`, active warnings", list(&shown.warnings)),
        ("`/metrics`", list(&shown.metrics)),
        ("watchdog", list(&shown.watchdog)),
        ("`/ready`", shown.ready.clone()),
    ];
    writeln!(report, "\n## `{trouble}`: `{id}`\n").unwrap();
    writeln!(report, "| 1,280 pixels wide | 390 pixels wide |\n|---|---|").unwrap();
    let (wide, phone) = (format!("{trouble}.png"), format!("{trouble}-phone.png"));
    writeln!(report, "| ![The page]({wide}) | ![The page on a phone]({phone}) |\n").unwrap();
    writeln!(report, "| asked | said |\n|---|---|").unwrap();
    for (asked, said) in rows {
        writeln!(report, "| {asked} | {} |", said.replace('|', "\\|")).unwrap();
    }
}

#[test]
fn first_sentence_of_the_page_names_each_trouble() {
    let Some(mut browser) = Browser::start() else { return };
    let directory = std::env::var_os("COREWHEEL_PICTURES").map(PathBuf::from);
    browser.resize(1_280, 1_000);
    let mut report = String::from(REPORT);
    for (trouble, id, rest, part) in TROUBLES {
        if trouble == "busy-host" && fs::metadata("/proc/self/schedstat").is_err() {
            println!("skipped: the system does not say how long a thread waits for a processor");
            continue;
        }
        let run = Run::start(trouble);
        let picture = directory.as_ref().map(|directory| directory.join(format!("{trouble}.png")));
        let mut shown = look(&mut browser, &run, (id, rest), picture.as_deref());
        if let Some(part) = part {
            // A timer may be late after the page is shown, and another part may be the greatest
            // so far: a thread that loses its processor within a turn delivers the rest late.
            let start = Instant::now();
            while parts(&shown.json)[0].0 != part || parts(&shown.json)[0].1 == 0 {
                let parts = parts(&shown.json);
                assert!(start.elapsed() < PATIENCE, "{trouble}: {parts:?}");
                thread::sleep(ms(100));
                shown.json = json(run.address);
            }
            assert!(counts_of(part, &shown.json["shards"][1]) > 0, "{trouble}: {}", shown.json);
        }
        if trouble == "stuck-shard" {
            let start = Instant::now();
            while !shown.ready.starts_with("503 ") || shown.watchdog.is_empty() {
                assert!(start.elapsed() < PATIENCE, "{} {:?}", shown.ready, shown.watchdog);
                thread::sleep(ms(20));
                shown.ready = run.ready();
                shown.watchdog.extend(run.watchdog());
            }
            assert!(shown.ready.contains("shard 1 is stuck for "), "{}", shown.ready);
            let said = &shown.watchdog[0];
            assert!(said.contains("is_in_turn: true, class: Some(\"report\")"), "{said}");
        }
        if trouble == "stalled-task"
            && let Some(directory) = &directory
        {
            browser.resize(1_280, 1_200);
            for theme in ["light", "dark"] {
                browser.prefer(theme);
                browser.wait("document.querySelector('#attention.bad')");
                fs::write(directory.join(format!("{theme}.png")), browser.picture()).unwrap();
            }
            browser.prefer("light");
            browser.resize(1_280, 1_000);
        }
        browser.leave();
        write_down(&mut report, trouble, id, &shown);
    }
    if let Some(directory) = directory {
        fs::write(directory.join("troubles.md"), report).unwrap();
    }
}

/// The beginning of the report.
const REPORT: &str = "# Six servers in which one thing is wrong

The example `stats_trouble` makes each trouble. `tests/page/troubles.rs` writes this file and its
pictures, with `COREWHEEL_PICTURES` set to this directory. A trouble is always on shard 1, unless
the host is in trouble. The test waits until the first sentence of the page has the id of the
warning that the heading gives, and so fails where the page names another cause. It also fails where
the greatest part of the lateness stays another one than that to which the guide leads. The other
views are read a moment later.
";

//! The house rules that a search can hold. Each failure names the file, the line and the rule.

use std::fs;
use std::path::{Path, PathBuf};

const LINE_MAX: usize = 100;
const FILE_MAX: usize = 600;

/// The crate of what one core owns, and the service around it.
const SHARD: &str = "shards/src";
const SERVICE: &str = "src";
/// Everything that is written here.
const ALL: [&str; 6] = [SERVICE, SHARD, "shards/tests", "tests", "benches", "examples"];

struct Source {
    /// Below the repository's root, with `/`.
    path: String,
    text: String,
}

impl Source {
    /// Its lines with their numbers.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// The same without comments and without the tests at its end.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.text.find("#[cfg(test)]\nmod tests {").unwrap_or(self.text.len());
        let is_test = self.path.ends_with("tests.rs");
        (1..)
            .zip(self.text[..if is_test { 0 } else { tests }].lines())
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(number, line)| (number, line.split(" //").next().unwrap_or_default()))
    }

    fn is_any_of(&self, paths: &[&str]) -> bool {
        paths.iter().any(|path| self.path == *path || self.path.starts_with(&format!("{path}/")))
    }
}

/// All sources below these directories, as far as they exist.
fn sources(below: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories: Vec<PathBuf> = below.iter().map(|path| root.join(path)).collect();
    let mut sources = Vec::new();
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries {
            let path = entry.expect("a directory can be read to its end").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source is text");
                let path = path.strip_prefix(root).expect("it is below the root");
                sources.push(Source { path: path.to_string_lossy().replace('\\', "/"), text });
            }
        }
    }
    assert!(!sources.is_empty(), "there are sources below {below:?}");
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// Fails with every place that breaks a rule.
fn check(rule: &str, places: impl IntoIterator<Item = (String, usize)>) {
    let places: Vec<_> =
        places.into_iter().map(|(path, line)| format!("{path}:{line}: {rule}")).collect();
    assert!(places.is_empty(), "\n{}\n", places.join("\n"));
}

/// The lines of code that a rule is broken by.
fn code_with<'a>(
    sources: &'a [Source],
    breaks: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = (String, usize)> + 'a {
    sources.iter().flat_map(move |source| {
        let lines: Vec<_> = source.code().filter(|(_, line)| breaks(line)).collect();
        lines.into_iter().map(|(number, _)| (source.path.clone(), number))
    })
}

/// Whether a word stands in a line, not as a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !is_part(before.chars().next_back()) && !is_part(after.chars().next())
    })
}

#[test]
fn the_shard_knows_neither_the_standard_library_nor_the_service() {
    check(
        "what one core owns uses `core` and `alloc` alone, and knows nothing of the service",
        code_with(&sources(&[SHARD]), |line| {
            has_word(line, "std") || has_word(line, "corewheel") || line.contains("async ")
        }),
    );
}

#[test]
fn the_service_uses_the_shard_by_its_front_door() {
    check(
        "the service names what `corewheel_shard` exports, and none of its modules",
        code_with(&sources(&[SERVICE]), |line| {
            line.split("corewheel_shard::").skip(1).any(|rest| {
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                name.is_some_and(|name| rest[name.len()..].starts_with("::"))
                    && rest.starts_with(|c: char| c.is_lowercase())
            })
        }),
    );
}

#[test]
fn the_protocols_know_only_their_atomics() {
    let names = ["wake_up", "stop_flag", "gate", "overflow"];
    let paths = names.map(|name| format!("src/link/{name}.rs"));
    let sources = sources(&[SERVICE]);
    let protocols: Vec<_> =
        sources.into_iter().filter(|source| paths.contains(&source.path)).collect();
    assert_eq!(protocols.len(), names.len());
    check(
        "what is model-checked depends on `sync` alone",
        code_with(&protocols, |line| {
            line.contains("crate::") || (line.contains("super::") && !line.contains("super::sync"))
        }),
    );
}

#[test]
fn a_turn_knows_no_runtime_and_no_endpoint() {
    let inner = ["src/clock", "src/link", "src/stats", "src/directory", "src/shard", "src/face"];
    let sources: Vec<_> =
        sources(&[SERVICE]).into_iter().filter(|source| source.is_any_of(&inner)).collect();
    check(
        "what a turn runs names no runtime, no driver and not the endpoint",
        code_with(&sources, |line| {
            ["glommio", "tokio", "hyper"].iter().any(|name| has_word(line, name))
        }),
    );
}

/// The rooms of the service in the order of the table in `lib.rs`.
fn rooms() -> Vec<String> {
    let root = sources(&[SERVICE]).into_iter().find(|source| source.path == "src/lib.rs");
    let root = root.expect("the service has a root");
    let rows = root.text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    rows.filter_map(|row| row.split_once('`')).map(|(room, _)| room.to_owned()).collect()
}

/// The rooms of what the root exports, by name.
fn exports(text: &str) -> Vec<(String, String)> {
    let mut exports = Vec::new();
    let items = text.split(';').filter_map(|item| item.split_once("pub use crate::"));
    for (_, path) in items {
        let (room, names) = path.split_once("::").expect("the root exports what rooms own");
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        exports.extend(names.map(|name| (name.to_owned(), room.to_owned())));
    }
    exports
}

/// The rooms that a source names, with the lines: every path that begins with `crate` or `super`,
/// in tests too. What the root exports counts as the room that it is exported from.
fn rooms_named(source: &Source, exports: &[(String, String)]) -> Vec<(usize, String)> {
    let module = source.path.trim_start_matches("src/").trim_end_matches(".rs");
    let module = module.trim_end_matches("/mod");
    let depth = module.split('/').count();
    let mut named = Vec::new();
    let mut inner = 0;
    for (number, line) in source.lines() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        inner += usize::from(line.starts_with("mod ") && line.ends_with('{'));
        for (at, _) in line.match_indices("crate::") {
            // Not the end of another word.
            if !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                named.push((number, &line[at + "crate::".len()..]));
            }
        }
        let supers = line.matches("super::").count();
        let consecutive = line.contains("super::super::");
        let climbs = if consecutive { supers } else { supers.min(1) };
        if climbs >= depth + inner {
            let rest = line.rsplit("super::").next().expect("the line names it");
            named.push((number, rest));
        }
    }
    let first_word = |rest: &str| -> String {
        rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let resolve = |name: String| {
        let exported = exports.iter().find(|(known, _)| *known == name);
        exported.map_or(name, |(_, room)| room.clone())
    };
    named.into_iter().map(|(number, rest)| (number, resolve(first_word(rest)))).collect()
}

/// The places where a room uses one that is not listed before it.
fn arrows_up(sources: &[Source], rooms: &[String]) -> Vec<(String, usize)> {
    let root = sources.iter().find(|source| source.path == "src/lib.rs");
    let exports = root.map(|root| exports(&root.text)).unwrap_or_default();
    let mut places = Vec::new();
    for source in sources.iter().filter(|source| source.path != "src/lib.rs") {
        let own = source.path.split('/').nth(1).expect("a source lies in a room");
        let floor = rooms.iter().position(|room| room == own);
        for (number, room) in rooms_named(source, &exports) {
            let below = rooms.iter().position(|known| *known == room);
            // A name that is no room's counts as above: it hides where it leads.
            if floor.is_none() || below.is_none_or(|below| Some(below) > floor) {
                places.push((source.path.clone(), number));
            }
        }
    }
    places
}

#[test]
fn no_two_rooms_use_each_other() {
    // A room uses what is listed before it, so no room uses itself through others.
    check("a room uses rooms that `lib.rs` lists before it", {
        arrows_up(&sources(&[SERVICE]), &rooms())
    });
}

#[test]
fn each_arrow_between_rooms_that_points_up_is_found() {
    let rooms = rooms();
    assert!(rooms.len() >= 12, "{rooms:?}");
    let source = |path: &str, text: &str| Source { path: path.to_owned(), text: text.to_owned() };
    let root = "pub use crate::endpoint::{Page, Server};\n";
    for (below, low) in rooms.iter().enumerate() {
        for high in &rooms[below + 1..] {
            let uses = [
                format!("use crate::{high}::Thing;"),
                format!("let thing = crate::{high}::thing();"),
                format!("    pub(in crate::{high}) fn thing() {{}}"),
                format!("use super::super::{high}::Thing;"),
            ];
            for text in uses {
                let sources =
                    [source("src/lib.rs", root), source(&format!("src/{low}/x.rs"), &text)];
                assert_eq!(arrows_up(&sources, &rooms).len(), 1, "{low}: {text}");
            }
            let sources = [source(&format!("src/{low}/mod.rs"), &format!("use super::{high}::X;"))];
            assert_eq!(arrows_up(&sources, &rooms).len(), 1, "{low} uses {high} by its root");
            let down = [source(&format!("src/{high}/x.rs"), &format!("use crate::{low}::X;"))];
            assert!(arrows_up(&down, &rooms).is_empty(), "{high} may use {low}");
        }
        let sources =
            [source("src/lib.rs", root), source(&format!("src/{low}/x.rs"), "crate::Page")];
        let found = arrows_up(&sources, &rooms).len();
        assert_eq!(found, usize::from(low != "endpoint"), "{low} uses a name of the root");
    }
}

/// What is built from timers, one module for each type that a server author picks.
const KIT: [&str; 11] = [
    "delay_queue",
    "group",
    "herd",
    "interval",
    "keyed",
    "purgatory",
    "repeat",
    "scaled",
    "scheduled",
    "sink",
    "task_queue",
];

#[test]
fn what_is_built_on_top_does_not_know_its_neighbours() {
    // What may be combined, and with what.
    let allowed = [("repeat", "herd"), ("repeat", "interval"), ("task_queue", "sink")];
    let all = sources(&[SERVICE]);
    for module in KIT {
        let (file, folder) = (format!("src/kit/{module}.rs"), format!("src/kit/{module}/"));
        let own = |source: &&Source| source.path == file || source.path.starts_with(&folder);
        assert!(all.iter().any(|source| own(&source)), "there is a {module}");
        let lines = all.iter().filter(own).flat_map(|source| {
            let lines = source.code().filter(|(_, line)| {
                KIT.iter().any(|other| {
                    *other != module
                        && !allowed.contains(&(module, other))
                        && has_word(line, &format!("crate::kit::{other}"))
                })
            });
            lines.map(|(number, _)| (source.path.clone(), number)).collect::<Vec<_>>()
        });
        check("parts that are built on top know only what they are made of", lines);
    }
}

#[test]
fn every_module_is_on_the_map() {
    let roots: Vec<_> =
        sources(&[SERVICE]).into_iter().filter(|source| source.path == "src/lib.rs").collect();
    let text = &roots[0].text;
    let map: String = text.lines().filter(|line| line.starts_with("//!")).collect();
    let missing = (1..).zip(text.lines()).filter(|(_, line)| {
        let module = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
        module.is_some_and(|module| !map.contains(&format!("`{module}`")))
    });
    let places = missing.map(|(number, _)| ("src/lib.rs".to_owned(), number));
    check("each module has its place on the map in the crate's documentation", places);
}

#[test]
fn only_the_service_joins_the_endpoint() {
    let sources: Vec<_> = sources(&[SERVICE])
        .into_iter()
        .filter(|source| !source.is_any_of(&["src/endpoint", "src/lib.rs", "src/service"]))
        .collect();
    check(
        "the endpoint reads the statistics, and nothing that keeps time knows it",
        code_with(&sources, |line| line.contains("endpoint::") || line.contains("hyper")),
    );
}

#[test]
fn no_clock_is_read_outside_of_clock() {
    let sources: Vec<_> = sources(&[SERVICE, SHARD])
        .into_iter()
        .filter(|source| !source.path.starts_with("src/clock/"))
        .collect();
    check(
        "time is an argument; `clock` is the one place that reads it",
        code_with(&sources, |line| {
            ["Instant::now", "SystemTime", ".elapsed()"].iter().any(|read| line.contains(read))
        }),
    );
}

#[test]
fn there_is_no_unsafe_code() {
    let uses = ["{", "fn", "impl", "trait", "extern", "(", "mod"];
    let sources = sources(&[SERVICE, SHARD]);
    check(
        "there is no `unsafe` in either crate",
        code_with(&sources, |line| {
            line.split("unsafe").skip(1).any(|rest| {
                let rest = rest.trim_start();
                uses.iter().any(|used| rest.starts_with(used))
            })
        }),
    );
    let roots = sources.iter().filter(|s| ["src/lib.rs", "shards/src/lib.rs"].contains(&&*s.path));
    let allows = roots.filter(|root| !root.text.contains("\n#![forbid(unsafe_code)]\n"));
    check("both crates forbid `unsafe` at their root", allows.map(|root| (root.path.clone(), 1)));
}

#[test]
fn nothing_is_left_to_be_done() {
    let marks = ["todo!", "unimplemented!", "dbg!", "TODO", "FIXME", "XXX"];
    let sources: Vec<_> =
        sources(&ALL).into_iter().filter(|source| source.path != "tests/tidy.rs").collect();
    let places = sources.iter().flat_map(|source| {
        let lines = source.lines().filter(|(_, line)| marks.iter().any(|mark| line.contains(mark)));
        lines.map(|(number, _)| (source.path.clone(), number))
    });
    check("what is to be done is not noted in the code", places);
}

#[test]
fn every_file_says_first_what_it_is() {
    let sources = sources(&ALL);
    let silent = sources.iter().filter(|source| !source.text.starts_with("//! "));
    check(
        "a file begins with its documentation, in a sentence that says what it is",
        silent.map(|source| (source.path.clone(), 1)),
    );
}

#[test]
fn no_line_is_too_long() {
    let sources = sources(&ALL);
    let long = sources.iter().flat_map(|source| {
        let lines = source.lines().filter(|(_, line)| line.chars().count() > LINE_MAX);
        lines.map(|(number, _)| (source.path.clone(), number))
    });
    check("a line has at most 100 characters", long);
}

#[test]
fn no_file_is_too_long() {
    let sources = sources(&[SERVICE, SHARD]);
    let long = sources.iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > FILE_MAX).then(|| (source.path.clone(), lines))
    });
    check("a file has at most 600 lines", long);
}

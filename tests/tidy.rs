//! The house rules that a search can check. Each failure names the file, the line and the rule.

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/events.rs"]
mod events;
#[path = "tidy/evidence.rs"]
mod evidence;
#[path = "tidy/examples.rs"]
mod examples;
#[path = "tidy/guarantees.rs"]
mod guarantees;
#[path = "tidy/interface.rs"]
mod interface;
#[path = "tidy/packages.rs"]
mod packages;
#[path = "tidy/parts.rs"]
mod parts;
#[path = "tidy/rooms.rs"]
mod rooms;
#[path = "tidy/words.rs"]
mod words;

use std::fs;
use std::path::{Path, PathBuf};

const LINE_MAX: usize = 100;
const FILE_MAX: usize = 600;
/// A test file is shorter than this many lines.
const TEST_FILE_MAX: usize = 800;

/// The crate of a shard, and the crate of the service.
const SHARD: &str = "shards/src";
const SERVICE: &str = "src";
/// The packages for other libraries.
const ADAPTERS: &str = "adapters";
/// All sources of the repository.
const ALL: [&str; 7] = [SERVICE, SHARD, "shards/tests", ADAPTERS, "tests", "benches", "examples"];

/// The texts whose sentences follow the rules for words, beside [`ALL`]. Those of the packages are
/// in their folders.
const TEXTS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
const PACKAGE_TEXTS: [&str; 4] = ["kit", "http", "quinn", "stats"];

struct Source {
    /// The path below the repository's root, with `/`.
    path: String,
    text: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// The lines with their numbers.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.text.lines())
    }

    /// The lines with their numbers, without comments and without the tests at the end of the file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.text.find("#[cfg(test)]\nmod tests {").unwrap_or(self.text.len());
        let is_test = self.path.ends_with("tests.rs");
        (1..)
            .zip(self.text[..if is_test { 0 } else { tests }].lines())
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .map(|(number, line)| (number, line.split(" //").next().unwrap_or_default()))
    }

    /// The comments with the numbers of their lines. The lines of a text that is no source count as
    /// comments.
    fn comments(&self) -> impl Iterator<Item = (usize, &str)> {
        let is_text = !is_rust(Path::new(&self.path));
        self.lines().filter_map(move |(number, line)| {
            let trimmed = line.trim_start();
            let comment = if is_text {
                Some(line)
            } else if trimmed.starts_with("//") {
                Some(trimmed.trim_start_matches(['/', '!']))
            } else {
                line.split_once(" // ").map(|(_, comment)| comment)
            };
            comment.map(|comment| (number, comment.trim()))
        })
    }

    /// The names of the tests with the numbers of their lines.
    fn tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut is_test = false;
        self.lines().filter_map(move |(number, line)| {
            let line = line.trim_start();
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            let name = line.split_once("fn ").filter(|_| is_test)?.1.split('(').next()?;
            is_test = false;
            Some((number, name))
        })
    }

    fn is_any_of(&self, paths: &[&str]) -> bool {
        paths.iter().any(|path| self.path == *path || self.path.starts_with(&format!("{path}/")))
    }
}

/// The text of a file of the repository.
fn text_of(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

/// All sources below these directories, and these files, if they exist.
fn sources(below: &[&str]) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut directories: Vec<PathBuf> = below.iter().map(|path| root.join(path)).collect();
    let mut files: Vec<_> = directories.extract_if(.., |path| path.is_file()).collect();
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries {
            let path = entry.expect("a directory can be read to its end").path();
            if path.is_dir() {
                directories.push(path);
            } else if is_rust(&path) {
                files.push(path);
            }
        }
    }
    let mut sources = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).expect("a source is text");
        let path = path.strip_prefix(root).expect("a source is below the root").to_string_lossy();
        sources.push(Source::new(&path.replace('\\', "/"), &text));
    }
    assert!(!sources.is_empty(), "there are sources below {below:?}");
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    sources
}

/// All sources and texts whose comments follow the rules for words.
fn plain() -> Vec<Source> {
    let of_packages = PACKAGE_TEXTS.map(|package| format!("{ADAPTERS}/{package}/README.md"));
    let of_packages = of_packages.iter().map(String::as_str);
    sources(&ALL.into_iter().chain(TEXTS).chain(of_packages).collect::<Vec<_>>())
}

/// Fails with all places that break a rule.
fn check(rule: &str, places: impl IntoIterator<Item = (String, usize)>) {
    let places: Vec<_> =
        places.into_iter().map(|(path, line)| format!("{path}:{line}: {rule}")).collect();
    assert!(places.is_empty(), "\n{}\n", places.join("\n"));
}

/// The lines of code that break a rule.
fn code_with<'a>(
    sources: &'a [Source],
    breaks: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = (String, usize)> + 'a {
    sources.iter().flat_map(move |source| {
        let lines: Vec<_> = source.code().filter(|(_, line)| breaks(line)).collect();
        lines.into_iter().map(|(number, _)| (source.path.clone(), number))
    })
}

/// The lines of sources, comments included, that break a rule.
fn lines_with<'a>(
    sources: &'a [Source],
    breaks: impl Fn(&str) -> bool + Copy + 'a,
) -> impl Iterator<Item = (String, usize)> + 'a {
    sources.iter().flat_map(move |source| {
        let lines = source.lines().filter(move |(_, line)| breaks(line));
        lines.map(|(number, _)| (source.path.clone(), number))
    })
}

/// The files that break a rule.
fn files_with(
    sources: &[Source],
    breaks: impl Fn(&Source) -> bool,
) -> impl Iterator<Item = (String, usize)> {
    let places = sources.iter().filter(move |source| breaks(source));
    places.map(|source| (source.path.clone(), source.text.lines().count()))
}

/// Whether a line contains a word, not as a part of a longer word.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(is_of_word);
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !is_part(before.chars().next_back()) && !is_part(after.chars().next())
    })
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The word at the beginning of a text.
fn first_word(text: &str) -> &str {
    text.split(|c| !is_of_word(c)).next().unwrap_or_default()
}

#[test]
fn shard_crate_uses_neither_std_nor_the_service() {
    check(
        "the shard crate uses only `core` and `alloc`, and not the service",
        code_with(&sources(&[SHARD]), |line| {
            has_word(line, "std") || has_word(line, "corewheel") || line.contains("async ")
        }),
    );
}

#[test]
fn service_uses_only_the_exports_of_the_shard_crate() {
    check(
        "the service uses the exports of `corewheel_shard`, and none of its modules",
        code_with(&sources(&[SERVICE]), |line| {
            line.split("corewheel_shard::").skip(1).any(|rest| {
                rest[first_word(rest).len()..].starts_with("::")
                    && rest.starts_with(|c: char| c.is_lowercase())
            })
        }),
    );
}

#[test]
fn model_checked_protocols_use_only_sync() {
    let names = ["wake_up", "gate", "overflow", "version"];
    let paths = names.map(|name| format!("src/link/{name}.rs"));
    let mut protocols = sources(&[SERVICE]);
    protocols.retain(|source| paths.contains(&source.path));
    assert_eq!(protocols.len(), names.len());
    check(
        "a model-checked protocol depends only on `sync`",
        code_with(&protocols, |line| {
            line.contains("crate::") || (line.contains("super::") && !line.contains("super::sync"))
        }),
    );
}

#[test]
fn turn_code_names_no_runtime_and_no_server() {
    let inner = ["src/clock", "src/link", "src/stats", "src/directory", "src/shard", "src/face"];
    let mut sources = sources(&[SERVICE]);
    sources.retain(|source| source.is_any_of(&inner));
    check(
        "the code of a turn names no runtime, no driver and no server",
        code_with(&sources, |line| {
            ["glommio", "tokio", "hyper"].iter().any(|name| has_word(line, name))
        }),
    );
}

#[test]
fn only_the_stream_uses_hyper() {
    let mut sources = sources(&[SERVICE]);
    sources.retain(|source| !source.is_any_of(&["src/guide", "src/lib.rs", "src/stream"]));
    check(
        "only the stream uses hyper",
        // A condition on the feature is no use of the crate.
        code_with(&sources, |line| line.replace("\"hyper\"", "").contains("hyper")),
    );
}

#[test]
fn only_the_clock_room_reads_a_clock() {
    // Tests pause tokio's clock. A build without the feature `test-util` has no such file.
    let of_tokio = "src/fallback/tokio_clock.rs";
    // The watchdog goes by the system's clock, also beside a service by a clock that a test moves.
    let watchdog = "adapters/stats/src/watchdog.rs";
    // The last ones are tests.
    let allowed = ["src/clock", of_tokio, watchdog, "adapters/host-tests"];
    let mut sources = sources(&[SERVICE, SHARD, ADAPTERS]);
    sources.retain(|source| !source.is_any_of(&allowed));
    sources.retain(|source| !source.path.starts_with(ADAPTERS) || source.path.contains("/src/"));
    check(
        "time is an argument; only `clock` reads a clock",
        code_with(&sources, |line| {
            ["Instant::now", "SystemTime", ".elapsed()"].iter().any(|read| line.contains(read))
        }),
    );
}

#[test]
fn published_crates_contain_no_unsafe_code() {
    let uses = ["{", "fn", "impl", "trait", "extern", "(", "mod"];
    let sources = sources(&[SERVICE, SHARD, ADAPTERS]);
    check(
        "there is no `unsafe` in a crate that is published",
        code_with(&sources, |line| {
            line.split("unsafe").skip(1).any(|rest| {
                let rest = rest.trim_start();
                uses.iter().any(|used| rest.starts_with(used))
            })
        }),
    );
    let mut roots = sources;
    roots.retain(|source| source.path.ends_with("src/lib.rs"));
    assert!(roots.len() >= 3, "each package has its root");
    let allows = |root: &Source| !root.text.contains("\n#![forbid(unsafe_code)]\n");
    check("each crate forbids `unsafe` in its root", files_with(&roots, allows));
}

#[test]
fn no_file_notes_work_that_is_to_be_done() {
    let marks = ["todo!", "unimplemented!", "dbg!", "TODO", "FIXME", "XXX"];
    let mut sources = sources(&ALL);
    sources.retain(|source| source.path != "tests/tidy.rs");
    let places = lines_with(&sources, |line| marks.iter().any(|mark| line.contains(mark)));
    check("the code contains no note of work that is to be done", places);
}

#[test]
fn every_file_begins_with_its_documentation() {
    let silent = |source: &Source| !source.text.starts_with("//! ");
    check("a file begins with its documentation", files_with(&sources(&ALL), silent));
}

#[test]
fn every_line_has_at_most_100_characters() {
    let sources = sources(&ALL);
    let long = lines_with(&sources, |line| line.chars().count() > LINE_MAX);
    check("a line has at most 100 characters", long);
}

#[test]
fn every_source_file_has_at_most_600_lines_and_every_test_file_fewer_than_800() {
    let lines = |source: &Source| source.text.lines().count();
    let is_source = |source: &Source| !source.path.contains("/tests/");
    let published = sources(&[SERVICE, SHARD, ADAPTERS]);
    let long = files_with(&published, |it| is_source(it) && lines(it) > FILE_MAX);
    check("a file has at most 600 lines", long);
    let tests = sources(&["tests", "shards/tests", ADAPTERS]);
    let long = files_with(&tests, |source| lines(source) >= TEST_FILE_MAX);
    check("a test file has fewer than 800 lines", long);
}

/// The public types of these sources that no example shows, each with its file and line. An example
/// shows a type if it stands on the page of the type, on the page of a type that makes it, or
/// anywhere in its file's documentation and names it. A type makes those that its functions return
/// and its fields and variants have.
fn types_without_example(sources: &[Source]) -> Vec<(String, usize, String)> {
    let (mut types, mut shown, mut made) = (Vec::new(), Vec::new(), Vec::new());
    for source in sources {
        let mut examples = String::new();
        let (mut page, mut is_code, mut has_example) = (String::new(), false, false);
        let mut signature = String::new();
        let first = types.len();
        for (number, line) in source.lines().take_while(|(_, line)| *line != "#[cfg(test)]") {
            let text = line.trim_start();
            if let Some(doc) = text.strip_prefix("///").or(text.strip_prefix("//!")) {
                is_code ^= doc.trim().starts_with("```");
                has_example |= is_code && text.starts_with("///");
                examples += if is_code { doc } else { "" };
                continue;
            }
            if text.starts_with(['#', '/']) || text.is_empty() {
                continue;
            }
            let kinds = ["pub struct ", "pub enum ", "pub trait "];
            if let Some(name) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) {
                first_word(name).clone_into(&mut page);
                types.push((source.path.clone(), number, page.clone()));
            } else if line.starts_with("impl") {
                let of = line.rsplit_once(" for ").or(line.split_once("> "));
                let of = of.filter(|_| line.starts_with("impl<") || line.contains(" for "));
                let of = of.map_or(line.trim_start_matches("impl "), |(_, of)| of);
                first_word(of).clone_into(&mut page);
            } else if line.starts_with('}') {
                page.clear();
            }
            if has_example && !page.is_empty() {
                shown.push(page.clone());
            }
            has_example = false;
            signature += text;
            if text.ends_with(['{', ';', ',', '}']) {
                // A function makes what it returns, and other lines are fields and variants.
                let returned = signature.rsplit_once("->").map(|(_, of)| of);
                let is_function = signature.contains("fn ");
                let makes = returned.or((!is_function).then_some(&*signature)).unwrap_or_default();
                let names = makes.split(|c| !is_of_word(c));
                let names = names.filter(|name| name.starts_with(char::is_uppercase));
                made.extend(names.map(|name| (page.clone(), name.to_owned())));
                signature.clear();
            }
        }
        let named = types[first..].iter().filter(|(.., name)| has_word(&examples, name));
        shown.extend(named.map(|(.., name)| name.clone()).collect::<Vec<_>>());
    }
    types.retain(|(.., name)| {
        let is_made = |(by, made): &(String, String)| made == name && shown.contains(by);
        !shown.contains(name) && !made.iter().any(is_made)
    });
    types
}

#[test]
fn every_public_type_has_an_example() {
    let missing = types_without_example(&sources(&[SERVICE, SHARD])).into_iter();
    check(
        "a public type has an example on its page, or on the page of a type that makes it",
        missing.map(|(path, line, name)| (format!("{name} in {path}"), line)),
    );
}

#[test]
fn type_without_example_is_found_unless_a_type_with_one_makes_it() {
    let example = "//! ```\n//! A::new();\n//! ```\n";
    let made = "impl A {\n    pub fn b(&self) -> Option<B> {\n        None\n    }\n}\n";
    let taken = "impl A {\n    pub fn b(&self, b: B) {\n    }\n}\n";
    let both = "pub struct A;\npub struct B;\n";
    let cases = [
        (both.to_owned(), vec!["A", "B"]),
        (format!("{example}{both}"), vec!["B"]),
        (format!("{example}{both}{made}"), vec![]),
        (format!("{example}{both}{taken}"), vec!["B"]),
        (format!("{both}{made}"), vec!["A", "B"]),
        (format!("{example}pub struct A {{\n    pub b: B,\n}}\npub struct B;\n"), vec![]),
    ];
    for (text, expected) in cases {
        let missing = types_without_example(&[Source::new("x.rs", &text)]).into_iter();
        let missing: Vec<_> = missing.map(|at| at.2).collect();
        assert_eq!(missing, expected, "{text}");
    }
}

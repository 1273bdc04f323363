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
#[path = "tidy/least_rust.rs"]
mod least_rust;
#[path = "tidy/packages.rs"]
mod packages;
#[path = "tidy/parts.rs"]
mod parts;

use std::fs;
use std::path::{Path, PathBuf};

const LINE_MAX: usize = 100;
const FILE_MAX: usize = 600;
/// A test file is shorter than this many lines.
const TEST_FILE_MAX: usize = 800;
const NAME_MAX: usize = 80;
/// The most words of a sentence.
const SENTENCE_MAX: usize = 32;

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

/// Words and phrases that no comment contains: stand-ins for the thing that acts, and metaphors for
/// which there is a term.
const BANNED: &str = "whoever|whomever|whosoever|somebody|someone|anybody|anyone|nobody|everybody|\
    everyone|those who|for who|who asks|who knows|who waits|who wants|the same, but|the same, for|\
    at the door|bank of|bell|bells|brake|come home|comes home|doze|errand|knock|knocks|ripe|\
    undertaker";
/// Words with which no test name begins.
const BANNED_FIRST: [&str; 8] = ["a", "an", "the", "it", "one", "what", "who", "whoever"];

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
    let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (&line[..at], &line[at + word.len()..]);
        !is_part(before.chars().next_back()) && !is_part(after.chars().next())
    })
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
                let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next();
                name.is_some_and(|name| rest[name.len()..].starts_with("::"))
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

/// The rooms of the service in the order of the table in `ARCHITECTURE.md`.
fn rooms() -> Vec<String> {
    let page = sources(&["ARCHITECTURE.md"]).remove(0);
    let map = page.text.lines().skip_while(|line| *line != "## The map").skip(1);
    let map = map.take_while(|line| !line.starts_with('#'));
    let rows = map.filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split_once('`')).map(|(room, _)| room.to_owned()).collect()
}

/// The names that the root exports, each with its room.
fn exports(text: &str) -> Vec<(String, String)> {
    let mut exports = Vec::new();
    let items = text.split(';').filter_map(|item| item.split_once("pub use crate::"));
    for (_, path) in items {
        let (room, names) = path.split_once("::").expect("the root exports names of rooms");
        let names = names.split(|c: char| !c.is_alphanumeric() && c != '_');
        exports.extend(names.map(|name| (name.to_owned(), room.to_owned())));
    }
    exports
}

/// The rooms that a source names, with the lines: all paths that begin with `crate` or `super`, in
/// tests too. An export of the root counts as a name of its room.
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
            // Not if `crate` is the end of a longer word.
            if !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
                named.push((number, &line[at + "crate::".len()..]));
            }
        }
        let supers = line.matches("super::").count();
        let consecutive = line.contains("super::super::");
        let climbs = if consecutive { supers } else { supers.min(1) };
        if climbs >= depth + inner {
            let rest = line.rsplit("super::").next().expect("the line contains `super::`");
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

/// The places where a room uses a room that is not listed before it.
fn arrows_up(sources: &[Source], rooms: &[String]) -> Vec<(String, usize)> {
    let root = sources.iter().find(|source| source.path == "src/lib.rs");
    let exports = root.map(|root| exports(&root.text)).unwrap_or_default();
    let mut places = Vec::new();
    for source in sources.iter().filter(|source| source.path != "src/lib.rs") {
        let own = source.path.split('/').nth(1).expect("a source lies in a room");
        let floor = rooms.iter().position(|room| room == own);
        for (number, room) in rooms_named(source, &exports) {
            let below = rooms.iter().position(|known| *known == room);
            // A name that is no room counts as an upward use, since it hides its room.
            if floor.is_none() || below.is_none_or(|below| Some(below) > floor) {
                places.push((source.path.clone(), number));
            }
        }
    }
    places
}

#[test]
fn no_two_rooms_use_each_other() {
    // A room uses only rooms that are listed before it, so no room uses itself through others.
    check("a room uses only rooms that `ARCHITECTURE.md` lists before it", {
        arrows_up(&sources(&[SERVICE]), &rooms())
    });
}

#[test]
fn every_upward_use_between_rooms_is_found() {
    let rooms = rooms();
    assert!(rooms.len() >= 12, "{rooms:?}");
    let root = Source::new("src/lib.rs", "pub use crate::service::{Page, Server};\n");
    // How often a file of a room uses a room above it.
    let found = |room: &str, file: &str, text: &str| {
        let root = Source::new(&root.path, &root.text);
        arrows_up(&[root, Source::new(&format!("src/{room}/{file}.rs"), text)], &rooms).len()
    };
    let service = rooms.iter().position(|room| room == "service");
    for (below, low) in rooms.iter().enumerate() {
        for high in &rooms[below + 1..] {
            for (file, text) in [
                ("x", format!("use crate::{high}::Thing;")),
                ("x", format!("let thing = crate::{high}::thing();")),
                ("x", format!("    pub(in crate::{high}) fn thing() {{}}")),
                ("x", format!("use super::super::{high}::Thing;")),
                ("mod", format!("use super::{high}::X;")),
            ] {
                assert_eq!(found(low, file, &text), 1, "{low}: {text}");
            }
            assert_eq!(found(high, "x", &format!("use crate::{low}::X;")), 0, "{high} {low}");
        }
        let is_upward = Some(below) < service;
        let by_root = found(low, "x", "crate::Page");
        assert_eq!(by_root, usize::from(is_upward), "{low} uses a name of the root");
    }
}

/// The modules of the kit: the types that are built from timers.
const KIT: [&str; 2] = ["interval", "kept"];

#[test]
fn kit_modules_use_no_other_module_of_the_kit() {
    for module in KIT {
        let mut own = sources(&[SERVICE]);
        let (file, folder) = (format!("src/kit/{module}.rs"), format!("src/kit/{module}"));
        own.retain(|source| source.is_any_of(&[&file, &folder]));
        assert!(!own.is_empty(), "there is no {module}");
        let names_other = |line: &str| {
            let mut others = KIT.iter().filter(|other| **other != module);
            others.any(|other| has_word(line, &format!("crate::kit::{other}")))
        };
        check("a module of the kit uses no other module of the kit", code_with(&own, names_other));
    }
}

#[test]
fn every_module_is_on_the_map() {
    let text = sources(&["src/lib.rs"]).remove(0).text;
    let listed = rooms();
    let missing = (1..).zip(text.lines()).filter(|(_, line)| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        let module = line.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'));
        module.is_some_and(|module| !listed.iter().any(|room| room == module))
    });
    let places = missing.map(|(number, _)| ("src/lib.rs".to_owned(), number));
    check("the map in `ARCHITECTURE.md` lists each module", places);
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

/// The places where a comment contains a banned word or phrase, with the word. A phrase may
/// continue on the next line.
fn banned_words(sources: &[Source]) -> Vec<(String, usize, &'static str)> {
    let mut places = Vec::new();
    for source in sources {
        let comments: Vec<_> = source.comments().collect();
        for (at, (number, comment)) in comments.iter().enumerate() {
            let next = comments.get(at + 1).filter(|(next, _)| *next == number + 1);
            let next = next.map_or("", |(_, comment)| *comment);
            let text = format!("{comment} {next}").to_lowercase();
            let (comment, next) = (comment.to_lowercase(), next.to_lowercase());
            let begins_here = |word: &&str| {
                has_word(&comment, word) || (has_word(&text, word) && !has_word(&next, word))
            };
            let found = BANNED.split('|').filter(begins_here);
            places.extend(found.map(|word| (source.path.clone(), *number, word)));
        }
    }
    places
}

#[test]
fn comments_contain_no_banned_words() {
    let places = banned_words(&plain());
    let places = places.into_iter().map(|(path, line, word)| (format!("{word:?} in {path}"), line));
    check("a comment names things, and uses terms instead of metaphors", places);
}

#[test]
fn banned_words_are_found_in_comments_and_across_lines() {
    let cases = [
        ("x.rs", "#/ Whoever waits.", vec![1]),
        ("x.rs", "let bell = doorbell; # The doorbell.\n# Somebody comes.", vec![2]),
        ("x.rs", "call(); # The same,\n# but later.\n", vec![1]),
        ("x.rs", "# The bell.\n# The bell.\n", vec![1, 2]),
        ("x.rs", "let text = \"nobody\";", vec![]),
        ("README.md", "Anybody may read.\n\nThe rest.", vec![1]),
    ];
    for (path, text, expected) in cases {
        // Written out, the slashes would begin comments of this file.
        let text = text.replace('#', "//");
        let found: Vec<_> =
            banned_words(&[Source::new(path, &text)]).iter().map(|at| at.1).collect();
        assert_eq!(found, expected, "{text}");
    }
}

/// The first lines of the sentences of comments that have more than [`SENTENCE_MAX`] words. A list
/// item, a row of a table, a heading and an empty line end a sentence, and code has none. The first
/// semicolon or colon of a sentence ends it, too; those after it do not.
fn long_sentences(source: &Source) -> Vec<usize> {
    let mut long = Vec::new();
    let (mut words, mut begin, mut is_split, mut is_code, mut before) = (0, 0, false, false, 0);
    for (number, comment) in source.comments() {
        let is_fence = comment.starts_with("```");
        is_code ^= is_fence;
        let is_block = comment.is_empty() || comment.starts_with(['#', '|', '-', '*', '>', '<']);
        let is_numbered = comment.split_once(". ").is_some_and(|(at, _)| at.parse::<u8>().is_ok());
        if is_fence || is_code || is_block || is_numbered || number != before + 1 {
            (words, is_split) = (0, false);
        }
        before = number;
        if is_fence || is_code || comment.starts_with(['#', '|', '<']) {
            continue;
        }
        let text = comment.split_whitespace().filter(|word| word.contains(char::is_alphanumeric));
        for word in text {
            begin = if words == 0 { number } else { begin };
            words += 1;
            if words == SENTENCE_MAX + 1 {
                long.push(begin);
            }
            let word = word.trim_end_matches([')', '`', '"', '*', '_', ']']);
            let is_first_break = word.ends_with([';', ':']) && !is_split;
            if word.ends_with(['.', '!', '?']) || is_first_break {
                (words, is_split) = (0, is_first_break);
            }
        }
    }
    long
}

#[test]
fn sentences_of_comments_have_at_most_32_words() {
    let places = plain().into_iter().flat_map(|source| {
        let lines = long_sentences(&source).into_iter();
        lines.map(|line| (source.path.clone(), line)).collect::<Vec<_>>()
    });
    check("a sentence has at most 32 words", places);
}

#[test]
fn long_sentence_is_found_across_lines_and_after_one_semicolon() {
    let words = |count: usize| "word ".repeat(count).trim_end().to_owned();
    let cases = [
        (format!("{}.\n", words(32)), 0),
        (format!("{}.\n", words(33)), 1),
        (format!("{}\n{}.\n", words(16), words(17)), 1),
        (format!("{};\n{}.\n", words(20), words(20)), 0),
        (format!("{};\n{}; {}.\n", words(20), words(20), words(20)), 1),
        (format!("{}\n\n{}.\n", words(20), words(20)), 0),
        (format!("- {}\n- {}.\n", words(20), words(20)), 0),
        (format!("```\n{}\n```\n", words(40)), 0),
    ];
    for (text, expected) in cases {
        assert_eq!(long_sentences(&Source::new("x.md", &text)).len(), expected, "{text}");
    }
}

#[test]
fn test_names_state_a_subject_an_operation_and_an_outcome() {
    let rule = "a test name has at least 3 words, at most 80 characters, and begins with a subject";
    let places = plain().into_iter().flat_map(|source| {
        let tests = source.tests().filter(|(_, name)| {
            let mut words = name.split('_');
            let is_first_banned = words.next().is_some_and(|word| BANNED_FIRST.contains(&word));
            is_first_banned || words.count() < 2 || name.len() > NAME_MAX
        });
        tests.map(|(line, _)| (source.path.clone(), line)).collect::<Vec<_>>()
    });
    check(rule, places);
}

/// The public types of these sources that no example shows, each with its file and line. An example
/// shows a type if it stands on the page of the type, on the page of a type that makes it, or
/// anywhere in its file's documentation and names it. A type makes those that its functions return
/// and its fields and variants have.
fn types_without_example(sources: &[Source]) -> Vec<(String, usize, String)> {
    let word = |text: &str| -> String {
        text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
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
                page = word(name);
                types.push((source.path.clone(), number, page.clone()));
            } else if line.starts_with("impl") {
                let of = line.rsplit_once(" for ").or(line.split_once("> "));
                let of = of.filter(|_| line.starts_with("impl<") || line.contains(" for "));
                page = word(of.map_or(line.trim_start_matches("impl "), |(_, of)| of));
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
                let names = makes.split(|c: char| !c.is_alphanumeric() && c != '_');
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

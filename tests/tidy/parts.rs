//! What connections and the kit of this crate name and call that code of a user cannot.

use std::collections::BTreeSet;

use super::circles::{Modules, Names, code, module_of};
use super::rooms::rooms;
use super::{SERVICE, Source, has_word, sources};

/// The methods of a part's handle that are not public, each with the reason.
const NOT_PUBLIC: [(&str, &[&str]); 4] = [
    (
        "a part of a user computes with instants and deadlines, and not with nanoseconds",
        &["time", "nanos", "nanos_near"],
    ),
    (
        "a connection has a class of its own, and takes it along to another shard",
        &["schedule_as", "class_of", "class_delivered"],
    ),
    (
        "the service itself orders what all its connections do, and counts their results",
        &["orders", "add_population", "begin_poll", "note_ready", "count_poll"],
    ),
    ("the handle makes senders of messages", &["shard", "entry"]),
];

/// The methods in all `impl PartHandle` that are not public, nor private to the file.
fn found() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources(&[SERVICE]) {
        let mut is_handle = false;
        for (_, line) in source.code() {
            match line {
                "impl PartHandle {" => is_handle = true,
                "}" => is_handle = false,
                _ if is_handle && line.trim_start().starts_with("pub(") => {
                    let name = line.split_once("fn ").map(|(_, rest)| rest);
                    let name = name.and_then(|name| name.split(['<', '(']).next());
                    found.insert(name.expect("a method has a name").to_owned());
                }
                _ => {}
            }
        }
    }
    found
}

#[test]
fn part_of_a_user_can_call_what_parts_of_this_crate_call_except_a_known_few() {
    let known = NOT_PUBLIC.iter().flat_map(|(_, names)| *names);
    let known: BTreeSet<_> = known.map(|name| (*name).to_owned()).collect();
    assert_eq!(found(), known);
}

/// Rooms of plain values and of time, which reach no thread and no shard.
const PLAIN_ROOMS: [&str; 2] = ["values", "clock"];

/// What connections and the kit name of the rooms below that is not public, by the files, each with
/// the reason. A path stands for all that lies below it.
const NAMED: [(&str, &[(&str, &str)]); 6] = [
    (
        "the service tells all connections of its limits' scale, of a drain, and to end",
        &[
            ("conn/any_thread/inner", "directory::orders"),
            ("conn/on_shard/part", "directory::orders"),
            ("conn/on_shard/part", "shard::sweep::Population"),
            ("conn/on_shard/table", "directory::orders::Terms"),
            ("conn/rules", "directory::orders"),
        ],
    ),
    (
        "the statistics of the service count deadlines by their kinds",
        &[
            ("conn/any_thread/inner", "stats::tally::Tally"),
            ("conn/kinds", "stats::tally::Tally"),
            ("conn/on_shard/record_ref", "stats::tally::Tally"),
            ("conn/side", "stats::tally::Tally"),
        ],
    ),
    (
        "a pass of many deadlines is taken apart, which `Pass` does as a whole for one",
        &[
            ("conn/any_thread/inner", "pass"),
            ("conn/events", "pass::looks"),
            ("conn/on_shard/record_ref", "pass::has_budget"),
            ("conn/rules", "pass::Polls"),
        ],
    ),
    (
        "a model checks the atomics",
        &[
            ("conn/any_thread/inner", "link::owners::OwnerCount"),
            ("conn/measured", "link::sync"),
            ("conn/moment", "link::sync"),
            ("kit/kept/room", "link::sync"),
        ],
    ),
    (
        "a kept value has as much room as a lane, and panics of its callbacks count",
        &[("kit/kept", "shard::Core")],
    ),
    (
        "a value is made on its shard by a callback that goes by the mailbox, and has a reply",
        &[
            ("kit/kept", "shard::request::Control"),
            ("kit/kept", "shard::timers::SendCall"),
            ("kit/kept/part", "face::task::ResultSender"),
        ],
    ),
];

/// What the root of the service makes public: names, and modules with what is public in them.
struct Public<'a> {
    names: BTreeSet<Names>,
    sources: &'a [Source],
}

impl<'a> Public<'a> {
    fn of(modules: &Modules, sources: &'a [Source]) -> Self {
        let root = Names::new();
        let exported = modules.0[&root].iter().filter(|used| used.exported.is_some());
        let exported = exported.filter_map(|used| modules.absolute(&root, &used.path));
        let text = &sources.iter().find(|source| source.path == "src/lib.rs").unwrap().text;
        let open = text.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
        let open = open.map(|name| vec![name.to_owned()]);
        Self { names: exported.chain(open).collect(), sources }
    }

    fn has(&self, path: &Names) -> bool {
        let Some((name, module)) = path.split_last() else { return false };
        let file = format!("src/{}", module.join("/"));
        let files = [format!("{file}.rs"), format!("{file}/mod.rs")];
        let is_pub = |line: &str| line.starts_with("pub ") && has_word(line, name);
        let is_in = |source: &&Source| files.contains(&source.path);
        let lies_open = || self.sources.iter().filter(is_in).any(|of| of.text.lines().any(is_pub));
        self.names.contains(path) || (self.names.contains(module) && lies_open())
    }
}

/// The paths of rooms below that connections and the kit name and that are not public, with the
/// files that name them.
fn named(sources: &[Source], rooms: &[String]) -> BTreeSet<(String, String)> {
    let modules = Modules::of(sources);
    let public = Public::of(&modules, sources);
    let mut named = BTreeSet::new();
    for (module, uses) in &modules.0 {
        let Some(own) = module.first().filter(|room| ["conn", "kit"].contains(&room.as_str()))
        else {
            continue;
        };
        let file = module.join("/");
        for path in uses.iter().filter_map(|used| modules.absolute(module, &used.path)) {
            let Some(room) = path.first().filter(|room| rooms.contains(room)) else { continue };
            if room != own && !PLAIN_ROOMS.contains(&room.as_str()) && !public.has(&path) {
                named.insert((file.clone(), path.join("::")));
            }
        }
        // The method stands for the type that it returns.
        let is_it = |source: &&Source| module_of(&source.path) == *module;
        let source = sources.iter().find(is_it).expect("a module has its file");
        if code(&source.text).contains(".core()") {
            named.insert((file, "shard::Core".to_owned()));
        }
    }
    named
}

#[test]
fn connections_and_the_kit_name_below_them_what_is_public_and_a_known_few() {
    let found = named(&sources(&[SERVICE]), &rooms());
    let known = NAMED.iter().flat_map(|(_, rows)| *rows);
    let covers = |(file, path): &(&str, &str), (by, used): &(String, String)| {
        let rest = used.strip_prefix(path);
        file == by && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let unknown = found.iter().filter(|used| !known.clone().any(|row| covers(row, used)));
    let stale = known.clone().filter(|row| !found.iter().any(|used| covers(row, used)));
    let (unknown, stale): (Vec<_>, Vec<_>) = (unknown.collect(), stale.collect());
    assert!(unknown.is_empty(), "these have no row with a reason: {unknown:#?}");
    assert!(stale.is_empty(), "the list is no longer than it has to be: {stale:#?}");
}

#[test]
fn use_of_a_room_below_is_found_unless_it_is_public_or_of_plain_values() {
    let rooms = ["values", "shard", "pass", "kit"].map(str::to_owned);
    let names = |text: &str| {
        let sources = [
            Source::new(
                "src/lib.rs",
                "pub mod pass;\nmod kit;\npub use crate::shard::timers::Timers;\n",
            ),
            Source::new("src/pass/mod.rs", "pub struct Pass;\npub(crate) fn ask() {}\n"),
            Source::new("src/kit/mod.rs", "mod a;\n"),
            Source::new("src/kit/a.rs", text),
        ];
        let found = named(&sources, &rooms).into_iter();
        found.map(|(file, path)| format!("{file}: {path}")).collect::<Vec<_>>()
    };
    assert_eq!(names("use crate::shard::timers::{Timers, X};"), ["kit/a: shard::timers::X"]);
    assert_eq!(names("fn a() { crate::shard::x::y() }"), ["kit/a: shard::x::y"]);
    assert_eq!(names("use super::super::shard::x::Y;"), ["kit/a: shard::x::Y"]);
    assert_eq!(names("use crate::pass::{Pass, ask};"), ["kit/a: pass::ask"]);
    assert_eq!(names("fn a() { timers.core().x() }"), ["kit/a: shard::Core"]);
    assert!(names("use crate::values::X;\nuse crate::kit::b::B;\nuse std::rc::Rc;").is_empty());
    assert!(names("#[cfg(test)]\nmod tests {\n    use crate::shard::x::Y;\n}\n").is_empty());
    assert!(names("// crate::shard::x::Y, and core()").is_empty());
}

//! The rooms of the service: each is on the map, and uses only rooms that are listed before it.

use super::circles::{Modules, Names};
use super::{SERVICE, Source, check, code_with, has_word, sources};

/// The rooms of the service in the order of the table in `ARCHITECTURE.md`.
pub(super) fn rooms() -> Vec<String> {
    let page = sources(&["ARCHITECTURE.md"]).remove(0);
    let map = page.text.lines().skip_while(|line| *line != "## The map").skip(1);
    let map = map.take_while(|line| !line.starts_with('#'));
    let rows = map.filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split_once('`')).map(|(room, _)| room.to_owned()).collect()
}

/// The files that use a room which is not listed before their own, and what they use: tests may
/// start a whole service. An export of the root counts as a name of its room.
fn arrows_up(sources: &[Source], rooms: &[String]) -> Vec<String> {
    let modules = Modules::of(sources);
    let of_root = modules.0.get(&Names::new()).into_iter().flatten();
    let exports: Vec<_> =
        of_root.filter_map(|used| Some((used.exported.as_ref()?, used))).collect();
    let mut places = Vec::new();
    for (module, uses) in modules.0.iter().filter(|(module, _)| !module.is_empty()) {
        let floor = rooms.iter().position(|room| *room == module[0]);
        for path in uses.iter().filter_map(|used| modules.absolute(module, &used.path)) {
            let first = path.first().map_or("", |first| first.as_str());
            let exported = exports.iter().find(|(name, _)| *name == first);
            let room = exported.map_or(first, |(_, export)| export.path[1].as_str());
            let below = rooms.iter().position(|known| known == room);
            // A name that is no room counts as an upward use, since it hides its room.
            if floor.is_none() || below.is_none_or(|below| Some(below) > floor) {
                places.push(format!("src/{}: {}", module.join("/"), path.join("::")));
            }
        }
    }
    places
}

#[test]
fn no_two_rooms_use_each_other() {
    // A room uses only rooms that are listed before it, so no room uses itself through others.
    let found = arrows_up(&sources(&[SERVICE]), &rooms());
    assert!(found.is_empty(), "`ARCHITECTURE.md` lists these rooms later: {found:#?}");
}

#[test]
fn every_upward_use_between_rooms_is_found() {
    let rooms = rooms();
    assert!(rooms.len() >= 12, "{rooms:?}");
    // How often a file of a room uses a room above it.
    let found = |room: &str, file: &str, text: &str| {
        let root = Source::new("src/lib.rs", "pub use crate::service::{Page, Server};\n");
        arrows_up(&[root, Source::new(&format!("src/{room}/{file}.rs"), text)], &rooms).len()
    };
    let service = rooms.iter().position(|room| room == "service");
    for (below, low) in rooms.iter().enumerate() {
        for high in &rooms[below + 1..] {
            for (file, text) in [
                ("x", format!("use crate::{high}::Thing;")),
                ("x", format!("let thing = crate::{high}::thing();")),
                ("x", format!("use super::super::{high}::Thing;")),
                ("x", format!("use crate::{{{low}::X, {high}::{{Thing, Other}}}};")),
                ("mod", format!("use super::{high}::X;")),
            ] {
                assert!(found(low, file, &text) > 0, "{low}: {text}");
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

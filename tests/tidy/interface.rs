//! No type of a crate that is still 0.x stands in the public interface of the service.

use std::collections::BTreeSet;

use super::{SERVICE, Source, check, first_word, has_word, is_of_word, sources, text_of};

/// The crates that are still 0.x with types in the public interface of the service, and why.
/// `src/guide/packages.md` says the same to users.
const YOUNG: [(&str, &str); 1] = [("corewheel_shard", "it is released together with the service")];

/// The dependencies of a manifest whose versions are 0.x, by the names that sources have for them.
fn young_dependencies(manifest: &str) -> Vec<String> {
    let mut is_dependencies = false;
    let mut young = Vec::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            is_dependencies = section == "dependencies" || section.ends_with("'.dependencies");
            continue;
        }
        let Some((name, value)) = line.split_once(" = ").filter(|_| is_dependencies) else {
            continue;
        };
        let version = match value.split_once("version = ") {
            Some((_, version)) => version,
            None => value,
        };
        let is_young = version.trim_start_matches(['"', '=', '>', '^', '~', ' ']).starts_with("0.");
        if is_young && !name.starts_with('#') {
            young.push(name.replace('-', "_"));
        }
    }
    young
}

/// The names that a source imports from a crate: of types, and of modules.
fn imports(source: &Source, from: &str) -> Vec<String> {
    let code: Vec<_> = source.code().map(|(_, line)| line.trim()).collect();
    let code = code.join(" ");
    let paths = code.split(';').filter_map(|item| Some(item.rsplit_once("use ")?.1));
    let paths = paths.map(|path| path.trim_start_matches("::"));
    let of_crate = paths.filter_map(|path| path.strip_prefix(from)?.strip_prefix("::"));
    let words = of_crate.flat_map(|names| names.split(|c: char| !is_of_word(c)));
    words.filter(|word| !["", "as", "self"].contains(word)).map(str::to_owned).collect()
}

/// The names of the public types of sources.
fn public_types(sources: &[Source]) -> BTreeSet<&str> {
    let kinds = ["pub struct ", "pub enum ", "pub trait "];
    let lines = sources.iter().flat_map(Source::code).map(|(_, line)| line.trim());
    lines
        .filter_map(|line| kinds.iter().find_map(|kind| line.strip_prefix(kind)).map(first_word))
        .collect()
}

/// The heads of the public items of a source, with the lines on which they begin: of functions,
/// types, fields and exports, and of implementations for public types. The compiler warns of a
/// public item that no user can reach.
fn public_heads(source: &Source, types: &BTreeSet<&str>) -> Vec<(usize, String)> {
    let code: Vec<_> = source.code().map(|(number, line)| (number, line.trim())).collect();
    let mut heads = Vec::new();
    for (at, (number, line)) in code.iter().enumerate() {
        let is_item = line.starts_with("pub ");
        if !is_item && !line.starts_with("impl") {
            continue;
        }
        let mut head = String::new();
        for (_, line) in &code[at..] {
            head.extend([line, " "]);
            let is_export = head.starts_with("pub use");
            let is_field = !is_export && is_item && !head.contains("fn ");
            let is_whole = head.matches('(').count() == head.matches(')').count();
            let ends = line.ends_with(';') || (line.ends_with(['{', '}']) && !is_export);
            if is_whole && (ends || (is_field && line.ends_with(','))) {
                break;
            }
        }
        // The fields of a tuple that are its own.
        let tuple = head.find('(').filter(|_| line.starts_with("pub struct "));
        if let Some(fields) = tuple.filter(|at| !head[*at..].contains("pub ")) {
            head.truncate(fields);
        }
        let of = head.rsplit_once(" for ").map(|(_, of)| first_word(of));
        if is_item || of.is_some_and(|of| types.contains(of)) {
            heads.push((*number, head));
        }
    }
    heads
}

/// Whether a text has a path that begins with a name.
fn has_path(text: &str, name: &str) -> bool {
    let path = format!("{name}::");
    text.match_indices(&path).any(|(at, _)| {
        // `::young::B` is of the crate, and `crate::young::B` is of a module of its name.
        let before = &text[..at];
        let before = before.strip_suffix("::").unwrap_or(before);
        !before.ends_with(is_of_word)
    })
}

/// The public items of sources that name a crate, or something that is imported from it.
fn public_uses(sources: &[Source], of: &str) -> Vec<(String, usize)> {
    let (mut places, types) = (Vec::new(), public_types(sources));
    for source in sources {
        let imported = imports(source, of);
        for (number, head) in public_heads(source, &types) {
            let is_type = |name: &str| name.starts_with(char::is_uppercase);
            let is_named =
                |name: &String| has_path(&head, name) || (is_type(name) && has_word(&head, name));
            if has_path(&head, of) || imported.iter().any(is_named) {
                places.push((source.path.clone(), number));
            }
        }
    }
    places
}

#[test]
fn public_interface_has_no_type_of_a_crate_that_is_still_0_x() {
    let young = young_dependencies(&text_of("Cargo.toml"));
    assert!(young.len() >= 10 && young.contains(&"rtrb".to_owned()), "{young:?}");
    let sources = sources(&[SERVICE]);
    for name in &young {
        let places = public_uses(&sources, name);
        match YOUNG.iter().find(|(known, _)| known == name) {
            Some((_, why)) => assert!(!places.is_empty(), "{name} is not there any more: {why}"),
            None => check(&format!("a public item has a type of {name}, which is 0.x"), places),
        }
    }
    let unknown = YOUNG.iter().find(|(name, _)| !young.iter().any(|known| known == name));
    assert!(unknown.is_none(), "{unknown:?} is no 0.x dependency");
}

#[test]
fn public_use_of_a_young_crate_is_found_wherever_it_stands() {
    let manifest = "[dependencies]\nold = \"1.2\"\n# young = \"0.1\"\nyoung-one = \"0.4\"\n\
                    [target.'cfg(unix)'.dependencies]\nranged = { version = \">=0.7, <2\" }\n\
                    renamed = { package = \"x\", version = \"0.1\" }\n\
                    [dev-dependencies]\nother = \"0.1\"\n";
    assert_eq!(young_dependencies(manifest), ["young_one", "ranged", "renamed"]);
    let cases = [
        ("pub fn a(b: &young::B) {}\n", 1),
        ("pub use young::B;\n", 1),
        ("use young::{c, B as D};\npub fn a(\n    b: D,\n) {\n}\n", 1),
        ("use young::c::B;\npub struct A {\n    pub b: B,\n}\n", 1),
        ("use young::B;\npub struct A;\nimpl B for A {}\n", 1),
        ("use young::B;\npub struct A(pub B);\n", 1),
        ("use young::B;\npub struct A(B);\n", 0),
        ("use young::B;\nstruct A;\nimpl B for A {}\n", 0),
        ("use young::B;\npub struct A {\n    b: B,\n}\n", 0),
        ("use young::B;\npub(crate) fn a(b: B) {}\n", 0),
        ("use crate::young::B;\npub fn a(b: B) {}\n", 0),
        ("use old::B;\npub fn a(b: B) {\n    young::c();\n}\n", 0),
    ];
    for (text, expected) in cases {
        let sources = [Source::new("src/x.rs", text)];
        assert_eq!(public_uses(&sources, "young").len(), expected, "{text}");
    }
}

//! Files of a room that use each other, directly or through others.

use std::collections::{BTreeMap, BTreeSet};

use super::{SERVICE, Source, is_of_word, sources};

/// The most files of a room that form a circle.
const CIRCLE_MAX: usize = 3;

/// A path of names, without `crate`. The path of a module is that of its file.
pub(super) type Names = Vec<String>;

/// A path that a file names.
pub(super) struct Use {
    /// As it is written.
    pub(super) path: Names,
    /// The name under which the file exports it.
    pub(super) exported: Option<String>,
}

/// The module of a file of the service; that of the root is empty.
pub(super) fn module_of(path: &str) -> Names {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').filter(|name| *name != "lib").map(str::to_owned).collect()
}

/// The code of a file, without comments, its tests and the paths of visibilities.
pub(super) fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
            let item = lines.by_ref().find(|line| !line.starts_with('#')).unwrap_or_default();
            if item.ends_with('{') {
                let _end = lines.by_ref().find(|line| *line == "}");
            }
            continue;
        }
        let line = line.split("//").next().unwrap_or_default();
        let (before, after) = line.split_once("pub(in ").unwrap_or((line, ""));
        code += before;
        code += after.split_once(')').map_or("", |(_, rest)| rest);
        code.push('\n');
    }
    code
}

/// The paths of a `use`, with its braces resolved.
fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let (mut depth, mut from) = (0, 0);
    for (at, c) in tree.char_indices().chain([(tree.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let item = tree[from..at].trim();
                from = (at + 1).min(tree.len());
                match item.split_once('{') {
                    Some((path, rest)) => {
                        let inside = rest.trim_end().strip_suffix('}').unwrap_or(rest);
                        expand(&format!("{prefix}{path}"), inside, paths);
                    }
                    None if item.is_empty() => {}
                    None => paths.push(format!("{prefix}{item}")),
                }
            }
            _ => {}
        }
    }
}

/// All paths that a file names: its `use`s, and the paths in its code.
fn uses(text: &str) -> Vec<Use> {
    let (code, mut uses) = (code(text), Vec::new());
    let mut rest = String::new();
    for statement in code.split_inclusive(';') {
        let at = statement.rfind("use ").filter(|at| {
            let before = statement[..*at].lines().last().unwrap_or_default().trim();
            before.is_empty() || before.starts_with("pub")
        });
        let Some(at) = at.filter(|_| statement.ends_with(';')) else {
            rest += statement;
            continue;
        };
        let is_exported = statement[..at].trim_end().ends_with(['b', ')']);
        rest += &statement[..at];
        let mut paths = Vec::new();
        expand("", &statement[at + "use ".len()..statement.len() - 1], &mut paths);
        uses.extend(paths.into_iter().map(|path| {
            let (path, name) = path.split_once(" as ").unwrap_or((&path, ""));
            let path: Names = path.split("::").map(|name| name.trim().to_owned()).collect();
            let last = path.last().cloned().unwrap_or_default();
            let name = if name.is_empty() { last } else { name.to_owned() };
            Use { path, exported: is_exported.then_some(name) }
        }));
    }
    for begin in ["crate::", "super::", "self::"] {
        for (at, _) in rest.match_indices(begin) {
            if rest[..at].ends_with(|c| is_of_word(c) || c == ':') {
                continue;
            }
            let path = rest[at..].split(|c| !is_of_word(c) && c != ':').next().unwrap_or_default();
            let path = path.trim_end_matches(':').split("::").map(str::to_owned).collect();
            uses.push(Use { path, exported: None });
        }
    }
    uses
}

/// The modules of the service, each with the paths that its file names.
pub(super) struct Modules(pub(super) BTreeMap<Names, Vec<Use>>);

impl Modules {
    pub(super) fn of(sources: &[Source]) -> Self {
        let is_test = |path: &str| path.ends_with("tests.rs") || path.contains("tests/");
        let modules = sources
            .iter()
            .filter(|source| !is_test(&source.path))
            .map(|source| (module_of(&source.path), uses(&source.text)));
        Self(modules.collect())
    }

    /// A path that a module names, from the root. `None` for a path of another crate.
    pub(super) fn absolute(&self, module: &Names, path: &Names) -> Option<Names> {
        let first = path.first()?.as_str();
        let mut base = module.clone();
        let mut rest = &path[..];
        match first {
            "crate" => return Some(path[1..].to_vec()),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    base.pop()?;
                    rest = &rest[1..];
                }
            }
            _ => {
                let child = [module.as_slice(), &path[..1]].concat();
                self.0.get(&child)?;
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// The module in whose file the last name of a path is defined, through exports.
    fn home(&self, path: &Names, depth: usize) -> Option<Names> {
        let known = (0..=path.len()).rev().find(|len| self.0.contains_key(&path[..*len]))?;
        let module = path[..known].to_vec();
        let Some(name) = path.get(known).filter(|_| depth > 0) else { return Some(module) };
        let is_it = |used: &&Use| used.exported.as_ref() == Some(name);
        let export = self.0[&module].iter().find(is_it);
        let target = export.and_then(|used| self.absolute(&module, &used.path));
        let Some(mut target) = target else { return Some(module) };
        target.extend_from_slice(&path[known + 1..]);
        self.home(&target, depth - 1)
    }

    /// The modules that a module uses.
    fn used_by(&self, module: &Names) -> BTreeSet<Names> {
        let uses = self.0[module].iter().filter_map(|used| self.absolute(module, &used.path));
        uses.filter_map(|path| self.home(&path, 8)).filter(|home| home != module).collect()
    }

    /// The widest circle of a room.
    fn widest(&self, room: &str) -> BTreeSet<Names> {
        let is_here = |module: &&Names| module.first().is_some_and(|first| first == room);
        let arrows: BTreeMap<_, _> =
            self.0.keys().filter(is_here).map(|module| (module, self.used_by(module))).collect();
        let reached = |from: &Names| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from.clone()]);
            while let Some(module) = next.pop() {
                for used in arrows.get(&module).into_iter().flatten() {
                    if reached.insert(used.clone()) {
                        next.push(used.clone());
                    }
                }
            }
            reached
        };
        let reached: BTreeMap<_, _> =
            arrows.keys().map(|module| (*module, reached(module))).collect();
        let circle = |module: &Names| -> BTreeSet<Names> {
            let all = reached[module].iter();
            all.filter(|one| reached.get(one).is_some_and(|by| by.contains(module)))
                .cloned()
                .collect()
        };
        arrows.keys().map(|module| circle(module)).max_by_key(BTreeSet::len).unwrap_or_default()
    }
}

#[test]
fn no_more_than_three_files_of_a_room_form_a_circle() {
    let modules = Modules::of(&sources(&[SERVICE]));
    let rooms: BTreeSet<_> = modules.0.keys().filter_map(|module| module.first()).collect();
    for room in rooms {
        let circle = modules.widest(room);
        assert!(circle.len() <= CIRCLE_MAX, "{room} has a circle: {circle:#?}");
    }
}

#[test]
fn circle_is_found_through_groups_exports_and_paths_but_not_through_tests() {
    let widest = |uses: [&str; 3]| {
        let [a, b, c] = uses;
        let sources = [
            Source::new("src/lib.rs", "mod room;"),
            Source::new("src/room/mod.rs", "mod a;\nmod b;\nmod c;\npub use self::c::Deep;\n"),
            Source::new("src/room/a.rs", a),
            Source::new("src/room/b.rs", b),
            Source::new("src/room/c.rs", c),
        ];
        Modules::of(&sources).widest("room").len()
    };
    let from_c = "use super::a::A;";
    assert_eq!(widest(["use super::{\n    b::{self, B},\n    x::X,\n};", "", ""]), 0);
    assert_eq!(widest(["use super::b::B;", "use super::c::C;", from_c]), 3);
    assert_eq!(widest(["use super::{b::{B, D}, b::X};", "pub(super) use super::c::C;", from_c]), 3);
    assert_eq!(widest(["use super::b::B;", "use super::Deep;", from_c]), 3, "by an export");
    assert_eq!(widest(["use super::b::B;", "fn b() { crate::room::c::c() }", from_c]), 3);
    assert_eq!(widest(["use super::b::B;", "// super::c::C", from_c]), 0, "by a comment");
    let test = "#[cfg(test)]\nmod tests {\n    use super::super::c::C;\n}\n";
    assert_eq!(widest(["use super::b::B;", test, from_c]), 0, "by a test");
    assert_eq!(widest(["use super::b::B;", "pub(in crate::room::c) fn b() {}", from_c]), 0);
}

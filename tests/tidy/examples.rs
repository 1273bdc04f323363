//! The table of the examples: it has each of them, with its lines of code and its command.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::sources;

/// Folders of `examples` that are none.
const SHARED: [&str; 2] = ["host", "monitoring"];

#[test]
fn table_of_examples_names_each_with_its_lines_and_command() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let sources = sources(&["examples"]);
    let mut listed = BTreeSet::new();
    let table = fs::read_to_string(folder.join("README.md")).unwrap();
    for row in table.lines().filter(|line| line.starts_with("| [`")) {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let &[link, _, count, command] = &*cells else { panic!("a row has four cells: {row}") };
        let (name, path) = link.split_once("](").expect("the first cell is a link");
        let (name, path) = (name.trim_matches(['[', '`']), path.trim_end_matches(')'));
        let main = fs::read_to_string(folder.join(path)).expect("the link leads to a source");
        let command = command.trim_matches('`');
        assert!(main.contains(command), "{path} does not begin with `{command}`");
        let (file, within) = (format!("examples/{name}.rs"), format!("examples/{name}/"));
        let of_example = sources.iter().filter(|source| {
            let is_test = source.path.contains("/tests/") || source.path.ends_with("/tests.rs");
            source.path == file || source.path.starts_with(&within) && !is_test
        });
        let is_code = |line: &&str| !line.is_empty() && !line.starts_with("//");
        let counts = of_example.map(|it| it.text.lines().map(str::trim).filter(is_code).count());
        let found = counts.sum::<usize>();
        let told: usize = count.replace(',', "").parse().expect("the lines are a number");
        // A small change needs no change of the table.
        assert!(told.abs_diff(found) * 10 <= found, "{name} has {found} lines, and not {told}");
        listed.insert(name.to_owned());
    }
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let examples = entries.filter(|path| path.is_dir() || path.extension() == Some("rs".as_ref()));
    let names = examples.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned());
    let all: BTreeSet<_> = names.filter(|name| !SHARED.contains(&&**name)).collect();
    assert_eq!(listed, all, "the table and the folder have the same examples");
}

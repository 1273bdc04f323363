//! The guarantees of the README lead to tests, and each of these tests is there.

use std::fs;
use std::path::Path;

use super::{Source, text_of};

/// The links to tests in a text, each `[words](path "name of the test")`: line, path and name. The
/// name is empty if the link has none.
fn links_to_tests(text: &str) -> Vec<(usize, String, String)> {
    let mut links = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for target in line.split("](").skip(1) {
            let target = target.split(')').next().unwrap_or_default();
            let (path, name) = target.split_once(' ').unwrap_or((target, ""));
            let is_of_package = |(folder, _): (&str, &str)| {
                ["", "shards/"].contains(&folder) || folder.starts_with("adapters/")
            };
            if path.split_once("tests/").is_some_and(is_of_package) {
                links.push((number, path.to_owned(), name.trim_matches('"').to_owned()));
            }
        }
    }
    links
}

/// Whether a source has a test of this name.
fn has_test(source: &str, name: &str) -> bool {
    Source::new("", source).tests().any(|(_, known)| known == name)
}

/// What is guaranteed, as the README says it.
fn guarantees() -> (usize, String) {
    let text = text_of("README.md");
    let (before, section) = text.split_once("## What is guaranteed\n").expect("it has the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    (before.lines().count() + 1, section.to_owned())
}

#[test]
fn each_guarantee_names_a_test_that_is_there() {
    let (first, section) = guarantees();
    let links = links_to_tests(&section);
    let is_missing = |(_, path, name): &(usize, String, String)| {
        let source = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
            .unwrap_or_default();
        name.is_empty() || !has_test(&source, name)
    };
    let missing = links.iter().filter(|link| is_missing(link));
    let shown = missing.map(|(line, path, name)| (format!("{path} {name}"), first + line));
    let missing: Vec<_> = shown.collect();
    assert!(missing.is_empty(), "these name no test that is there, by line: {missing:?}");
    let items = section.split("\n- ").skip(1);
    let bare = items.filter(|item| links_to_tests(item).is_empty()).map(|item| {
        let words: Vec<_> = item.split_whitespace().take(5).collect();
        words.join(" ")
    });
    let bare: Vec<_> = bare.collect();
    assert!(bare.is_empty(), "these lead to no test: {bare:?}");
    assert!(links.len() >= 8, "{links:?}");
}

#[test]
fn link_to_a_test_that_is_gone_is_found() {
    let text = "- [A](tests/a.rs \"a_b_c\"), and [B](tests/b.rs).\n\
                - [C](c.md), [D](shards/tests/d.rs \"d\"), [E](adapters/e/README.md)\n\
                - [F](adapters/f/tests/f.rs \"f\"), [G](benches/tests/g.rs \"g\")";
    let link = |line, path: &str, name: &str| (line, path.to_owned(), name.to_owned());
    let expected = [
        link(1, "tests/a.rs", "a_b_c"),
        link(1, "tests/b.rs", ""),
        link(2, "shards/tests/d.rs", "d"),
        link(3, "adapters/f/tests/f.rs", "f"),
    ];
    assert_eq!(links_to_tests(text), expected);
    let source = "#[test]\nfn a_b_c() {\n}\n\nfn a_b() {\n}\n";
    assert!(has_test(source, "a_b_c") && !has_test(source, "a_b") && !has_test(source, "b_c"));
}

//! The sources that are published have no let chains, which came after the least version of Rust
//! that their manifests name. The compiler of that version, in `.ci/run msrv`, finds all else.

use super::{ADAPTERS, SERVICE, SHARD, Source, check, sources};

/// The end of a condition at the beginning of a text, and whether a `&&` joins a `let` in it to the
/// rest. The braces of a pattern are a part of the condition.
fn has_chain(text: &str) -> bool {
    let (mut depth, mut is_joined) = (0_i32, false);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ';' | '}' if depth <= 0 => break,
            '{' if depth <= 0 => {
                let pattern = rest[1..].split_once('}').filter(|(inner, _)| !inner.contains('{'));
                match pattern.filter(|(_, after)| after.trim_start().starts_with("= ")) {
                    Some((_, after)) => rest = after,
                    None => break,
                }
                continue;
            }
            '&' if depth == 0 && rest.starts_with("&& ") => is_joined = true,
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    let condition = &text[..text.len() - rest.len()];
    is_joined && condition.split_whitespace().any(|word| word == "let")
}

/// The lines of a source on which a condition with a let chain begins.
fn let_chains(source: &Source) -> Vec<(String, usize)> {
    let code: Vec<_> = source.code().collect();
    let mut places = Vec::new();
    for (at, (number, line)) in code.iter().enumerate() {
        let words = line.match_indices("if ").chain(line.match_indices("while "));
        let begins = words.filter(|(at, _)| line[..*at].trim_end().len() < *at || *at == 0);
        for (begin, word) in begins {
            let lines = code[at + 1..].iter().take(12).map(|(_, line)| line.trim());
            let text: Vec<_> = std::iter::once(&line[begin + word.len()..]).chain(lines).collect();
            if has_chain(&text.join(" ")) {
                places.push((source.path.clone(), *number));
            }
        }
    }
    places
}

#[test]
fn published_sources_have_no_let_chain() {
    let mut sources = sources(&[SERVICE, SHARD, ADAPTERS]);
    sources.retain(|source| !source.path.contains("/tests/"));
    check("Rust 1.85 has no let chains", sources.iter().flat_map(let_chains));
}

#[test]
fn let_chain_is_found_wherever_its_let_stands() {
    let cases = [
        ("if let Some(a) = b && c {", 1),
        ("    if a\n        && let Some(b) = c\n    {\n", 1),
        ("let a = if let B { c, .. } = d\n    && e {", 1),
        ("while a > 0 && let Some(b) = c {", 1),
        ("if let Some(a) = b { a && c } else { d }", 0),
        ("if let Some(a) = b(c && d) {", 0),
        ("if a && b {\n    let c = d;\n}", 0),
        ("let a = verify && let_it;", 0),
        ("if a && b {\n    let C { d } = e;\n}", 0),
        ("Some(a) if b && c => {\n    let d = e;", 0),
    ];
    for (text, expected) in cases {
        let source = Source::new("src/x.rs", text);
        assert_eq!(let_chains(&source).len(), expected, "{text}");
    }
}

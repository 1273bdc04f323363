//! The guide `statistics` lists each event of `tracing` in the sources, and lists no other.

use std::collections::BTreeSet;

use super::{ADAPTERS, SERVICE, SHARD, Source, sources, text_of};

/// The macros by which the sources emit events.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// All sources of the packages, without comments.
fn emitting() -> Vec<String> {
    let mut sources = sources(&[SERVICE, SHARD, ADAPTERS]);
    sources.retain(|source| !source.path.starts_with(ADAPTERS) || source.path.contains("/src/"));
    let code = |source: Source| -> Vec<String> {
        let lines = source.text.lines().filter(|line| !line.trim_start().starts_with("//"));
        lines.map(str::to_owned).collect()
    };
    sources.into_iter().map(|source| code(source).join("\n")).collect()
}

/// The arguments of a macro call, split at commas outside of strings and brackets. `text` begins
/// behind the opening bracket.
fn arguments(text: &str) -> Vec<String> {
    let (mut arguments, mut argument) = (Vec::new(), String::new());
    let (mut depth, mut is_string) = (0, false);
    for c in text.chars() {
        match c {
            '"' => is_string = !is_string,
            ')' if !is_string && depth == 0 => break,
            '(' if !is_string => depth += 1,
            ')' if !is_string => depth -= 1,
            _ => {}
        }
        if c == ',' && !is_string && depth == 0 {
            arguments.push(std::mem::take(&mut argument));
        } else {
            argument.push(c);
        }
    }
    arguments.push(argument);
    arguments.retain(|argument| !argument.trim().is_empty());
    arguments
}

/// A string over several lines as it is at run time, without its quotes.
fn unquoted(text: &str) -> String {
    let lines = text.trim().trim_matches('"').split("\\\n");
    lines.enumerate().map(|(n, line)| if n == 0 { line } else { line.trim_start() }).collect()
}

/// The entry of the guide for an event with these arguments, after the target in brackets.
fn entry(level: &str, arguments: &[String]) -> String {
    let (mut target, mut name, mut message) = (String::new(), String::new(), String::new());
    let mut fields = Vec::new();
    for argument in arguments.iter().map(|argument| argument.trim()) {
        if let Some(text) = argument.strip_prefix("target:") {
            target = unquoted(text);
        } else if let Some(text) = argument.strip_prefix("name:") {
            name = unquoted(text);
        } else if argument.starts_with('"') {
            message = unquoted(argument);
        } else {
            let field = argument.split('=').next().unwrap_or_default();
            fields.push(format!("`{}`", field.trim().trim_start_matches(['%', '?'])));
        }
    }
    if message == "{text}" {
        message = "the sentence of the warning".into();
    }
    let fields = match fields.len() {
        0 => String::new(),
        1 => format!(" Field: {}.", fields[0]),
        _ => format!(" Fields: {}.", fields.join(", ")),
    };
    format!("[{target}] `{name}`, {level}: {message}.{fields}")
}

/// The entries of the guide's list of events, each on one line and after its target in brackets. A
/// heading names the target of the entries below it.
fn entries(events: &str) -> Vec<String> {
    let (mut target, mut entries) = (String::new(), Vec::<String>::new());
    for line in events.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            heading.trim_matches('`').clone_into(&mut target);
        } else if let Some(entry) = line.strip_prefix("- ") {
            entries.push(format!("[{target}] {entry}"));
        } else if let (Some(rest), Some(entry)) = (line.strip_prefix("  "), entries.last_mut()) {
            *entry += " ";
            *entry += rest;
        }
    }
    entries
}

#[test]
fn guide_lists_each_event_of_the_sources_and_no_other() {
    let mut emitted = Vec::new();
    for text in emitting() {
        let calls = text.matches("tracing::").count();
        let before = emitted.len();
        for level in LEVELS {
            let call = format!("tracing::{level}!(");
            let found = text.split(&call).skip(1);
            emitted.extend(found.map(|rest| entry(level, &arguments(rest))));
        }
        assert_eq!(emitted.len() - before, calls, "each use of `tracing` is an event by its path");
    }
    let guide = text_of("src/guide/statistics.md");
    let (_, events) = guide.split_once("# Events\n").expect("the guide has a list of events");
    let listed = entries(events);
    let (emitted_set, listed_set): (BTreeSet<_>, BTreeSet<_>) =
        (emitted.iter().collect(), listed.iter().collect());
    let missing: Vec<_> = emitted_set.difference(&listed_set).collect();
    let unknown: Vec<_> = listed_set.difference(&emitted_set).collect();
    assert!(missing.is_empty(), "the guide lacks these events:\n{missing:#?}");
    assert!(unknown.is_empty(), "no source emits these events of the guide:\n{unknown:#?}");
    assert_eq!(emitted.len(), listed.len(), "the guide lists each event once");

    let name = |entry: &str| entry.split('`').nth(1).unwrap_or_default().to_owned();
    let names: BTreeSet<_> = listed.iter().map(|entry| name(entry)).collect();
    assert_eq!(names.len(), listed.len(), "each event has a name of its own");
    for entry in &listed {
        assert!(entry.starts_with("[corewheel::"), "the target is the crate's: {entry}");
        assert_ne!(name(entry), "", "the event has a name: {entry}");
    }
}

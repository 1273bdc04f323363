//! What connections and the containers of this crate may call that a part of a user may not.

use std::collections::BTreeSet;

use super::{SERVICE, sources};

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
        &["orders", "tally", "add_population", "begin_poll", "note_ready", "count_poll"],
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

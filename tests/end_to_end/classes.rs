//! The example `classes` on every runtime. It checks its own sums.

use std::process::Command;

use crate::server::{example, run_to_its_end};

fn check(runtime: &str) {
    let output = run_to_its_end(Command::new(example("classes")).args([runtime, "1000"]));
    let said = String::from_utf8(output.stdout).unwrap();
    let complained = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{runtime}: {said}{complained}");
    assert!(said.ends_with("it adds up\n"), "{runtime}: {said}");
    for class in ["request", "idle", "lease"] {
        let of_class = |line: &&str| line.split_whitespace().nth(1) == Some(class);
        assert_eq!(said.lines().filter(of_class).count(), 3, "{runtime}: {said}");
    }
    assert!(!said.contains(" 0 refused by the full channel"), "{runtime}: {said}");
}

#[test]
fn sums_of_three_classes_add_up() {
    for runtime in ["auto", "tokio", "thread"] {
        check(runtime);
    }
}

#[test]
fn classes_example_refuses_invalid_arguments() {
    for arguments in [&["fibres"][..], &["thread", "many"], &["thread", "1000000"]] {
        let output = run_to_its_end(Command::new(example("classes")).args(arguments));
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    }
}

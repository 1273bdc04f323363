//! Examples that end by themselves and check themselves.

use std::process::Command;

use crate::server::{command_of, run_to_its_end};
use crate::{World, in_every_world};

/// What it says, if it ends well.
fn output(world: World, command: &mut Command) -> Vec<String> {
    let output = run_to_its_end(command);
    let (said, complained) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(said).unwrap();
    assert!(output.status.success(), "{world:?}: {said}{complained}");
    let lines: Vec<_> = said.lines().map(str::to_owned).collect();
    let runtime = lines[0].strip_prefix("runtime: ").unwrap();
    assert_eq!(runtime.split(' ').next(), Some(world.expected), "{world:?}");
    lines
}

/// The numbers in the line that begins like this.
fn numbers(lines: &[String], begins: &str) -> Vec<u64> {
    let line = lines.iter().find_map(|line| line.strip_prefix(begins));
    let line = line.unwrap_or_else(|| panic!("{begins}? {lines:?}"));
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn every_request_is_answered_or_times_out_after_its_retries_and_late_answers_are_dropped() {
    in_every_world(|world| {
        let mut command = command_of(world, "requests");
        command.args(["--runtime", world.runtime, "--requests", "3000"]);
        let lines = output(world, &mut command);
        let requests = numbers(&lines, "requests: ");
        let &[answered, timed_out] = &*requests else { panic!("{lines:?}") };
        assert_eq!(answered + timed_out, 3_000, "{world:?}");
        let attempts = numbers(&lines, "attempts: ");
        let &[attempts, retried] = &*attempts else { panic!("{lines:?}") };
        assert_eq!(attempts, 3_000 + retried, "{world:?}");
        // One in four is unlucky, and one in 64 as often as it may be.
        assert!(answered > 0 && timed_out > 0 && retried > 0, "{world:?}: {lines:?}");
        assert!(numbers(&lines, "late answers dropped: ")[0] > 0, "{world:?}: {lines:?}");
        assert_eq!(lines.last().unwrap(), "it adds up", "{world:?}");
    });
}

#[test]
fn idle_connections_go_under_pressure_and_not_without() {
    in_every_world(|world| {
        let lines = output(world, command_of(world, "overload").arg(world.runtime));
        assert!(lines.contains(&"scale 1: nobody went".to_owned()), "{world:?}: {lines:?}");
        // By the count of those that went, which is the example's to check as well.
        let gone = numbers(&lines, "scale 0: ");
        assert_eq!(gone[0], 100_000, "{world:?}: {lines:?}");
        let gone_too = numbers(&lines, "active ones that went too: ");
        let left = numbers(&lines, "scale 1: nobody went; ");
        assert_eq!(left[0] + gone_too[0], 1_000, "{world:?}: {lines:?}");
    });
}

//! The examples `requests` and `overload`, which check their own counts.

use std::process::Command;

use crate::server::{command_of, run_to_its_end};
use crate::{World, in_every_world_of};

/// The output lines of an example that must succeed.
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
fn requests_are_answered_or_time_out_after_their_retries() {
    // These examples do not know compio.
    in_every_world_of(&["auto", "glommio", "tokio"], |world| {
        let mut command = command_of(world, "requests");
        command.args(["--runtime", world.runtime, "--requests", "3000"]);
        let lines = output(world, &mut command);
        let requests = numbers(&lines, "requests: ");
        let &[answered, timed_out] = &*requests else { panic!("{lines:?}") };
        assert_eq!(answered + timed_out, 3_000, "{world:?}");
        let attempts = numbers(&lines, "attempts: ");
        let &[attempts, retried] = &*attempts else { panic!("{lines:?}") };
        assert_eq!(attempts, 3_000 + retried, "{world:?}");
        // One attempt in four times out, and so do all attempts of one request in 64.
        assert!(answered > 0 && timed_out > 0 && retried > 0, "{world:?}: {lines:?}");
        assert!(numbers(&lines, "late answers dropped: ")[0] > 0, "{world:?}: {lines:?}");
        assert_eq!(lines.last().unwrap(), "it adds up", "{world:?}");
    });
}

#[test]
fn idle_connections_are_closed_at_scale_0_and_kept_at_scale_1() {
    // These examples do not know compio.
    in_every_world_of(&["auto", "glommio", "tokio"], |world| {
        let lines = output(world, command_of(world, "overload").arg(world.runtime));
        assert!(lines.contains(&"scale 1: no connection ended".to_owned()), "{world:?}: {lines:?}");
        // The example checks the count of closed connections itself too.
        let idle = numbers(&lines, "scale 0: ");
        assert_eq!(idle[0], 100_000, "{world:?}: {lines:?}");
        let active = numbers(&lines, "scale 1: no connection ended; ");
        assert_eq!(active[0] + active[1], 1_000, "{world:?}: {lines:?}");
    });
}

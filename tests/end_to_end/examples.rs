//! Examples that end by themselves and report by their exit status whether their checks hold.

use std::process::Command;

use crate::server::{command_of, run_to_its_end};
use crate::{World, at_once, worlds};

/// The output of an example that must succeed.
fn output(command: &mut Command) -> String {
    let output = run_to_its_end(command);
    let (said, failed) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(said).unwrap();
    assert!(output.status.success(), "{:?}: {said}{failed}", output.status);
    said
}

#[test]
fn examples_that_check_themselves_succeed_with_and_without_io_uring() {
    let all = "all of them came to their end\n";
    let rows = [
        ("delay_queue", "", all),
        ("jobs", "", all),
        ("keyed", "", all),
        ("retransmissions", "", all),
        ("periodic", "on tokio\n", "task: 5050\n"),
        ("moving", "on tokio: ", "the accounts balance\n"),
    ];
    // Without `io_uring` they run on tokio.
    for forbidden in [None, Some("EPERM"), Some("ENOSYS")] {
        at_once(rows, |(name, on_tokio, end)| {
            let world = World { forbidden, runtime: "auto", expected: "any" };
            let said = output(&mut command_of(world, name));
            assert!(said.ends_with(end), "{forbidden:?}: {said}");
            assert!(forbidden.is_none() || said.starts_with(on_tokio), "{forbidden:?}: {said}");
        });
    }
}

/// Runs an example with these arguments in all worlds that it knows, and checks its lines.
fn check_lines(name: &str, arguments: &[&str], check: impl Fn(&[String]) + Sync) {
    // The examples do not know compio.
    at_once(worlds().filter(|world| world.runtime != "compio"), |world| {
        let mut command = command_of(world, name);
        let arguments =
            arguments.iter().map(|it| if *it == "RUNTIME" { world.runtime } else { it });
        let said = output(command.args(arguments));
        let lines: Vec<_> = said.lines().map(str::to_owned).collect();
        let runtime = lines[0].strip_prefix("runtime: ").unwrap();
        assert_eq!(runtime.split(' ').next(), Some(world.expected));
        check(&lines);
    });
}

/// The numbers in the line that begins like this.
fn numbers(lines: &[String], begins: &str) -> Vec<u64> {
    let line = lines.iter().find_map(|line| line.strip_prefix(begins));
    let line = line.unwrap_or_else(|| panic!("{begins}? {lines:?}"));
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[test]
fn requests_are_answered_or_time_out_after_their_retries() {
    check_lines("requests", &["--runtime", "RUNTIME", "--requests", "3000"], |lines| {
        let requests = numbers(lines, "requests: ");
        let &[answered, timed_out] = &*requests else { panic!("{lines:?}") };
        assert_eq!(answered + timed_out, 3_000);
        let attempts = numbers(lines, "attempts: ");
        let &[attempts, retried] = &*attempts else { panic!("{lines:?}") };
        assert_eq!(attempts, 3_000 + retried);
        // One attempt in four times out, and so do all attempts of one request in 64.
        assert!(answered > 0 && timed_out > 0 && retried > 0, "{lines:?}");
        assert!(numbers(lines, "late answers dropped: ")[0] > 0, "{lines:?}");
        assert_eq!(lines.last().unwrap(), "it adds up");
    });
}

#[test]
fn idle_connections_are_closed_at_scale_0_and_kept_at_scale_1() {
    check_lines("overload", &["RUNTIME"], |lines| {
        assert!(lines.contains(&"scale 1: no connection ended".to_owned()), "{lines:?}");
        // The example checks the count of closed connections itself too.
        assert_eq!(numbers(lines, "scale 0: ")[0], 100_000, "{lines:?}");
        let active = numbers(lines, "scale 1: no connection ended; ");
        assert_eq!(active[0] + active[1], 1_000, "{lines:?}");
    });
}

//! The example that moves connections between cores, to its end.

use std::process::Command;

use crate::server::{example, run_to_its_end};

fn check(mut command: Command, expected: Option<&str>) {
    let output = run_to_its_end(command.env_remove("RUST_LOG"));
    let said = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{error}");
    assert!(said.ends_with("the accounts balance\n"), "{said}\n{error}");
    if let Some(runtime) = expected {
        assert!(said.starts_with(&format!("on {runtime}: ")), "{said}");
    }
}

#[test]
fn connections_that_move_between_cores_take_their_timers_along() {
    check(Command::new(example("moving")), None);
    let mut forbidden = Command::new(example("without_io_uring"));
    forbidden.arg("EPERM").arg(example("moving"));
    check(forbidden, Some("tokio"));
}

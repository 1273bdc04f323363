//! The example of periodic work runs to its end and finds everything as it says.

use std::process::Command;

use crate::server::{example, run_to_its_end};

#[test]
fn periodic_work_is_as_it_says_with_and_without_io_uring() {
    for forbidden in [None, Some("EPERM")] {
        let mut command = match forbidden {
            None => Command::new(example("periodic")),
            Some(errno) => {
                let mut command = Command::new(example("without_io_uring"));
                command.arg(errno).arg(example("periodic"));
                command
            }
        };
        let output = run_to_its_end(&mut command);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{forbidden:?}: {said} {output:?}");
        assert!(said.ends_with("task: 5050\n"), "{forbidden:?}: {said}");
        assert!(forbidden.is_none() || said.starts_with("on tokio\n"), "{forbidden:?}: {said}");
    }
}

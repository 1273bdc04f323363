//! The examples that end by themselves, and say by their exit status whether what they show holds.

use std::process::{Command, Output};
use std::thread;

use crate::server::{example, run_to_its_end};

/// What `io_uring` answers, if it is forbidden.
const WORLDS: [Option<&str>; 3] = [None, Some("EPERM"), Some("ENOSYS")];

fn check(name: &str) {
    thread::scope(|scope| {
        for forbidden in WORLDS {
            scope.spawn(move || {
                let mut command = match forbidden {
                    None => Command::new(example(name)),
                    Some(errno) => {
                        let mut command = Command::new(example("without_io_uring"));
                        command.arg(errno).arg(example(name));
                        command
                    }
                };
                let Output { status, stdout, stderr } = run_to_its_end(&mut command);
                let said = String::from_utf8_lossy(&stdout);
                let failed = String::from_utf8_lossy(&stderr);
                assert!(status.success(), "{name}, {forbidden:?}: {status}\n{said}\n{failed}");
                assert!(said.ends_with("all of them came to their end\n"), "{name}: {said}");
            });
        }
    });
}

#[test]
fn requests_are_tried_again_with_a_back_off() {
    check("delay_queue");
}

#[test]
fn sessions_expire_alone_and_end_as_a_group() {
    check("keyed");
}

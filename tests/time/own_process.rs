//! Tests in a process of their own, and system calls that are refused there.

use std::env;
use std::process::Command;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::within_patience;

/// The name of the test that a process runs.
const VARIABLE: &str = "COREWHEEL_TIME_TEST";

/// Runs a test in a process of its own. `name` is the name by which the test harness knows it.
pub(crate) fn in_own_process(name: &str, test: impl FnOnce() + Send + 'static) {
    if env::var(VARIABLE).as_deref() == Ok(name) {
        return within_patience(test);
    }
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.args([name, "--exact"]).env(VARIABLE, name).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let is_passed = output.status.success() && printed.contains("1 passed");
    assert!(is_passed, "{}\n{printed}", output.status);
}

/// Applies an action to system calls of this thread, and of the threads that it starts.
pub(crate) fn filter(calls: &[i64], action: SeccompAction) {
    let calls = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch = env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, action, arch).unwrap();
    let filter: BpfProgram = filter.try_into().unwrap();
    apply_filter(&filter).unwrap();
}

/// Has the system refuse each thread that this thread starts.
pub(crate) fn refuse_threads() {
    let error = SeccompAction::Errno(libc::EAGAIN.unsigned_abs());
    filter(&[libc::SYS_clone3, libc::SYS_clone], error);
}

//! System calls that are refused in a process of a test's own.

use std::env;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

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

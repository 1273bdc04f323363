//! The programs of the examples, which the tests run.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The path of an example. Builds the example if it is not built yet.
pub(crate) fn example(name: &str) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let test = env::current_exe().unwrap();
    let profile = test.ancestors().nth(2).expect("tests lie in target/<profile>/deps");
    let path = profile.join("examples").join(name);
    if !path.exists() {
        let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--example", name]).arg("--target-dir");
        build.arg(profile.parent().expect("a profile lies in the target folder"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "{name} cannot be built");
    }
    path
}

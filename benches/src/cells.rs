//! Programs that measure one cell of a table each, in a process of their own, and print its values
//! as JSON. They are packages of their own, since they are built without the features of tests that
//! the peers of this crate bring, and are built before they are run.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::report::Measured;

/// The programs of a package, as cargo has built them.
#[derive(Clone, Debug)]
pub struct Built(Vec<Value>);

impl Built {
    /// Builds a package. With tokio's alternative timer it has a folder of its own, so that neither
    /// replaces what the other has built.
    ///
    /// # Errors
    ///
    /// Cargo cannot build it.
    pub fn new(package: &str, is_unstable: bool) -> Result<Self, Box<dyn Error>> {
        let this = env::current_exe()?;
        let target = this.ancestors().nth(2).ok_or("this binary lies in no target folder")?;
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command
            .args(["build", "--release", "--locked", "--package", package])
            .arg("--message-format=json-render-diagnostics")
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stderr(Stdio::inherit());
        if is_unstable {
            let flags = env::var("RUSTFLAGS").unwrap_or_default() + " --cfg tokio_unstable";
            command.env("RUSTFLAGS", flags).arg("--target-dir").arg(target.join("tokio_unstable"));
        } else {
            command.arg("--target-dir").arg(target);
        }
        let output = command.output()?;
        if !output.status.success() {
            return Err(format!("cargo could not build the package `{package}`").into());
        }
        let messages = String::from_utf8(output.stdout)?;
        Ok(Self(messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()))
    }

    /// The path of a program.
    ///
    /// # Errors
    ///
    /// The package has no such program.
    pub fn program(&self, name: &str) -> Result<PathBuf, String> {
        let mut artifacts = self.0.iter().filter(|artifact| artifact["target"]["name"] == name);
        let path = artifacts.find_map(|artifact| artifact["executable"].as_str());
        path.map(PathBuf::from).ok_or_else(|| format!("cargo named no executable {name}"))
    }

    /// The name and the version of a package that was built, this one or a dependency.
    pub fn version(&self, package: &str) -> Option<String> {
        let mut ids = self.0.iter().filter_map(|artifact| artifact["package_id"].as_str());
        let version =
            ids.find_map(|id| id.rsplit_once('#')?.1.strip_prefix(package)?.strip_prefix('@'));
        version.map(|version| format!("{package} {version}"))
    }
}

/// Measures a cell.
///
/// # Panics
///
/// The program fails, or prints something else.
pub fn measure(program: &Path, arguments: &[String]) -> Vec<Measured> {
    let output = Command::new(program).args(arguments).stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(output.status.success(), "{arguments:?} could not be measured: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("a cell prints its values")
}

/// The compiler's name and version.
///
/// # Errors
///
/// It cannot be started.
pub fn compiler() -> Result<String, Box<dyn Error>> {
    let compiler = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split(" (").next().unwrap_or(&text).trim().to_owned())
}

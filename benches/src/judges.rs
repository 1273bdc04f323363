//! Examples that are judged by programs of others: scripts in `judge`, which start the servers,
//! attack them, and tell each figure as a line of JSON.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::cells::Built;
use crate::report::{Figure, Report};

/// A line of a judge.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    /// What is said before a table, or before the next one.
    Note {
        note: String,
        table: Option<String>,
    },
    /// What is said before all tables.
    Text {
        text: String,
    },
    Figure(Figure),
}

/// Builds a program of a package, and has a script judge it.
///
/// # Errors
///
/// Cargo cannot build it, or the judge fails.
pub fn judge(
    script: &str,
    package: &str,
    program: &str,
    arguments: &[String],
) -> Result<Report, Box<dyn Error>> {
    let program = Built::new(package, false)?.program(program)?;
    let script = format!("{}/judge/{script}.py", env!("CARGO_MANIFEST_DIR"));
    let mut judge = Command::new("python3");
    let mut judge =
        judge.arg(script).arg(program).args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut report = Report::default();
    let mut pending = None;
    for line in BufReader::new(judge.stdout.take().ok_or("it is piped")?).lines() {
        match serde_json::from_str(&line?)? {
            Told::Note { note, table: None } => pending = Some(note),
            Told::Note { note, table: Some(table) } => drop(report.notes.insert(table, note)),
            Told::Figure(figure) => {
                if let Some(note) = pending.take() {
                    report.notes.insert(figure.table.clone(), note);
                }
                report.add(figure);
            }
            Told::Text { text } => report.text = text,
        }
    }
    let status = judge.wait()?;
    if status.success() { Ok(report) } else { Err(format!("the judge: {status}").into()) }
}

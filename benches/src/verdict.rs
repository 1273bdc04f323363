//! Targets for what is measured, and whether they were met.

use std::fmt;

use serde_json::{Value, json};

/// A target, and whether it was met.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The target.
    pub target: String,
    /// The measured value.
    pub measured: f64,
    /// Whether it was met.
    pub met: bool,
}

impl Verdict {
    /// A target that a value meets if it is at most `limit`. The limit is added to the text.
    pub fn at_most(target: &str, measured: f64, limit: f64) -> Self {
        Self { target: format!("{target} <= {limit}"), measured, met: measured <= limit }
    }

    /// The target with the value, for a report that programs read.
    pub fn to_json(&self) -> Value {
        let Self { target, measured, met } = self;
        json!({ "target": target, "measured": measured, "met": met })
    }
}

/// Writes a table of targets, as Markdown; nothing if there is none.
///
/// # Errors
///
/// `text` does not take it.
pub fn write_markdown(text: &mut impl fmt::Write, verdicts: &[Verdict]) -> fmt::Result {
    if verdicts.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n| target | measured | |\n|---|--:|---|")?;
    for Verdict { target, measured, met } in verdicts {
        let met = if *met { "met" } else { "missed" };
        writeln!(text, "| {target} | {measured:.2} | {met} |")?;
    }
    Ok(())
}

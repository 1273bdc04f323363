//! The process that measures a cell.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::error::Error;
use std::io::{self, Write as _};
use std::{env, panic, process};

use crate::measure;

/// Measures the cell that the argument describes, prints its values as JSON, and exits. `allocated`
/// returns how many bytes are allocated, if the process counts them.
///
/// # Errors
///
/// The argument describes no cell, or [`measure`] returns an error.
pub fn print(allocated: Option<fn() -> usize>) -> Result<(), Box<dyn Error>> {
    // Tasks that nothing waits for must not panic unseen.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::exit(101);
    }));
    let cell = env::args().nth(1).ok_or("run the command `timeouts` of corewheel-bench instead")?;
    println!("{}", serde_json::to_string(&measure(serde_json::from_str(&cell)?, allocated)?)?);
    io::stdout().flush()?;
    // A million pending timeouts are not cancelled one by one.
    process::exit(0);
}

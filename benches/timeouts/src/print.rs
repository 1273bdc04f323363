//! The process that measures a cell.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::error::Error;
use std::io::{self, Write as _};
use std::{env, panic, process};

use serde_json::{Map, Value};

use crate::{Cell, Measured, measure};

/// Measures the cell that the arguments describe, prints its values as JSON, and exits. `allocated`
/// returns how many bytes are allocated, if the process counts them.
///
/// # Errors
///
/// The arguments describe no cell, or [`measure`] returns an error.
pub fn print(allocated: Option<fn() -> usize>) -> Result<(), Box<dyn Error>> {
    // Tasks that nothing waits for must not panic unseen.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::exit(101);
    }));
    let arguments: Vec<String> = env::args().skip(1).collect();
    let measured = measure(Cell::from_arguments(&arguments)?, allocated)?;
    let entry = |Measured { quantity, value }| (quantity, Value::from(value));
    println!("{}", Value::Object(measured.into_iter().map(entry).collect::<Map<_, _>>()));
    io::stdout().flush()?;
    // A million pending timeouts are not cancelled one by one.
    process::exit(0);
}

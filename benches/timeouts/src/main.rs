//! Measures one cell, which the arguments describe, and prints its values as JSON. The binary
//! `timeouts` of `corewheel-bench` runs it.
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::error::Error;
use std::io::{self, Write as _};
use std::{env, panic, process};

use corewheel_timeouts::{Cell, Measured, measure};
use serde_json::{Map, Value};

fn main() -> Result<(), Box<dyn Error>> {
    // Tasks that nothing waits for must not panic unseen.
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::exit(101);
    }));
    let arguments: Vec<String> = env::args().skip(1).collect();
    let measured = measure(Cell::from_arguments(&arguments)?)?;
    let entry = |Measured { quantity, value }| (quantity, Value::from(value));
    println!("{}", Value::Object(measured.into_iter().map(entry).collect::<Map<_, _>>()));
    io::stdout().flush()?;
    // A million pending timeouts are not cancelled one by one.
    process::exit(0);
}

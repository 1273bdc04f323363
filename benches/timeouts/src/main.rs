//! Measures one cell, which the arguments describe, and prints its values as JSON. The command
//! `timeouts` of `corewheel-bench` runs it.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    corewheel_timeouts::print(None)
}

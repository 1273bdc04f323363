//! The statistics page in a headless Chromium: what it shows, in each scenario.
//!
//! Where no Chromium is installed, each test says that it is skipped. Waits have a limit of a
//! minute, which only a defect reaches.
#![cfg(all(unix, not(corewheel_loom)))]
#![allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]

mod browser;
#[path = "../end_to_end/built.rs"]
mod built;
mod scenes;
mod server;
mod shown;
mod troubles;

use std::time::Duration;

/// The longest wait of a test. Far longer than any operation takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

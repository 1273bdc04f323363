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

use corewheel_test_support::{PATIENCE, ms};

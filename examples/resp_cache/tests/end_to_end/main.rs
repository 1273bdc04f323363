//! The server from outside: the process, client libraries of others, and sockets that misbehave.
#![allow(clippy::print_stdout, reason = "a test that is skipped says so")]

mod commands;
mod expiry;
mod libraries;
mod limits;
mod process;
mod server;

//! The server from outside: the process, a client library of others, and sockets that misbehave.

mod commands;
mod expiry;
mod hostile;
mod process;
mod server;

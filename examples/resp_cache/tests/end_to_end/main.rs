//! The server from outside: the process, a client library of others, and sockets that misbehave.

mod clients;
mod commands;
mod expiry;
mod hostile;
mod process;
mod server;
mod transactions;

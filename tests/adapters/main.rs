//! The adapters for hyper, tower and quinn, and streams with their timeouts, with real clients over
//! real sockets.

mod quinn;

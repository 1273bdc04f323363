//! The echo server as its users see it.

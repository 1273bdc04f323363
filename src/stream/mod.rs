//! A stream with its timeouts.

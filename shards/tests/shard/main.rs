//! A shard, seen from outside: its conformance test by test, and histories of operations that are
//! compared with an ordered map.

mod checked_shard;
mod conformance;
mod exhaustive;
mod model;

/// The number in an environment variable; `None` if it is not set.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}; set it to a number")))
}

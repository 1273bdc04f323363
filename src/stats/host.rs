//! What the system says about the thread of a shard, read by the reader.
//!
//! On Linux `/proc/self/task/TID/schedstat` has the time for which a thread ran and the time for
//! which it was ready and waited for a processor. Elsewhere, and in a kernel without these
//! statistics, nothing is known.
//!
//! Cost: a file opened and read for each thread and reading.

use std::fs;
use std::num::NonZeroUsize;
use std::sync::OnceLock;

/// How many processors the process may use.
pub(crate) fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get))
}

/// The number of the calling thread; `None` if the system does not say it.
pub(crate) fn this_thread() -> Option<u32> {
    let path = fs::read_link("/proc/thread-self").ok()?;
    path.file_name()?.to_str()?.parse().ok()
}

/// For how long a thread of this process has run, and for how long it was ready and waited for a
/// processor, in nanoseconds; `None` if the system does not say it.
pub(crate) fn times_of(thread: u32) -> Option<(u64, u64)> {
    parse(&fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).ok()?)
}

/// Whether this process has a thread with a number. False also if the system does not say it.
pub(crate) fn has_thread(thread: u32) -> bool {
    fs::metadata(format!("/proc/self/task/{thread}")).is_ok()
}

fn parse(schedstat: &str) -> Option<(u64, u64)> {
    let mut fields = schedstat.split_ascii_whitespace().map(str::parse);
    Some((fields.next()?.ok()?, fields.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_gives_the_first_two_fields() {
        assert_eq!(parse("8314 77 12\n"), Some((8_314, 77)));
        for malformed in ["", "5", "x 7 1", "5 x 1"] {
            assert_eq!(parse(malformed), None, "{malformed:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn thread_that_computes_has_run() {
        let Some(thread) = this_thread() else { return };
        let Some((before, _)) = times_of(thread) else { return };
        let mut state = 1_u64;
        // The kernel updates the time at its own ticks.
        while times_of(thread).is_some_and(|(ran, _)| ran == before) {
            state = std::hint::black_box(state.wrapping_mul(3));
        }
    }
}

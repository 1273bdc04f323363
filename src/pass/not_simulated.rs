//! The passes of simulated runtimes, in builds in which no runtime is simulated.

use super::Runtime;

#[inline]
pub(super) fn here<O>(_ask: impl FnOnce(&dyn Runtime) -> O) -> Option<O> {
    None
}

#[cfg(any(feature = "hyper", feature = "tokio"))]
pub(super) fn spawn(_runtime: u64, _task: impl Future<Output = ()>) {}

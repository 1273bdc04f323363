//! Why a server is not ready to get connections, as the server itself says it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A function that a server has given to its statistics, which each request of `/ready` calls.
/// Returns why the server is not ready; `None` if it is.
pub(super) type Reason = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The present reasons, in the order of their functions. A function that panics is one.
pub(super) fn present(reasons: &[Reason]) -> impl Iterator<Item = String> {
    reasons.iter().filter_map(|reason| {
        let panicked = |text| Some(format!("a function of the server panicked: {text}"));
        attempt(|| reason()).unwrap_or_else(panicked)
    })
}

/// Calls a function of the user. Returns what its panic says.
pub(super) fn attempt<R>(run: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let of_literal = || panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = panic.downcast_ref::<String>().cloned().or_else(of_literal);
        // Its drop may panic, too.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(panic)));
        text.unwrap_or_else(|| "(not a message)".to_owned())
    })
}

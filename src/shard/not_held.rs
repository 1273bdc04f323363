//! A shard outside of simulations, in builds without the feature `sim`.

/// Whether turns leave requests in their lanes: they do not.
#[derive(Default)]
pub(super) struct HeldLanes {}

impl HeldLanes {
    #[expect(clippy::unused_self, reason = "it stands for the one of a simulation")]
    #[inline]
    pub(super) fn get(&self) -> bool {
        false
    }
}

//! Threads outside of simulations, in builds without the feature `sim`.

/// The number of a simulated thread: there is none.
pub(super) struct ThreadNumber;

#[expect(clippy::unused_self, reason = "it stands for the number of a simulated thread")]
impl ThreadNumber {
    #[inline]
    pub(super) fn present() -> Self {
        Self
    }

    #[inline]
    pub(super) fn is_present(&self) -> bool {
        true
    }

    #[inline]
    pub(super) fn is_simulated(&self) -> bool {
        false
    }
}

/// The thread whose lanes the commands of a handle use: the one that runs.
#[derive(Clone, Copy, Default)]
pub(super) struct CommandThread {}

impl CommandThread {
    #[expect(clippy::unused_self, reason = "it stands for the thread of a test")]
    #[inline]
    pub(super) fn run<O>(self, run: impl FnOnce() -> O) -> O {
        run()
    }
}

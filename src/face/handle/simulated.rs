//! The threads of simulations and tests, each of which reaches services in its own ways.
//!
//! Cost: a thread-local variable for each look-up of a service, in builds with the feature `sim`.

use std::cell::Cell;

thread_local! {
    /// The number of the simulated thread that runs; 0 outside of a simulation.
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The number of a simulated thread; 0 outside of a simulation.
#[derive(Clone, Copy)]
pub(super) struct ThreadNumber(u32);

impl ThreadNumber {
    /// That of the thread that runs.
    #[inline]
    pub(super) fn present() -> Self {
        Self(THREAD.get())
    }

    #[inline]
    pub(super) fn is_present(self) -> bool {
        self.0 == THREAD.get()
    }

    pub(super) fn is_simulated(self) -> bool {
        self.0 != 0
    }

    pub(super) fn is(self, number: u32) -> bool {
        self.0 == number
    }
}

/// The thread of a test whose lanes the commands of a handle use; 0 for the thread that runs.
#[derive(Clone, Copy, Default)]
pub(super) struct CommandThread(pub(super) u16);

impl CommandThread {
    /// Runs code as the thread.
    #[inline]
    pub(super) fn run<O>(self, run: impl FnOnce() -> O) -> O {
        if self.0 == 0 { run() } else { as_thread(number_in_test(self.0), run) }
    }
}

/// The number of a thread of a test; threads of simulations have small numbers.
pub(crate) fn number_in_test(number: u16) -> u32 {
    1 << 31 | u32::from(number)
}

/// Runs code as the simulated thread with this number, which reaches services in its own ways.
pub(crate) fn as_thread<O>(number: u32, run: impl FnOnce() -> O) -> O {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            THREAD.set(self.0);
        }
    }
    let _restore = Restore(THREAD.replace(number));
    run()
}

//! How a test has the commands of a handle use the lanes of a thread, and ends one.

use super::Handle;
use super::here::TABLE;
use super::simulated::CommandThread;

impl<T> Handle<T> {
    /// A handle whose commands go over the lanes of a thread of a test.
    pub(crate) fn of_thread(self, thread: u16) -> Self {
        Self { thread: CommandThread(thread), ..self }
    }
}

/// Ends a simulated thread, as the end of a thread does.
pub(crate) fn end_thread(number: u32) {
    let ended = TABLE.try_with(|table| table.take_gone(|reach| reach.thread.is(number)));
    drop(ended);
}

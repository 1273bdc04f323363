//! Who is to be told that a shard has ended, beside the futures that wait for its timers.

use std::cell::RefCell;
use std::rc::Weak;

use super::Core;

/// Something that holds no timer which would tell it.
pub(crate) trait Closing {
    /// The shard is closed: nothing will fire any more. Called with nothing borrowed.
    fn closed(&self);
}

/// Those that are to be told, as far as they are still there.
#[derive(Default)]
pub(super) struct CloseListeners(RefCell<Vec<Weak<dyn Closing>>>);

impl<T: Send + 'static> Core<T> {
    /// Has this told when the shard ends. It need not be taken back.
    pub(crate) fn on_close(&self, closing: Weak<dyn Closing>) {
        let mut close_listeners = self.close_listeners.0.borrow_mut();
        // Those that are gone go before there would be room for more.
        if close_listeners.len() == close_listeners.capacity() {
            close_listeners.retain(|known| known.strong_count() > 0);
        }
        close_listeners.push(closing);
    }

    pub(super) fn tell_closed(&self) {
        for closing in self.close_listeners.0.take() {
            if let Some(closing) = closing.upgrade() {
                self.contain(move || closing.closed());
            }
        }
    }
}

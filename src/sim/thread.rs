//! A thread of the test.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use crate::face::handle::{Handle, simulated, test_thread};
use crate::service::TimerService;

/// A thread of the test, as a service sees it: a [`Handle`] whose commands go over lanes of its
/// own, so that one real thread can have several to a shard.
///
/// At most 65,535 of them are in use at a time. The thread ends when this is dropped, and its lanes
/// with it; one that is forgotten never ends. Its futures are those of the real thread that polls
/// them.
pub struct Thread<T: Send + 'static> {
    handle: Handle<T>,
    number: u16,
}

impl<T: Send + 'static> Thread<T> {
    /// A new thread, which has sent nothing yet.
    pub fn of(service: &TimerService<T>) -> Self {
        static LAST: Mutex<u16> = Mutex::new(0);
        let number = {
            let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
            *last = last.checked_add(1).unwrap_or(1);
            *last
        };
        Self { handle: service.handle().of_thread(number), number }
    }
}

impl<T: Send + 'static> Deref for Thread<T> {
    type Target = Handle<T>;

    fn deref(&self) -> &Handle<T> {
        &self.handle
    }
}

impl<T: Send + 'static> Drop for Thread<T> {
    fn drop(&mut self) {
        test_thread::end_thread(simulated::number_in_test(self.number));
    }
}

debug_fields!([T: Send + 'static] Thread<T>, |it| number: it.number);

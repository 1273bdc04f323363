//! Futures that are started on a shard from elsewhere.
//!
//! An executor may die of a future that panics, and may then keep all its others for ever, neither
//! run nor dropped. So what panics is caught here, and whoever waits for an output is known to the
//! shard, which lets go of them when it dies.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use slab::Slab;

use crate::contain::contain;
use crate::handle::ShardId;
use crate::timers::Timers;

/// The outputs of a shard's futures that are still to come.
#[derive(Default)]
pub(crate) struct Outputs(RefCell<Slab<Rc<dyn Abandon>>>);

impl Outputs {
    /// Tells all who wait that there will be no output.
    pub(crate) fn abandon(&self, shard: ShardId) {
        for (_, output) in self.0.take() {
            contain(shard, || output.abandon());
        }
    }
}

trait Abandon {
    fn abandon(&self);
}

impl<R> Abandon for Cell<Option<oneshot::Sender<R>>> {
    fn abandon(&self) {
        drop(self.take());
    }
}

/// Where a future leaves its output.
pub(crate) struct Output<T: Send + 'static, R> {
    timers: Timers<T>,
    index: usize,
    sender: Rc<Cell<Option<oneshot::Sender<R>>>>,
}

impl<T: Send + 'static, R: 'static> Output<T, R> {
    pub(crate) fn new(timers: Timers<T>, sender: oneshot::Sender<R>) -> Self {
        let sender = Rc::new(Cell::new(Some(sender)));
        let index = timers.core().outputs.0.borrow_mut().insert(Rc::clone(&sender) as _);
        Self { timers, index, sender }
    }

    pub(crate) fn send(self, output: R) {
        if let Some(sender) = self.sender.take() {
            // Nobody waits any more where it cannot be sent.
            drop(sender.send(output));
        }
    }
}

impl<T: Send + 'static, R> Drop for Output<T, R> {
    fn drop(&mut self) {
        // Gone already if the shard has died.
        let output = self.timers.core().outputs.0.borrow_mut().try_remove(self.index);
        drop(output);
    }
}

//! The passes of simulated runtimes.
//!
//! A simulation says which of its runtimes the calling thread runs. That runtime has the budget of
//! the task that is polled, and ends the waits when it has handed out what its sockets held.
//!
//! Why not a barrier here: the order of the simulated kernel's list of ready sockets decides, and
//! the kernel belongs to the simulation.
//!
//! Invariants: a runtime is entered only while a task of it is polled or dropped.
//!
//! Cost: a thread-local variable for each question, in builds with the feature `sim`.

mod spawns;

use std::cell::RefCell;
use std::mem;
use std::sync::Arc;
use std::task::Waker;

use super::{Asked, Wait};
use crate::link::nursery::Relay;
pub(crate) use spawns::Spawns;
pub(super) use spawns::spawn;

/// Tells a runtime apart from other runtimes of the process.
pub(super) type Number = u64;

/// A simulated runtime, as its tasks see it.
pub(crate) trait Runtime: Send + Sync {
    /// Tells it apart from other runtimes of the process.
    fn number(&self) -> u64;
    /// Whether the task that is polled may do more in this poll.
    fn has_budget(&self) -> bool;
    /// Ends the wait when what the sockets hold now was handed out.
    fn ask(&self, wait: Arc<Wait>);
    /// Whether what the sockets held at a time was handed out, within the first `looks`.
    fn is_proven(&self, _looks: u64, _time: u64) -> bool {
        false
    }
    /// What wakes the futures that timers of its threads guard; `None` for one thread.
    fn relay(&self) -> Option<Arc<dyn Relay<Waker>>> {
        None
    }
}

thread_local! {
    /// The runtime that the thread runs; `None` outside of simulated runtimes.
    static HERE: RefCell<Option<Arc<dyn Runtime>>> = const { RefCell::new(None) };
}

/// Runs code as a task of a runtime does, or outside of all of them.
pub(crate) fn within<O>(runtime: Option<Arc<dyn Runtime>>, run: impl FnOnce() -> O) -> O {
    struct Restore(Option<Arc<dyn Runtime>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let before = self.0.take();
            drop(HERE.with(|here| mem::replace(&mut *here.borrow_mut(), before)));
        }
    }
    let before = HERE.with(|here| mem::replace(&mut *here.borrow_mut(), runtime));
    let _restore = Restore(before);
    run()
}

fn here<O>(ask: impl FnOnce(&dyn Runtime) -> O) -> Option<O> {
    let runtime = HERE.try_with(|here| here.borrow().clone()).ok().flatten();
    runtime.map(|runtime| ask(&*runtime))
}

/// The number of the runtime that the calling thread runs; `None` if it runs none.
pub(crate) fn host() -> Option<u64> {
    here(|runtime| runtime.number())
}

/// Whether the task that is polled may do more; `None` outside of simulated runtimes.
pub(super) fn has_budget() -> Option<bool> {
    here(|runtime| runtime.has_budget())
}

/// See [`Runtime::is_proven`]; `None` outside of simulated runtimes.
pub(super) fn is_proven(looks: u64, time: u64) -> Option<bool> {
    here(|runtime| runtime.is_proven(looks, time))
}

/// See [`Runtime::relay`].
pub(super) fn relay() -> Option<Arc<dyn Relay<Waker>>> {
    here(|runtime| runtime.relay()).flatten()
}

/// Asks the runtime that the calling thread runs for a pass.
pub(super) fn ask(wait: &Arc<Wait>) -> Asked {
    here(|runtime| runtime.ask(Arc::clone(wait))).map_or(Asked::Unknown, |()| Asked::Waits)
}

//! The passes of simulated runtimes.
//!
//! A simulation says which of its runtimes the calling thread runs. That runtime has the budget of
//! the task that is polled, and ends the waits when it has handed out what its sockets held.
//!
//! Why not a barrier here: the order of the simulated kernel's list of ready sockets decides, and
//! the kernel belongs to the simulation.
//!
//! Invariants: a runtime is entered only while a task of it is polled or dropped. What spawns tasks
//! belongs to one runtime, and to the thread of its simulation.
//!
//! Cost: a thread-local variable for each question, in builds with the feature `sim`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::mem;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use super::Runtime;

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

/// Asks the runtime that the calling thread runs; `None` if it runs none.
pub(super) fn here<O>(ask: impl FnOnce(&dyn Runtime) -> O) -> Option<O> {
    let runtime = HERE.try_with(|here| here.borrow().clone()).ok().flatten();
    runtime.map(|runtime| ask(&*runtime))
}

type Task = Pin<Box<dyn Future<Output = ()>>>;
type Spawn = dyn Fn(Task);

thread_local! {
    /// What spawns in the runtimes of this thread's simulations, by their numbers.
    static SPAWNS: RefCell<BTreeMap<u64, Rc<Spawn>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A runtime in which tasks can be spawned until this is dropped.
pub(crate) struct Spawns(u64);

impl Spawns {
    pub(crate) fn new(runtime: u64, spawn: impl Fn(Task) + 'static) -> Self {
        let spawn: Rc<Spawn> = Rc::new(spawn);
        drop(SPAWNS.with(|all| all.borrow_mut().insert(runtime, spawn)));
        Self(runtime)
    }
}

impl Drop for Spawns {
    fn drop(&mut self) {
        drop(SPAWNS.try_with(|all| all.borrow_mut().remove(&self.0)));
    }
}

/// Spawns a task in a runtime. It is dropped if the runtime has ended.
pub(super) fn spawn(runtime: u64, task: impl Future<Output = ()> + 'static) {
    let spawn = SPAWNS.try_with(|all| all.borrow().get(&runtime).cloned()).ok().flatten();
    if let Some(spawn) = spawn {
        spawn(Box::pin(task));
    }
}

//! The tasks that are spawned in simulated runtimes.
//!
//! Invariants: what spawns belongs to one runtime, and to the thread of its simulation.
//!
//! Cost: a look-up in a map of this thread for each task, in builds with the feature `sim`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;

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
pub(in crate::pass) fn spawn(runtime: u64, task: impl Future<Output = ()> + 'static) {
    let spawn = SPAWNS.try_with(|all| all.borrow().get(&runtime).cloned()).ok().flatten();
    if let Some(spawn) = spawn {
        spawn(Box::pin(task));
    }
}

//! The passes of tokio's runtimes.
//!
//! Each runtime has a *barrier*: a descriptor of ours that is registered with the runtime's
//! reactor. A wait for a pass writes to it, and is over when the reactor hands out the descriptor's
//! readiness.
//!
//! # Why that is a proof
//!
//! - epoll keeps the descriptors that are ready in a list, in the order in which they became ready.
//!   `epoll_wait` takes them from the head. What does not fit into one look, 1,024 events, stays at
//!   the head for the next look. What becomes ready while the kernel copies events comes after what
//!   is left.
//! - A socket with data that no look has taken is in that list, before a descriptor that is written
//!   to later. It keeps its place when more data comes.
//! - All registrations of tokio are edge-triggered, so no look puts a descriptor back into the
//!   list.
//! - One thread at a time holds the reactor. From `epoll_wait` on, until it has set the readiness
//!   of all events and has woken their tasks, in the order of the events.
//!
//! So a look that hands out the barrier has handed out, itself or by a look before it, all that was
//! in the list when the barrier was written to. It does not matter how many looks that took, and
//! which workers did them. kqueue keeps its list in the same way; no test of ours runs on it.
//!
//! # One write at a time
//!
//! A descriptor that is in the list already keeps its place when it is written to again, which
//! would prove nothing. So a barrier is written to only when its last write was handed out. A wait
//! that begins in between is for the next write. All waits of a write share it.
//!
//! # Timers that fire
//!
//! The keeper of timers hands those of a worker over to the barrier of its runtime, with the time
//! by which they were due, and makes the write. The reactor wakes their tasks. A task that is
//! polled later finds by the [`Proof`] of the barrier that its deadline had passed when the write
//! was made. So it is polled once, and is woken on the thread that is to run it.
//!
//! The barrier is its own waker, so no task of the runtime is needed: it runs where the reactor
//! hands out readiness, and a runtime that is busy with its tasks does not delay it.
//!
//! Invariants: a barrier is registered until its runtime shuts down, which hands out an error; then
//! it leaves the table. No code of the user runs while a lock is held. Waits whose passes were
//! dropped are at most about as many as the others.
//!
//! Cost: a lock of the barrier for each wait, and a system call for each write. A thread takes the
//! lock of the table for the first wait in a runtime.

mod descriptor;
#[cfg(all(test, not(corewheel_loom)))]
mod tests;

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::mem;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crossbeam_utils::atomic::AtomicCell;
use tokio::runtime::{Handle, Id, RuntimeFlavor};

use self::descriptor::Descriptor;
use super::looks::{LOOKS, Proof, Written};
use super::{Asked, Wait};
use crate::link::thread_timers::Relay;
use crate::values::contain::{attempt, each};

/// The last runtimes without I/O that are remembered.
const WITHOUT_IO_MAX: usize = 64;

#[derive(Default)]
struct Table {
    barriers: HashMap<Id, Arc<Barrier>>,
    /// Only a panic of tokio says that a runtime is without I/O, so each is tried once.
    without_io: VecDeque<Id>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks the runtime that the calling thread is in, which has this id, for a pass.
pub(super) fn ask(id: Id, wait: &Arc<Wait>) -> Asked {
    let asked = known(id, Arc::clone).map_or_else(|| Barrier::of(id), Ok);
    asked.map_or_else(|asked| asked, |barrier| barrier.ask(wait))
}

/// The runtime that the calling thread is in.
///
/// A runtime of one thread that the calling thread has only entered may be driven by no thread, and
/// then its reactor hands out nothing. So it is `None`.
pub(super) fn host() -> Option<Id> {
    let runtime = Handle::try_current().ok()?;
    let is_driven = runtime.runtime_flavor() != RuntimeFlavor::CurrentThread || is_driving();
    is_driven.then(|| runtime.id())
}

/// Whether the calling thread runs the scheduler of a runtime: it lets a task that yields wait, and
/// does not wake it at once.
fn is_driving() -> bool {
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&flag));
    let yielded = pin!(tokio::task::yield_now()).poll(&mut Context::from_waker(&waker));
    // Relaxed: it is this thread that may have set it.
    yielded.is_pending() && !flag.0.load(Ordering::Relaxed)
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        // Relaxed: see `is_driving`.
        self.0.store(true, Ordering::Relaxed);
    }
}

thread_local! {
    /// The barrier that this thread has looked for last.
    static KNOWN: RefCell<Option<Arc<Barrier>>> = const { RefCell::new(None) };
}

/// Reads the barrier of a runtime, if there is one. Takes the lock of the table only where the
/// thread has looked for another runtime since.
fn known<R>(id: Id, read: impl FnOnce(&Arc<Barrier>) -> R) -> Option<R> {
    let find = |known: &RefCell<Option<Arc<Barrier>>>| {
        let mut known = known.borrow_mut();
        if known.as_ref().is_none_or(|known| known.id != id) {
            *known = table().barriers.get(&id).cloned();
        }
        known.as_ref().map(read)
    };
    KNOWN.try_with(find).ok().flatten()
}

/// The runtime with several workers that the calling thread is in.
fn runtime_of_workers() -> Option<Id> {
    let runtime = Handle::try_current().ok()?;
    (runtime.runtime_flavor() != RuntimeFlavor::CurrentThread).then(|| runtime.id())
}

/// Whether that runtime has handed out what its sockets held at a time, within the first `looks`.
pub(super) fn is_proven(looks: u64, time: u64) -> bool {
    let Some(id) = runtime_of_workers() else { return false };
    known(id, |barrier| barrier.proof.load().is_of(looks, time)).unwrap_or(false)
}

/// The barrier of the runtime whose worker the calling thread is, once there is one: futures have
/// asked for a pass. A thread that runs a task is a worker, or ends before the runtime does.
///
/// Why not that of a runtime of one thread: the thread may run another one later, and the first
/// would hand out nothing.
pub(super) fn relay_of_thread() -> Option<Arc<dyn Relay<Waker>>> {
    let id = runtime_of_workers()?;
    tokio::task::try_id()?;
    known(id, |barrier| Arc::clone(barrier) as Arc<dyn Relay<Waker>>)
}

struct Barrier {
    id: Id,
    state: Mutex<State>,
    /// The last write for timers that was handed out.
    proof: AtomicCell<Proof>,
}

struct State {
    /// `None` when the runtime has ended.
    descriptor: Option<Descriptor>,
    /// What the write that is on its way wakes; empty if none is.
    written: Written,
    /// What the write after that wakes.
    next: Written,
}

impl State {
    /// A list that is full leaves out the waits whose passes were dropped, before it grows: a task
    /// may begin passes and drop them, and not return to the reactor.
    fn add_next(&mut self, wait: Arc<Wait>) {
        let next = &mut self.next.waits;
        if next.len() == next.capacity() {
            // A pass that is dropped leaves no waker, so this runs no code of the user.
            next.retain(|wait| Arc::strong_count(wait) > 1);
            next.reserve(next.len() + 1);
        }
        next.push(wait);
    }
}

impl Barrier {
    /// The barrier of the runtime that the calling thread is in, which has this id.
    #[cold]
    fn of(id: Id) -> Result<Arc<Self>, Asked> {
        // A panic would end a process whose panics abort.
        if cfg!(not(panic = "unwind")) {
            return Err(Asked::Unknown);
        }
        if table().without_io.contains(&id) {
            return Err(Asked::NotNeeded);
        }
        let Ok(descriptor) = attempt(Descriptor::new) else {
            let without_io = &mut table().without_io;
            if without_io.len() == WITHOUT_IO_MAX {
                without_io.pop_front();
            }
            without_io.push_back(id);
            return Err(Asked::NotNeeded);
        };
        // Without a descriptor there is no proof; the next wait tries again.
        let descriptor = Some(descriptor.map_err(|_| Asked::Unknown)?);
        let (written, next) = (Written::default(), Written::default());
        let state = State { descriptor, written, next };
        let proof = AtomicCell::new(Proof::NONE);
        let barrier = Arc::new(Self { id, state: Mutex::new(state), proof });
        let known = Arc::clone(table().barriers.entry(id).or_insert_with(|| Arc::clone(&barrier)));
        // Registers its waker. A runtime that ends at this moment takes it out of the table.
        known.look();
        Ok(known)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, wait: &Arc<Wait>) -> Asked {
        let mut state = self.lock();
        let Some(descriptor) = &state.descriptor else { return Asked::Unknown };
        if !state.written.is_empty() {
            state.add_next(Arc::clone(wait));
        } else if descriptor.write().is_ok() {
            state.written.waits.push(Arc::clone(wait));
        } else {
            return Asked::Unknown;
        }
        Asked::Waits
    }

    /// Takes the write, if the reactor has handed it out, and writes for the next waits.
    fn look(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let cx = &mut Context::from_waker(&waker);
        let (mut ended, mut closed) = (Written::default(), None);
        let mut state = self.lock();
        while let Some(descriptor) = &state.descriptor {
            match descriptor.poll(cx) {
                Poll::Pending => break,
                Poll::Ready(true) => {
                    let is_written = state.next.is_empty() || descriptor.write().is_ok();
                    let next = mem::take(&mut state.next);
                    let written = mem::take(&mut state.written);
                    let proof = LOOKS.add(written.until);
                    if written.until > 0 {
                        self.proof.store(proof);
                    }
                    ended.append(written);
                    if is_written {
                        state.written = next;
                    } else {
                        ended.append(next);
                    }
                }
                Poll::Ready(false) => {
                    LOOKS.add(0);
                    closed = state.descriptor.take();
                    ended.append(mem::take(&mut state.written));
                    ended.append(mem::take(&mut state.next));
                }
            }
        }
        drop(state);
        if closed.is_some() {
            let removed = table().barriers.remove(&self.id);
            drop((closed, removed));
        }
        each(ended.waits, |wait| wait.end());
        each(ended.due, Waker::wake);
    }
}

impl Relay<Waker> for Barrier {
    fn take_over(&self, mut carried: Vec<Waker>, until: u64) -> Result<(), Vec<Waker>> {
        let state = &mut *self.lock();
        let Some(descriptor) = &state.descriptor else { return Err(carried) };
        if until <= state.written.until {
            // The time had passed when that write was made.
            state.written.due.append(&mut carried);
        } else if !state.written.is_empty() {
            state.next.append(Written { waits: Vec::new(), due: carried, until });
        } else if descriptor.write().is_ok() {
            state.written = Written { waits: Vec::new(), due: carried, until };
        } else {
            return Err(carried);
        }
        Ok(())
    }
}

impl Wake for Barrier {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

debug_fields!([] Barrier, |it| runtime: it.id);

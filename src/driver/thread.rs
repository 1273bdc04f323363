//! A plain thread for a shard, without an executor.
//!
//! The thread has no sockets. Where another thread reads sockets and sends a reset or a cancel
//! for what it has read, each turn receives these before it delivers, also after a stall; a request
//! that the thread has not sent yet comes too late.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use crossbeam_utils::sync::{Parker, Unparker};

use super::executor::Turns;
use super::host::Shard;
use crate::shard::turn::Next;

use corewheel_shard::Tick;

struct Unpark(Unparker);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a shard on this thread until it is shut down.
pub(super) fn run(Shard(mut shard): Shard) {
    let _here = shard.enter();
    let parker = Parker::new();
    let waker = Waker::from(Arc::new(Unpark(parker.unparker().clone())));
    loop {
        let until = match shard.turn(Tick::NEVER) {
            Next::Now => continue,
            Next::At(tick) => tick,
            Next::WhenWoken => Tick::NEVER,
            Next::Never => return,
        };
        park(&*shard, until, &parker, &waker);
    }
}

fn park(shard: &dyn Turns, until: Tick, parker: &Parker, waker: &Waker) {
    let Some(until) = shard.fall_asleep(until, waker) else { return };
    let base = shard.base();
    let due = base.time().start_of(until);
    let wait = Duration::from_nanos(due.saturating_sub(base.nanos()));
    // A point in time that the system cannot represent is as good as never.
    match base.time().now().checked_add(wait).filter(|_| until < Tick::NEVER) {
        Some(at) => parker.park_deadline(at),
        None => parker.park(),
    }
    base.wake_up();
}

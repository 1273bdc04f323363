//! A plain thread for a shard, without an executor.
//!
//! The thread has no sockets. Where another thread reads sockets and sends a reset or a cancel
//! for what it has read, each turn receives these before it delivers, also after a stall; a request
//! that the thread has not sent yet comes too late.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};

use super::limits::Needs;
use super::{Driven, Own};
use crate::face::timers::Timers;
use crate::shard::host::{Values, take_turn};
use crate::shard::turn::Next;
use crate::values::settings::Settings;

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

/// A plain thread.
pub(crate) struct OwnThread;

impl Own for OwnThread {
    fn check(count: usize, headroom: usize) -> Result<(), String> {
        Needs { files: 0, threads: count, memories: count, memory_each: headroom }.try_out()
    }

    fn make(_: &Settings, _: &str) -> Result<Self, String> {
        Ok(Self)
    }

    fn run<T, V>(self, driven: Driven<T>, mut values: V)
    where
        T: Send + 'static,
        V: Values<T> + 'static,
    {
        let _here = driven.enter();
        let timers = driven.timers();
        let parker = Parker::new();
        let waker = Waker::from(Arc::new(Unpark(parker.unparker().clone())));
        loop {
            let until = match take_turn(timers, &mut values, Tick::NEVER) {
                Next::Now => continue,
                Next::At(tick) => tick,
                Next::WhenWoken => Tick::NEVER,
                Next::Never => return,
            };
            park(timers, until, &parker, &waker);
        }
    }
}

fn park<T: Send + 'static>(timers: &Timers<T>, until: Tick, parker: &Parker, waker: &Waker) {
    let core = timers.core();
    let Some(until) = core.fall_asleep(until, waker) else { return };
    let due = core.time().start_of(until);
    let wait = Duration::from_nanos(due.saturating_sub(core.nanos()));
    // A point in time that the system cannot represent is as good as never.
    match timers.now().checked_add(wait).filter(|_| until < Tick::NEVER) {
        Some(at) => park_until(parker, at),
        None => parker.park(),
    }
    core.wake_up();
}

fn park_until(parker: &Parker, at: Instant) {
    parker.park_deadline(at);
}

//! Tests of the service's public methods, on every host that works on this machine: the service's
//! own threads with glommio, tokio or neither, and executors and loops that a test runs itself.

mod callbacks;
mod causes;
mod classes;
mod config_errors;
mod connections;
mod cross_core;
mod deadlines;
mod death;
mod drop_panics;
mod errors;
mod foreign_and_forgotten;
mod freed;
mod glommio_attached;
mod handed_on;
mod handles;
mod herd;
mod ids;
mod in_tokio;
mod infallible;
mod interval;
mod kept;
mod keys;
mod lanes;
mod late_parts;
mod left_for_turn;
mod limits;
mod manual_clock;
mod many;
mod marked;
mod migrate;
#[path = "../../examples/host/network/mod.rs"]
mod network;
mod own_loop;
mod part_values;
mod parts;
mod placement;
mod poll_budget;
mod refusals;
mod remaining;
mod room;
mod runtimes;
mod schedule_task;
mod shared;
mod shutdown;
mod sleeps;
mod spawned;
mod starved;
mod statistics;
mod suspend;
mod thread_ends;
mod thread_timers;
mod tokio_attached;
mod wake_up;
mod wakes;
mod warnings;
mod when_room;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::attach::Turn;
use corewheel::class::TimerClass;
use corewheel::clock::ManualClock;
use corewheel::conn::{InProgress, Raced};
use corewheel::kept::Kept;
use corewheel::settings::{Scale, TurnBudget, WheelKind};
use corewheel::sim::Thread;
use corewheel::stats::{ClassStats, ShardState, ShardStats};
use corewheel::{
    AnyHandle, CancelOutcome, ConnLimits, ConnTimers, Deadline, Fired, Handle, Payload, Refused,
    RefusedKind, Reply, ReplyError, ResetOutcome, ShardError, ShardId, ShutdownPolicy, Sleep,
    StartError, TimeoutError, TimerId, TimerService, TimerServiceBuilder, Timers,
};
use corewheel_kit::keyed::KeyedTimers;
use corewheel_kit::repeat::{PeriodicRun, Repeat};
use corewheel_kit::scaled::ScaledTimeouts;
use fastrand::Rng;
use tokio::task::LocalSet;

use corewheel_test_support::{
    Alarm, Elsewhere, FAR, Guard, Host, Lab, OTHER, OnDrop, PATIENCE, POLICIES, Running, SHARD,
    block_on, block_on_tokio, builder, check_law, glommio_works, logged, look, ms, next, poll,
    poll_with, runtimes, seeds, slot_of, ticks_of, unfired, values_of, wait_until, waker_of,
    waker_that,
};

const IDLE: TimerClass = TimerClass::new("idle");
const REQUEST: TimerClass = TimerClass::new("request");
const LEASE: TimerClass = TimerClass::new("lease");

fn count(counter: &AtomicUsize) -> usize {
    counter.load(Ordering::SeqCst)
}

fn sorted<V: Ord>(values: impl IntoIterator<Item = V>) -> Vec<V> {
    let mut values: Vec<_> = values.into_iter().collect();
    values.sort_unstable();
    values
}

/// Panics when it is dropped.
type Bomb = OnDrop<fn()>;

fn bomb() -> Bomb {
    OnDrop(|| panic!("a value that panics when it is dropped"))
}

/// Holds the first shard in a callback, until what is returned is dropped.
fn hold<T: Send + 'static>(running: &Running<T>) -> mpsc::Sender<()> {
    let ((sender, begun), (release, released)) = (mpsc::channel(), mpsc::channel());
    let call = move |_: &Timers<T>| {
        sender.send(()).unwrap();
        let _released = released.recv();
    };
    running.client().on(SHARD).schedule_fn(ms(1), call).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    release
}

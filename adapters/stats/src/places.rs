//! The places for connections: how many can be open, and which connection is cut off for the next
//! one.
//!
//! A connection is in one of four stages: silent, sending its request, reading its answer, or
//! answered. When all places are taken, a connection of the stage that has most of them is cut off,
//! and of that stage the oldest one. So clients that do nothing take places from their own kind
//! only: whatever number of silent connections, half requests or slow readers is opened, a
//! connection in another stage keeps its place, and a third of the places is always left to it. An
//! answered connection goes first in any case: its answer is with the system's network buffers.
//!
//! Why a connection keeps its place for a short time even so: a client whose request is on its way
//! must not lose its place to a burst of others. Why not for longer: as long as connections keep
//! their places, the next ones wait in the system's queue, and with them a health check behind
//! them. So the time is such that a full queue is accepted within [`WAIT_MAX`], whatever number of
//! places a stage has: 25 ms for 64 places, 8 ms for a third of them.
//!
//! Cost: a look at every place for each connection that comes while all are taken.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{Instant, sleep, timeout_at};

/// The most connections that wait in the system's queue.
pub(super) const QUEUE: u32 = 1 << 10;
/// How long the last connection of a full queue waits at most, as far as the places decide it.
const WAIT_MAX: Duration = Duration::from_millis(400);

/// What a connection is doing, in the order in which connections are cut off where two stages have
/// as many places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Stage {
    /// The client has sent nothing.
    Silent,
    /// The client has sent a part of its request.
    Sending,
    /// The client has not read its answer.
    Reading,
    /// All of the answer is with the system's network buffers.
    Answered,
}

impl Stage {
    const COUNT: usize = 4;
}

/// The stage of one connection, written by its task.
#[derive(Clone, Debug)]
pub(super) struct Progress(Arc<AtomicU8>);

impl Progress {
    fn new() -> Self {
        Self(Arc::new(AtomicU8::new(Stage::Silent as u8)))
    }

    pub(super) fn enter(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    pub(super) fn is(&self, stage: Stage) -> bool {
        self.index() == stage as usize
    }

    fn index(&self) -> usize {
        usize::from(self.0.load(Ordering::Relaxed))
    }
}

/// The state that the task of a connection shares with its place.
#[derive(Debug)]
pub(super) struct Ticket {
    pub(super) progress: Progress,
    /// Done when the connection is to be cut off.
    pub(super) cut: oneshot::Receiver<()>,
}

/// The connections that are open, no more than a certain number.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    tasks: JoinSet<()>,
    /// The connections that may still run and were not cut off, the oldest first.
    taken: VecDeque<Place>,
}

#[derive(Debug)]
struct Place {
    task: AbortHandle,
    progress: Progress,
    /// Dropped, it cuts the connection off.
    _cut: oneshot::Sender<()>,
    opened: Instant,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        Self { max, tasks: JoinSet::new(), taken: VecDeque::new() }
    }

    /// Takes a place for a connection, which is the future that `life` makes.
    pub(super) fn admit<F>(&mut self, life: impl FnOnce(Ticket) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let progress = Progress::new();
        let (cut, is_cut) = oneshot::channel();
        let task = self.tasks.spawn(life(Ticket { progress: progress.clone(), cut: is_cut }));
        let opened = sleep(Duration::ZERO).deadline();
        self.taken.push_back(Place { task, progress, _cut: cut, opened });
    }

    /// Waits until there is a place, about as long as a connection keeps its place.
    pub(super) async fn make_room(&mut self) {
        while self.is_full() {
            let Some((index, kept_until)) = self.next_to_cut() else { return };
            if timeout_at(kept_until, self.tasks.join_next()).await.is_ok() {
                continue;
            }
            // Requests that lie in the sockets are read before a connection counts as silent: the
            // runtime looks at the sockets when a task yields.
            yield_now().await;
            let is_full = self.is_full();
            if is_full && self.next_to_cut().is_some_and(|(still, _)| still == index) {
                drop(self.taken.remove(index));
                // The connection ends, and with it its descriptor, before the next is accepted.
                self.tasks.join_next().await;
            }
        }
    }

    /// Whether there are as many connections as there may be.
    fn is_full(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.taken.retain(|place| !place.task.is_finished());
        self.tasks.len() >= self.max
    }

    /// The connection that is cut off next, and until when it keeps its place; `None` if there is
    /// none.
    fn next_to_cut(&self) -> Option<(usize, Instant)> {
        let mut counts = [0; Stage::COUNT];
        let mut oldest = [None; Stage::COUNT];
        for (index, place) in self.taken.iter().enumerate() {
            let stage = place.progress.index();
            counts[stage] += 1;
            oldest[stage].get_or_insert(index);
        }
        let largest = counts.iter().max();
        let first = counts.iter().position(|count| Some(count) == largest)?;
        let answered = Stage::Answered as usize;
        let stage = if counts[answered] > 0 { answered } else { first };
        let index = oldest[stage]?;
        Some((index, self.taken[index].opened + WAIT_MAX * counts[stage] / QUEUE))
    }
}

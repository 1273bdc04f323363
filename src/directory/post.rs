//! The post of a shard: where other threads reach it.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use super::orders::Orders;
use crate::link::lane::{LaneCounts, Request};
use crate::link::mailbox::Mailbox;
use crate::link::sync::AtomicU64;
use crate::link::thread_timers::{self, Table, ThreadTimers};
use crate::link::wake_up::Doorbell;
use crate::stats::host::times_of;
use crate::stats::publish::{ClassReading, Published, Reading};
use crate::stats::{ClassStats, ShardCounts, ShardStats};
use crate::values::class::{ClassId, Classes};
use crate::values::contain::each;
use crate::values::ids::ShardId;
use crate::values::refused::RefusedKind;
use crate::values::state::ShardState;

/// The post of one shard.
pub(crate) struct Post<R: Request, C> {
    front: Arc<Front>,
    pub(crate) mailbox: Mailbox<R, C>,
}

/// The half of a post that does not depend on what requests carry.
pub(crate) struct Front {
    pub(crate) doorbell: Doorbell,
    pub(crate) published: Published,
    /// The timers of the threads whose futures wait for this shard.
    pub(crate) threads: Table<Waker>,
    orders: Arc<Orders>,
    /// Whether the shard runs in an executor, so that futures can be spawned on it.
    has_executor: AtomicBool,
    /// Whether the shard has ended.
    has_ended: AtomicBool,
    notes: Mutex<Notes>,
    /// For each class, how many timers other threads could not send. They write it.
    refused: Box<[AtomicU64]>,
}

impl Front {
    /// What the shard and its connections are told.
    pub(crate) fn orders(&self) -> &Arc<Orders> {
        &self.orders
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the shard has ended.
    pub(crate) fn note_end(&self, state: ShardState) {
        self.notes().state = state;
        // Relaxed: a thread that must see it is woken by the shard afterwards, or learns from the
        // mailbox that the shard has ended.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Whether the shard has ended. A thread that no message has told may learn it late.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// The refusal of a command for which the lane has no room: where no thread has driven the
    /// shard yet, nothing makes room.
    #[cold]
    pub(crate) fn refusal(&self, kind: RefusedKind) -> RefusedKind {
        let waits = kind == RefusedKind::Busy && self.notes().state == ShardState::Waiting;
        if waits { RefusedKind::NotAttached } else { kind }
    }

    /// Logs, once, that a future waits for a shard that no thread drives yet.
    #[cold]
    pub(crate) fn note_waiting(&self, shard: ShardId) {
        let is_first = {
            let mut notes = self.notes();
            notes.state == ShardState::Waiting
                && !std::mem::replace(&mut notes.is_wait_logged, true)
        };
        if is_first {
            let shard = shard.number();
            tracing::warn!(
                name: "shard-not-attached",
                target: "corewheel::directory",
                shard, "a future waits for a shard that is not attached to any thread"
            );
        }
    }

    /// Whether futures can be spawned on the shard.
    pub(crate) fn has_executor(&self) -> bool {
        self.has_executor.load(Ordering::Relaxed)
    }

    /// Counts a timer of a class that a thread could not send, if it has a class.
    #[cold]
    pub(crate) fn note_refused(&self, class: ClassId) {
        if let Some(refused) = class.index().and_then(|index| self.refused.get(index)) {
            // Relaxed: the count orders nothing.
            refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<R: Request, C> Deref for Post<R, C> {
    type Target = Front;

    #[inline]
    fn deref(&self) -> &Front {
        &self.front
    }
}

/// Data that is rarely written and that any thread reads.
struct Notes {
    state: ShardState,
    /// Whether it was logged that a future waits for the shard to be attached.
    is_wait_logged: bool,
}

/// The alignment keeps the fields of two posts on separate cache lines.
const _: () = assert!(align_of::<Doorbell>() >= align_of::<CachePadded<u8>>());

impl<R: Request, C> Post<R, C> {
    pub(super) fn new(classes: usize, capacity: u32) -> Self {
        let notes = Notes { state: ShardState::Waiting, is_wait_logged: false };
        let front = Front {
            doorbell: Doorbell::new(),
            published: Published::new(classes),
            threads: Table::new(u64::from(capacity)),
            orders: Arc::new(Orders::new()),
            has_executor: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            notes: Mutex::new(notes),
            refused: (0..classes).map(|_| AtomicU64::new(0)).collect(),
        };
        Self { front: Arc::new(front), mailbox: Mailbox::new() }
    }

    /// Makes the calling thread the driver of the shard. False if the shard was closed before.
    pub(crate) fn open(&self, has_executor: bool) -> bool {
        // Relaxed: the mailbox's lock orders it.
        self.has_executor.store(has_executor, Ordering::Relaxed);
        let is_open = self.mailbox.open();
        if is_open {
            self.notes().state = ShardState::Running;
        }
        is_open
    }

    /// Closes the post of a shard that no thread drives. False if a thread drives or drove it, or
    /// if it was closed before.
    pub(crate) fn close_unowned(&self) -> bool {
        let was_unowned = self.mailbox.close_unowned();
        if was_unowned {
            self.notes().state = ShardState::Closed;
            self.has_ended.store(true, Ordering::Relaxed);
            each(self.threads.close_unowned(), Waker::wake);
        }
        was_unowned
    }

    pub(crate) fn front(&self) -> &Arc<Front> {
        &self.front
    }

    /// The statistics of the shard. The age of timers is counted at `now`, in nanoseconds.
    pub(super) fn stats(&self, shard: ShardId, classes: &Classes, now: u64) -> ShardStats {
        let lanes = self.mailbox.lane_counts();
        let (state, terms) = (self.notes().state, self.orders.terms());
        let threads: Vec<_> = self.threads.all().0.into_iter().flatten().collect();
        let (reading, unseen) =
            self.published.load_with(|| Unseen::of(&threads, classes.list().len()));
        let live = &self.front.published.live;
        let Reading { counts, classes: read, lateness, ring_delay, turn_time, parts, late } =
            reading;
        let is_running = state == ShardState::Running;
        let turn_ns = live.turn_since().filter(|_| is_running);
        let thread_id = live.thread().filter(|_| is_running);
        let thread_times = thread_id.and_then(times_of);
        ShardStats {
            shard,
            state,
            is_draining: terms.is_draining(),
            scale: terms.scale,
            counts: ShardCounts {
                threads: threads.len() as u64,
                ..self.counts_with(counts, lanes, &unseen)
            },
            classes: self.classes_with(classes, read, unseen.of_classes, now / 1_000),
            lateness,
            ring_delay,
            turn_time,
            late_parts: parts,
            late_deliveries: late.iter().map(|record| record.named(classes)).collect(),
            overdue_ns: if is_running { now.saturating_sub(live.next_due()) } else { 0 },
            turn_ns: turn_ns.map(|since| now.saturating_sub(since)),
            delivering: turn_ns.and_then(|_| classes.name(live.delivering())),
            thread_id,
            thread_ran_ns: thread_times.map(|(ran, _)| ran),
            thread_waited_ns: thread_times.map(|(_, waited)| waited),
            memory_bytes: live.memory(),
            gauges: self.published.gauges.load(),
        }
    }

    /// The counts of the shard, with those of the lanes and of the threads' timers.
    fn counts_with(&self, counts: ShardCounts, lanes: LaneCounts, unseen: &Unseen) -> ShardCounts {
        let [made, saved, refused] = self.threads.counts();
        let [remote, local] = unseen.of_all;
        let mut threads = local;
        threads.add(remote);
        let pending = threads.pending_after(counts.pending);
        ShardCounts {
            refused: counts.refused + lanes.refused + refused,
            wakeups_made: lanes.wakeups_made + made,
            wakeups_saved: lanes.wakeups_saved + saved,
            scheduled_local: counts.scheduled_local + local.armed,
            scheduled_remote: counts.scheduled_remote + remote.armed,
            fired: counts.fired + threads.fired,
            cancelled: counts.cancelled + threads.ended,
            ended_young: counts.ended_young + threads.young,
            pending,
            ..counts
        }
    }

    /// The counts of each class, with those of the threads' timers. The present is in microseconds.
    fn classes_with(
        &self,
        classes: &Classes,
        read: Vec<ClassReading>,
        unseen: Vec<(thread_timers::Counts, Option<u64>)>,
        now: u64,
    ) -> Vec<ClassStats> {
        let all = classes.list().iter().zip(read).zip(&self.refused).zip(unseen);
        all.map(|(((class, (counts, since)), refused), (unseen, of_threads))| {
            let since = since.into_iter().chain(of_threads).min();
            ClassStats {
                class: class.name(),
                oldest: since.map(|since| Duration::from_micros(now.saturating_sub(since))),
                scheduled: counts.scheduled + unseen.armed,
                fired: counts.fired + unseen.fired,
                cancelled: counts.cancelled + unseen.ended,
                pending: unseen.pending_after(counts.pending),
                refused: counts.refused + refused.load(Ordering::Relaxed),
                ..counts
            }
        })
        .collect()
    }
}

/// What the threads' timers have counted and the shard does not know yet.
struct Unseen {
    /// Of threads elsewhere, and of the shard's own.
    of_all: [thread_timers::Counts; 2],
    /// For each class, its counts and since when its oldest timer is armed, in microseconds.
    of_classes: Vec<(thread_timers::Counts, Option<u64>)>,
}

impl Unseen {
    fn of(threads: &[Arc<ThreadTimers<Waker>>], class_count: usize) -> Self {
        let mut of_classes = vec![(thread_timers::Counts::default(), None); class_count];
        let mut of_all = [thread_timers::Counts::default(); 2];
        for thread_timers in threads {
            let all = thread_timers.unseen(|class, counts, since| {
                let (sum, oldest) = &mut of_classes[usize::from(class) - 1];
                sum.add(counts);
                let micros = since.map(|since| since / 1_000);
                *oldest = oldest.iter().copied().chain(micros).min();
            });
            of_all[usize::from(thread_timers.is_local)].add(all);
        }
        Self { of_all, of_classes }
    }
}

//! The post of a shard: where other threads reach it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::link::lane::Request;
use crate::link::mailbox::Mailbox;
use crate::link::nursery;
use crate::link::nursery::Table;
use crate::link::sync::AtomicU64;
use crate::link::wake_up::Doorbell;
use crate::stats::ClassStats;
use crate::stats::publish::{Published, Reading};
use crate::stats::{ShardCounts, ShardStats};
use crate::values::class::{ClassId, TimerClass};
use crate::values::contain::each;
use crate::values::handle::ShardId;
use crate::values::migration::NewHandles;
use crate::values::refused::RefusedKind;
use crate::values::scale::Scale;
use crate::values::state::ShardState;

/// The post of one shard.
pub(crate) struct Post<R: Request, C> {
    pub(crate) doorbell: Doorbell,
    pub(crate) published: Published,
    pub(crate) mailbox: Mailbox<R, C>,
    /// The nurseries of the threads whose futures wait for timers of this shard.
    pub(crate) nurseries: Table<Waker>,
    /// Whether the shard runs in an executor, so that futures can be spawned on it.
    has_executor: AtomicBool,
    /// Whether the shard has ended.
    has_ended: AtomicBool,
    notes: Mutex<Notes>,
    /// For each class, how many timers clients could not send. Clients write it.
    refused: Box<[AtomicU64]>,
}

/// Data that is rarely written and that any thread reads.
struct Notes {
    state: ShardState,
    /// The factor of the shard's scaled timeouts.
    scale: Scale,
    /// Whether it was logged that a future waits for the shard to be attached.
    is_wait_logged: bool,
    /// The new handles of timers that have migrated from the shard. `None` while the shard is open,
    /// or if no timer has migrated.
    migrated: Option<Arc<NewHandles>>,
}

/// The alignment keeps the fields of two posts on separate cache lines.
const _: () = assert!(align_of::<Doorbell>() >= align_of::<CachePadded<u8>>());

impl<R: Request, C> Post<R, C> {
    pub(super) fn new(classes: usize, capacity: u32) -> Self {
        let notes = Notes {
            state: ShardState::Waiting,
            scale: Scale::ONE,
            is_wait_logged: false,
            migrated: None,
        };
        Self {
            doorbell: Doorbell::new(),
            published: Published::new(classes),
            mailbox: Mailbox::new(),
            nurseries: Table::new(u64::from(capacity)),
            has_executor: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            notes: Mutex::new(notes),
            refused: (0..classes).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Notes that the shard has ended, and the new handles of timers that have migrated from it.
    pub(crate) fn note_end(&self, state: ShardState, migrated: Option<Arc<NewHandles>>) {
        let mut notes = self.notes();
        notes.state = state;
        notes.migrated = migrated;
        // Relaxed: a thread that must see it is woken by the shard afterwards, or learns from the
        // mailbox that the shard has ended.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Whether the shard has ended. A thread that no message has told may learn it late.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Closes the post of a shard that no thread drives. False if a thread drives or drove it, or
    /// if it was closed before.
    pub(crate) fn close_unowned(&self) -> bool {
        let was_unowned = self.mailbox.close_unowned();
        if was_unowned {
            self.notes().state = ShardState::Closed;
            self.has_ended.store(true, Ordering::Relaxed);
            each(self.nurseries.close_unowned(), Waker::wake);
        }
        was_unowned
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
            tracing::warn!(shard, "a future waits for a shard that is not attached to any thread");
        }
    }

    /// Whether futures can be spawned on the shard.
    pub(crate) fn has_executor(&self) -> bool {
        self.has_executor.load(Ordering::Relaxed)
    }

    /// The new handles of timers that have migrated from the shard; `None` while the shard is open,
    /// or if no timer has migrated.
    pub(crate) fn migrated(&self) -> Option<Arc<NewHandles>> {
        self.notes().migrated.clone()
    }

    /// The factor of the shard's scaled timeouts.
    pub(crate) fn scale(&self) -> Scale {
        self.notes().scale
    }

    /// Sets the scale and returns the one before.
    pub(crate) fn replace_scale(&self, scale: Scale) -> Scale {
        std::mem::replace(&mut self.notes().scale, scale)
    }

    /// Counts a timer of a class that a client could not send, if it has a class.
    #[cold]
    pub(crate) fn note_refused(&self, class: ClassId) {
        if let Some(refused) = class.index().and_then(|index| self.refused.get(index)) {
            // Relaxed: the count orders nothing.
            refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The statistics of the shard. The age of timers is counted at `now`, in nanoseconds.
    pub(super) fn stats(&self, shard: ShardId, classes: &[TimerClass], now: u64) -> ShardStats {
        let lanes = self.mailbox.lane_counts();
        let (state, scale) = {
            let notes = self.notes();
            (notes.state, notes.scale)
        };
        let Reading { mut counts, classes: read, lateness, ring_delay } = self.published.load();
        let [made, saved, refused] = self.nurseries.counts();
        counts.refused += lanes.refused + refused;
        counts.wakeups_made = lanes.wakeups_made + made;
        counts.wakeups_saved = lanes.wakeups_saved + saved;
        let mut unseen = vec![nursery::Counts::default(); classes.len()];
        for nursery in self.nurseries.all().0.into_iter().flatten() {
            let all = nursery.unseen(|class, counts| {
                unseen[usize::from(class) - 1].add(counts);
            });
            add_unseen(&mut counts, all, nursery.is_local());
        }
        let mut of_classes = Vec::with_capacity(classes.len());
        let read = classes.iter().zip(read).zip(&self.refused).zip(unseen);
        for (((class, (mut counts, since)), refused), unseen) in read {
            let ended = unseen.ended.min(counts.pending + unseen.armed);
            counts.scheduled += unseen.armed;
            counts.cancelled += ended;
            counts.pending = counts.pending + unseen.armed - ended;
            let age = |since: u64| Duration::from_micros((now / 1_000).saturating_sub(since));
            of_classes.push(ClassStats {
                class: class.name(),
                oldest: since.map(age),
                refused: counts.refused + refused.load(Ordering::Relaxed),
                ..counts
            });
        }
        ShardStats { shard, state, scale, counts, classes: of_classes, lateness, ring_delay }
    }
}

/// Adds what a nursery has counted and its shard does not know yet. A turn that takes the counts
/// over may not have published them, so that more timers have ended than are pending.
fn add_unseen(counts: &mut ShardCounts, unseen: nursery::Counts, is_local: bool) {
    let ended = unseen.ended.min(counts.pending + unseen.armed);
    let scheduled =
        if is_local { &mut counts.scheduled_local } else { &mut counts.scheduled_remote };
    *scheduled += unseen.armed;
    counts.cancelled += ended;
    counts.pending = counts.pending + unseen.armed - ended;
    counts.pending_max = counts.pending_max.max(counts.pending);
}

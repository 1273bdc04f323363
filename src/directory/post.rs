//! How one shard is reached from other threads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::link::lane::Request;
use crate::link::mailbox::Mailbox;
use crate::link::wake_up::Doorbell;
use crate::stats::ShardStats;
use crate::stats::class::ClassStats;
use crate::stats::publish::{Published, Reading};
use crate::values::class::{ClassId, TimerClass};
use crate::values::handle::ShardId;
use crate::values::migration::NewHandles;
use crate::values::scale::Scale;
use crate::values::state::ShardState;

/// Where other threads reach one shard.
pub(crate) struct Post<R: Request, C> {
    pub(crate) doorbell: Doorbell,
    pub(crate) published: Published,
    pub(crate) mailbox: Mailbox<R, C>,
    /// Whether the shard runs in an executor, which runs futures.
    has_executor: AtomicBool,
    notes: Mutex<Notes>,
    /// For each class, how many timers clients could not send. Clients write it.
    refused: Box<[AtomicU64]>,
}

/// What is rarely written, and read by any thread.
struct Notes {
    state: ShardState,
    /// By what the shard's timeouts are to be scaled.
    scale: Scale,
    /// Where the timers are that have left the shard, once it is closed.
    migrated: Option<Arc<NewHandles>>,
}

/// Whatever lies in a post lies on lines that no other post has.
const _: () = assert!(align_of::<Doorbell>() >= align_of::<CachePadded<u8>>());

impl<R: Request, C> Post<R, C> {
    pub(super) fn new(classes: usize) -> Self {
        let notes = Notes { state: ShardState::Waiting, scale: Scale::ONE, migrated: None };
        Self {
            doorbell: Doorbell::new(),
            published: Published::new(classes),
            mailbox: Mailbox::new(),
            has_executor: AtomicBool::new(false),
            notes: Mutex::new(notes),
            refused: (0..classes).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard is driven by the calling thread from now on. False if it was closed before.
    pub(crate) fn open(&self, has_executor: bool) -> bool {
        // Relaxed: the mailbox's lock orders it.
        self.has_executor.store(has_executor, Ordering::Relaxed);
        let is_open = self.mailbox.open();
        if is_open {
            self.notes().state = ShardState::Running;
        }
        is_open
    }

    /// The shard has ended; where the timers are that have left it.
    pub(crate) fn note_end(&self, state: ShardState, migrated: Option<Arc<NewHandles>>) {
        let mut notes = self.notes();
        notes.state = state;
        notes.migrated = migrated;
    }

    /// Closes the post of a shard that no thread drives. False if a thread does, or did.
    pub(crate) fn close_unowned(&self) -> bool {
        let was_unowned = self.mailbox.close_unowned();
        if was_unowned {
            self.notes().state = ShardState::Closed;
        }
        was_unowned
    }

    /// Whether futures can be spawned on the shard.
    pub(crate) fn has_executor(&self) -> bool {
        self.has_executor.load(Ordering::Relaxed)
    }

    /// Where the timers are that have left the shard; `None` while it is open, or if none has.
    pub(crate) fn migrated(&self) -> Option<Arc<NewHandles>> {
        self.notes().migrated.clone()
    }

    /// By what the shard's timeouts are to be scaled.
    pub(crate) fn scale(&self) -> Scale {
        self.notes().scale
    }

    /// Sets the scale and returns the one before.
    pub(crate) fn replace_scale(&self, scale: Scale) -> Scale {
        std::mem::replace(&mut self.notes().scale, scale)
    }

    /// Counts a timer of a class that a client could not send.
    #[cold]
    pub(crate) fn note_refused(&self, class: ClassId) {
        if let Some(refused) = class.index().and_then(|index| self.refused.get(index)) {
            // Relaxed: the count stands for itself.
            refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The statistics of the shard, with the age of timers at `now` in nanoseconds.
    pub(super) fn stats(&self, shard: ShardId, classes: &[TimerClass], now: u64) -> ShardStats {
        let lanes = self.mailbox.lane_counts();
        let (state, scale) = {
            let notes = self.notes();
            (notes.state, notes.scale)
        };
        let Reading { mut counts, classes: read, lateness, ring_delay } = self.published.load();
        counts.refused += lanes.refused;
        counts.bells_rung = lanes.bells_rung;
        counts.bells_saved = lanes.bells_saved;
        let mut of_classes = Vec::with_capacity(classes.len());
        for ((class, (mut counts, since)), refused) in classes.iter().zip(read).zip(&self.refused) {
            counts.refused += refused.load(Ordering::Relaxed);
            let age = |since: u64| Duration::from_micros((now / 1_000).saturating_sub(since));
            let oldest = since.map(age);
            of_classes.push(ClassStats { class: class.name(), counts, oldest });
        }
        ShardStats { shard, state, scale, counts, classes: of_classes, lateness, ring_delay }
    }
}

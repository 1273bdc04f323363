//! Who can reach whom: a door to each shard, at which clients ask for lanes.
//!
//! Everything here is rare and goes through a lock: opening a lane, spawning a future, shutting
//! down. A shard looks at its door once a turn, at one flag. What is frequent goes over the lanes.
//!
//! At the door lies a bank of granted keys, so that a client that comes while the shard sleeps can
//! schedule at once.
//!
//! # Who writes what
//!
//! A command on a shard's own core writes that shard's slab, slots and counters, which no other
//! thread reads, and nothing else. What several threads see lies on lines of its own, two cache
//! lines apart, since processors fetch them in pairs:
//!
//! - what the shard publishes: written by the shard once a turn, read by who asks for statistics;
//! - its bell: written by the shard when it falls asleep or wakes, and by the one who wakes it;
//!   read by who sends to it;
//! - its knock: written by who comes to the door, read by the shard once a turn;
//! - the two rings of a lane: each index by one side, as in `rtrb`; what did not fit beside them.
//!
//! Doors are as aligned as their parts, so two shards' doors have no line in common. What the
//! service's parts read of the [`Directory`] itself does not change until the service ends.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corewheel_shard::{Tick, TickLength, TimerKey};
use crossbeam_utils::CachePadded;

use crate::across::NewNames;
use crate::bell::{Bell, Knock};
use crate::class::{ClassId, TimerClass};
use crate::class_stats::ClassStats;
use crate::clock::{Clock, nanos_after, saturating_nanos};
use crate::config::Settings;
use crate::contain::drop_each;
use crate::error::Closed;
use crate::handle::{ServiceId, ShardId, TimerHandle};
use crate::lane::{LaneCounts, LaneReceiver, LaneSender, LaneShared, lane};
use crate::scale::Scale;
use crate::shutdown::{ShutdownPolicy, UnreadReport};
use crate::stats::{Published, Reading, ServiceStats, ShardState, ShardStats};
use crate::timers::Timers;

/// Starts a future on the shard's own core.
pub(crate) type Job<T> = Box<dyn FnOnce(Timers<T>) -> LocalFuture + Send>;
pub(crate) type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Asks a shard to close, and where to report.
pub(crate) struct Order<T: 'static> {
    pub(crate) policy: ShutdownPolicy,
    pub(crate) report: oneshot::Sender<UnreadReport<T>>,
}

/// What all parts of a service share.
pub(crate) struct Directory<T: 'static> {
    pub(crate) service: ServiceId,
    pub(crate) clock: Clock,
    pub(crate) tick: TickLength,
    pub(crate) settings: Settings,
    pub(crate) runtime: &'static str,
    /// Why it is that one.
    pub(crate) runtime_reason: String,
    /// Shutdown has begun, and once only.
    pub(crate) shut_down: AtomicBool,
    doors: Box<[Door<T>]>,
}

/// Where clients come to one shard.
pub(crate) struct Door<T: 'static> {
    pub(crate) bell: Bell,
    pub(crate) published: Published,
    knock: Knock,
    visitors: Mutex<Visitors<T>>,
    /// For each class, how many timers clients could not send. Written by clients.
    refused: Box<[AtomicU64]>,
}

pub(crate) struct Visitors<T: 'static> {
    pub(crate) state: ShardState,
    /// Keys granted to whoever comes next.
    pub(crate) bank: VecDeque<TimerKey>,
    pub(crate) arriving: Vec<LaneReceiver<T>>,
    pub(crate) jobs: Vec<Job<T>>,
    pub(crate) order: Option<Order<T>>,
    /// By what the shard's scaled timeouts are to be scaled.
    pub(crate) scale: Scale,
    /// Where the timers are that have left the shard, once that is closed.
    pub(crate) moved: Option<Arc<NewNames>>,
    /// The shard runs in an executor.
    pub(crate) spawns: bool,
    /// The lanes that count, and the sums of those that are gone.
    lanes: Vec<Arc<LaneShared<T>>>,
    gone: LaneCounts,
}

/// Whatever lies in a door lies on lines that are this door's alone.
const _: () = assert!(align_of::<Door<()>>() >= align_of::<CachePadded<u8>>());

impl<T> Directory<T> {
    pub(crate) fn door(&self, shard: ShardId) -> Option<&Door<T>> {
        self.doors.get(shard.index())
    }
}

impl<T: Send + 'static> Directory<T> {
    pub(crate) fn new(
        settings: Settings,
        clock: Clock,
        runtime: &'static str,
        runtime_reason: String,
    ) -> Self {
        let doors = (0..settings.shards).map(|_| Door::new(settings.classes.len())).collect();
        Self {
            service: ServiceId::next(),
            clock,
            tick: settings.tick,
            settings,
            runtime,
            runtime_reason,
            shut_down: AtomicBool::new(false),
            doors,
        }
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<T> {
        (0..self.settings.shards as u16).map(ShardId::new)
    }

    /// The deadline that is `delay` after `now`. What is wanted at once is not put off to the next
    /// tick.
    #[inline]
    pub(crate) fn deadline_after(&self, now: u64, delay: Duration) -> Tick {
        if delay.is_zero() {
            return self.tick.floor(now);
        }
        self.tick.ceil(nanos_after(now, delay))
    }

    /// How long it is until `deadline`.
    #[inline]
    pub(crate) fn remaining(&self, deadline: Tick, now: u64) -> Duration {
        Duration::from_nanos(self.tick.start_of(deadline).saturating_sub(now))
    }

    /// The name by which a timer is known on a shard that is open; `None` if it was on one that is
    /// closed.
    pub(crate) fn name_now(&self, mut timer: TimerHandle) -> Option<TimerHandle> {
        loop {
            let names = {
                let visitors = self.door(timer.shard())?.visitors();
                if !visitors.is_closed() {
                    return Some(timer);
                }
                visitors.moved.clone()?
            };
            // Names are given in order, so this ends.
            timer = *names.get(&timer.key())?;
        }
    }

    /// A lane to this shard, with keys if the bank has any.
    pub(crate) fn connect(&self, shard: ShardId) -> Result<LaneSender<T>, Closed> {
        let door = self.door(shard).ok_or(Closed)?;
        let window = self.settings.grant_window;
        let sender = {
            let mut visitors = door.visitors();
            if visitors.is_closed() {
                return Err(Closed);
            }
            // Half of what there is, so that there is something for the next one too.
            let keys = visitors.bank.len().div_ceil(2).min(window);
            let keys = visitors.bank.drain(..keys).collect::<Vec<_>>();
            let (sender, receiver) = lane(self.settings.lane_capacity, window, keys);
            visitors.lanes.push(Arc::clone(sender.shared()));
            visitors.arriving.push(receiver);
            sender
        };
        door.knock();
        Ok(sender)
    }

    /// Leaves a scale at a shard's door.
    pub(crate) fn set_scale(&self, shard: ShardId, scale: Scale) -> Result<(), Closed> {
        let door = self.door(shard).ok_or(Closed)?;
        {
            let mut visitors = door.visitors();
            if visitors.is_closed() {
                return Err(Closed);
            }
            if std::mem::replace(&mut visitors.scale, scale) == scale {
                return Ok(());
            }
        }
        door.knock();
        Ok(())
    }

    pub(crate) fn stats(&self) -> ServiceStats {
        ServiceStats {
            name: self.settings.name.clone(),
            runtime: self.runtime,
            tick_ns: self.tick.nanos(),
            lateness_bound_ns: saturating_nanos(self.settings.lateness_bound),
            uptime: Duration::from_nanos(self.clock.nanos()),
            shards: self.shards().filter_map(|shard| self.shard_stats(shard)).collect(),
        }
    }

    pub(crate) fn shard_stats(&self, shard: ShardId) -> Option<ShardStats> {
        Some(self.door(shard)?.stats(shard, self.settings.classes.list(), self.clock.nanos()))
    }
}

impl<T> Door<T> {
    fn new(classes: usize) -> Self {
        Self {
            bell: Bell::new(),
            published: Published::new(classes),
            refused: (0..classes).map(|_| AtomicU64::new(0)).collect(),
            knock: Knock::new(),
            visitors: Mutex::new(Visitors {
                state: ShardState::Waiting,
                bank: VecDeque::new(),
                arriving: Vec::new(),
                jobs: Vec::new(),
                order: None,
                scale: Scale::ONE,
                moved: None,
                spawns: false,
                lanes: Vec::new(),
                gone: LaneCounts::default(),
            }),
        }
    }

    /// The lock is held for a few instructions, never while anything of the user's runs.
    pub(crate) fn visitors(&self) -> MutexGuard<'_, Visitors<T>> {
        self.visitors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the shard look at its door, after something was left there.
    pub(crate) fn knock(&self) {
        self.knock.knock(&self.bell);
    }

    /// Whether somebody has knocked since.
    #[inline]
    pub(crate) fn is_knocked(&self) -> bool {
        self.knock.is_heard()
    }

    /// The same, and forgets it.
    #[inline]
    pub(crate) fn answer_knock(&self) -> bool {
        self.knock.answer()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.visitors().is_closed()
    }

    /// Closes the door of a shard that nobody drives. False if somebody does, or did.
    pub(crate) fn close_unattended(&self) -> bool {
        let (arriving, jobs) = {
            let mut visitors = self.visitors();
            if visitors.state != ShardState::Waiting {
                return false;
            }
            visitors.state = ShardState::Closed;
            (std::mem::take(&mut visitors.arriving), std::mem::take(&mut visitors.jobs))
        };
        for lane in arriving {
            lane.turn_away();
        }
        // A shard that is about to be driven may have been given some already.
        drop_each(jobs);
        true
    }

    /// Counts a timer of a class that a client could not send.
    #[cold]
    pub(crate) fn note_refused(&self, class: ClassId) {
        if let Some(refused) = class.index().and_then(|index| self.refused.get(index)) {
            // Relaxed: it stands for itself.
            refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// With the age of timers at `now`.
    fn stats(&self, shard: ShardId, classes: &[TimerClass], now: u64) -> ShardStats {
        let (state, scale, lanes) = {
            let visitors = self.visitors();
            (visitors.state, visitors.scale, visitors.lane_counts())
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

impl<T> Visitors<T> {
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.state, ShardState::Closed | ShardState::Dead)
    }

    /// Keeps the counts of a lane that is gone.
    pub(crate) fn forget(&mut self, lane: &Arc<LaneShared<T>>) {
        self.gone.add(lane.counts());
        self.lanes.retain(|known| !Arc::ptr_eq(known, lane));
    }

    fn lane_counts(&self) -> LaneCounts {
        let mut sum = self.gone;
        for lane in &self.lanes {
            sum.add(lane.counts());
        }
        sum
    }
}

//! The directory of a service: its shards, the post of each shard, and the shards that run on this
//! thread.
//!
//! # Which thread writes which cache lines
//!
//! A command on a shard's own core writes that shard's slab, slots and counters, which no other
//! thread reads, and nothing else. Data that several threads access is on cache lines of its own,
//! in pairs of lines, since processors fetch lines in pairs:
//!
//! - the published counts: the shard writes them once a turn, readers of statistics read them;
//! - the doorbell: the shard writes it when it falls asleep or wakes, and so does a sender that
//!   wakes it; senders read it;
//! - the flag of the mailbox: senders of mail write it, the shard reads it once a turn;
//! - the list of the connections that lie on no shard, which each of them writes when it begins and
//!   when it ends; and the tally of the deadlines that have come, which each connection of the
//!   shard writes when it ends. The orders beside them, which connections read, are on other lines;
//! - the two rings of a lane, each index of which only one side writes, as in `rtrb`; and the
//!   overflow beside them.
//!
//! The posts of two shards share no cache line. The fields of the [`Directory`] itself do not
//! change until the service ends, but for the monitor's, which each reading of statistics writes.

pub(crate) mod here;
pub(crate) mod orders;
pub(crate) mod post;

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use corewheel_shard::TimerKey;

use self::orders::Orders;
pub(crate) use self::post::{Front, Post};
use crate::clock::{Clock, Timeline, saturating_nanos};
use crate::link::lane::{LaneSender, Request, Room};
use crate::link::sync::AtomicBool;
use crate::stats::host::cores;
use crate::stats::monitor::{self, Monitor};
use crate::stats::tally::Tally;
use crate::stats::{ServiceStats, ShardStats, Warning};
use crate::values::ids::{ServiceId, ShardId};
use crate::values::refused::RefusedKind;
use crate::values::settings::{STAMP_SPAN, Settings};

/// The name of the runtime of a service that starts no threads.
const ATTACHED: &str = "attached";

/// The data that all threads of a service share. Its lanes carry `R`, its mailboxes `C`.
pub(crate) struct Directory<R: Request, C> {
    /// The number of the service in the process.
    pub(crate) service: ServiceId,
    pub(crate) time: Timeline,
    pub(crate) settings: Settings,
    /// The name of the shards' runtime; `None` if the user drives the shards.
    pub(crate) runtime: Option<&'static str>,
    /// Why it is that runtime.
    pub(crate) runtime_reason: String,
    /// Whether a shutdown has begun. A second one is refused.
    pub(crate) shut_down: Arc<AtomicBool>,
    posts: Box<[Post<R, C>]>,
    /// Finds the warnings in the readings.
    monitor: Mutex<Monitor>,
    /// The names of the deadlines of connections, from the table of kinds, which lies above this
    /// room. Set when the service starts, so a reader knows each kind before its first count.
    deadlines: OnceLock<&'static [&'static str]>,
}

impl<R: Request<Key = TimerKey>, C> Directory<R, C> {
    pub(crate) fn new(
        settings: Settings,
        clock: Clock,
        runtime: Option<&'static str>,
        runtime_reason: String,
    ) -> Self {
        let new = |_| Post::new(settings.classes.len(), settings.shard.capacity);
        let posts = (0..settings.shards).map(new).collect();
        let monitor = Mutex::new(Monitor::new(monitor::Limits {
            warnings: settings.warnings,
            overrun: settings.overrun,
            lane_capacity: settings.lane_capacity,
        }));
        Self {
            monitor,
            service: ServiceId::next(),
            time: Timeline::new(clock, settings.tick),
            settings,
            runtime,
            runtime_reason,
            shut_down: Arc::new(AtomicBool::new(false)),
            posts,
            deadlines: OnceLock::new(),
        }
    }

    /// The post of a shard; `None` if the service has no such shard.
    #[inline]
    pub(crate) fn post(&self, shard: ShardId) -> Option<&Post<R, C>> {
        self.posts.get(shard.index())
    }

    /// What all threads know of each shard.
    pub(crate) fn fronts(&self) -> Vec<Arc<Front>> {
        self.posts.iter().map(|post| Arc::clone(post.front())).collect()
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<R, C> {
        (0..self.settings.shards as u16).map(ShardId::new)
    }

    /// The shard to which a hash belongs.
    pub(crate) fn shard_for(&self, hash: u64) -> ShardId {
        // The remainder is less than the count of shards, which fits.
        ShardId::new((hash % self.settings.shards as u64) as u16)
    }

    /// A lane to a shard, with keys if the shard's key pool has any, and with `keys_first` at most.
    pub(crate) fn connect(
        &self,
        shard: ShardId,
        keys_first: usize,
    ) -> Result<LaneSender<R>, RefusedKind> {
        let post = self.post(shard).ok_or(RefusedKind::NoSuchShard)?;
        let Settings { lane_capacity, grant_share, grant_window, .. } = self.settings;
        let room = Room::new(lane_capacity);
        let (mailbox, doorbell) = (&post.mailbox, &post.doorbell);
        let lane = mailbox.connect(room, grant_share, keys_first, grant_window, doorbell);
        lane.ok_or(RefusedKind::Closed)
    }

    /// Gives an order to a shard, which takes it over in its next turn. `order` returns whether it
    /// has changed anything.
    pub(crate) fn order(
        &self,
        shard: ShardId,
        order: impl FnOnce(&Orders) -> bool,
    ) -> Result<(), RefusedKind> {
        let post = self.post(shard).ok_or(RefusedKind::NoSuchShard)?;
        if post.mailbox.is_closed() {
            return Err(RefusedKind::Closed);
        }
        if order(post.orders()) {
            post.mailbox.notify(&post.doorbell);
        }
        Ok(())
    }

    /// Names the deadlines that are counted. The first names stay.
    pub(crate) fn name_deadlines(&self, kinds: &'static [&'static str]) {
        let _named = self.deadlines.set(kinds);
    }

    /// Gives an order to each shard that has not ended.
    pub(crate) fn order_all(&self, order: impl Fn(&Orders) -> bool) {
        for shard in self.shards() {
            let _closed = self.order(shard, &order);
        }
    }

    /// Reads the statistics, finds the warnings in them and logs those that are new.
    pub(crate) fn stats(&self) -> ServiceStats {
        let (stats, events) = {
            let mut monitor = self.monitor.lock().unwrap_or_else(PoisonError::into_inner);
            // Under the lock: of two readers at once, the later one observes the later reading.
            let mut stats = self.read();
            let events = monitor.observe(&mut stats, self.time.nanos());
            (stats, events)
        };
        for Warning { kind, shard, class, count, text, .. } in events {
            let (id, shard) = (kind.id(), shard.number());
            tracing::warn!(
                name: "warning",
                target: "corewheel::warning",
                id, shard, class, count, "{text}"
            );
        }
        stats
    }

    fn read(&self) -> ServiceStats {
        let Settings { budget, lane_capacity, warnings, overrun, .. } = self.settings;
        let kinds = self.deadlines.get().copied().unwrap_or_default();
        let tallies = self.posts.iter().flat_map(|post| post.orders().tallies());
        ServiceStats {
            schema: ServiceStats::SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            name: self.settings.name.clone(),
            cores: cores(),
            overrun_ns: saturating_nanos(overrun),
            lane_capacity,
            budget,
            warning_limits: warnings,
            warnings: Vec::new(),
            runtime: self.runtime.unwrap_or(ATTACHED),
            tick_ns: self.time.tick().nanos(),
            lateness_bound_ns: self.settings.lateness_bound,
            uptime: Duration::from_nanos(self.time.nanos()),
            shards: self.shards().filter_map(|shard| self.shard_stats(shard)).collect(),
            deadlines: Tally::sum(kinds, tallies.clone()),
            connections_closed: tallies.map(Tally::closed).sum(),
            activity_stamp_ns: STAMP_SPAN + self.time.tick().nanos(),
        }
    }

    pub(crate) fn shard_stats(&self, shard: ShardId) -> Option<ShardStats> {
        Some(self.post(shard)?.stats(shard, &self.settings.classes, self.time.nanos()))
    }
}

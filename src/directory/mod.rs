//! Which shards a service has, how each of them is reached, and which of them run on this thread.
//!
//! # Who writes which cache lines
//!
//! A command on a shard's own core writes that shard's slab, slots and counters, which no other
//! thread reads, and nothing else. What several threads see lies on lines of its own, two cache
//! lines apart, since processors fetch them in pairs:
//!
//! - what the shard publishes: the shard writes it once a turn, readers of statistics read it;
//! - its doorbell: the shard writes it when it falls asleep or wakes, and so does a sender that
//!   wakes it; senders read it;
//! - the flag of its mailbox: senders of mail write it, the shard reads it once a turn;
//! - the two rings of a lane: one side writes each index, as in `rtrb`; and the overflow beside
//!   them.
//!
//! The posts of two shards have no line in common. The fields of the [`Directory`] itself do not
//! change until the service ends.

pub(crate) mod here;
mod post;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use corewheel_shard::TimerKey;

pub(crate) use self::post::Post;
use crate::clock::{Clock, Timeline, saturating_nanos};
use crate::link::lane::{LaneSender, Request};
use crate::stats::{ServiceStats, ShardStats};
use crate::values::error::Closed;
use crate::values::handle::{ServiceId, ShardId, TimerHandle};
use crate::values::scale::Scale;
use crate::values::settings::Settings;

/// What all parts of a service share. Its lanes carry `R`, its mailboxes `C`.
pub(crate) struct Directory<R: Request, C> {
    /// Which service of the process it is.
    pub(crate) service: ServiceId,
    pub(crate) time: Timeline,
    pub(crate) settings: Settings,
    pub(crate) runtime: &'static str,
    /// Why it is that runtime.
    pub(crate) runtime_reason: String,
    /// A shutdown has begun; only one does.
    pub(crate) shut_down: AtomicBool,
    posts: Box<[Post<R, C>]>,
}

impl<R: Request<Key = TimerKey>, C> Directory<R, C> {
    pub(crate) fn new(
        settings: Settings,
        clock: Clock,
        runtime: &'static str,
        runtime_reason: String,
    ) -> Self {
        let posts = (0..settings.shards).map(|_| Post::new(settings.classes.len())).collect();
        Self {
            service: ServiceId::next(),
            time: Timeline::new(clock, settings.tick),
            settings,
            runtime,
            runtime_reason,
            shut_down: AtomicBool::new(false),
            posts,
        }
    }

    /// How a shard is reached; `None` if the service has no such shard.
    #[inline]
    pub(crate) fn post(&self, shard: ShardId) -> Option<&Post<R, C>> {
        self.posts.get(shard.index())
    }

    pub(crate) fn shards(&self) -> impl Iterator<Item = ShardId> + use<R, C> {
        (0..self.settings.shards as u16).map(ShardId::new)
    }

    /// A lane to a shard, with keys if the shard's key pool has any.
    pub(crate) fn connect(&self, shard: ShardId) -> Result<LaneSender<R>, Closed> {
        let post = self.post(shard).ok_or(Closed)?;
        let Settings { lane_capacity, grant_window, .. } = self.settings;
        post.mailbox.connect(lane_capacity, grant_window, &post.doorbell).ok_or(Closed)
    }

    /// The handle by which a timer is known on a shard that is open; `None` if the timer was on a
    /// shard that is closed.
    pub(crate) fn current_handle(&self, mut timer: TimerHandle) -> Option<TimerHandle> {
        loop {
            let post = self.post(timer.shard())?;
            if !post.mailbox.is_closed() {
                return Some(timer);
            }
            // Handles are given in order, so this ends.
            timer = *post.migrated()?.get(&timer.key())?;
        }
    }

    /// Sets by what a shard scales its timeouts, from its next turn on.
    pub(crate) fn set_scale(&self, shard: ShardId, scale: Scale) -> Result<(), Closed> {
        let post = self.post(shard).ok_or(Closed)?;
        if post.mailbox.is_closed() {
            return Err(Closed);
        }
        if post.replace_scale(scale) != scale {
            post.mailbox.notify(&post.doorbell);
        }
        Ok(())
    }

    pub(crate) fn stats(&self) -> ServiceStats {
        ServiceStats {
            name: self.settings.name.clone(),
            runtime: self.runtime,
            tick_ns: self.time.tick().nanos(),
            lateness_bound_ns: saturating_nanos(self.settings.lateness_bound),
            uptime: Duration::from_nanos(self.time.nanos()),
            shards: self.shards().filter_map(|shard| self.shard_stats(shard)).collect(),
        }
    }

    pub(crate) fn shard_stats(&self, shard: ShardId) -> Option<ShardStats> {
        Some(self.post(shard)?.stats(shard, self.settings.classes.list(), self.time.nanos()))
    }
}

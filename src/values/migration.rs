//! Timers that migrate to another shard, with their deadlines.
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::TimerService;
//! use std::time::Duration;
//!
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(2).clock(&clock).start_attached_with::<&str>()?;
//! let mut shards = Vec::new();
//! for shard in service.shards() {
//!     let print = |fired: corewheel::Fired<&str>, timers: &corewheel::Timers<&str>| {
//!         println!("{} fires on {:?}", fired.payload, timers.shard_id());
//!     };
//!     shards.push(service.attach(shard)?.into_loop(print)?);
//! }
//! let [here, there] = [0, 1].map(|n: usize| shards[n].timers().clone());
//!
//! // A connection that was accepted here goes to the other core, and its timer with it.
//! let idle = here.schedule(Duration::from_secs(30), "idle")?;
//! let migrated = here.migrate(idle, there.shard_id())?;
//! assert_eq!(here.migrated_to(idle), Some(migrated));
//! clock.advance(Duration::from_secs(30));
//! let _ = shards[1].turn(); // idle fires on shard 1
//! assert_eq!(service.stats().shards[1].counts.fired, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Timers::migrate`](crate::Timers::migrate) migrates a timer of its own shard,
//! [`Handle::migrate`](crate::Handle::migrate) one of any shard,
//! [`Handle::migrate_all`](crate::Handle::migrate_all) all timers of a shard, and
//! [`ConnTimers::pack`](crate::ConnTimers::pack) the deadlines of a connection.

use std::collections::BTreeMap;
use std::fmt;

use corewheel_shard::TimerKey;

use super::ids::{ShardId, TimerId};

/// The ids of timers that have left a shard, by their keys there. A map that grows without ever
/// being copied.
pub(crate) type NewIds = BTreeMap<TimerKey, TimerId>;

/// Why a timer does not migrate, or a shard's timers do not. Each timer stays where it is, with its
/// deadline and its id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum MigrateError {
    /// This shard, to which the timer was to go, has no room for it, or its lane is full for a
    /// moment. Try again after a moment.
    Full(ShardId),
    /// This shard is shut down or has ended.
    Closed(ShardId),
    /// The service has no such shard.
    NoSuchShard(ShardId),
    /// The id names no timer that is pending here: the timer has fired, was cancelled, or is
    /// still under way from its sender.
    NotPending,
    /// The timer lives on this shard, and another shard was asked to migrate it. Use
    /// [`Handle::migrate`](crate::Handle::migrate).
    Elsewhere(ShardId),
    /// The id belongs to another service.
    Foreign,
    /// The timer carries a callback that stays on its core, scheduled with
    /// [`Timers::schedule_fn`](crate::Timers::schedule_fn) or by a container. A callback that may
    /// migrate is scheduled with [`Handle::schedule_fn`](crate::Handle::schedule_fn).
    LocalCallback,
    /// A future of the timer's core waits for it.
    Sleep,
    /// The timer is that of a connection, and migrates with it: see
    /// [`ConnTimers::pack`](crate::ConnTimers::pack).
    Connection,
    /// `into` is empty: there is no shard to migrate to.
    NowhereToGo,
    /// `into` contains this shard, whose own timers are to migrate.
    IntoItself(ShardId),
    /// The timers of this shard are migrating already; ask again when that is done.
    AlreadyMigrating(ShardId),
}

impl fmt::Display for MigrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(shard) => {
                write!(f, "{shard:?} has no room for the timer; raise its capacity or try again")
            }
            Self::Closed(shard) => write!(f, "{shard:?} is shut down or has ended"),
            Self::NoSuchShard(shard) => write!(f, "the service has no {shard:?}"),
            Self::NotPending => f.write_str("the id names no pending timer"),
            Self::Elsewhere(shard) => {
                write!(f, "the timer lives on {shard:?}; migrate it with Handle::migrate")
            }
            Self::Foreign => f.write_str("the timer belongs to another service"),
            Self::LocalCallback => f.write_str(
                "a callback of its own core cannot migrate; schedule it with Handle::schedule_fn",
            ),
            Self::Sleep => f.write_str("a future of its own core waits for the timer"),
            Self::Connection => f.write_str(
                "a connection's deadlines migrate with the connection; use ConnTimers::pack",
            ),
            Self::NowhereToGo => f.write_str("into is empty; name at least one other shard"),
            Self::IntoItself(shard) => {
                write!(f, "into contains {shard:?}, whose own timers are to migrate; leave it out")
            }
            Self::AlreadyMigrating(shard) => write!(
                f,
                "the timers of {shard:?} are migrating; wait for that reply and ask again"
            ),
        }
    }
}

impl std::error::Error for MigrateError {}

/// Which timers of a shard have migrated and which have stayed; the reply of
/// [`Handle::migrate_all`](crate::Handle::migrate_all).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MigrateReport {
    /// The shard whose timers were to migrate.
    pub shard: ShardId,
    /// Timers that live on other shards now.
    pub migrated: u64,
    /// Timers with callbacks that stay on their core, those of containers included. They fire
    /// there.
    pub callbacks: u64,
    /// Timers that futures of the core wait for. They fire there.
    pub sleeps: u64,
    /// Timers of connections. They stay until their connection migrates, by
    /// [`ConnTimers::pack`](crate::ConnTimers::pack).
    pub connections: u64,
    /// Timers for which no other shard had room for a second, or was open. They fire there.
    pub refused: u64,
}

impl MigrateReport {
    pub(crate) fn new(shard: ShardId) -> Self {
        Self { shard, migrated: 0, callbacks: 0, sleeps: 0, connections: 0, refused: 0 }
    }

    /// How many timers have stayed.
    pub fn stayed(&self) -> u64 {
        self.callbacks + self.sleeps + self.connections + self.refused
    }
}

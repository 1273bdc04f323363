//! The laws: what a server may do with a client, by what the network knows.
//!
//! With the code they share that a limit counts from the beginning of a wait, which is a promise,
//! and for a touch on a shard how late its stamp may be. Whether a byte had come, and whether there
//! was room, comes from the simulated kernel, which the code can only ask by a read or a write.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use corewheel::conn::DataRate;
use corewheel::sim::net::{Runtime, Witness};
use corewheel::stats::ServiceStats;

use super::World;
use super::rates::{Measured, READ};
use super::servers::Guard;

/// Why a server has ended its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// The peer has ended its side, or has reset the connection.
    ByPeer,
    /// Nothing was read for the limit.
    Idle,
    /// Nothing could be written for the limit.
    Stalled,
    /// The connection is too old.
    Aged,
    /// A measured read or write was slower than its least rate.
    TooSlow(usize),
    /// A heartbeat, which ends nothing.
    Beat,
    /// Something else, which no law allows.
    Other,
}

/// A connection, as the network and the server's own code see it.
pub(crate) struct Seen {
    pub(crate) guard: Guard,
    /// That of a silent peer.
    pub(crate) limit: Duration,
    /// That of a write that waits.
    pub(crate) stall: Duration,
    pub(crate) witness: Witness,
    pub(crate) runtime: Runtime,
    pub(crate) opened: Cell<Option<Duration>>,
    /// When its limits began; the age counts from there.
    pub(crate) began: Cell<Option<Duration>>,
    pub(crate) max_age: Cell<Option<Duration>>,
    pub(crate) reads: Cell<Option<Duration>>,
    pub(crate) writes: Cell<Option<Duration>>,
    /// When a write has last gone on.
    pub(crate) wrote_at: Cell<Duration>,
    pub(crate) rate: Cell<DataRate>,
    /// A read and a write whose rates are measured.
    pub(crate) measured: [Cell<Option<Measured>>; 2],
    /// Whether the socket has said in the present write that it is not ready.
    pub(crate) has_waited: Cell<bool>,
    /// When a byte was last written, or a heartbeat has last come; `None` without heartbeats.
    pub(crate) beats_from: Cell<Option<Duration>>,
    ended: Cell<Option<(End, Duration)>>,
    told: Cell<Option<Duration>>,
}

impl Seen {
    pub(crate) fn new(
        guard: Guard,
        [limit, stall]: [Duration; 2],
        witness: Witness,
        runtime: Runtime,
    ) -> Self {
        Self {
            guard,
            limit,
            stall,
            witness,
            runtime,
            opened: Cell::new(None),
            began: Cell::new(None),
            max_age: Cell::new(None),
            reads: Cell::new(None),
            writes: Cell::new(None),
            wrote_at: Cell::default(),
            rate: Cell::new(DataRate::OFF),
            measured: [Cell::new(None), Cell::new(None)],
            has_waited: Cell::new(false),
            beats_from: Cell::new(None),
            ended: Cell::new(None),
            told: Cell::new(None),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended.get().is_some()
    }

    /// From when on the peer counts as silent.
    fn silent_since(&self) -> Option<Duration> {
        self.reads.get().map(|since| since.max(self.wrote_at.get()))
    }

    /// The server's task has ended.
    pub(crate) fn end(&self, world: &World, end: End) {
        let now = world.now();
        world.ends.set(world.ends.get() + 1);
        if self.ended.replace(Some((end, now))).is_some() {
            world.violate(format!("{:?} has ended twice", self.guard));
        }
        if let Err(wrong) = self.judge(end, now) {
            world.violate(format!("{:?}: {wrong}; {self:?}", self.guard));
        }
    }

    fn judge(&self, end: End, now: Duration) -> Result<(), String> {
        let witness = &self.witness;
        match end {
            End::ByPeer => {
                if witness.end_came_at().is_none() && witness.reset_at().is_none() {
                    return Err("the peer has neither ended nor reset it".to_owned());
                }
            }
            End::Idle => {
                // A write that goes on lets a time begin again that is over, and no other.
                let reads = self.reads.get().filter(|_| self.guard.beats());
                let Some(since) = reads.or_else(|| self.silent_since()) else {
                    return Err("it is idle, and no read waits".to_owned());
                };
                let due = since + self.limit;
                if now < due {
                    return Err(format!("idle at {now:?}, before {due:?}"));
                }
                if let Some(came) = witness.unread_since().filter(|came| *came < due) {
                    return Err(format!("idle at {due:?}, and bytes had come at {came:?}"));
                }
                if let Some(came) = witness.end_came_at().filter(|came| *came < due) {
                    return Err(format!("idle at {due:?}, and the peer has ended at {came:?}"));
                }
                // A write holds the idle time back until its own limit, and no longer.
                if self.writes.get().is_some() {
                    self.judge_stall(now).map_err(|wrong| format!("idle, and {wrong}"))?;
                }
            }
            End::Stalled => self.judge_stall(now)?,
            End::Aged => {
                let age = self.began.get().zip(self.max_age.get()).map(|(at, age)| at + age);
                if age.is_none_or(|due| now < due) {
                    return Err(format!("too old at {now:?}, and its age ends at {age:?}"));
                }
            }
            End::TooSlow(which) => {
                let measured = self.measured[which].get().ok_or("nothing is measured")?;
                measured.judge(which, witness, now)?;
            }
            End::Beat | End::Other => {
                return Err("it has ended for a reason that it cannot have".to_owned());
            }
        }
        Ok(())
    }

    /// Whether a write waits whose time is up.
    fn judge_stall(&self, now: Duration) -> Result<(), String> {
        let since = self.writes.get().ok_or("it is stalled, and no write waits")?;
        let due = since + self.stall;
        if now < due {
            return Err(format!("stalled at {now:?}, before {due:?}"));
        }
        match self.witness.room_since().filter(|room| *room < due) {
            Some(room) => Err(format!("stalled at {due:?}, and there was room at {room:?}")),
            None => Ok(()),
        }
    }

    /// Until when the stamp of a touch counts. On a shard that is later by up to 10 ms and a tick,
    /// and by the time for which the thread is held up before it reads the clock.
    fn stamp_of(&self, world: &World, touched: Duration) -> Duration {
        if !self.guard.is_on_shard() || !self.guard.has_connection() {
            return touched;
        }
        let reading = Duration::from_millis(10) + world.tick;
        world.stalls.borrow().iter().fold(touched, |stamp, (begin, end)| {
            if *begin <= stamp + reading { stamp.max(*end) } else { stamp }
        })
    }

    /// Checks a connection that is open, when the clock has moved and no task can run.
    pub(crate) fn check(&self, world: &World, held_until: impl Fn() -> Duration) {
        let now = world.now();
        let slack = 3 * world.tick
            + if self.guard.is_on_shard() { Duration::from_millis(20) } else { Duration::ZERO };
        let late_by = |at: Duration, due: Duration| at > due + slack && at > held_until() + slack;
        let late = |due: Duration| late_by(now, due);
        let wrong = if let Some(since) = self.writes.get() {
            late(since + self.stall).then(|| format!("a write waits since {since:?}"))
        } else if let Some(since) = self.silent_since() {
            let is_late = late(since + self.limit);
            (is_late && late(self.stamp_of(world, since) + self.limit))
                .then(|| format!("a read waits since {since:?}"))
        } else {
            None
        };
        let rates = self.measured.iter().filter_map(Cell::get);
        // What is found too slow when it goes on is cut then.
        let mut slow = rates
            .filter_map(|one| Some((one, one.due(0)?.max(one.since()) + world.held(one.since()))));
        // A server that has paused it was in time before.
        let slow = slow.find(|(one, due)| late_by(one.runs_until(now), *due));
        let wrong =
            wrong.or_else(|| slow.map(|(one, due)| format!("too slow at {due:?}: {one:?}")));
        let wrong = wrong.or_else(|| {
            let since = self.beats_from.get()?;
            let due = since.max(self.stamp_of(world, since)) + self.beat();
            late(due).then(|| format!("no heartbeat has come since {since:?}"))
        });
        let age = self.began.get().zip(self.max_age.get()).map(|(at, age)| at + age);
        let wrong = wrong.or_else(|| {
            age.filter(|due| late(*due)).map(|due| format!("its age has ended at {due:?}"))
        });
        if let Some(wrong) = wrong {
            world.violate(format!("{:?}, not cut at {now:?}: {wrong}; {self:?}", self.guard));
        }
    }

    /// The client has seen the end of the connection.
    pub(crate) fn client_is_told(&self, world: &World) {
        self.told.set(Some(world.now()));
        if !self.is_over() && self.witness.end_came_at().is_none() {
            world.violate(format!("{:?}: its client sees an end before the server", self.guard));
        }
    }

    /// Checks a connection of a history that has ended.
    pub(crate) fn check_end(&self) {
        assert!(self.is_over(), "{:?} has not ended: {self:?}", self.guard);
    }
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seen")
            .field("limit", &self.limit)
            .field("stall", &self.stall)
            .field("opened", &self.opened.get())
            .field("reads", &self.reads.get())
            .field("writes", &self.writes.get())
            .field("wrote_at", &self.wrote_at.get())
            .field("measured", &self.measured)
            .field("beats_from", &self.beats_from.get())
            .field("ended", &self.ended.get())
            .field("unread_since", &self.witness.unread_since())
            .field("last_read_at", &self.witness.last_read_at())
            .field("room_since", &self.witness.room_since())
            .field("witness", &self.witness)
            .finish_non_exhaustive()
    }
}

/// How many connections the deadlines of each kind have ended.
#[derive(Default)]
pub(crate) struct Counted {
    by_kind: BTreeMap<&'static str, u64>,
    closed: u64,
}

impl Counted {
    pub(crate) fn add(&mut self, seen: &Seen) {
        let Some((end, _)) = seen.ended.get() else { return };
        if !seen.guard.has_connection() {
            self.closed += u64::from(seen.guard == Guard::ControlTimeout);
            return;
        }
        match end {
            End::Idle => *self.by_kind.entry(seen.guard.idle_name()).or_default() += 1,
            End::Stalled => *self.by_kind.entry("write timeout").or_default() += 1,
            End::Aged => *self.by_kind.entry("max age").or_default() += 1,
            End::TooSlow(READ) => *self.by_kind.entry("read rate").or_default() += 1,
            End::TooSlow(_) => *self.by_kind.entry("write rate").or_default() += 1,
            End::ByPeer | End::Beat | End::Other => self.closed += 1,
        }
    }

    /// The statistics say what happened.
    pub(crate) fn check(&self, stats: &ServiceStats) {
        for deadline in &stats.deadlines {
            let expected = self.by_kind.get(deadline.kind).copied().unwrap_or(0);
            assert_eq!(deadline.ended, expected, "ended by {}", deadline.kind);
        }
        let found = |kind| stats.deadlines.iter().any(|deadline| deadline.kind == kind);
        assert!(self.by_kind.keys().all(|kind| found(*kind)), "{:?}", self.by_kind);
        assert_eq!(stats.connections_closed, self.closed, "closed without a deadline");
    }
}

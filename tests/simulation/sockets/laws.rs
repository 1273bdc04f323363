//! The laws: what a server may do with a client, by what the network knows.
//!
//! With the code they share that a limit counts from the beginning of a wait, which is a promise,
//! and for a touch on a shard how late its stamp may be. Whether a byte had come, and whether there
//! was room, comes from the simulated kernel, which the code can only ask by a read or a write.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use corewheel::conn::DataRate;
use corewheel::sim::net::{Known, Runtime, Socket};
use corewheel::stats::ServiceStats;

use super::World;
use super::rates::{Measured, READ, WRITE};
use super::servers::{Guard, Waits};

/// In what parts the system counts for how long it has had something to send.
const SYSTEM_TICK: Duration = Duration::from_millis(8);

/// The longest way of a byte or an acknowledgement.
const WAY_MAX: Duration = Duration::from_millis(30);

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
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) guard: Guard,
    /// Whether its socket is asked what the peer has acknowledged.
    pub(crate) asks: bool,
    /// That of a silent peer.
    pub(crate) limit: Duration,
    /// That of a write that waits.
    pub(crate) stall: Duration,
    pub(crate) witness: Socket,
    /// The socket of the client.
    pub(crate) client: Socket,
    pub(crate) runtime: Runtime,
    pub(crate) marks: Marks,
}

/// What has happened to a connection.
#[derive(Default, Debug)]
pub(crate) struct Marks {
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
    /// Since when a write waits in the answer whose rate is measured; `None` if none has waited.
    pub(crate) waits_from: Cell<Option<Duration>>,
    /// When a write was last found to wait. One that goes on in the same moment may count as
    /// activity.
    pub(crate) waited_at: Cell<Duration>,
    /// Whether the socket has said in the present write that it is not ready.
    pub(crate) has_waited: Cell<bool>,
    /// When a byte was last written, or a heartbeat has last come; `None` without heartbeats.
    pub(crate) beats_from: Cell<Option<Duration>>,
    ended: Cell<Option<(End, Duration)>>,
}

impl Deref for Seen {
    type Target = Marks;

    fn deref(&self) -> &Marks {
        &self.marks
    }
}

impl Seen {
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
        world.count("ends", 1);
        if self.ended.replace(Some((end, now))).is_some() {
            world.violate(format!("{:?} has ended twice", self.guard));
        }
        if let Err(wrong) = self.judge(end, now) {
            world.violate(format!("{:?}: {wrong}; {self:?}", self.guard));
        }
    }

    fn judge(&self, end: End, now: Duration) -> Result<(), String> {
        let witness = self.witness.known();
        match end {
            End::ByPeer => {
                if witness.end_came_at.is_none() && witness.reset_at.is_none() {
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
                if let Some(came) = witness.end_came_at.filter(|came| *came < due) {
                    return Err(format!("idle at {due:?}, and the peer has ended at {came:?}"));
                }
                if self.asks && self.guard.asks_by_stream() {
                    self.judge_taken(now)?;
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
            End::TooSlow(WRITE) if self.asks => self.judge_acknowledged_rate(now)?,
            End::TooSlow(which) => {
                let measured = self.measured[which].get().ok_or("nothing is measured")?;
                measured.judge(which, &witness, now)?;
            }
            End::Beat | End::Other => {
                return Err("it has ended for a reason that it cannot have".to_owned());
            }
        }
        Ok(())
    }

    /// Whether a write waits whose time is up.
    fn judge_stall(&self, now: Duration) -> Result<(), String> {
        if self.asks {
            return self.judge_progress(now);
        }
        let since = self.writes.get().ok_or("it is stalled, and no write waits")?;
        let due = since + self.stall;
        if now < due {
            return Err(format!("stalled at {now:?}, before {due:?}"));
        }
        match self.witness.known().room_since.filter(|room| *room < due) {
            Some(room) => Err(format!("stalled at {due:?}, and there was room at {room:?}")),
            None => Ok(()),
        }
    }

    /// Whether bytes were left for the whole stall, and the peer has acknowledged none of them.
    /// What comes at the same moment may be later.
    fn judge_progress(&self, now: Duration) -> Result<(), String> {
        let Known { progress, reset_at, .. } = self.witness.known();
        // What a reset takes back was not acknowledged.
        let until = reset_at.map_or(now, |reset| reset.min(now));
        let before = progress.iter().rev().find(|one| one.at < until);
        let Some(last) = before.filter(|one| one.left > 0) else {
            return Err(format!("stalled at {now:?}, and its peer has all"));
        };
        // The entry of the first byte that is left, or of the last that was acknowledged.
        if now < last.at + self.stall {
            let at = last.at;
            return Err(format!("stalled at {now:?}, and its peer has taken bytes at {at:?}"));
        }
        Ok(())
    }

    /// Whether the peer has had all for the idle time.
    fn judge_taken(&self, now: Duration) -> Result<(), String> {
        let Known { progress, reset_at, .. } = self.witness.known();
        let Some(last) = progress.last().filter(|_| reset_at.is_none()) else {
            return Ok(());
        };
        if last.at + self.limit > now + SYSTEM_TICK {
            let left = last.left;
            return Err(format!("idle at {now:?}, and {left} bytes were left since {:?}", last.at));
        }
        if last.left > 0 {
            return Err(format!("idle at {now:?}, and the peer has not taken all: {last:?}"));
        }
        Ok(())
    }

    /// Whether what the peer has acknowledged is less than the least rate demands. A lump gives
    /// time in advance, and no more of it than the documentation says.
    fn judge_acknowledged_rate(&self, now: Duration) -> Result<(), String> {
        let rate = self.rate.get();
        let time_of = |bytes: u64| Duration::from_secs(bytes) / rate.bytes_per_second as u32;
        let waits_from = self.waits_from.get();
        let by_stream = self.guard.asks_by_stream();
        // When the transfer began, without the time for which the peer had all, and its bytes.
        let (mut start, mut bytes, mut acknowledged) = (None, 0, 0);
        let (mut has_all_since, mut slack) = (None, SYSTEM_TICK);
        for one in self.witness.known().progress {
            let newly = one.acknowledged - std::mem::replace(&mut acknowledged, one.acknowledged);
            if let Some(start) = start.as_mut().filter(|_| by_stream || waits_from < Some(one.at)) {
                bytes += newly;
                let latest = one.at + DataRate::LUMP_MAX;
                if *start + time_of(bytes) > latest {
                    bytes = bytes.min(DataRate::LUMP_MAX.as_secs() * rate.bytes_per_second);
                    *start = latest.saturating_sub(time_of(bytes));
                }
            }
            match has_all_since {
                Some(since) if one.left > 0 => {
                    // A race counts the time for which it waits, whatever the peer has.
                    let pause = if by_stream { one.at.abs_diff(since) } else { Duration::ZERO };
                    start = start.map(|start: Duration| start + pause);
                    has_all_since = None;
                    slack += SYSTEM_TICK;
                }
                None if one.left == 0 => has_all_since = Some(one.at),
                _ => {}
            }
            start = start.or(if by_stream { Some(one.at) } else { waits_from });
        }
        let start = start.ok_or("too slow, and nothing was written")?;
        let due = start + time_of(bytes).max(rate.grace);
        // Where the peer has all now, the time of a stream does not go on.
        let until = has_all_since.filter(|_| by_stream).unwrap_or(now);
        if until + slack < due {
            return Err(format!("too slow at {now:?}, and its peer keeps the rate until {due:?}"));
        }
        Ok(())
    }

    /// Whether its end is that of a client that takes too little.
    fn is_cut_as_slow(&self) -> bool {
        matches!(self.ended.get(), Some((End::Stalled | End::TooSlow(WRITE), _)))
    }

    /// Checks what the kernel has of a connection that has ended: nothing is left a second after a
    /// client was cut that took too little.
    pub(crate) fn check_gone(&self, world: &World) {
        let Some((_, ended)) = self.ended.get() else { return };
        let is_late = world.now() > ended + Duration::from_secs(1);
        let is_there = self.witness.known().gone_at.is_none();
        if self.asks && self.is_cut_as_slow() && is_late && is_there {
            world.violate(format!("{:?} was cut, and the kernel keeps its bytes", self.guard));
        }
    }

    /// Until when the stamp of a touch counts. On a shard that is later by up to 10 ms and a tick,
    /// and by the time for which the thread is held up before it reads the clock.
    fn stamp_of(&self, world: &World, touched: Duration) -> Duration {
        if !self.guard.is_on_shard || !self.guard.has_connection() {
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
            + if self.guard.is_on_shard { Duration::from_millis(20) } else { Duration::ZERO };
        let late_by = |at: Duration, due: Duration| at > due + slack && at > held_until() + slack;
        let late = |due: Duration| late_by(now, due);
        let taken_at = self.witness.known().progress.last().map(|last| last.at);
        // The system counts an acknowledgement as news that says only that there is a window.
        let heard_at = taken_at.max(self.client.known().last_read_at.map(|at| at + WAY_MAX));
        let asks_stream = self.asks && self.guard.asks_by_stream();
        let wrong = if self.asks && (self.writes.get().is_some() || asks_stream && self.is_left()) {
            // The socket is looked at four times in the stall.
            let since = taken_at.max(self.writes.get()).unwrap_or_default().max(held_until());
            (!self.guard.is_rated() && late(since + self.stall + self.stall / 2))
                .then(|| format!("the peer takes nothing since {taken_at:?}"))
        } else if let Some(since) = self.writes.get() {
            late(since + self.stall).then(|| format!("a write waits since {since:?}"))
        } else if let Some(since) = self.silent_since() {
            let heard_at = heard_at.filter(|_| asks_stream).map(|at| at + SYSTEM_TICK);
            let since = since.max(heard_at.unwrap_or_default()).max(self.waited_at.get());
            let is_late = late(since + self.limit);
            (is_late && late(self.stamp_of(world, since) + self.limit))
                .then(|| format!("a read waits since {since:?}"))
        } else {
            None
        };
        // What the peer acknowledges may count for a minute.
        let by_bytes = if self.asks { &self.measured[..=READ] } else { &self.measured[..] };
        let rates = by_bytes.iter().filter_map(Cell::get);
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
        if !self.is_over() && self.witness.known().end_came_at.is_none() {
            world.violate(format!("{:?}: its client sees an end before the server", self.guard));
        }
    }

    /// Whether the peer has not acknowledged all.
    fn is_left(&self) -> bool {
        self.witness.known().progress.last().is_some_and(|last| last.left > 0)
    }

    /// Checks a connection of a history that has ended: what the server's socket has accepted has
    /// come, unless the client was cut as too slow, or has itself lost it.
    pub(crate) fn check_end(&self) {
        assert!(self.is_over(), "{:?} has not ended: {self:?}", self.guard);
        let (server, client) = (self.witness.known(), self.client.known());
        let has_all_of_client = server.read == client.accepted && server.reset_at.is_none();
        if self.is_cut_as_slow() || !has_all_of_client {
            return;
        }
        let is_reset = client.reset_at;
        assert_eq!(is_reset, None, "{:?} takes back what it has sent: {self:?}", self.guard);
        if client.closed_at <= server.gone_at {
            return;
        }
        let left = server.accepted - client.came;
        assert_eq!(left, 0, "{:?}: bytes have not come: {self:?}", self.guard);
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
            self.closed += u64::from(seen.guard.waits == Waits::ControlTimeout);
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

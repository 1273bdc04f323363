//! A connection of a history, as its client and the network see it, and the laws.
//!
//! With the code they share nothing: whether a response is on its way follows from its length, from
//! what the client's socket has read, and from the size of the buffers.

use std::cell::Cell;
use std::ops::Deref;
use std::time::Duration;

use corewheel::conn::DataRate;
use corewheel::sim::net::{Runtime, Socket};

use super::{BODY_RATE, WRITE_RATE, World};

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// That of a head, a stalled write and an idle time of any kind.
    pub(crate) limit: Duration,
    /// That of a wait for a frame of a body.
    pub(crate) frame: Duration,
    pub(crate) max_age: Option<Duration>,
    /// The time of a request until its response, where a layer of tower gives it one.
    pub(crate) request: Duration,
}

/// What the handler of a connection does.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) enum Phase {
    /// It waits for the body of its request. Then it works for a while, or answers at once.
    Body {
        works: bool,
    },
    Works {
        until: Duration,
    },
    #[default]
    Answered,
}

/// A request that has come whole to its handler.
#[derive(Clone, Copy, Debug)]
struct Begun {
    number: u64,
    /// How many bytes the response has.
    length: u64,
    /// What the client's socket had read before.
    read_before: u64,
    /// No order to the idlest connections was on its way.
    is_quiet: bool,
}

#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) number: u64,
    pub(crate) is_http2: bool,
    pub(crate) is_on_shard: bool,
    pub(crate) limits: Limits,
    /// Whether its socket is asked what the client has acknowledged.
    pub(crate) asks: bool,
    /// The client's side.
    pub(crate) client: Socket,
    pub(crate) runtime: Runtime,
    pub(crate) marks: Marks,
}

/// What has happened to a connection.
#[derive(Default, Debug)]
pub(crate) struct Marks {
    began: Cell<Option<Duration>>,
    begun: Cell<Option<Begun>>,
    /// When the client has sent the request that is not at its handler; `None` if there is none.
    asked_at: Cell<Option<Duration>>,
    /// Whether the client pauses within the body of that request.
    pub(crate) pauses: Cell<bool>,
    /// When the handler returned its last response.
    answered_at: Cell<Option<Duration>>,
    told_at: Cell<Option<Duration>>,
    /// From when on the client does nothing any more; `None` if it is honest.
    silent_since: Cell<Option<Duration>>,
    /// Whether it sends a body at a quarter of the least rate from then on.
    pub(crate) is_slow: Cell<bool>,
    ended_at: Cell<Option<Duration>>,
    /// When the last request came to the layer of tower.
    called_at: Cell<Option<Duration>>,
    pub(crate) phase: Cell<Phase>,
}

impl Deref for Seen {
    type Target = Marks;

    fn deref(&self) -> &Marks {
        &self.marks
    }
}

impl Seen {
    pub(crate) fn begin(&self, world: &World) {
        self.began.set(Some(world.now()));
    }

    /// Whether a least rate bounds its writes, and not the time without a byte.
    pub(crate) fn has_write_rate(&self) -> bool {
        self.number % 4 == 1
    }

    /// Whether a body may pause for longer than an idle time, and has no least rate.
    pub(crate) fn is_patient(&self) -> bool {
        self.limits.frame > self.limits.limit
    }

    /// The least rate of the body of a request.
    pub(crate) fn body_rate(&self) -> DataRate {
        DataRate::new(BODY_RATE, self.limits.limit)
    }

    /// A request comes to the layer of tower.
    pub(crate) fn is_called(&self, world: &World) {
        self.called_at.set(Some(world.now()));
    }

    /// The layer of tower answers, since the time of the request is up.
    pub(crate) fn is_too_late(&self, world: &World) {
        let (now, called_at) = (world.now(), self.called_at.get());
        let due = called_at.expect("a request has come") + self.limits.request;
        if now < due {
            world.violate(format!("{self:?} is late at {now:?}, before {due:?}"));
        }
        // The body of an HTTP/2 request comes by another task, which no pass waits for.
        let has_come = !self.pauses.get() && self.asked_at.get().is_some_and(|at| at < due);
        let is_ready = match self.phase.get() {
            Phase::Body { works } => {
                !works && has_come && !self.is_http2 && world.has_large_buffers()
            }
            Phase::Works { until } => until < due,
            Phase::Answered => true,
        };
        if is_ready {
            world.violate(format!("{self:?} is late at {due:?}, and had its answer"));
        }
        self.answer(world);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.ended_at.get().is_some()
    }

    /// A handler has a whole request.
    pub(crate) fn begin_request(&self, world: &World, length: usize) {
        let number = self.begun.get().map_or(0, |begun| begun.number + 1);
        self.begun.set(Some(Begun {
            number,
            length: length as u64,
            read_before: self.client.known().read,
            is_quiet: !world.is_ordered.get(),
        }));
        self.answered_at.set(None);
        self.asked_at.set(None);
    }

    /// The client sends a request, which the buffers can take at once or nearly so.
    pub(crate) fn ask(&self, world: &World) {
        self.asked_at.set(Some(world.now()));
    }

    /// How many requests have come whole to a handler.
    pub(crate) fn requests(&self) -> u64 {
        self.begun.get().map_or(0, |begun| begun.number + 1)
    }

    /// The handler has returned its response.
    pub(crate) fn answer(&self, world: &World) {
        self.answered_at.set(Some(world.now()));
    }

    /// Whether the server's socket can not have accepted all of the last response. The network
    /// knows how much the client has read, and the buffers hold only so much.
    fn is_on_its_way(&self, world: &World) -> bool {
        let Some(begun) = self.begun.get() else { return false };
        let taken = self.client.known().read - begun.read_before;
        // A socket that is asked says what has come to the client's.
        let held = if self.asks { world.buffers / 2 } else { world.buffers };
        self.answered_at.get().is_none() || begun.length > taken + held
    }

    /// The client does nothing any more.
    pub(crate) fn fall_silent(&self, world: &World) {
        self.silent_since.set(Some(world.now()));
    }

    /// The owner is told that the connection is to end.
    pub(crate) fn tell(&self, world: &World) {
        let now = world.now();
        self.told_at.set(Some(now));
        let due = self.began.get().zip(self.limits.max_age).map(|(at, age)| at + age);
        let is_aged = due.is_some_and(|due| due <= now);
        let is_quiet = self.begun.get().is_none_or(|begun| begun.is_quiet);
        if !world.drains() && !is_aged && is_quiet && self.is_on_its_way(world) {
            world.violate(format!("{self:?} counts as idle, and its response is on its way"));
        }
        if !world.drains() && !is_aged && world.ordered_at.get().is_none() {
            world.violate(format!("{self:?} is told at {now:?} to end, for no reason"));
        }
    }

    /// The owner is told that no request has come for the limit.
    pub(crate) fn is_without_request(&self, world: &World) {
        let now = world.now();
        self.told_at.set(Some(now));
        let since = self.began.get().max(self.answered_at.get());
        let due = since.expect("it has begun") + self.limits.limit;
        if now < due {
            world.violate(format!("{self:?} has no request at {now:?}, before {due:?}"));
        }
        if self.asked_at.get().is_some_and(|at| at < due) {
            world.violate(format!("{self:?} has no request by {due:?}, and one had come"));
        }
        if self.is_on_its_way(world) {
            world.violate(format!("{self:?} has no request, and its response is on its way"));
        }
    }

    /// The server's task has ended.
    pub(crate) fn end(&self, world: &World) {
        if self.ended_at.replace(Some(world.now())).is_some() {
            world.violate(format!("{self:?} has ended twice"));
        }
    }

    /// A request of an honest client has failed. `had` is how many the handlers had before it.
    pub(crate) fn is_cut(&self, world: &World, had: u64, error: &impl std::fmt::Debug) {
        // A wait that ends in time counts as a whole, also what the server took to see its end, and
        // one that is found over late for half of its time. So a server that is held up leaves too
        // little of the grace.
        let (grace, began) = (self.limits.limit, self.began.get().unwrap_or_default());
        if self.has_write_rate() && world.was_held_for(grace / 4, began) {
            return;
        }
        let is_handled = self.requests() > had;
        if is_handled && !world.is_drained() {
            world.violate(format!("{self:?}: a response of an honest client is cut: {error:?}"));
        } else if self.told_at.get().is_none() && !world.drains() {
            world.violate(format!("{self:?}: an honest client is cut: {error:?}"));
        }
    }

    /// Checks a connection when the clock has moved and no task can run.
    pub(crate) fn check(&self, world: &World, held_until: impl Fn() -> Duration) {
        let (Some(since), false) = (self.silent_since.get(), self.is_over()) else { return };
        // A part of a head, then a body without an end and its answer, and then nothing. On a shard
        // the stamp from which each of these times counts may be later by 10 ms and a tick.
        let bound = 5 * (self.limits.limit + world.reading) + self.limits.frame + world.slack;
        let now = world.now();
        // The buffers may take all of a response, or a part, which lets the rest wait for longer.
        let rated = Duration::from_millis(world.buffers.min(62_000) * 1_000 / WRITE_RATE);
        let bound = bound + if self.has_write_rate() { rated } else { Duration::ZERO };
        let held_until = held_until();
        // What a slow body has brought while the server was held up is read at once. It lasts for a
        // quarter of that time, in which a quarter as much comes, and so on.
        let brought = held_until.saturating_sub(since) / 3;
        let bound = bound + if self.is_slow.get() { brought } else { Duration::ZERO };
        if now > since + bound && now > held_until + bound {
            world.violate(format!("{self:?} is not cut at {now:?}"));
        }
    }
}

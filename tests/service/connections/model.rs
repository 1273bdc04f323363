//! Random histories of connections against a simple model, which says which events each connection
//! gets, in which turn, and whether an event is the first.
//!
//! Shards are held up between a touch and the next turn, known times are in the past, callbacks
//! take long and change their connection, and connections go to the other shard.
//!
//! With the code it shares the order of the kinds, which is a promise, and that a tick is rounded
//! up. The part of an age's jitter is read from the connection, as only the connection knows it.

use std::ops::Range;
use std::rc::Weak;

use super::measured::{Measured, random_limits};
use super::stamps::{Looks, MS, Stamp};
use super::*;

pub(super) const NEVER: u64 = u64::MAX;
/// So many bits of nanoseconds are 13 days, less than what is left until a clock's range ends.
const PART_BITS: u32 = 50;
const WRITES: usize = 4;
const RATES: [usize; 2] = [5, 6];

fn is_idle_kind(kind: usize) -> bool {
    (7..12).contains(&kind)
}

struct Conn {
    /// Differs from that of every other connection, and from its own on the other shard.
    serial: u32,
    real: ConnTimers,
    shard: usize,
    limits: ConnLimits,
    spans: [u64; 12],
    /// The first bits of the part of the jitter of its age.
    age_part: u64,
    /// The last read, the last write and the last end of a request; `None` for what has not
    /// happened.
    stamps: [Option<Stamp>; 3],
    opened: u64,
    over: [bool; 3],
    armed: [u64; KINDS.len()],
    event_at: [Option<u64>; KINDS.len()],
    pending: u32,
    first: u32,
    held: Held,
    filed: u64,
    is_called: bool,
}

/// What is in progress on a connection's shard.
#[derive(Default)]
struct Held {
    /// The numbers of the writes, when each is late and when it has begun.
    writes: Vec<(u32, u64, u64)>,
    /// The numbers of the writes whose time is up.
    late: Vec<u32>,
    /// How many reads, writes and requests, also writes without a limit.
    counts: [u32; 3],
    /// A measured read and a measured write.
    transfers: [Option<Measured>; 2],
    /// The guards that were not dropped, with their numbers.
    guards: Vec<(u32, usize, InProgress)>,
}

impl Conn {
    /// The last of the times that concern an idle kind, in the order of the stamps; the beginning
    /// of the connection, if it has none of them.
    fn last_of(&self, kind: usize, times: [Option<u64>; 3]) -> u64 {
        let concern = match KINDS[kind] {
            ReadIdle => [true, false, true],
            WriteIdle => [false, true, true],
            AllIdle => [true; 3],
            RequestIdle => [false, false, true],
            _ => [false, true, false],
        };
        let times = times.into_iter().zip(concern).filter(|(_, concerns)| *concerns);
        times.filter_map(|(time, _)| time).fold(self.opened, u64::max)
    }
}

struct Model {
    clock: ManualClock,
    epoch: Instant,
    tick: u64,
    rng: Rng,
    looks: [Looks; 2],
    conns: Vec<Option<Conn>>,
    next_write: u32,
    next_serial: u32,
    events: u32,
    calling: Option<usize>,
}

impl Model {
    fn now(&self) -> u64 {
        (self.clock.now() - self.epoch).as_nanos() as u64
    }

    fn conn(&mut self, id: usize) -> &mut Conn {
        self.conns[id].as_mut().expect("it is open")
    }

    fn random_limits(&mut self) -> ConnLimits {
        let limits = random_limits(&mut self.rng, Duration::from_nanos(self.tick.max(MS)));
        // A power of two, less one: its part is what the first bits of the connection's part say.
        limits.max_age_jitter(Duration::from_nanos((1 << self.rng.u32(..40)) - 1))
    }

    fn open(&mut self, id: usize, shard: usize, timers: &Timers<u8>) {
        let (now, limits) = (self.now(), self.random_limits());
        self.looks[shard].has_connection(now);
        // A long jitter shows the connection's part.
        let longest = Duration::from_nanos((1 << PART_BITS) - 1);
        let longest = NONE.max_age(Duration::from_nanos(1)).max_age_jitter(longest);
        let real = timers.connection(longest).unwrap();
        let due = real.deadline(MaxAge).expect("the clock can show it");
        let age_part = (due - self.clock.now()).as_nanos() as u64 - 1;
        real.set_limits(limits);
        self.next_serial += 1;
        self.conns[id] = Some(Conn {
            serial: self.next_serial,
            real,
            shard,
            limits,
            spans: spans_of(limits),
            age_part,
            stamps: [None; 3],
            opened: now,
            over: [false; 3],
            armed: [NEVER; KINDS.len()],
            event_at: [None; KINDS.len()],
            pending: 0,
            first: 0,
            held: Held::default(),
            filed: NEVER,
            is_called: false,
        });
        self.file(id);
    }

    fn idle_at(&self, conn: &Conn, kind: usize) -> u64 {
        let looks = &self.looks[conn.shard];
        let when = conn.stamps.map(|stamp| stamp.map(|stamp| looks.when(stamp, self.tick)));
        // What is in progress counts as activity at each turn.
        let held = &conn.held;
        let writes = if (7..10).contains(&kind) { held.writes.len() as u32 } else { 0 };
        let in_progress = [held.counts[0], 0, held.counts[2] + writes]
            .map(|count| if count > 0 { looks.now } else { None });
        let since = conn.last_of(kind, when).max(conn.last_of(kind, in_progress));
        since.saturating_add(conn.spans[kind])
    }

    /// Whether an event of an idle kind has come, and no activity since.
    fn is_quiet(&self, conn: &Conn, kind: usize) -> bool {
        conn.event_at[kind].is_some_and(|at| self.idle_at(conn, kind) <= at)
    }

    fn due(&self, conn: &Conn, kind: usize) -> u64 {
        match kind {
            0 | 2 if !conn.over[kind] => {
                let due = conn.opened.saturating_add(conn.spans[kind]);
                let jitter = if kind == 0 { jitter_of(conn) } else { 0 };
                conn.armed[kind].min(due.saturating_add(jitter))
            }
            5 | 6 => conn.held.transfers[kind - RATES[0]].as_ref().map_or(NEVER, Measured::due),
            WRITES => conn.held.writes.iter().map(|(_, due, _)| *due).min().unwrap_or(NEVER),
            _ if is_idle_kind(kind) => {
                let again = |at: u64| at.saturating_add(conn.spans[kind]);
                let event_at = conn.event_at[kind].filter(|_| self.is_quiet(conn, kind));
                event_at.map_or_else(|| self.idle_at(conn, kind), again)
            }
            _ => conn.armed[kind],
        }
    }

    fn first_due(&self, conn: &Conn) -> u64 {
        (0..KINDS.len()).map(|kind| self.due(conn, kind)).min().unwrap()
    }

    fn ceil(&self, nanos: u64) -> u64 {
        if nanos == NEVER { NEVER } else { nanos.div_ceil(self.tick) }
    }

    /// The entry of a connection is never later than its first deadline.
    fn file(&mut self, id: usize) {
        let conn = self.conns[id].as_ref().unwrap();
        // A callback that runs gets the other events in this turn.
        let is_owed = conn.is_called && conn.pending != 0 && self.calling != Some(id);
        let tick = if is_owed { self.now() / self.tick } else { self.ceil(self.first_due(conn)) };
        let conn = self.conn(id);
        conn.filed = conn.filed.min(tick);
    }

    /// One turn of a shard.
    fn turn(&mut self, shard: usize) {
        let now = self.now();
        self.looks[shard].look(now, self.tick);
        for id in 0..self.conns.len() {
            let Some(mut conn) = self.conns[id].take() else { continue };
            if conn.shard == shard {
                let first_due = self.ceil(self.first_due(&conn));
                let owed = conn.is_called && conn.pending != 0;
                let in_time = owed || conn.filed <= first_due.max(now / self.tick);
                assert!(in_time, "its entry is too late");
                if conn.filed <= now / self.tick {
                    self.take(&mut conn, now);
                    conn.filed = self.ceil(self.first_due(&conn));
                    assert!(conn.filed > now / self.tick);
                }
            }
            self.conns[id] = Some(conn);
        }
    }

    fn take(&self, conn: &mut Conn, now: u64) {
        let (mut kinds, mut first) = (0_u32, 0_u32);
        for (kind, name) in KINDS.into_iter().enumerate() {
            if self.due(conn, kind) > now {
                continue;
            }
            kinds |= 1 << kind;
            first |= 1 << kind;
            if is_idle_kind(kind) {
                let stamps = conn.stamps.map(|stamp| stamp.map(|stamp| stamp.at));
                let quiet_since = conn.last_of(kind, stamps);
                assert!(now - quiet_since >= conn.spans[kind], "{name} is early");
                if self.is_quiet(conn, kind) {
                    first &= !(1 << kind);
                }
                conn.event_at[kind] = Some(now);
            } else if kind == WRITES {
                let late = conn.held.writes.extract_if(.., |(_, due, _)| *due <= now);
                conn.held.late.extend(late.map(|(number, ..)| number));
            } else if RATES.contains(&kind) {
                let transfer = conn.held.transfers[kind - RATES[0]].as_mut().unwrap();
                assert!(!transfer.is_paused && transfer.slow_at() <= now, "{name} is early");
                transfer.event_at = Some(now);
            } else {
                conn.armed[kind] = NEVER;
                if kind < 3 {
                    conn.over[kind] = true;
                }
                if name == MaxAge && conn.spans[1] != NEVER {
                    conn.armed[1] = now + conn.spans[1];
                }
            }
        }
        conn.first = (conn.first & conn.pending) | first;
        conn.pending |= kinds;
    }

    /// Takes the connection's next event. An event of a rate that is withdrawn leaves a deadline,
    /// for which the entry is made earlier, before a callback may change it.
    fn take_event(&mut self, id: usize) -> Option<(DeadlineKind, bool)> {
        let rates = RATES.iter().fold(0, |bits, kind| bits | 1 << kind);
        let has_rate = self.conns[id].as_ref()?.pending & rates != 0;
        let event = self.next_event(id);
        if has_rate {
            self.file(id);
        }
        event
    }

    fn next_event(&mut self, id: usize) -> Option<(DeadlineKind, bool)> {
        for (kind, name) in KINDS.into_iter().enumerate() {
            let conn = self.conns[id].as_ref()?;
            let bit = 1 << kind;
            if conn.pending & bit == 0 {
                continue;
            }
            // Where the shard has not read the clock since the event came on the other shard, what
            // is in progress counts more than the clock.
            let is_read = matches!(name, ReadIdle | AllIdle) && conn.held.counts[0] > 0;
            let is_asked = name != Heartbeat && conn.held.counts[2] > 0;
            let is_sent = (7..10).contains(&kind) && !conn.held.writes.is_empty();
            let is_held = is_read || is_asked || is_sent;
            let is_active = || is_held || !self.is_quiet(conn, kind);
            let mut is_withdrawn = is_idle_kind(kind) && is_active();
            is_withdrawn |= kind == WRITES && conn.held.late.is_empty();
            let conn = self.conn(id);
            conn.pending &= !bit;
            if RATES.contains(&kind) {
                let transfer =
                    conn.held.transfers[kind - RATES[0]].as_mut().expect("it has not ended");
                let is_slow = |at| !transfer.is_paused && transfer.slow_at() <= at;
                is_withdrawn = !transfer.event_at.is_some_and(is_slow);
                if is_withdrawn {
                    transfer.event_at = None;
                }
            }
            let conn = self.conn(id);
            if !is_withdrawn {
                let first = conn.first & bit != 0;
                self.events += 1;
                return Some((name, first));
            }
        }
        None
    }

    fn stamp(&mut self, shard: usize) -> Stamp {
        let (now, tick) = (self.now(), self.tick);
        self.looks[shard].stamp(now, tick)
    }

    fn touch(&mut self, id: usize, is_read: bool) {
        let stamp = self.stamp(self.conns[id].as_ref().unwrap().shard);
        let conn = self.conn(id);
        conn.stamps[usize::from(!is_read)] = Some(stamp);
        if is_read { conn.real.touch_read() } else { conn.real.touch_write() }
    }

    fn arm(&mut self, id: usize) {
        let name = ARMED[self.rng.usize(..ARMED.len())];
        let kind = KINDS.iter().position(|kind| *kind == name).unwrap();
        let delay = self.rng.u64(..self.tick.max(MS) * 30);
        let due = if self.rng.u32(..3) == 0 { NEVER } else { self.now() + delay };
        let was_armed = self.due(self.conns[id].as_ref().unwrap(), kind) != NEVER;
        let conn = self.conn(id);
        let was_pending = conn.pending & 1 << kind != 0;
        conn.pending &= !(1 << kind);
        conn.armed[kind] = due;
        if kind < 3 {
            conn.over[kind] = true;
        }
        if due == NEVER {
            assert_eq!(conn.real.disarm(KINDS[kind]), Ok(was_armed || was_pending));
        } else {
            conn.real.arm(KINDS[kind], Duration::from_nanos(delay)).unwrap();
        }
        self.file(id);
    }

    fn set_limits(&mut self, id: usize) {
        let limits = self.random_limits();
        let conn = self.conn(id);
        (conn.limits, conn.spans) = (limits, spans_of(limits));
        conn.real.set_limits(limits);
        self.file(id);
    }

    /// A measured transfer begins, goes on or ends.
    fn transfer(&mut self, id: usize) {
        let (now, what) = (self.now(), self.rng.u32(..8));
        let guards = self.conn(id).held.guards.len();
        if what == 0 || guards == 0 {
            let (number, which) = (self.next_write, self.rng.usize(..2));
            self.next_write += 1;
            let conn = self.conn(id);
            let rate = [conn.limits.min_read_rate, conn.limits.min_write_rate][which];
            conn.held.transfers[which] = (rate != DataRate::OFF).then_some(Measured {
                number,
                rate,
                from: now,
                ran: 0,
                is_paused: false,
                bytes: 0,
                event_at: None,
            });
            conn.pending &= !(1 << RATES[which]);
            let begin = [ConnTimers::begin_measured_read, ConnTimers::begin_measured_write][which];
            let guard = begin(&conn.real);
            conn.held.guards.push((number, which, guard));
            self.file(id);
            return;
        }
        let guard = self.rng.usize(..guards);
        let bytes = self.rng.u64(..100);
        let which = self.conn(id).held.guards[guard].1;
        if what < 5 {
            let stamp = self.stamp(self.conns[id].as_ref().unwrap().shard);
            self.conn(id).stamps[which] = Some(stamp);
        }
        let conn = self.conn(id);
        let number = conn.held.guards[guard].0;
        let transfer = conn.held.transfers[which].as_mut().filter(|one| one.number == number);
        let was_in_time = transfer.as_ref().map(|one| one.event_at.is_none());
        match (what, transfer) {
            (1..5, Some(one)) => one.bytes += bytes,
            (5, Some(one)) => one.pause(now),
            (6, Some(one)) => one.resume(now),
            _ => {}
        }
        let real = &conn.held.guards[guard].2;
        match what {
            1..5 => real.add(bytes),
            5 => real.pause(),
            6 => real.resume(),
            _ => {
                let (.., real) = conn.held.guards.swap_remove(guard);
                if let Some(was_in_time) = was_in_time {
                    conn.held.transfers[which] = None;
                    conn.pending &= !(1 << RATES[which]);
                    assert_eq!(real.finish(), was_in_time);
                }
            }
        }
        self.file(id);
    }

    fn check(&mut self, id: usize) {
        let now = self.now();
        let conn = self.conns[id].as_ref().unwrap();
        for (kind, name) in KINDS.into_iter().enumerate() {
            let due = self.due(conn, kind);
            let due = (due != NEVER).then(|| self.epoch + Duration::from_nanos(due));
            assert_eq!(conn.real.deadline(name), due, "{name} at {now}");
        }
    }
}

fn jitter_of(conn: &Conn) -> u64 {
    let longest = conn.limits.max_age_jitter.as_nanos() as u64;
    conn.age_part >> (PART_BITS - (longest + 1).ilog2())
}

fn spans_of(limits: ConnLimits) -> [u64; 12] {
    let ConnLimits { max_age, handshake, write_timeout, read_idle, .. } = limits;
    let ConnLimits { write_idle, all_idle, heartbeat, request_idle, .. } = limits;
    let grace = limits.max_age_grace;
    let off = Duration::ZERO;
    let rates = [off; 2];
    let idle = [read_idle, write_idle, all_idle, request_idle, heartbeat];
    let armed = [max_age, grace, handshake, off, write_timeout];
    let all = [&armed[..], &rates, &idle].concat();
    let all: [Duration; 12] = all.try_into().unwrap();
    all.map(|span| if span.is_zero() { NEVER } else { span.as_nanos() as u64 })
}

/// The callback of a connection: it gets the events of the model, and does something at random.
fn called(model: &Weak<RefCell<Model>>, id: usize, conn: &ConnTimers, event: ConnEvent) {
    let model = model.upgrade().unwrap();
    let model = &mut *model.borrow_mut();
    model.calling = Some(id);
    assert_eq!(model.take_event(id), Some((event.kind, event.first)), "connection {id}");
    match model.rng.u32(..14) {
        0 | 1 => model.touch(id, true),
        2 | 3 => model.touch(id, false),
        4 => model.arm(id),
        5 => model.set_limits(id),
        9 | 10 => model.transfer(id),
        // It takes long.
        6 => model.clock.advance(Duration::from_micros(model.rng.u64(..50_000))),
        8 if model.rng.u32(..8) == 0 => {
            let dropped = model.conns[id].take().unwrap();
            assert!(dropped.real.close() && conn.is_closed());
        }
        _ => {}
    }
    model.calling = None;
}

struct World {
    lab: Lab<u8>,
    /// With them, the turn after a stall resolves the stamps of some connections only.
    others: Vec<ConnTimers>,
    model: Rc<RefCell<Model>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let tick = [MS / 10, MS, 7 * MS, 1_000 * MS][rng.usize(..4)];
        let wheel = if rng.bool() { WheelKind::Hashed } else { WheelKind::Hierarchical };
        let builder = TimerService::builder().shards(2).capacity(256);
        let lab = Lab::new(builder.tick(Duration::from_nanos(tick)).wheel(wheel));
        // No reading of the clock gives a time that is a stamp.
        lab.clock.advance(Duration::from_nanos(137));
        // In some histories there are none. Two blocks of 64 hold 70 others and 8 connections.
        let count = if rng.bool() { 70 } else { 0 };
        let shards = lab.shards.iter().flat_map(|shard| (0..count).map(|_| shard.timers()));
        let others = shards.map(|timers| timers.connection(NONE).unwrap()).collect();
        let now = (count > 0).then(|| lab.nanos());
        let looks = [0, 1].map(|_| Looks::new(now, 1 + usize::from(count > 0)));
        let model = Model {
            clock: lab.clock.clone(),
            epoch: lab.epoch,
            tick,
            rng,
            looks,
            conns: (0..8).map(|_| None).collect(),
            next_write: 0,
            next_serial: 0,
            events: 0,
            calling: None,
        };
        Self { lab, others, model: Rc::new(RefCell::new(model)) }
    }

    fn settle(&mut self, shards: Range<usize>) {
        for shard in shards {
            loop {
                self.model.borrow_mut().turn(shard);
                let turn = self.lab.shards[shard].turn();
                let model = &mut *self.model.borrow_mut();
                for id in 0..model.conns.len() {
                    let is_called = model.conns[id].as_ref().is_some_and(|conn| conn.is_called);
                    if is_called && model.conn(id).shard == shard {
                        assert_eq!(model.take_event(id), None, "{id} missed an event");
                    }
                }
                if turn != Turn::More {
                    break;
                }
            }
        }
    }

    fn step(&mut self, depth: u32) {
        let model = Rc::clone(&self.model);
        let what = model.borrow_mut().rng.u32(..28);
        let id = model.borrow_mut().rng.usize(..8);
        if model.borrow().conns[id].is_none() {
            let shard = model.borrow_mut().rng.usize(..2);
            return model.borrow_mut().open(id, shard, self.lab.shards[shard].timers());
        }
        match what {
            0..5 => model.borrow_mut().touch(id, true),
            5..8 => model.borrow_mut().touch(id, false),
            8 => model.borrow_mut().arm(id),
            9 if depth < 2 => self.hold(id, depth + 1),
            10 => model.borrow_mut().set_limits(id),
            11 => {
                model.borrow_mut().conn(id).is_called = true;
                let weak = Rc::downgrade(&model);
                let real = model.borrow_mut().conn(id).real.clone();
                real.on_event(move |conn, event| called(&weak, id, conn, event));
                model.borrow_mut().file(id);
            }
            12 => self.take_along(id),
            13 if model.borrow_mut().rng.u32(..6) == 0 && depth == 0 => {
                drop(model.borrow_mut().conns[id].take());
            }
            14 | 15 => {
                let real = model.borrow_mut().conn(id).real.clone();
                let taken = event(&real);
                let model = &mut *model.borrow_mut();
                assert_eq!(taken, model.take_event(id), "connection {id}");
            }
            16 => model.borrow_mut().check(id),
            17..21 => model.borrow_mut().transfer(id),
            // Time passes, and the shards may not get to run.
            _ => {
                let model = &mut *model.borrow_mut();
                let most = match model.rng.u32(..4) {
                    0 => 300 * MS.max(model.tick / 10),
                    1 => 3 * model.tick,
                    _ => 5 * MS,
                };
                let by = model.rng.u64(..most) / 1_000 * 1_000;
                model.clock.advance(Duration::from_nanos(by));
            }
        }
        if what > 20 && model.borrow_mut().rng.u32(..3) > 0 {
            let shards = [(0, 2), (0, 2), (0, 1), (1, 2)][model.borrow_mut().rng.usize(..4)];
            self.settle(shards.0..shards.1);
        }
    }

    /// A read, a write or a request that is in progress for a while.
    fn hold(&mut self, id: usize, depth: u32) {
        const BEGINS: [fn(&ConnTimers) -> InProgress; 3] =
            [ConnTimers::begin_read, ConnTimers::begin_write, ConnTimers::begin_request];
        let whole = Rc::clone(&self.model);
        let mut model = whole.borrow_mut();
        let (what, number, now) = (model.rng.usize(..3), model.next_write, model.now());
        model.next_write += 1;
        let conn = model.conn(id);
        let (serial, shard) = (conn.serial, conn.shard);
        let is_limited = what == 1 && conn.spans[WRITES] != NEVER;
        conn.held.counts[what] += 1;
        if is_limited {
            conn.held.writes.push((number, now.saturating_add(conn.spans[WRITES]), now));
        }
        let guard = BEGINS[what](&conn.real);
        model.file(id);
        let steps = model.rng.u32(..20);
        drop(model);
        for _ in 0..steps {
            self.step(depth);
        }
        let model = &mut *whole.borrow_mut();
        let stamp = model.stamp(shard);
        let is_same = |conn: &&mut Conn| conn.serial == serial && conn.shard == shard;
        let Some(conn) = model.conns[id].as_mut().filter(is_same) else {
            // The connection was closed here, or went away. The guard's end is stamped all the
            // same.
            drop(guard);
            return;
        };
        conn.held.counts[what] -= 1;
        conn.stamps[what] = Some(stamp);
        let count = conn.held.writes.len();
        let held_since = conn.held.writes.iter().map(|(.., begun)| *begun).min();
        conn.held.writes.retain(|(known, ..)| *known != number);
        conn.held.late.retain(|known| *known != number);
        assert_eq!(guard.finish(), !is_limited || conn.held.writes.len() < count);
        if what == 1 {
            // What the writes have held back, and would have come by now, begins again.
            let read_idle_at = model.idle_at(model.conns[id].as_ref().unwrap(), 7);
            let is_held = held_since.is_some_and(|since| since < read_idle_at);
            if is_limited && is_held && read_idle_at <= model.now() {
                model.conn(id).stamps[0] = Some(stamp);
            }
            model.file(id);
        }
    }

    /// To the other shard. What is in progress ends here.
    fn take_along(&mut self, id: usize) {
        let model = &mut *self.model.borrow_mut();
        let conn = model.conns[id].take().unwrap();
        let (here, there) = (conn.shard, 1 - conn.shard);
        let (now, tick) = (model.now(), model.tick);
        model.looks[here].look(now, tick);
        let settle = |stamp: Option<Stamp>, in_progress: u32| {
            let settled = |stamp: Stamp| (model.looks[here].when(stamp, tick).min(now), stamp.at);
            let ended = (in_progress > 0).then_some((now, now));
            let (bound, at) = ended.or_else(|| stamp.map(settled))?;
            Some(Stamp { bound: model.looks[there].exact(bound), looks: None, at })
        };
        let in_progress = [conn.held.counts[0], 0, conn.held.counts[2]];
        let stamps = [0, 1, 2].map(|what: usize| settle(conn.stamps[what], in_progress[what]));
        let packed = conn.real.clone().pack().unwrap();
        assert!(conn.real.is_closed());
        for (.., guard) in &conn.held.guards {
            guard.pause();
            guard.resume();
        }
        model.clock.advance(Duration::from_micros(model.rng.u64(..20_000)));
        let adopted = model.now();
        model.looks[there].has_connection(adopted);
        model.next_serial += 1;
        model.conns[id] = Some(Conn {
            serial: model.next_serial,
            real: self.lab.shards[there].timers().adopt(packed).unwrap(),
            shard: there,
            stamps,
            held: Held::default(),
            pending: conn.pending & !RATES.map(|kind| 1 << kind).iter().sum::<u32>(),
            filed: NEVER,
            is_called: false,
            ..conn
        });
        model.file(id);
    }
}

/// One history. Returns the number of events.
fn history(seed: u64) -> u32 {
    let mut world = World::new(seed);
    for _ in 0..400 {
        world.step(0);
    }
    world.settle(0..2);
    let model = world.model.borrow();
    let open = model.conns.iter().flatten().count();
    let kept: usize = world.lab.shards.iter().map(|shard| shard.timers().len()).sum();
    assert_eq!(open, kept - world.others.len(), "each connection has one entry");
    model.events
}

#[test]
fn random_histories_deliver_the_events_of_the_model() {
    let events = seeds::each(150, history);
    let (count, events) = (events.len(), events.into_iter().sum::<u32>());
    assert!(count == 1 || events > 1_000, "{events} events are too few");
}

//! Random histories of connections against a simple model of what each of them is to be told: which
//! kinds, in which turn, and whether it is the first time. Shards are held up between a note and
//! the next turn, moments are noted that are past, callbacks compute and turn on their connection,
//! and connections move to the other shard.

use std::rc::Weak;
use std::time::Instant;

use corewheel::{ManualClock, TimerService, WheelKind};

use super::looks::{Looks, MS, Note};
use super::*;

const NEVER: u64 = u64::MAX;
const KINDS: [DeadlineKind; 16] = [
    MaxAge,
    Handshake,
    Request,
    WriteTimeout,
    ReadIdle,
    WriteIdle,
    AllIdle,
    Heartbeat,
    Own(0),
    Own(1),
    Own(2),
    Own(3),
    Own(4),
    Own(5),
    Own(6),
    Own(7),
];
const WRITES: usize = 3;

fn is_idle_kind(kind: usize) -> bool {
    (4..8).contains(&kind)
}

struct Conn {
    real: Rc<ConnTimers<u8>>,
    shard: usize,
    spans: [u64; 8],
    read: Note,
    written: Note,
    opened: u64,
    over: [bool; 2],
    armed: [u64; 16],
    told: [u64; 16],
    pending: u16,
    first: u16,
    writes: Vec<(u32, u64)>,
    reads: u32,
    filed: u64,
    is_called: bool,
}

struct Model {
    clock: ManualClock,
    epoch: Instant,
    tick: u64,
    rng: Rng,
    looks: [Looks; 2],
    conns: Vec<Option<Conn>>,
    next_write: u32,
    told: u32,
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
        let unit = self.tick.max(MS);
        let rng = &mut self.rng;
        let mut limit = || match rng.u32(..3) {
            0 => Duration::ZERO,
            _ => Duration::from_nanos(rng.u64(1..unit * 60)),
        };
        ConnLimits {
            read_idle: limit(),
            write_idle: limit(),
            all_idle: limit(),
            heartbeat: limit(),
            write_timeout: limit(),
            handshake: limit() * 3,
            max_age: limit() * 10,
        }
    }

    fn open(&mut self, id: usize, shard: usize, timers: &Timers<u8>) {
        let (now, limits) = (self.now(), self.random_limits());
        let note = Note { bound: now, looks: None, at: now };
        let real = Rc::new(timers.connection(limits).unwrap());
        self.conns[id] = Some(Conn {
            real,
            shard,
            spans: spans_of(limits),
            read: note,
            written: note,
            opened: now,
            over: [false; 2],
            armed: [NEVER; 16],
            told: [0; 16],
            pending: 0,
            first: 0,
            writes: Vec::new(),
            reads: 0,
            filed: NEVER,
            is_called: false,
        });
        self.file(id);
    }

    fn idle_at(&self, conn: &Conn, kind: usize) -> u64 {
        let looks = &self.looks[conn.shard];
        let read = looks.when(conn.read, self.tick);
        let written = looks.when(conn.written, self.tick);
        // A read in progress is as good as one that is done just now.
        let reading = if conn.reads > 0 { looks.now } else { 0 };
        let since = match KINDS[kind] {
            ReadIdle => read.max(reading),
            AllIdle => read.max(written).max(reading),
            _ => written,
        };
        since.saturating_add(conn.spans[kind])
    }

    fn due(&self, conn: &Conn, kind: usize) -> u64 {
        match kind {
            0 | 1 if !conn.over[kind] => {
                conn.armed[kind].min(conn.opened.saturating_add(conn.spans[kind]))
            }
            WRITES => conn.writes.iter().map(|(_, due)| *due).min().unwrap_or(NEVER),
            _ if is_idle_kind(kind) => {
                let idle_at = self.idle_at(conn, kind);
                let told = conn.told[kind];
                if idle_at > told { idle_at } else { told.saturating_add(conn.spans[kind]) }
            }
            _ => conn.armed[kind],
        }
    }

    fn first_due(&self, conn: &Conn) -> u64 {
        (0..16).map(|kind| self.due(conn, kind)).min().unwrap()
    }

    fn ceil(&self, nanos: u64) -> u64 {
        if nanos == NEVER { NEVER } else { nanos.div_ceil(self.tick) }
    }

    /// The entry of a connection is never later than its first deadline.
    fn file(&mut self, id: usize) {
        let conn = self.conns[id].as_ref().unwrap();
        // What is called just now is told the rest in this turn.
        let is_owed = conn.is_called && conn.pending != 0 && self.calling != Some(id);
        let tick = if is_owed { self.now() / self.tick } else { self.ceil(self.first_due(conn)) };
        let conn = self.conn(id);
        conn.filed = conn.filed.min(tick);
    }

    /// What a turn of a shard is to find.
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
        let (mut kinds, mut first) = (0_u16, 0_u16);
        for (kind, name) in KINDS.into_iter().enumerate() {
            if self.due(conn, kind) > now {
                continue;
            }
            kinds |= 1 << kind;
            first |= 1 << kind;
            if is_idle_kind(kind) {
                let quiet_since = match name {
                    ReadIdle => conn.read.at,
                    AllIdle => conn.read.at.max(conn.written.at),
                    _ => conn.written.at,
                };
                assert!(now - quiet_since >= conn.spans[kind], "{name} is early");
                if self.idle_at(conn, kind) <= conn.told[kind] {
                    first &= !(1 << kind);
                }
                conn.told[kind] = now;
            } else if kind == WRITES {
                conn.writes.retain(|(_, due)| *due > now);
            } else {
                conn.armed[kind] = NEVER;
                if kind < 2 {
                    conn.over[kind] = true;
                }
            }
        }
        conn.first = (conn.first & conn.pending) | first;
        conn.pending |= kinds;
    }

    /// What the connection is to be told next.
    fn next_event(&mut self, id: usize) -> Option<(DeadlineKind, bool)> {
        for (kind, name) in KINDS.into_iter().enumerate() {
            let conn = self.conns[id].as_ref()?;
            let bit = 1 << kind;
            if conn.pending & bit == 0 {
                continue;
            }
            // Where the shard has not looked since the event came on another one, a read that is in
            // progress tells more than the clock.
            let is_read = matches!(name, ReadIdle | AllIdle) && conn.reads > 0;
            let is_active = || is_read || self.idle_at(conn, kind) > conn.told[kind];
            let is_withdrawn = is_idle_kind(kind) && is_active();
            let conn = self.conn(id);
            conn.pending &= !bit;
            if !is_withdrawn {
                let first = conn.first & bit != 0;
                self.told += 1;
                return Some((name, first));
            }
        }
        None
    }

    fn touch(&mut self, id: usize, is_read: bool) {
        let (now, tick) = (self.now(), self.tick);
        let shard = self.conn(id).shard;
        let note = self.looks[shard].note(now, tick);
        let conn = self.conn(id);
        *(if is_read { &mut conn.read } else { &mut conn.written }) = note;
        if is_read { conn.real.touch_read() } else { conn.real.touch_write() }
    }

    /// At a moment that may be past: then something happened before that was not noted at once.
    fn touch_at(&mut self, id: usize, is_read: bool) {
        let now = self.now();
        let at = if self.rng.bool() { now } else { now - self.rng.u64(..=now.min(90 * MS)) };
        let (tick, instant) = (self.tick, self.epoch + Duration::from_nanos(at));
        let conn = self.conns[id].as_ref().unwrap();
        let note = if is_read { conn.read } else { conn.written };
        let looks = &self.looks[conn.shard];
        let keeps = !looks.is_settled(note) || looks.when(note, tick) >= at;
        let note = Note { bound: at, looks: None, at };
        let conn = self.conn(id);
        if !keeps {
            *(if is_read { &mut conn.read } else { &mut conn.written }) = note;
        }
        if is_read {
            conn.real.touch_read_at(instant);
        } else {
            conn.real.touch_write_at(instant);
        }
        self.file(id);
    }

    fn arm(&mut self, id: usize) {
        let kind = [0, 1, 2, 8, 9, 15][self.rng.usize(..6)];
        let delay = self.rng.u64(..self.tick.max(MS) * 30);
        let due = if self.rng.u32(..3) == 0 { NEVER } else { self.now() + delay };
        let was_armed = self.due(self.conns[id].as_ref().unwrap(), kind) != NEVER;
        let conn = self.conn(id);
        let was_pending = conn.pending & 1 << kind != 0;
        conn.pending &= !(1 << kind);
        conn.armed[kind] = due;
        if kind < 2 {
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
        conn.spans = spans_of(limits);
        conn.real.set_limits(limits);
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

fn spans_of(limits: ConnLimits) -> [u64; 8] {
    let ConnLimits { max_age, handshake, write_timeout, read_idle, .. } = limits;
    let ConnLimits { write_idle, all_idle, heartbeat, .. } = limits;
    let off = Duration::ZERO;
    [max_age, handshake, off, write_timeout, read_idle, write_idle, all_idle, heartbeat]
        .map(|span| if span.is_zero() { NEVER } else { span.as_nanos() as u64 })
}

/// What is called for a connection: it is told what the model says, and does what it likes.
fn called(model: &Weak<RefCell<Model>>, id: usize, event: IdleEvent) {
    let model = model.upgrade().unwrap();
    let model = &mut *model.borrow_mut();
    assert_eq!(model.next_event(id), Some((event.kind, event.first)), "connection {id}");
    model.calling = Some(id);
    match model.rng.u32(..12) {
        0 | 1 => model.touch(id, true),
        2 | 3 => model.touch(id, false),
        4 => model.arm(id),
        5 => model.set_limits(id),
        // It computes.
        6 => model.clock.advance(Duration::from_micros(model.rng.u64(..50_000))),
        7 => {
            model.conn(id).is_called = false;
            model.conn(id).real.clear_on_event();
            model.file(id);
        }
        8 if model.rng.u32(..8) == 0 => {
            let conn = model.conns[id].take().unwrap();
            assert!(conn.real.close());
        }
        _ => {}
    }
    model.calling = None;
}

struct World {
    lab: Lab<u8>,
    model: Rc<RefCell<Model>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let tick = [MS / 10, MS, 7 * MS, 1_000 * MS][rng.usize(..4)];
        let wheel = if rng.bool() { WheelKind::Hashed } else { WheelKind::Hierarchical };
        let builder = TimerService::builder().shards(2).capacity(64);
        let builder = builder.tick(Duration::from_nanos(tick)).wheel(wheel);
        let lab = Lab::<u8>::new(builder);
        let clock = lab.clock.clone();
        let epoch = clock.now();
        // So that no moment that is looked at is one that is noted.
        clock.advance(Duration::from_nanos(137));
        let looks = Default::default();
        let conns = (0..8).map(|_| None).collect();
        let model =
            Model { clock, epoch, tick, rng, looks, conns, next_write: 0, told: 0, calling: None };
        Self { lab, model: Rc::new(RefCell::new(model)) }
    }

    fn settle(&mut self) {
        for shard in 0..2 {
            loop {
                self.model.borrow_mut().turn(shard);
                let turn = self.lab.shards[shard].turn();
                let model = &mut *self.model.borrow_mut();
                for id in 0..model.conns.len() {
                    let is_called = model.conns[id].as_ref().is_some_and(|conn| conn.is_called);
                    if is_called && model.conn(id).shard == shard {
                        assert_eq!(model.next_event(id), None, "{id} was not told");
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
        let (what, id) = {
            let rng = &mut model.borrow_mut().rng;
            (rng.u32(..24), rng.usize(..8))
        };
        if model.borrow().conns[id].is_none() {
            let shard = model.borrow_mut().rng.usize(..2);
            return model.borrow_mut().open(id, shard, self.lab.shards[shard].timers());
        }
        match what {
            0..4 => model.borrow_mut().touch(id, true),
            4..6 => model.borrow_mut().touch(id, false),
            6 | 7 => {
                let is_read = model.borrow_mut().rng.bool();
                model.borrow_mut().touch_at(id, is_read);
            }
            8 => model.borrow_mut().arm(id),
            9 if depth == 0 => self.hold(id),
            10 => model.borrow_mut().set_limits(id),
            11 => {
                model.borrow_mut().conn(id).is_called = true;
                let weak = Rc::downgrade(&model);
                let real = Rc::clone(&model.borrow_mut().conn(id).real);
                real.on_event(move |_, event| called(&weak, id, event));
                model.borrow_mut().file(id);
            }
            12 => self.take_along(id),
            13 if model.borrow_mut().rng.u32(..6) == 0 && depth == 0 => {
                drop(model.borrow_mut().conns[id].take());
            }
            14 | 15 => {
                let real = Rc::clone(&model.borrow_mut().conn(id).real);
                let told = event(&real);
                assert_eq!(told, model.borrow_mut().next_event(id), "connection {id}");
            }
            16 => model.borrow_mut().check(id),
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
        if what > 16 && self.model.borrow_mut().rng.u32(..3) > 0 {
            self.settle();
        }
    }

    /// A read or a write that is in progress for a while.
    fn hold(&mut self, id: usize) {
        let model = Rc::clone(&self.model);
        let held = Rc::clone(&model.borrow_mut().conn(id).real);
        let is_read = model.borrow_mut().rng.bool();
        let shard = model.borrow_mut().conn(id).shard;
        let number = model.borrow().next_write;
        let is_limited = model.borrow_mut().conn(id).spans[WRITES] != NEVER;
        let (read, write) = if is_read {
            model.borrow_mut().conn(id).reads += 1;
            (Some(held.begin_read()), None)
        } else {
            let model = &mut *model.borrow_mut();
            let now = model.now();
            model.next_write += 1;
            let conn = model.conn(id);
            if is_limited {
                conn.writes.push((number, now.saturating_add(conn.spans[WRITES])));
                model.file(id);
            }
            (None, Some(held.begin_write()))
        };
        let steps = model.borrow_mut().rng.u32(..20);
        for _ in 0..steps {
            self.step(1);
        }
        let model = &mut *model.borrow_mut();
        if model.conns[id].as_ref().is_none_or(|conn| !Rc::ptr_eq(&conn.real, &held)) {
            // It is closed, and yet its end is noted.
            let (now, tick) = (model.now(), model.tick);
            let _note = model.looks[shard].note(now, tick);
            return;
        }
        if let Some(read) = read {
            model.conn(id).reads -= 1;
            drop(read);
            model.touch(id, true);
        }
        if let Some(write) = write {
            let writes = &mut model.conn(id).writes;
            let count = writes.len();
            writes.retain(|(known, _)| *known != number);
            let is_in_time = !is_limited || writes.len() < count;
            assert_eq!(write.finish(), is_in_time);
            model.touch(id, false);
        }
    }

    /// To the other shard, unless a read or a write is in progress.
    fn take_along(&mut self, id: usize) {
        let model = &mut *self.model.borrow_mut();
        let conn = model.conns[id].take().unwrap();
        let here = conn.shard;
        let taken = match Rc::try_unwrap(conn.real) {
            Ok(taken) => taken,
            Err(real) => return model.conns[id] = Some(Conn { real, ..conn }),
        };
        let (now, tick) = (model.now(), model.tick);
        model.looks[here].look(now, tick);
        let settle = |note| {
            let bound = model.looks[here].when(note, tick).min(now);
            let bound = model.looks[1 - here].exact(bound);
            Note { bound, looks: None, at: note.at }
        };
        let notes = (settle(conn.read), settle(conn.written));
        let packed = taken.pack().unwrap();
        model.clock.advance(Duration::from_micros(model.rng.u64(..20_000)));
        let adopted = self.lab.shards[1 - here].timers().adopt(packed).unwrap();
        let conn = Conn {
            real: Rc::new(adopted),
            shard: 1 - here,
            read: notes.0,
            written: notes.1,
            writes: Vec::new(),
            filed: NEVER,
            is_called: false,
            ..conn
        };
        model.conns[id] = Some(conn);
        model.file(id);
    }
}

/// One history. How many events were told.
fn history(seed: u64) -> u32 {
    let mut world = World::new(seed);
    for _ in 0..400 {
        world.step(0);
    }
    world.settle();
    let model = world.model.borrow();
    let open = model.conns.iter().flatten().count();
    let kept: usize = world.lab.shards.iter().map(|shard| shard.timers().len()).sum();
    assert_eq!(open, kept, "each has one entry");
    check_law(&world.lab.counts());
    model.told
}

#[test]
fn connections_are_told_what_a_simple_model_says() {
    let first = fastrand::u64(..);
    let seeds = (0..150).map(|number| first.wrapping_add(number));
    let told = |seed| {
        let told = std::panic::catch_unwind(|| history(seed));
        told.unwrap_or_else(|_| panic!("with seed {seed}"))
    };
    let told: u32 = seeds.map(told).sum();
    assert!(told > 1_000, "{told} events are too few");
}

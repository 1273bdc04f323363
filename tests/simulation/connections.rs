//! Random histories of connections on shards and on any thread: requests and pauses, ages with a
//! grace, heartbeats with a phase, drains, pressure and orders to the idlest, while shards are held
//! up and clocks leap. A model says which connections are told, and when each event may come.
//!
//! With the code it shares no constant. It knows the promise alone: an event never comes early, a
//! stamp is late by up to 10 ms and a tick, and each order is carried out in the end.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corewheel::settings::Scale;
use corewheel::sim::{Simulation, Thread, Time};
use corewheel::{
    ConnEvent, ConnLimits, ConnTimers, DeadlineKind, Handle, RefusedKind, ShardId, ShutdownPolicy,
    TimerService,
};
use fastrand::Rng;

use crate::history::settings;
use crate::judge::{Done, start};

/// The limit of idle times, without pressure and with all of it. A quarter of the difference is
/// a number of nanoseconds.
const LIMIT: Duration = Duration::from_secs(4);
const LEAST: Duration = Duration::from_millis(400);
/// The limits of connections that have an age and heartbeats.
const AGE: Duration = Duration::from_secs(3);
const GRACE: Duration = Duration::from_millis(1_500);
const BEAT: Duration = Duration::from_secs(1);
/// The limit without a request, which pressure does not shorten.
const UNASKED: Duration = Duration::from_secs(2);
/// How much later than the activity a stamp on a shard may be, apart from ticks.
const STAMP: Duration = Duration::from_millis(12);

/// A command. Numbers of shards and connections are taken modulo how many there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Command {
    /// On this shard, for tasks on any thread or for the shard's own, with an age or without one.
    Open(u8, bool, bool),
    Touch(u8),
    /// A request of this connection, or a pause of its reads.
    BeginRequest(u8, bool),
    EndRequest(u8),
    Close(u8),
    /// Of one shard, from another thread, or of the service.
    Drain(Option<u8>, Duration),
    CloseIdlest(Option<u8>, u8),
    /// A scale of so many quarters.
    SetScale(u8),
    Run(Duration),
    Stall(u8, Duration),
    Leap(Duration),
}

/// The commands of a seed's history.
pub(crate) fn plan(rng: &mut Rng) -> Vec<Command> {
    let may_drain = rng.u8(..3) > 0;
    // Where connections have an age, no model tells which are the idlest that have none yet.
    let may_age = rng.u8(..3) == 0;
    let most = rng.u64(10..6_000);
    let count = rng.usize(10..150);
    let mut commands = Vec::new();
    while commands.len() < count {
        let time = Duration::from_micros(rng.u64(..most * 1_000));
        let (shard, conn) = (rng.u8(..), rng.u8(..));
        let whom = (rng.u8(..3) > 0).then_some(shard);
        commands.push(match rng.u8(..20) {
            0..5 => Command::Open(shard, rng.bool(), may_age && rng.bool()),
            5..8 => Command::Touch(conn),
            8 => Command::BeginRequest(conn, rng.bool()),
            9 => Command::EndRequest(conn),
            10 => Command::Close(conn),
            11 if may_drain => Command::Drain(whom, time),
            12 | 13 if !may_age => Command::CloseIdlest(whom, rng.u8(..6)),
            14 => Command::SetScale(rng.u8(..5)),
            15 => Command::Stall(shard, time / 10),
            16 => Command::Leap(time / 10),
            _ => Command::Run(time),
        });
    }
    commands
}

#[derive(Clone)]
enum Timer {
    Here(ConnTimers),
    Shared(ConnTimers<Handle>),
}

/// Evaluates an expression with the timers of a connection, on whichever side they are.
macro_rules! with_timers {
    ($timers:expr, |$it:ident| $run:expr) => {
        match $timers {
            Timer::Here($it) => $run,
            Timer::Shared($it) => $run,
        }
    };
}

/// What the model knows of one connection.
#[derive(Default)]
struct Known {
    shard: usize,
    is_shared: bool,
    has_age: bool,
    opened: Duration,
    /// The last activity, and the least scale since, in quarters.
    active: Cell<Duration>,
    least: Cell<u8>,
    /// How many turns the shard had taken at the last activity.
    turns: Cell<u64>,
    /// The latest time as which the last activity may count.
    counts_as: Cell<Duration>,
    is_asked: Cell<bool>,
    /// Whether a request is in progress, and when the last one ended; `None` if none has ended.
    has_request: Cell<bool>,
    request_ended: Cell<Option<Duration>>,
    beats: Cell<u32>,
    told: Cell<Option<Duration>>,
    cut: Cell<bool>,
    /// Whether it was idle since the last activity, and without a request since the last one.
    is_idle: Cell<bool>,
    is_unasked: Cell<bool>,
    /// Whether a connection that was told to make room has made it active.
    is_roused: Cell<bool>,
}

struct Conn {
    timers: Timer,
    /// Its drop ends the request, or the pause.
    request: RefCell<Option<Box<dyn Any>>>,
    known: Rc<Known>,
}

/// What the shards were ordered.
struct Orders {
    time: Time,
    start: std::time::Instant,
    quarters: Cell<u8>,
    /// For each shard, when its first drain began, and the earliest and the last end of a drain.
    drains: RefCell<Vec<Option<(Duration, Duration, Duration)>>>,
    /// Whether the idlest of a shard were ordered to end.
    has_idlest: RefCell<Vec<bool>>,
    /// Whether such an order is carried out at this moment.
    is_ordering: Cell<bool>,
    /// When the scale last changed.
    scaled_at: Cell<Duration>,
    tick: Duration,
}

impl Orders {
    fn now(&self) -> Duration {
        self.time.now() - self.start
    }

    /// A connection that is told makes another one of its shard active, as the two sides of a proxy
    /// do.
    fn rouse(&self, timers: &Timer, known: &Known) {
        let now = self.now();
        // Only where its stamp changes, and while one order is carried out.
        if self.is_ordering.get() && known.counts_as.get() < now && known.told.get().is_none() {
            with_timers!(timers, |timers| timers.touch());
            known.is_active(now, self.quarters.get());
            known.counts_as.set(now + STAMP + 2 * self.tick);
            known.is_roused.set(true);
        }
    }

    /// An event has come. Panics if it may not come now.
    fn note(&self, known: &Known, event: ConnEvent) {
        let (now, drain) = (self.now(), self.drains.borrow()[known.shard]);
        match event.kind {
            DeadlineKind::MaxAge => {
                assert_eq!(known.told.replace(Some(now)), None, "it is told twice");
                assert!(!known.is_roused.get() || drain.is_some(), "it was active since");
                let is_ordered = drain.is_some() || self.has_idlest.borrow()[known.shard];
                let is_old = known.has_age && now >= known.opened + AGE;
                assert!(is_ordered || is_old, "it is told without an order at {now:?}");
            }
            DeadlineKind::AgeGrace => {
                assert!(known.told.get().is_some(), "it is cut before it is told");
                assert!(!known.cut.replace(true), "it is cut twice");
                let of_drain = drain.map(|(_, until, _)| until);
                let of_age = known.has_age.then_some(known.opened + AGE + GRACE);
                let until = of_drain.into_iter().chain(of_age).min();
                let until = until.expect("only a drain cuts, or a grace");
                assert!(now >= until, "it is cut at {now:?}, before {until:?}");
            }
            DeadlineKind::Heartbeat => {
                assert!(known.has_age, "heartbeat has no limit");
                // The first comes within its time, and each of the others that time after.
                let beats = known.beats.replace(known.beats.get() + 1);
                assert!(now >= known.opened + BEAT * beats, "beat {beats} comes at {now:?}");
            }
            DeadlineKind::ReadIdle => {
                let after = now.saturating_sub(known.active.get());
                assert!(after >= span(known.least.get()), "it is idle after {after:?}");
                assert!(!known.is_asked.get(), "it is idle during a request");
                known.is_idle.set(true);
            }
            DeadlineKind::RequestIdle => {
                let since = known.request_ended.get().unwrap_or(known.opened);
                assert!(now >= since + UNASKED, "no request since {since:?}, and it is {now:?}");
                assert!(!known.has_request.get(), "it is without a request during one");
                known.is_unasked.set(true);
            }
            kind => panic!("{kind} has no limit"),
        }
    }
}

fn span(quarters: u8) -> Duration {
    LEAST + LIMIT.saturating_sub(LEAST) / 4 * u32::from(quarters)
}

struct History {
    sim: Simulation<u8>,
    tick: Duration,
    conns: Vec<Conn>,
    /// For each shard, how many turns it had taken when it was last held up, and until when it was.
    held_up: Vec<(u64, Duration)>,
    orders: Rc<Orders>,
}

/// Runs the history of a seed.
pub(crate) fn run(seed: u64, commands: &[Command]) -> Done {
    let mut rng = Rng::with_seed(!seed);
    let (builder, tick) = settings(&mut rng);
    let builder = builder.capacity(1_000).lane_capacity(64);
    let mut sim = start::<u8>(seed, builder);
    // The service has run for up to a day when the first connections begin.
    sim.run_for(Duration::from_secs(rng.u64(..24 * 3_600)));
    let count = sim.service().shards().count();
    let orders = Rc::new(Orders {
        time: sim.time(),
        start: sim.now(),
        quarters: Cell::new(4),
        drains: RefCell::new(vec![None; count]),
        has_idlest: RefCell::new(vec![false; count]),
        is_ordering: Cell::new(false),
        scaled_at: Cell::default(),
        tick,
    });
    let held_up = vec![(0, Duration::ZERO); count];
    let mut history = History { sim, tick, conns: Vec::new(), held_up, orders };
    for command in commands {
        history.execute(command);
    }
    history.finish();
    Done::of([("commands", commands.len() as u64)])
}

impl History {
    fn service(&self) -> Rc<TimerService<u8>> {
        Rc::clone(self.sim.service())
    }

    fn shards(&self) -> usize {
        self.service().shards().count()
    }

    fn place(&self, number: u8) -> Option<usize> {
        usize::from(number).checked_rem(self.conns.len())
    }

    fn conn(&self, number: u8) -> Option<&Conn> {
        self.place(number).map(|place| &self.conns[place])
    }

    /// A connection is active now.
    fn is_active(&self, known: &Known) {
        known.is_active(self.orders.now(), self.orders.quarters.get());
        self.note_stamp(known);
    }

    fn end_request(&self, conn: &Conn) {
        if conn.request.take().is_some() {
            conn.known.is_asked.set(false);
            conn.known.request_ends(self.orders.now());
            self.is_active(&conn.known);
        }
    }

    fn execute(&mut self, command: &Command) {
        let now = self.orders.now();
        match *command {
            Command::Open(shard, is_shared, has_age) => {
                self.open(usize::from(shard) % self.shards(), is_shared, has_age);
            }
            Command::Touch(number) => {
                let Some(conn) = self.conn(number) else { return };
                with_timers!(&conn.timers, |timers| timers.touch());
                self.is_active(&conn.known);
            }
            Command::BeginRequest(number, is_pause) => {
                let Some(conn) = self.conn(number) else { return };
                conn.known.is_asked.set(true);
                // It takes the place of the one before.
                conn.known.request_ends(now);
                conn.known.has_request.set(!is_pause);
                let request: Box<dyn Any> =
                    with_timers!(&conn.timers, |timers| Box::new(if is_pause {
                        timers.begin_read()
                    } else {
                        timers.begin_request()
                    }));
                conn.request.replace(Some(request));
                self.is_active(&conn.known);
            }
            Command::EndRequest(number) => {
                let Some(conn) = self.conn(number) else { return };
                self.end_request(conn);
            }
            Command::Close(number) => {
                let Some(place) = self.place(number) else { return };
                let closed = self.conns.swap_remove(place);
                with_timers!(closed.timers, |timers| timers.close());
            }
            Command::Drain(shard, window) => self.drain(shard, window),
            Command::CloseIdlest(shard, count) => self.close_idlest(shard, count.into()),
            Command::SetScale(quarters) => {
                self.orders.quarters.set(quarters);
                self.orders.scaled_at.set(now);
                for conn in &self.conns {
                    conn.known.least.set(conn.known.least.get().min(quarters));
                }
                let factor = f64::from(quarters) / 4.0;
                self.service().set_scale(Scale::new(factor).expect("there are four quarters"));
            }
            Command::Run(time) => {
                self.sim.run_for(time);
                self.check_late();
            }
            Command::Stall(shard, stall) => {
                let shard = usize::from(shard) % self.shards();
                self.sim.stall(ShardId::new(shard as u16), stall);
                self.hold_up(shard);
            }
            Command::Leap(by) => {
                self.sim.leap(by);
                for shard in 0..self.shards() {
                    self.hold_up(shard);
                }
            }
        }
    }

    /// How many turns a shard has taken. Each turn begins with a reading of the clock.
    fn turns(&self, shard: usize) -> u64 {
        self.service().stats().shards[shard].counts.turns
    }

    /// The last activity of a connection has its stamp.
    fn note_stamp(&self, known: &Known) {
        let turns = self.turns(known.shard);
        known.turns.set(turns);
        known.counts_as.set(known.active.get() + STAMP + 2 * self.tick);
        let (held_turns, until) = self.held_up[known.shard];
        if held_turns == turns {
            known.is_stamped_before_reading_at(until);
        }
    }

    /// A shard reads the clock no earlier than now, or than the end of its stall. Until then, the
    /// stamps that were made since its last turn may count as the time of that reading.
    fn hold_up(&mut self, shard: usize) {
        let turns = self.turns(shard);
        let stall_end = self.sim.stall_end(ShardId::new(shard as u16)).unwrap_or_default();
        let until = self.orders.now() + stall_end.saturating_sub(self.sim.elapsed());
        self.held_up[shard] = (turns, until);
        for conn in &self.conns {
            if conn.known.shard == shard && conn.known.turns.get() == turns {
                conn.known.is_stamped_before_reading_at(until);
            }
        }
    }

    /// Checks that each connection that has had its time was told, under the scale that there is.
    fn check_late(&self) {
        let slack = 2 * STAMP + 4 * self.tick;
        for Conn { known, .. } in &self.conns {
            let (_, held_until) = self.held_up[known.shard];
            let due = known.counts_as.get() + span(self.orders.quarters.get());
            let due = due.max(self.orders.scaled_at.get()).max(held_until) + slack;
            let is_late = self.orders.now() > due && !known.is_idle.get();
            let may_be_late = known.is_asked.get() || known.told.get().is_some();
            assert!(!is_late || may_be_late, "it is not idle by {due:?}");
        }
    }

    fn open(&mut self, shard: usize, is_shared: bool, has_age: bool) {
        let id = ShardId::new(shard as u16);
        let limits = ConnLimits::default().read_idle(LIMIT).read_idle_least(LEAST);
        let mut limits = limits.request_idle(UNASKED);
        if has_age {
            limits = limits.max_age(AGE).max_age_grace(GRACE);
            limits = limits.heartbeat(BEAT).heartbeat_phase(true);
        }
        let known = Rc::new(Known {
            shard,
            is_shared,
            has_age,
            opened: self.orders.now(),
            active: Cell::new(self.orders.now()),
            least: Cell::new(self.orders.quarters.get()),
            ..Known::default()
        });
        self.note_stamp(&known);
        let (orders, noted) = (Rc::clone(&self.orders), Rc::clone(&known));
        let rouses = self.conns.last().filter(|conn| conn.known.shard == shard);
        // One that is not told by another task, later.
        let rouses = rouses.filter(|conn| !conn.known.is_shared);
        let rouses = rouses.map(|conn| (conn.timers.clone(), Rc::clone(&conn.known)));
        let timers = if is_shared {
            let timers = self.service().handle().on(id).connection(limits);
            let waiting = timers.clone();
            drop(self.sim.spawn(async move {
                loop {
                    match waiting.next().await {
                        Ok(Some(event)) => orders.note(&noted, event),
                        Ok(None) | Err(RefusedKind::Closed) => return,
                        Err(refused) => panic!("there is room: {refused}"),
                    }
                }
            }));
            Timer::Shared(timers)
        } else {
            let timers = self.sim.timers(id).connection(limits).expect("there is room");
            timers.on_event(move |_, event| {
                orders.note(&noted, event);
                if let (DeadlineKind::MaxAge, Some((timers, known))) = (event.kind, &rouses) {
                    orders.rouse(timers, known);
                }
            });
            Timer::Here(timers)
        };
        self.conns.push(Conn { timers, request: RefCell::default(), known });
    }

    /// The shards that an order is for: this one, or all.
    fn ordered(&self, shard: Option<u8>) -> Vec<usize> {
        let count = self.shards();
        shard.map_or_else(|| (0..count).collect(), |shard| vec![usize::from(shard) % count])
    }

    fn drain(&mut self, shard: Option<u8>, window: Duration) {
        let (now, service, shards) = (self.orders.now(), self.service(), self.ordered(shard));
        if shard.is_some() {
            let thread = Thread::of(&service);
            let shard = thread.on(ShardId::new(shards[0] as u16));
            shard.drain(window).expect("the shard is open");
        } else {
            service.drain(window);
        }
        let until = now + window;
        for shard in shards {
            let drain = &mut self.orders.drains.borrow_mut()[shard];
            let (from, first, _) = drain.unwrap_or((now, until, until));
            *drain = Some((from, first.min(until), until));
        }
    }

    fn close_idlest(&mut self, shard: Option<u8>, count: usize) {
        // Earlier orders are carried out, unless a shard is held up.
        self.sim.settle();
        let before: Vec<_> = self.conns.iter().map(|conn| conn.known.told.get()).collect();
        let (service, shards) = (self.service(), self.ordered(shard));
        if shard.is_some() {
            let thread = Thread::of(&service);
            let shard = thread.on(ShardId::new(shards[0] as u16));
            shard.close_idlest(count).expect("it is open");
        } else {
            service.close_idlest(count);
        }
        if count > 0 {
            for shard in &shards {
                self.orders.has_idlest.borrow_mut()[*shard] = true;
            }
        }
        self.orders.is_ordering.set(true);
        self.sim.settle();
        self.orders.is_ordering.set(false);
        for shard in shards {
            let end = self.sim.stall_end(ShardId::new(shard as u16));
            let is_held_up = end.is_some_and(|end| end > self.sim.elapsed());
            if !is_held_up && self.orders.drains.borrow()[shard].is_none() {
                self.check_idlest(shard, count, &before);
            }
        }
        for Conn { known, .. } in self.conns.iter().filter(|conn| conn.known.is_roused.take()) {
            self.note_stamp(known);
        }
    }

    /// Checks that the idlest connections of a shard were told, and no others.
    fn check_idlest(&self, shard: usize, count: usize, before: &[Option<Duration>]) {
        let (mut told, mut left, mut roused) = (Vec::new(), Vec::new(), 0);
        for (conn, before) in self.conns.iter().zip(before) {
            let known = &conn.known;
            if known.shard != shard || before.is_some() {
                continue;
            }
            let is_told = known.told.get().is_some();
            roused += usize::from(known.is_roused.get());
            assert!(!(is_told && known.is_asked.get()), "it is told during a request");
            if is_told {
                told.push(known.active.get());
            } else if !known.is_asked.get() && !known.is_roused.get() {
                left.push(known.counts_as.get());
            }
        }
        // One that was found and then active is not told, and none takes its place.
        let has_told = told.len() <= count && (told.len() + roused >= count || left.is_empty());
        assert!(has_told, "{told:?} of {count}");
        if let (Some(last), Some(first)) = (told.iter().max(), left.iter().min()) {
            assert!(last <= first, "told {last:?}, and not a connection active until {first:?}");
        }
    }

    /// Lets all shards run, and checks that each order was carried out.
    fn finish(mut self) {
        for conn in &self.conns {
            self.end_request(conn);
        }
        let stalled =
            (0..self.shards()).filter_map(|shard| self.sim.stall_end(ShardId::new(shard as u16)));
        let stalls = stalled.max().unwrap_or_default().saturating_sub(self.sim.elapsed());
        let slack = 2 * STAMP + 4 * self.tick;
        self.sim.run_for(stalls + slack);
        self.sim.run_for(span(self.orders.quarters.get()).max(UNASKED) + slack);
        let ends = self.orders.drains.borrow().iter().flatten().map(|drain| drain.2).max();
        let left = ends.unwrap_or_default().saturating_sub(self.orders.now());
        self.sim.run_for(left + slack);
        if self.conns.iter().any(|conn| conn.known.has_age) {
            self.sim.run_for(AGE + slack);
            self.sim.run_for(GRACE + slack);
        }
        for conn in &self.conns {
            let known = &conn.known;
            assert!(known.is_idle.get(), "it was idle since {:?}", known.active.get());
            assert!(known.is_unasked.get(), "it has told nobody that no request came");
            assert!(known.beats.get() > 0 || !known.has_age, "it has no heartbeat");
            if known.has_age || self.orders.drains.borrow()[known.shard].is_some() {
                let opened = known.opened;
                assert!(known.told.get().is_some(), "opened at {opened:?}, and not told");
                assert!(known.cut.get(), "opened at {opened:?}, and not cut");
            }
        }
        let service = self.service();
        drop(service.begin_shutdown(ShutdownPolicy::Drop));
        service.drain(Duration::ZERO);
        service.close_idlest(1);
        self.sim.settle();
    }
}

impl Known {
    fn is_active(&self, now: Duration, quarters: u8) {
        self.active.set(now);
        self.least.set(quarters);
        self.is_idle.set(false);
    }

    fn request_ends(&self, now: Duration) {
        if self.has_request.replace(false) {
            self.request_ended.set(Some(now));
            self.is_unasked.set(false);
        }
    }

    /// The shard reads the clock at this time, and has not read it since the last activity. The
    /// stamps of connections on any thread are exact.
    fn is_stamped_before_reading_at(&self, reading: Duration) {
        if !self.is_shared {
            self.counts_as.set(self.counts_as.get().max(reading));
        }
    }
}

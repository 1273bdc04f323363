//! The same random history of a connection on its shard and of one whose tasks run on any thread:
//! both get the same events in the same polls.
//!
//! Both sides share the rules of deadlines, so no fault of a rule shows here: the model of random
//! histories finds those.

use super::measured::random_limits;
use super::*;
use corewheel_test_support::nanos_of;

fn touch<S: Side>(conn: &ConnTimers<S>, is_read: bool) {
    if is_read { conn.touch_read() } else { conn.touch_write() }
}

struct Pair {
    lab: Lab<u8>,
    rng: Rng,
    tick: Duration,
    here: ConnTimers,
    shared: ConnTimers<Handle>,
    /// What is in progress to the end of the history: the end of it would be a stamp, which on a
    /// shard is later than the activity.
    held: Vec<(InProgress, InProgress<Handle>)>,
    writes: Vec<(InProgress, InProgress<Handle>)>,
    has_rates: bool,
    transfers: Vec<(InProgress, InProgress<Handle>)>,
    events: usize,
    /// The scale of the limits.
    factor: f64,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let tick = Duration::from_micros([100, 1_000, 7_000, 1_000_000][rng.usize(..4)]);
        let mut lab = Lab::new(TimerService::builder().shards(1).capacity(256).tick(tick));
        lab.advance(tick.mul_f64(rng.f64() * 30.0) + Duration::from_nanos(137));
        let has_rates = rng.bool();
        let limits = limits_of(&mut rng, tick, has_rates);
        let here = lab.timers().connection(limits).unwrap();
        let shared = Handle::open(&lab, limits);
        Self {
            lab,
            rng,
            tick,
            here,
            shared,
            held: Vec::new(),
            writes: Vec::new(),
            has_rates,
            transfers: Vec::new(),
            events: 0,
            factor: 1.0,
        }
    }

    fn step(&mut self) {
        let now = self.lab.clock.now();
        match self.rng.u32(..28) {
            0..3 => self.touch(true),
            3..6 => self.touch(false),
            6..8 => {
                let kind = ARMED[self.rng.usize(..ARMED.len())];
                let at = now + self.tick.mul_f64(self.rng.f64() * 30.0);
                assert_eq!(self.here.arm(kind, at), self.shared.arm(kind, at));
            }
            8 => {
                let kind = KINDS[self.rng.usize(..KINDS.len())];
                assert_eq!(self.here.disarm(kind), self.shared.disarm(kind), "{kind}");
            }
            9 => {
                let limits = limits_of(&mut self.rng, self.tick, self.has_rates);
                self.here.set_limits(limits);
                self.shared.set_limits(limits);
            }
            10 => self.writes.push((self.here.begin_write(), self.shared.begin_write())),
            11 => self.end_writes(),
            12 if self.rng.u32(..20) == 0 => {
                self.held.push((self.here.begin_read(), self.shared.begin_read()));
            }
            13 if self.rng.u32(..20) == 0 => {
                self.held.push((self.here.begin_request(), self.shared.begin_request()));
            }
            14..20 => self.transfer(),
            20 => {
                let factor = f64::from(self.rng.u32(..5)) / 4.0;
                self.lab.service.set_scale(Scale::new(factor).unwrap());
                self.poll();
                if factor > std::mem::replace(&mut self.factor, factor) {
                    // No connection is visited. Each has longer limits when it next looks at its
                    // deadlines, which are both looked at now.
                    let limits = self.here.limits();
                    self.here.set_limits(limits);
                    self.shared.set_limits(limits);
                }
            }
            // Both are told at the beginning of the window, as there is no other connection.
            21 if self.rng.u32(..40) == 0 => {
                self.lab.service.drain(Duration::ZERO);
                self.poll();
            }
            22 if self.rng.u32(..40) == 0 => {
                self.lab.service.close_idlest(2);
                self.poll();
            }
            _ => {
                let most = [0.3, 3.0, 40.0][self.rng.usize(..3)];
                self.lab.clock.advance(self.tick.mul_f64(self.rng.f64() * most));
                if self.rng.u32(..3) > 0 {
                    self.poll();
                }
            }
        }
    }

    /// A measured transfer begins, goes on or ends.
    fn transfer(&mut self) {
        let (what, count) = (self.rng.u32(..8), self.transfers.len());
        if what == 0 || count == 0 {
            self.transfers.push(if self.rng.bool() {
                (self.here.begin_measured_read(), self.shared.begin_measured_read())
            } else {
                (self.here.begin_measured_write(), self.shared.begin_measured_write())
            });
            return;
        }
        let at = self.rng.usize(..count);
        let (here, shared) = &self.transfers[at];
        match what {
            1..5 if self.has_rates => {
                let bytes = self.rng.u64(..200);
                here.add(bytes);
                shared.add(bytes);
            }
            5 => {
                here.pause();
                shared.pause();
            }
            6 => {
                here.resume();
                shared.resume();
            }
            7 => {
                let (here, shared) = self.transfers.swap_remove(at);
                assert_eq!(here.finish(), shared.finish());
            }
            _ => {}
        }
    }

    /// Both connections have the same stamp of an activity, after a turn at that time.
    fn touch(&mut self, is_read: bool) {
        // The shard has read the clock, so its next stamp is not before the present.
        self.poll();
        let stamps = Timers::open(&self.lab, NONE.read_idle(FAR));
        stamps.touch_read();
        touch(&self.here, is_read);
        let due = stamps.deadline(ReadIdle).unwrap();
        self.lab.clock.advance(due.checked_sub(FAR).unwrap() - self.lab.clock.now());
        touch(&self.shared, is_read);
        drop(stamps);
        self.poll();
    }

    /// The end of a write is a stamp, which on a shard is later than the write. So writes end where
    /// no deadline follows from it, and then both connections are given the same stamp.
    fn end_writes(&mut self) {
        let limits = self.here.limits();
        let idle = [limits.read_idle, limits.write_idle, limits.all_idle, limits.heartbeat];
        if idle != [Duration::ZERO; 4] {
            return;
        }
        for (here, shared) in self.writes.drain(..) {
            assert_eq!(here.finish(), shared.finish());
        }
        self.lab.clock.advance(ms(12) + 2 * self.tick);
        self.touch(false);
    }

    /// The shard takes its turns, and the task polls. Both have the same events.
    fn poll(&mut self) {
        loop {
            // A poll for events of a shared connection looks at the deadlines, and so does a turn.
            self.lab.settle();
            let mut here = event(&self.here);
            if here.is_none() {
                // An event may have been withdrawn, and another one of its kind be due.
                self.lab.settle();
                here = event(&self.here);
            }
            let shared = event(&self.shared);
            assert_eq!(here, shared, "at {}", nanos_of(self.lab.timers()));
            if here.is_none() {
                break;
            }
            self.events += 1;
            // Other events may be left until the next poll.
            if self.rng.u32(..6) == 0 {
                return;
            }
        }
        for kind in KINDS {
            assert_eq!(self.here.deadline(kind), self.shared.deadline(kind), "{kind}");
        }
    }
}

/// Bytes are activity, and their stamp on a shard is later than they are. So there are rates only
/// where no deadline follows from activity.
fn limits_of(rng: &mut Rng, tick: Duration, has_rates: bool) -> ConnLimits {
    let (limits, off) = (random_limits(rng, tick), Duration::ZERO);
    if has_rates {
        limits.read_idle(off).write_idle(off).all_idle(off).request_idle(off).heartbeat(off)
    } else {
        limits.min_read_rate(DataRate::OFF).min_write_rate(DataRate::OFF)
    }
}

/// One history. Returns the number of events.
fn history(seed: u64) -> usize {
    let mut pair = Pair::new(seed);
    for _ in 0..400 {
        pair.step();
    }
    pair.poll();
    pair.events
}

#[test]
fn same_history_gives_a_shared_connection_the_events_of_a_local_one() {
    let events = seeds::each(200, history);
    let (count, events) = (events.len(), events.into_iter().sum::<usize>());
    assert!(count == 1 || events > 2_000, "{events} events are too few");
}

//! Least data rates: when a measured transfer is too slow, on a shard and for tasks on any thread.

use std::thread;
use std::time::Instant;

use corewheel::conn::{InProgress, Side};
use corewheel::{Handle, Timers};

use super::*;
use corewheel_test_support::Alarm;

/// A connection of either kind.
trait Conn {
    fn event(&self) -> Option<(DeadlineKind, bool)>;
    fn begin(&self, kind: DeadlineKind) -> Box<dyn Guard>;
    fn deadline(&self, kind: DeadlineKind) -> Option<Instant>;
    fn close(&self);
}

/// A measured transfer of either kind.
trait Guard {
    fn add(&self, bytes: u64);
    fn pause(&self);
    fn resume(&self);
    fn finish(self: Box<Self>) -> bool;
}

macro_rules! either {
    ($side:ty, $event:path) => {
        impl Conn for ConnTimers<$side> {
            fn event(&self) -> Option<(DeadlineKind, bool)> {
                $event(self)
            }
            fn begin(&self, kind: DeadlineKind) -> Box<dyn Guard> {
                if kind == ReadRate {
                    Box::new(self.begin_measured_read())
                } else {
                    Box::new(self.begin_measured_write())
                }
            }
            fn deadline(&self, kind: DeadlineKind) -> Option<Instant> {
                self.deadline(kind)
            }
            fn close(&self) {
                self.close();
            }
        }
    };
}
either!(Timers, event);
either!(Handle, shared::event);

impl<S: Side> Guard for InProgress<S> {
    fn add(&self, bytes: u64) {
        self.add(bytes);
    }
    fn pause(&self) {
        self.pause();
    }
    fn resume(&self) {
        self.resume();
    }
    fn finish(self: Box<Self>) -> bool {
        (*self).finish()
    }
}

/// One connection, by a clock that shows whole milliseconds.
struct Rig {
    lab: Lab<u8>,
    conn: Box<dyn Conn>,
}

impl Rig {
    fn run(&mut self, milliseconds: u64) -> Vec<(u64, DeadlineKind)> {
        let mut events = Vec::new();
        for _ in 0..milliseconds {
            self.lab.advance(ms(1));
            while let Some((kind, first)) = self.conn.event() {
                assert!(first, "{kind}");
                events.push((ticks_of(self.lab.timers()), kind));
            }
        }
        events
    }

    fn now(&self) -> Instant {
        self.lab.clock.now()
    }
}

/// A connection of each kind, one after the other. A task waits for its events.
fn rigs(limits: ConnLimits) -> impl Iterator<Item = Rig> {
    [true, false].into_iter().map(move |is_shared| {
        let lab = lab();
        let conn: Box<dyn Conn> = if is_shared {
            Box::new(shared::connect(&lab, limits))
        } else {
            Box::new(lab.timers().connection(limits).unwrap())
        };
        assert_eq!(conn.event(), None);
        Rig { lab, conn }
    })
}

/// A byte in a millisecond, after 100 ms.
const RATE: DataRate = DataRate::new(1_000, ms(100));
const RATES: ConnLimits = NONE.min_read_rate(RATE).min_write_rate(RATE);
const BOTH: [DeadlineKind; 2] = [ReadRate, WriteRate];

#[test]
fn transfer_without_grace_at_the_first_nanosecond_has_one_event() {
    let rate = DataRate::new(1_000, Duration::ZERO);
    for kind in BOTH {
        for mut rig in rigs(NONE.min_read_rate(rate).min_write_rate(rate)) {
            let transfer = rig.conn.begin(kind);
            let mut events = Vec::new();
            for _ in 0..4 {
                let _ = rig.lab.turn();
                events.extend(rig.conn.event());
            }
            assert_eq!(events, [(kind, true)]);
            assert_eq!((rig.conn.deadline(kind), rig.run(500)), (None, vec![]));
            assert!(!transfer.finish());
        }
    }
}

#[test]
fn forgotten_transfer_has_its_event_unless_another_one_begins() {
    for mut rig in rigs(RATES) {
        std::mem::forget(rig.conn.begin(ReadRate));
        assert_eq!(rig.run(100), [(100, ReadRate)]);
        std::mem::forget(rig.conn.begin(ReadRate));
        drop(rig.conn.begin(ReadRate));
        assert_eq!(rig.run(200), []);
        let third = rig.conn.begin(ReadRate);
        assert_eq!(rig.run(100), [(400, ReadRate)]);
        assert!(!third.finish());
    }
}

#[test]
fn time_that_does_not_fit_means_never() {
    let never = [DataRate::new(1, Duration::ZERO), DataRate::new(u64::MAX, Duration::MAX)];
    for rate in never {
        for mut rig in rigs(NONE.min_write_rate(rate)) {
            assert_eq!(rig.run(1), []);
            let transfer = rig.conn.begin(WriteRate);
            transfer.add(u64::MAX);
            transfer.add(2);
            transfer.add(u64::MAX);
            assert_eq!(rig.conn.deadline(WriteRate), None);
            // Until the last second that the clock can show.
            let range = Duration::from_nanos(u64::MAX) - Duration::from_secs(1);
            let age = rig.lab.clock.now().duration_since(rig.lab.epoch);
            rig.lab.advance(range.saturating_sub(age));
            assert_eq!(rig.conn.event(), None);
            assert!(transfer.finish());
        }
    }
    // Products of more than 64 bits whose quotient fits.
    let fast = DataRate::new(1 << 50, Duration::ZERO);
    for rig in rigs(NONE.min_write_rate(fast)) {
        let (start, transfer) = (rig.now(), rig.conn.begin(WriteRate));
        transfer.add(3 << 50);
        assert_eq!(rig.conn.deadline(WriteRate), Some(start + Duration::from_secs(3)));
        transfer.add(1);
        let due = Duration::from_nanos(3_000_000_001);
        assert_eq!(rig.conn.deadline(WriteRate), Some(start + due));
    }
}

#[test]
fn bytes_count_as_activity_with_and_without_a_rate() {
    let idle = NONE.read_idle(ms(100)).write_idle(ms(100));
    for limits in [idle, idle.min_read_rate(RATE).min_write_rate(RATE)] {
        for (kind, other) in [(ReadRate, WriteIdle), (WriteRate, ReadIdle)] {
            for mut rig in rigs(limits) {
                let transfer = rig.conn.begin(kind);
                assert_eq!(rig.run(80), []);
                transfer.add(1_000);
                let events = rig.run(99);
                assert_eq!(events, [(100, other)], "{kind}");
                drop(transfer);
            }
        }
    }
}

#[test]
fn transfer_of_a_closed_connection_has_no_effect() {
    for mut rig in rigs(RATES) {
        let before = rig.conn.begin(ReadRate);
        rig.conn.close();
        let after = rig.conn.begin(WriteRate);
        for transfer in [&before, &after] {
            transfer.add(10);
            transfer.pause();
            transfer.resume();
        }
        assert_eq!(BOTH.map(|kind| rig.conn.deadline(kind)), [None; 2]);
        assert_eq!(rig.run(200), []);
        assert!(before.finish() && after.finish());
    }
}

#[test]
fn bytes_and_pauses_have_no_effect_on_what_is_not_measured() {
    let limits = NONE.write_timeout(ms(100)).read_idle(ms(200)).min_read_rate(RATE);
    let mut lab = lab();
    let conn = lab.timers().connection(limits).unwrap();
    let (write, request) = (conn.begin_write(), conn.begin_request());
    run(&mut lab, &conn, 60);
    for held in [&write, &request] {
        held.add(1_000);
        held.pause();
    }
    assert_eq!(run(&mut lab, &conn, 60), [(100, WriteTimeout, true)]);
    request.resume();
    assert!(!write.finish() && request.finish());
    assert_eq!(format!("{:?}", conn.begin_measured_read()), "InProgress(read rate)");
}

#[test]
fn bytes_of_other_threads_count_and_wake_no_task() {
    fn check<V: Send + Sync + 'static>() {}
    check::<InProgress<Handle>>();
    let mut lab = lab();
    let conn = shared::connect(&lab, RATES);
    let transfer = conn.begin_measured_read();
    let (alarm, waker) = Alarm::new();
    for _ in 0..10 {
        assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
        let before = alarm.count();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10).for_each(|_| transfer.add(2)));
            }
        });
        assert_eq!(alarm.count(), before, "adding wakes no task");
        lab.advance(ms(79));
    }
    let due = lab.clock.now() + ms(10);
    assert_eq!(conn.deadline(ReadRate), Some(due));
    thread::scope(|scope| scope.spawn(|| transfer.pause()).join().unwrap());
    lab.advance(ms(100));
    assert_eq!(shared::event(&conn), None);
    thread::spawn(move || assert!(transfer.finish())).join().unwrap();
}

#[test]
fn transfer_resets_the_timer_of_its_connection_only_if_its_deadline_is_the_first() {
    let mut lab = lab();
    let conn = shared::connect(&lab, RATES.handshake(ms(150)));
    let (alarm, waker) = Alarm::new();
    let wait = || assert!(conn.poll_next(&mut Context::from_waker(&waker)).is_pending());
    wait();
    let (write, read) = (conn.begin_measured_write(), conn.begin_measured_read());
    assert_eq!(alarm.count(), 0, "the timer is reset in its slot");
    write.pause();
    read.pause();
    lab.advance(ms(120));
    assert_eq!(alarm.count(), 1, "the timer of the write has expired, before the handshake");
    wait();
    conn.disarm(Handshake).unwrap();
    lab.advance(ms(80));
    wait();
    let before = alarm.count();
    write.add(300);
    write.resume();
    read.resume();
    assert_eq!(alarm.count(), before, "there was no deadline, and the read is due earlier");
    lab.advance(ms(100));
    assert_eq!(alarm.count(), before + 1);
    assert_eq!(shared::event(&conn), Some((ReadRate, true)));
}

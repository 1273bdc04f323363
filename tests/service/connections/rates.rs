//! Least data rates: when a measured transfer is too slow, on a shard and for tasks on any thread.

use std::thread;
use std::time::Instant;

use corewheel::conn::{InProgress, Side};
use corewheel::{Handle, Timers};

use super::*;
use crate::support::Alarm;

/// A connection of either kind.
trait Conn {
    fn event(&self) -> Option<(DeadlineKind, bool)>;
    fn begin(&self, kind: DeadlineKind) -> Box<dyn Guard>;
    fn deadline(&self, kind: DeadlineKind) -> Option<Instant>;
    fn set_limits(&self, limits: ConnLimits);
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
            fn set_limits(&self, limits: ConnLimits) {
                self.set_limits(limits);
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
fn transfer_without_bytes_has_one_event_at_the_end_of_its_grace() {
    for kind in BOTH {
        for mut rig in rigs(RATES) {
            assert_eq!(rig.run(30), []);
            let transfer = rig.conn.begin(kind);
            assert_eq!(rig.conn.deadline(kind), Some(rig.now() + ms(100)));
            assert_eq!(rig.run(99), []);
            assert_eq!(rig.run(1), [(130, kind)]);
            assert_eq!(rig.conn.deadline(kind), None);
            transfer.add(150);
            assert_eq!(rig.run(500), [], "{kind} comes once");
            assert!(!transfer.finish());
        }
    }
}

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
fn bytes_give_the_transfer_the_time_that_they_take_at_the_rate() {
    for kind in BOTH {
        for mut rig in rigs(RATES) {
            let start = rig.now();
            let transfer = rig.conn.begin(kind);
            assert_eq!(rig.run(40), []);
            transfer.add(100);
            // The grace is no time beside that of the bytes.
            assert_eq!(rig.conn.deadline(kind), Some(start + ms(100)));
            transfer.add(1);
            assert_eq!(rig.conn.deadline(kind), Some(start + ms(101)));
            transfer.add(149);
            assert_eq!(rig.run(209), []);
            assert_eq!(rig.run(1), [(250, kind)]);
        }
    }
}

#[test]
fn transfer_at_the_exact_rate_is_too_slow_and_one_byte_ahead_is_not() {
    for (ahead, expected) in [(0, vec![(100, ReadRate)]), (1, vec![])] {
        for mut rig in rigs(RATES) {
            let transfer = rig.conn.begin(ReadRate);
            transfer.add(ahead);
            let mut events = Vec::new();
            for _ in 0..1_000 {
                // A byte comes in each millisecond.
                transfer.add(1);
                events.extend(rig.run(1));
            }
            assert_eq!(events, expected);
            assert_eq!(transfer.finish(), ahead > 0);
        }
    }
}

#[test]
fn burst_before_its_time_is_enough_for_the_time_that_follows() {
    for mut rig in rigs(RATES) {
        let transfer = rig.conn.begin(WriteRate);
        for _ in 0..5 {
            transfer.add(1_000);
            assert_eq!(rig.run(999), []);
        }
        assert_eq!(rig.run(5), [(5_000, WriteRate)]);
    }
}

#[test]
fn bytes_that_come_one_tick_before_the_deadline_are_in_time() {
    for mut rig in rigs(RATES) {
        let transfer = rig.conn.begin(ReadRate);
        assert_eq!(rig.run(99), []);
        transfer.add(101);
        assert_eq!(rig.run(1), []);
        transfer.add(1);
        assert_eq!(rig.run(1), []);
        assert_eq!(rig.run(1), [(102, ReadRate)]);
    }
}

#[test]
fn transfer_that_ends_within_its_grace_has_no_event() {
    for mut rig in rigs(RATES) {
        let first = rig.conn.begin(ReadRate);
        assert_eq!(rig.run(99), []);
        assert!(first.finish());
        assert_eq!(rig.conn.deadline(ReadRate), None);
        let second = rig.conn.begin(ReadRate);
        assert_eq!(rig.run(99), []);
        drop(second);
        assert_eq!(rig.run(500), []);
    }
}

#[test]
fn time_for_which_a_transfer_is_paused_does_not_count() {
    for kind in BOTH {
        for mut rig in rigs(RATES) {
            let transfer = rig.conn.begin(kind);
            assert_eq!(rig.run(60), []);
            transfer.pause();
            assert_eq!(rig.conn.deadline(kind), None);
            assert_eq!(rig.run(500), []);
            transfer.pause();
            assert_eq!(rig.run(500), [], "a second pause changes nothing");
            transfer.resume();
            assert_eq!(rig.conn.deadline(kind), Some(rig.now() + ms(40)));
            assert_eq!(rig.run(20), []);
            transfer.resume();
            transfer.pause();
            // What is transferred meanwhile counts.
            transfer.add(130);
            assert_eq!(rig.run(1_000), []);
            transfer.resume();
            assert_eq!(rig.run(49), []);
            assert_eq!(rig.run(1), [(2_130, kind)]);
        }
    }
}

#[test]
fn transfer_that_was_too_slow_before_its_pause_has_its_event_after_it() {
    for mut rig in rigs(RATES) {
        let transfer = rig.conn.begin(ReadRate);
        // No turn and no poll comes in between.
        rig.lab.clock.advance(ms(150));
        transfer.pause();
        assert_eq!(rig.run(100), []);
        transfer.resume();
        assert_eq!(rig.run(1), [(251, ReadRate)]);
        transfer.pause();
        transfer.resume();
        assert_eq!(rig.run(500), [], "it comes once");
        assert!(!transfer.finish());
    }
}

#[test]
fn second_transfer_takes_the_place_of_the_first() {
    for mut rig in rigs(RATES) {
        let first = rig.conn.begin(ReadRate);
        let write = rig.conn.begin(WriteRate);
        assert_eq!(rig.run(60), []);
        let second = rig.conn.begin(ReadRate);
        first.add(1_000);
        first.pause();
        first.resume();
        assert_eq!(rig.conn.deadline(ReadRate), Some(rig.now() + ms(100)));
        assert_eq!(rig.run(40), [(100, WriteRate)], "that is no read");
        first.pause();
        assert!(!first.finish(), "it has no deadline any more");
        assert_eq!(rig.run(59), []);
        assert_eq!(rig.run(1), [(160, ReadRate)]);
        assert!(!second.finish() && !write.finish());
    }
}

#[test]
fn limits_that_change_leave_a_transfer_its_rate() {
    for mut rig in rigs(NONE) {
        let unlimited = rig.conn.begin(ReadRate);
        rig.conn.set_limits(RATES);
        assert_eq!(rig.run(200), []);
        assert!(unlimited.finish());
        let limited = rig.conn.begin(ReadRate);
        rig.conn.set_limits(NONE);
        limited.add(120);
        assert_eq!(rig.run(119), []);
        assert_eq!(rig.run(1), [(320, ReadRate)]);
        // A transfer without a rate takes the place of one that has one, too.
        rig.conn.set_limits(RATES);
        let limited = rig.conn.begin(ReadRate);
        rig.conn.set_limits(NONE);
        let unlimited = rig.conn.begin(ReadRate);
        assert_eq!(rig.run(200), []);
        assert!(!limited.finish() && unlimited.finish());
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
fn transfer_after_another_begins_with_no_bytes_and_no_pause() {
    for mut rig in rigs(RATES) {
        let first = rig.conn.begin(ReadRate);
        first.add(500);
        first.pause();
        drop(first);
        let second = rig.conn.begin(ReadRate);
        assert_eq!(rig.run(100), [(100, ReadRate)]);
        // The count of a guard that is kept is not that of the next transfer.
        let third = rig.conn.begin(ReadRate);
        second.add(500);
        assert_eq!(rig.run(100), [(200, ReadRate)]);
        drop(third);
    }
}

#[test]
fn rate_event_that_was_not_taken_is_withdrawn_by_bytes_and_comes_again() {
    for mut rig in rigs(RATES.max_age(ms(100))) {
        let transfer = rig.conn.begin(ReadRate);
        rig.lab.advance(ms(100));
        // Both have come, and the first of them is taken.
        assert_eq!(rig.conn.event(), Some((MaxAge, true)));
        transfer.add(130);
        assert_eq!(rig.conn.event(), None);
        assert_eq!(rig.run(29), []);
        assert_eq!(rig.run(1), [(130, ReadRate)]);
        transfer.add(1_000);
        assert_eq!(rig.run(1_100), [], "the event that was taken was the last");
    }
}

#[test]
fn rate_event_that_was_not_taken_does_not_come_during_a_pause() {
    for mut rig in rigs(RATES.max_age(ms(100))) {
        let transfer = rig.conn.begin(ReadRate);
        rig.lab.advance(ms(100));
        assert_eq!(rig.conn.event(), Some((MaxAge, true)));
        transfer.pause();
        assert_eq!(rig.conn.event(), None);
        assert_eq!(rig.run(50), []);
        transfer.resume();
        assert_eq!(rig.run(1), [(151, ReadRate)]);
        assert!(!transfer.finish());
    }
}

#[test]
fn rate_event_that_is_withdrawn_during_a_pause_comes_again_after_it() {
    for mut rig in rigs(RATES.max_age(ms(100))) {
        let transfer = rig.conn.begin(ReadRate);
        rig.lab.advance(ms(100));
        assert_eq!(rig.conn.event(), Some((MaxAge, true)));
        transfer.pause();
        transfer.resume();
        transfer.add(130);
        transfer.pause();
        assert_eq!(rig.conn.event(), None);
        transfer.resume();
        assert_eq!(rig.run(29), []);
        assert_eq!(rig.run(1), [(130, ReadRate)]);
    }
}

#[test]
fn rate_event_that_was_not_taken_is_kept_if_the_bytes_are_too_few() {
    for mut rig in rigs(RATES.max_age(ms(100))) {
        let transfer = rig.conn.begin(ReadRate);
        rig.lab.advance(ms(100));
        assert_eq!(rig.conn.event(), Some((MaxAge, true)));
        transfer.add(100);
        assert_eq!(rig.conn.event(), Some((ReadRate, true)));
        assert!(!transfer.finish());
    }
}

#[test]
fn rate_event_that_was_not_taken_is_withdrawn_by_the_end_of_its_transfer() {
    for ends in [true, false] {
        for mut rig in rigs(RATES.max_age(ms(100))) {
            let transfer = rig.conn.begin(ReadRate);
            rig.lab.advance(ms(100));
            assert_eq!(rig.conn.event(), Some((MaxAge, true)));
            let next = if ends { None } else { Some(rig.conn.begin(ReadRate)) };
            assert!(!transfer.finish());
            assert_eq!(rig.conn.event(), None);
            let expected = if ends { vec![] } else { vec![(200, ReadRate)] };
            assert_eq!(rig.run(200), expected);
            drop(next);
        }
    }
}

#[test]
fn deadline_of_a_rate_is_rounded_up_to_a_nanosecond() {
    for rig in rigs(NONE.min_read_rate(DataRate::new(3, Duration::ZERO))) {
        let (start, transfer) = (rig.now(), rig.conn.begin(ReadRate));
        for nanos in [333_333_334, 666_666_667, 1_000_000_000] {
            transfer.add(1);
            assert_eq!(rig.conn.deadline(ReadRate), Some(start + Duration::from_nanos(nanos)));
        }
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
fn callback_gets_the_event_of_a_rate() {
    let mut lab = lab();
    let conn = lab.timers().connection(RATES).unwrap();
    let (seen, told) = (std::rc::Rc::new(std::cell::RefCell::default()), lab.timers().clone());
    let noted: std::rc::Rc<std::cell::RefCell<Vec<_>>> = std::rc::Rc::clone(&seen);
    conn.on_event(move |_, event| noted.borrow_mut().push((ticks_of(&told), event.kind)));
    let transfers = (conn.begin_measured_write(), conn.begin_measured_read());
    lab.advance(ms(50));
    transfers.0.add(120);
    for _ in 0..200 {
        lab.advance(ms(1));
    }
    assert_eq!(seen.take(), [(100, ReadRate), (120, WriteRate)]);
}

#[test]
fn packed_connection_leaves_its_transfers_behind() {
    let mut lab = lab_with(builder(2));
    let conn = lab.timers().connection(RATES.max_age(ms(100))).unwrap();
    let transfers = [conn.begin_measured_read(), conn.begin_measured_write()];
    transfers[1].add(1_000);
    lab.advance(ms(100));
    assert_eq!(event(&conn), Some((MaxAge, true)));
    // The event of the read has come, and was not taken.
    let conn = lab.shards[1].timers().adopt(conn.pack().unwrap()).unwrap();
    assert_eq!(BOTH.map(|kind| conn.deadline(kind)), [None; 2]);
    assert_eq!(run(&mut lab, &conn, 50), []);
    let transfer = conn.begin_measured_read();
    for left in transfers {
        left.add(1_000);
        left.pause();
        left.resume();
        drop(left);
    }
    assert_eq!(conn.deadline(ReadRate), Some(lab.clock.now() + ms(100)));
    assert_eq!(run(&mut lab, &conn, 100), [(250, ReadRate, true)]);
    assert!(!transfer.finish());
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

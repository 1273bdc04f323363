//! Least data rates: when a measured transfer is too slow, on a shard and for tasks on any thread.

use super::*;

/// Begins a measured transfer, whose least rate is of this kind.
fn begin<S: Side>(conn: &ConnTimers<S>, kind: DeadlineKind) -> InProgress<S> {
    if kind == ReadRate { conn.begin_measured_read() } else { conn.begin_measured_write() }
}

/// A byte in a millisecond, after 100 ms.
const RATE: DataRate = DataRate::new(1_000, ms(100));
const RATES: ConnLimits = NONE.min_read_rate(RATE).min_write_rate(RATE);
const BOTH: [DeadlineKind; 2] = [ReadRate, WriteRate];

#[test]
fn transfer_without_grace_at_the_first_nanosecond_has_one_event() {
    let rate = DataRate::new(1_000, Duration::ZERO);
    for kind in BOTH {
        on_both!(NONE.min_read_rate(rate).min_write_rate(rate), |lab, conn| {
            let transfer = begin(conn, kind);
            let mut events = Vec::new();
            for _ in 0..4 {
                let _ = lab.turn();
                events.extend(event(conn));
            }
            assert_eq!(events, [(kind, true)]);
            assert_eq!((conn.deadline(kind), run(lab, conn, 500)), (None, vec![]));
            assert!(!transfer.finish());
        });
    }
}

#[test]
fn forgotten_transfer_has_its_event_unless_another_one_begins() {
    on_both!(RATES, |lab, conn| {
        std::mem::forget(begin(conn, ReadRate));
        assert_eq!(run(lab, conn, 100), [(100, ReadRate, true)]);
        std::mem::forget(begin(conn, ReadRate));
        drop(begin(conn, ReadRate));
        assert_eq!(run(lab, conn, 200), []);
        let third = begin(conn, ReadRate);
        assert_eq!(run(lab, conn, 100), [(400, ReadRate, true)]);
        assert!(!third.finish());
    });
}

#[test]
fn time_that_does_not_fit_means_never() {
    let never = [DataRate::new(1, Duration::ZERO), DataRate::new(u64::MAX, Duration::MAX)];
    for rate in never {
        on_both!(NONE.min_write_rate(rate), |lab, conn| {
            assert_eq!(run(lab, conn, 1), []);
            let transfer = begin(conn, WriteRate);
            transfer.add(u64::MAX);
            transfer.add(2);
            transfer.add(u64::MAX);
            assert_eq!(conn.deadline(WriteRate), None);
            // Until the last second that the clock can show.
            let range = Duration::from_nanos(u64::MAX) - Duration::from_secs(1);
            let age = lab.clock.now().duration_since(lab.epoch);
            lab.advance(range.saturating_sub(age));
            assert_eq!(event(conn), None);
            assert!(transfer.finish());
        });
    }
    // Products of more than 64 bits whose quotient fits.
    let fast = DataRate::new(1 << 50, Duration::ZERO);
    on_both!(NONE.min_write_rate(fast), |lab, conn| {
        let (start, transfer) = (lab.clock.now(), begin(conn, WriteRate));
        transfer.add(3 << 50);
        assert_eq!(conn.deadline(WriteRate), Some(start + Duration::from_secs(3)));
        transfer.add(1);
        let due = Duration::from_nanos(3_000_000_001);
        assert_eq!(conn.deadline(WriteRate), Some(start + due));
    });
}

#[test]
fn bytes_count_as_activity_with_and_without_a_rate() {
    let idle = NONE.read_idle(ms(100)).write_idle(ms(100));
    for limits in [idle, idle.min_read_rate(RATE).min_write_rate(RATE)] {
        for (kind, other) in [(ReadRate, WriteIdle), (WriteRate, ReadIdle)] {
            on_both!(limits, |lab, conn| {
                let transfer = begin(conn, kind);
                assert_eq!(run(lab, conn, 80), []);
                transfer.add(1_000);
                assert_eq!(run(lab, conn, 99), [(100, other, true)], "{kind}");
                drop(transfer);
            });
        }
    }
}

#[test]
fn transfer_of_a_closed_connection_has_no_effect() {
    on_both!(RATES, |lab, conn| {
        let before = begin(conn, ReadRate);
        conn.close();
        let after = begin(conn, WriteRate);
        for transfer in [&before, &after] {
            transfer.add(10);
            transfer.pause();
            transfer.resume();
        }
        assert_eq!(BOTH.map(|kind| conn.deadline(kind)), [None; 2]);
        assert_eq!(run(lab, conn, 200), []);
        assert!(before.finish() && after.finish());
    });
}

#[test]
fn bytes_and_pauses_have_no_effect_on_what_is_not_measured() {
    let limits = NONE.write_timeout(ms(100)).read_idle(ms(200)).min_read_rate(RATE);
    on_both!(limits, |lab, conn| {
        let (write, request) = (conn.begin_write(), conn.begin_request());
        run(lab, conn, 60);
        for held in [&write, &request] {
            held.add(1_000);
            held.pause();
        }
        assert_eq!(run(lab, conn, 60), [(100, WriteTimeout, true)]);
        request.resume();
        assert!(!write.finish() && request.finish());
        assert_eq!(format!("{:?}", conn.begin_measured_read()), "InProgress(read rate)");
    });
}

#[test]
fn bytes_of_other_threads_count_and_wake_no_task() {
    let mut lab = lab();
    let conn = Handle::open(&lab, RATES);
    let transfer = conn.begin_measured_read();
    let (alarm, waker) = Alarm::new();
    for _ in 0..10 {
        assert!(poll_with(&conn, &waker).is_pending());
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
    assert_eq!(event(&conn), None);
    thread::spawn(move || assert!(transfer.finish())).join().unwrap();
}

#[test]
fn transfer_resets_the_timer_of_its_connection_only_if_its_deadline_is_the_first() {
    let mut lab = lab();
    let conn = Handle::open(&lab, RATES.handshake(ms(150)));
    let (alarm, waker) = Alarm::new();
    let wait = || assert!(poll_with(&conn, &waker).is_pending());
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
    assert_eq!(event(&conn), Some((ReadRate, true)));
}

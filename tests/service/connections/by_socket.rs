//! Limits of writing that are judged by what the peer has acknowledged, for both kinds of timers.

use corewheel::conn::PeerSocket;

use super::*;

/// A peer that has acknowledged so many bytes; `None` where the system does not say.
#[derive(Default)]
struct Peer {
    bytes: Cell<Option<u64>>,
    asked: Cell<u32>,
    resets: Cell<u32>,
    /// The bounds that were set.
    bounds: RefCell<Vec<u32>>,
}

impl Peer {
    fn new() -> Self {
        Self { bytes: Cell::new(Some(0)), ..Self::default() }
    }

    fn acknowledge(&self, bytes: u64) {
        self.bytes.set(self.bytes.get().map(|before| before + bytes));
    }
}

impl PeerSocket for Peer {
    fn acknowledged(&self) -> Option<u64> {
        self.asked.set(self.asked.get() + 1);
        self.bytes.get()
    }

    fn reset_at_close(&self) {
        self.resets.set(self.resets.get() + 1);
    }

    fn left(&self) -> Option<u64> {
        Some(7)
    }

    fn set_unsent_max(&self, bytes: u32) -> bool {
        self.bounds.borrow_mut().push(bytes);
        true
    }
}

type Event = (u64, DeadlineKind);

/// A write waits for some milliseconds, and goes on after each event. In each of them, the peer
/// acknowledges what `takes` says. Returns the events, each with its tick.
fn write<S: Opened>(
    lab: &mut Lab<u8>,
    conn: &ConnTimers<S>,
    peer: &Peer,
    milliseconds: u64,
    takes: impl Fn(u64) -> u64,
) -> Vec<Event> {
    let mut events = Vec::new();
    let begin = ticks_of(lab.timers());
    loop {
        let never = pin!(pending::<()>());
        let mut waits = pin!(conn.race_write(peer, never));
        let event = loop {
            let tick = ticks_of(lab.timers());
            let mut cx = Context::from_waker(Waker::noop());
            if let Poll::Ready(raced) = waits.as_mut().poll(&mut cx) {
                break S::value(raced);
            }
            if tick - begin >= milliseconds {
                return events;
            }
            peer.acknowledge(takes(tick - begin));
            lab.advance(ms(1));
        };
        match event {
            Raced::Event(event) => events.push((ticks_of(lab.timers()), event.kind)),
            other => panic!("{other:?}"),
        }
    }
}

/// Runs a case on a shard, and on any thread, with a peer.
macro_rules! with_peer {
    ($limits:expr, |$lab:ident, $conn:ident, $peer:ident| $case:block) => {
        on_both!($limits, |$lab, $conn| {
            let $peer = &Peer::new();
            $case
        })
    };
}

#[test]
fn bytes_of_a_peer_are_counted_by_the_limit_of_writing_that_it_reaches() {
    let stall = NONE.write_timeout(ms(400));
    let rate = NONE.min_write_rate(DataRate::new(1_000, ms(400)));
    for (limits, kind) in [(stall, "write timeout"), (rate, "write rate")] {
        with_peer!(limits, |lab, conn, peer| {
            let (_writing, _measured) = (conn.begin_write(), conn.begin_measured_write());
            let takes = |tick| u64::from(tick < 100);
            let reached = write(lab, conn, peer, 1_000, takes).len() as u64;
            assert!(reached > 0);
            let deadlines = lab.service.stats().deadlines;
            let bytes = deadlines.iter().map(|of| (of.kind, of.acknowledged_bytes, of.left_bytes));
            let counted: Vec<_> = bytes.filter(|(_, acknowledged, _)| *acknowledged > 0).collect();
            assert_eq!(counted, [(kind, 100 * reached, 7 * reached)]);
        });
    }
}

const MIB: u32 = 1 << 20;

#[test]
fn bound_is_doubled_for_a_quick_peer_and_begins_anew_when_it_takes_nothing() {
    with_peer!(LIMIT.unsent_max(MIB), |lab, conn, peer| {
        let _writing = conn.begin_write();
        // Half of the bound within 8, 16 and 32 ms.
        let takes = |tick| if tick < 60 { 64 << 10 } else { 0 };
        assert_eq!(write(lab, conn, peer, 90, takes), []);
        assert_eq!(*peer.bounds.borrow(), [MIB, 2 * MIB, 4 * MIB, 0]);
        let asked = peer.asked.get();
        assert_eq!(write(lab, conn, peer, 5, |_| 0), []);
        assert_eq!(peer.asked.get(), asked, "without a bound, a poll does not ask");
        // A look comes when a quarter of the limit has passed.
        assert_eq!(write(lab, conn, peer, 100, |_| 0), []);
        assert_eq!(peer.bounds.borrow()[4..], [MIB]);
    });
}

#[test]
fn bound_stays_for_a_slow_peer_and_begins_anew_for_one_that_becomes_slow() {
    with_peer!(NONE.write_timeout(ms(4_000)).unsent_max(MIB), |lab, conn, peer| {
        let _writing = conn.begin_write();
        let takes = |tick| if (500..508).contains(&tick) { 64 << 10 } else { 100 };
        assert_eq!(write(lab, conn, peer, 500, takes), []);
        assert_eq!(*peer.bounds.borrow(), [MIB]);
        assert_eq!(write(lab, conn, peer, 500, |tick| takes(tick + 500)), []);
        assert_eq!(*peer.bounds.borrow(), [MIB, 2 * MIB, MIB]);
    });
}

#[test]
fn bound_of_zero_is_not_set_and_asks_nothing() {
    with_peer!(LIMIT, |lab, conn, peer| {
        let _writing = conn.begin_write();
        assert_eq!(write(lab, conn, peer, 50, |_| 64 << 10), []);
        assert_eq!((peer.bounds.borrow().len(), peer.asked.get()), (0, 1));
    });
}

const LIMIT: ConnLimits = NONE.write_timeout(ms(400));

#[test]
fn write_is_late_when_its_peer_has_acknowledged_nothing_for_its_limit() {
    with_peer!(LIMIT, |lab, conn, peer| {
        let writing = conn.begin_write();
        // The last bytes come at 1,900, which the look at 2,000 finds.
        let takes = |tick| u64::from(tick < 2_000 && tick % 380 == 0);
        assert_eq!(write(lab, conn, peer, 2_399, takes), []);
        assert_eq!(peer.resets.get(), 0);
        assert_eq!(write(lab, conn, peer, 1, |_| 0), [(2_400, WriteTimeout)]);
        assert_eq!(peer.resets.get(), 1, "the close is to reset the connection");
        assert!(!writing.finish());
    });
}

#[test]
fn peer_that_never_acknowledges_is_found_a_quarter_of_the_limit_late_at_most() {
    with_peer!(LIMIT, |lab, conn, peer| {
        for begin in [0, 1_000] {
            // An answer that was accepted at once, and acknowledged since.
            peer.acknowledge(100);
            let writing = conn.begin_write();
            let events = write(lab, conn, peer, 1_000, |_| 0);
            let late = if begin == 0 { 400 } else { 500 };
            assert_eq!(events, [(begin + late, WriteTimeout)]);
            assert!(!writing.finish());
        }
    });
}

#[test]
fn socket_is_asked_when_a_part_of_the_limit_of_a_write_that_waits_has_passed() {
    with_peer!(LIMIT.read_idle(ms(10_000)), |lab, conn, peer| {
        for _ in 0..3 {
            let _writing = conn.begin_write();
            assert_eq!(write(lab, conn, peer, 99, |_| 1), []);
        }
        assert_eq!(peer.asked.get(), 1, "to know that the system says it");
        let _writing = conn.begin_write();
        assert_eq!(write(lab, conn, peer, 400, |_| 1), []);
        assert_eq!(peer.asked.get(), 5);
    });
}

#[test]
fn wait_without_the_socket_does_not_end_a_write_before_its_limit() {
    with_peer!(LIMIT.read_idle(ms(150)), |lab, conn, peer| {
        let writing = conn.begin_write();
        assert_eq!(write(lab, conn, peer, 250, |_| 1), []);
        let mut events = Vec::new();
        while ticks_of(lab.timers()) < 600 {
            lab.advance(ms(1));
            events.extend(event(conn).map(|(kind, _)| (ticks_of(lab.timers()), kind)));
            if ticks_of(lab.timers()) == 590 {
                // The write has held the idle time back, and ends before its limit.
                assert_eq!(events, []);
            }
        }
        // Its peer was last asked at 200.
        assert_eq!(events[..1], [(600, WriteTimeout)]);
        assert!(!writing.finish());
    });
}

#[test]
fn write_that_ends_between_two_looks_is_in_time_and_its_peer_is_not_idle() {
    with_peer!(LIMIT.all_idle(ms(80)).read_idle(ms(80)), |lab, conn, peer| {
        let writing = conn.begin_write();
        assert_eq!(write(lab, conn, peer, 3_000, |_| 1), []);
        // A look is due, and the write goes on before the task is polled.
        lab.advance(ms(100));
        assert!(writing.finish());
        assert_eq!(write(lab, conn, peer, 79, |_| 1), []);
        // A stamp on a shard is up to 10 ms late.
        let events = write(lab, conn, peer, 20, |_| 1);
        assert!(matches!(events[..], [(_, ReadIdle), (_, AllIdle)]), "{events:?}");
    });
}

#[test]
fn rate_counts_what_the_peer_has_acknowledged_and_not_what_was_added() {
    let limits = NONE.min_write_rate(DataRate::new(1_000, ms(100)));
    with_peer!(limits, |lab, conn, peer| {
        // An answer before.
        peer.acknowledge(1_000_000);
        let writing = conn.begin_measured_write();
        writing.add(1_000_000);
        // A lump that is worth 600 ms, each 500 ms.
        let takes = |tick| if tick % 500 == 0 { 600 } else { 0 };
        assert_eq!(write(lab, conn, peer, 2_000, takes), []);
        assert_eq!(write(lab, conn, peer, 500, |_| 0), [(2_400, WriteRate)]);
        assert_eq!(peer.resets.get(), 1);
        assert!(!writing.finish());
    });
}

#[test]
fn lump_gives_no_more_time_in_advance_than_a_minute() {
    let limits = NONE.min_write_rate(DataRate::new(64, ms(100)));
    with_peer!(limits, |lab, conn, peer| {
        let writing = conn.begin_measured_write();
        // What the kernel of a peer takes that reads nothing, and far more.
        assert_eq!(write(lab, conn, peer, 100, |tick| u64::from(tick == 50) << 40), []);
        let minute = DataRate::LUMP_MAX.as_millis() as u64;
        assert_eq!(write(lab, conn, peer, minute + 10, |_| 0), [(minute + 100, WriteRate)]);
        assert!(!writing.finish());
    });
}

#[test]
fn system_that_does_not_say_what_was_acknowledged_leaves_the_limits_as_they_are() {
    with_peer!(LIMIT.min_write_rate(DataRate::new(1_000, ms(100))), |lab, conn, peer| {
        peer.bytes.set(None);
        let (_writing, measured) = (conn.begin_write(), conn.begin_measured_write());
        measured.add(300);
        let events = write(lab, conn, peer, 500, |_| 0);
        assert_eq!(events, [(300, WriteRate), (400, WriteTimeout)]);
        assert_eq!(peer.resets.get(), 2);
    });
}

#[test]
fn peer_that_stops_is_late_and_not_idle() {
    with_peer!(LIMIT.read_idle(ms(450)).all_idle(ms(450)), |lab, conn, peer| {
        let _writing = conn.begin_write();
        let events = write(lab, conn, peer, 1_000, |tick| u64::from(tick < 50));
        assert_eq!(events[0], (500, WriteTimeout));
    });
}

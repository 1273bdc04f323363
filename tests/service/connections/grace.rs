//! The time between a connection's greatest age and its cut, on a shard and on any thread.

use std::future::ready;
use std::pin::pin;

use corewheel::ConfigError;
use corewheel::conn::Raced;

use super::*;

const LIMITS: ConnLimits = NONE.max_age(ms(100)).max_age_grace(ms(50));

struct Both {
    lab: Lab<u8>,
    here: ConnTimers,
    shared: ConnTimers<Handle>,
}

impl Both {
    fn new(limits: ConnLimits) -> Self {
        let lab = lab();
        let here = lab.timers().connection(limits).unwrap();
        let shared = shared::connect(&lab, limits);
        assert_eq!(shared::event(&shared), None);
        Self { lab, here, shared }
    }

    /// The events of the next milliseconds, which both sides have.
    fn run(&mut self, milliseconds: u64) -> Vec<(u64, DeadlineKind)> {
        let mut events = Vec::new();
        for _ in 0..milliseconds {
            self.lab.advance(ms(1));
            events.extend(self.found());
        }
        events
    }

    /// The events that have come, which both sides have.
    fn found(&mut self) -> Vec<(u64, DeadlineKind)> {
        let mut events = Vec::new();
        self.lab.settle();
        loop {
            let found = event(&self.here);
            assert_eq!(shared::event(&self.shared), found);
            let Some((kind, first)) = found else { return events };
            assert!(first, "{kind}");
            events.push((ticks_of(self.lab.timers()), kind));
        }
    }

    fn arm(&self, kind: DeadlineKind, after: Duration) -> Result<bool, ConfigError> {
        let armed = self.here.arm(kind, after);
        assert_eq!(self.shared.arm(kind, after), armed);
        armed
    }
}

#[test]
fn connection_that_never_pauses_is_told_and_cut() {
    let mut both = Both::new(LIMITS);
    let mut seen = Vec::new();
    for tick in 1..=200 {
        both.lab.advance(ms(1));
        let cx = &mut Context::from_waker(Waker::noop());
        let here = pin!(both.here.race(ready(7))).poll(cx);
        let shared = pin!(both.shared.race(ready(7))).poll(cx);
        // A task on a shard returns to its executor now and then.
        let Poll::Ready(shared) = shared else { panic!("it is ready") };
        if let Raced::Event(event) = shared.unwrap() {
            assert_eq!(here, Poll::Ready(Raced::Event(event)));
            seen.push((tick, event.kind));
        }
    }
    assert_eq!(seen, [(100, MaxAge), (150, AgeGrace)]);
}

/// The thread is held up, and an order comes before the shard has found what is due.
#[test]
fn grace_that_is_over_before_the_connection_is_told_cuts_it() {
    // With other timers that expire before, the shard tells the connection before its own timer.
    for others in [0, 20] {
        let mut both = Both::new(NONE.max_age_grace(ms(50)));
        for _ in 0..others {
            both.lab.timers().schedule(ms(5), 0).unwrap();
        }
        both.arm(AgeGrace, ms(10)).unwrap();
        both.lab.clock.advance(ms(29));
        both.lab.service.close_idlest(2);
        let events = both.run(1_000);
        assert_eq!(events, [(30, MaxAge), (30, AgeGrace), (80, AgeGrace)], "{others} timers");
    }
}

#[test]
fn drain_without_a_window_cuts_in_the_next_tick_whatever_else_is_due() {
    for others in [0, 1, 20] {
        let mut both = Both::new(NONE);
        for _ in 0..others {
            both.lab.timers().schedule(ms(5), 0).unwrap();
        }
        both.arm(Custom(0), ms(10)).unwrap();
        both.lab.clock.advance(Duration::from_micros(29_500));
        both.lab.service.drain(Duration::ZERO);
        assert_eq!(both.found(), [(29, MaxAge), (29, Custom(0))], "{others} timers");
        assert_eq!(both.run(10), [(30, AgeGrace)], "{others} timers");
    }
}

/// As of a connection that was warned, and was left to go on.
#[test]
fn another_age_is_told_and_cut_by_its_own_grace_and_by_a_drain() {
    let mut both = Both::new(LIMITS);
    assert_eq!(both.run(200), [(100, MaxAge), (150, AgeGrace)]);
    both.arm(MaxAge, ms(100)).unwrap();
    assert_eq!(both.run(200), [(300, MaxAge), (350, AgeGrace)]);
    both.arm(MaxAge, ms(500)).unwrap();
    both.lab.clock.advance(Duration::from_micros(500));
    both.lab.service.drain(Duration::ZERO);
    assert_eq!(both.found(), [(400, MaxAge)]);
    assert_eq!(both.run(1_000), [(401, AgeGrace)]);
}

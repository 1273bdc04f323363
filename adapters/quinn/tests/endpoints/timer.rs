//! The timer of a connection alone, by a manual clock, as quinn uses it: polled and reset.

use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use corewheel::fallback::InfallibleSleep;
use corewheel::{ShutdownPolicy, TimerService};
use quinn::{AsyncTimer, Runtime as _};

use super::*;

type Timer = Pin<Box<dyn AsyncTimer>>;

fn poll(timer: &mut Timer, waker: &Waker) -> Poll<()> {
    timer.as_mut().poll(&mut Context::from_waker(waker))
}

/// A thread on which a test uses timers.
#[derive(Clone, Copy, Debug)]
enum On {
    /// The thread that drives the shard.
    Shard,
    /// A thread that drives no shard.
    Other,
}

impl On {
    const BOTH: [Self; 2] = [Self::Shard, Self::Other];

    fn run<O: Send>(self, run: impl FnOnce() -> O + Send) -> O {
        match self {
            Self::Shard => run(),
            Self::Other => thread::scope(|scope| scope.spawn(run).join().unwrap()),
        }
    }
}

impl Timed {
    /// A timer that was polled and is pending.
    fn pending(&mut self, on: On, deadline: Instant, waker: &Waker) -> Timer {
        let mut timer = on.run(|| {
            let mut timer = self.runtime.new_timer(deadline);
            assert_eq!(poll(&mut timer, waker), Poll::Pending);
            timer
        });
        self.settle();
        // A timer of another thread may wait until the lane to the shard is open.
        assert_eq!(on.run(|| poll(&mut timer, waker)), Poll::Pending);
        self.settle();
        timer
    }

    /// Polls a timer, which is not done before its deadline by the clock of the runtime.
    fn look(&self, on: On, timer: &mut Timer, waker: &Waker, deadline: Instant) -> Poll<()> {
        let polled = on.run(|| poll(timer, waker));
        assert!(polled.is_pending() || self.runtime.now() >= deadline, "{on:?}: it is early");
        polled
    }
}

#[test]
fn timer_is_pending_a_tick_before_its_deadline_and_done_a_tick_after() {
    for on in On::BOTH {
        let mut lab = Timed::new(16);
        let (alarm, waker) = Alarm::new();
        let deadline = lab.runtime.now() + ms(10);
        let mut timer = lab.pending(on, deadline, &waker);
        let woken = alarm.count();
        lab.advance(ms(9));
        assert_eq!(lab.look(on, &mut timer, &waker, deadline), Poll::Pending);
        assert_eq!(alarm.count(), woken, "{on:?}: it wakes its task early");
        lab.advance(ms(2));
        assert_eq!(alarm.count(), woken + 1, "{on:?}: it does not wake its task");
        assert_eq!(lab.look(on, &mut timer, &waker, deadline), Poll::Ready(()));
        assert_eq!(lab.look(on, &mut timer, &waker, deadline), Poll::Ready(()));
    }
}

/// Waits for a timer that no shard has, and checks that it is done at its deadline and not before.
fn check_kept(runtime: &QuinnRuntime) {
    let (kept, (alarm, waker)) = (InfallibleSleep::fallback_count(), Alarm::new());
    let begin = runtime.now();
    let mut timer = runtime.new_timer(begin + FAR);
    // The shard may refuse only after it was asked more than once.
    let give_up = Instant::now() + PATIENCE;
    while InfallibleSleep::fallback_count() == kept {
        assert!(Instant::now() < give_up, "the fallback thread does not keep the timer");
        assert_eq!(poll(&mut timer, &waker), Poll::Pending);
        thread::sleep(ms(1));
    }
    timer.as_mut().reset(begin + 2 * FAR);
    assert_eq!(poll(&mut timer, &waker), Poll::Pending);
    let deadline = runtime.now() + ms(20);
    timer.as_mut().reset(deadline);
    loop {
        let woken = alarm.count();
        let polled = poll(&mut timer, &waker);
        if polled.is_ready() {
            break;
        }
        while alarm.count() == woken {
            assert!(Instant::now() < give_up, "the task is not woken");
            thread::sleep(ms(1));
        }
    }
    let now = runtime.now();
    assert!(now >= deadline, "{:?} early", deadline - now);
}

#[test]
fn timer_of_a_full_shard_is_kept_until_its_deadline() {
    let service = TimerService::beside_runtime().shards(1).capacity(2).start().unwrap();
    let runtime = QuinnRuntime::new(service.handle());
    let refused = || service.stats().shards[0].counts.refused;
    // The third one finds no room, once the shard has looked.
    let mut slots: Vec<_> = (0..3).map(|_| runtime.new_timer(Instant::now() + FAR)).collect();
    while refused() == 0 {
        assert!(slots.iter_mut().all(|slot| poll(slot, Waker::noop()).is_pending()));
        thread::sleep(ms(1));
    }
    let before = refused();
    within_patience(move || check_kept(&runtime));
    assert!(refused() > before);
    drop(slots);
}

#[test]
fn timer_of_an_ended_service_is_kept_until_its_deadline() {
    let service = TimerService::beside_runtime().shards(1).start().unwrap();
    let runtime = QuinnRuntime::new(service.handle());
    let (alarm, waker) = Alarm::new();
    let mut before = runtime.new_timer(Instant::now() + FAR);
    assert_eq!(poll(&mut before, &waker), Poll::Pending);
    service.shutdown(ShutdownPolicy::Drop).unwrap();
    // The task of a timer that waits is woken, and its poll finds no service.
    let give_up = Instant::now() + PATIENCE;
    while alarm.count() == 0 {
        assert!(Instant::now() < give_up, "the task is not woken");
        thread::sleep(ms(1));
    }
    assert_eq!(poll(&mut before, &waker), Poll::Pending);
    // On a thread that has used the service, and on one that has not.
    check_kept(&runtime);
    let fresh = runtime.clone();
    within_patience(move || check_kept(&fresh));
    check_kept(&QuinnRuntime::new(service.handle()));
}

#[test]
fn clock_of_the_runtime_is_the_clock_of_the_service_also_after_its_end() {
    let mut lab = Timed::new(16);
    let before = lab.runtime.now();
    assert_eq!(before, lab.clock.now());
    lab.advance(ms(7));
    assert_eq!(lab.runtime.now(), before + ms(7));
    let Timed { lab: Lab { clock, service, shards, .. }, runtime } = lab;
    drop((shards, service));
    clock.advance(ms(5));
    assert_eq!(runtime.now(), before + ms(12));
    assert_eq!(On::Other.run(|| runtime.now()), before + ms(12));
}

#[test]
fn timer_by_a_manual_clock_is_not_early_after_the_end_of_its_service() {
    for on in On::BOTH {
        // Its present is the system's.
        let lab = Timed::of(Lab::at_epoch(builder(1).capacity(16)));
        let deadline = lab.runtime.now() + ms(5);
        let mut timer = lab.runtime.new_timer(deadline);
        let Timed { lab: Lab { clock, service, shards, .. }, runtime } = lab;
        drop((shards, service));
        // The system's clock passes the deadline.
        while Instant::now() <= deadline {
            thread::sleep(ms(1));
        }
        clock.advance(ms(4));
        assert_eq!(on.run(|| poll(&mut timer, Waker::noop())), Poll::Pending, "{on:?}");
        clock.advance(ms(2));
        assert!(runtime.now() > deadline);
        assert_eq!(on.run(|| poll(&mut timer, Waker::noop())), Poll::Ready(()), "{on:?}");
    }
}

#[test]
fn clock_of_the_runtime_does_not_go_back_from_thread_to_thread() {
    let service = TimerService::beside_runtime().shards(1).start().unwrap();
    let runtime = QuinnRuntime::new(service.handle());
    // The thread has used the service, so that it has a near clock.
    drop(service.handle().sleep(ms(1)));
    let (send, received) = mpsc::sync_channel::<Instant>(0);
    let of_other = runtime.clone();
    let other = thread::spawn(move || {
        for sent in received {
            let now = of_other.now();
            assert!(now >= sent, "{:?} back", sent - now);
        }
    });
    for _ in 0..10_000 {
        let system = Instant::now();
        let now = runtime.now();
        assert!(now >= system && now <= Instant::now(), "it is not the system's clock");
        send.send(now).unwrap();
    }
    drop(send);
    other.join().unwrap();
}

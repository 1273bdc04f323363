//! The timer of a connection alone, by a manual clock, as quinn uses it: polled and reset.

use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Instant;

use corewheel_test_support::{Alarm, Lab, builder};
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

#[test]
fn timer_is_pending_a_tick_before_its_deadline_and_done_a_tick_after() {
    for on in On::BOTH {
        let mut lab: Lab = Lab::new(builder(1));
        let runtime = QuinnRuntime::new(lab.handle());
        let (alarm, waker) = Alarm::new();
        let deadline = runtime.now() + ms(10);
        let mut timer = on.run(|| runtime.new_timer(deadline));
        // A timer of another thread may wait until the lane to the shard is open.
        for _ in 0..2 {
            assert_eq!(on.run(|| poll(&mut timer, &waker)), Poll::Pending, "{on:?}");
            lab.settle();
        }
        let woken = alarm.count();
        lab.advance(ms(9));
        assert_eq!(on.run(|| poll(&mut timer, &waker)), Poll::Pending, "{on:?}");
        assert_eq!(alarm.count(), woken, "{on:?}: it wakes its task early");
        lab.advance(ms(2));
        assert_eq!(alarm.count(), woken + 1, "{on:?}: it does not wake its task");
        assert_eq!(on.run(|| poll(&mut timer, &waker)), Poll::Ready(()), "{on:?}");
        assert_eq!(on.run(|| poll(&mut timer, &waker)), Poll::Ready(()), "{on:?}");
        assert!(runtime.now() >= deadline, "{on:?}: it is early");
    }
}

#[test]
fn clock_of_the_runtime_is_the_clock_of_the_service_also_after_its_end() {
    let mut lab: Lab = Lab::new(builder(1));
    let runtime = QuinnRuntime::new(lab.handle());
    let before = runtime.now();
    assert_eq!(before, lab.clock.now());
    lab.advance(ms(7));
    assert_eq!(runtime.now(), before + ms(7));
    let Lab { clock, service, shards, .. } = lab;
    drop((shards, service));
    clock.advance(ms(5));
    assert_eq!(runtime.now(), before + ms(12));
    assert_eq!(On::Other.run(|| runtime.now()), before + ms(12));
}

#[test]
fn timer_by_a_manual_clock_is_not_early_after_the_end_of_its_service() {
    for on in On::BOTH {
        // Its present is the system's.
        let Lab { clock, service, shards, .. }: Lab = Lab::at_epoch(builder(1));
        let runtime = QuinnRuntime::new(service.handle());
        let deadline = runtime.now() + ms(5);
        let mut timer = runtime.new_timer(deadline);
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

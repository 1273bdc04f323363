//! Tests of whole services under the model checker: a shard in a loop of its own, its clients, and
//! the shutdown.
//!
//! The models use the public types, with the real code from the client down to the lanes. What the
//! model checker does not see: the channel of a reply (`oneshot`, which is model-checked by its own
//! tests; here a send to it or a receive from it is one step), and published counts.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use loom::future::block_on;
use loom::sync::Arc;
use loom::thread;

use crate::attach::{ShardLoop, Turn};
use crate::clock::ManualClock;
use crate::face::report::ShutdownReport;
use crate::link::loom_tests::{check, check_within};
use crate::shard::lanes::Lanes;
use crate::shard::request::Request;
use crate::values::class::{ClassId, TimerClass};
use crate::values::error::ReplyError;
use crate::values::refused::RefusedKind;
use crate::{
    Fired, Handle, Payload, ResetOutcome, ShardId, ShutdownPolicy, Sleep, TimerId, TimerService,
    Timers,
};

type Handler = fn(Fired<u32>, &Timers<u32>);

/// A delay that no model waits for.
const LATER: Duration = Duration::from_secs(3_600);

/// How old the clock is when the service starts, and the service when a model begins.
const AGE: Duration = Duration::from_hours(24 * 365);

fn shard_id() -> ShardId {
    ShardId::new(0)
}

/// A service with one shard, which grants a thread 2 keys in advance.
fn service() -> (Arc<TimerService<u32>>, ShardLoop<u32, Handler>) {
    service_of(64, [], &ManualClock::new())
}

fn service_of<const N: usize>(
    capacity: u32,
    classes: [TimerClass; N],
    clock: &ManualClock,
) -> (Arc<TimerService<u32>>, ShardLoop<u32, Handler>) {
    let builder = TimerService::builder().shards(1).capacity(capacity).classes(classes);
    clock.advance(AGE);
    let service = builder.clock(clock).start_attached_with().unwrap();
    clock.advance(AGE);
    let attachment = service.attach(shard_id()).unwrap();
    (Arc::new(service), attachment.into_loop((|_, _| {}) as Handler).unwrap())
}

/// Takes turns, and sleeps in between, until the shard is closed. If the shard sleeps for ever, the
/// model checker reports a deadlock.
fn drive(shard: &mut ShardLoop<u32, Handler>) {
    loop {
        let after = shard.turn();
        let mut is_asleep = false;
        let is_closed = block_on(poll_fn(|cx| {
            if is_asleep {
                return Poll::Ready(false);
            }
            match shard.prepare_to_sleep(after, cx.waker()) {
                Turn::More => Poll::Ready(false),
                Turn::Closed => Poll::Ready(true),
                Turn::Next(_) | Turn::Idle => {
                    is_asleep = true;
                    Poll::Pending
                }
            }
        }));
        if is_closed {
            return;
        }
    }
}

/// The lanes of a thread, as those of a handle are, but for another thread to use, too.
struct Client(Lanes<u32>);

impl Client {
    fn of(service: &TimerService<u32>) -> Self {
        Self(Lanes::new(std::sync::Arc::clone(&service.directory)))
    }

    fn schedule_of(&self, class: ClassId, value: u32) -> Result<TimerId, (RefusedKind, u32)> {
        let deadline = self.0.tick_of(LATER, self.0.nanos());
        let build = |value| Request::Schedule { deadline, sent_us: 0, class, value };
        let sent = self.0.schedule(shard_id(), class, value, build, Request::into_value);
        sent.map_err(|refused| (refused.kind(), refused.into_value()))
    }
}

fn schedule(client: &Client, value: u32) -> Result<TimerId, (RefusedKind, u32)> {
    client.schedule_of(ClassId::NONE, value)
}

/// The values that a shutdown has returned, in order.
fn returned(report: ShutdownReport<u32>) -> Vec<u32> {
    assert_eq!(report.dead, []);
    let mut values: Vec<_> = report
        .returned
        .into_iter()
        .map(|timer| match timer.payload {
            Payload::Value(value) => value,
            other => panic!("a timer has another payload: {other:?}"),
        })
        .collect();
    values.sort_unstable();
    values
}

/// A client schedules while another thread shuts the service down: each timer is returned by the
/// shutdown, or refused with its value.
fn check_shutdown(client_has_lane: bool) {
    check(move || {
        let (service, mut shard) = service();
        let client = Client::of(&service);
        let mut expected = Vec::new();
        if client_has_lane {
            schedule(&client, 0).unwrap();
            let _next = shard.turn();
            expected.push(0);
        }
        let worker = thread::spawn(move || {
            let mut accepted = Vec::new();
            for value in 1..=2 {
                match schedule(&client, value) {
                    Ok(_) => accepted.push(value),
                    Err((kind, back)) => {
                        assert_eq!(back, value);
                        // Busy: a new client has one key, until a turn grants more.
                        assert!(matches!(kind, RefusedKind::Closed | RefusedKind::Busy));
                    }
                }
            }
            let is_closed =
                schedule(&client, 9).is_err_and(|(kind, _)| kind == RefusedKind::Closed);
            (accepted, is_closed)
        });
        let report = service.begin_shutdown(ShutdownPolicy::Return).unwrap();
        drive(&mut shard);
        let values = returned(block_on(report));
        let (accepted, is_closed) = worker.join().unwrap();
        expected.extend(accepted);
        expected.extend((!is_closed && values.contains(&9)).then_some(9));
        assert_eq!(values, expected, "a timer is lost or comes back twice");
        let counts = service.stats().shards[0].counts;
        assert_eq!((counts.pending, counts.returned), (0, expected.len() as u64));
    });
}

#[test]
fn timer_of_a_new_client_during_a_shutdown_is_returned_or_refused() {
    check_shutdown(false);
}

#[test]
fn timers_sent_during_a_shutdown_are_returned_or_refused() {
    check_shutdown(true);
}

/// Two threads shut the service down: one of them gets the report, the other an error.
#[test]
fn two_shutdowns_at_once_are_accepted_once() {
    check(|| {
        let (service, mut shard) = service();
        shard.timers().schedule(LATER, 7).unwrap();
        let second = {
            let service = Arc::clone(&service);
            thread::spawn(move || service.begin_shutdown(ShutdownPolicy::Return))
        };
        let first = service.begin_shutdown(ShutdownPolicy::Return);
        drive(&mut shard);
        let (accepted, refused) = match (first, second.join().unwrap()) {
            (Ok(report), Err(error)) | (Err(error), Ok(report)) => {
                (returned(block_on(report)), error)
            }
            (first, second) => panic!("{} and {} are both so", first.is_ok(), second.is_ok()),
        };
        assert_eq!((accepted, refused), (vec![7], ReplyError::Closed));
    });
}

/// A client waits for the replies to a cancel and a reset of a timer that the shard may not have
/// received yet, as another client has sent it.
#[test]
fn cancel_and_reset_get_their_replies_while_the_shard_sleeps() {
    check_within(2, || {
        let (service, mut shard) = service();
        let first = Client::of(&service);
        let timer = schedule(&first, 7).unwrap();
        let worker = {
            let (service, second) = (Arc::clone(&service), service.handle());
            thread::spawn(move || {
                let reset = block_on(second.reset(timer, LATER * 2)).unwrap();
                let cancelled = block_on(second.cancel(timer)).unwrap();
                drop(service.begin_shutdown(ShutdownPolicy::Drop).unwrap());
                (reset, cancelled)
            })
        };
        drive(&mut shard);
        let (reset, cancelled) = worker.join().unwrap();
        let is_cancelled = matches!(cancelled.payload(), Some(Payload::Value(7)));
        assert!(is_cancelled, "a cancel whose timer is pending returns its value");
        assert!(matches!(reset, ResetOutcome::Reset), "{reset:?}");
        let counts = service.stats().shards[0].counts;
        assert_eq!((counts.pending, counts.cancelled), (0, 1));
        drop(first);
    });
}

/// A client sends a timer and is dropped while the shard takes turns: the timer is pending, the
/// lane is gone and the shard has its keys back.
#[test]
fn client_dropped_during_a_turn_leaves_its_timer_and_gives_its_keys_back() {
    check(|| {
        let (service, mut shard) = service();
        let granted = service.stats().shards[0].counts.granted;
        let client = Client::of(&service);
        let worker = thread::spawn(move || {
            let sent = schedule(&client, 7).is_ok();
            drop(client);
            sent
        });
        let _next = shard.turn();
        let sent = worker.join().unwrap();
        for _ in 0..2 {
            let _next = shard.turn();
        }
        assert!(sent, "there is a key in the pool");
        let counts = service.stats().shards[0].counts;
        assert_eq!((counts.pending, counts.lanes), (1, 0));
        // The turn that took the new lane's mail has filled the pool up, if the pool is that small.
        assert!(counts.granted <= granted.max(2), "{} keys are granted", counts.granted);
    });
}

/// The shard closes a lane as idle while its client sends two timers: each is pending once, as the
/// client sends on another lane those that the closed lane has not accepted.
#[test]
fn timers_sent_on_a_lane_that_closes_as_idle_are_pending_once() {
    check(|| {
        let clock = ManualClock::new();
        let (service, mut shard) = service_of(128, [], &clock);
        let client = Client::of(&service);
        schedule(&client, 0).unwrap();
        let _next = shard.turn();
        clock.advance(Duration::from_secs(120));
        let worker = thread::spawn(move || {
            let sent = [1, 2].map(|value| schedule(&client, value).is_ok());
            (client, sent)
        });
        let _next = shard.turn();
        let (client, sent) = worker.join().unwrap();
        for _ in 0..2 {
            let _next = shard.turn();
        }
        assert_eq!(sent, [true; 2], "a lane has two keys, and so has the pool for the next one");
        let counts = service.stats().shards[0].counts;
        assert_eq!((counts.pending, counts.scheduled_remote), (3, 3));
        drop(client);
    });
}

/// A client whose key pool is used up gets further keys from the shard's turns.
#[test]
fn client_without_a_key_gets_one_from_a_sleeping_shard() {
    check_within(2, || {
        let (service, mut shard) = service_of(16, [], &ManualClock::new());
        let client = Client::of(&service);
        let worker = {
            let service = Arc::clone(&service);
            thread::spawn(move || {
                for value in 1..=2 {
                    while let Err((kind, _)) = schedule(&client, value) {
                        assert_eq!(kind, RefusedKind::Busy);
                        thread::yield_now();
                    }
                }
                drop(service.begin_shutdown(ShutdownPolicy::Drop).unwrap());
            })
        };
        drive(&mut shard);
        worker.join().unwrap();
        let counts = service.stats().shards[0].counts;
        assert_eq!((counts.scheduled_remote, counts.dropped), (2, 2));
    });
}

/// Two clients are refused: the statistics count both.
#[test]
fn refusals_of_two_clients_are_both_counted() {
    check(|| {
        const CLASS: TimerClass = TimerClass::new("modelled");
        let (service, shard) = service_of(1, [CLASS], &ManualClock::new());
        let class = service.handle().of_class(CLASS).unwrap().class();
        let refuse = move |client: Client| {
            (0..2).filter(|value| client.schedule_of(class, *value).is_err()).count() as u64
        };
        let client = Client::of(&service);
        let worker = thread::spawn(move || refuse(client));
        let refused = refuse(Client::of(&service)) + worker.join().unwrap();
        assert_eq!(service.stats().shards[0].classes[0].refused, refused);
        drop(shard);
    });
}

/// A waker that wakes no task.
struct Unheard;

impl Wake for Unheard {
    fn wake(self: std::sync::Arc<Self>) {}
}

/// A sleep that this thread has polled once, what that returned, and the waker: the count of its
/// references says whether it is kept.
fn polled_sleep(
    handle: Handle<u32>,
) -> (Sleep, Poll<Result<(), RefusedKind>>, std::sync::Arc<Unheard>) {
    let unheard = std::sync::Arc::new(Unheard);
    let waker = Waker::from(std::sync::Arc::clone(&unheard));
    let mut sleep = handle.sleep(LATER);
    let polled = Pin::new(&mut sleep).poll(&mut Context::from_waker(&waker));
    (sleep, polled, unheard)
}

/// A thread polls a sleep, and another one drops it while the shard receives: the timer is
/// cancelled in its lane or by a message, and not twice.
#[test]
fn sleep_of_a_handle_dropped_by_another_thread_is_cancelled_once() {
    check_within(2, || {
        let (service, mut shard) = service();
        let handle = service.handle();
        let worker = thread::spawn(move || {
            let (sleep, polled, unheard) = polled_sleep(handle);
            assert_eq!(polled, Poll::Pending, "it is scheduled, or waits for a key");
            let other = thread::spawn(move || drop(sleep));
            other.join().unwrap();
            unheard
        });
        let _next = shard.turn();
        let unheard = worker.join().unwrap();
        let report = service.begin_shutdown(ShutdownPolicy::Return).unwrap();
        drive(&mut shard);
        assert!(returned(block_on(report)).is_empty());
        let counts = service.stats().shards[0].counts;
        assert_eq!((counts.pending, counts.returned), (0, 0));
        assert_eq!(counts.cancelled, counts.scheduled_remote, "{counts:?}");
        assert_eq!(std::sync::Arc::strong_count(&unheard), 1, "the waker is kept");
    });
}

/// A thread polls a sleep, and another one polls it with another waker, while the shard receives
/// and is shut down by a third one: the sleep ends.
#[test]
fn sleep_of_a_handle_polled_by_another_thread_is_woken_at_the_end() {
    check_within(2, || {
        let (service, mut shard) = service();
        let handle = service.handle();
        let (sleep, polled, unheard) = thread::spawn(move || polled_sleep(handle)).join().unwrap();
        assert_eq!(polled, Poll::Pending, "it is scheduled, or waits for a key");
        let sleeper = thread::spawn(move || block_on(sleep));
        let ender = {
            let service = Arc::clone(&service);
            thread::spawn(move || service.begin_shutdown(ShutdownPolicy::Return).unwrap())
        };
        drive(&mut shard);
        assert_eq!(sleeper.join().unwrap(), Err(RefusedKind::Closed));
        drop(block_on(ender.join().unwrap()));
        assert_eq!(std::sync::Arc::strong_count(&unheard), 1, "the waker is kept");
    });
}

/// A client opens its lane and asks for a key, while another thread orders the shutdown: the shard
/// that sleeps takes the mail of both.
#[test]
fn lane_opened_while_the_service_ends_is_closed_or_used() {
    check_within(2, || {
        let (service, mut shard) = service();
        let handle = service.handle();
        let sender = thread::spawn(move || {
            let sent = handle.on(shard_id()).schedule(LATER, 7).map_err(RefusedKind::from);
            assert!(matches!(sent, Ok(_) | Err(RefusedKind::Closed | RefusedKind::Busy)));
        });
        let ender = {
            let service = Arc::clone(&service);
            thread::spawn(move || service.begin_shutdown(ShutdownPolicy::Return).unwrap())
        };
        drive(&mut shard);
        sender.join().unwrap();
        drop(block_on(ender.join().unwrap()));
    });
}

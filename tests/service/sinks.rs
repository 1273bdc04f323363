//! Handlers that send values on: to sinks that fill up, and to other task queues.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use corewheel::attach::{ShardLoop, Turn};
use corewheel::class::TimerClass;
use corewheel::sink::{SinkPolicy, to_sink};
use corewheel::stats::ShardCounts;
use corewheel::{Fired, Handler, Refused, ShardId, ShutdownPolicy, TimerService, Timers};

use crate::support::{
    FAR, Guard, Host, PATIENCE, Running, SHARD, builder, check_law, ms, seeds, wait_until,
};

const LEASE: TimerClass = TimerClass::new("lease");

/// A handler that sends into a channel of the standard library.
fn to_channel(sender: SyncSender<u32>, policy: SinkPolicy<u32>) -> impl Handler<u32> {
    to_sink(move |value| Ok(sender.try_send(value)?), policy)
}

type BoxedHandler = Box<dyn FnMut(Fired<u32>, &Timers<u32>)>;

/// A shard in a loop, with a sink that has room for `room`.
struct Bench {
    clock: corewheel::clock::ManualClock,
    service: TimerService<u32>,
    shard: ShardLoop<u32, BoxedHandler>,
    taken: Receiver<u32>,
}

impl Bench {
    fn new(room: usize, capacity: u32, policy: SinkPolicy<u32>) -> Self {
        let clock = seeds::clock();
        let builder = TimerService::builder().shards(1).capacity(capacity).class(LEASE);
        let service = builder.clock(&clock).start_attached_with().unwrap();
        let (sender, taken) = sync_channel(room);
        let handler: BoxedHandler = Box::new(to_channel(sender, policy));
        let shard = service.attach(SHARD).unwrap().into_loop(handler).unwrap();
        Self { clock, service, shard, taken }
    }

    fn schedule(&self, values: std::ops::Range<u32>) {
        for value in values {
            self.shard.timers().schedule(ms(1), value).unwrap();
        }
    }

    fn advance(&mut self, by: u64) -> Vec<u32> {
        self.clock.advance(ms(by));
        while self.shard.turn() == Turn::More {}
        check_sums(&self.counts());
        self.taken.try_iter().collect()
    }

    fn counts(&self) -> ShardCounts {
        self.service.stats().shards[0].counts
    }
}

#[track_caller]
fn check_sums(counts: &ShardCounts) {
    check_law(counts);
    assert!(counts.sink_retried + counts.sink_dropped <= counts.sink_refused, "{counts:?}");
    assert!(counts.sink_sent + counts.sink_refused <= counts.fired, "{counts:?}");
}

#[track_caller]
fn check(counts: &ShardCounts, sent: u64, refused: u64, retried: u64, dropped: u64) {
    let found = (counts.sink_sent, counts.sink_refused, counts.sink_retried, counts.sink_dropped);
    assert_eq!(found, (sent, refused, retried, dropped));
}

#[test]
fn full_sink_with_policy_drop_drops_and_counts() {
    let mut bench = Bench::new(3, 64, SinkPolicy::Drop);
    bench.schedule(0..5);
    assert_eq!(bench.advance(1), [0, 1, 2]);
    check(&bench.counts(), 3, 2, 0, 2);
    assert!(bench.advance(100).is_empty());
}

#[test]
fn full_sink_with_policy_retry_gets_values_after_the_delay() {
    let mut bench = Bench::new(2, 64, SinkPolicy::Retry(ms(10)));
    bench.schedule(0..5);
    assert_eq!(bench.advance(1), [0, 1]);
    assert_eq!(bench.counts().pending, 3);
    assert!(bench.advance(9).is_empty(), "not before the delay is over");
    assert_eq!(bench.advance(1), [2, 3]);
    assert_eq!(bench.advance(10), [4]);
    check(&bench.counts(), 5, 4, 4, 0);
    assert_eq!(bench.counts().pending, 0);
}

#[test]
fn retry_with_delay_zero_waits_for_the_next_tick() {
    let mut bench = Bench::new(1, 64, SinkPolicy::Retry(std::time::Duration::ZERO));
    bench.schedule(0..2);
    assert_eq!(bench.advance(5), [0]);
    assert!(bench.advance(0).is_empty(), "not in the same tick");
    assert_eq!(bench.advance(1), [1]);
}

#[test]
fn retried_value_keeps_its_class() {
    let mut bench = Bench::new(1, 64, SinkPolicy::Retry(ms(10)));
    for value in 0..2 {
        bench.shard.timers().of_class(LEASE).unwrap().schedule(ms(1), value).unwrap();
    }
    bench.shard.timers().schedule(ms(1), 2).unwrap();
    assert_eq!(bench.advance(1), [0]);
    let class = bench.service.stats().classes()[0];
    assert_eq!((class.scheduled, class.fired, class.pending), (3, 2, 1), "{class:?}");
    assert_eq!(bench.counts().pending, 2);
}

#[test]
fn full_sink_with_policy_call_gives_values_to_the_closure() {
    let refused = Rc::new(RefCell::new(Vec::new()));
    let noted = Rc::clone(&refused);
    let policy = SinkPolicy::call(move |value, timers: &Timers<u32>| {
        noted.borrow_mut().push(value);
        if value < 10 {
            timers.schedule(ms(5), value + 10).unwrap();
        }
    });
    let mut bench = Bench::new(1, 64, policy);
    bench.schedule(0..3);
    assert_eq!(bench.advance(1), [0]);
    assert_eq!(*refused.borrow(), [1, 2]);
    assert_eq!(bench.advance(5), [11]);
    assert_eq!(*refused.borrow(), [1, 2, 12]);
    check(&bench.counts(), 2, 3, 0, 0);
}

#[test]
fn closed_sink_is_not_retried() {
    let mut bench = Bench::new(1, 64, SinkPolicy::Retry(ms(10)));
    bench.schedule(0..3);
    bench.taken = channel().1;
    bench.advance(1);
    check(&bench.counts(), 0, 3, 0, 3);
    assert_eq!(bench.counts().pending, 0);
}

#[test]
fn value_fired_by_shutdown_is_not_retried() {
    let bench = Bench::new(2, 64, SinkPolicy::Retry(ms(10)));
    bench.schedule(0..5);
    let report = bench.shard.shutdown(ShutdownPolicy::Fire);
    assert_eq!(bench.taken.try_iter().collect::<Vec<_>>(), [0, 1]);
    check(&report.counts, 2, 3, 0, 3);
    check_sums(&report.counts);
}

#[test]
fn closure_as_sink_keeps_what_it_accepts() {
    let (guard, dropped) = Guard::new();
    let mut left = 1;
    let kept = Rc::new(RefCell::new(Vec::new()));
    let stored = Rc::clone(&kept);
    let sink = move |value: Guard| {
        if left == 0 {
            return Err(Refused::Full(value));
        }
        left -= 1;
        stored.borrow_mut().push(value);
        Ok(())
    };
    let clock = seeds::clock();
    let service = builder(1).clock(&clock).start_attached_with().unwrap();
    let handler = to_sink(sink, SinkPolicy::Drop);
    let mut shard = service.attach(SHARD).unwrap().into_loop(handler).unwrap();
    shard.timers().schedule(ms(1), guard.clone()).unwrap();
    shard.timers().schedule(ms(1), guard).unwrap();
    clock.advance(ms(1));
    let _ = shard.turn();
    assert_eq!(dropped.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert_eq!(kept.borrow().len(), 1);
}

#[test]
fn panic_of_sink_harms_no_other_value() {
    let (sender, taken) = channel();
    let sink = move |value: u32| {
        assert_ne!(value, 1, "it panics");
        sender.send(value).unwrap();
        Ok(())
    };
    let clock = seeds::clock();
    let service = builder(1).clock(&clock).start_attached_with().unwrap();
    let handler = to_sink(sink, SinkPolicy::Drop);
    let mut shard = service.attach(SHARD).unwrap().into_loop(handler).unwrap();
    for value in 0..3 {
        shard.timers().schedule(ms(1), value).unwrap();
    }
    clock.advance(ms(1));
    let _ = shard.turn();
    assert_eq!(taken.try_iter().collect::<Vec<_>>(), [0, 2]);
    assert_eq!(service.stats().shards[0].counts.panicked, 1);
}

#[test]
fn small_sink_gets_every_value_on_every_runtime() {
    for host in Host::all() {
        let (sender, taken) = sync_channel::<u32>(4);
        let running = Running::start(host, builder(2), move |_| {
            to_channel(sender.clone(), SinkPolicy::Retry(ms(1)))
        });
        let client = running.client();
        for value in 0..100 {
            let shard = ShardId::new(value as u16 % 2);
            client.on(shard).schedule(ms(u64::from(value) % 5), value).unwrap();
        }
        let take = || taken.recv_timeout(PATIENCE).expect("all of them come");
        let mut values: Vec<_> = (0..100).map(|_| take()).collect();
        values.sort_unstable();
        assert_eq!(values, (0..100).collect::<Vec<_>>(), "{host:?}");
        let report = running.end(ShutdownPolicy::Drop);
        let sum = |count: fn(&ShardCounts) -> u64| -> u64 {
            report.shards.iter().map(|shard| count(&shard.counts)).sum()
        };
        assert_eq!(sum(|counts| counts.sink_sent), 100, "{host:?}");
        assert_eq!(sum(|counts| counts.sink_dropped), 0, "{host:?}");
        let retried = sum(|counts| counts.sink_retried);
        assert_eq!(sum(|counts| counts.sink_refused), retried, "{host:?}");
    }
}

/// Sums up the values that a handler keeps; panics when the handler is dropped.
struct Kept(u32);

impl Kept {
    fn add(&mut self, value: u32) {
        self.0 += value;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        assert_eq!(self.0, 2 + 4, "the handler is dropped after the last timer");
        panic!("it harms no other value");
    }
}

#[test]
fn handler_can_send_some_of_its_values_only() {
    let clock = seeds::clock();
    let service = builder(1).clock(&clock).start_attached_with().unwrap();
    let (sender, taken) = sync_channel(8);
    let mut kept = Kept(0);
    let mut odd = to_channel(sender, SinkPolicy::Drop);
    let handler = move |fired: Fired<u32>, timers: &Timers<u32>| {
        if fired.payload % 2 == 1 {
            odd(fired, timers);
        } else {
            kept.add(fired.payload);
        }
    };
    let mut shard = service.attach(SHARD).unwrap().into_loop(handler).unwrap();
    for value in 0..6 {
        shard.timers().schedule(ms(1), value).unwrap();
    }
    clock.advance(ms(1));
    let _ = shard.turn();
    assert_eq!(taken.try_iter().collect::<Vec<_>>(), [1, 3, 5]);
    let report = shard.shutdown(ShutdownPolicy::Return);
    assert_eq!(report.counts.panicked, 1);
}

/// Sends when it is dropped.
struct Noted(std::sync::mpsc::Sender<Option<u32>>);

impl Drop for Noted {
    fn drop(&mut self) {
        let _ = self.0.send(None);
    }
}

#[test]
fn shutdown_drops_handler_after_last_timer_before_the_report() {
    for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Fire, ShutdownPolicy::Return] {
        for host in Host::all() {
            let (sender, seen) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let noted = Noted(sender.clone());
                let thread = std::thread::current().id();
                move |fired: Fired<u32>, _: &Timers<u32>| {
                    assert_eq!(std::thread::current().id(), thread);
                    noted.0.send(Some(fired.payload)).unwrap();
                }
            });
            for value in 0..3 {
                running.client().on(SHARD).schedule(FAR, value).unwrap();
            }
            let report = running.service.shutdown(policy).unwrap();
            // The other executors have not been told to end yet.
            let fired = if policy == ShutdownPolicy::Fire { 0..3 } else { 0..0 };
            let expected: Vec<_> = fired.map(Some).chain([None]).collect();
            assert_eq!(seen.try_iter().collect::<Vec<_>>(), expected, "{host:?}, {policy:?}");
            assert_eq!(report.shards[0].counts.panicked, 0);
            running.stop();
        }
    }
}

#[cfg(all(feature = "glommio", target_os = "linux"))]
mod on_task_queues {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use corewheel::Runtime;
    use corewheel::sink::on_task_queue;
    use glommio::{Latency, Shares, TaskQueueHandle};

    use super::*;
    use crate::support::{OTHER, glommio_works};

    const HOSTS: [Host; 2] = [Host::Own(Runtime::Glommio), Host::GlommioAttached];

    fn hosts() -> impl Iterator<Item = Host> {
        HOSTS.into_iter().filter(|_| glommio_works())
    }

    thread_local! {
        static BACKGROUND: Cell<Option<TaskQueueHandle>> = const { Cell::new(None) };
    }

    /// The test's queue on this thread.
    fn background() -> TaskQueueHandle {
        BACKGROUND.get().unwrap_or_else(|| {
            let latency = Latency::NotImportant;
            let executor = glommio::executor();
            let queue = executor.create_task_queue(Shares::Static(10), latency, "background");
            BACKGROUND.set(Some(queue));
            queue
        })
    }

    fn is_in_background() -> bool {
        let here = glommio::executor().current_task_queue();
        BACKGROUND.get().is_some_and(|queue| format!("{queue:?}") == format!("{here:?}"))
    }

    #[test]
    fn handler_runs_in_its_queue_in_order() {
        for host in hosts() {
            let (sender, ran) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let sender = sender.clone();
                let handler = move |fired: Fired<u32>, timers: &Timers<u32>| {
                    if fired.payload == 0 {
                        timers.schedule(ms(1), 100).unwrap();
                    }
                    assert_ne!(fired.payload, 7, "it panics");
                    sender.send((fired.payload, is_in_background())).unwrap();
                };
                on_task_queue(background, 1_024, SinkPolicy::Drop, handler).unwrap()
            });
            let client = running.client();
            // Together, so that all of them are due before the one that the first schedules.
            let all = (0..20).map(|value| (ms(2), value));
            assert_eq!(client.on(SHARD).schedule_many(all).unwrap().len(), 20);
            let mut values = Vec::new();
            for _ in 0..20 {
                let (value, in_background) = ran.recv_timeout(PATIENCE).expect("all of them run");
                assert!(in_background, "{host:?}: {value}");
                values.push(value);
            }
            let expected = (0..20).filter(|n| *n != 7).chain([100]);
            assert_eq!(values, expected.collect::<Vec<_>>(), "{host:?}: in order");
            let counts = running.end(ShutdownPolicy::Drop).shards[0].counts;
            check(&counts, 21, 0, 0, 0);
            assert_eq!(counts.panicked, 1, "{host:?}");
        }
    }

    #[test]
    fn values_beyond_waiting_max_go_by_the_policy() {
        for host in hosts() {
            let (sender, ran) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let sender = sender.clone();
                let handler = move |fired: Fired<u32>, _: &Timers<u32>| {
                    sender.send(fired.payload).unwrap();
                };
                on_task_queue(background, 4, SinkPolicy::Retry(ms(2)), handler).unwrap()
            });
            let client = running.client();
            for value in 0..50 {
                client.on(SHARD).schedule(ms(20), value).unwrap();
            }
            let run = || ran.recv_timeout(PATIENCE).expect("all of them run");
            let mut values: Vec<_> = (0..50).map(|_| run()).collect();
            values.sort_unstable();
            assert_eq!(values, (0..50).collect::<Vec<_>>(), "{host:?}");
            let counts = running.end(ShutdownPolicy::Drop).shards[0].counts;
            assert!(counts.sink_retried > 0, "{host:?}: they are due together: {counts:?}");
            assert_eq!((counts.sink_sent, counts.sink_dropped), (50, 0), "{host:?}");
        }
    }

    #[test]
    fn shutdown_runs_timers_that_wait_for_a_queue() {
        for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Fire, ShutdownPolicy::Return] {
            for host in hosts() {
                let (sender, ran) = channel();
                let running = Running::start(host, builder(1), move |_| {
                    let sender = sender.clone();
                    let handler = move |fired: Fired<u32>, _: &Timers<u32>| {
                        sender.send(fired.payload).unwrap();
                        std::thread::sleep(Duration::from_millis(1));
                    };
                    on_task_queue(background, 1_024, SinkPolicy::Drop, handler).unwrap()
                });
                let client = running.client();
                for value in 0..30 {
                    client.on(SHARD).schedule(ms(1), value).unwrap();
                }
                client.on(SHARD).schedule(FAR, 30).unwrap();
                wait_until("some have fired", || {
                    running.service.stats().shards[0].counts.fired > 0
                });
                let counts = running.end(policy).shards[0].counts;
                let ran: Vec<_> = ran.try_iter().collect();
                assert_eq!(ran.len() as u64, counts.fired, "{host:?}, {policy:?}");
                assert_eq!(counts.sink_sent, counts.fired, "{host:?}, {policy:?}");
                assert!(ran.is_sorted(), "{host:?}, {policy:?}: in order");
            }
        }
    }

    #[test]
    fn callback_runs_in_its_queue() {
        for host in hosts() {
            let (sender, ran) = channel();
            let running = Running::<u32>::start(host, builder(1), |_| |_: Fired<u32>, _: &_| {});
            let task = running.service.spawn_on(SHARD, move |timers| async move {
                let start = timers.now();
                let first = sender.clone();
                timers
                    .schedule_fn_into(background(), ms(2), move |timers| {
                        let early = timers.now() < start + ms(2);
                        first.send((1, is_in_background() && !early)).unwrap();
                    })
                    .unwrap();
                let second = sender.clone();
                timers
                    .schedule_fn_into(background(), FAR, move |timers| {
                        second.send((2, timers.now() >= start)).unwrap();
                    })
                    .unwrap();
                let panics = |_: &Timers<u32>| panic!("it harms nobody");
                timers.schedule_fn_into(background(), ms(1), panics).unwrap();
                let cancelled = timers.schedule_fn_into(background(), FAR, |_| {}).unwrap();
                assert!(timers.cancel(cancelled).won());
            });
            task.unwrap().wait().unwrap();
            assert_eq!(ran.recv_timeout(PATIENCE), Ok((1, true)), "{host:?}");
            let counts = || running.service.stats().shards[0].counts;
            wait_until("the panic is counted", || counts().panicked == 1);
            running.end(ShutdownPolicy::Fire);
            // It is run by the shutdown itself.
            assert_eq!(ran.try_recv(), Ok((2, true)), "{host:?}");
        }
    }

    #[test]
    fn handler_on_other_runtimes_refuses_every_value() {
        for host in Host::all().filter(|host| !HOSTS.contains(host)) {
            let (sender, refused) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let sender = sender.clone();
                let policy = SinkPolicy::call(move |value, _: &Timers<u32>| {
                    sender.send(value).unwrap();
                });
                on_task_queue(background, 4, policy, |_: Fired<u32>, _: &Timers<u32>| {}).unwrap()
            });
            running.client().on(SHARD).schedule(ms(1), 5).unwrap();
            assert_eq!(refused.recv_timeout(PATIENCE), Ok(5), "{host:?}");
            let counts = running.end(ShutdownPolicy::Drop).shards[0].counts;
            check(&counts, 0, 1, 0, 0);
        }
    }

    #[test]
    fn handler_in_queue_is_dropped_once_and_last() {
        for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Fire] {
            for (host, is_used) in hosts().flat_map(|host| [(host, false), (host, true)]) {
                let (sender, seen) = channel();
                let running = Running::start(host, builder(1), move |_| {
                    let noted = Noted(sender.clone());
                    let handler = move |fired: Fired<u32>, _: &Timers<u32>| {
                        noted.0.send(Some(fired.payload)).unwrap();
                    };
                    on_task_queue(background, 8, SinkPolicy::Drop, handler).unwrap()
                });
                let mut expected = Vec::new();
                if is_used {
                    running.client().on(SHARD).schedule(ms(1), 9).unwrap();
                    assert_eq!(seen.recv_timeout(PATIENCE), Ok(Some(9)));
                }
                for value in 0..3 {
                    running.client().on(SHARD).schedule(FAR, value).unwrap();
                }
                running.service.shutdown(policy).unwrap();
                if policy == ShutdownPolicy::Fire {
                    expected.extend((0..3).map(Some));
                }
                expected.push(None);
                assert_eq!(seen.try_iter().collect::<Vec<_>>(), expected, "{host:?}, {policy:?}");
                running.stop();
            }
        }
    }

    /// A shard whose driver ends without a shutdown runs nothing that waits.
    #[test]
    fn dead_shard_drops_handler_and_what_waits() {
        for host in hosts().filter(|host| *host == Host::GlommioAttached) {
            let (sender, seen) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let noted = Noted(sender.clone());
                let handler = move |fired: Fired<u32>, _: &Timers<u32>| {
                    noted.0.send(Some(fired.payload)).unwrap();
                    std::thread::sleep(ms(5));
                };
                on_task_queue(background, 1_024, SinkPolicy::Drop, handler).unwrap()
            });
            let schedule_all = |timers: &Timers<u32>| {
                for value in 0..200 {
                    timers.schedule(ms(1), value).unwrap();
                }
            };
            running.client().on(SHARD).schedule_fn(ms(1), schedule_all).unwrap();
            assert_eq!(seen.recv_timeout(PATIENCE), Ok(Some(0)));
            // Its executor ends without a shutdown.
            let Running { service, stops, threads } = running;
            drop(stops);
            for thread in threads {
                thread.join().unwrap();
            }
            let seen: Vec<_> = seen.try_iter().collect();
            assert!(seen.len() < 200, "{}", seen.len());
            assert_eq!(seen.iter().filter(|value| value.is_none()).count(), 1);
            assert_eq!(seen.last(), Some(&None), "the handler is dropped last");
            drop(service);
        }
    }

    #[test]
    fn value_sent_on_by_a_queue_keeps_its_class() {
        const OTHER_CLASS: TimerClass = TimerClass::new("other");
        for host in hosts() {
            let (sender, taken) = sync_channel(0);
            let running = Running::start(host, builder(1).classes([LEASE, OTHER_CLASS]), {
                move |_| {
                    let sink = to_channel(sender.clone(), SinkPolicy::Retry(FAR));
                    on_task_queue(background, 8, SinkPolicy::Drop, sink).unwrap()
                }
            });
            let client = running.client();
            for (class, value) in [(LEASE, 1), (OTHER_CLASS, 2), (OTHER_CLASS, 3)] {
                let shard = client.on(SHARD).of_class(class).unwrap();
                shard.schedule(ms(5), value).unwrap();
            }
            let live = || running.service.stats().classes().iter().map(|c| c.pending).collect();
            let fired = || running.service.stats().shards[0].counts.fired;
            wait_until("they are tried again", || {
                fired() == 3 && running.service.stats().shards[0].counts.pending == 3
            });
            let live: Vec<_> = live();
            assert_eq!(live, [1, 2], "{host:?}");
            drop(taken);
            running.end(ShutdownPolicy::Drop);
        }
    }

    #[test]
    fn shutdown_runs_waiting_callbacks_in_order() {
        for policy in [ShutdownPolicy::Drop, ShutdownPolicy::Fire, ShutdownPolicy::Return] {
            for host in hosts() {
                let (sender, ran) = channel();
                let handler = |_| |_: Fired<u32>, _: &Timers<u32>| {};
                let running = Running::<u32>::start(host, builder(1).class(LEASE), handler);
                let task = running.service.spawn_on(SHARD, move |timers| async move {
                    let lease = timers.of_class(LEASE).unwrap();
                    for n in 0..150 {
                        let sender = sender.clone();
                        let call = move |_: &Timers<u32>| {
                            sender.send(n).unwrap();
                            std::thread::sleep(Duration::from_millis(1));
                        };
                        lease.schedule_fn_into(background(), ms(1), call).unwrap();
                    }
                });
                task.unwrap().wait().unwrap();
                wait_until("some have fired", || {
                    running.service.stats().shards[0].counts.fired > 0
                });
                let report = running.end(policy);
                let ran: Vec<_> = ran.try_iter().collect();
                let fired = report.shards[0].classes[0].fired;
                assert_eq!(ran.len() as u64, fired, "{host:?}, {policy:?}");
                assert!(ran.is_sorted(), "{host:?}, {policy:?}: {ran:?}");
            }
        }
    }

    #[test]
    fn timer_fires_in_time_while_a_queue_works() {
        for host in hosts() {
            let worked = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&worked);
            let running = Running::start(host, builder(1), move |_| {
                let counted = Arc::clone(&counted);
                let handler = move |_: Fired<u32>, _: &Timers<u32>| {
                    std::thread::sleep(Duration::from_millis(1));
                    counted.fetch_add(1, Ordering::SeqCst);
                };
                on_task_queue(background, 1_024, SinkPolicy::Drop, handler).unwrap()
            });
            let (sender, seen) = channel();
            let read = Arc::clone(&worked);
            let task = running.service.spawn_on(SHARD, move |timers| async move {
                for value in 0..300 {
                    timers.schedule(ms(2), value).unwrap();
                }
                let call = move |_: &Timers<u32>| sender.send(read.load(Ordering::SeqCst)).unwrap();
                timers.schedule_fn(ms(30), call).unwrap();
            });
            task.unwrap().wait().unwrap();
            let worked = seen.recv_timeout(PATIENCE).expect("it fires");
            // Each takes a millisecond at least.
            assert!(worked < 60, "{host:?}: {worked} went before a timer of 30 ms");
            running.end(ShutdownPolicy::Drop);
        }
    }

    #[test]
    fn panic_in_a_queue_is_published_at_once() {
        for host in hosts() {
            let running = Running::start(host, builder(1), move |_| {
                let handler = |_: Fired<u32>, _: &Timers<u32>| panic!("it harms nobody");
                on_task_queue(background, 8, SinkPolicy::Drop, handler).unwrap()
            });
            running.client().on(SHARD).schedule(ms(1), 1).unwrap();
            let counts = || running.service.stats().shards[0].counts;
            wait_until("the panic is counted", || counts().panicked == 1);
            running.end(ShutdownPolicy::Drop);
        }
    }

    /// Glommio panics where it is asked for an executor and there is none.
    #[test]
    fn thread_that_has_left_its_executor_refuses_every_value() {
        if !glommio_works() {
            return;
        }
        let service = builder(2).start_attached_with::<u32>().unwrap();
        let [first, second] = [SHARD, OTHER].map(|shard| service.attach(shard).unwrap());
        let executor = glommio::LocalExecutorBuilder::default().make().unwrap();
        let timers = executor
            .run(async move { first.attach_glommio(|_: Fired<u32>, _: &Timers<u32>| {}).unwrap() });
        let refused = Rc::new(RefCell::new(Vec::new()));
        let noted = Rc::clone(&refused);
        let policy = SinkPolicy::call(move |value, _: &Timers<u32>| noted.borrow_mut().push(value));
        let handler = |_: Fired<u32>, _: &Timers<u32>| {};
        let handler = on_task_queue(background, 4, policy, handler).unwrap();
        let mut shard = second.into_loop(handler).unwrap();
        shard.timers().schedule(ms(0), 5).unwrap();
        let _ = shard.turn();
        assert_eq!(*refused.borrow(), [5]);
        drop((timers, executor, shard));
    }
}

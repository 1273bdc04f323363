//! Handlers that hand values on, to channels that fill up, and callbacks in other task queues.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};

use corewheel::attach::{ShardLoop, Turn};
use corewheel::clock::ManualClock;
use corewheel::{Fired, ShardId, ShutdownPolicy, TimerService, Timers};

use corewheel_test_support::{FAR, Host, PATIENCE, Running, SHARD, builder, check_law, ms, seeds};

/// A handler that sends into a channel, and schedules again what finds no room.
fn to_channel(
    sender: SyncSender<u32>,
    again: u64,
) -> impl FnMut(Fired<u32>, &Timers<u32>) + 'static {
    move |fired: Fired<u32>, timers: &Timers<u32>| {
        if let Err(TrySendError::Full(value)) = sender.try_send(fired.payload) {
            timers.schedule(ms(again), value).unwrap();
        }
    }
}

type BoxedHandler = Box<dyn FnMut(Fired<u32>, &Timers<u32>)>;

/// A shard in a loop, whose handler sends into a channel with room for two.
struct Bench {
    clock: ManualClock,
    service: TimerService<u32>,
    shard: ShardLoop<u32, BoxedHandler>,
    taken: Receiver<u32>,
}

impl Bench {
    fn new() -> Self {
        let clock = seeds::clock();
        let service = builder(1).clock(&clock).start_attached_with().unwrap();
        let (sender, taken) = sync_channel(2);
        let handler: BoxedHandler = Box::new(to_channel(sender, 10));
        let shard = service.attach(SHARD).unwrap().into_loop(handler).unwrap();
        Self { clock, service, shard, taken }
    }

    fn advance(&mut self, by: u64) -> Vec<u32> {
        self.clock.advance(ms(by));
        while self.shard.turn() == Turn::More {}
        check_law(&self.service.stats().shards[0].counts);
        self.taken.try_iter().collect()
    }
}

#[test]
fn handler_of_a_full_channel_sends_its_values_after_the_delay() {
    let mut bench = Bench::new();
    for value in 0..5 {
        bench.shard.timers().schedule(ms(1), value).unwrap();
    }
    assert_eq!(bench.advance(1), [0, 1]);
    assert_eq!(bench.shard.timers().len(), 3);
    assert!(bench.advance(9).is_empty(), "not before the delay is over");
    assert_eq!(bench.advance(1), [2, 3]);
    assert_eq!(bench.advance(10), [4]);
    assert!(bench.shard.timers().is_empty());
}

#[test]
fn small_channel_gets_every_value_on_every_runtime() {
    for host in Host::all() {
        let (sender, taken) = sync_channel::<u32>(4);
        let running = Running::start(host, builder(2), move |_| to_channel(sender.clone(), 1));
        let client = running.client();
        for value in 0..100 {
            let shard = ShardId::new(value as u16 % 2);
            client.on(shard).schedule(ms(u64::from(value) % 5), value).unwrap();
        }
        let take = || taken.recv_timeout(PATIENCE).expect("all of them come");
        let mut values: Vec<_> = (0..100).map(|_| take()).collect();
        values.sort_unstable();
        assert_eq!(values, (0..100).collect::<Vec<_>>(), "{host:?}");
        running.end(ShutdownPolicy::Drop);
    }
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

#[cfg(target_os = "linux")]
mod in_task_queues {
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use corewheel::class::TimerClass;
    use corewheel_glommio::{Runtime, schedule_fn_into};
    use glommio::{Latency, Shares, TaskQueueHandle};

    use super::*;
    use corewheel_test_support::{glommio_works, wait_until};

    const LEASE: TimerClass = TimerClass::new("lease");

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

    /// A handler that runs `work` in the test's queue.
    fn in_background(
        work: impl Fn(u32, &Timers<u32>) + Clone + 'static,
    ) -> impl FnMut(Fired<u32>, &Timers<u32>) + 'static {
        move |fired: Fired<u32>, timers: &Timers<u32>| {
            let work = work.clone();
            let call = move |timers: &Timers<u32>| work(fired.payload, timers);
            if let Err(refused) = schedule_fn_into(timers, background(), Duration::ZERO, call) {
                refused.into_value()(timers);
            }
        }
    }

    #[test]
    fn values_handed_to_a_queue_are_worked_on_there_in_order() {
        for host in hosts() {
            let (sender, ran) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let sender = sender.clone();
                in_background(move |value, _| {
                    assert_ne!(value, 7, "it panics");
                    sender.send((value, is_in_background())).unwrap();
                })
            });
            let client = running.client();
            for value in 0..20 {
                client.on(SHARD).schedule(ms(2), value).unwrap();
            }
            let expected: Vec<_> = (0..20).filter(|n| *n != 7).collect();
            for value in expected {
                assert_eq!(ran.recv_timeout(PATIENCE), Ok((value, true)), "{host:?}");
            }
            let counts = || running.service.stats().shards[0].counts;
            wait_until("the panic is counted", || counts().panicked == 1);
            running.end(ShutdownPolicy::Drop);
        }
    }

    #[test]
    fn shutdown_that_fires_runs_values_that_are_handed_to_a_queue() {
        for host in hosts() {
            let (sender, ran) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let sender = sender.clone();
                in_background(move |value, _| sender.send(value).unwrap())
            });
            for value in 0..5 {
                running.client().on(SHARD).schedule(FAR, value).unwrap();
            }
            running.end(ShutdownPolicy::Fire);
            assert_eq!(ran.try_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4], "{host:?}");
        }
    }

    #[test]
    fn dead_shard_drops_callbacks_that_wait_for_a_queue() {
        for host in hosts().filter(|host| *host == Host::GlommioAttached) {
            let (sender, seen) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let sender = sender.clone();
                move |fired: Fired<u32>, timers: &Timers<u32>| {
                    let noted = Noted(sender.clone());
                    let call = move |_: &Timers<u32>| {
                        noted.0.send(Some(fired.payload)).unwrap();
                        std::thread::sleep(ms(5));
                    };
                    schedule_fn_into(timers, background(), Duration::ZERO, call).unwrap();
                }
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
            let (ran, dropped): (Vec<_>, Vec<_>) = seen.try_iter().partition(Option::is_some);
            assert!(ran.len() < 200, "{}", ran.len());
            assert_eq!(dropped.len(), 200, "all callbacks are dropped");
            drop(service);
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
                schedule_fn_into(&timers, background(), ms(2), move |timers| {
                    let early = timers.now() < start + ms(2);
                    first.send((1, is_in_background() && !early)).unwrap();
                })
                .unwrap();
                let second = sender.clone();
                schedule_fn_into(&timers, background(), FAR, move |timers| {
                    second.send((2, timers.now() >= start)).unwrap();
                })
                .unwrap();
                let panics = |_: &Timers<u32>| panic!("it harms nobody");
                schedule_fn_into(&timers, background(), ms(1), panics).unwrap();
                let cancelled = schedule_fn_into(&timers, background(), FAR, |_| {}).unwrap();
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
                        schedule_fn_into(&lease, background(), ms(1), call).unwrap();
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
                in_background(move |_, _| {
                    std::thread::sleep(Duration::from_millis(1));
                    counted.fetch_add(1, Ordering::SeqCst);
                })
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
}

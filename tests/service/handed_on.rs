//! Handlers that hand values on, to channels that fill up, and callbacks in other task queues.

use std::sync::mpsc::{Sender, TrySendError, channel, sync_channel};

use corewheel_glommio::{Runtime, schedule_fn_into};
use glommio::{Latency, Shares, TaskQueueHandle};

use super::*;

#[test]
fn handler_of_a_full_channel_sends_its_values_after_the_delay() {
    let (sender, taken) = sync_channel(2);
    let mut lab = Lab::with_handler(builder(1), |_| {
        let sender = sender.clone();
        move |fired: Fired<u32>, timers: &Timers<u32>| {
            if let Err(TrySendError::Full(value)) = sender.try_send(fired.payload) {
                timers.schedule(ms(10), value).unwrap();
            }
        }
    });
    for value in 0..5 {
        lab.timers().schedule(ms(1), value).unwrap();
    }
    // The second is not before the delay is over.
    for (by, expected, left) in [(1, &[0, 1][..], 3), (9, &[], 3), (1, &[2, 3], 1), (10, &[4], 0)] {
        lab.advance(ms(by));
        assert_eq!(taken.try_iter().collect::<Vec<_>>(), expected, "after {by} more");
        assert_eq!(lab.timers().len(), left, "after {by} more");
    }
}

/// Sends when it is dropped.
struct Noted(Sender<Option<u32>>);

impl Drop for Noted {
    fn drop(&mut self) {
        let _ = self.0.send(None);
    }
}

#[test]
fn shutdown_drops_handler_after_last_timer_before_the_report() {
    for policy in POLICIES {
        for host in Host::all() {
            let (sender, seen) = channel();
            let running = Running::start(host, builder(1), move |_| {
                let noted = Noted(sender.clone());
                let thread = thread::current().id();
                move |fired: Fired<u32>, _: &Timers<u32>| {
                    assert_eq!(thread::current().id(), thread);
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
        }
    }
}

fn hosts() -> impl Iterator<Item = Host> {
    let hosts = [Host::Own(Runtime::Glommio), Host::GlommioAttached];
    hosts.into_iter().filter(|_| glommio_works())
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
fn values_handed_to_a_queue_are_worked_on_in_order_there_or_by_the_shutdown() {
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
        let schedule_all = |delay| {
            for value in 0..20 {
                client.on(SHARD).schedule(delay, value).unwrap();
            }
        };
        let expected = || (0..20).filter(|n| *n != 7);
        schedule_all(ms(2));
        for value in expected() {
            assert_eq!(ran.recv_timeout(PATIENCE), Ok((value, true)), "{host:?}");
        }
        wait_until("the panic is counted", || running.counts().panicked == 1);
        schedule_all(FAR);
        running.end(ShutdownPolicy::Fire);
        assert!(ran.try_iter().map(|(value, _)| value).eq(expected()), "{host:?}");
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
                    thread::sleep(ms(5));
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
        let service = Arc::clone(&running.service);
        running.stop();
        let (ran, dropped): (Vec<_>, Vec<_>) = seen.try_iter().partition(Option::is_some);
        assert!(ran.len() < 200, "{}", ran.len());
        assert_eq!(dropped.len(), 200, "all callbacks are dropped");
        drop(service);
    }
}

#[test]
fn callback_runs_in_its_queue() {
    for (host, running) in Running::<u32>::each(hosts(), 1) {
        let (sender, ran) = channel();
        let task = running.service.spawn_on(SHARD, move |timers| async move {
            let (start, second) = (timers.now(), sender.clone());
            let first = move |timers: &Timers<u32>| {
                let early = timers.now() < start + ms(2);
                sender.send((1, is_in_background() && !early)).unwrap();
            };
            schedule_fn_into(&timers, background(), ms(2), first).unwrap();
            let second =
                move |timers: &Timers<u32>| second.send((2, timers.now() >= start)).unwrap();
            schedule_fn_into(&timers, background(), FAR, second).unwrap();
            let panics = |_: &Timers<u32>| panic!("it harms nobody");
            schedule_fn_into(&timers, background(), ms(1), panics).unwrap();
            let cancelled = schedule_fn_into(&timers, background(), FAR, |_| {}).unwrap();
            assert!(timers.cancel(cancelled).won());
        });
        task.unwrap().wait().unwrap();
        assert_eq!(ran.recv_timeout(PATIENCE), Ok((1, true)), "{host:?}");
        wait_until("the panic is counted", || running.counts().panicked == 1);
        running.end(ShutdownPolicy::Fire);
        // It is run by the shutdown itself.
        assert_eq!(ran.try_recv(), Ok((2, true)), "{host:?}");
    }
}

#[test]
fn shutdown_runs_waiting_callbacks_in_order() {
    for policy in POLICIES {
        for host in hosts() {
            let (sender, ran) = channel();
            let running = Running::<u32>::idle(host, builder(1).class(LEASE));
            let task = running.service.spawn_on(SHARD, move |timers| async move {
                let lease = timers.of_class(LEASE).unwrap();
                for n in 0..150 {
                    let sender = sender.clone();
                    let call = move |_: &Timers<u32>| {
                        sender.send(n).unwrap();
                        thread::sleep(ms(1));
                    };
                    schedule_fn_into(&lease, background(), ms(1), call).unwrap();
                }
            });
            task.unwrap().wait().unwrap();
            wait_until("some have fired", || running.counts().fired > 0);
            let report = running.end(policy);
            let (ran, fired): (Vec<_>, _) =
                (ran.try_iter().collect(), report.shards[0].classes[0].fired);
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
                thread::sleep(ms(1));
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
    }
}

//! The runtimes of the endpoints: ours, whose timers are watched, and a plain one.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use corewheel::clock::Clock;
use corewheel::sim::Simulation;
use corewheel::sim::net::Runtime;
use corewheel_quinn::QuinnRuntime;
use quinn::{AsyncTimer, AsyncUdpSocket};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What quinn spawns, for a task of a simulated runtime that spawns it there.
#[derive(Clone, Default)]
pub(crate) struct Spawned(Arc<Mutex<(Vec<Task>, Option<Waker>)>>);

impl Spawned {
    pub(crate) fn new(on: &Runtime) -> Self {
        let spawned = Self::default();
        let (tasks, runtime) = (spawned.clone(), on.clone());
        drop(on.spawn(poll_fn(move |cx| {
            let mut tasks = tasks.0.lock().unwrap();
            tasks.1 = Some(cx.waker().clone());
            for task in tasks.0.drain(..) {
                drop(runtime.spawn(task));
            }
            Poll::<()>::Pending
        })));
        spawned
    }

    fn push(&self, task: Task) {
        let mut tasks = self.0.lock().unwrap();
        tasks.0.push(task);
        if let Some(waker) = tasks.1.take() {
            waker.wake();
        }
    }
}

/// Shows no more than their names.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}
pub(crate) use opaque;

opaque!(Ours, WatchedTimer, Plain, PlainTimer);

/// Runs a task that acts whenever the time has come that its last act returned.
pub(crate) fn act_in_time(
    sim: &Simulation<u8>,
    mut act: impl FnMut(&mut Context<'_>) -> Option<Instant> + 'static,
) {
    let time = sim.time();
    drop(sim.spawn(async move {
        let mut sleep = None;
        poll_fn(|cx| {
            while let Some(next) = act(cx) {
                let after = next.saturating_duration_since(time.now());
                let sleep = sleep.insert(Box::pin(time.sleep(after)));
                if sleep.as_mut().poll(cx).is_pending() {
                    break;
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }));
}

fn no_socket() -> io::Result<Arc<dyn AsyncUdpSocket>> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A timer of ours, as the test knows it.
struct Known {
    deadline: Instant,
    /// A poll has found it pending.
    is_armed: bool,
}

/// Watches the timers of a history.
#[derive(Clone)]
pub(crate) struct Watched {
    clock: Clock,
    timers: Arc<Mutex<Timers>>,
}

#[derive(Default)]
struct Timers {
    known: BTreeMap<u64, Known>,
    last: u64,
    early: Option<String>,
}

impl Watched {
    pub(crate) fn new(sim: &Simulation<u8>) -> Self {
        Self { clock: sim.service().handle().clock(), timers: Arc::default() }
    }

    pub(crate) fn runtime(&self, quinn: QuinnRuntime, spawned: Spawned) -> Ours {
        Ours { quinn, spawned, watched: self.clone() }
    }

    /// Panics if a timer was early, or if one is pending whose deadline was before a time.
    pub(crate) fn check(&self, late: Option<Instant>) {
        let timers = self.timers.lock().unwrap();
        if let Some(early) = &timers.early {
            panic!("{early}");
        }
        let Some(late) = late else { return };
        let mut armed = timers.known.values().filter(|known| known.is_armed);
        if let Some(known) = armed.find(|known| known.deadline < late) {
            let by = self.clock.now() - known.deadline;
            drop(timers);
            panic!("a connection does nothing at its deadline for {by:?}");
        }
    }
}

/// Our timers and tasks, in a simulated runtime.
pub(crate) struct Ours {
    quinn: QuinnRuntime,
    spawned: Spawned,
    watched: Watched,
}

impl quinn::Runtime for Ours {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let mut timers = self.watched.timers.lock().unwrap();
        timers.last += 1;
        let number = timers.last;
        timers.known.insert(number, Known { deadline, is_armed: false });
        drop(timers);
        let inner = self.quinn.new_timer(deadline);
        Box::pin(WatchedTimer { inner, number, watched: self.watched.clone() })
    }

    fn spawn(&self, task: Task) {
        self.spawned.push(Box::pin(self.quinn.hold_back(task)));
    }

    fn wrap_udp_socket(&self, _: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        no_socket()
    }

    fn now(&self) -> Instant {
        self.quinn.now()
    }
}

struct WatchedTimer {
    inner: Pin<Box<dyn AsyncTimer>>,
    number: u64,
    watched: Watched,
}

impl WatchedTimer {
    fn with(&self, change: impl FnOnce(&mut Known) -> Option<String>) {
        let mut timers = self.watched.timers.lock().unwrap();
        let known = timers.known.get_mut(&self.number).expect("it is known");
        if let Some(early) = change(known) {
            timers.early.get_or_insert(early);
        }
    }
}

impl AsyncTimer for WatchedTimer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.with(|known| {
            *known = Known { deadline, is_armed: false };
            None
        });
        self.inner.as_mut().reset(deadline);
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.inner.as_mut().poll(cx);
        let now = self.watched.clock.now();
        self.with(|known| {
            known.is_armed = polled.is_pending();
            let is_early = polled.is_ready() && now < known.deadline;
            is_early.then(|| format!("a timer comes {:?} early", known.deadline - now))
        });
        polled
    }
}

impl Drop for WatchedTimer {
    fn drop(&mut self) {
        self.watched.timers.lock().unwrap().known.remove(&self.number);
    }
}

/// A runtime with a list of wakers, by when each is woken.
pub(crate) struct Plain {
    clock: Clock,
    spawned: Spawned,
    list: Arc<Mutex<List>>,
}

#[derive(Default)]
struct List {
    wakers: BTreeMap<(Instant, u64), Waker>,
    last: u64,
    keeper: Option<Waker>,
}

impl Plain {
    pub(crate) fn new(sim: &Simulation<u8>, spawned: Spawned) -> Self {
        let list: Arc<Mutex<List>> = Arc::default();
        let (kept, clock) = (Arc::clone(&list), sim.service().handle().clock());
        let now = clock.clone();
        act_in_time(sim, move |cx| {
            let mut list = kept.lock().unwrap();
            list.keeper = Some(cx.waker().clone());
            while let Some(first) = list.wakers.first_entry() {
                if first.key().0 > now.now() {
                    return Some(first.key().0);
                }
                first.remove().wake();
            }
            None
        });
        Self { clock, spawned, list }
    }
}

impl quinn::Runtime for Plain {
    fn new_timer(&self, deadline: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let mut list = self.list.lock().unwrap();
        list.last += 1;
        let (clock, list) = (self.clock.clone(), (Arc::clone(&self.list), list.last));
        Box::pin(PlainTimer { deadline, clock, list })
    }

    fn spawn(&self, task: Task) {
        self.spawned.push(task);
    }

    fn wrap_udp_socket(&self, _: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        no_socket()
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

struct PlainTimer {
    deadline: Instant,
    clock: Clock,
    list: (Arc<Mutex<List>>, u64),
}

impl PlainTimer {
    fn forget(&self) {
        drop(self.list.0.lock().unwrap().wakers.remove(&(self.deadline, self.list.1)));
    }
}

impl AsyncTimer for PlainTimer {
    fn reset(mut self: Pin<&mut Self>, deadline: Instant) {
        self.forget();
        self.deadline = deadline;
    }

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.deadline {
            return Poll::Ready(());
        }
        let mut list = self.list.0.lock().unwrap();
        list.wakers.insert((self.deadline, self.list.1), cx.waker().clone());
        if let Some(keeper) = list.keeper.take() {
            keeper.wake();
        }
        Poll::Pending
    }
}

impl Drop for PlainTimer {
    fn drop(&mut self) {
        self.forget();
    }
}

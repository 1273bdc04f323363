//! The hosts on which a shard can run.

use std::future::Future;
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use corewheel::attach::{Attachment, Turn};
use corewheel::shutdown::ShutdownReport;
use corewheel::sim;
use corewheel::stats::ShardCounts;
use corewheel::{
    Fired, ShardId, ShutdownPolicy, StartError, TimerService, TimerServiceBuilder, Timers,
};
use corewheel_glommio::Runtime;
use tokio::runtime::{Builder, LocalOptions};
use tokio::task::LocalSet;

use crate::wakers::Unpark;
use crate::{BoxedHandler, builder, check_law};

/// The host of a service's shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Host {
    /// The service's own threads.
    Own(Runtime),
    /// An executor of glommio that the test runs.
    GlommioAttached,
    /// A `LocalSet` of tokio that the test runs.
    TokioAttached,
    /// A `LocalRuntime` of tokio that the test runs.
    LocalRuntimeAttached,
    /// A loop of the test.
    LoopAttached,
}

impl Host {
    /// All hosts that work on this machine.
    pub fn all() -> impl Iterator<Item = Self> {
        let all = [
            Self::Own(Runtime::Glommio),
            Self::Own(Runtime::Tokio),
            Self::Own(Runtime::Thread),
            Self::GlommioAttached,
            Self::TokioAttached,
            Self::LocalRuntimeAttached,
            Self::LoopAttached,
        ];
        let needs_ring = |host| matches!(host, Self::Own(Runtime::Glommio) | Self::GlommioAttached);
        all.into_iter().filter(move |host| glommio_works() || !needs_ring(*host))
    }

    /// The hosts that can spawn futures.
    pub fn executors() -> impl Iterator<Item = Self> {
        Self::all().filter(|host| ![Self::Own(Runtime::Thread), Self::LoopAttached].contains(host))
    }

    /// The hosts whose threads the service starts itself.
    pub fn own() -> impl Iterator<Item = Self> {
        Self::all().filter(|host| matches!(host, Self::Own(_)))
    }
}

/// Whether `io_uring` works on this machine.
pub fn glommio_works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| {
        match TimerService::builder().shards(1).runtime(Runtime::Glommio).start() {
            Ok(service) => service.shutdown(ShutdownPolicy::Drop).is_ok(),
            Err(StartError::Runtime { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    })
}

/// The runtimes of the service's own threads that work on this machine.
pub fn runtimes() -> impl Iterator<Item = Runtime> {
    Host::own().filter_map(|host| match host {
        Host::Own(runtime) => Some(runtime),
        _ => None,
    })
}

/// A service with running shards. Its drop ends the service, and then the threads of the test.
pub struct Running<T: Send + 'static> {
    /// The threads of the test that drive shards. Dropped before the service.
    pub attached: Attached<T>,
    /// The service.
    pub service: Arc<TimerService<T>>,
}

/// The threads of a test that drive the shards of a service. Their drop ends the service, if it is
/// there, whose counts obey the law, and then the threads.
pub struct Attached<T: Send + 'static> {
    service: Weak<TimerService<T>>,
    /// Each with what ends its host.
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl<T: Send + 'static> Attached<T> {
    fn join(&mut self) {
        let (stops, threads): (Vec<_>, Vec<_>) = self.threads.drain(..).unzip();
        for stop in stops {
            let _ = stop.send(());
        }
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

impl<T: Send + 'static> Drop for Attached<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        if let Some(service) = self.service.upgrade() {
            // The test may have shut it down.
            let _report = service.shutdown(ShutdownPolicy::Drop);
            service.stats().shards.iter().for_each(|shard| check_law(&shard.counts));
        }
        self.join();
    }
}

impl<T: Send + 'static> Running<T> {
    /// Starts a service on a host.
    pub fn start<H: FnMut(Fired<T>, &Timers<T>) + 'static>(
        host: Host,
        builder: TimerServiceBuilder,
        make_handler: impl Fn(ShardId) -> H + Send + Sync + 'static,
    ) -> Self {
        Self::start_boxed(host, builder, Arc::new(move |shard| Box::new(make_handler(shard))))
    }

    /// Starts a service whose handler drops each payload.
    pub fn idle(host: Host, builder: TimerServiceBuilder) -> Self {
        Self::start(host, builder, |_| |_: Fired<T>, _: &Timers<T>| {})
    }

    /// Starts a service whose handler sends each payload to the receiver.
    pub fn sending(host: Host, builder: TimerServiceBuilder) -> (Self, mpsc::Receiver<T>) {
        let (sender, fired) = mpsc::channel();
        let running = Self::start(host, builder, move |_| {
            let sender = sender.clone();
            move |one: Fired<T>, _: &Timers<T>| sender.send(one.payload).unwrap()
        });
        (running, fired)
    }

    /// Compiled once for all handlers of a type of timers: each host is a driver to compile.
    fn start_boxed(
        host: Host,
        builder: TimerServiceBuilder,
        make_handler: Arc<dyn Fn(ShardId) -> BoxedHandler<T> + Send + Sync>,
    ) -> Self {
        if let Host::Own(runtime) = host {
            let service = builder.runtime(runtime).start_with(move |shard| make_handler(shard));
            return Self::of(service.unwrap_or_else(|error| panic!("{host:?}: {error}")));
        }
        let mut running = Self::of(builder.start_attached_with().unwrap());
        for shard in running.service.shards() {
            let attachment = running.service.attach(shard).unwrap();
            let make_handler = Arc::clone(&make_handler);
            let (stop, stopped) = oneshot::async_channel();
            let (ready, attached) = oneshot::channel();
            let ready = move || ready.send(()).unwrap();
            let thread = thread::spawn(move || match host {
                Host::GlommioAttached => {
                    run_glommio(attachment, make_handler(shard), ready, stopped);
                }
                Host::TokioAttached | Host::LocalRuntimeAttached => {
                    run_tokio(host, attachment, make_handler(shard), ready, stopped);
                }
                _ => run_loop(attachment, make_handler(shard), ready),
            });
            running.attached.threads.push((stop, thread));
            attached.recv().unwrap();
        }
        running
    }

    /// Starts a service of so many shards on each host, one after the other. Its handler drops
    /// each payload.
    pub fn each(
        hosts: impl Iterator<Item = Host>,
        shards: usize,
    ) -> impl Iterator<Item = (Host, Self)> {
        hosts.map(move |host| (host, Self::idle(host, builder(shards))))
    }

    fn of(service: TimerService<T>) -> Self {
        let service = Arc::new(service);
        let attached = Attached { service: Arc::downgrade(&service), threads: Vec::new() };
        Self { attached, service }
    }

    /// What any thread can do with the service.
    pub fn client(&self) -> sim::Thread<T> {
        sim::Thread::of(&self.service)
    }

    /// The counts of the first shard, which obey the law.
    #[track_caller]
    pub fn counts(&self) -> ShardCounts {
        let counts = self.service.stats().shards[0].counts;
        check_law(&counts);
        counts
    }

    /// Shuts the service down and ends the threads of the test that drove its shards, whose counts
    /// obey the law.
    #[track_caller]
    pub fn end(self, policy: ShutdownPolicy) -> ShutdownReport<T> {
        let report = self.service.shutdown(policy).unwrap();
        report.shards.iter().for_each(|shard| check_law(&shard.counts));
        report
    }

    /// Ends the threads of the test that drive the shards, also those of a service that is open.
    pub fn stop(mut self) {
        self.attached.join();
    }
}

fn run_glommio<T: Send + 'static>(
    attachment: Attachment<T>,
    handler: impl FnMut(Fired<T>, &Timers<T>) + 'static,
    ready: impl FnOnce(),
    stopped: oneshot::AsyncReceiver<()>,
) {
    let executor = glommio::LocalExecutorBuilder::default().make().expect("io_uring");
    executor.run(async move {
        let timers = corewheel_glommio::attach(attachment, handler).unwrap();
        ready();
        let _ = stopped.await;
        drop(timers);
    });
}

fn run_tokio<T: Send + 'static>(
    host: Host,
    attachment: Attachment<T>,
    handler: impl FnMut(Fired<T>, &Timers<T>) + 'static,
    ready: impl FnOnce(),
    stopped: oneshot::AsyncReceiver<()>,
) {
    block_on_tokio(host, async move {
        let timers = attachment.attach_tokio(handler).unwrap();
        ready();
        let _ = stopped.await;
        drop(timers);
    });
}

/// Runs a future in a `LocalRuntime` or in a `LocalSet`, as the host says.
pub fn block_on_tokio<F: Future>(host: Host, future: F) -> F::Output {
    let mut builder = Builder::new_current_thread();
    builder.enable_all();
    match host {
        Host::LocalRuntimeAttached => {
            builder.build_local(LocalOptions::default()).unwrap().block_on(future)
        }
        Host::TokioAttached => LocalSet::new().block_on(&builder.build().unwrap(), future),
        _ => panic!("{host:?} is not attached to tokio"),
    }
}

fn run_loop<T: Send + 'static>(
    attachment: Attachment<T>,
    handler: impl FnMut(Fired<T>, &Timers<T>) + 'static,
    ready: impl FnOnce(),
) {
    let mut shard = attachment.into_loop(handler).unwrap();
    ready();
    let waker = Unpark::waker().1;
    loop {
        let turn = shard.turn();
        match shard.prepare_to_sleep(turn, &waker) {
            Turn::More => {}
            Turn::Next(at) => thread::park_timeout(at.saturating_duration_since(Instant::now())),
            Turn::Idle => thread::park(),
            Turn::Closed => return,
        }
    }
}

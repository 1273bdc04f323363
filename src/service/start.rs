//! How the threads of a service are started: all of them, or none.
//!
//! A start has two phases. First each thread makes its executor; only when all executors are there
//! does each thread make its shard and its handler. So a runtime that does not get what it needs of
//! the host has run no code of the user, and the next runtime can be tried.
//!
//! Invariants: each thread of a start reports exactly once in each phase that it enters, also when
//! it panics, so the thread that starts the service never waits for ever.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use crate::clock::Clock;
use crate::driver::limits::{self, Needs};
use crate::driver::{self, Driven};
use crate::service::{TimerService, cpus};
use crate::shard::callback::Handler;
use crate::shard::host::OwnedHandler;
use crate::shard::{Core, Directory};
#[cfg(any(feature = "tokio", all(feature = "glommio", target_os = "linux")))]
use crate::values::contain::attempt;
use crate::values::error::StartError;
use crate::values::ids::ShardId;
use crate::values::runtime::Runtime;
use crate::values::settings::Settings;

/// Why a service that starts no threads has no runtime.
pub(crate) const ATTACHED_REASON: &str = "the shards are attached to loops of the user";

/// Address space for all that is small, so that no allocation of a few bytes fails.
const HEADROOM: usize = 1 << 20;

/// The loop that the shards' threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Engine {
    #[cfg(all(feature = "glommio", target_os = "linux"))]
    Glommio,
    #[cfg(feature = "tokio")]
    Tokio,
    Thread,
}

impl Engine {
    #[cfg(all(feature = "glommio", target_os = "linux"))]
    const GLOMMIO: Result<Self, &str> = Ok(Self::Glommio);
    #[cfg(not(all(feature = "glommio", target_os = "linux")))]
    const GLOMMIO: Result<Self, &str> =
        Err("it is for Linux, with the feature `glommio` of this crate");
    #[cfg(feature = "tokio")]
    const TOKIO: Result<Self, &str> = Ok(Self::Tokio);
    #[cfg(not(feature = "tokio"))]
    const TOKIO: Result<Self, &str> = Err("it needs the feature `tokio` of this crate");

    /// Whether so many executors can probably be had here, found out without any.
    fn check(self, shards: usize) -> Result<(), String> {
        match self {
            #[cfg(all(feature = "glommio", target_os = "linux"))]
            Self::Glommio => {
                driver::glommio::needs(shards, HEADROOM).try_out()?;
                driver::glommio::probe()
            }
            #[cfg(feature = "tokio")]
            Self::Tokio => {
                driver::tokio::needs(shards, HEADROOM).try_out()?;
                attempt(driver::tokio::runtime).and_then(|made| match made {
                    Ok(runtime) => {
                        // The caller may be a task of another runtime. There a drop, which waits
                        // for the threads of the runtime, panics. This runtime has no threads yet.
                        runtime.shutdown_background();
                        Ok(())
                    }
                    Err(error) => Err(driver::tokio::no_runtime(&error)),
                })
            }
            Self::Thread => {
                let (threads, memories) = (shards, shards);
                Needs { files: 0, threads, memories, memory_each: HEADROOM }.try_out()
            }
        }
    }

    fn runtime(self) -> Runtime {
        match self {
            #[cfg(all(feature = "glommio", target_os = "linux"))]
            Self::Glommio => Runtime::Glommio,
            #[cfg(feature = "tokio")]
            Self::Tokio => Runtime::Tokio,
            Self::Thread => Runtime::Thread,
        }
    }

    fn spawns(self) -> bool {
        self != Self::Thread
    }
}

fn unavailable(runtime: &'static str, reason: String) -> StartError {
    StartError::Runtime { runtime, reason }
}

fn of_shard(shard: ShardId, reason: String) -> StartError {
    StartError::Shard { shard, source: std::io::Error::other(reason) }
}

/// Why a start on one runtime has failed.
enum Failure {
    /// There are not enough executors; no code of the user has run.
    Executors(StartError),
    Shards(StartError),
}

impl Failure {
    fn into_error(self) -> StartError {
        let (Self::Executors(error) | Self::Shards(error)) = self;
        error
    }
}

/// Starts all shards and waits until each one runs. If one does not, the others are ended again.
pub(crate) fn start<T, H>(
    settings: &Settings,
    clock: &Clock,
    runtime: Runtime,
    make_handler: impl Fn(ShardId) -> H + Send + Sync + 'static,
) -> Result<TimerService<T>, StartError>
where
    T: Send + 'static,
    H: Handler<T>,
{
    let make_handler = Arc::new(make_handler);
    let on = |engine: Engine, reason: String| {
        let checked = engine.check(settings.shards);
        checked
            .map_err(|reason| Failure::Executors(unavailable(engine.runtime().name(), reason)))?;
        let directory =
            Directory::new(settings.clone(), clock.clone(), Some(engine.runtime()), reason);
        start_on(engine, Arc::new(directory), Arc::clone(&make_handler))
    };
    let of = |runtime: Runtime, engine: Result<Engine, &str>| match engine {
        Ok(engine) => on(engine, "asked for".to_owned()).map_err(Failure::into_error),
        Err(reason) => Err(unavailable(runtime.name(), reason.to_owned())),
    };
    match runtime {
        Runtime::Glommio => of(runtime, Engine::GLOMMIO),
        Runtime::Tokio => of(runtime, Engine::TOKIO),
        Runtime::Thread => of(runtime, Ok(Engine::Thread)),
        Runtime::GlommioOrTokio => start_first(on, None),
        Runtime::Auto => start_first(on, Some(Engine::Thread)),
    }
}

/// Starts on the first executor that gets what it needs here, or else on `last`.
fn start_first<T: Send + 'static>(
    on: impl Fn(Engine, String) -> Result<TimerService<T>, Failure>,
    last: Option<Engine>,
) -> Result<TimerService<T>, StartError> {
    let mut reasons: Vec<String> = Vec::new();
    for (name, engine) in [("glommio", Engine::GLOMMIO), ("tokio", Engine::TOKIO)] {
        let because =
            if reasons.is_empty() { "io_uring works".to_owned() } else { reasons.join("; ") };
        let not = match engine.map(|engine| on(engine, because)) {
            Ok(Ok(service)) => return Ok(log_choice(service)),
            Ok(Err(Failure::Shards(error))) => return Err(error),
            Ok(Err(Failure::Executors(StartError::Runtime { reason, .. }))) => reason,
            Ok(Err(Failure::Executors(error))) => error.to_string(),
            Err(reason) => reason.to_owned(),
        };
        reasons.push(format!("not {name}: {not}"));
    }
    let reasons = reasons.join("; ");
    match last {
        Some(engine) => on(engine, reasons).map(log_choice).map_err(Failure::into_error),
        None => Err(unavailable(Runtime::GlommioOrTokio.name(), reasons)),
    }
}

fn log_choice<T: Send + 'static>(service: TimerService<T>) -> TimerService<T> {
    let (runtime, reason) = (service.runtime().map(Runtime::name), service.runtime_reason());
    tracing::info!(
        name: "runtime-chosen",
        target: "corewheel::service",
        runtime, reason, "the runtime was chosen"
    );
    service
}

fn start_on<T, H, M>(
    engine: Engine,
    directory: Arc<Directory<T>>,
    make_handler: Arc<M>,
) -> Result<TimerService<T>, Failure>
where
    T: Send + 'static,
    H: Handler<T>,
    M: Fn(ShardId) -> H + Send + Sync + 'static,
{
    let (ready, started) = mpsc::channel();
    let mut threads = Vec::new();
    let mut failure = None;
    let mut goes = Vec::new();
    for shard in directory.shards() {
        let (directory, make_handler) = (Arc::clone(&directory), Arc::clone(&make_handler));
        let (go, may_go) = mpsc::channel();
        let report = Report { ready: ready.clone(), is_owed: true };
        let name = format!("{}-{shard}", directory.settings.name);
        let run = move || run_shard(directory, shard, engine, &*make_handler, report, &may_go);
        match thread::Builder::new().name(name).spawn(run) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                let source = limits::no_thread(&error);
                failure = Some(StartError::Shard { shard, source });
                break;
            }
        }
        goes.push(go);
    }
    wait_until_reported(&threads, &started, &mut failure);
    if let Some(error) = failure {
        // None of the threads may go on, so each of them ends.
        drop(goes);
        for thread in threads {
            // One that has panicked has reported it.
            let _ = thread.join();
        }
        return Err(Failure::Executors(error));
    }
    for go in goes {
        // A thread that is gone has reported it.
        let _ = go.send(());
    }
    wait_until_reported(&threads, &started, &mut failure);
    // If one has failed, dropping the service ends and joins the others.
    let service = TimerService::new(directory, threads, Vec::new());
    match failure {
        Some(error) => Err(Failure::Shards(error)),
        None => Ok(service),
    }
}

type Started = Result<(), StartError>;

fn wait_until_reported(
    threads: &[JoinHandle<()>],
    started: &mpsc::Receiver<Started>,
    failure: &mut Option<StartError>,
) {
    for _ in threads {
        if let Ok(Err(error)) = started.recv() {
            failure.get_or_insert(error);
        }
    }
}

/// Where the thread of a shard reports. Dropped while it owes a report, it says that it panicked.
struct Report {
    ready: mpsc::Sender<Started>,
    is_owed: bool,
}

impl Report {
    /// The executor is there. Waits until all are; false if one is not.
    fn executor(&mut self, may_go: &mpsc::Receiver<()>) -> bool {
        self.is_owed = false;
        let _told = self.ready.send(Ok(()));
        self.is_owed = may_go.recv().is_ok();
        self.is_owed
    }

    /// The last report: the shard runs, or something has failed.
    fn finish(mut self, result: Started) {
        self.is_owed = false;
        let _told = self.ready.send(result);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.is_owed {
            let reason = "a shard's thread panicked while it started".to_owned();
            let _told = self.ready.send(Err(unavailable("service's", reason)));
        }
    }
}

/// The life of a shard's thread.
fn run_shard<T, H>(
    directory: Arc<Directory<T>>,
    shard: ShardId,
    engine: Engine,
    make_handler: &impl Fn(ShardId) -> H,
    mut report: Report,
    may_go: &mpsc::Receiver<()>,
) where
    T: Send + 'static,
    H: Handler<T>,
{
    pin(&directory.settings, shard);
    let open = || {
        let core = Core::open(Arc::clone(&directory), shard, engine.spawns())?;
        let driven = Driven::new(core);
        limits::try_memory(HEADROOM).map_err(|reason| of_shard(shard, reason))?;
        Ok((driven, make_handler(shard)))
    };
    match engine {
        #[cfg(all(feature = "glommio", target_os = "linux"))]
        Engine::Glommio => {
            let name = format!("{}-{shard}", directory.settings.name);
            let made = attempt(|| driver::glommio::executor(&directory.settings, &name));
            match made.and_then(|made| made) {
                Err(reason) => report.finish(Err(of_shard(shard, reason))),
                Ok(executor) if report.executor(may_go) => {
                    with_shard(open(), report, |driven, handler| {
                        driver::glommio::run(&executor, driven, handler);
                    });
                }
                Ok(_) => {}
            }
        }
        #[cfg(feature = "tokio")]
        Engine::Tokio => {
            let made = attempt(driver::tokio::Own::new);
            match made.and_then(|made| made.map_err(|e| driver::tokio::no_runtime(&e))) {
                Err(reason) => report.finish(Err(of_shard(shard, reason))),
                Ok(own) if report.executor(may_go) => {
                    with_shard(open(), report, |driven, handler| own.run(driven, handler));
                }
                Ok(_) => {}
            }
        }
        Engine::Thread => {
            if report.executor(may_go) {
                with_shard(open(), report, driver::thread::run);
            }
        }
    }
}

fn with_shard<T, H>(
    opened: Result<(Driven<T>, H), StartError>,
    report: Report,
    run: impl FnOnce(Driven<T>, OwnedHandler<H>),
) where
    T: Send + 'static,
    H: Handler<T>,
{
    match opened {
        Err(error) => report.finish(Err(error)),
        Ok((driven, handler)) => {
            // Outlives the executor, which may keep the driver's future for ever.
            let last = driven.guard();
            report.finish(Ok(()));
            run(driven, OwnedHandler::new(handler));
            drop(last);
        }
    }
}

fn pin(settings: &Settings, shard: ShardId) {
    if let Some(cpu) = settings.cpus[shard.index()]
        && !cpus::pin_to(cpu)
    {
        tracing::warn!(
            name: "thread-not-pinned",
            target: "corewheel::service",
            shard = shard.number(), cpu, "the shard's thread could not be pinned"
        );
    }
}

//! How the threads of a service are started: all of them, or none.
//!
//! A start has two phases. First each thread makes its executor; only when all executors are there
//! does each thread make its shard and its handler. So a runtime that does not get what it needs of
//! the host has run no code of the user, and the next runtime can be tried.
//!
//! Invariants: each thread of a start reports exactly once in each phase that it enters, also when
//! it panics, so the thread that starts the service never waits for ever.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crossbeam_utils::sync::WaitGroup;

use crate::clock::Clock;
use crate::driver::executor::WithHandler;
use crate::driver::host::{Engine, Shard};
use crate::driver::limits::Taken;
use crate::driver::{Driven, limits};
use crate::service::{TimerService, cpus};
use crate::shard::handler::Handler;
use crate::shard::{Core, Directory};
use crate::values::contain::attempt;
use crate::values::error::StartError;
use crate::values::ids::ShardId;
use crate::values::settings::Settings;

/// Why a service that starts no threads has no runtime.
pub(crate) const ATTACHED_REASON: &str = "the shards are attached to loops of the user";

/// Address space for all that is small, so that no allocation of a few bytes fails.
const HEADROOM: usize = 1 << 20;

fn unavailable(engine: &dyn Engine, reason: String) -> StartError {
    StartError::Runtime { runtime: engine.name(), reason }
}

/// Has the error name the limit of memory, where a shard has found too little.
fn with_limit(error: StartError) -> StartError {
    match error {
        StartError::Shard { shard, source } if source.kind() == io::ErrorKind::OutOfMemory => {
            StartError::Shard { shard, source: limits::no_memory(source) }
        }
        error => error,
    }
}

/// Why a start on one runtime has failed.
enum Failure {
    /// There are not enough executors; no code of the user has run.
    Executors(StartError),
    Shards(StartError),
}

/// Starts all shards and waits until each one runs. If one does not, the others are ended again.
///
/// The first engine starts that gets what it needs here.
pub(crate) fn start<T, H>(
    settings: &Settings,
    clock: &Clock,
    engines: &[Arc<dyn Engine>],
    make_handler: impl Fn(ShardId) -> H + Send + Sync + 'static,
) -> Result<TimerService<T>, StartError>
where
    T: Send + 'static,
    H: Handler<T>,
{
    let make_handler = Arc::new(make_handler);
    let on = |engine: &Arc<dyn Engine>, reason: String| {
        let (name, reason) = (Some(engine.name()), reason);
        let directory = Directory::new(settings.clone(), clock.clone(), name, reason);
        start_on(engine, Arc::new(directory), Arc::clone(&make_handler))
    };
    if let [engine] = engines {
        let checked = check(&**engine, settings.shards).map_err(Failure::Executors);
        let started = checked.and_then(|_| on(engine, "asked for".to_owned()));
        return started.map_err(|(Failure::Executors(error) | Failure::Shards(error))| error);
    }
    let mut reasons: Vec<String> = Vec::new();
    for engine in engines {
        let checked = check(&**engine, settings.shards).map_err(Failure::Executors);
        let started = checked.and_then(|found| {
            on(engine, if reasons.is_empty() { found } else { reasons.join("; ") })
        });
        let not = match started {
            Ok(service) => return Ok(log_choice(service)),
            Err(Failure::Shards(error)) => return Err(error),
            Err(Failure::Executors(StartError::Runtime { reason, .. })) => reason,
            Err(Failure::Executors(error)) => error.to_string(),
        };
        reasons.push(format!("not {}: {not}", engine.name()));
    }
    Err(unavailable(&*engines[0], reasons.join("; ")))
}

/// Whether so many shards can probably be had on a runtime here, found out without any, and what
/// the runtime has found.
fn check(engine: &dyn Engine, shards: usize) -> Result<String, StartError> {
    let needs = Taken::by(shards, engine.needs(), HEADROOM);
    let checked = needs.try_out().and_then(|()| engine.probe());
    checked.map_err(|reason| unavailable(engine, reason))
}

fn log_choice<T: Send + 'static>(service: TimerService<T>) -> TimerService<T> {
    let (runtime, reason) = (service.runtime(), service.runtime_reason());
    tracing::info!(
        name: "runtime-chosen",
        target: "corewheel::service",
        runtime, reason, "the runtime was chosen"
    );
    service
}

fn start_on<T, H, M>(
    engine: &Arc<dyn Engine>,
    directory: Arc<Directory<T>>,
    make_handler: Arc<M>,
) -> Result<TimerService<T>, Failure>
where
    T: Send + 'static,
    H: Handler<T>,
    M: Fn(ShardId) -> H + Send + Sync + 'static,
{
    let reports = Arc::<Reports>::default();
    let (executors, shards) = (WaitGroup::new(), WaitGroup::new());
    let mut may_go = lock(&reports.may_go);
    let mut threads = Vec::new();
    let mut failure = None;
    for shard in directory.shards() {
        let (directory, make_handler) = (Arc::clone(&directory), Arc::clone(&make_handler));
        let engine = Arc::clone(engine);
        let report = Report {
            reports: Arc::clone(&reports),
            is_owed: true,
            executor: Some(executors.clone()),
            _shard: shards.clone(),
        };
        let name = format!("{}-{shard}", directory.settings.name);
        let builder = thread::Builder::new().name(name.clone());
        let run = move || {
            let make_handler = &*make_handler;
            ShardStart { directory, shard, name, make_handler, report }.run_on(&*engine);
        };
        match builder.spawn(run) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                let source = limits::no_thread(&error);
                failure = Some(StartError::Shard { shard, source });
                break;
            }
        }
    }
    executors.wait();
    failure = failure.or(lock(&reports.failure).take());
    *may_go = failure.is_none();
    drop(may_go);
    if let Some(error) = failure {
        // None of the threads may go on, so each of them ends.
        for thread in threads {
            // One that has panicked has reported it.
            let _ = thread.join();
        }
        return Err(Failure::Executors(error));
    }
    shards.wait();
    failure = lock(&reports.failure).take();
    // If one has failed, dropping the service ends and joins the others.
    let service = TimerService::new(directory, threads, Vec::new());
    match failure {
        Some(error) => Err(Failure::Shards(error)),
        None => Ok(service),
    }
}

/// What the threads of a start report and wait for. Why not channels: they take longer to compile
/// than all other code of a start.
#[derive(Default)]
struct Reports {
    /// The first failure that was reported.
    failure: Mutex<Option<StartError>>,
    /// Whether the threads may begin their second phase. Locked during the first.
    may_go: Mutex<bool>,
}

impl Reports {
    fn add(&self, result: Result<(), StartError>) {
        if let Err(error) = result {
            lock(&self.failure).get_or_insert(error);
        }
    }
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the thread of a shard reports. Dropped while it owes a report, it says that it panicked.
struct Report {
    reports: Arc<Reports>,
    is_owed: bool,
    /// Dropped with the report of each phase.
    executor: Option<WaitGroup>,
    _shard: WaitGroup,
}

impl Report {
    /// The executor is there. Waits until all are; false if one is not.
    fn executor(&mut self) -> bool {
        self.is_owed = false;
        drop(self.executor.take());
        self.is_owed = *lock(&self.reports.may_go);
        self.is_owed
    }

    /// The last report: the shard runs, or something has failed.
    fn finish(mut self, result: Result<(), StartError>) {
        self.is_owed = false;
        self.reports.add(result);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if self.is_owed {
            let reason = "a shard's thread panicked while it started".to_owned();
            self.reports.add(Err(StartError::Runtime { runtime: "service's", reason }));
        }
    }
}

/// How the thread of a shard begins.
struct ShardStart<'a, T: 'static, M> {
    directory: Arc<Directory<T>>,
    shard: ShardId,
    /// The name of the thread.
    name: String,
    make_handler: &'a M,
    report: Report,
}

impl<T: Send + 'static, M> ShardStart<'_, T, M> {
    /// The life of the shard's thread.
    fn run_on<H: Handler<T>>(self, engine: &dyn Engine)
    where
        M: Fn(ShardId) -> H,
    {
        let Self { directory, shard, name, make_handler, mut report } = self;
        pin(&directory.settings, shard);
        let of_shard = |source| StartError::Shard { shard, source };
        // Other threads have made their executors since the trial, and one without memory panics.
        let made = limits::try_memory(engine.needs().memory).and_then(|()| {
            attempt(|| engine.make(&name)).and_then(|made| made).map_err(io::Error::other)
        });
        let run = match made {
            Err(source) => return report.finish(Err(of_shard(source))),
            Ok(run) if report.executor() => run,
            Ok(_) => return,
        };
        let open = || {
            let core = Core::open(Arc::clone(&directory), shard, engine.has_executor());
            let driven = Driven::new(core.map_err(with_limit)?);
            limits::try_memory(HEADROOM).map_err(of_shard)?;
            Ok((driven, make_handler(shard)))
        };
        with_shard(open(), report, run);
    }
}

fn with_shard<T, H>(
    opened: Result<(Driven<T>, H), StartError>,
    report: Report,
    run: impl FnOnce(Shard),
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
            run(Shard::new(Box::new(WithHandler::new(driven, handler))));
            drop(last);
        }
    }
}

fn pin(settings: &Settings, shard: ShardId) {
    if let Some(cpu) = settings.cpus[shard.index()] {
        if !cpus::pin_to(cpu) {
            tracing::warn!(
                name: "thread-not-pinned",
                target: "corewheel::service",
                shard = shard.number(), cpu, "the shard's thread could not be pinned"
            );
        }
    }
}

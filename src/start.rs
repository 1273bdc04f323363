//! How the threads of a service are started: all of them, or none.

use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use core_affinity::CoreId;

use crate::clock::Clock;
use crate::config::{Runtime, Settings};
use crate::core::Core;
use crate::driver::{self, Kept, Undertaker};
use crate::error::StartError;
use crate::handle::ShardId;
use crate::mesh::Directory;
use crate::service::TimerService;
use crate::task::Handler;
use crate::timers::Timers;

/// What a service that starts no threads is said to run on.
pub(crate) const ATTACHED: &str = "attached";
/// And why.
pub(crate) const ATTACHED_REASON: &str = "others drive the shards";

/// What the shards' threads run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Engine {
    #[cfg(all(feature = "glommio", target_os = "linux"))]
    Glommio,
    #[cfg(feature = "tokio")]
    Tokio,
    Thread,
}

impl Engine {
    /// The engine for a runtime, if it can work here, and why it is this one.
    pub(crate) fn choose(runtime: Runtime) -> Result<(Self, String), StartError> {
        let engine = match runtime {
            Runtime::Auto => {
                let (engine, reason) = Self::choose_for_auto();
                tracing::info!(runtime = engine.name(), reason, "the runtime was chosen");
                return Ok((engine, reason));
            }
            Runtime::Glommio => Self::glommio().map_err(|reason| unavailable("glommio", reason))?,
            Runtime::Tokio => Self::tokio().map_err(|reason| unavailable("tokio", reason))?,
            Runtime::Thread => Self::Thread,
        };
        Ok((engine, "asked for".to_owned()))
    }

    fn choose_for_auto() -> (Self, String) {
        let glommio = match Self::glommio() {
            Ok(engine) => return (engine, "io_uring works".to_owned()),
            Err(reason) => reason,
        };
        match Self::tokio() {
            Ok(engine) => (engine, format!("not glommio: {glommio}")),
            Err(tokio) => (Self::Thread, format!("not glommio: {glommio}; not tokio: {tokio}")),
        }
    }

    #[cfg(all(feature = "glommio", target_os = "linux"))]
    fn glommio() -> Result<Self, String> {
        driver::glommio::probe().map(|()| Self::Glommio)
    }

    #[cfg(not(all(feature = "glommio", target_os = "linux")))]
    fn glommio() -> Result<Self, String> {
        Err("it is for Linux, with the feature `glommio` of this crate".to_owned())
    }

    #[cfg(feature = "tokio")]
    fn tokio() -> Result<Self, String> {
        driver::tokio::runtime().map(|_| Self::Tokio).map_err(|error| {
            format!("a runtime cannot be made ({error}); the limit of open files may be too low")
        })
    }

    #[cfg(not(feature = "tokio"))]
    fn tokio() -> Result<Self, String> {
        Err("it needs the feature `tokio` of this crate".to_owned())
    }

    fn name(self) -> &'static str {
        match self {
            #[cfg(all(feature = "glommio", target_os = "linux"))]
            Self::Glommio => "glommio",
            #[cfg(feature = "tokio")]
            Self::Tokio => "tokio",
            Self::Thread => "thread",
        }
    }

    fn spawns(self) -> bool {
        self != Self::Thread
    }
}

fn unavailable(runtime: &'static str, reason: String) -> StartError {
    StartError::Runtime { runtime, reason }
}

/// Starts all shards and waits until each one runs. If one does not, the others are ended again.
pub(crate) fn start<T, H>(
    settings: Settings,
    clock: Clock,
    (engine, reason): (Engine, String),
    make_handler: impl Fn(ShardId) -> H + Send + Sync + 'static,
) -> Result<TimerService<T>, StartError>
where
    T: Send + 'static,
    H: Handler<T>,
{
    let directory = Arc::new(Directory::new(settings, clock, engine.name(), reason));
    let make_handler = Arc::new(make_handler);
    let (ready, started) = mpsc::channel();
    let mut threads = Vec::new();
    let mut failure = None;
    for shard in directory.shards() {
        let (directory, make_handler) = (Arc::clone(&directory), Arc::clone(&make_handler));
        let ready = ready.clone();
        let name = format!("{}-{shard}", directory.settings.name);
        let run = move || run_shard(directory, shard, engine, &*make_handler, ready);
        match thread::Builder::new().name(name).spawn(run) {
            Ok(thread) => threads.push(thread),
            Err(source) => {
                failure = Some(StartError::Shard { shard, source });
                break;
            }
        }
    }
    drop(ready);
    wait_until_started(&threads, &started, &mut failure);
    // If one has failed, dropping the service ends and joins the others.
    let service = TimerService::new(directory, threads, Vec::new());
    match failure {
        Some(error) => Err(error),
        None => Ok(service),
    }
}

fn wait_until_started(
    threads: &[JoinHandle<()>],
    started: &mpsc::Receiver<Result<(), StartError>>,
    failure: &mut Option<StartError>,
) {
    for _ in threads {
        let result = started.recv().unwrap_or_else(|_| {
            Err(unavailable("service's", "a shard's thread panicked while it started".to_owned()))
        });
        if let Err(error) = result {
            failure.get_or_insert(error);
        }
    }
}

/// The life of a shard's thread.
fn run_shard<T, H>(
    directory: Arc<Directory<T>>,
    shard: ShardId,
    engine: Engine,
    make_handler: &impl Fn(ShardId) -> H,
    ready: mpsc::Sender<Result<(), StartError>>,
) where
    T: Send + 'static,
    H: Handler<T>,
{
    pin(&directory.settings, shard);
    #[cfg(any(feature = "glommio", feature = "tokio"))]
    let failed =
        |reason: String| StartError::Shard { shard, source: std::io::Error::other(reason) };
    // Whoever started the thread waits for this message, or for the end of all senders, so none is
    // kept longer than that.
    let report = move |result| drop(ready.send(result));
    let open = || {
        let core = Core::open(Arc::clone(&directory), shard, engine.spawns())?;
        let undertaker = Undertaker::new(Timers::new(core));
        Ok((undertaker, make_handler(shard)))
    };
    match engine {
        #[cfg(all(feature = "glommio", target_os = "linux"))]
        Engine::Glommio => {
            let name = format!("{}-{shard}", directory.settings.name);
            match driver::glommio::executor(&directory.settings, &name).map_err(failed) {
                Err(error) => report(Err(error)),
                Ok(executor) => with_shard(open(), report, |undertaker, handler| {
                    driver::glommio::run(&executor, undertaker, handler);
                }),
            }
        }
        #[cfg(feature = "tokio")]
        Engine::Tokio => match driver::tokio::runtime().map_err(|e| failed(e.to_string())) {
            Err(error) => report(Err(error)),
            Ok(runtime) => with_shard(open(), report, |undertaker, handler| {
                driver::tokio::run(&runtime, undertaker, handler);
            }),
        },
        Engine::Thread => with_shard(open(), report, driver::thread::run),
    }
}

fn with_shard<T, H>(
    opened: Result<(Undertaker<T>, H), StartError>,
    report: impl FnOnce(Result<(), StartError>),
    run: impl FnOnce(Undertaker<T>, Kept<H>),
) where
    T: Send + 'static,
    H: Handler<T>,
{
    match opened {
        Err(error) => report(Err(error)),
        Ok((undertaker, handler)) => {
            // Outlives the executor, whatever it does with the driver's future when it dies.
            let last = Undertaker::new(undertaker.timers().clone());
            report(Ok(()));
            run(undertaker, Kept::new(handler));
            drop(last);
        }
    }
}

fn pin(settings: &Settings, shard: ShardId) {
    if let Some(id) = settings.cpus[shard.index()]
        && !core_affinity::set_for_current(CoreId { id })
    {
        tracing::warn!(shard = shard.number(), cpu = id, "the shard's thread could not be pinned");
    }
}

//! A server in a runtime that is held up, in this process or in one of its own.

use std::sync::mpsc;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use corewheel::{Handle, TimerService};
use tokio::runtime::{self, Builder};
use tokio::sync::oneshot;

use crate::child::Child;

/// Workers of a multi-thread runtime.
const WORKERS: usize = 2;
/// How many handlers compute, and for how long each.
const HANDLERS: usize = 150;
const COMPUTES: Duration = Duration::from_millis(20);

/// A flavour of tokio's runtimes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flavour {
    /// One thread.
    CurrentThread,
    /// Some workers.
    MultiThread,
}

impl Flavour {
    /// Both.
    pub const ALL: [Self; 2] = [Self::CurrentThread, Self::MultiThread];

    fn workers(self) -> usize {
        match self {
            Self::CurrentThread => 1,
            Self::MultiThread => WORKERS,
        }
    }

    /// A builder of such a runtime.
    pub fn builder(self) -> Builder {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::MultiThread => Builder::new_multi_thread(),
        };
        builder.worker_threads(WORKERS).enable_all();
        builder
    }
}
/// What holds the runtime up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hold {
    /// Each worker blocks.
    Blocked,
    /// Many handlers are ready together and compute.
    Computing,
    /// The process is stopped.
    Stopped,
}

impl Hold {
    /// All.
    pub const ALL: [Self; 3] = [Self::Blocked, Self::Computing, Self::Stopped];
}

/// A server. Its drop ends it.
pub struct Server {
    flavour: Flavour,
    runtime: runtime::Handle,
    _stop: oneshot::Sender<()>,
}

/// What keeps workers blocked until it is dropped.
pub type Blocked = Arc<Mutex<Vec<mpsc::Sender<()>>>>;

impl Server {
    /// Runs a server in a runtime on a thread of its own.
    pub fn run(
        flavour: Flavour,
        mut builder: Builder,
        serve: impl AsyncFnOnce(Handle) + Send + 'static,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (sender, started) = mpsc::channel();
        thread::spawn(move || {
            let service = TimerService::beside_runtime().start().unwrap();
            let timers = service.handle();
            let runtime = builder.build().unwrap();
            sender.send(runtime.handle().clone()).unwrap();
            runtime.block_on(async {
                let serving = async {
                    serve(timers).await;
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    () = serving => {}
                    _ = stopped => {}
                }
            });
        });
        Self { flavour, runtime: started.recv().unwrap(), _stop: stop }
    }

    /// Blocks each worker until the returned value is dropped.
    pub fn block(&self) -> Blocked {
        let workers = self.flavour.workers();
        let held = Arc::new(Barrier::new(workers + 1));
        let senders = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..workers {
            let (sender, released) = mpsc::channel::<()>();
            senders.lock().unwrap().push(sender);
            let held = Arc::clone(&held);
            self.runtime.spawn(async move {
                held.wait();
                let _ = released.recv();
            });
        }
        held.wait();
        senders
    }

    /// Makes many handlers ready at once, which compute one after another.
    pub fn compute(&self) {
        // All of them are spawned while the workers are blocked.
        let blocked = self.block();
        for _ in 0..HANDLERS {
            self.runtime.spawn(async { thread::sleep(COMPUTES) });
        }
        drop(blocked);
    }
}

/// A server that can be held up.
pub enum HeldUp {
    /// In this process.
    Here(Server),
    /// In one of its own.
    Child(Child),
}

impl HeldUp {
    /// Holds the server up. Blocked workers go on when the returned value is dropped.
    pub fn hold_up(&self, hold: Hold) -> Option<Blocked> {
        match self {
            Self::Here(server) if hold == Hold::Blocked => return Some(server.block()),
            Self::Here(server) => server.compute(),
            Self::Child(child) => child.stop(),
        }
        None
    }
}

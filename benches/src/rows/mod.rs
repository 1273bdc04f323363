//! The rows that are measured in this process, or in processes that it starts: each module makes
//! the entrants of its rows.

pub mod api;
pub mod broker;
pub mod bytes;
pub mod echo;
pub mod growth;
pub mod remote;
pub mod scaling;
pub mod sleeps;
pub mod timeouts;
pub mod turns;
pub mod wheel;

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use core_affinity::CoreId;
use corewheel::{ShutdownPolicy, TimerService};
use corewheel_glommio::Runtime;
use rustix::time::{ClockId, clock_gettime};

use crate::peers::{Contender, Ours, contenders};
use crate::pin_to_one_core;
use crate::report::{Entrant, Report, interleave};

/// A delay that is longer than any measurement.
const HOUR: Duration = Duration::from_hours(1);

/// How much is measured, and what has been found.
pub struct Run {
    /// What has been found.
    pub report: Report,
    /// How often each contender is measured.
    pub rounds: usize,
    /// Only the tables and rows whose name contains this are measured.
    pub only: String,
    /// The cores that this process may use.
    pub cores: Vec<CoreId>,
}

impl Run {
    /// A run in which nothing is measured yet. Call it before a thread is pinned: the system tells
    /// a pinned thread only its own core.
    pub fn new(rounds: usize, only: &str) -> Self {
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        Self { report: Report::default(), rounds, only: only.to_owned(), cores }
    }

    /// The core of a client, and that of a shard.
    pub fn here_and_there(&self) -> (CoreId, CoreId) {
        (self.cores[0], self.cores[1 % self.cores.len()])
    }

    /// Whether a row is wanted.
    pub fn wants(&self, table: &str, row: &str) -> bool {
        table.contains(&self.only) || row.contains(&self.only)
    }

    /// Measures the entrants of a row, if it is wanted, on a thread of its own: some rows pin the
    /// thread that they run on.
    #[allow(clippy::print_stderr, reason = "a run says how far it is")]
    pub fn measure(
        &mut self,
        place @ (table, row, count): (&str, &str, usize),
        entrants: impl FnOnce() -> Vec<Entrant> + Send,
    ) {
        if !self.wants(table, row) {
            return;
        }
        eprintln!("{table}: {row}, {count}");
        let rounds = self.rounds;
        let found = thread::scope(|scope| {
            scope.spawn(move || interleave(rounds, place, entrants())).join()
        });
        self.report.append(found.unwrap_or_else(|panic| resume_unwind(panic)));
    }

    /// The wheel beside its peers, with these numbers of timers.
    pub fn wheel(&mut self, counts: &[usize]) {
        let verified = thread::spawn(|| contenders().iter().for_each(|it| (it.verify)()));
        verified.join().unwrap_or_else(|panic| resume_unwind(panic));
        for (at, row) in wheel::rows::<Ours<false>>().into_iter().enumerate() {
            for count in counts.iter().copied().filter(|count| row.counts.contains(count)) {
                self.measure((wheel::TABLE, row.name, count), || {
                    pin_to_one_core();
                    let entrant =
                        |it: Contender| Entrant::new(it.name, ((it.rows)()[at].case)(count));
                    contenders().into_iter().map(entrant).collect()
                });
            }
        }
    }

    /// The service: its methods on a core and from another one, many sleeps, an echo server, single
    /// turns, and bytes.
    pub fn service(&mut self, counts: &[usize]) {
        let (here, home) = self.here_and_there();
        let (cores, glommio) = (self.cores.clone(), glommio_works());
        for shards in [1, cores.len()] {
            let cores = &cores[..shards];
            self.measure((scaling::TABLE, scaling::ROW, shards), || scaling::local(cores));
        }
        for pending in [100_000, 1_000_000] {
            let entrants = || remote::pairs(here, home, pending);
            self.measure((remote::TABLE, remote::PAIR, pending), entrants);
        }
        self.measure((remote::TABLE, remote::REFUSAL, 1), remote::refusal);
        if glommio {
            self.measure((remote::TABLE, remote::WAKE, 1), || remote::wake(here, home));
        }
        for tasks in [1_000, 100_000, 1_000_000] {
            self.measure((sleeps::TABLE, sleeps::ROW, tasks), || sleeps::sleeps(tasks));
        }
        for connections in [64, 512] {
            let entrants = || echo::servers(here, home, connections, glommio);
            self.measure((echo::PROCESSOR, echo::ROW, connections), entrants);
        }
        for count in counts.iter().copied().filter(|count| *count > 1) {
            for (row, are_resets) in [(api::CHURN, false), (api::RESET, true)] {
                let entrants = || api::entrants(count, are_resets, glommio);
                self.measure((api::TABLE, row, count), entrants);
            }
        }
        if self.wants(turns::TABLE, "") {
            self.report.append(turns::all());
        }
        if self.wants(bytes::TABLE, "") {
            self.report.append(bytes::all(1_000_000));
        }
    }
}

/// Whether glommio can run here: `io_uring` may be forbidden.
pub fn glommio_works() -> bool {
    let service = TimerService::builder().shards(1).runtime(Runtime::Glommio).start();
    service.is_ok_and(|service| service.shutdown(ShutdownPolicy::Drop).is_ok())
}

/// The processor time that this thread has used.
fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(spent).expect("a time that was spent")
}

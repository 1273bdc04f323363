//! What a timeout costs on multi-thread tokio, by corewheel and by its peers: one [`Cell`] of the
//! table, measured in a process of its own.
//!
//! Why a package of its own: tokio's alternative timer is compiled only with
//! `--cfg tokio_unstable`, so the binary is built twice, with the cfg and without it. The
//! comparison's other peers need tokio's feature `test-util`, with which tokio's timers ask at each
//! reading of the clock whether the time is paused. The command `timeouts` of `corewheel-bench`
//! builds this one and runs it once for each cell and round. The row [`Memory`](Row::Memory) has a
//! binary of its own, since counting what is allocated takes time.
//!
//! Invariants: every timeout's result is checked; what is measured is the processor time of all
//! threads of the process, those of a timer service included.

mod arm;
mod measure;
mod print;
pub mod process;
mod systems;

pub use measure::measure;
pub use print::print;
use serde::{Deserialize, Serialize};

/// What has the timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum System {
    /// `tokio::time::timeout` with the runtime's own timers.
    Tokio,
    /// `tokio::time::timeout` with `Builder::enable_alt_timer`, which needs `--cfg tokio_unstable`.
    TokioAlternative,
    /// `pingora_timeout::timeout`.
    Pingora,
    /// `corewheel::Handle::timeout` with the service that `TimerService::beside_runtime` builds.
    Corewheel,
}

impl System {
    /// All systems with their names, in the order of the table's columns.
    pub const ALL: [(Self, &str); 4] = [
        (Self::Tokio, "tokio"),
        (Self::TokioAlternative, "tokio, alternative timer"),
        (Self::Pingora, "pingora-timeout"),
        (Self::Corewheel, "corewheel"),
    ];
}

/// What is done with a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Row {
    /// A timeout of 30 s around a future that is ready at its second poll, in 100 tasks.
    AtOnceFew,
    /// A timeout of 30 s around a future that is ready at its second poll, in 10,000 tasks.
    AtOnceMany,
    /// A timeout of 5 ms around a future that is ready at its second poll.
    Short,
    /// A sleep of 30 s, which its task resets at each poll.
    Reset,
    /// A timeout of 30 s around a future that another thread makes ready after 5 ms. Its task goes
    /// on at any worker, so with two workers half of the timeouts end on another one.
    Lives,
    /// A timeout of 100 ms around a future that another thread makes ready after 40 ms.
    Old,
    /// A timeout of 30 s that one thread arms and another drops.
    Moved,
    /// A timeout of 5 to 24 ms around a future that is never ready, in 1,000 tasks, so that some
    /// 70 are due in each millisecond. Threads are woken each time, and most of the cost is theirs.
    FiredFew,
    /// The same timeouts in 10,000 tasks. Some 700 timeouts are due in each millisecond, and
    /// threads are woken once for all of them.
    FiredMany,
    /// Sleeps of 5 to 24 ms without a future, in 10,000 tasks. They guard nothing, so no deadline
    /// waits for the runtime to look at its sockets.
    Slept,
    /// How long a worker takes to arm a timeout of 20 to 200 ms, where workers and busy threads are
    /// many more than cpus.
    TimeToArm,
    /// Timeouts of minutes around futures that are never ready, all pending.
    Memory,
}

/// What is known of a row.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The name in tables.
    pub name: &'static str,
    /// The numbers of the runtime's workers with which the row is measured.
    pub workers: &'static [usize],
    /// How many tasks share the timeouts of a pass.
    tasks: usize,
    /// A pass has so many twentieths of the timeouts: passes that wait have fewer.
    twentieths: usize,
}

const fn facts(
    name: &'static str,
    workers: &'static [usize],
    tasks: usize,
    twentieths: usize,
) -> Facts {
    Facts { name, workers, tasks, twentieths }
}

impl Row {
    /// All rows with what is known of each, in the order of the table.
    pub const ALL: [(Self, Facts); 12] = [
        (Self::AtOnceFew, facts("at once, 100 tasks", &[1, 2, 4, 8], 100, 20)),
        (Self::AtOnceMany, facts("at once, 10,000 tasks", &[1, 2, 4, 8], 10_000, 20)),
        (Self::Short, facts("short", &[2], 100, 20)),
        (Self::Reset, facts("reset", &[1, 2], 100, 20)),
        (Self::Lives, facts("lives, gross", &[2], 10_000, 10)),
        (Self::Old, facts("old, gross", &[2], 10_000, 4)),
        (Self::Moved, facts("moved, gross", &[1], 1, 4)),
        (Self::FiredFew, facts("fired, 1,000 tasks, gross", &[1, 2], 1_000, 4)),
        (Self::FiredMany, facts("fired, 10,000 tasks, gross", &[1, 2], 10_000, 4)),
        (Self::Slept, facts("slept, 10,000 tasks, gross", &[1, 2], 10_000, 4)),
        (Self::TimeToArm, facts("time to arm", &[16], 16, 80)),
        (Self::Memory, facts("pending", &[2], 1, 20)),
    ];

    /// What is known of the row.
    fn facts(self) -> Facts {
        let known = Self::ALL.into_iter().find(|(row, _)| *row == self);
        known.expect("each row is in the table").1
    }

    /// Whether what the same costs without a timeout is left in. It is several times as much as
    /// the timeout there, or there is nothing without a timeout.
    pub fn is_gross(self) -> bool {
        self.facts().name.ends_with("gross")
    }

    /// Whether a system can do it. Pingora's sleeps are measured in no row: they cannot be reset.
    pub fn is_known_to(self, system: System) -> bool {
        !matches!((self, system), (Self::Reset | Self::Slept, System::Pingora))
    }
}

/// A system in a row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cell {
    /// What is done with a timeout.
    pub row: Row,
    /// How many long timeouts of the same system are pending meanwhile. In the row
    /// [`Memory`](Row::Memory) they are what is measured.
    pub pending: usize,
    /// The worker threads of the runtime, at least 1.
    pub workers: usize,
    /// What has the timers.
    pub system: System,
    /// How many timeouts a pass has, before it is rounded up to as many for each task. A pass that
    /// waits for them has fewer.
    pub timeouts: usize,
}

/// A value that was measured: the title of its table, and how it is named there. `{}` is the row.
pub type Measured = ((String, String), f64);

/// The titles of the tables.
pub mod quantity {
    /// Processor time of all threads for each timeout: less that of the same without a timeout, or
    /// all of it where the row is [gross](super::Row::is_gross).
    pub const PROCESSOR: &str = "a timeout, processor time of all threads, ns";
    /// Processor time of all threads for the same without a timeout.
    pub const PROCESSOR_WITHOUT: &str = "the same without a timeout, ns";
    /// How often a thread of the process waits, and is woken.
    pub const WAITS: &str = "waits of threads, for each 1,000 timeouts";
    /// From the end of the delay until the task goes on. Below 0 if a timeout fired early.
    pub const LATE: &str = "lateness at the task, µs";
    /// The time that a worker takes to arm a timeout.
    pub const ARM: &str = "time to arm, µs";
    /// The time between the same readings of the clock without a timeout.
    pub const ARM_WITHOUT: &str = "the same readings of the clock without a timeout, µs";
    /// What a pending timeout takes: the growth of the resident set, and the bytes that are
    /// allocated, each less that for its future without a timeout; and by how many bytes a timeout
    /// makes its future larger. What the system allocates when it starts counts as resident only,
    /// such as the slots of corewheel's shard.
    pub const BYTES: &str = "bytes of a pending timeout";
    /// The counters of the service.
    pub const COUNTER: &str = "counters of the service, for each timeout";
}

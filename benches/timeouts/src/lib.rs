//! What a timeout costs on multi-thread tokio, by corewheel and by its peers: one [`Cell`] of the
//! table, measured in a process of its own.
//!
//! Why a package of its own: tokio's alternative timer is compiled only with
//! `--cfg tokio_unstable`, so the binary is built twice, with the cfg and without it. The
//! comparison's other peers need tokio's feature `test-util`, with which tokio's timers ask at each
//! reading of the clock whether the time is paused. The command is the binary `timeouts` of
//! `corewheel-bench`, which builds this one and runs it once for each cell and round. The row
//! [`Memory`](Row::Memory) has a binary of its own, since counting what is allocated takes time.
//!
//! Invariants: every timeout's result is checked; what is measured is the processor time of all
//! threads of the process, those of a timer service included.

mod arm;
mod measure;
mod print;
pub mod process;
mod systems;

use std::fmt;
use std::str::FromStr;

pub use measure::measure;
pub use print::print;

/// What has the timers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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
    /// All systems, in the order of the table's columns.
    pub const ALL: [Self; 4] =
        [Self::Tokio, Self::TokioAlternative, Self::Pingora, Self::Corewheel];

    /// The name in tables and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokio => "tokio",
            Self::TokioAlternative => "tokio, alternative timer",
            Self::Pingora => "pingora-timeout",
            Self::Corewheel => "corewheel",
        }
    }
}

/// What is done with a timeout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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

impl Row {
    /// All rows, in the order of the table.
    pub const ALL: [Self; 12] = [
        Self::AtOnceFew,
        Self::AtOnceMany,
        Self::Short,
        Self::Reset,
        Self::Lives,
        Self::Old,
        Self::Moved,
        Self::FiredFew,
        Self::FiredMany,
        Self::Slept,
        Self::TimeToArm,
        Self::Memory,
    ];

    /// The name in tables and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::AtOnceFew => "at once, 100 tasks",
            Self::AtOnceMany => "at once, 10,000 tasks",
            Self::Short => "short",
            Self::Reset => "reset",
            Self::Lives => "lives, gross",
            Self::Old => "old, gross",
            Self::Moved => "moved, gross",
            Self::FiredFew => "fired, 1,000 tasks, gross",
            Self::FiredMany => "fired, 10,000 tasks, gross",
            Self::Slept => "slept, 10,000 tasks, gross",
            Self::TimeToArm => "time to arm",
            Self::Memory => "pending",
        }
    }

    /// How many tasks share the timeouts of a pass.
    pub fn tasks(self) -> usize {
        match self {
            Self::AtOnceFew | Self::Short | Self::Reset => 100,
            Self::FiredFew => 1_000,
            Self::AtOnceMany | Self::Lives | Self::Old | Self::FiredMany | Self::Slept => 10_000,
            Self::TimeToArm => 16,
            Self::Moved | Self::Memory => 1,
        }
    }

    /// The numbers of the runtime's workers with which the row is measured.
    pub fn workers(self) -> &'static [usize] {
        match self {
            Self::AtOnceFew | Self::AtOnceMany => &[1, 2, 4, 8],
            Self::FiredFew | Self::FiredMany | Self::Slept | Self::Reset => &[1, 2],
            Self::Short | Self::Lives | Self::Old | Self::Memory => &[2],
            Self::Moved => &[1],
            Self::TimeToArm => &[16],
        }
    }

    /// Whether what the same costs without a timeout is left in. It is several times as much as
    /// the timeout there, or there is nothing without a timeout.
    pub fn is_gross(self) -> bool {
        matches!(
            self,
            Self::Lives | Self::Old | Self::Moved | Self::FiredFew | Self::FiredMany | Self::Slept
        )
    }

    /// Whether a system can do it. Pingora's sleeps are measured in no row: they cannot be reset.
    pub fn is_known_to(self, system: System) -> bool {
        !matches!((self, system), (Self::Reset | Self::Slept, System::Pingora))
    }

    /// How many timeouts each task of a pass has. Passes that wait have fewer.
    pub(crate) fn each(self, timeouts: usize) -> usize {
        let timeouts = match self {
            Self::Lives => timeouts / 2,
            Self::Old | Self::Moved | Self::FiredFew | Self::FiredMany | Self::Slept => {
                timeouts / 5
            }
            Self::TimeToArm => timeouts * 4,
            Self::AtOnceFew | Self::AtOnceMany | Self::Short | Self::Reset | Self::Memory => {
                timeouts
            }
        };
        timeouts.div_ceil(self.tasks()).max(1)
    }
}

/// A system in a row of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
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

/// A description of a cell could not be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadCell(String);

impl fmt::Display for BadCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; run the binary `timeouts` of corewheel-bench instead", self.0)
    }
}

impl std::error::Error for BadCell {}

impl Cell {
    /// The command line of the process that measures the cell.
    pub fn to_arguments(self) -> [String; 5] {
        let Self { row, pending, workers, system, timeouts } = self;
        let numbers = [pending, workers, timeouts].map(|number| number.to_string());
        let [pending, workers, timeouts] = numbers;
        [row.name().to_owned(), pending, workers, system.name().to_owned(), timeouts]
    }

    /// The cell that a command line describes.
    ///
    /// # Errors
    ///
    /// There are not five arguments, or one of them is no row, no system or no number.
    pub fn from_arguments(arguments: &[String]) -> Result<Self, BadCell> {
        let [row, pending, workers, system, timeouts] = arguments else {
            return Err(BadCell("a cell needs 5 arguments".to_owned()));
        };
        let bad = |text: &str| BadCell(format!("`{text}` is no part of a cell"));
        let number = |text: &String| usize::from_str(text).map_err(|_| bad(text));
        let known_row = Row::ALL.into_iter().find(|known| known.name() == row);
        let known_system = System::ALL.into_iter().find(|known| known.name() == system);
        Ok(Self {
            row: known_row.ok_or_else(|| bad(row))?,
            pending: number(pending)?,
            workers: number(workers)?,
            system: known_system.ok_or_else(|| bad(system))?,
            timeouts: number(timeouts)?,
        })
    }
}

/// A value that was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// What the value is, with its unit.
    pub quantity: String,
    /// The value.
    pub value: f64,
}

/// The quantities of the tables.
pub mod quantity {
    /// Processor time of all threads for each timeout: less that of the same without a timeout, or
    /// all of it where the row is [gross](super::Row::is_gross).
    pub const PROCESSOR: &str = "processor time, ns";
    /// Processor time of all threads for the same without a timeout.
    pub const PROCESSOR_WITHOUT: &str = "processor time without a timeout, ns";
    /// From the end of the delay until the task goes on: the earliest. Below 0 if a timeout fired
    /// early.
    pub const LATE_MIN: &str = "lateness at the task, least, µs";
    /// From the end of the delay until the task goes on: the median.
    pub const LATE_P50: &str = "lateness at the task, p50, µs";
    /// From the end of the delay until the task goes on: the 99th percentile.
    pub const LATE_P99: &str = "lateness at the task, p99, µs";
    /// The time that a worker takes to arm a timeout: the median, the 99th percentile, the 999th of
    /// a thousand, and the greatest.
    pub const ARM: [&str; 4] = [
        "time to arm, p50, µs",
        "time to arm, p99, µs",
        "time to arm, p99.9, µs",
        "time to arm, greatest, µs",
    ];
    /// The time between the same readings of the clock without a timeout.
    pub const ARM_WITHOUT: [&str; 4] = [
        "time without a timeout, p50, µs",
        "time without a timeout, p99, µs",
        "time without a timeout, p99.9, µs",
        "time without a timeout, greatest, µs",
    ];
    /// The growth of the resident set for each pending timeout, less that for its future without a
    /// timeout.
    pub const RESIDENT: &str = "resident bytes a timeout";
    /// The bytes that are allocated for each pending timeout, less those for its future without a
    /// timeout. What the system allocates when it starts is left out, such as the slots of
    /// corewheel's shard, which become resident with use.
    pub const ALLOCATED: &str = "allocated bytes a timeout";
    /// By how many bytes a timeout makes its future larger.
    pub const IN_FUTURE: &str = "bytes of a timeout in its future";
    /// The beginning of the names of the service's counters; the values are for each timeout.
    pub const COUNTER: &str = "counter ";
}

#[cfg(test)]
mod tests {
    use super::{Cell, Row, System};

    #[test]
    fn cell_written_as_arguments_is_read_again() {
        for row in Row::ALL {
            for system in System::ALL {
                let cell = Cell { row, pending: 7, workers: 2, system, timeouts: 5 };
                assert_eq!(Cell::from_arguments(&cell.to_arguments()), Ok(cell));
            }
        }
    }

    #[test]
    fn cell_of_an_unknown_row_is_refused() {
        let arguments = ["x", "0", "1", "tokio", "1"].map(str::to_owned);
        let refused = Cell::from_arguments(&arguments).map_err(|error| error.to_string());
        assert!(refused.is_err_and(|text| text.starts_with("`x` is no part of a cell")));
    }
}

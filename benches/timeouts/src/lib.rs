//! What a timeout costs on multi-thread tokio, by corewheel and by its peers: one [`Cell`] of the
//! table, measured in a process of its own.
//!
//! Why a package of its own: tokio's alternative timer is compiled only with
//! `--cfg tokio_unstable`, so the binary is built twice, with the cfg and without it; and the
//! comparison's other peers need tokio's feature `test-util`, with which tokio's timers ask at each
//! reading of the clock whether the time is paused. The command is the binary `timeouts` of
//! `corewheel-bench`, which builds this one and runs it once for each cell and round.
//!
//! Invariants: every timeout's result is checked; what is measured is the processor time of all
//! threads of the process, those of a timer service included.

mod measure;
pub mod process;
mod systems;

use std::fmt;
use std::str::FromStr;

pub use measure::measure;

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
    /// A timeout around a future that is ready at its first poll.
    Ready,
    /// A timeout of 30 s around a future that is ready at its second poll, in 100 tasks.
    CancelledFew,
    /// A timeout of 30 s around a future that is ready at its second poll, in 10,000 tasks.
    CancelledMany,
    /// A timeout of 1 to 20 ms around a future that is never ready, in 1,000 tasks.
    Fired,
    /// Timeouts of minutes around futures that are never ready, all pending.
    Memory,
}

impl Row {
    /// All rows, in the order of the table.
    pub const ALL: [Self; 5] =
        [Self::Ready, Self::CancelledFew, Self::CancelledMany, Self::Fired, Self::Memory];

    /// The name in tables and arguments.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "around a ready future",
            Self::CancelledFew => "armed and cancelled, 100 tasks",
            Self::CancelledMany => "armed and cancelled, 10,000 tasks",
            Self::Fired => "armed and fired",
            Self::Memory => "pending",
        }
    }

    /// How many tasks share the timeouts of a pass.
    pub fn tasks(self) -> usize {
        match self {
            Self::Ready | Self::CancelledFew => 100,
            Self::CancelledMany => 10_000,
            Self::Fired => 1_000,
            Self::Memory => 0,
        }
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
    /// How many timeouts a pass has, before it is rounded up to as many for each task. A pass of
    /// timeouts that fire has a tenth, since it waits for them.
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
    /// Processor time of all threads for each timeout, less that of the same without a timeout. For
    /// timeouts that fire, with which there is nothing to compare, all of it.
    pub const PROCESSOR: &str = "processor time, ns";
    /// Processor time of all threads for the same without a timeout.
    pub const PROCESSOR_WITHOUT: &str = "processor time without a timeout, ns";
    /// Wall-clock time of a pass for each of its timeouts.
    pub const WALL: &str = "wall-clock time, ns";
    /// Wall-clock time of a pass of the same without timeouts.
    pub const WALL_WITHOUT: &str = "wall-clock time without a timeout, ns";
    /// From the end of the delay until the task goes on: the earliest. Below 0 if a timeout fired
    /// early.
    pub const LATE_MIN: &str = "lateness at the task, least, µs";
    /// From the end of the delay until the task goes on: the median.
    pub const LATE_P50: &str = "lateness at the task, p50, µs";
    /// From the end of the delay until the task goes on: the 99th percentile.
    pub const LATE_P99: &str = "lateness at the task, p99, µs";
    /// The growth of the resident set for each pending timeout, less that for its future without a
    /// timeout.
    pub const BYTES: &str = "resident bytes a timeout";
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

//! The closed list of warnings: one table, from which come the JSON, the metrics, the events, the
//! order and the words of the page, and the documentation.

use std::fmt;
use std::time::Duration;

use crate::values::ids::ShardId;

/// What the guide says of the statistics.
const GUIDE: &str = include_str!("../guide/statistics.md");

/// Defines the warnings once, the most urgent first. A row has the setting that is its threshold,
/// and the part of the lateness that it explains.
macro_rules! warnings {
    ($(
        $kind:ident $id:literal, limit $limit:literal, part $part:expr,
        $($about:literal)+;
        remedy $($remedy:literal)+;
    )*) => {
        /// The warnings of a service, a closed list.
        ///
        /// A reading has those that have occurred, in [`ServiceStats::warnings`]; `/metrics` has
        /// the count of each in `corewheel_warnings_total`; and each is an event of `tracing` with
        /// the target `corewheel::warning` and the fields `id`, `shard`, `class` and `count`. The
        /// most urgent comes first. `/stats.json` has the whole table in `warning_kinds`.
        ///
        /// [`ServiceStats::warnings`]: crate::stats::ServiceStats::warnings
        ///
        /// | id | warns that | threshold |
        /// |---|---|---|
        $(#[doc = concat!("| `", $id, "` | ", $($about,)+ " | ", $limit, " |")])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
        pub enum WarningKind {
            $(#[doc = concat!("`", $id, "`: ", $($about,)+ ".")] $kind,)*
        }

        impl WarningKind {
            /// All warnings, in the order of the table.
            pub const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];

            /// The id of the warning, which never changes.
            pub fn id(self) -> &'static str {
                match self {
                    $(Self::$kind => $id,)*
                }
            }

            /// What the warning means.
            pub fn about(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!($($about),+),)*
                }
            }

            /// What to do about it.
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Self::$kind => concat!($($remedy),+),)*
                }
            }

            /// The part of the lateness of timers that it explains, by its name in
            /// [`ShardStats::late_parts`](crate::stats::ShardStats::late_parts); `None` if it
            /// explains none.
            pub fn part(self) -> Option<&'static str> {
                match self {
                    $(Self::$kind => $part,)*
                }
            }
        }
    };
}

warnings! {
    ShardDead "shard-dead", limit "none", part None,
        "the driver of the shard ended without a shutdown";
        remedy "Its driver ended or panicked: see the log, and start the service again.";
    ShardStuck "shard-stuck",
        limit "`warning_limits.stuck`", part None,
        "a turn has been due, or has been running, for long";
        remedy "A handler has not returned, or its thread does not run: see the watchdog's event.";
    HostOvercommitted "host-overcommitted",
        limit "20 % of the time", part Some("poll_delay"),
        "the thread of the shard waited for a processor";
        remedy "Other threads or processes take the cores: give the shards their own.";
    ExecutorStalled "executor-stalled",
        limit "50 ms", part Some("poll_delay"),
        "a turn began long after it was due, since the executor ran other tasks";
        remedy "A task on the shard's executor did not yield: look there for a call that blocks or"
            " a long computation. A thread that runs no tasks was stopped, or had no core.";
    HandlerSlow "handler-slow",
        limit "`overrun`", part Some("handlers"),
        "deliveries took longer than the limit";
        remedy "A handler or callback takes the shard's time: move its work elsewhere. Where a"
            " shard only wakes tasks, its thread is interrupted: give it a core of its own.";
    BudgetExhausted "budget-exhausted",
        limit "10 turns", part Some("backlog"),
        "many turns in a row used up their budget for expired timers";
        remedy "More timers are due than a turn may deliver: spread the deadlines, raise the budget"
            " or add shards.";
    LaneFlooded "lane-flooded",
        limit "50 % of `lane_capacity`", part Some("arrival"),
        "a thread sends requests faster than the shard receives them";
        remedy "A thread sends faster than the shard receives: look for a loop that schedules,"
            " cancels or resets; if the rate is meant, raise the budget for requests.";
    ShardNearCapacity "shard-near-capacity",
        limit "90 % of `capacity`", part None,
        "the shard holds nearly as many timers as it can";
        remedy "At its capacity the shard refuses timers: raise it or add shards.";
    ClassLeaks "class-leaks",
        limit "`warning_limits.class_age`", part None,
        "the oldest timer of a class is far older than timers of the class should be";
        remedy "Timers of the class are neither cancelled nor due: look for a missing cancel.";
}

impl WarningKind {
    /// The section of the guide [`statistics`](crate::guide::statistics) on it, in Markdown and
    /// without its heading: what it means, what to look at, and what to do.
    pub fn guide(self) -> &'static str {
        let heading = format!("\n## {self}\n");
        let (_, text) = GUIDE.split_once(&heading).unwrap_or_default();
        text.split("\n#").next().unwrap_or_default()
    }
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// A warning that has occurred.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Warning {
    /// Which warning it is; its id in JSON.
    #[cfg_attr(feature = "serde", serde(rename = "id"))]
    pub kind: WarningKind,
    /// The shard that it is about.
    pub shard: ShardId,
    /// The class that it is about; `None` if it is about none.
    pub class: Option<&'static str>,
    /// How often it has occurred: for a state, how often the state began.
    pub count: u64,
    /// Whether the state lasts, or it occurred within the last ten seconds.
    pub is_active: bool,
    /// When the state, or the present series of occurrences, was first seen, in nanoseconds from
    /// the start of the service.
    pub since_ns: u64,
    /// When it was last seen, in nanoseconds from the start of the service.
    pub last_ns: u64,
    /// A sentence with figures.
    pub text: String,
}

/// A time as a sentence has it, to the microsecond or to three digits.
pub(super) fn brief(nanos: u64) -> String {
    let digits = nanos.checked_ilog10().unwrap_or(0);
    let unit = 10_u64.pow(digits.saturating_sub(2).max(3));
    format!("{:?}", Duration::from_nanos(nanos / unit * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_has_an_id_of_its_own() {
        for (index, kind) in WarningKind::ALL.into_iter().enumerate() {
            let is_word = |c: char| c.is_ascii_lowercase() || c == '-';
            assert!(kind.id().chars().all(is_word), "{kind}");
            assert!(WarningKind::ALL[..index].iter().all(|other| other.id() != kind.id()));
            assert!(kind.guide().len() > 100, "the guide has a section on {kind}");
        }
        assert_eq!(WarningKind::ALL.len(), 9);
    }

    #[test]
    fn times_in_sentences_have_three_digits() {
        assert_eq!(brief(1_234_567), "1.23ms");
        assert_eq!(brief(214_900_123), "214ms");
        assert_eq!(brief(12_345), "12µs");
        assert_eq!(brief(61_234_567_890), "61.2s");
        assert_eq!(brief(7), "0ns");
    }
}

//! The closed list of warnings: one table, from which come the JSON, the metrics, the events and
//! the documentation.

use std::fmt;
use std::time::Duration;

use crate::values::ids::ShardId;

/// Defines the warnings once.
macro_rules! warnings {
    ($($kind:ident $id:literal, limit $limit:literal: $($about:literal)+)*) => {
        /// The warnings of a service, a closed list.
        ///
        /// A reading has those that have occurred, in [`ServiceStats::warnings`]; `/metrics` has
        /// the count of each in `corewheel_warnings_total`; and each is an event of `tracing` with
        /// the target `corewheel::warning` and the fields `id`, `shard`, `class` and `count`.
        ///
        /// [`ServiceStats::warnings`]: crate::stats::ServiceStats::warnings
        ///
        /// | id | warns that | threshold |
        /// |---|---|---|
        $(#[doc = concat!("| `", $id, "` | ", $($about,)+ " | `", $limit, "` |")])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
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

            /// The setting that is the threshold of the warning.
            pub fn limit(self) -> &'static str {
                match self {
                    $(Self::$kind => $limit,)*
                }
            }
        }
    };
}

warnings! {
    ExecutorStalled "executor-stalled", limit "warning_limits.executor_stall":
        "a turn began long after it was due, since the executor ran other tasks"
    HandlerSlow "handler-slow", limit "overrun":
        "callbacks or handlers took longer than the limit"
    BudgetExhausted "budget-exhausted", limit "warning_limits.exhausted_turns":
        "many turns in a row used up their budget for expired timers"
    LaneFlooded "lane-flooded", limit "warning_limits.lane_percent":
        "a thread sends requests faster than the shard receives them"
    HostOvercommitted "host-overcommitted", limit "warning_limits.host_wait_percent":
        "the thread of the shard waited for a processor"
    ShardStuck "shard-stuck", limit "warning_limits.stuck":
        "a turn has been due, or has been running, for long"
    ShardNearCapacity "shard-near-capacity", limit "warning_limits.capacity_percent":
        "the shard holds nearly as many timers as it can"
    ClassLeaks "class-leaks", limit "warning_limits.class_age":
        "the oldest timer of a class is far older than timers of the class should be"
    LimitTooTight "limit-too-tight", limit "warning_limits.tight_percent":
        "timers of a class are often cancelled just before they are due"
    ShardDead "shard-dead", limit "none":
        "the driver of the shard ended without a shutdown"
}

impl fmt::Display for WarningKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for WarningKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.id())
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
        }
        assert_eq!(WarningKind::ALL.len(), 10);
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

//! The table of the warnings.

use corewheel::stats::{ServiceStats, WarningKind};
use serde::Serialize;

/// A row of the table as `/stats.json` has it.
#[derive(Serialize)]
pub(super) struct WarningRow {
    id: &'static str,
    about: &'static str,
    limit: &'static str,
    threshold: Option<String>,
    urgency: &'static str,
    consequences: &'static [WarningKind],
    remedy: &'static str,
}

impl WarningRow {
    /// The table, with the thresholds of a service.
    pub(super) fn all(stats: &ServiceStats) -> [Self; WarningKind::ALL.len()] {
        WarningKind::ALL.map(|kind| Self {
            id: kind.id(),
            about: kind.about(),
            limit: kind.limit(),
            threshold: kind.threshold(stats),
            urgency: if kind.is_urgent() { "now" } else { "by-lateness" },
            consequences: kind.consequences(),
            remedy: kind.remedy(),
        })
    }
}

//! What a shard counts and measures, for the statistics.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::classes::ClassTable;
use super::lateness::TurnTimes;
use super::part::{Gauges, PartId};
use crate::stats::ShardCounts;
use crate::stats::live::Live;
use crate::stats::times::Recorder;

/// The numbers of a shard. Its thread writes them, and publishes them once a turn.
pub(super) struct Measures {
    pub(super) counts: ShardCounts,
    /// The gauges that parts have named, and those that are published.
    pub(super) gauges: Vec<(PartId, &'static str, u64)>,
    pub(super) gauges_shown: Vec<(PartId, &'static str, u64)>,
    pub(super) lateness: Recorder,
    pub(super) ring_delay: Recorder,
    pub(super) classes: ClassTable,
    /// What other threads see of the present turn, with the class of the timer that is being
    /// delivered.
    pub(super) live: Arc<CachePadded<Live>>,
    pub(super) times: TurnTimes,
}

impl Measures {
    pub(super) fn new(capacity: u32, classes: ClassTable, live: Arc<CachePadded<Live>>) -> Self {
        Self {
            counts: ShardCounts { capacity: u64::from(capacity), ..ShardCounts::default() },
            gauges: Vec::new(),
            gauges_shown: Vec::new(),
            lateness: Recorder::new(),
            ring_delay: Recorder::new(),
            classes,
            live,
            times: TurnTimes::new(),
        }
    }

    /// Where a part writes its gauges.
    pub(super) fn gauges_of(&mut self, part: PartId) -> Gauges<'_> {
        Gauges { part, counts: &mut self.counts, named: &mut self.gauges }
    }
}

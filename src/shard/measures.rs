//! What a shard counts and measures, for the statistics.

use std::sync::Arc;

use corewheel_shard::TimerKey;
use crossbeam_utils::CachePadded;

use super::classes::ClassTable;
use super::lateness::TurnTimes;
use super::part::{Gauges, PartId};
use crate::clock::Timeline;
use crate::stats::ShardCounts;
use crate::stats::live::Live;
use crate::stats::publish::Published;
use crate::stats::times::Recorder;
use crate::values::class::ClassId;
use crate::values::settings::Settings;

/// The numbers of a shard. Its thread writes them, and publishes them once a turn.
pub(crate) struct Measures {
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
    /// From how many nanoseconds on a delivery is beyond the service's bound.
    lateness_bound: u64,
}

impl Measures {
    pub(super) fn new(settings: &Settings, live: Arc<CachePadded<Live>>) -> Self {
        let capacity = settings.shard.capacity;
        Self {
            counts: ShardCounts { capacity: u64::from(capacity), ..ShardCounts::default() },
            gauges: Vec::new(),
            gauges_shown: Vec::new(),
            lateness: Recorder::new(),
            ring_delay: Recorder::new(),
            classes: ClassTable::new(settings.classes.len(), capacity),
            live,
            times: TurnTimes::new(),
            lateness_bound: settings.lateness_bound,
        }
    }

    /// Where a part writes its gauges.
    pub(super) fn gauges_of(&mut self, part: PartId) -> Gauges<'_> {
        Gauges { part, counts: &mut self.counts, named: &mut self.gauges }
    }

    /// Publishes the gauges that parts have named, if any has changed.
    #[inline]
    pub(super) fn publish_gauges(&mut self, published: &Published) {
        if self.gauges != self.gauges_shown {
            let named = self.gauges.iter().map(|(_, name, value)| (*name, *value));
            published.gauges.store(named);
            self.gauges_shown.clone_from(&self.gauges);
        }
    }

    /// Begins the delivery of a timer of a class, `late` nanoseconds after its deadline. Counts the
    /// timer as fired, and notes the delivery if it is beyond the service's bound. `now` returns
    /// the time of the delivery.
    #[inline]
    pub(super) fn begin_delivery(
        &mut self,
        (class, key): (ClassId, Option<TimerKey>),
        late: u64,
        time: &Timeline,
        now: impl FnOnce() -> u64,
    ) {
        let is_late = late > self.lateness_bound;
        self.lateness.record(late);
        if class.is_some() {
            self.classes.count_fired(class, late, is_late);
        }
        self.live.deliver(class);
        if is_late {
            self.note_late(key, now(), late, time);
        }
    }

    /// Writes a delivery at `now` down that is `late` nanoseconds late, beyond the bound.
    #[cold]
    fn note_late(&mut self, key: Option<TimerKey>, now: u64, late: u64, time: &Timeline) {
        let (deadline, class) = (now.saturating_sub(late), self.live.delivering());
        self.counts.late += 1;
        self.times.note_late((class, key), deadline, now, time.floor(deadline));
    }
}

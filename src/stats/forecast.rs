//! The forecast: how many timers are due soon, by how full the slots of the wheel are.
//!
//! A turn makes it, if a reader has asked for it and a second has passed since the last one. No
//! timer is looked at, only the chunks of the slots, and of these a limited number: the slots that
//! come up last are then left out.
//!
//! Cost: [`Forecast::took_ns`] says what the last one cost; O(slots + chunks), with at most
//! [`CHUNKS_MAX`] chunks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corewheel_shard::{Occupancy, Shard, Tick};

use crate::clock::saturating_nanos;
use crate::link::version::Version;

/// The most chunks of 15 entries that a forecast looks at.
pub(crate) const CHUNKS_MAX: usize = 1 << 12;
/// The shortest time between two forecasts.
const PERIOD: Duration = Duration::from_secs(1);
/// The ends of the spans, from the moment of the forecast. A last span has no end.
const ENDS: [Duration; 7] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_mins(1),
    Duration::from_mins(10),
    Duration::from_hours(1),
];
const SPANS: usize = ENDS.len() + 1;

/// How many timers of a shard are due soon.
///
/// The timers of a slot count where the slot begins, so no timer is due before the span that counts
/// it. A timer that was reset to a later deadline counts with its earlier one until the wheel looks
/// at it.
///
/// ```
/// use corewheel::stats::Forecast;
///
/// /// How many timers may be due within so many nanoseconds.
/// fn due_within(forecast: &Forecast, nanos: u64) -> u64 {
///     let is_within = |end: Option<u64>| end.is_some_and(|end| end <= nanos);
///     let spans = forecast.spans.iter().take_while(|span| is_within(span.within_ns));
///     spans.map(|span| span.timers).sum()
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Forecast {
    /// When it was made, in nanoseconds from the start of the service.
    pub at_ns: u64,
    /// The spans, in the order of time. Each begins where the one before it ends.
    pub spans: Vec<ForecastSpan>,
    /// Entries that were counted; the spans add up to them.
    pub counted: u64,
    /// Entries that were not counted, since there are too many. All of them are due later than
    /// those that were counted.
    pub not_counted: u64,
    /// Of all entries, those of timers that were cancelled or reset to an earlier deadline and that
    /// the wheel has not swept.
    pub stale: u64,
    /// How long the shard has computed it, in nanoseconds.
    pub took_ns: u64,
}

/// The timers that are due in one span of a [`Forecast`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ForecastSpan {
    /// The end of the span, in nanoseconds from the moment of the forecast; `None` if it has no
    /// end.
    pub within_ns: Option<u64>,
    /// Entries of slots that begin in the span.
    pub timers: u64,
    /// Of these, entries of slots that end after the span: they may be due later.
    pub uncertain: u64,
}

/// Where a shard publishes its forecast. Its values are, in order: when it was made, in nanoseconds
/// and one; counted, not counted and stale entries; what it cost; and the spans.
#[derive(Debug)]
pub(crate) struct PublishedForecast {
    version: Version,
    about: [AtomicU64; 5],
    spans: [[AtomicU64; 2]; SPANS],
}

impl PublishedForecast {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            version: Version::new(),
            about: std::array::from_fn(|_| zero()),
            spans: std::array::from_fn(|_| [zero(), zero()]),
        }
    }

    /// Whether a second has passed since the last forecast.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        let [at, ..] = &self.about;
        // Relaxed: it is about one value.
        let at = at.load(Ordering::Relaxed).checked_sub(1);
        at.is_none_or(|at| now.saturating_sub(at) >= saturating_nanos(PERIOD))
    }

    /// Makes a forecast at `now` and stores it. `ticks_until` gives the tick that has begun at a
    /// time in nanoseconds, and `clock` the present.
    pub(crate) fn make<P>(
        &self,
        wheel: &Shard<P>,
        now: u64,
        tick_at: impl Fn(u64) -> Tick,
        clock: impl Fn() -> u64,
    ) {
        let ends = ENDS.map(|end| tick_at(now.saturating_add(saturating_nanos(end))));
        let end_of = |span: usize| ends.get(span).copied().unwrap_or(Tick::NEVER);
        let mut spans = [[0; 2]; SPANS];
        let counted = wheel.occupancy(CHUNKS_MAX, |slot: Occupancy| {
            let span = ends.iter().take_while(|end| slot.from > **end).count();
            spans[span][0] += slot.entries;
            if slot.to > end_of(span) {
                spans[span][1] += slot.entries;
            }
        });
        let entries = wheel.entries() as u64;
        let stale = entries.saturating_sub(wheel.len() as u64);
        let took = clock().saturating_sub(now);
        let about = [now + 1, counted, entries.saturating_sub(counted), stale, took];
        self.version.store(|| {
            // Relaxed: the version orders them.
            for (published, value) in self.about.iter().zip(about) {
                published.store(value, Ordering::Relaxed);
            }
            for (published, value) in self.spans.iter().flatten().zip(spans.iter().flatten()) {
                published.store(*value, Ordering::Relaxed);
            }
        });
    }

    /// The last forecast; `None` if there is none yet.
    pub(crate) fn load(&self) -> Option<Forecast> {
        let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let (about, spans) = self.version.load(|| {
            let about = self.about.each_ref().map(load);
            (about, self.spans.each_ref().map(|span| span.each_ref().map(load)))
        });
        let [at, counted, not_counted, stale, took_ns] = about;
        let ends = ENDS.into_iter().map(Some).chain([None]);
        let spans = ends.zip(spans).map(|(within, [timers, uncertain])| ForecastSpan {
            within_ns: within.map(saturating_nanos),
            timers,
            uncertain,
        });
        Some(Forecast {
            at_ns: at.checked_sub(1)?,
            spans: spans.collect(),
            counted,
            not_counted,
            stale,
            took_ns,
        })
    }
}

//! The forecast: how many timers are due soon, by how full the slots of the wheel are.
//!
//! A turn makes it, if a reader has asked for it and a second has passed since the last one. No
//! timer is looked at, only the chunks of the slots, and of these a limited number: the slots that
//! come up last are then left out.
//!
//! Cost: [`Forecast::took_ns`] says what the last one cost; O(slots + chunks), with at most
//! [`CHUNKS_MAX`] chunks.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corewheel_shard::{Occupancy, Shard, Tick};

use crate::clock::saturating_nanos;

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
    Duration::from_secs(60),
    Duration::from_secs(600),
    Duration::from_secs(3_600),
];

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

/// Where a shard publishes its forecast; `None` until it has made one.
#[derive(Debug, Default)]
pub(crate) struct PublishedForecast(Mutex<Option<Forecast>>);

impl PublishedForecast {
    fn lock(&self) -> MutexGuard<'_, Option<Forecast>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a second has passed since the last forecast.
    pub(crate) fn is_due(&self, now: u64) -> bool {
        let is_old = |last: &Forecast| now.saturating_sub(last.at_ns) >= saturating_nanos(PERIOD);
        self.lock().as_ref().is_none_or(is_old)
    }

    /// Makes a forecast at `now` and stores it. `tick_at` gives the tick that has begun at a time
    /// in nanoseconds, and `clock` the present.
    pub(crate) fn make<P>(
        &self,
        wheel: &Shard<P>,
        now: u64,
        tick_at: impl Fn(u64) -> Tick,
        clock: impl Fn() -> u64,
    ) {
        let ends = ENDS.map(|end| tick_at(now.saturating_add(saturating_nanos(end))));
        let end_of = |span: usize| ends.get(span).copied().unwrap_or(Tick::NEVER);
        let within = ENDS.into_iter().map(|end| Some(saturating_nanos(end))).chain([None]);
        let empty = |within_ns| ForecastSpan { within_ns, timers: 0, uncertain: 0 };
        let mut spans: Vec<_> = within.map(empty).collect();
        let counted = wheel.occupancy(CHUNKS_MAX, |slot: Occupancy| {
            let span = ends.iter().take_while(|end| slot.from > **end).count();
            spans[span].timers += slot.entries;
            if slot.to > end_of(span) {
                spans[span].uncertain += slot.entries;
            }
        });
        let entries = wheel.entries() as u64;
        let forecast = Forecast {
            at_ns: now,
            spans,
            counted,
            not_counted: entries.saturating_sub(counted),
            stale: entries.saturating_sub(wheel.len() as u64),
            took_ns: clock().saturating_sub(now),
        };
        *self.lock() = Some(forecast);
    }

    /// The last forecast; `None` if there is none yet.
    pub(crate) fn load(&self) -> Option<Forecast> {
        self.lock().clone()
    }
}

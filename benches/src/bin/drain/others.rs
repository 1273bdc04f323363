//! Timers that come beside the connections, and how late they come.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use corewheel::Timers;

/// How many timers come in each window.
pub(crate) const OTHERS: u32 = 100_000;

/// The other timers of one window.
pub(crate) struct Others(Rc<RefCell<Vec<Duration>>>);

impl Others {
    /// Schedules the timers, evenly spread over the window.
    pub(crate) fn schedule(timers: &Timers, window: Duration) -> Self {
        let all: Rc<RefCell<Vec<Duration>>> = Rc::default();
        let start = timers.now();
        for number in 0..OTHERS {
            let (due, all) = (start + window * number / OTHERS, Rc::clone(&all));
            let note = move |timers: &Timers| {
                all.borrow_mut().push(timers.now().saturating_duration_since(due));
            };
            // A shard without room shows in the count.
            drop(timers.schedule_fn(due, note));
        }
        Self(all)
    }

    /// Quantiles of the lateness. A deadline is rounded up to a tick of a millisecond.
    pub(crate) fn lateness(self) -> String {
        let mut late = self.0.take();
        late.sort_unstable();
        let count = late.len();
        let at = |thousandths: usize| {
            let index = (count * thousandths / 1_000).min(count.saturating_sub(1));
            late.get(index).copied().unwrap_or_default()
        };
        let [half, most, nearly_all, all] = [500, 990, 999, 1_000].map(at);
        format!(
            "{count} came; p50 {half:.2?}, p99 {most:.2?}, p99.9 {nearly_all:.2?}, max {all:.2?}"
        )
    }
}

//! The targets, as ratios of medians of a run.

use corewheel_bench::verdict::Verdict;
use corewheel_timeouts::{Row, System, quantity};

use crate::results::Results;

/// The most bytes that a pending timeout may take, those in its future included.
const BYTES_MAX: f64 = 112.0;

/// All targets that the results of a run can decide.
pub(crate) fn verdicts(results: &Results) -> Vec<Verdict> {
    let median = |place, system| results.median(place, quantity::PROCESSOR, system);
    let mut verdicts = Vec::new();
    for place in results.places(quantity::PROCESSOR) {
        let (row, pending, workers) = place;
        let tokio = ("tokio", median(place, System::Tokio));
        let ((of, to), limit) = match (row, workers) {
            (Row::AtOnceFew | Row::AtOnceMany, 1) => (tokio, 0.75),
            (Row::AtOnceFew | Row::AtOnceMany, 2) => (tokio, 0.2),
            (Row::AtOnceFew | Row::AtOnceMany, _) => {
                (("with 2 workers", median((row, pending, 2), System::Corewheel)), 1.5)
            }
            (Row::Lives, _) => (tokio, 1.0),
            (Row::Old | Row::Moved, _) => (tokio, 1.05),
            (Row::FiredFew | Row::FiredMany, 1) => (tokio, 1.15),
            (Row::FiredFew | Row::FiredMany, _) => (tokio, 1.3),
            (Row::Slept, 1) => (tokio, 1.2),
            (Row::Slept, _) => (tokio, 1.5),
            _ => continue,
        };
        let (Some(ours), Some(to)) = (median(place, System::Corewheel), to) else { continue };
        let target = format!(
            "{}, {pending} others pending, {workers} workers: corewheel / {of}",
            row.name()
        );
        verdicts.push(Verdict::at_most(&target, ours / to, limit));
    }
    for place in results.places(quantity::RESIDENT) {
        let Some(bytes) = results.median(place, quantity::RESIDENT, System::Corewheel) else {
            continue;
        };
        verdicts.push(Verdict::at_most("resident bytes a pending timeout", bytes, BYTES_MAX));
    }
    if results.places(quantity::PROCESSOR).is_empty() {
        return verdicts;
    }
    let refused = format!("{}refused", quantity::COUNTER);
    let most = results
        .places(&refused)
        .into_iter()
        .filter_map(|place| Some(results.find(place, &refused, System::Corewheel)?.max()));
    let target = "refused timers for each timeout, the most of all rounds";
    verdicts.push(Verdict::at_most(target, most.fold(0.0, f64::max), 0.0));
    verdicts
}

#[cfg(test)]
mod tests {
    use corewheel_timeouts::{Cell, Row, System, quantity};

    use super::verdicts;
    use crate::results::Results;

    const TOKIO: System = System::Tokio;
    const COREWHEEL: System = System::Corewheel;

    fn push(results: &mut Results, row: Row, workers: usize, system: System, nanos: f64) {
        let cell = Cell { row, pending: 0, workers, system, timeouts: 1 };
        results.push(cell, quantity::PROCESSOR, nanos);
    }

    fn met(results: &Results) -> Vec<bool> {
        verdicts(results).into_iter().map(|verdict| verdict.met).collect()
    }

    #[test]
    fn targets_are_checked_against_tokio_and_against_two_workers() {
        let mut results = Results::default();
        for (workers, system, nanos) in [
            (1, TOKIO, 100.0),
            (1, COREWHEEL, 75.0),
            (2, TOKIO, 400.0),
            (2, COREWHEEL, 100.0),
            (4, COREWHEEL, 150.0),
            (8, COREWHEEL, 151.0),
        ] {
            push(&mut results, Row::AtOnceMany, workers, system, nanos);
        }
        assert_eq!(met(&results), [true, false, true, false, true]);

        let row = Row::AtOnceMany;
        let cell = Cell { row, pending: 0, workers: 1, system: COREWHEEL, timeouts: 1 };
        results.push(cell, &format!("{}refused", quantity::COUNTER), 0.001);
        assert_eq!(met(&results), [true, false, true, false, false]);
    }

    #[test]
    fn gross_rows_have_limits_of_their_own() {
        let mut results = Results::default();
        for (row, nanos) in [
            (Row::Lives, 101.0),
            (Row::Old, 105.0),
            (Row::Moved, 106.0),
            (Row::FiredFew, 130.0),
            (Row::FiredMany, 131.0),
            (Row::Slept, 150.0),
        ] {
            push(&mut results, row, 2, TOKIO, 100.0);
            push(&mut results, row, 2, COREWHEEL, nanos);
        }
        for (row, nanos) in [(Row::FiredFew, 115.0), (Row::FiredMany, 116.0), (Row::Slept, 121.0)] {
            push(&mut results, row, 1, TOKIO, 100.0);
            push(&mut results, row, 1, COREWHEEL, nanos);
        }
        // Each row has one worker first. The last target is that none was refused.
        let fired_and_slept = [true, true, false, false, false, true];
        assert_eq!(met(&results), [&[false, true, false], &fired_and_slept[..], &[true]].concat());
    }

    #[test]
    fn bytes_of_a_pending_timeout_are_limited() {
        for (bytes, is_met) in [(112.0, true), (112.5, false)] {
            let mut results = Results::default();
            let cell =
                Cell { row: Row::Memory, pending: 9, workers: 2, system: COREWHEEL, timeouts: 1 };
            results.push(cell, quantity::RESIDENT, bytes);
            assert_eq!(met(&results), [is_met]);
        }
    }

    #[test]
    fn target_without_figures_of_tokio_is_left_out() {
        let mut results = Results::default();
        push(&mut results, Row::AtOnceMany, 2, COREWHEEL, 100.0);
        let verdicts = verdicts(&results);
        let targets: Vec<_> = verdicts.iter().map(|verdict| &*verdict.target).collect();
        assert_eq!(targets, ["refused timers for each timeout, the most of all rounds <= 0"]);
    }
}

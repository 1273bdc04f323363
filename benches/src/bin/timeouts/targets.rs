//! The targets for timeouts that are armed and cancelled, as ratios of medians of a run.

use corewheel_bench::verdict::Verdict;
use corewheel_timeouts::{Row, System, quantity};

use crate::results::Results;

/// All targets that the results of a run can decide.
pub(crate) fn verdicts(results: &Results) -> Vec<Verdict> {
    let median = |place, system| results.median(place, quantity::PROCESSOR, system);
    let mut verdicts = Vec::new();
    for place in results.places(quantity::PROCESSOR) {
        let (row, pending, workers) = place;
        if !matches!(row, Row::CancelledFew | Row::CancelledMany) {
            continue;
        }
        let (of, to, limit) = match workers {
            1 => ("tokio", median(place, System::Tokio), 0.75),
            2 => ("tokio", median(place, System::Tokio), 0.2),
            4 | 8 => ("with 2 workers", median((row, pending, 2), System::Corewheel), 1.5),
            _ => continue,
        };
        let (Some(ours), Some(to)) = (median(place, System::Corewheel), to) else { continue };
        let target = format!(
            "{}, {pending} others pending, {workers} workers: corewheel / {of}",
            row.name()
        );
        verdicts.push(Verdict::at_most(&target, ours / to, limit));
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

    fn results(medians: &[(usize, System, f64)]) -> Results {
        let mut results = Results::default();
        for (workers, system, nanos) in medians.iter().copied() {
            let (row, pending, timeouts) = (Row::CancelledMany, 0, 1);
            let cell = Cell { row, pending, workers, system, timeouts };
            results.push(cell, quantity::PROCESSOR, nanos);
        }
        results
    }

    #[test]
    fn targets_are_checked_against_tokio_and_against_two_workers() {
        let (tokio, corewheel) = (System::Tokio, System::Corewheel);
        let mut results = results(&[
            (1, tokio, 100.0),
            (1, corewheel, 75.0),
            (2, tokio, 400.0),
            (2, corewheel, 100.0),
            (4, corewheel, 150.0),
            (8, corewheel, 151.0),
        ]);
        let met = |results: &Results| -> Vec<bool> {
            verdicts(results).into_iter().map(|verdict| verdict.met).collect()
        };
        assert_eq!(met(&results), [true, false, true, false, true]);

        let row = Row::CancelledMany;
        let cell = Cell { row, pending: 0, workers: 1, system: corewheel, timeouts: 1 };
        results.push(cell, &format!("{}refused", quantity::COUNTER), 0.001);
        assert_eq!(met(&results), [true, false, true, false, false]);
    }

    #[test]
    fn target_without_figures_of_tokio_is_left_out() {
        let verdicts = verdicts(&results(&[(2, System::Corewheel, 100.0)]));
        let targets: Vec<_> = verdicts.iter().map(|verdict| &*verdict.target).collect();
        assert_eq!(targets, ["refused timers for each timeout, the most of all rounds <= 0"]);
    }
}

//! The performance targets of the project: which of those in `targets.txt` the figures of a run
//! meet.

use crate::report::{Figure, Report, Verdict};

/// All targets that the figures decide.
///
/// # Panics
///
/// A line of `targets.txt` is no target.
pub fn verdicts(report: &Report) -> Vec<Verdict> {
    let lines = include_str!("targets.txt").lines();
    let targets = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    targets.flat_map(|line| judged(report, line)).collect()
}

/// The verdicts of one line.
fn judged(report: &Report, line: &str) -> Vec<Verdict> {
    let fields: Vec<_> = line.split(';').map(str::trim).collect();
    let [table, row, count, what, limit] = fields[..] else { panic!("{line}: no target") };
    let (word, most) = limit.split_once(' ').expect("a limit has a direction");
    let most: f64 = most.parse().expect("a limit is a number");
    let (of, to) = [" / ", " - "]
        .into_iter()
        .find_map(|sign| what.split_once(sign))
        .map_or((what, None), |(of, to)| (of, Some(to)));
    let counts = |figure: &Figure| match count.strip_prefix('>') {
        _ if count == "*" => true,
        Some(least) => figure.count > least.parse().expect("a count is a number"),
        None => count.parse() == Ok(figure.count),
    };
    let contender = of.trim_start_matches("max ");
    let figures = report.find((table, row), contender).filter(|figure| counts(figure));
    let verdict = |figure: &Figure| {
        let [_, median, greatest] = figure.range()?;
        let of = if contender == of { median } else { greatest };
        let other = match to.map(|to| (to, to.strip_prefix('@'))) {
            None => None,
            Some((_, Some(count))) => {
                let count = count.parse().expect("a count is a number");
                Some(report.beside(&Figure { count, ..figure.clone() }, contender)?)
            }
            Some((to, None)) => Some(report.beside(figure, to)?),
        };
        let measured = match other.map(Figure::range) {
            None => of,
            Some(other) if what.contains(" / ") => of / other?[1],
            Some(other) => of - other?[1],
        };
        let Figure { table, row, count, .. } = figure;
        let target = format!("{table}: {row}, {count}: {what} {limit}").replace(", 0:", ":");
        let met = if word == ">=" { measured >= most } else { measured <= most };
        Some(Verdict { target, measured, met })
    };
    figures.filter_map(verdict).collect()
}

#[cfg(test)]
mod tests {
    use super::{judged, verdicts};
    use crate::report::Report;

    fn report() -> Report {
        let mut report = Report::default();
        for (count, contender, value) in [
            (1, "tokio", 100.0),
            (1, "ours", 75.0),
            (2, "tokio", 400.0),
            (2, "ours", 100.0),
            (4, "ours", 151.0),
            (4, "ours", 150.0),
            (4, "ours", 150.0),
        ] {
            report.push("timeouts, ns", "at once", count, contender, value);
        }
        report
    }

    #[test]
    fn targets_are_judged_by_ratio_difference_count_and_greatest_round() {
        for (line, expected) in [
            ("timeouts ; at once ; * ; ours / tokio ; <= 0.75", vec![true, true]),
            ("timeouts ; at once ; * ; ours / tokio ; <= 0.5", vec![false, true]),
            ("timeouts ; at once ; 1 ; ours - tokio ; <= -25", vec![true]),
            ("timeouts ; at once ; >2 ; ours / @2 ; <= 1.5", vec![true]),
            ("timeouts ; at once ; >2 ; max ours / @2 ; <= 1.5", vec![false]),
            ("timeouts ; at once ; 1 ; tokio / ours ; >= 1.4", vec![false]),
            ("timeouts ; short ; * ; ours / tokio ; <= 0.75", vec![]),
            ("timeouts ; at once ; 4 ; ours / tokio ; <= 0.75", vec![]),
        ] {
            let met: Vec<_> = judged(&report(), line).into_iter().map(|it| it.met).collect();
            assert_eq!(met, expected, "{line}");
        }
    }

    #[test]
    fn each_line_of_the_file_is_a_target() {
        assert!(verdicts(&report()).is_empty());
        let lines = include_str!("targets.txt").lines();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let mut report = Report::default();
            let [table, row, count, what, _] =
                line.split(';').map(str::trim).collect::<Vec<_>>()[..]
            else {
                panic!("{line}")
            };
            let count = count.trim_start_matches('>').parse().unwrap_or(7) + 1;
            for contender in what.split(" / ").flat_map(|part| part.split(" - ")) {
                let contender = contender.trim_start_matches("max ");
                report.push(table, row, count, contender, 1.0);
                report.push(table, row, count - 1, contender, 1.0);
            }
            if let Some((of, at)) = what.split_once(" / @") {
                report.push(table, row, at.parse().unwrap(), of, 1.0);
            }
            assert!(!judged(&report, line).is_empty(), "{line}");
        }
    }
}

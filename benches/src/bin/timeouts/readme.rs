//! The table and the plot of the README: a part of the results.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::path::Path;

use corewheel_bench::figure::Figure;
use corewheel_bench::plot;
use corewheel_timeouts::{Row, System, quantity};

use crate::results::{Place, Results};
use crate::table::all_without;

/// The lines with processor times: what a timeout is, and the row that measures it.
const SPENT: [(&str, Row); 9] = [
    ("30 s, ends at the second poll", Row::AtOnceMany),
    ("5 ms, ends at the second poll", Row::Short),
    ("30 s, reset at each poll", Row::Reset),
    ("30 s, ends after 5 ms, gross", Row::Lives),
    ("100 ms, ends after 40 ms, gross", Row::Old),
    ("30 s, ends on another thread, gross", Row::Moved),
    ("5 to 24 ms, fires, 70 in each ms, gross", Row::FiredFew),
    ("5 to 24 ms, fires, 700 in each ms, gross", Row::FiredMany),
    ("5 to 24 ms, a sleep, 700 in each ms, gross", Row::Slept),
];

/// Writes the table. A figure that was not measured is a dash.
pub(crate) fn write_markdown(text: &mut String, results: &Results) -> fmt::Result {
    write!(text, "| a timeout | others pending | workers | no timeout |")?;
    System::ALL.iter().try_for_each(|system| write!(text, " {} |", system.name()))?;
    writeln!(text, "\n|---|--:|--:|--:|{}", "--:|".repeat(System::ALL.len()))?;
    for (what, row) in SPENT {
        let places = results.places(quantity::PROCESSOR).into_iter();
        for place in places.filter(|(known, ..)| *known == row) {
            let without = all_without(results, place, quantity::PROCESSOR_WITHOUT);
            let without = without.filter(|_| row.is_gross()).map(|(median, _)| nanos(median));
            line(text, what, place, without, |system| {
                Some(nanos(results.median(place, quantity::PROCESSOR, system)?))
            })?;
        }
    }
    let lateness = results.places(quantity::LATE_P50).into_iter();
    for place in lateness.filter(|(row, _, workers)| (*row, *workers) == (Row::FiredFew, 2)) {
        line(text, "its lateness, p50 / p99, ms", place, None, |system| {
            let p50 = results.median(place, quantity::LATE_P50, system)? / 1e3;
            let p99 = results.median(place, quantity::LATE_P99, system)? / 1e3;
            Some(format!("{p50:.1} / {p99:.1}"))
        })?;
    }
    for place in results.places(quantity::ARM[2]) {
        let [.., p999, greatest] = quantity::ARM_WITHOUT;
        let without = all_without(results, place, p999).zip(all_without(results, place, greatest));
        let without = without.map(|((p999, _), (greatest, _))| micros(p999, greatest));
        line(
            text,
            "its arming beside busy threads, p99.9 / greatest, µs",
            place,
            without,
            |system| {
                let [.., p999, greatest] =
                    quantity::ARM.map(|name| results.median(place, name, system));
                Some(micros(p999?, greatest?))
            },
        )?;
    }
    for place in results.places(quantity::RESIDENT) {
        line(
            text,
            "its bytes while pending, those in its future included",
            place,
            None,
            |system| Some(nanos(results.median(place, quantity::RESIDENT, system)?)),
        )?;
    }
    Ok(())
}

/// Draws the processor time of a timeout that ends young over the number of workers.
pub(crate) fn draw(path: &Path, results: &Results) -> Result<(), Box<dyn Error>> {
    let places = || results.places(quantity::PROCESSOR).into_iter();
    let mut figures = Vec::new();
    for system in System::ALL.into_iter().rev() {
        for place @ (row, pending, workers) in places() {
            if (row, pending) != (Row::AtOnceMany, 0) {
                continue;
            }
            let title = "A timeout of 30 s that ends at its second poll: net processor time";
            let mut figure = Figure::new(title, workers, system.name(), "ns");
            if let Some(median) = results.median(place, quantity::PROCESSOR, system) {
                figure.push(median);
                figures.push(figure);
            }
        }
    }
    plot::draw(path, "worker threads", &figures.iter().collect::<Vec<_>>())
}

fn line(
    text: &mut String,
    what: &str,
    (_, pending, workers): Place,
    without: Option<String>,
    of_system: impl Fn(System) -> Option<String>,
) -> fmt::Result {
    let shown = |figure: Option<String>| figure.unwrap_or_else(|| "–".to_owned());
    let pending = with_commas(&pending.to_string());
    write!(text, "| {what} | {pending} | {workers} | {} |", shown(without))?;
    let mut systems = System::ALL.into_iter();
    systems.try_for_each(|system| write!(text, " {} |", shown(of_system(system))))?;
    writeln!(text)
}

fn nanos(figure: f64) -> String {
    with_commas(&format!("{figure:.0}"))
}

fn micros(p999: f64, greatest: f64) -> String {
    format!("{p999:.1} / {}", nanos(greatest))
}

/// The number with a comma between thousands.
fn with_commas(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        let follows_a_digit = text.ends_with(|last: char| last.is_ascii_digit());
        if follows_a_digit && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use corewheel_timeouts::{Cell, Row, System, quantity};

    use super::{with_commas, write_markdown};
    use crate::results::Results;

    #[test]
    fn numbers_have_a_comma_between_thousands() {
        for text in ["0", "999", "1,000", "12,345,678"] {
            assert_eq!(with_commas(&text.replace(',', "")), text);
        }
    }

    #[test]
    fn line_of_a_row_shows_medians_and_a_dash_for_what_was_not_measured() {
        let mut results = Results::default();
        for (quantity, values) in [
            (quantity::PROCESSOR, [1_540.0, 1_249.6, 900.0]),
            (quantity::PROCESSOR_WITHOUT, [500.0, 515.0, 520.0]),
        ] {
            for value in values {
                let system = System::Corewheel;
                let cell = Cell { row: Row::Old, pending: 0, workers: 2, system, timeouts: 1 };
                results.push(cell, quantity, value);
            }
        }
        let mut text = String::new();
        write_markdown(&mut text, &results).expect("a string takes everything");
        let last = text.lines().last();
        let expected = "| 100 ms, ends after 40 ms, gross | 0 | 2 | 515 | – | – | – | 1,250 |";
        assert_eq!(last, Some(expected));
    }
}

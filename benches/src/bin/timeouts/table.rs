//! The results as Markdown: a table for each quantity.

use std::fmt::{self, Write as _};

use corewheel_bench::figure::Values;
use corewheel_timeouts::{System, quantity};

use crate::results::{Place, Results};

/// A column of a table: its title, and its text in each row.
type Column<'a> = (&'a str, Box<dyn Fn(Place) -> Option<String> + 'a>);

/// Writes all tables.
pub(crate) fn write_markdown(text: &mut String, results: &Results) -> fmt::Result {
    let mut columns = vec![without(results)];
    columns.extend(each_system(results, quantity::PROCESSOR));
    let title = "processor time a timeout, all threads, ns";
    write(text, title, &results.places(quantity::PROCESSOR), &columns)?;

    let columns: Vec<_> = System::ALL.map(|system| lateness(results, system)).into();
    let title = "lateness at the task, p50 / p99 (least), µs";
    write(text, title, &results.places(quantity::LATE_P50), &columns)?;

    let mut columns = vec![time_without(results)];
    columns.extend(System::ALL.map(|system| time_to_arm(results, system)));
    let title = "p50 / p99 / p99.9 / greatest, µs";
    write(text, title, &results.places(quantity::ARM[0]), &columns)?;

    let columns: Vec<_> = System::ALL.map(|system| bytes(results, system)).into();
    let title = "bytes a timeout: in its future + beside it = allocated (resident)";
    write(text, title, &results.places(quantity::ALLOCATED), &columns)?;

    counters(text, results)
}

/// A column for each system, with one quantity.
fn each_system<'a>(results: &'a Results, quantity: &'a str) -> Vec<Column<'a>> {
    let column = |system: System| -> Column<'a> {
        let show = move |place| Some(cell(results.find(place, quantity, system)?));
        (system.name(), Box::new(show))
    };
    System::ALL.map(column).into()
}

fn cell(values: &Values) -> String {
    format!("{:.0} ({:.0})", values.median(), values.min())
}

/// A column with what the processes of all systems measured without timeouts.
fn without(results: &Results) -> Column<'_> {
    let show = |place| {
        let (median, least) = all_without(results, place, quantity::PROCESSOR_WITHOUT)?;
        Some(format!("{median:.0} ({least:.0})"))
    };
    ("no timeout", Box::new(show))
}

/// The median and the least of what the processes of all systems measured without timeouts.
pub(crate) fn all_without(results: &Results, place: Place, quantity: &str) -> Option<(f64, f64)> {
    let of_system = |system| results.find(place, quantity, system);
    let measured: Vec<_> = System::ALL.into_iter().filter_map(of_system).collect();
    let mut medians = Values::default();
    for values in &measured {
        medians.push(values.median());
    }
    let least = measured.iter().map(|values| values.min()).min_by(f64::total_cmp)?;
    Some((medians.median(), least))
}

/// A column with the times that the processes of all systems measured without timeouts.
fn time_without(results: &Results) -> Column<'_> {
    let show = |place| {
        let medians = quantity::ARM_WITHOUT.map(|name| all_without(results, place, name));
        let [p50, p99, p999, max] = medians;
        Some(times([p50?.0, p99?.0, p999?.0, max?.0]))
    };
    ("no timeout", Box::new(show))
}

fn time_to_arm(results: &Results, system: System) -> Column<'_> {
    let show = move |place| {
        let [p50, p99, p999, max] = quantity::ARM.map(|name| results.median(place, name, system));
        Some(times([p50?, p99?, p999?, max?]))
    };
    (system.name(), Box::new(show))
}

fn times([p50, p99, p999, max]: [f64; 4]) -> String {
    format!("{p50:.2} / {p99:.2} / {p999:.1} / {max:.0}")
}

/// What a pending timeout takes.
fn bytes(results: &Results, system: System) -> Column<'_> {
    let show = move |place| {
        let allocated = results.median(place, quantity::ALLOCATED, system)?;
        let in_future = results.median(place, quantity::IN_FUTURE, system)?;
        let resident = results.median(place, quantity::RESIDENT, system)?;
        let beside = allocated - in_future;
        Some(format!("{in_future:.0} + {beside:.0} = {allocated:.0} ({resident:.0})"))
    };
    (system.name(), Box::new(show))
}

fn lateness(results: &Results, system: System) -> Column<'_> {
    let show = move |place| {
        let p50 = results.median(place, quantity::LATE_P50, system)?;
        let p99 = results.median(place, quantity::LATE_P99, system)?;
        let least = results.find(place, quantity::LATE_MIN, system)?.min();
        Some(format!("{p50:.0} / {p99:.0} ({least:.0})"))
    };
    (system.name(), Box::new(show))
}

/// The counters of corewheel's service for each timeout: those that have grown.
fn counters(text: &mut String, results: &Results) -> fmt::Result {
    let names = results.quantities(quantity::COUNTER);
    let columns: Vec<Column<'_>> = names
        .iter()
        .map(|name| -> Column<'_> {
            let show = |place| {
                let grown = results.median(place, name, System::Corewheel)?;
                Some(format!("{grown:.4}"))
            };
            (&name[quantity::COUNTER.len()..], Box::new(show))
        })
        .collect();
    let mut places: Vec<_> = names.iter().flat_map(|name| results.places(name)).collect();
    places.sort_unstable();
    places.dedup();
    write(text, "counters of corewheel's service, for each timeout", &places, &columns)
}

/// A table with a line for each place; nothing if there is no place.
fn write(text: &mut String, title: &str, places: &[Place], columns: &[Column<'_>]) -> fmt::Result {
    if places.is_empty() {
        return Ok(());
    }
    write!(text, "\n| {title} | others pending | workers |")?;
    columns.iter().try_for_each(|(title, _)| write!(text, " {title} |"))?;
    writeln!(text, "\n|---|--:|--:|{}", "--:|".repeat(columns.len()))?;
    for (row, pending, workers) in places {
        write!(text, "| {} | {pending} | {workers} |", row.name())?;
        for (_, show) in columns {
            let shown = show((*row, *pending, *workers));
            write!(text, " {} |", shown.as_deref().unwrap_or("–"))?;
        }
        writeln!(text)?;
    }
    Ok(())
}

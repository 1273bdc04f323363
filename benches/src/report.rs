//! What a run has found: the values of each round, as tables, as JSON, as plots and beside targets.
//!
//! A table has a line for each row and count, and a column for each contender. A cell is the median
//! of the rounds with the least and the greatest, and in tables of times, rates and bytes also its
//! ratio to the first contender.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::plot;

/// The values of a contender, one for each round in which it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// What is measured, with its unit.
    pub table: String,
    /// What the contender does.
    pub row: String,
    /// How many timers, connections or threads there are; 0 if the row counts nothing.
    #[serde(default)]
    pub count: usize,
    /// The name of the contender.
    pub contender: String,
    /// In the order of the rounds.
    #[serde(default)]
    pub values: Vec<f64>,
    /// What is shown where the figure is no number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

impl Figure {
    /// The least value, the median and the greatest; `None` without a value.
    pub fn range(&self) -> Option<[f64; 3]> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        Some([*sorted.first()?, sorted[sorted.len() / 2], *sorted.last()?])
    }

    fn is_at(&self, other: &Self) -> bool {
        self.table == other.table && self.row == other.row && self.count == other.count
    }

    /// The cell of a table, beside the median of the first contender.
    fn cell(&self, first: Option<f64>) -> String {
        let Some([least, median, greatest]) = self.range() else {
            return self.text.clone().unwrap_or_else(|| "–".to_owned());
        };
        let mut cell = number(median);
        if self.values.len() > 1 {
            let _ = write!(cell, " ({}–{})", number(least), number(greatest));
        }
        if let Some(first) = first.filter(|first| *first > 0.0 && median >= 0.0) {
            let _ = write!(cell, " {:.2}×", median / first);
        }
        cell
    }
}

/// A target, and whether it was met.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The target.
    pub target: String,
    /// The measured value.
    pub measured: f64,
    /// Whether it was met.
    pub met: bool,
}

/// A contender in a row, which can be measured repeatedly.
pub struct Entrant {
    contender: String,
    round: Box<dyn FnMut() -> Vec<Measured>>,
}

/// A value with the title of its table, and its row in it: `{}` stands for the row of the entrants.
pub type Measured = ((String, String), f64);

impl Entrant {
    /// An entrant whose rounds call `round`, which returns the value.
    pub fn new(contender: &str, mut round: impl FnMut() -> f64 + 'static) -> Self {
        let place = (String::new(), "{}".to_owned());
        Self::with_tables(contender, move || vec![(place.clone(), round())])
    }

    /// An entrant whose rounds return several values.
    pub fn with_tables(contender: &str, round: impl FnMut() -> Vec<Measured> + 'static) -> Self {
        Self { contender: contender.to_owned(), round: Box::new(round) }
    }
}

/// Measures the entrants of a row in turns, so that other load on the machine affects all of them,
/// and each of them is the first as often as the others.
pub fn interleave(
    rounds: usize,
    (table, row, count): (&str, &str, usize),
    mut entrants: Vec<Entrant>,
) -> Report {
    let mut report = Report::default();
    let all = entrants.len();
    for round in 0..rounds {
        for turn in 0..all {
            let Entrant { contender, round } = &mut entrants[(round + turn) % all];
            for ((known, within), value) in round() {
                let table = if known.is_empty() { table } else { &known };
                report.push(table, &within.replace("{}", row), count, contender, value);
            }
        }
    }
    report
}

/// What a run has found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// What was measured, how, and on which machine.
    #[serde(default)]
    pub text: String,
    /// What is said before a table.
    #[serde(default)]
    pub notes: BTreeMap<String, String>,
    /// The figures, in the order in which they are shown.
    pub figures: Vec<Figure>,
    /// The targets that the figures decide.
    #[serde(default)]
    pub targets: Vec<Verdict>,
}

impl Report {
    /// Adds a round's value.
    pub fn push(&mut self, table: &str, row: &str, count: usize, contender: &str, value: f64) {
        let (table, row, contender) = (table.to_owned(), row.to_owned(), contender.to_owned());
        self.add(Figure { table, row, count, contender, values: vec![value], text: None });
    }

    /// Adds the rounds of a figure.
    pub fn add(&mut self, figure: Figure) {
        let same =
            |other: &&mut Figure| other.is_at(&figure) && other.contender == figure.contender;
        match self.figures.iter_mut().find(same) {
            Some(known) => known.values.extend(figure.values),
            None => self.figures.push(figure),
        }
    }

    /// Adds all figures of another report.
    pub fn append(&mut self, other: Self) {
        other.figures.into_iter().for_each(|figure| self.add(figure));
        self.notes.extend(other.notes);
    }

    /// The figures of a contender in the tables and rows whose names begin so.
    pub fn find<'a>(
        &'a self,
        (table, row): (&'a str, &'a str),
        contender: &'a str,
    ) -> impl Iterator<Item = &'a Figure> {
        self.figures.iter().filter(move |figure| {
            figure.table.starts_with(table)
                && figure.row.starts_with(row)
                && figure.contender == contender
        })
    }

    /// The figure of another contender at the place of this one.
    pub fn beside<'a>(&'a self, figure: &Figure, contender: &str) -> Option<&'a Figure> {
        self.figures.iter().find(|other| other.is_at(figure) && other.contender == contender)
    }

    /// Everything as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = self.text.clone();
        for table in distinct(self.figures.iter().map(|figure| &figure.table)) {
            if let Some(note) = self.notes.get(table) {
                let _ = write!(text, "\n{note}\n");
            }
            text += &self.table(table);
        }
        if !self.targets.is_empty() {
            let line = |Verdict { target, measured, met }: &Verdict| {
                let met = if *met { "met" } else { "missed" };
                vec![target.clone(), number(*measured), met.to_owned()]
            };
            let head = ["target", "measured", ""].map(str::to_owned).to_vec();
            text += &aligned(&[vec![head], self.targets.iter().map(line).collect()].concat());
        }
        text
    }

    fn table(&self, table: &str) -> String {
        let of_table: Vec<_> = self.figures.iter().filter(|it| it.table == table).collect();
        let contenders = distinct(of_table.iter().map(|figure| &figure.contender));
        let counts = of_table.iter().any(|figure| figure.count > 0);
        let has_ratios =
            [" ns", " µs", "second", " kB", " one"].iter().any(|it| table.ends_with(it));
        let head = [table].into_iter().chain(counts.then_some("count"));
        let head = head.chain(contenders.iter().map(|name| name.as_str())).map(str::to_owned);
        let mut lines = vec![head.collect::<Vec<_>>()];
        let mut places: Vec<&Figure> = Vec::new();
        for figure in of_table {
            if !places.iter().any(|known| known.is_at(figure)) {
                places.push(figure);
            }
        }
        for place in places {
            let mut line = vec![place.row.clone()];
            line.extend(counts.then(|| grouped(place.count as f64, 0)));
            let first = self.beside(place, contenders[0]).and_then(Figure::range);
            for (at, contender) in contenders.iter().enumerate() {
                let first = first.filter(|_| at > 0 && has_ratios);
                let first = first.map(|[_, median, _]| median);
                let cell = self.beside(place, contender).map(|figure| figure.cell(first));
                line.push(cell.unwrap_or_else(|| "–".to_owned()));
            }
            lines.push(line);
        }
        aligned(&lines)
    }

    /// Writes `NAME.md`, `NAME.json` and a plot of each row with several counts into a folder.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn write(&self, folder: &Path, name: &str) -> Result<(), Box<dyn Error>> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join(format!("{name}.md")), self.markdown().trim_start())?;
        let all = serde_json::to_string(self)?.replace("},{", "},\n{").replace("[{", "[\n{");
        fs::write(folder.join(format!("{name}.json")), all + "\n")?;
        for (table, row) in distinct(self.figures.iter().map(|it| (&it.table, &it.row))) {
            let same = |figure: &&Figure| figure.table == *table && figure.row == *row;
            let of_row: Vec<_> = self.figures.iter().filter(same).collect();
            if of_row.iter().any(|figure| figure.count != of_row[0].count) {
                let letters = row.chars().map(|c| if c.is_alphanumeric() { c } else { '-' });
                plot::draw(&folder.join(letters.collect::<String>() + ".svg"), &of_row)?;
            }
        }
        Ok(())
    }
}

/// The values without repetitions.
pub fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut distinct = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// Markdown whose columns are wide enough to be read as they are.
fn aligned(lines: &[Vec<String>]) -> String {
    let columns = lines[0].len();
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(|at| width(at).max(3)).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        text += "\n|";
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(text, " {cell:width$} |");
        }
        if number == 0 {
            text += "\n|";
            for width in &widths {
                text.extend(["-".repeat(width + 2).as_str(), "|"]);
            }
        }
    }
    text + "\n"
}

/// A number with some three digits.
pub fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.01 => 2,
        size if size >= 0.001 => 4,
        _ => 7,
    };
    grouped(value, decimals)
}

/// A number with a comma after each third digit from the right.
fn grouped(value: f64, decimals: usize) -> String {
    let digits = format!("{value:.decimals$}");
    let whole = digits.split('.').next().unwrap_or_default();
    let sign = usize::from(whole.starts_with('-'));
    let mut text = String::new();
    for (at, digit) in digits.char_indices() {
        if at > sign && at < whole.len() && (whole.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Entrant, Report, interleave, number};

    #[test]
    fn table_has_a_line_for_each_row_and_ratios_to_the_first_contender() {
        let mut report = Report::default();
        for (row, contender, value) in
            [("arm", "ours", 20.0), ("arm", "theirs", 30.0), ("arm", "ours", 10.0)]
        {
            report.push("wheel, ns", row, 1_000, contender, value);
        }
        report.push("wheel, ns", "fire", 1, "theirs", 5.0);
        let lines: Vec<_> = report.markdown().lines().map(str::to_owned).collect();
        assert_eq!(lines[1], "| wheel, ns | count | ours       | theirs   |");
        assert_eq!(lines[3], "| arm       | 1,000 | 20 (10–20) | 30 1.50× |");
        assert_eq!(lines[4], "| fire      | 1     | –          | 5        |");
    }

    #[test]
    fn each_entrant_is_first_as_often_as_the_others() {
        use std::cell::RefCell;
        use std::rc::Rc;
        let order: Rc<RefCell<Vec<&str>>> = Rc::default();
        let entrant = |name: &'static str| {
            let order = Rc::clone(&order);
            Entrant::new(name, move || {
                order.borrow_mut().push(name);
                1.0
            })
        };
        let report = interleave(2, ("t", "r", 0), vec![entrant("a"), entrant("b")]);
        assert_eq!(*order.borrow(), ["a", "b", "b", "a"]);
        assert_eq!(report.figures.len(), 2);
    }

    #[test]
    fn report_written_as_json_is_read_again() {
        let mut report = Report::default();
        report.push("t", "r", 2, "c", 1.5);
        let text = serde_json::to_string(&report).expect("it is data");
        let again: Report = serde_json::from_str(&text).expect("it was written by itself");
        assert_eq!(again.markdown(), report.markdown());
    }

    #[test]
    fn numbers_have_some_three_digits() {
        for (value, text) in
            [(1_234_567.8, "1,234,568"), (99.95, "100.0"), (0.5, "0.50"), (-1_000.0, "-1,000")]
        {
            assert_eq!(number(value), text);
        }
    }
}

//! The values that were measured for a contender in a row of the table, one for each round.

use serde_json::{Value, json};

/// The values of some rounds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Values {
    /// In ascending order.
    sorted: Vec<f64>,
}

impl Values {
    /// Adds a round's value.
    pub fn push(&mut self, value: f64) {
        let at = self.sorted.partition_point(|other| *other <= value);
        self.sorted.insert(at, value);
    }

    /// The smallest value.
    ///
    /// # Panics
    ///
    /// If there is none; so do [`median`](Self::median) and [`max`](Self::max).
    pub fn min(&self) -> f64 {
        self.sorted[0]
    }

    /// The median of the values.
    pub fn median(&self) -> f64 {
        self.sorted[self.sorted.len() / 2]
    }

    /// The largest value.
    pub fn max(&self) -> f64 {
        self.sorted[self.sorted.len() - 1]
    }

    /// The values, with names that say where they were measured.
    pub fn to_json(&self, place: &[(&str, Value)]) -> Value {
        let mut entry = json!({
            "median": self.median(), "min": self.min(), "max": self.max(), "rounds": self.sorted,
        });
        for (name, value) in place {
            entry[name] = value.clone();
        }
        entry
    }
}

/// The values of a contender in each round of a row.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The row of the table.
    pub row: String,
    /// How many timers were pending, or how many of another thing that the row counts.
    pub count: usize,
    /// The name of the contender.
    pub contender: &'static str,
    /// The unit: `ns`, `bytes`, `M/s`.
    pub unit: &'static str,
    /// A value for each round.
    pub values: Values,
}

impl Figure {
    /// A figure without values.
    pub fn new(row: &str, count: usize, contender: &'static str, unit: &'static str) -> Self {
        Self { row: row.to_owned(), count, contender, unit, values: Values::default() }
    }

    /// Adds a round's value.
    pub fn push(&mut self, value: f64) {
        self.values.push(value);
    }

    /// The median of the values.
    pub fn median(&self) -> f64 {
        self.values.median()
    }
}

/// A contender in a row, which can be measured repeatedly.
pub struct Entrant {
    figure: Figure,
    round: Box<dyn FnMut() -> f64>,
}

impl std::fmt::Debug for Entrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.figure.fmt(f)
    }
}

impl Entrant {
    /// An entrant whose rounds call `round`, which returns the value.
    pub fn new(figure: Figure, round: impl FnMut() -> f64 + 'static) -> Self {
        Self { figure, round: Box::new(round) }
    }

    /// Converts the value of each round.
    #[must_use]
    pub fn map(self, into: impl Fn(f64) -> f64 + 'static) -> Self {
        let Self { figure, mut round } = self;
        Self { figure, round: Box::new(move || into(round())) }
    }

    /// The name of the contender.
    pub fn name(&self) -> &'static str {
        self.figure.contender
    }

    /// How many timers the entrant holds, or how many of another thing that its row counts.
    pub fn count(&self) -> usize {
        self.figure.count
    }

    /// Runs a round and returns its value.
    pub fn round(&mut self) -> f64 {
        (self.round)()
    }
}

/// Measures the entrants of a row in turns, so that other load on the machine affects all of them.
pub fn interleave(rounds: usize, mut entrants: Vec<Entrant>) -> Vec<Figure> {
    for _ in 0..rounds {
        for Entrant { figure, round } in &mut entrants {
            figure.push(round());
        }
    }
    entrants.into_iter().map(|entrant| entrant.figure).collect()
}

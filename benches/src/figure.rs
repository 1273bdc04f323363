//! What was measured: one contender in one row of the table, round by round.

/// What one contender took in each round.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The row of the table.
    pub row: String,
    /// How many timers were pending, or of whatever else the row is about.
    pub count: usize,
    /// Who was measured.
    pub contender: &'static str,
    /// In what: `ns`, `bytes`, `M/s`.
    pub unit: &'static str,
    /// A value for each round, from the least.
    values: Vec<f64>,
}

impl Figure {
    /// One without a value.
    pub fn new(row: &str, count: usize, contender: &'static str, unit: &'static str) -> Self {
        Self { row: row.to_owned(), count, contender, unit, values: Vec::new() }
    }

    /// Adds a round's value.
    pub fn push(&mut self, value: f64) {
        let at = self.values.partition_point(|other| *other <= value);
        self.values.insert(at, value);
    }

    /// The least of its values.
    pub fn min(&self) -> f64 {
        self.values[0]
    }

    /// The one in the middle.
    pub fn median(&self) -> f64 {
        self.values[self.values.len() / 2]
    }

    /// The greatest of its values.
    pub fn max(&self) -> f64 {
        self.values[self.values.len() - 1]
    }

    /// All of them, from the least.
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}

/// Someone who can be measured again and again.
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
    /// With a round that returns its value.
    pub fn new(figure: Figure, round: impl FnMut() -> f64 + 'static) -> Self {
        Self { figure, round: Box::new(round) }
    }

    /// The same, its values made into others.
    #[must_use]
    pub fn map(self, into: impl Fn(f64) -> f64 + 'static) -> Self {
        let Self { figure, mut round } = self;
        Self { figure, round: Box::new(move || into(round())) }
    }

    /// Who it is.
    pub fn name(&self) -> &'static str {
        self.figure.contender
    }

    /// How many timers it holds, or whatever else its row counts.
    pub fn count(&self) -> usize {
        self.figure.count
    }

    /// One round's value.
    pub fn round(&mut self) -> f64 {
        (self.round)()
    }
}

/// The entrants of a row take turns, so that whatever else the machine does hits all of them.
pub fn interleave(rounds: usize, mut entrants: Vec<Entrant>) -> Vec<Figure> {
    for _ in 0..rounds {
        for Entrant { figure, round } in &mut entrants {
            figure.push(round());
        }
    }
    entrants.into_iter().map(|entrant| entrant.figure).collect()
}

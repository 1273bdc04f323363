//! The values of all rounds, by cell and quantity.

use std::collections::BTreeMap;

use corewheel_bench::figure::Values;
use corewheel_timeouts::{Cell, Row, System};
use serde_json::{Value, json};

/// A row of the table, how many others are pending, and how many workers the runtime has.
pub(crate) type Place = (Row, usize, usize);

/// The values of all rounds.
#[derive(Debug, Default)]
pub(crate) struct Results(BTreeMap<(Place, String, System), Values>);

impl Results {
    /// Adds a value of a round.
    pub(crate) fn push(&mut self, cell: Cell, quantity: &str, value: f64) {
        let place = (cell.row, cell.pending, cell.workers);
        self.0.entry((place, quantity.to_owned(), cell.system)).or_default().push(value);
    }

    /// The values of a system.
    pub(crate) fn find(&self, place: Place, quantity: &str, system: System) -> Option<&Values> {
        self.0.get(&(place, quantity.to_owned(), system))
    }

    /// The median of a system.
    pub(crate) fn median(&self, place: Place, quantity: &str, system: System) -> Option<f64> {
        self.find(place, quantity, system).map(Values::median)
    }

    /// The places at which a quantity was measured, in the order of the table.
    pub(crate) fn places(&self, quantity: &str) -> Vec<Place> {
        let known = self.0.keys().filter(|(_, known, _)| known == quantity);
        let mut places: Vec<_> = known.map(|(place, ..)| *place).collect();
        places.dedup();
        places
    }

    /// The quantities that were measured and whose names begin with `prefix`.
    pub(crate) fn quantities(&self, prefix: &str) -> Vec<&str> {
        let names = self.0.keys().map(|(_, quantity, _)| &**quantity);
        let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// All values, for a report that programs read.
    pub(crate) fn to_json(&self) -> Vec<Value> {
        let entry = |(key, values): (&(Place, String, System), &Values)| {
            let ((row, pending, workers), quantity, system) = key;
            values.to_json(&[
                ("row", json!(row.name())),
                ("pending", json!(pending)),
                ("workers", json!(workers)),
                ("quantity", json!(quantity)),
                ("system", json!(system.name())),
            ])
        };
        self.0.iter().map(entry).collect()
    }
}

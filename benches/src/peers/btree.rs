//! The ordered map of the standard library, keyed by deadline and order of arrival: the simplest
//! implementation, and the one under glommio's own timers.

use std::collections::BTreeMap;

use crate::{Payload, Timers};

/// Timers in an ordered map.
pub struct BTree {
    timers: BTreeMap<(u64, u64), Payload>,
    sequence: u64,
}

impl Timers for BTree {
    const NAME: &'static str = "BTreeMap";
    const FIFO: bool = true;
    type Handle = (u64, u64);

    fn with_capacity(_: usize) -> Self {
        Self { timers: BTreeMap::new(), sequence: 0 }
    }

    fn schedule(&mut self, deadline: u64, payload: Payload) -> (u64, u64) {
        let key = (deadline, self.sequence);
        self.sequence += 1;
        self.timers.insert(key, payload);
        key
    }

    fn cancel(&mut self, key: (u64, u64)) -> Payload {
        self.timers.remove(&key).expect("it is pending")
    }

    fn advance(&mut self, now: u64, mut fired: impl FnMut(Payload)) {
        while let Some(first) = self.timers.first_entry()
            && first.key().0 <= now
        {
            fired(first.remove());
        }
    }

    fn next_deadline(&mut self) -> Option<u64> {
        self.timers.first_key_value().map(|((deadline, _), _)| *deadline)
    }

    fn pending(&self) -> usize {
        self.timers.len()
    }
}

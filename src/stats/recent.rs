//! The greatest of the values of the last seconds.

/// The greatest value is kept for at least so long, and at most twice as long.
const WINDOW_NS: u64 = 5_000_000_000;

/// The greatest of the values that were noted within the last 5 to 10 s before the last note.
///
/// Why not all values of that time: two numbers are enough for a reader that asks how bad it was of
/// late, and a note costs two comparisons.
#[derive(Debug, Default)]
pub(crate) struct RecentMax {
    /// When the present window began, in nanoseconds.
    since: u64,
    present: u64,
    before: u64,
}

impl RecentMax {
    /// Notes a value at `now`. Returns the greatest.
    #[inline]
    pub(crate) fn note(&mut self, now: u64, value: u64) -> u64 {
        let windows = now.saturating_sub(self.since) / WINDOW_NS;
        if windows > 0 {
            self.before = if windows == 1 { self.present } else { 0 };
            (self.present, self.since) = (0, self.since + windows * WINDOW_NS);
        }
        self.present = self.present.max(value);
        self.present.max(self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greatest_value_is_kept_for_five_to_ten_seconds() {
        let begin = 7_654_321_000_000;
        for at in [0, 1, WINDOW_NS / 2, WINDOW_NS - 1] {
            let mut recent = RecentMax::default();
            assert_eq!(recent.note(begin, 3), 3);
            assert_eq!(recent.note(begin + at, 40), 40);
            for later in 0..=WINDOW_NS / 1_000_000 {
                assert_eq!(recent.note(begin + at + later * 1_000_000, 2), 40, "{later} ms later");
            }
            assert_eq!(recent.note(begin + at + 2 * WINDOW_NS, 2), 2);
        }
    }

    #[test]
    fn value_is_forgotten_after_a_long_silence() {
        let mut recent = RecentMax::default();
        recent.note(1, 40);
        assert_eq!(recent.note(1_000 * WINDOW_NS, 0), 0);
    }
}

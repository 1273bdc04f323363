//! What is noted of a connection between two looks at the clock, as a simple model has it.

pub(super) const MS: u64 = 1_000_000;

/// What a shard's looks at the clock make of what is noted.
#[derive(Default)]
pub(super) struct Looks {
    pub(super) now: u64,
    last_bound: u64,
    /// The moment that is noted, and the tick from which on it is not.
    window: Option<(u64, u64)>,
    /// What was noted when the shard was last held up.
    gap: u64,
    count: usize,
    next_after: Vec<u64>,
}

/// A moment that was noted: exact, or not before the next look.
#[derive(Clone, Copy, Default)]
pub(super) struct Note {
    pub(super) bound: u64,
    /// How many looks there had been; none if it is exact.
    pub(super) looks: Option<usize>,
    /// When it really was.
    pub(super) at: u64,
}

impl Looks {
    fn extend(&mut self, now: u64, tick: u64) -> u64 {
        let expires = (now + 8 * MS).div_ceil(tick);
        let bound = (expires * tick + 2 * MS).max(self.last_bound + 1);
        self.last_bound = bound;
        self.window = Some((bound, expires));
        expires
    }

    pub(super) fn note(&mut self, now: u64, tick: u64) -> Note {
        if self.window.is_none() {
            self.extend(now, tick);
        }
        let (bound, _) = self.window.unwrap();
        Note { bound, looks: Some(self.count), at: now }
    }

    pub(super) fn look(&mut self, now: u64, tick: u64) {
        self.now = now;
        self.count += 1;
        self.next_after.push(now);
        if let Some((bound, expires)) = self.window {
            if now > bound {
                self.gap = bound;
            }
            if expires <= now / tick {
                self.window = None;
            } else {
                self.extend(now, tick);
                self.window.as_mut().unwrap().1 = expires;
            }
        }
    }

    /// A moment that is known; but for those that stand for others.
    pub(super) fn exact(&self, at: u64) -> u64 {
        let is_taken = at == self.gap || self.window.is_some_and(|(bound, _)| at == bound);
        at + u64::from(is_taken)
    }

    pub(super) fn is_settled(&self, note: Note) -> bool {
        note.looks.is_none_or(|looks| looks < self.count)
    }

    /// What a note counts as.
    pub(super) fn when(&self, note: Note, tick: u64) -> u64 {
        let next_look = note.looks.and_then(|looks| self.next_after.get(looks));
        let when = note.bound.max(next_look.copied().unwrap_or(0));
        // Before the next look nothing follows from it.
        assert!(
            when >= note.at || !self.is_settled(note),
            "a note is older than what it stands for"
        );
        // As many turns as there are in a tick put it off by a nanosecond each.
        let most = (note.at + 10 * MS + tick + 1_000).max(next_look.copied().unwrap_or(0));
        assert!(when <= most || note.looks.is_none(), "{} is taken for {when}", note.at);
        when
    }
}

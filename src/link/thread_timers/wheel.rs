//! The wheel of a thread: the lists of the next 64 ticks, and those of the 64 units after them, for
//! units of 64 ticks, of 64 times 64 ticks, and so on.
//!
//! A timer lies in the finest level whose window of 64 units from the present one has its deadline.
//! When a unit begins, its timers are filed again, on a finer level. So ticks come up in order,
//! whatever was filed when, and a timer that is due within the next 64 ticks is filed once.
//!
//! Why not the wheel of [`corewheel_shard`]: it has slots of its own, and an entry of each timer
//! that was cancelled. It also reserves memory for all timers that it may hold. Here a cancel takes
//! the timer out.
//!
//! Cost: O(1) to file and to take out, and O(levels) to find the next tick.

/// Ticks, or units, in the window of a level.
pub(super) const WINDOW: u64 = 64;
const WINDOW_BITS: u32 = WINDOW.ilog2();
/// The levels, which reach over 2^48 ticks.
pub(super) const LEVELS: usize = 8;
/// A timer that is due later than so many ticks from now is filed for then, and again then.
const SPAN_MAX: u64 = (1 << (WINDOW_BITS * LEVELS as u32)) - (1 << (WINDOW_BITS * 7));

/// Which lists of the wheel have timers. It numbers its lists from 0.
#[derive(Debug)]
pub(super) struct Wheel {
    /// The ticks before this one have passed. It is at most the present one.
    cursor: u64,
    /// For each level, a bit for each list that is not empty.
    pub(super) filled: [u64; LEVELS],
}

/// A list of timers whose time comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Next {
    /// When the list's tick or unit begins.
    pub(super) tick: u64,
    pub(super) list: usize,
}

impl Next {
    /// Whether it is the list of a tick.
    pub(super) fn is_tick(self) -> bool {
        self.list < WINDOW as usize
    }
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self { cursor: 0, filled: [0; LEVELS] }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.filled.iter().fold(0, |all, level| all | level) == 0
    }

    #[inline]
    pub(super) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// No timer is due before a tick that has begun.
    pub(super) fn advance(&mut self, tick: u64) {
        self.cursor = self.cursor.max(tick);
    }

    /// The list for a timer, which the caller puts there.
    #[inline]
    pub(super) fn file(&mut self, tick: u64) -> Next {
        let tick = tick.clamp(self.cursor, self.cursor.saturating_add(SPAN_MAX));
        let mut level = 0;
        let (mut unit, mut present) = (tick, self.cursor);
        while unit - present >= WINDOW {
            level += 1;
            (unit, present) = (unit >> WINDOW_BITS, present >> WINDOW_BITS);
        }
        let place = (unit % WINDOW) as usize;
        self.filled[level] |= 1 << place;
        let list = level * WINDOW as usize + place;
        Next { tick: unit << (WINDOW_BITS * level as u32), list }
    }

    /// A list is empty.
    #[inline]
    pub(super) fn note_empty(&mut self, list: usize) {
        self.filled[list / WINDOW as usize] &= !(1 << (list % WINDOW as usize));
    }

    /// The list that comes up first; of one tick, those of the coarsest level first.
    pub(super) fn next(&self) -> Option<Next> {
        let mut next: Option<Next> = None;
        for (level, filled) in self.filled.iter().enumerate() {
            if *filled == 0 {
                continue;
            }
            let bits = WINDOW_BITS * level as u32;
            let present = self.cursor >> bits;
            let ahead = filled.rotate_right((present % WINDOW) as u32).trailing_zeros();
            let unit = present + u64::from(ahead);
            let tick = unit << bits;
            if next.is_none_or(|next| tick <= next.tick) {
                let list = level * WINDOW as usize + (unit % WINDOW) as usize;
                next = Some(Next { tick, list });
            }
        }
        next
    }
}

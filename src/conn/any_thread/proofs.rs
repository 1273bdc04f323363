//! Which events of a connection a pass has proven: the runtime has looked at its sockets since the
//! deadline has come, and what the deadline guards was polled after that.
//!
//! A deadline that has come leaves an event that waits for its pass. What the task finds in its
//! socket meanwhile withdraws the event, by the [rules](super::super::rules).
//!
//! Invariants: a pass proves the events that had come when it began. No event is taken by the poll
//! that finds the pass over.

use super::super::marks::KindBits;
use super::super::side::Passes;
use crate::link::sync::{AtomicU32, Ordering};
use crate::pass::{Asked, POLLS_MAX, Pass, TURNS, has_budget};

/// How many passes of a connection were found over, for a task that has not locked the connection.
pub(super) struct PassCount(AtomicU32);

impl PassCount {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// One more was found over, under the lock of the connection.
    pub(super) fn add(&self) {
        let before = self.0.load(Ordering::Relaxed);
        // Release: pairs with the load in `get`, so that a task that knows of the pass finds in its
        // socket what the pass has handed out.
        self.0.store(before.wrapping_add(1), Ordering::Release);
    }

    pub(super) fn get(&self) -> Passes {
        // Acquire: pairs with the store in `add`.
        Passes(self.0.load(Ordering::Acquire))
    }
}

/// What is known of the events that have come. A connection has it from its first such event on,
/// until none waits.
#[derive(Default)]
pub(super) struct Proofs {
    pass: Pass,
    /// Whether a poll is about to begin a pass.
    is_asking: bool,
    /// The kinds whose events had come when the pass began, or when a poll was told to begin one.
    asked: KindBits,
    /// The kinds whose events had come before a pass that is over.
    proven: KindBits,
    /// How many more polls a caller is pending in that does not know what the deadlines guard.
    turns: u32,
    /// How often a task had no budget left since the pass.
    polls: u32,
}

/// What a poll does about the events that have come.
pub(super) enum Verdict {
    /// It may take those of these kinds.
    Take(KindBits),
    /// It begins a pass when it has released the lock, and calls [`Proofs::began`].
    Ask,
    /// It waits. The pass wakes the connection.
    Wait,
    /// It waits, and wakes its task.
    Again,
}

impl Proofs {
    /// Events of these kinds have come, or were taken. They have no proof.
    pub(super) fn forget(&mut self, kinds: KindBits) {
        self.asked &= !kinds;
        self.proven &= !kinds;
    }

    pub(super) fn asked(&self) -> KindBits {
        self.asked
    }

    /// A poll that was to begin a pass takes an event instead.
    pub(super) fn unask(&mut self) {
        (self.asked, self.is_asking) = (0, false);
    }

    /// A poll has begun a pass.
    pub(super) fn began(&mut self, pass: Pass, asked: Asked) {
        self.is_asking = false;
        match asked {
            #[cfg(all(feature = "tokio", unix))]
            Asked::NotNeeded => self.proven |= std::mem::take(&mut self.asked),
            _ => self.pass = pass,
        }
    }

    /// Whether no event was proven, and no poll waits for a pass, also one that has begun for other
    /// events.
    pub(super) fn is_idle(&self) -> bool {
        self.proven == 0 && self.asked == 0 && !self.is_asking && !self.pass.has_begun()
    }

    /// True if the pass is found over now.
    pub(super) fn find_over(&mut self) -> bool {
        let is_over = self.pass.is_over();
        if is_over {
            self.proven |= std::mem::take(&mut self.asked);
            (self.pass, self.turns, self.polls) = (Pass::NONE, TURNS, 0);
        }
        is_over
    }

    /// What a poll does about events of these kinds, which are true. `seen` and `passes` are the
    /// passes that were over when the caller polled what the deadlines guard, and now.
    pub(super) fn judge(
        &mut self,
        kinds: KindBits,
        seen: Option<Passes>,
        passes: Passes,
    ) -> Verdict {
        let unproven = kinds & !self.proven;
        if unproven != 0 && !self.is_asking && !self.pass.has_begun_here() {
            (self.asked, self.is_asking) = (unproven, true);
            return Verdict::Ask;
        }
        let proven = kinds & self.proven;
        if proven == 0 {
            return Verdict::Wait;
        }
        let is_after = match seen {
            Some(seen) => seen == passes,
            None if self.turns == 0 => true,
            None => {
                self.turns -= 1;
                false
            }
        };
        if !is_after {
            return Verdict::Again;
        }
        if !has_budget() && self.polls < POLLS_MAX {
            self.polls += 1;
            return Verdict::Again;
        }
        Verdict::Take(proven)
    }
}

#[cfg(all(test, corewheel_loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};
    use loom::thread;

    use super::PassCount;
    use crate::link::loom_tests::check;

    #[test]
    fn task_that_knows_of_a_pass_finds_what_the_pass_has_handed_out() {
        check(|| {
            let passes = Arc::new(PassCount::new());
            let handed_out = Arc::new(AtomicBool::new(false));
            let before = passes.get();
            let task = {
                let (passes, handed_out) = (Arc::clone(&passes), Arc::clone(&handed_out));
                thread::spawn(move || {
                    if passes.get() != before {
                        assert!(handed_out.load(Ordering::Relaxed), "the task looks too early");
                    }
                })
            };
            handed_out.store(true, Ordering::Relaxed);
            passes.add();
            task.join().unwrap();
            assert!(passes.get() != before);
        });
    }
}

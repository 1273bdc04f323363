//! The plain types of a thread's timers: what arms one, what is taken out, what is counted.

/// A timer to be armed.
#[derive(Debug)]
pub(crate) struct Arming<W> {
    pub(crate) deadline: u64,
    /// The number of its class, from 1; 0 for none.
    pub(crate) class: u8,
    /// Whether the timer guards a future, whose task the [relay](super::Relay) of the thread wakes.
    pub(crate) is_guarded: bool,
    pub(crate) carried: W,
}

/// A timer that has fired, or that the shard takes out at its end.
#[derive(Debug)]
pub(crate) struct Due<W> {
    pub(crate) carried: W,
    /// When its tick began, in nanoseconds; its deadline if it is taken out.
    pub(crate) at: u64,
    /// The number of its class, from 1; 0 for none.
    pub(crate) class: u8,
    /// Whether the relay of its thread takes over what it carries.
    pub(crate) is_guarded: bool,
}

/// What the timers of a thread have counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Timers that were armed.
    pub(crate) armed: u64,
    /// Timers that have ended before they fired.
    pub(crate) ended: u64,
    /// Those of them that the keeper has not filed.
    pub(crate) young: u64,
    /// Timers that have fired.
    pub(crate) fired: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, other: Self) {
        self.armed += other.armed;
        self.ended += other.ended;
        self.young += other.young;
        self.fired += other.fired;
    }

    /// How many are pending by these counts, after `pending`.
    pub(crate) fn pending_after(&self, pending: u64) -> u64 {
        (pending + self.armed).saturating_sub(self.ended + self.fired)
    }
}

/// What has become of the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Used,
    /// The thread has ended, and arms no timer any more.
    Left,
    /// The shard is ending, and no timer is armed any more.
    Closing,
    /// The shard has ended, and there are no timers any more.
    Closed,
}

/// Why a timer cannot be armed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArmRefusal {
    Full,
    Closed,
}

/// What a timer has come to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Progress {
    /// It is pending, and carries what the caller asks for.
    Same,
    /// It is pending, and carries something else.
    Other,
    /// It has fired.
    Fired,
    /// The shard has ended.
    Closed,
}

//! The wall clock beside the monotonic one.
//!
//! Deadlines are kept in monotonic time, which never steps. A time to live (`EX`, `PX`, `EXPIRE`)
//! is a length of time, so a step of the wall clock does not change its deadline. A point in time
//! (`EXAT`, `PXAT`, `EXPIREAT`) is wall time, so its deadline moves by as much as the wall clock
//! steps. Both clocks are slewed alike, so the distance between them changes only by a step.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A change of the distance between the clocks that is less than this is noise of the two readings,
/// in microseconds.
const STEP_MIN: i64 = 1_000;
/// The longest time between two readings of the monotonic clock that are taken as one.
const READING_MAX: Duration = Duration::from_micros(100);
/// How often the clocks are read again when the thread was interrupted between the readings.
const ATTEMPTS: usize = 8;

/// A source of wall time: the system's, or a test's.
pub(crate) type WallClock = Box<dyn Fn() -> SystemTime>;

/// Monotonic time in microseconds, and the way from it to wall time. It is 1 at `epoch`, so that a
/// deadline in the past has a value, and the value is not 0.
pub(crate) struct Time {
    epoch: Instant,
    wall: WallClock,
    /// Wall time less monotonic time, in microseconds.
    offset: i64,
}

impl Time {
    /// `now` reads the monotonic clock.
    pub(crate) fn new(wall: WallClock, now: impl Fn() -> Instant) -> Self {
        let mut time = Self { epoch: now(), wall, offset: 0 };
        time.offset = time.read_offset(now);
        time
    }

    pub(crate) fn micros(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.epoch).as_micros() as u64 + 1
    }

    /// `micros` is at least 1. `None` if there is no such instant.
    pub(crate) fn instant(&self, micros: i128) -> Option<Instant> {
        let passed = u128::try_from(micros - 1).ok()?;
        let length = Duration::from_millis(u64::try_from(passed / 1_000).ok()?);
        let rest = Duration::from_micros((passed % 1_000) as u64);
        self.epoch.checked_add(length)?.checked_add(rest)
    }

    /// The wall time of a monotonic time, in microseconds since 1970.
    pub(crate) fn to_wall(&self, micros: i128) -> i128 {
        micros + i128::from(self.offset)
    }

    /// The monotonic time of a wall time; before the epoch it is negative.
    pub(crate) fn monotonic_of(&self, wall_micros: i128) -> i128 {
        wall_micros - i128::from(self.offset)
    }

    /// By how many microseconds the wall clock has stepped since the last call, if it has.
    pub(crate) fn take_step(&mut self, now: impl Fn() -> Instant) -> Option<i64> {
        let offset = self.read_offset(now);
        let step = offset - self.offset;
        if step.abs() < STEP_MIN {
            return None;
        }
        self.offset = offset;
        Some(step)
    }

    fn read_offset(&self, now: impl Fn() -> Instant) -> i64 {
        let read = || (now(), (self.wall)());
        let (mut monotonic, mut wall) = read();
        for _ in 1..ATTEMPTS {
            if now().saturating_duration_since(monotonic) < READING_MAX {
                break;
            }
            (monotonic, wall) = read();
        }
        let wall = match wall.duration_since(UNIX_EPOCH) {
            Ok(after) => after.as_micros() as i64,
            Err(before) => -(before.duration().as_micros() as i64),
        };
        wall - self.micros(monotonic).cast_signed()
    }
}

//! Times to live: how commands state them, and the commands that only read or change them.

use super::{Call, NOT_AN_INTEGER, Refusal, SYNTAX};
use crate::keyspace::Deadline;
use crate::notify::Class;

/// How a command states a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unit {
    is_seconds: bool,
    /// Whether it is a point in wall time rather than a length of time.
    is_wall: bool,
}

impl Unit {
    pub(super) const EX: Self = Self { is_seconds: true, is_wall: false };
    pub(super) const PX: Self = Self { is_seconds: false, is_wall: false };
    pub(super) const EXAT: Self = Self { is_seconds: true, is_wall: true };
    pub(super) const PXAT: Self = Self { is_seconds: false, is_wall: true };

    pub(super) fn named(name: &[u8]) -> Option<Self> {
        let units: [(&[u8], Self); 4] =
            [(b"ex", Self::EX), (b"px", Self::PX), (b"exat", Self::EXAT), (b"pxat", Self::PXAT)];
        units.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map(|(_, unit)| unit)
    }
}

/// A deadline that a command states; `None` if it has passed.
pub(super) fn deadline_of(
    call: &mut Call<'_>,
    command: &str,
    unit: Unit,
    value: i64,
) -> Result<Option<Deadline>, Refusal> {
    let invalid = || Refusal::new(format!("ERR invalid expire time in '{command}' command"));
    let millis = if unit.is_seconds { value.checked_mul(1_000) } else { Some(value) };
    let millis = millis.ok_or_else(invalid)?;
    let micros = i64::try_from(i128::from(millis) * 1_000);
    let micros = micros.unwrap_or(if millis < 0 { i64::MIN } else { i64::MAX });
    let now = call.keys.now(call.timers).cast_signed();
    let at = if unit.is_wall {
        let (_, time) = call.keys.wall(call.timers);
        time.monotonic_of(micros)
    } else {
        let (wall, _) = call.keys.wall(call.timers);
        // A point in time that has no name in milliseconds is refused.
        millis.checked_add(wall / 1_000).ok_or_else(invalid)?;
        now.saturating_add(micros)
    };
    Ok((at > now).then(|| Deadline::new(at.cast_unsigned(), unit.is_wall)))
}

/// A deadline that a command states and that must be positive.
pub(super) fn positive(
    call: &mut Call<'_>,
    command: &str,
    unit: Unit,
    value: i64,
) -> Result<Option<Deadline>, Refusal> {
    if value <= 0 {
        return Err(Refusal::new(format!("ERR invalid expire time in '{command}' command")));
    }
    deadline_of(call, command, unit, value)
}

/// The condition under which a deadline is changed.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a word of the command")]
struct Condition {
    only_without: bool,
    only_with: bool,
    only_later: bool,
    only_earlier: bool,
}

impl Condition {
    fn parse(call: &Call<'_>) -> Result<Self, Refusal> {
        let mut is = Self::default();
        for word in call.args.iter().skip(3) {
            match word.to_ascii_lowercase().as_slice() {
                b"nx" => is.only_without = true,
                b"xx" => is.only_with = true,
                b"gt" => is.only_later = true,
                b"lt" => is.only_earlier = true,
                _ => {
                    let word = String::from_utf8_lossy(word).into_owned();
                    return Err(Refusal::new(format!("ERR Unsupported option {word}")));
                }
            }
        }
        if is.only_without && (is.only_with || is.only_later || is.only_earlier) {
            return Err(Refusal::new(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if is.only_later && is.only_earlier {
            return Err(Refusal::new("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(is)
    }

    /// Whether a deadline may follow another; `None` is never, for the one before, and past, for
    /// the new one.
    fn allows(&self, before: Option<u64>, after: Option<Deadline>) -> bool {
        let after = after.and_then(Deadline::micros).unwrap_or(0);
        let is_later = before.is_some_and(|before| after > before);
        let is_earlier = before.is_none_or(|before| after < before);
        !(self.only_without && before.is_some()
            || self.only_with && before.is_none()
            || self.only_later && !is_later
            || self.only_earlier && !is_earlier)
    }
}

pub(super) fn change(call: &mut Call<'_>, command: &str, unit: Unit) -> Result<(), Refusal> {
    let value = call.integer(2)?;
    let condition = Condition::parse(call)?;
    let deadline = deadline_of(call, command, unit, value)?;
    let key = call.key();
    let before = call.keys.deadline(call.timers, call.hash, key);
    let is_changed = before.is_some_and(|before| condition.allows(before.micros(), deadline));
    if is_changed {
        apply(call, deadline)?;
    }
    call.reply.integer(i64::from(is_changed));
    Ok(())
}

/// Gives the key a deadline, or removes the key if the deadline has passed.
pub(super) fn apply(call: &mut Call<'_>, deadline: Option<Deadline>) -> Result<(), Refusal> {
    let key = call.key();
    if deadline.is_none() {
        call.keys.remove(call.timers, call.hash, key);
        return Ok(());
    }
    call.keys.expire(call.timers, call.hash, key, deadline)?;
    call.keys.event(Class::GENERIC, "expire", key);
    Ok(())
}

pub(super) fn persist(call: &mut Call<'_>) -> Result<(), Refusal> {
    let is_changed = make_persistent(call)?;
    call.reply.integer(i64::from(is_changed));
    Ok(())
}

/// Removes the deadline of the key; false if it has none.
pub(super) fn make_persistent(call: &mut Call<'_>) -> Result<bool, Refusal> {
    let key = call.key();
    let before = call.keys.deadline(call.timers, call.hash, key);
    if before.and_then(Deadline::micros).is_none() {
        return Ok(false);
    }
    call.keys.expire(call.timers, call.hash, key, None)?;
    call.keys.event(Class::GENERIC, "persist", key);
    Ok(true)
}

/// Replies with a time of the key: -2 without the key, -1 without a deadline.
pub(super) fn reply_time(
    call: &mut Call<'_>,
    time: fn(&mut Call<'_>, u64) -> i64,
) -> Result<(), Refusal> {
    let key = call.key();
    let reply = match call.keys.deadline(call.timers, call.hash, key) {
        None => -2,
        Some(deadline) => deadline.micros().map_or(-1, |micros| time(call, micros)),
    };
    call.reply.integer(reply);
    Ok(())
}

pub(super) fn remaining_millis(call: &mut Call<'_>, deadline: u64) -> i64 {
    deadline.saturating_sub(call.keys.now(call.timers)).div_ceil(1_000).cast_signed()
}

pub(super) fn remaining_seconds(call: &mut Call<'_>, deadline: u64) -> i64 {
    remaining_millis(call, deadline).saturating_add(500) / 1_000
}

pub(super) fn wall_millis(call: &mut Call<'_>, deadline: u64) -> i64 {
    let (_, time) = call.keys.wall(call.timers);
    time.to_wall(deadline).saturating_add(500).div_euclid(1_000)
}

pub(super) fn wall_seconds(call: &mut Call<'_>, deadline: u64) -> i64 {
    wall_millis(call, deadline).saturating_add(500) / 1_000
}

/// The value of the word after a unit's name.
pub(super) fn stated(call: &Call<'_>, index: usize) -> Result<i64, Refusal> {
    call.args.get(index).ok_or(SYNTAX)?;
    call.integer(index).map_err(|_| NOT_AN_INTEGER)
}

//! Times to live: how commands state them, and the commands that only read or change them.

use super::{Call, Done, NOT_AN_INTEGER, Refusal, SYNTAX};
use crate::keyspace::Deadline;
use crate::notify::Class;
use crate::protocol::integer;

/// How a command states a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    fn named(name: &[u8]) -> Option<Self> {
        let units: [(&[u8], Self); 4] =
            [(b"ex", Self::EX), (b"px", Self::PX), (b"exat", Self::EXAT), (b"pxat", Self::PXAT)];
        units.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known)).map(|(_, unit)| unit)
    }
}

/// A deadline that a command states; `None` if it has passed.
fn deadline_of(call: &mut Call<'_>, unit: Unit, value: i64) -> Result<Option<Deadline>, Refusal> {
    let millis = if unit.is_seconds { value.checked_mul(1_000) } else { Some(value) };
    let millis = millis.ok_or_else(|| invalid(call))?;
    let micros = i128::from(millis) * 1_000;
    let now = call.keys.now();
    let (wall, time) = call.keys.wall();
    let at = if unit.is_wall {
        time.monotonic_of(micros)
    } else {
        // A point in time that has no name in milliseconds is refused.
        i64::try_from((wall + micros) / 1_000).map_err(|_| invalid(call))?;
        now + micros
    };
    Ok((at > now).then(|| Deadline::new(at, unit.is_wall)))
}

/// A deadline that a command states and that must be positive.
pub(super) fn positive(
    call: &mut Call<'_>,
    unit: Unit,
    value: i64,
) -> Result<Option<Deadline>, Refusal> {
    if value <= 0 { Err(invalid(call)) } else { deadline_of(call, unit, value) }
}

fn invalid(call: &Call<'_>) -> Refusal {
    let command = String::from_utf8_lossy(call.args[0]).to_lowercase();
    Refusal::from(format!("ERR invalid expire time in '{command}' command"))
}

pub(super) fn change(call: &mut Call<'_>, unit: Unit) -> Done {
    let value = call.integer(2)?;
    let options: [&[u8]; 4] = [b"nx", b"xx", b"gt", b"lt"];
    let mut stated = [false; 4];
    for word in &call.args[3..] {
        let known = options.iter().position(|option| word.eq_ignore_ascii_case(option));
        let unsupported =
            || Refusal::from(format!("ERR Unsupported option {}", String::from_utf8_lossy(word)));
        stated[known.ok_or_else(unsupported)?] = true;
    }
    let [nx, xx, gt, lt] = stated;
    if gt && lt || nx && (xx || gt || lt) {
        let both = if nx { "NX and XX, GT or LT" } else { "GT and LT" };
        let problem = format!("ERR {both} options at the same time are not compatible");
        return Err(Refusal::from(problem));
    }
    let deadline = deadline_of(call, unit, value)?;
    // A deadline that has passed is earlier than every other; a key without one lives forever.
    let after = deadline.and_then(Deadline::micros).unwrap_or(0);
    let before = call.keys.deadline(call.key);
    let is_changed = before.is_some_and(|before| match before.micros() {
        Some(before) => !(nx || gt && after <= before || lt && after >= before),
        None => !(xx || gt),
    });
    if is_changed {
        apply(call, deadline)?;
    }
    call.reply.integer(i64::from(is_changed));
    Ok(())
}

/// Gives the key a deadline, or removes the key if the deadline has passed.
pub(super) fn apply(call: &mut Call<'_>, deadline: Option<Deadline>) -> Done {
    if deadline.is_none() {
        call.keys.remove(call.key);
        return Ok(());
    }
    call.keys.expire(call.key, deadline)?;
    call.keys.event(Class::GENERIC, "expire", call.key);
    Ok(())
}

/// Removes the deadline of the key; false if it has none.
pub(super) fn make_persistent(call: &mut Call<'_>) -> Result<bool, Refusal> {
    if call.keys.deadline(call.key).and_then(Deadline::micros).is_none() {
        return Ok(false);
    }
    call.keys.expire(call.key, None)?;
    call.keys.event(Class::GENERIC, "persist", call.key);
    Ok(true)
}

/// Replies with the time to live of the key, or its deadline in wall time: -2 without the key, -1
/// without a deadline.
pub(super) fn reply_time(call: &mut Call<'_>, unit: Unit) -> Done {
    let reply = match call.keys.deadline(call.key).map(Deadline::micros) {
        None => -2,
        Some(None) => -1,
        Some(Some(deadline)) => {
            let millis = if unit.is_wall {
                let (_, time) = call.keys.wall();
                (time.to_wall(deadline) + 500).div_euclid(1_000)
            } else {
                ((deadline - call.keys.now()).max(0) + 999) / 1_000
            };
            let time = if unit.is_seconds { (millis + 500) / 1_000 } else { millis };
            i64::try_from(time).unwrap_or(i64::MAX)
        }
    };
    call.reply.integer(reply);
    Ok(())
}

/// The time that a command states by the name of a unit and a value, after another or none. The
/// last of several in one unit holds, as in redis; two units are refused.
pub(super) fn stated(
    before: Option<(Unit, i64)>,
    name: &[u8],
    value: Option<&&[u8]>,
) -> Result<(Unit, i64), Refusal> {
    let unit = Unit::named(name).ok_or(SYNTAX)?;
    if before.is_some_and(|(known, _)| known != unit) {
        return Err(SYNTAX);
    }
    Ok((unit, integer(value.ok_or(SYNTAX)?).ok_or(NOT_AN_INTEGER)?))
}

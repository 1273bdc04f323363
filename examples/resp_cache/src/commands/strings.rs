//! Commands on values, which are strings.

use super::expiry::{self, Unit};
use super::{Call, Done, NOT_AN_INTEGER, Refusal, SYNTAX};
use crate::keyspace::{Key, Ttl};
use crate::notify::Class;
use crate::protocol::integer;

pub(super) fn get(call: &mut Call<'_>) -> Done {
    match call.keys.get(call.key) {
        Some(value) => call.reply.bulk(value),
        None => call.reply.null(),
    }
    Ok(())
}

pub(super) fn set(call: &mut Call<'_>) -> Done {
    let (mut stated, mut keeps_ttl, mut replies_old) = (None, false, false);
    let (mut only_new, mut only_known) = (false, false);
    let args = call.args;
    let mut words = args[3..].iter();
    while let Some(word) = words.next() {
        match word.to_ascii_lowercase().as_slice() {
            b"nx" if !only_known => only_new = true,
            b"xx" if !only_new => only_known = true,
            b"keepttl" if stated.is_none() => keeps_ttl = true,
            b"get" => replies_old = true,
            _ if keeps_ttl => return Err(SYNTAX),
            _ => stated = Some(expiry::stated(stated, word, words.next())?),
        }
    }
    let ttl = match stated {
        Some((unit, value)) => expiry::positive(call, unit, value)?.map(Ttl::Set),
        None => Some(if keeps_ttl { Ttl::Keep } else { Ttl::Remove }),
    };
    let is_refused = (only_new || only_known) && call.keys.contains(call.key) == only_new;
    if replies_old {
        get(call)?;
    } else if is_refused {
        call.reply.null();
    } else {
        call.reply.ok();
    }
    if is_refused { Ok(()) } else { write(call, call.key, args[2], ttl) }
}

/// Writes a value, and notes the events. Without a time to live, the key is gone at once.
fn write(call: &mut Call<'_>, key: Key<'_>, value: &[u8], ttl: Option<Ttl>) -> Done {
    let Some(ttl) = ttl else {
        call.keys.remove(key);
        return Ok(());
    };
    call.keys.set(key, value, ttl)?;
    call.keys.event(Class::STRING, "set", key);
    if let Ttl::Set(_) = ttl {
        call.keys.event(Class::GENERIC, "expire", key);
    }
    Ok(())
}

pub(super) fn setnx(call: &mut Call<'_>) -> Done {
    let is_new = !call.keys.contains(call.key);
    if is_new {
        let args = call.args;
        write(call, call.key, args[2], Some(Ttl::Remove))?;
    }
    call.reply.integer(i64::from(is_new));
    Ok(())
}

pub(super) fn set_with_time(call: &mut Call<'_>, unit: Unit) -> Done {
    let (args, time) = (call.args, call.integer(2)?);
    let ttl = expiry::positive(call, unit, time)?.map(Ttl::Set);
    write(call, call.key, args[3], ttl)?;
    call.reply.ok();
    Ok(())
}

/// `MSET` on the keys of one core: all are written, or none for want of memory.
pub(super) fn mset(call: &mut Call<'_>) -> Done {
    call.keys.check_room(&call.args[1..])?;
    for pair in call.args[1..].chunks_exact(2) {
        write(call, Key::new(pair[0]), pair[1], Some(Ttl::Remove))?;
    }
    call.reply.ok();
    Ok(())
}

pub(super) fn getdel(call: &mut Call<'_>) -> Done {
    get(call)?;
    call.keys.remove(call.key);
    Ok(())
}

pub(super) fn getex(call: &mut Call<'_>) -> Done {
    let (mut stated, mut is_persistent) = (None, false);
    let mut words = call.args[2..].iter();
    while let Some(word) = words.next() {
        if word.eq_ignore_ascii_case(b"persist") && stated.is_none() {
            is_persistent = true;
        } else if is_persistent {
            return Err(SYNTAX);
        } else {
            stated = Some(expiry::stated(stated, word, words.next())?);
        }
    }
    let deadline = stated.map(|(unit, value)| expiry::positive(call, unit, value)).transpose()?;
    get(call)?;
    if is_persistent {
        expiry::make_persistent(call)?;
    }
    let is_there = call.keys.contains(call.key);
    deadline.filter(|_| is_there).map_or(Ok(()), |deadline| expiry::apply(call, deadline))
}

pub(super) fn strlen(call: &mut Call<'_>) -> Done {
    let length = call.keys.get(call.key).map_or(0, <[u8]>::len);
    call.reply.count(length);
    Ok(())
}

pub(super) fn append(call: &mut Call<'_>) -> Done {
    let (key, args) = (call.key, call.args);
    let length = call.keys.get(key).map_or(0, <[u8]>::len) + args[2].len();
    call.check_length(length)?;
    if !call.keys.append(key, args[2])? {
        call.keys.set(key, args[2], Ttl::Remove)?;
    }
    call.keys.event(Class::STRING, "append", key);
    call.reply.count(length);
    Ok(())
}

pub(super) fn decrby(call: &mut Call<'_>) -> Done {
    let less = call.integer(2)?;
    add(call, less.checked_neg().ok_or(Refusal::from("ERR decrement would overflow"))?)
}

pub(super) fn add(call: &mut Call<'_>, more: i64) -> Done {
    let before = call.keys.get(call.key).map_or(Some(0), integer).ok_or(NOT_AN_INTEGER)?;
    let overflow = Refusal::from("ERR increment or decrement would overflow");
    let sum = before.checked_add(more).ok_or(overflow)?;
    call.keys.set(call.key, sum.to_string().as_bytes(), Ttl::Keep)?;
    call.keys.event(Class::STRING, "incrby", call.key);
    call.reply.integer(sum);
    Ok(())
}

pub(super) fn getset(call: &mut Call<'_>) -> Done {
    let args = call.args;
    get(call)?;
    write(call, call.key, args[2], Some(Ttl::Remove))
}

/// `MSETNX`, whose keys are on one core.
pub(super) fn msetnx(call: &mut Call<'_>) -> Done {
    let args = call.args;
    let mut pairs = args[1..].chunks_exact(2);
    let is_new = !pairs.clone().any(|pair| call.keys.contains(Key::new(pair[0])));
    if is_new {
        call.keys.check_room(&args[1..])?;
        pairs.try_for_each(|pair| write(call, Key::new(pair[0]), pair[1], Some(Ttl::Remove)))?;
    }
    call.reply.integer(i64::from(is_new));
    Ok(())
}

/// `GETRANGE` and `SUBSTR`: negative places count from the end.
pub(super) fn getrange(call: &mut Call<'_>) -> Done {
    let (first, last) = (call.integer(2)?, call.integer(3)?);
    let value = call.keys.get(call.key).unwrap_or_default();
    // The number of bytes before a place; all of them if it is too far.
    let before = |at: i64| {
        let far = usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX);
        if at < 0 { value.len().saturating_sub(far) } else { far.min(value.len()) }
    };
    // Behind the last place; a last place before the first byte, which -1 would be, is none.
    let end = if last < 0 {
        value.len().saturating_sub(last.unsigned_abs() as usize - 1)
    } else {
        before(last.saturating_add(1))
    };
    call.reply.bulk(value.get(before(first)..end).unwrap_or_default());
    Ok(())
}

pub(super) fn setrange(call: &mut Call<'_>) -> Done {
    let (key, args) = (call.key, call.args);
    let out_of_range = Refusal::from("ERR offset is out of range");
    let offset = usize::try_from(call.integer(2)?).map_err(|_| out_of_range)?;
    let mut value = call.keys.get(key).unwrap_or_default().to_vec();
    if !args[3].is_empty() {
        let end = offset.saturating_add(args[3].len());
        call.check_length(end)?;
        value.resize(value.len().max(end), 0);
        value[offset..end].copy_from_slice(args[3]);
        call.keys.set(key, &value, Ttl::Keep)?;
        call.keys.event(Class::STRING, "setrange", key);
    }
    call.reply.count(value.len());
    Ok(())
}

pub(super) fn incrbyfloat(call: &mut Call<'_>) -> Done {
    let before = call.keys.get(call.key).unwrap_or(b"0");
    let text = decimal_sum(before, call.args[2])?;
    call.keys.set(call.key, text.as_bytes(), Ttl::Keep)?;
    call.keys.event(Class::STRING, "incrbyfloat", call.key);
    call.reply.bulk(text.as_bytes());
    Ok(())
}

/// The digits behind the point of a sum, as redis writes them.
const FRACTION_DIGITS: i32 = 17;

/// The sum of two numbers as redis writes it, without an exponent. It is exact where both have at
/// most [`FRACTION_DIGITS`] and are not too large, and else that of the nearest binary fractions.
fn decimal_sum(one: &[u8], other: &[u8]) -> Result<String, Refusal> {
    let number = |digits| -> Result<(&str, f64), Refusal> {
        let digits = str::from_utf8(digits).ok();
        let parsed = digits.and_then(|digits| Some((digits, digits.parse().ok()?)));
        let refused = Refusal::from("ERR value is not a valid float");
        parsed.filter(|(_, number): &(_, f64)| !number.is_nan()).ok_or(refused)
    };
    let ((one, first), (other, second)) = (number(one)?, number(other)?);
    let exact = exact_units(one).zip(exact_units(other));
    if let Some(sum) = exact.and_then(|(one, other)| one.checked_add(other)) {
        let unit = 10_u128.pow(FRACTION_DIGITS.unsigned_abs());
        let (sign, sum) = (if sum < 0 { "-" } else { "" }, sum.unsigned_abs());
        let text = format!("{sign}{}.{:017}", sum / unit, sum % unit);
        return Ok(text.trim_end_matches('0').trim_end_matches('.').to_owned());
    }
    let sum = first + second;
    let refused = Refusal::from("ERR increment would produce NaN or Infinity");
    if sum.is_finite() { Ok(sum.to_string()) } else { Err(refused) }
}

/// A number in units of its last possible digit; `None` if it is no multiple of them, or too large.
fn exact_units(number: &str) -> Option<i128> {
    let (digits, exponent) = number.split_once(['e', 'E']).unwrap_or((number, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let behind = i32::try_from(fraction.len()).ok()?;
    let zeros = exponent.parse::<i32>().ok()?.checked_add(FRACTION_DIGITS)?.checked_sub(behind)?;
    let value: i128 = format!("{whole}{fraction}").parse().ok()?;
    let factor = 10_i128.checked_pow(zeros.unsigned_abs())?;
    if zeros >= 0 {
        value.checked_mul(factor)
    } else {
        (value % factor == 0).then_some(value / factor)
    }
}

#[cfg(test)]
mod tests {
    use super::decimal_sum;

    #[test]
    fn sum_of_fractions_is_written_as_redis_writes_it() {
        for (one, other, sum) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-3.0", "0"),
            ("-0", "-0.0", "0"),
            ("1", "0.00000000000000001", "1.00000000000000001"),
            ("9007199254740993", "1", "9007199254740994"),
            ("1e22", "0", "10000000000000000000000"),
            (".5", "-1.", "-0.5"),
        ] {
            assert_eq!(decimal_sum(one.as_bytes(), other.as_bytes()), Ok(sum.to_owned()));
        }
        let far = decimal_sum(b"1e300", b"1").unwrap();
        assert_eq!((far.len(), &far[..2]), (301, "10"));
        for refused in ["", " 1", "1 ", "1_0", "x", "nan", "inf", "1e400", "1,5"] {
            assert!(decimal_sum(b"0", refused.as_bytes()).is_err(), "{refused}");
        }
    }
}

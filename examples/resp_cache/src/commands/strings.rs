//! Commands on values, which are strings.

use std::io::Write;

use super::expiry::{self, Unit};
use super::{Call, NOT_AN_INTEGER, Refusal, SYNTAX, wrong_arity};
use crate::keyspace::Ttl;
use crate::notify::Class;
use crate::protocol::integer;

pub(super) fn get(call: &mut Call<'_>) -> Result<(), Refusal> {
    call.bulk_or_null(call.key());
    Ok(())
}

/// The options of `SET`.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each is a word of the command")]
struct Options {
    unit: Option<(Unit, i64)>,
    keeps_ttl: bool,
    only_new: bool,
    only_known: bool,
    replies_old: bool,
}

impl Options {
    fn parse(call: &Call<'_>) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut at = 3;
        while let Some(word) = call.args.get(at) {
            if let Some(unit) = Unit::named(word) {
                if options.unit.is_some() || options.keeps_ttl {
                    return Err(SYNTAX);
                }
                options.unit = Some((unit, expiry::stated(call, at + 1)?));
                at += 1;
            } else {
                match word.to_ascii_lowercase().as_slice() {
                    b"nx" if !options.only_known => options.only_new = true,
                    b"xx" if !options.only_new => options.only_known = true,
                    b"keepttl" if options.unit.is_none() => options.keeps_ttl = true,
                    b"get" => options.replies_old = true,
                    _ => return Err(SYNTAX),
                }
            }
            at += 1;
        }
        Ok(options)
    }
}

pub(super) fn set(call: &mut Call<'_>) -> Result<(), Refusal> {
    let key = call.key();
    if call.args.len() == 3 {
        write(call, key, Written::Ttl(Ttl::Remove))?;
        call.reply.ok();
        return Ok(());
    }
    let options = Options::parse(call)?;
    let written = match options.unit {
        None if options.keeps_ttl => Written::Ttl(Ttl::Keep),
        None => Written::Ttl(Ttl::Remove),
        Some((unit, value)) => match expiry::positive(call, "set", unit, value)? {
            Some(deadline) => Written::Ttl(Ttl::Set(deadline)),
            None => Written::Over,
        },
    };
    let is_known = call.keys.contains(call.timers, call.hash, key);
    let is_refused = options.only_new && is_known || options.only_known && !is_known;
    let reply_at = call.reply.out.len();
    if options.replies_old {
        call.bulk_or_null(key);
    }
    if is_refused {
        if !options.replies_old {
            call.reply.null();
        }
        return Ok(());
    }
    if let Err(refusal) = write(call, key, written) {
        call.reply.out.truncate(reply_at);
        return Err(refusal);
    }
    if !options.replies_old {
        call.reply.ok();
    }
    Ok(())
}

/// What becomes of a written value.
#[derive(Clone, Copy)]
enum Written {
    Ttl(Ttl),
    /// Its deadline has passed: the key is gone at once.
    Over,
}

/// Writes the value behind the key, and notes the events.
fn write(call: &mut Call<'_>, key: &[u8], written: Written) -> Result<(), Refusal> {
    let value = call.args.get(2).expect("the command's arity is checked");
    match written {
        Written::Over => {
            call.keys.remove(call.timers, call.hash, key);
        }
        Written::Ttl(ttl) => {
            call.keys.set(call.timers, call.hash, key, value, ttl)?;
            call.keys.event(Class::STRING, "set", key);
            if let Ttl::Set(_) = ttl {
                call.keys.event(Class::GENERIC, "expire", key);
            }
        }
    }
    Ok(())
}

pub(super) fn setnx(call: &mut Call<'_>) -> Result<(), Refusal> {
    let key = call.key();
    let is_new = !call.keys.contains(call.timers, call.hash, key);
    if is_new {
        write(call, key, Written::Ttl(Ttl::Remove))?;
    }
    call.reply.integer(i64::from(is_new));
    Ok(())
}

pub(super) fn set_with_time(call: &mut Call<'_>, command: &str, unit: Unit) -> Result<(), Refusal> {
    let time = call.integer(2)?;
    let deadline = expiry::positive(call, command, unit, time)?.ok_or(NOT_AN_INTEGER)?;
    let (key, value) = (call.key(), call.args.get(3).expect("the command's arity is checked"));
    call.keys.set(call.timers, call.hash, key, value, Ttl::Set(deadline))?;
    call.keys.event(Class::STRING, "set", key);
    call.keys.event(Class::GENERIC, "expire", key);
    call.reply.ok();
    Ok(())
}

pub(super) fn mset(call: &mut Call<'_>) -> Result<(), Refusal> {
    if call.args.len().is_multiple_of(2) {
        return Err(wrong_arity("mset"));
    }
    let mut args = call.args.iter().skip(1);
    while let (Some(key), Some(value)) = (args.next(), args.next()) {
        let hash = call.keys.hash(key);
        call.keys.set(call.timers, hash, key, value, Ttl::Remove)?;
        call.keys.event(Class::STRING, "set", key);
    }
    call.reply.ok();
    Ok(())
}

pub(super) fn getdel(call: &mut Call<'_>) -> Result<(), Refusal> {
    let key = call.key();
    call.bulk_or_null(key);
    call.keys.remove(call.timers, call.hash, key);
    Ok(())
}

pub(super) fn getex(call: &mut Call<'_>) -> Result<(), Refusal> {
    let key = call.key();
    let option = match call.args.len() {
        2 => None,
        3 if call.args.is(2, "persist") => None,
        4 => Some(Unit::named(&call.args[2]).ok_or(SYNTAX)?),
        _ => return Err(SYNTAX),
    };
    let deadline = match option {
        Some(unit) => {
            let value = expiry::stated(call, 3)?;
            expiry::positive(call, "getex", unit, value)?
        }
        None => None,
    };
    let reply_at = call.reply.out.len();
    call.bulk_or_null(key);
    if !call.keys.contains(call.timers, call.hash, key) {
        return Ok(());
    }
    let changed = match call.args.len() {
        2 => Ok(()),
        3 => expiry::make_persistent(call).map(|_| ()),
        _ => expiry::apply(call, deadline),
    };
    if changed.is_err() {
        call.reply.out.truncate(reply_at);
    }
    changed
}

pub(super) fn strlen(call: &mut Call<'_>) -> Result<(), Refusal> {
    let length = call.keys.get(call.timers, call.hash, call.key()).map_or(0, <[u8]>::len);
    call.reply.count(length);
    Ok(())
}

pub(super) fn append(call: &mut Call<'_>) -> Result<(), Refusal> {
    let (key, tail) = (call.key(), call.args.get(2).expect("the command's arity is checked"));
    let before = call.keys.get(call.timers, call.hash, key).map_or(0, <[u8]>::len);
    if before + tail.len() > call.value_max {
        return Err(Refusal::new(format!(
            "ERR string exceeds maximum allowed size ({} bytes)",
            call.value_max
        )));
    }
    if !call.keys.append(call.timers, call.hash, key, tail)? {
        call.keys.set(call.timers, call.hash, key, tail, Ttl::Remove)?;
    }
    call.keys.event(Class::STRING, "append", key);
    call.reply.count(before + tail.len());
    Ok(())
}

pub(super) fn incrby(call: &mut Call<'_>) -> Result<(), Refusal> {
    let more = call.integer(2)?;
    add(call, more)
}

pub(super) fn decrby(call: &mut Call<'_>) -> Result<(), Refusal> {
    let less = call.integer(2)?;
    let more = less.checked_neg().ok_or(Refusal::new("ERR decrement would overflow"))?;
    add(call, more)
}

pub(super) fn add(call: &mut Call<'_>, more: i64) -> Result<(), Refusal> {
    let key = call.key();
    let before = match call.keys.get(call.timers, call.hash, key) {
        Some(value) => integer(value).ok_or(NOT_AN_INTEGER)?,
        None => 0,
    };
    let sum = before
        .checked_add(more)
        .ok_or(Refusal::new("ERR increment or decrement would overflow"))?;
    let mut digits = [0; 20];
    let room = digits.len();
    let mut rest = &mut digits[..];
    write!(rest, "{sum}").expect("an integer has at most 20 characters");
    let length = room - rest.len();
    call.keys.set(call.timers, call.hash, key, &digits[..length], Ttl::Keep)?;
    call.keys.event(Class::STRING, "incrby", key);
    call.reply.integer(sum);
    Ok(())
}

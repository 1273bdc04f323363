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
            _ if stated.is_some() || keeps_ttl => return Err(SYNTAX),
            _ => stated = Some((Unit::named(word).ok_or(SYNTAX)?, expiry::stated(words.next())?)),
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

pub(super) fn mset(call: &mut Call<'_>) -> Done {
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
    match call.args {
        [_, _] => get(call),
        [_, _, word] if word.eq_ignore_ascii_case(b"persist") => {
            get(call)?;
            expiry::make_persistent(call).map(drop)
        }
        [_, _, unit, value] => {
            let unit = Unit::named(unit).ok_or(SYNTAX)?;
            let deadline = expiry::positive(call, unit, expiry::stated(Some(value))?)?;
            get(call)?;
            let is_there = call.keys.contains(call.key);
            if is_there { expiry::apply(call, deadline) } else { Ok(()) }
        }
        _ => Err(SYNTAX),
    }
}

pub(super) fn strlen(call: &mut Call<'_>) -> Done {
    let length = call.keys.get(call.key).map_or(0, <[u8]>::len);
    call.reply.count(length);
    Ok(())
}

pub(super) fn append(call: &mut Call<'_>) -> Done {
    let (key, args, max) = (call.key, call.args, call.value_max);
    let length = call.keys.get(key).map_or(0, <[u8]>::len) + args[2].len();
    if length > max {
        let problem = format!("ERR string exceeds maximum allowed size ({max} bytes)");
        return Err(Refusal::from(problem));
    }
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

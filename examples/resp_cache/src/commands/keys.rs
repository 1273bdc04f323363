//! Commands on keys, whatever their values.

use std::sync::Arc;

use bytes::BytesMut;

use super::{Call, Done, NOT_AN_INTEGER, Refusal, SYNTAX};
use crate::core::Shared;
use crate::gauges::Gauges;
use crate::glob;
use crate::keyspace::Key;
use crate::notify::Class;
use crate::protocol::{Args, Reply, integer, is};
use crate::remote::REPLY_BYTES;

/// Replies with the number of keys for which a function is true.
pub(super) fn count(call: &mut Call<'_>, is_it: fn(&mut Call<'_>, Key<'_>) -> bool) -> Done {
    let count = call.args[1..].iter().filter(|key| is_it(call, Key::new(key))).count();
    call.reply.count(count);
    Ok(())
}

pub(super) fn kind(call: &mut Call<'_>) -> Done {
    let is_there = call.keys.contains(call.key);
    call.reply.simple(if is_there { "string" } else { "none" });
    Ok(())
}

pub(super) fn keys(call: &mut Call<'_>) -> Done {
    let (mut count, max) = (0, call.limits.replies);
    let mut names = BytesMut::new();
    let mut list = Reply { out: &mut names, proto: call.reply.proto };
    let is_complete = call.keys.all_keys(|key| {
        if glob::matches(call.key.name, key) {
            list.bulk(key);
            count += 1;
        }
        list.out.len() <= max
    });
    if !is_complete {
        return Err(format!("ERR the keys take more than {max} bytes; use SCAN").into());
    }
    call.reply.array(count);
    call.reply.out.extend_from_slice(&names);
    Ok(())
}

pub(super) fn flush(call: &mut Call<'_>) -> Done {
    let is_known = is(call.args, 1, "sync") || is(call.args, 1, "async");
    if call.args.len() > 2 || (call.args.len() == 2 && !is_known) {
        return Err(SYNTAX);
    }
    call.keys.clear();
    call.reply.ok();
    Ok(())
}

/// Gives a key the value and the time to live of another, which goes; an error if that is not
/// there.
fn move_key(call: &mut Call<'_>) -> Done {
    let to = Key::new(call.args[2]);
    if !call.keys.rename(call.key, to)? {
        return Err(Refusal::from("ERR no such key"));
    }
    if call.key.name != to.name {
        call.keys.event(Class::GENERIC, "rename_from", call.key);
        call.keys.event(Class::GENERIC, "rename_to", to);
    }
    Ok(())
}

pub(super) fn rename(call: &mut Call<'_>) -> Done {
    move_key(call)?;
    call.reply.ok();
    Ok(())
}

pub(super) fn renamenx(call: &mut Call<'_>) -> Done {
    let is_known = call.keys.contains(call.key);
    let is_free = !call.keys.contains(Key::new(call.args[2]));
    if is_free || !is_known {
        move_key(call)?;
    }
    call.reply.integer(i64::from(is_free));
    Ok(())
}

/// `COPY source destination [DB 0] [REPLACE]`.
pub(super) fn copy(call: &mut Call<'_>) -> Done {
    let (args, to) = (call.args, Key::new(call.args[2]));
    let (mut replaces, mut words) = (false, 3..args.len());
    while let Some(word) = words.next() {
        if is(args, word, "replace") {
            replaces = true;
        } else if is(args, word, "db") {
            let number = words.next().ok_or(SYNTAX)?;
            match integer(args[number]) {
                Some(0) => {}
                Some(_) => return Err(Refusal::from("ERR DB index is out of range")),
                None => return Err(NOT_AN_INTEGER),
            }
        } else {
            return Err(SYNTAX);
        }
    }
    if call.key.name == to.name {
        return Err(Refusal::from("ERR source and destination objects are the same"));
    }
    let is_copied = (replaces || !call.keys.contains(to)) && call.keys.copy(call.key, to)?;
    if is_copied {
        call.keys.event(Class::GENERIC, "copy_to", to);
    }
    call.reply.integer(i64::from(is_copied));
    Ok(())
}

/// The bits of a cursor that name the core. The others are the place at which it goes on.
const CORE_BITS: u32 = 16;

/// The core that a cursor names; for the first cursor, that with the first keys.
pub(super) fn core_of_cursor(shared: &Shared, args: Args<'_>) -> Result<usize, Refusal> {
    let cursor = cursor_of(args)?;
    if cursor == 0 {
        return Ok(core_with_keys(&shared.gauges, 0).unwrap_or(0));
    }
    let core = usize::try_from(cursor & ((1 << CORE_BITS) - 1)).ok();
    let core = core.filter(|core| *core < shared.cores());
    core.ok_or(Refusal::from("ERR invalid cursor"))
}

/// The first core with keys, from this one on. A core that has a key all the time is not passed by.
fn core_with_keys(cores: &[Arc<Gauges>], from: usize) -> Option<usize> {
    (from..cores.len()).find(|core| cores[*core].keys.get() > 0)
}

fn cursor_of(args: Args<'_>) -> Result<u64, Refusal> {
    let cursor = str::from_utf8(args[1]).ok().and_then(|digits| digits.parse().ok());
    cursor.ok_or(Refusal::from("ERR invalid cursor"))
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`: goes through the keys of one core after
/// the other, and passes by those without keys. A key that is there all the time is returned
/// exactly once. A reply of [`REPLY_BYTES`] ends before it has as many keys as are asked for.
pub(super) fn scan(call: &mut Call<'_>) -> Done {
    const COUNT_MAX: usize = 100_000;
    let cursor = cursor_of(call.args)?;
    let (mut pattern, mut count, mut is_wanted) = (None, 10, true);
    let mut words = call.args[2..].chunks(2);
    for option in &mut words {
        let [name, value] = option else { return Err(SYNTAX) };
        match name.to_ascii_lowercase().as_slice() {
            b"match" => pattern = Some(*value),
            b"count" => {
                let stated = integer(value).ok_or(NOT_AN_INTEGER)?;
                count = usize::try_from(stated).ok().filter(|count| *count > 0).ok_or(SYNTAX)?;
            }
            b"type" => is_wanted = value.eq_ignore_ascii_case(b"string"),
            _ => return Err(SYNTAX),
        }
    }
    let mut found = 0;
    let mut names = BytesMut::new();
    let mut list = Reply { out: &mut names, proto: call.reply.proto };
    let from = (cursor >> CORE_BITS) as usize;
    let next = call.keys.scan(from, count.min(COUNT_MAX), |key| {
        if is_wanted && pattern.is_none_or(|pattern| glob::matches(pattern, key)) {
            list.bulk(key);
            found += 1;
        }
        list.out.len() < REPLY_BYTES
    });
    let core = call.keys.core;
    let next = match next {
        Some(place) => (place as u64) << CORE_BITS | core as u64,
        None => core_with_keys(&call.keys.cores, core + 1).map_or(0, |core| core as u64),
    };
    call.reply.array(2);
    call.reply.bulk(next.to_string().as_bytes());
    call.reply.array(found);
    call.reply.out.extend_from_slice(&names);
    Ok(())
}

/// A core, as often as it has keys.
pub(super) fn any_core(shared: &Shared, _: Args<'_>) -> Result<usize, Refusal> {
    let counts: Vec<_> = shared.gauges.iter().map(|core| core.keys.get()).collect();
    let mut at = Key::random(counts.iter().sum());
    let found = counts.iter().position(|count| {
        let is_here = at < *count;
        at = at.saturating_sub(*count);
        is_here
    });
    Ok(found.unwrap_or(0))
}

pub(super) fn random(call: &mut Call<'_>) -> Done {
    match call.keys.any_key() {
        Some(key) => call.reply.bulk(key),
        None => call.reply.null(),
    }
    Ok(())
}

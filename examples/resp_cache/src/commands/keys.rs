//! Commands on keys, whatever their values.

use bytes::BytesMut;

use super::{Call, Refusal, SYNTAX};
use crate::glob;
use crate::protocol::Reply;

pub(super) fn del(call: &mut Call<'_>) -> Result<(), Refusal> {
    let mut removed = 0;
    for key in call.args.iter().skip(1) {
        let hash = call.keys.hash(key);
        removed += i64::from(call.keys.remove(call.timers, hash, key));
    }
    call.reply.integer(removed);
    Ok(())
}

pub(super) fn exists(call: &mut Call<'_>) -> Result<(), Refusal> {
    let mut found = 0;
    for key in call.args.iter().skip(1) {
        let hash = call.keys.hash(key);
        found += i64::from(call.keys.contains(call.timers, hash, key));
    }
    call.reply.integer(found);
    Ok(())
}

pub(super) fn kind(call: &mut Call<'_>) -> Result<(), Refusal> {
    let is_there = call.keys.contains(call.timers, call.hash, call.key());
    call.reply.simple(if is_there { "string" } else { "none" });
    Ok(())
}

pub(super) fn keys(call: &mut Call<'_>) -> Result<(), Refusal> {
    let pattern = call.key();
    let mut count = 0;
    let mut names = BytesMut::new();
    let mut list = Reply { out: &mut names, proto: call.reply.proto };
    call.keys.for_each_key(call.timers, |key| {
        if glob::matches(pattern, key) {
            list.bulk(key);
            count += 1;
        }
    });
    call.reply.array(count);
    call.reply.out.extend_from_slice(&names);
    Ok(())
}

pub(super) fn flush(call: &mut Call<'_>) -> Result<(), Refusal> {
    let is_known = call.args.is(1, "sync") || call.args.is(1, "async");
    if call.args.len() > 2 || (call.args.len() == 2 && !is_known) {
        return Err(SYNTAX);
    }
    call.keys.clear(call.timers);
    call.reply.ok();
    Ok(())
}

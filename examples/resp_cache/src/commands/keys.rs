//! Commands on keys, whatever their values.

use bytes::BytesMut;

use super::{Call, Done, SYNTAX};
use crate::glob;
use crate::keyspace::Key;
use crate::protocol::{Reply, is};

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
    let mut count = 0;
    let mut names = BytesMut::new();
    let mut list = Reply { out: &mut names, proto: call.reply.proto };
    call.keys.for_each_key(|key| {
        if glob::matches(call.key.name, key) {
            list.bulk(key);
            count += 1;
        }
    });
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

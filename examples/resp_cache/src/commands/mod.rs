//! The commands: a table that says how each is routed, and those that run on the core of a key.
//!
//! A command on one key runs on the key's core and is atomic. `MGET`, `MSET`, `DEL`, `UNLINK`,
//! `EXISTS` and `TOUCH` run on each core that has one of their keys, and are atomic only among the
//! keys of one core. `KEYS`, `DBSIZE`, `FLUSHDB` and `FLUSHALL` run on all cores, one after the
//! other.
#![allow(clippy::unnecessary_wraps, reason = "all commands have the signature of the table")]

mod expiry;
mod keys;
mod strings;

use std::borrow::Cow;

use corewheel::Timers;

use self::expiry::Unit;
use crate::keyspace::{Keyspace, WriteError};
use crate::protocol::{Args, Reply, integer};

/// Why a command was refused, as the client is told.
#[derive(Debug)]
pub(crate) struct Refusal(pub(crate) Cow<'static, str>);

pub(crate) const SYNTAX: Refusal = Refusal(Cow::Borrowed("ERR syntax error"));
pub(crate) const NOT_AN_INTEGER: Refusal =
    Refusal(Cow::Borrowed("ERR value is not an integer or out of range"));

impl Refusal {
    pub(crate) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self(text.into())
    }
}

impl From<WriteError> for Refusal {
    fn from(error: WriteError) -> Self {
        Self::new(match error {
            WriteError::Memory => "OOM command not allowed when used memory > 'maxmemory'.",
            WriteError::Timers => {
                "OOM this core has no timer left for a time to live; start with more --timers-max"
            }
        })
    }
}

/// A command as it runs on one core.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) keys: &'a mut Keyspace,
    pub(crate) timers: &'a Timers<u32>,
    pub(crate) args: Args<'a>,
    pub(crate) reply: Reply<'a>,
    /// The hash of the first key.
    pub(crate) hash: u64,
    /// The most bytes of a value.
    pub(crate) value_max: usize,
}

impl<'a> Call<'a> {
    /// The first key.
    fn key(&self) -> &'a [u8] {
        self.args.get(1).expect("the command's arity is checked")
    }

    fn integer(&self, index: usize) -> Result<i64, Refusal> {
        self.args.get(index).and_then(integer).ok_or(NOT_AN_INTEGER)
    }

    fn bulk_or_null(&mut self, key: &[u8]) {
        match self.keys.get(self.timers, self.hash, key) {
            Some(value) => self.reply.bulk(value),
            None => self.reply.null(),
        }
    }
}

pub(crate) type Run = fn(&mut Call<'_>) -> Result<(), Refusal>;

/// Where a command runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// In the session of its client.
    Session,
    /// On the core of its first argument.
    Key(Run),
    /// `MGET`: a `GET` on the core of each key.
    Each,
    /// On each core that has one of its keys. The integers that they reply are added.
    Sum(Run),
    /// On each core that has one of its pairs of key and value.
    Pairs(Run),
    /// On all cores; the first refusal, or OK, is the reply.
    All(Run),
    /// On all cores; the arrays that they reply are joined.
    Join(Run),
    /// `PUBLISH`: to the subscribers of all cores.
    Publish,
}

#[derive(Debug)]
pub(crate) struct Command {
    /// The name, in lower case.
    pub(crate) name: &'static str,
    /// The number of words; the least number, negated, if there may be more.
    pub(crate) arity: i8,
    pub(crate) route: Route,
}

impl Command {
    pub(crate) fn accepts(&self, words: usize) -> bool {
        let arity = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { words >= arity } else { words == arity }
    }

    /// What runs on the core of a key.
    pub(crate) fn run(&self) -> Option<Run> {
        match self.route {
            Route::Key(run)
            | Route::Sum(run)
            | Route::Pairs(run)
            | Route::All(run)
            | Route::Join(run) => Some(run),
            Route::Session | Route::Each | Route::Publish => None,
        }
    }
}

const fn command(name: &'static str, arity: i8, route: Route) -> Command {
    Command { name, arity, route }
}

/// All commands, by their names.
pub(crate) static COMMANDS: [Command; 50] = [
    command("append", 3, Route::Key(strings::append)),
    command("client", -2, Route::Session),
    command("command", -1, Route::Session),
    command("config", -2, Route::Session),
    command("dbsize", 1, Route::Session),
    command("decr", 2, Route::Key(|call| strings::add(call, -1))),
    command("decrby", 3, Route::Key(strings::decrby)),
    command("del", -2, Route::Sum(keys::del)),
    command("echo", 2, Route::Session),
    command("exists", -2, Route::Sum(keys::exists)),
    command("expire", -3, Route::Key(|call| expiry::change(call, "expire", Unit::EX))),
    command("expireat", -3, Route::Key(|call| expiry::change(call, "expireat", Unit::EXAT))),
    command("expiretime", 2, Route::Key(|call| expiry::reply_time(call, expiry::wall_seconds))),
    command("flushall", -1, Route::All(keys::flush)),
    command("flushdb", -1, Route::All(keys::flush)),
    command("function", -2, Route::Session),
    command("get", 2, Route::Key(strings::get)),
    command("getdel", 2, Route::Key(strings::getdel)),
    command("getex", -2, Route::Key(strings::getex)),
    command("hello", -1, Route::Session),
    command("incr", 2, Route::Key(|call| strings::add(call, 1))),
    command("incrby", 3, Route::Key(strings::incrby)),
    command("info", -1, Route::Session),
    command("keys", 2, Route::Join(keys::keys)),
    command("mget", -2, Route::Each),
    command("mset", -3, Route::Pairs(strings::mset)),
    command("persist", 2, Route::Key(expiry::persist)),
    command("pexpire", -3, Route::Key(|call| expiry::change(call, "pexpire", Unit::PX))),
    command("pexpireat", -3, Route::Key(|call| expiry::change(call, "pexpireat", Unit::PXAT))),
    command("pexpiretime", 2, Route::Key(|call| expiry::reply_time(call, expiry::wall_millis))),
    command("ping", -1, Route::Session),
    command("psetex", 4, Route::Key(|call| strings::set_with_time(call, "psetex", Unit::PX))),
    command("psubscribe", -2, Route::Session),
    command("pttl", 2, Route::Key(|call| expiry::reply_time(call, expiry::remaining_millis))),
    command("publish", 3, Route::Publish),
    command("punsubscribe", -1, Route::Session),
    command("quit", -1, Route::Session),
    command("reset", 1, Route::Session),
    command("select", 2, Route::Session),
    command("set", -3, Route::Key(strings::set)),
    command("setex", 4, Route::Key(|call| strings::set_with_time(call, "setex", Unit::EX))),
    command("setnx", 3, Route::Key(strings::setnx)),
    command("strlen", 2, Route::Key(strings::strlen)),
    command("subscribe", -2, Route::Session),
    command("time", 1, Route::Session),
    command("touch", -2, Route::Sum(keys::exists)),
    command("ttl", 2, Route::Key(|call| expiry::reply_time(call, expiry::remaining_seconds))),
    command("type", 2, Route::Key(keys::kind)),
    command("unlink", -2, Route::Sum(keys::del)),
    command("unsubscribe", -1, Route::Session),
];

/// The command of a name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let at = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()?;
    Some(&COMMANDS[at])
}

/// The refusal of a command that there is not.
pub(crate) fn unknown(args: &Args<'_>) -> Refusal {
    const SHOWN_MAX: usize = 64;
    const ARGS_SHOWN: usize = 4;
    let show = |arg: &[u8]| {
        let arg = &arg[..arg.len().min(SHOWN_MAX)];
        String::from_utf8_lossy(arg).into_owned()
    };
    let name = args.get(0).map(show).unwrap_or_default();
    let rest = args.iter().skip(1).take(ARGS_SHOWN);
    let shown: Vec<_> = rest.map(|arg| format!("'{}'", show(arg))).collect();
    let shown = shown.join(" ");
    Refusal::new(format!("ERR unknown command '{name}', with args beginning with: {shown}"))
}

pub(crate) fn wrong_arity(name: &str) -> Refusal {
    Refusal::new(format!("ERR wrong number of arguments for '{name}' command"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sorted_and_found_in_any_case() {
        assert!(COMMANDS.is_sorted_by(|a, b| a.name < b.name));
        for command in &COMMANDS {
            let found = find(command.name.to_uppercase().as_bytes());
            assert_eq!(found.map(|found| found.name), Some(command.name));
        }
        for name in ["", "lpush", "a name that is much too long"] {
            assert!(find(name.as_bytes()).is_none());
        }
    }
}

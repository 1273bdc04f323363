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

use self::expiry::Unit;
use crate::keyspace::{Key, Keyspace};
use crate::protocol::{Args, Reply, integer};
use crate::remote::Combine;

/// Why a command was refused, as the client is told.
pub(crate) type Refusal = Cow<'static, str>;

pub(crate) const SYNTAX: Refusal = Refusal::Borrowed("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: Refusal =
    Refusal::Borrowed("ERR value is not an integer or out of range");

/// A command as it runs on one core.
pub(crate) struct Call<'a> {
    pub(crate) keys: &'a mut Keyspace,
    /// The first key; empty for a command without words.
    pub(crate) key: Key<'a>,
    pub(crate) args: Args<'a>,
    pub(crate) reply: Reply<'a>,
    /// The most bytes of a value.
    pub(crate) value_max: usize,
}

impl Call<'_> {
    /// Executes the command, and replies with a refusal if it is refused.
    pub(crate) fn execute(mut self, run: Run) {
        let begin = self.reply.out.len();
        if let Err(refusal) = run(&mut self) {
            self.reply.out.truncate(begin);
            self.reply.error(&refusal);
        }
    }

    fn integer(&self, index: usize) -> Result<i64, Refusal> {
        self.args.get(index).and_then(|arg| integer(arg)).ok_or(NOT_AN_INTEGER)
    }
}

/// The outcome of a command. What it has replied is dropped if it is refused.
pub(crate) type Done = Result<(), Refusal>;
pub(crate) type Run = fn(&mut Call<'_>) -> Done;

/// Where a command runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// In the session of its client.
    Session,
    /// On the core of its first argument.
    Key(Run),
    /// As this command on the core of each key; the reply is an array.
    Each(&'static str, Run),
    /// On each core that has one of its keys, which are so many words apart.
    Keys(Run, u8, Combine),
    /// On all cores.
    All(Run, Combine),
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
        match self.route {
            Route::Keys(_, step, _) if !(words - 1).is_multiple_of(step.into()) => false,
            _ if self.arity < 0 => words >= arity,
            _ => words == arity,
        }
    }

    /// What runs on the core of a key.
    pub(crate) fn run(&self) -> Option<Run> {
        match self.route {
            Route::Key(run) | Route::Keys(run, ..) | Route::All(run, _) => Some(run),
            Route::Session | Route::Each(..) | Route::Publish => None,
        }
    }
}

const fn command(name: &'static str, arity: i8, route: Route) -> Command {
    Command { name, arity, route }
}

const DEL: Run = |call| keys::count(call, |call, key| call.keys.remove(key));
const EXISTS: Run = |call| keys::count(call, |call, key| call.keys.contains(key));
const INCRBY: Run = |call| strings::add(call, call.integer(2)?);
const PERSIST: Run = |call| {
    let is_changed = expiry::make_persistent(call)?;
    call.reply.integer(i64::from(is_changed));
    Ok(())
};

/// All commands, by their names.
pub(crate) static COMMANDS: [Command; 50] = [
    command("append", 3, Route::Key(strings::append)),
    command("client", -2, Route::Session),
    command("command", -1, Route::Session),
    command("config", -2, Route::Session),
    command("dbsize", 1, Route::Session),
    command("decr", 2, Route::Key(|call| strings::add(call, -1))),
    command("decrby", 3, Route::Key(strings::decrby)),
    command("del", -2, Route::Keys(DEL, 1, Combine::Sum)),
    command("echo", 2, Route::Session),
    command("exists", -2, Route::Keys(EXISTS, 1, Combine::Sum)),
    command("expire", -3, Route::Key(|call| expiry::change(call, Unit::EX))),
    command("expireat", -3, Route::Key(|call| expiry::change(call, Unit::EXAT))),
    command("expiretime", 2, Route::Key(|call| expiry::reply_time(call, Unit::EXAT))),
    command("flushall", -1, Route::All(keys::flush, Combine::Ok)),
    command("flushdb", -1, Route::All(keys::flush, Combine::Ok)),
    command("function", -2, Route::Session),
    command("get", 2, Route::Key(strings::get)),
    command("getdel", 2, Route::Key(strings::getdel)),
    command("getex", -2, Route::Key(strings::getex)),
    command("hello", -1, Route::Session),
    command("incr", 2, Route::Key(|call| strings::add(call, 1))),
    command("incrby", 3, Route::Key(INCRBY)),
    command("info", -1, Route::Session),
    command("keys", 2, Route::All(keys::keys, Combine::Join)),
    command("mget", -2, Route::Each("get", strings::get)),
    command("mset", -3, Route::Keys(strings::mset, 2, Combine::Ok)),
    command("persist", 2, Route::Key(PERSIST)),
    command("pexpire", -3, Route::Key(|call| expiry::change(call, Unit::PX))),
    command("pexpireat", -3, Route::Key(|call| expiry::change(call, Unit::PXAT))),
    command("pexpiretime", 2, Route::Key(|call| expiry::reply_time(call, Unit::PXAT))),
    command("ping", -1, Route::Session),
    command("psetex", 4, Route::Key(|call| strings::set_with_time(call, Unit::PX))),
    command("psubscribe", -2, Route::Session),
    command("pttl", 2, Route::Key(|call| expiry::reply_time(call, Unit::PX))),
    command("publish", 3, Route::Publish),
    command("punsubscribe", -1, Route::Session),
    command("quit", -1, Route::Session),
    command("reset", 1, Route::Session),
    command("select", 2, Route::Session),
    command("set", -3, Route::Key(strings::set)),
    command("setex", 4, Route::Key(|call| strings::set_with_time(call, Unit::EX))),
    command("setnx", 3, Route::Key(strings::setnx)),
    command("strlen", 2, Route::Key(strings::strlen)),
    command("subscribe", -2, Route::Session),
    command("time", 1, Route::Session),
    command("touch", -2, Route::Keys(EXISTS, 1, Combine::Sum)),
    command("ttl", 2, Route::Key(|call| expiry::reply_time(call, Unit::EX))),
    command("type", 2, Route::Key(keys::kind)),
    command("unlink", -2, Route::Keys(DEL, 1, Combine::Sum)),
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

/// The refusal of a subcommand.
pub(crate) fn unknown_subcommand(of: &str, known: &str) -> Refusal {
    let problem = "unknown subcommand or wrong number of arguments for";
    Refusal::from(format!("ERR {problem} '{of}'. Known: {known}."))
}

/// The refusal of a command that there is not.
pub(crate) fn unknown(args: Args<'_>) -> Refusal {
    const SHOWN_MAX: usize = 64;
    const ARGS_SHOWN: usize = 4;
    let cut = |arg: &&[u8]| arg[..arg.len().min(SHOWN_MAX)].to_vec();
    let shown = args.iter().take(1 + ARGS_SHOWN);
    let shown: Vec<_> =
        shown.map(|arg| format!("'{}'", String::from_utf8_lossy(&cut(arg)))).collect();
    let (name, rest) = (&shown[0], shown[1..].join(" "));
    Refusal::from(format!("ERR unknown command {name}, with args beginning with: {rest}"))
}

pub(crate) fn wrong_arity(name: &str) -> Refusal {
    Refusal::from(format!("ERR wrong number of arguments for '{name}' command"))
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

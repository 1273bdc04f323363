//! The commands: a table that says how each is routed, and those that run on the core of a key.
//!
//! A command on one key runs on the key's core and is atomic, and so does a command on several keys
//! that must be on one core, such as `RENAME`. `MGET`, `MSET`, `DEL`, `UNLINK`,
//! `EXISTS` and `TOUCH` run on each core that has one of their keys, and are atomic only among the
//! keys of one core. `KEYS`, `DBSIZE`, `FLUSHDB` and `FLUSHALL` run on all cores, one after the
//! other.
#![allow(clippy::unnecessary_wraps, reason = "all commands have the signature of the table")]

mod expiry;
mod keys;
mod strings;

use std::borrow::Cow;

use self::expiry::Unit;
use crate::core::Shared;
use crate::keyspace::{Key, Keyspace};
use crate::protocol::{Args, Reply, integer, is};
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
    pub(crate) limits: Limits,
}

/// What a command may write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most bytes of a value.
    pub(crate) value: usize,
    /// The most bytes of the replies to one request, or to one transaction.
    pub(crate) replies: usize,
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

    /// Refuses a value that would be too long.
    fn check_length(&self, bytes: usize) -> Done {
        let max = self.limits.value;
        let problem = || format!("ERR string exceeds maximum allowed size ({max} bytes)");
        if bytes > max { Err(Refusal::from(problem())) } else { Ok(()) }
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
    /// On the core that has all of its keys, which are the words up to the last, so many apart; -1
    /// is the last word.
    Together(Run, i8, u8),
    /// On a core that the session chooses.
    Chosen(fn(&Shared, Args<'_>) -> Result<usize, Refusal>, Run),
    /// On all cores.
    All(Run, Combine),
    /// `PUBLISH`: to the subscribers of all cores.
    Publish,
    /// `MULTI`, `EXEC` and `DISCARD`.
    Transaction,
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
            Route::Keys(_, step, _) | Route::Together(_, -1, step)
                if !(words - 1).is_multiple_of(step.into()) =>
            {
                false
            }
            _ if self.arity < 0 => words >= arity,
            _ => words == arity,
        }
    }

    /// The first and the last of the words that are keys, and how far they are apart; -1 is the
    /// last word. Zeros if there are no keys.
    pub(crate) fn key_range(&self) -> (u8, i8, u8) {
        match self.route {
            Route::Key(_) => (1, 1, 1),
            Route::Each(..) => (1, -1, 1),
            Route::Keys(_, step, _) => (1, -1, step),
            Route::Together(_, last, step) => (1, last, step),
            _ => (0, 0, 0),
        }
    }

    /// The keys among the words of a request.
    pub(crate) fn keys<'a>(&self, args: Args<'a>) -> impl Iterator<Item = &'a [u8]> {
        let (first, last, step) = self.key_range();
        let end = usize::try_from(last).map_or(args.len(), |last| args.len().min(last + 1));
        args[..end].iter().skip(first.into()).step_by(step.max(1).into()).copied()
    }

    /// Executes the command on the core of its keys.
    pub(crate) fn run_on(
        &self,
        keys: &mut Keyspace,
        args: Args<'_>,
        mut reply: Reply<'_>,
        limits: Limits,
    ) {
        let begin = reply.out.len();
        match self.route {
            Route::Key(run)
            | Route::Keys(run, ..)
            | Route::Together(run, ..)
            | Route::Chosen(_, run)
            | Route::All(run, _) => {
                let key = Key::new(args.get(1).copied().unwrap_or_default());
                Call { keys, key, args, reply, limits }.execute(run);
            }
            Route::Each(name, run) => {
                reply.array(args.len() - 1);
                for word in &args[1..] {
                    let (key, args) = (Key::new(word), &[name.as_bytes(), word]);
                    let part = Reply { out: reply.out, proto: reply.proto };
                    Call { keys, key, args, reply: part, limits }.execute(run);
                    if reply.out.len() - begin > limits.replies {
                        // The caller replaces it, and the command only reads.
                        break;
                    }
                }
            }
            Route::Session | Route::Publish | Route::Transaction => {
                unreachable!("'{}' runs on no keys", self.name);
            }
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
pub(crate) static COMMANDS: [Command; 64] = [
    command("append", 3, Route::Key(strings::append)),
    command("client", -2, Route::Session),
    command("command", -1, Route::Session),
    command("config", -2, Route::Session),
    command("copy", -3, Route::Together(keys::copy, 2, 1)),
    command("dbsize", 1, Route::Session),
    command("decr", 2, Route::Key(|call| strings::add(call, -1))),
    command("decrby", 3, Route::Key(strings::decrby)),
    command("del", -2, Route::Keys(DEL, 1, Combine::Sum)),
    command("discard", 1, Route::Transaction),
    command("echo", 2, Route::Session),
    command("exec", 1, Route::Transaction),
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
    command("getrange", 4, Route::Key(strings::getrange)),
    command("getset", 3, Route::Key(strings::getset)),
    command("hello", -1, Route::Session),
    command("incr", 2, Route::Key(|call| strings::add(call, 1))),
    command("incrby", 3, Route::Key(INCRBY)),
    command("incrbyfloat", 3, Route::Key(strings::incrbyfloat)),
    command("info", -1, Route::Session),
    command("keys", 2, Route::All(keys::keys, Combine::Join)),
    command("mget", -2, Route::Each("get", strings::get)),
    command("mset", -3, Route::Keys(strings::mset, 2, Combine::Ok)),
    command("msetnx", -3, Route::Together(strings::msetnx, -1, 2)),
    command("multi", 1, Route::Transaction),
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
    command("randomkey", 1, Route::Chosen(keys::any_core, keys::random)),
    command("rename", 3, Route::Together(keys::rename, 2, 1)),
    command("renamenx", 3, Route::Together(keys::renamenx, 2, 1)),
    command("reset", 1, Route::Session),
    command("scan", -2, Route::Chosen(keys::core_of_cursor, keys::scan)),
    command("select", 2, Route::Session),
    command("set", -3, Route::Key(strings::set)),
    command("setex", 4, Route::Key(|call| strings::set_with_time(call, Unit::EX))),
    command("setnx", 3, Route::Key(strings::setnx)),
    command("setrange", 4, Route::Key(strings::setrange)),
    command("strlen", 2, Route::Key(strings::strlen)),
    command("subscribe", -2, Route::Session),
    command("substr", 4, Route::Key(strings::getrange)),
    command("time", 1, Route::Session),
    command("touch", -2, Route::Keys(EXISTS, 1, Combine::Sum)),
    command("ttl", 2, Route::Key(|call| expiry::reply_time(call, Unit::EX))),
    command("type", 2, Route::Key(keys::kind)),
    command("unlink", -2, Route::Keys(DEL, 1, Combine::Sum)),
    command("unsubscribe", -1, Route::Session),
];

/// The command of a name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    place_of(name).map(|at| &COMMANDS[at])
}

/// Where the command of a name is among [`COMMANDS`].
pub(crate) fn place_of(name: &[u8]) -> Option<usize> {
    let mut lower = [0; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower)).ok()
}

/// The refusal of a subcommand.
pub(crate) fn unknown_subcommand(of: &str, known: &str) -> Refusal {
    let problem = "unknown subcommand or wrong number of arguments for";
    Refusal::from(format!("ERR {problem} '{of}'. Known: {known}."))
}

/// The refusal of a command that there is not.
pub(crate) fn unknown(args: Args<'_>) -> Refusal {
    const SCRIPTS: [&str; 5] = ["eval", "eval_ro", "evalsha", "evalsha_ro", "script"];
    const SHOWN_MAX: usize = 64;
    const ARGS_SHOWN: usize = 4;
    if SCRIPTS.iter().any(|name| is(args, 0, name)) {
        return Refusal::from(
            "ERR unknown command: this server has no scripts. A lock that a client releases by a \
             script stays until its time to live is over",
        );
    }
    let cut = |arg: &&[u8]| arg[..arg.len().min(SHOWN_MAX)].to_vec();
    let shown = args.iter().take(1 + ARGS_SHOWN);
    let shown: Vec<_> =
        shown.map(|arg| format!("'{}'", String::from_utf8_lossy(&cut(arg)))).collect();
    let (name, rest) = (&shown[0], shown[1..].join(" "));
    Refusal::from(format!(
        "ERR unknown command {name}, with args beginning with: {rest}. This server keeps strings \
         only; COMMAND LIST has its commands"
    ))
}

/// In place of a reply that a transaction has no room for.
pub(crate) fn too_large(max: usize) -> Refusal {
    Refusal::from(format!(
        "ERR the command was executed and its reply is left out: the replies to this transaction \
         take more than {max} bytes"
    ))
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

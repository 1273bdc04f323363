//! The commands: a table that says where each runs, and those that run on the core of a key.
//!
//! A command on one key runs on the key's core and is atomic. `MGET`, `DEL` and `EXISTS` run for
//! each of their keys as if each had a command of its own.
#![allow(clippy::unnecessary_wraps, reason = "all commands have the signature of the table")]

use std::borrow::Cow;
use std::time::{Duration, Instant, UNIX_EPOCH};

use crate::keyspace::{Key, Keyspace, Ttl};
use crate::protocol::{Args, Reply, integer};

/// Why a command was refused, as the client is told.
pub(crate) type Refusal = Cow<'static, str>;

const SYNTAX: Refusal = Refusal::Borrowed("ERR syntax error");
const NOT_AN_INTEGER: Refusal = Refusal::Borrowed("ERR value is not an integer or out of range");

/// A command as it runs on the core of its key.
pub(crate) struct Call<'a> {
    pub(crate) keys: &'a mut Keyspace,
    pub(crate) key: Key<'a>,
    pub(crate) args: Args<'a>,
    pub(crate) reply: Reply<'a>,
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
    /// `MGET`: as `GET` on the core of each key.
    Each,
    /// On the core of each key; the reply is the number of keys for which the function is true.
    Count(fn(&mut Keyspace, Key<'_>) -> bool),
    /// `FLUSHALL`: on all cores.
    All,
}

#[derive(Debug)]
pub(crate) struct Command {
    /// The name, in lower case.
    pub(crate) name: &'static str,
    /// The number of words; the least number, negated, if there may be more.
    arity: i8,
    pub(crate) route: Route,
}

impl Command {
    /// Executes a request that another core has sent. Each has one key, but for `FLUSHALL`.
    pub(crate) fn run_here(&self, keys: &mut Keyspace, args: Args<'_>, mut reply: Reply<'_>) {
        let key = Key::new(args.get(1).copied().unwrap_or_default());
        match self.route {
            Route::Key(run) => Call { keys, key, args, reply }.execute(run),
            Route::Count(is_it) => reply.integer(i64::from(is_it(keys, key))),
            Route::All => {
                keys.clear();
                reply.integer(0);
            }
            Route::Session | Route::Each => unreachable!("'{}' is not sent", self.name),
        }
    }
}

const fn command(name: &'static str, arity: i8, route: Route) -> Command {
    Command { name, arity, route }
}

/// All commands, by their names.
static COMMANDS: [Command; 28] = [
    command("client", -2, Route::Session),
    command("command", -1, Route::Session),
    command("config", -3, Route::Session),
    command("dbsize", 1, Route::Session),
    command("del", -2, Route::Count(Keyspace::remove)),
    command("exists", -2, Route::Count(Keyspace::contains)),
    command("expire", 3, Route::Key(|call| expire(call, EX))),
    command("flushall", -1, Route::All),
    command("get", 2, Route::Key(get)),
    command("getdel", 2, Route::Key(getdel)),
    command("getex", -2, Route::Key(getex)),
    command("hello", -1, Route::Session),
    command("incr", 2, Route::Key(|call| add(call, 1))),
    command("incrby", 3, Route::Key(|call| add(call, call.integer(2)?))),
    command("info", -1, Route::Session),
    command("mget", -2, Route::Each),
    command("persist", 2, Route::Key(persist)),
    command("pexpire", 3, Route::Key(|call| expire(call, PX))),
    command("ping", -1, Route::Session),
    command("psubscribe", -2, Route::Session),
    command("pttl", 2, Route::Key(|call| reply_ttl(call, 1))),
    command("punsubscribe", -1, Route::Session),
    command("quit", -1, Route::Session),
    command("select", 2, Route::Session),
    command("set", -3, Route::Key(set)),
    command("subscribe", -2, Route::Session),
    command("ttl", 2, Route::Key(|call| reply_ttl(call, 1_000))),
    command("unsubscribe", -1, Route::Session),
];

/// The command of a name, in any case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Command> {
    let mut lower = [0; 16];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    let found = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(lower));
    found.ok().map(|at| &COMMANDS[at])
}

/// The command of a request, if there is one that takes as many words.
pub(crate) fn check(args: Args<'_>) -> Result<&'static Command, Refusal> {
    const SHOWN_MAX: usize = 64;
    let command = find(args[0]).ok_or_else(|| {
        let shown = String::from_utf8_lossy(&args[0][..args[0].len().min(SHOWN_MAX)]);
        let problem = "this cache has few commands, which its README lists";
        Refusal::from(format!("ERR unknown command '{shown}': {problem}"))
    })?;
    let arity = usize::from(command.arity.unsigned_abs());
    let is_accepted = if command.arity < 0 { args.len() >= arity } else { args.len() == arity };
    let name = command.name;
    let refused = || format!("ERR wrong number of arguments for '{name}' command").into();
    is_accepted.then_some(command).ok_or_else(refused)
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

    fn invalid_time(&self) -> Refusal {
        let command = String::from_utf8_lossy(self.args[0]).to_lowercase();
        format!("ERR invalid expire time in '{command}' command").into()
    }

    /// A deadline that a command states; `None` if it has passed.
    fn deadline(&self, ((unit, is_wall), value): Stated) -> Result<Option<Instant>, Refusal> {
        let millis = value.checked_mul(unit).ok_or_else(|| self.invalid_time())?;
        let stated = Duration::from_millis(millis.max(0).cast_unsigned());
        let past = if is_wall { UNIX_EPOCH.elapsed().unwrap_or_default() } else { Duration::ZERO };
        let left = stated.saturating_sub(past);
        Ok(if left.is_zero() { None } else { self.keys.now().checked_add(left) })
    }

    /// A deadline of a `SET` or a `GETEX`, whose time must be positive.
    fn positive(&self, stated: Stated) -> Result<Option<Instant>, Refusal> {
        if stated.1 <= 0 { Err(self.invalid_time()) } else { self.deadline(stated) }
    }

    /// Gives the key, if it is there, a deadline; removes it if the deadline has passed.
    fn apply(&mut self, deadline: Option<Instant>) -> Done {
        match deadline {
            Some(_) => self.keys.expire(self.key, deadline)?,
            None => drop(self.keys.remove(self.key)),
        }
        Ok(())
    }
}

/// How a command states a time: the milliseconds of a unit, and whether it is a point in wall time
/// rather than a length of time.
type Unit = (i64, bool);
/// A time as a command states it.
type Stated = (Unit, i64);

const EX: Unit = (1_000, false);
const PX: Unit = (1, false);

/// The options of a command from a word on: which of those that stand `alone` are there, and a
/// time. The last of several times in one unit holds, as in redis; two units are refused, and so is
/// a time beside the first that stands alone.
fn options<const ALONE: usize>(
    words: Args<'_>,
    alone: [&str; ALONE],
) -> Result<([bool; ALONE], Option<Stated>), Refusal> {
    let (mut found, mut stated) = ([false; ALONE], None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let word = word.to_ascii_lowercase();
        if let Some(at) = alone.iter().position(|name| name.as_bytes() == word) {
            found[at] = true;
            continue;
        }
        let unit = match word.as_slice() {
            b"ex" => EX,
            b"px" => PX,
            b"exat" => (1_000, true),
            b"pxat" => (1, true),
            _ => return Err(SYNTAX),
        };
        if stated.is_some_and(|(known, _)| known != unit) {
            return Err(SYNTAX);
        }
        let value = words.next().ok_or(SYNTAX)?;
        stated = Some((unit, integer(value).ok_or(NOT_AN_INTEGER)?));
    }
    if found[0] && stated.is_some() { Err(SYNTAX) } else { Ok((found, stated)) }
}

pub(crate) fn get(call: &mut Call<'_>) -> Done {
    match call.keys.get(call.key) {
        Some(value) => call.reply.bulk(value),
        None => call.reply.null(),
    }
    Ok(())
}

/// `SET key value [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL] [NX | XX] [GET]`.
fn set(call: &mut Call<'_>) -> Done {
    let alone = ["keepttl", "get", "nx", "xx"];
    let ([keeps_ttl, replies_old, only_new, only_known], stated) = options(&call.args[3..], alone)?;
    if only_new && only_known {
        return Err(SYNTAX);
    }
    let ttl = match stated {
        Some(stated) => call.positive(stated)?.map(Ttl::Set),
        None => Some(if keeps_ttl { Ttl::Keep } else { Ttl::Remove }),
    };
    let is_refused = (only_new || only_known) && call.keys.contains(call.key) == only_new;
    if replies_old {
        get(call)?;
    } else if is_refused {
        call.reply.null();
    } else {
        call.reply.simple("OK");
    }
    match ttl {
        _ if is_refused => {}
        Some(ttl) => call.keys.set(call.key, call.args[2], ttl)?,
        // Its deadline has passed, so the key is gone at once.
        None => drop(call.keys.remove(call.key)),
    }
    Ok(())
}

fn getdel(call: &mut Call<'_>) -> Done {
    get(call)?;
    call.keys.remove(call.key);
    Ok(())
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`.
fn getex(call: &mut Call<'_>) -> Done {
    let ([is_persistent], stated) = options(&call.args[2..], ["persist"])?;
    let deadline = stated.map(|stated| call.positive(stated)).transpose()?;
    get(call)?;
    match deadline {
        Some(deadline) => call.apply(deadline),
        None if is_persistent => Ok(call.keys.expire(call.key, None)?),
        _ => Ok(()),
    }
}

fn add(call: &mut Call<'_>, more: i64) -> Done {
    let before = call.keys.get(call.key).map_or(Some(0), integer).ok_or(NOT_AN_INTEGER)?;
    let overflow = Refusal::from("ERR increment or decrement would overflow");
    let sum = before.checked_add(more).ok_or(overflow)?;
    call.keys.set(call.key, sum.to_string().as_bytes(), Ttl::Keep)?;
    call.reply.integer(sum);
    Ok(())
}

fn expire(call: &mut Call<'_>, unit: Unit) -> Done {
    let deadline = call.deadline((unit, call.integer(2)?))?;
    let is_there = call.keys.contains(call.key);
    call.apply(deadline)?;
    call.reply.integer(i64::from(is_there));
    Ok(())
}

fn persist(call: &mut Call<'_>) -> Done {
    let is_timed = matches!(call.keys.ttl(call.key), Some(Ttl::Set(_)));
    call.keys.expire(call.key, None)?;
    call.reply.integer(i64::from(is_timed));
    Ok(())
}

/// Replies with the time to live of the key, in units of so many milliseconds: -2 without the key,
/// -1 without a deadline.
fn reply_ttl(call: &mut Call<'_>, unit: u128) -> Done {
    let left = match call.keys.ttl(call.key) {
        None => -2,
        Some(Ttl::Remove | Ttl::Keep) => -1,
        Some(Ttl::Set(deadline)) => {
            let left = deadline.saturating_duration_since(call.keys.now());
            let millis = left.as_micros().div_ceil(1_000);
            i64::try_from((millis + unit / 2) / unit).unwrap_or(i64::MAX)
        }
    };
    call.reply.integer(left);
    Ok(())
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

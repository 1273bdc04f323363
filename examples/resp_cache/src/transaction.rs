//! Transactions: the commands between `MULTI` and `EXEC`, which one core executes without any other
//! in between.
//!
//! All keys of a transaction are on one core, as those of a transaction in a cluster of redis are
//! in one slot: keys with the same `{tag}` are. A command that cannot be queued is refused at once,
//! and `EXEC` then executes none of them.

use crate::commands::{Command, Refusal, Route};
use crate::core::Shared;
use crate::keyspace::Key;
use crate::protocol::{Args, encode_request};

pub(crate) const CROSSSLOT: Refusal = Refusal::Borrowed(
    "CROSSSLOT Keys in request are on different cores; give all of them the same {tag}",
);

/// The core that has all keys of a command; `None` if they are on several.
pub(crate) fn core_of(shared: &Shared, command: &Command, args: Args<'_>) -> Option<usize> {
    let mut owners = command.keys(args).map(|key| shared.owner(Key::new(key)));
    let first = owners.next()?;
    owners.all(|owner| owner == first).then_some(first)
}

/// The commands of a session that a transaction may have.
const OWN: [&str; 7] = ["config", "dbsize", "echo", "info", "ping", "select", "time"];

/// A command of a transaction.
#[derive(Debug)]
pub(crate) enum Queued {
    /// One on keys, which is among the requests for the core.
    OnKeys,
    /// One that the session executes when the core has executed all others: its words.
    Own(Vec<Vec<u8>>),
}

#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(crate) queued: Vec<Queued>,
    /// The commands on keys, encoded one after the other.
    pub(crate) requests: Vec<u8>,
    /// The core of the keys; `None` before the first of them.
    pub(crate) core: Option<usize>,
    /// Whether a command was refused.
    pub(crate) is_refused: bool,
    /// The bytes of all words.
    bytes: usize,
}

impl Transaction {
    /// What it takes, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.bytes + self.queued.capacity() * size_of::<Queued>()
    }

    /// Queues a command.
    pub(crate) fn queue(
        &mut self,
        shared: &Shared,
        command: &Command,
        args: Args<'_>,
    ) -> Result<(), Refusal> {
        let bytes: usize = args.iter().map(|arg| arg.len() + size_of::<Vec<u8>>()).sum();
        if self.bytes + bytes > shared.options.request_max {
            return Err(Refusal::from("ERR the transaction is larger than a request may be"));
        }
        let is_own = match command.route {
            Route::Publish => true,
            // The others change how replies are written, or are messages themselves.
            Route::Session => OWN.contains(&command.name),
            _ => false,
        };
        if is_own {
            self.queued.push(Queued::Own(args.iter().map(|arg| arg.to_vec()).collect()));
        } else if command.key_range().0 == 0 {
            let name = command.name;
            let problem = format!("ERR '{name}' cannot be in a transaction of this server");
            return Err(Refusal::from(problem));
        } else {
            let core = core_of(shared, command, args).ok_or(CROSSSLOT)?;
            if self.core.is_some_and(|known| known != core) {
                return Err(CROSSSLOT);
            }
            self.core = Some(core);
            self.queued.push(Queued::OnKeys);
            encode_request(&mut self.requests, args);
        }
        self.bytes += bytes;
        Ok(())
    }
}

//! The vocabulary of callers: [`Timers`](timers::Timers) on a shard's own core,
//! [`Handle`](handle::Handle) from any thread, the futures of both, and the types of callbacks.

pub(crate) mod callback;
pub(crate) mod calls;
pub(crate) mod handle;
pub(crate) mod host;
pub(crate) mod local;
pub(crate) mod many;
pub(crate) mod reply;
pub mod report;
pub(crate) mod sleep;
mod sleepers;
pub(crate) mod stored;
pub(crate) mod timers;

use self::stored::Stored;
use crate::shard;

/// A shard on its own thread, whose timers carry values of `T`.
pub(crate) type Core<T> = shard::Core<Stored<T>>;
pub(crate) type Directory<T> = shard::Directory<Stored<T>>;
pub(crate) type Post<T> = shard::Post<Stored<T>>;
/// The lanes of a thread.
pub(crate) type Lanes<T> = shard::lanes::Lanes<Stored<T>>;
pub(crate) type Request<T> = shard::request::Request<Stored<T>>;

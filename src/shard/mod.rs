//! The code that the thread of one shard runs: its state, its turns and its end.
//!
//! [`State`](self::core::State) is a plain struct. [`Core`] owns it in a `RefCell`, since a
//! callback may call back into the shard. Each command borrows the state, works, releases the
//! state, runs the effects that the work has left and wakes the driver at most once, in this order.
//!
//! The types that have fields lie in `core.rs`, `request.rs`, `timers.rs` and the files below these
//! three, which are all that form a circle. The functions over them lie in the other files.
//!
//! A command on the shard's own thread wakes the driver's waker when the command is complete, with
//! nothing borrowed. A handle wakes it while the lanes of its thread are borrowed, in
//! `Lanes::on_lane`. So the waker must do no more than wake: if it sends by a handle of the service
//! whose shard is woken, it panics.
//!
//! The shard is generic over the values of its timers, which lie in the slots of the wheel. It
//! names none of the types that are built from timers; those are [parts](part::Part) of it.

mod acts;
mod apply;
mod base;
mod calls;
mod classes;
mod commands;
mod core;
pub(crate) mod deliver;
mod effect;
pub(crate) mod guard;
pub(crate) mod handler;
#[cfg_attr(not(feature = "sim"), path = "not_held.rs")]
mod held;
mod keys;
pub(crate) mod lanes;
mod lateness;
pub(crate) mod local;
mod measures;
mod park;
pub(crate) mod part;
pub(crate) mod part_handle;
pub(crate) mod parts;
mod poll_budget;
pub(crate) mod receive;
pub(crate) mod request;
pub(crate) mod shutdown;
#[cfg(feature = "sim")]
mod simulated;
pub(crate) mod stored;
pub(crate) mod sweep;
mod taken;
mod threads;
pub(crate) mod timers;
mod timing;
pub(crate) mod turn;

pub(crate) use self::base::Base;
pub(crate) use self::core::Core;
pub(crate) use self::request::Directory;

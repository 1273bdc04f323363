//! What is built from timers, on every host that works on this machine, and in a lab that drives
//! shards itself.

#![cfg(all(target_os = "linux", not(corewheel_loom)))]

mod containers;
mod delay_queue;
mod histories;
mod hosts;
mod keyed;
mod purgatory;
mod purgatory_hostile;
mod repeat;
mod scaled;
mod scaled_hostile;
mod shard_end;

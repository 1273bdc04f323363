//! What else is built from timers, one type or two in each module.

pub mod delay_queue;
pub mod group;
pub mod herd;
pub mod interval;
pub mod kept;
pub mod keyed;
pub mod purgatory;
pub mod repeat;
pub mod scaled;
pub(crate) mod scheduled;
pub mod sink;

//! What else is built from timers, one type or two in each module.

pub(crate) mod delay_queue;
pub(crate) mod group;
pub(crate) mod herd;
pub(crate) mod interval;
pub(crate) mod keyed;
pub(crate) mod purgatory;
pub(crate) mod repeat;
pub(crate) mod scaled;
pub(crate) mod scheduled;
pub(crate) mod sink;
#[cfg(all(feature = "glommio", target_os = "linux"))]
pub(crate) mod task_queue;

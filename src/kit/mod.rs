//! What else is built from timers, one type or two in each module. Each says which programs need
//! it, and what it costs beside the same by hand, from timers.

pub mod interval;
pub mod kept;

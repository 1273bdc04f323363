//! The service as its users see it, on everything that it can run on here: threads of its own with
//! glommio, tokio or neither, executors that were there before, and loops of the tests' own.

mod alike;
mod api;
mod bell;
mod budget;
mod callbacks;
mod classes;
mod connections;
mod cross_core;
mod death;
mod delay_queue;
mod draining;
mod drops;
mod ends;
mod foreign;
mod herd;
mod histories;
mod intervals;
mod keyed;
mod lanes;
mod many;
mod moving;
mod owners;
mod purgatory;
mod purgatory_hostile;
mod repeats;
mod rude;
mod scaled;
mod scaled_hostile;
mod scheduled;
mod shutdown;
mod sinks;
mod sleeps;
mod spawned;
mod support;
mod time;

//! Tests of the service's public methods, on every host that works on this machine: the service's
//! own threads with glommio, tokio or neither, and executors and loops that a test runs itself.

mod callbacks;
mod causes;
mod classes;
mod config_errors;
mod connections;
mod cross_core;
mod deadlines;
mod death;
mod drop_panics;
mod errors;
mod foreign_and_forgotten;
mod freed;
mod glommio_attached;
mod handed_on;
mod handles;
mod herd;
mod ids;
mod in_tokio;
mod infallible;
mod interval;
mod kept;
mod keys;
mod lanes;
mod late_parts;
mod left_for_turn;
mod limits;
mod manual_clock;
mod many;
mod marked;
mod migrate;
#[path = "../../examples/host/network/mod.rs"]
mod network;
mod own_loop;
mod part_values;
mod parts;
#[cfg(target_os = "linux")]
mod placement;
mod poll_budget;
mod refusals;
mod remaining;
mod room;
mod runtimes;
mod schedule_task;
mod shared;
mod shutdown;
mod sleeps;
mod spawned;
mod starved;
mod statistics;
#[cfg(target_os = "linux")]
mod suspend;
mod thread_ends;
mod thread_timers;
mod tokio_attached;
mod wake_up;
mod wakes;
mod warnings;
mod when_room;

//! What is built from the timers of [`corewheel`]: containers of many values, each with a deadline,
//! periodic callbacks, and what else servers need of timers.
//!
//! | need | module |
//! |---|---|
//! | values that are taken out when they are due | [`queue`] |
//! | timers and values by keys of your own, alone or in groups | [`keyed`] |
//! | operations that wait for a key, or their deadline | [`purgatory`] |
//! | timeouts that shrink under pressure, all at once | [`scaled`] |
//! | callbacks that run again and again | [`repeat`] |
//! | timers that do not all expire at once | [`herd`] |
//!
//! Each is made with the [`Timers`](corewheel::Timers) of a shard, lives there and is `!Send`; any
//! thread reaches one that [`Handle::keep`](corewheel::Handle::keep) has made. Made with a view
//! [of a class](corewheel::Timers::of_class), the values and timers of all but a queue count for
//! the class. The [guide] has a whole server, with a delayed job queue beside tokio.
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::TimerService;
//! use corewheel_kit::keyed::KeyedTimers;
//! use corewheel_kit::queue::DelayQueue;
//! use std::time::{Duration, Instant};
//!
//! // A shard in a loop of our own, on a clock that we move; a server starts its service instead.
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached()?;
//! let mut shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
//!
//! let queue = DelayQueue::new(shard.timers());
//! queue.insert("GET /a, again", Duration::from_millis(100))?;
//! let sessions = KeyedTimers::<u32, &str>::new(shard.timers(), |ended, _sessions| {
//!     println!("session {} of {} has ended", ended.key, ended.value);
//! });
//! let _new = sessions.insert(7, "red", Duration::from_millis(100));
//!
//! clock.advance(Duration::from_millis(100));
//! let _next = shard.turn();
//! assert_eq!(queue.try_next().map(|due| due.value), Some("GET /a, again"));
//! assert!(sessions.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not in `corewheel` itself: they use what it and `corewheel-shard` make public. A container
//! is a [`part`](corewheel::part), as one of your own is. A server without them does not compile
//! them.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod chains;
pub mod herd;
pub mod keyed;
pub mod purgatory;
pub mod queue;
pub mod repeat;
pub mod scaled;

pub mod guide {
    #![doc = include_str!("guide.md")]
}

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

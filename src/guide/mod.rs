//! Guides: how a kind of server uses this crate, from start to end. These modules have no types and
//! no functions, only text.
//!
//! Documentation that is built with few features lacks the pages and items of the others, so links
//! to them lead nowhere there. `cargo doc -p corewheel --all-features` has them all.
//!
//! In the order in which most readers need them:
//!
//! 1. [`choosing`]: which type for which need, and the words.
//! 2. [`multi_thread_tokio`]: timeouts, sleeps and connections on a multi-thread runtime.
//! 3. [`per_core`](per_core/index.html): a shard on each core, on tokio or glommio; [`own_loop`]:
//!    around `epoll` or mio; [`bare_wheel`]: the wheel alone.
//! 4. [`stream`](stream/index.html): any socket, TLS or codec with its limits. The package
//!    `corewheel-http` has guides for servers of hyper, axum and tower and for each state of an
//!    HTTP connection, and `corewheel-quinn` has one for QUIC servers. `corewheel-kit` has
//!    one for work that comes later, from any thread.
//! 5. [`overload_and_restarts`]: clients that are sent away, limits that shrink, clients in step.
//! 6. [`testing`]: a manual clock, a paused runtime, and the simulation.
//! 7. [`statistics`]: from a symptom to its cause, and the statistics in your own server.
//! 8. [`switching`](switching/index.html): a project that uses `tokio::time`, from the first
//!    command to its tests; [`coming_from`]: `DelayQueue`, Netty, Kafka and Go.
//! 9. [`guarantees`]: what is guaranteed, how it is checked, and what this crate does not do;
//!    [`packages`]: the packages beside this one, and what a version says.
#![cfg_attr(
    not(all(feature = "sim", feature = "tokio")),
    allow(rustdoc::broken_intra_doc_links, reason = "a page links to items of other features")
)]

pub mod bare_wheel {
    #![doc = include_str!("bare_wheel.md")]
}

pub mod choosing {
    #![doc = include_str!("choosing.md")]
}

pub mod coming_from {
    #![doc = include_str!("coming_from.md")]
}

pub mod guarantees {
    #![doc = include_str!("guarantees.md")]
}

pub mod multi_thread_tokio {
    #![doc = include_str!("multi_thread_tokio.md")]
}

pub mod overload_and_restarts {
    #![doc = include_str!("overload_and_restarts.md")]
}

pub mod own_loop {
    #![doc = include_str!("own_loop.md")]
}

pub mod packages {
    #![doc = include_str!("packages.md")]
}

#[cfg(feature = "tokio")]
pub mod per_core {
    #![doc = include_str!("per_core.md")]
}

pub mod statistics {
    #![doc = include_str!("statistics.md")]
}

#[cfg(feature = "tokio")]
pub mod stream {
    #![doc = include_str!("stream.md")]
}

#[cfg(feature = "tokio")]
pub mod switching {
    #![doc = include_str!("switching.md")]
}

pub mod testing {
    #![doc = include_str!("testing.md")]
}

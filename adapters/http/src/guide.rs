//! Guides: from a server without timeouts to one that no client can hold. These modules have no
//! types and no functions, only text.
//!
//! 1. [`servers`]: servers and clients of hyper, and servers of axum.
//! 2. [`limits`]: each state of an HTTP connection, what ends it, and what the client is told.
//! 3. [`tower`]: a time for each request.
//! 4. [`tls`]: a server of axum with TLS.
//!
//! The guides of [`corewheel`](corewheel::guide) are about all else: how many shards a server has,
//! drains and restarts, tests and statistics.

pub mod limits {
    #![doc = include_str!("guide/limits.md")]
}

pub mod servers {
    #![doc = include_str!("guide/servers.md")]
}

pub mod tls {
    #![doc = include_str!("guide/tls.md")]
}

pub mod tower {
    #![doc = include_str!("guide/tower.md")]
}

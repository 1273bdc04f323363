//! Guides: from a server without timeouts to one that no client can hold. These modules have no
//! types and no functions, only text.
//!
//! 1. [`servers`]: servers of hyper and of axum.
//! 2. [`limits`]: each state of an HTTP connection, what ends it, and what the client is told.
//! 3. [`tower`]: a time for each request.
//! 4. [`tls`]: a server of axum with TLS.
//! 5. [`websockets`]: a WebSocket or a stream of events, with pings of its own.
//! 6. [`grpc`]: services of tonic.
//! 7. [`clients`]: times, a pool and retries of clients.
//!
//! The guides of [`corewheel`](corewheel::guide) are about all else: how many shards a server has,
//! drains and restarts, tests and statistics.

// The programs of this guide and the next are tested by the package `corewheel-clients`, since
// their clients take long to compile.
pub mod clients {
    #![cfg_attr(not(doctest), doc = include_str!("guide/clients.md"))]
}

pub mod grpc {
    #![cfg_attr(not(doctest), doc = include_str!("guide/grpc.md"))]
}

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

pub mod websockets {
    #![doc = include_str!("guide/websockets.md")]
}

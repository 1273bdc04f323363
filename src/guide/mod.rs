//! Guides: how a kind of server uses this crate, from start to end. They hold no code of their own.
#![cfg_attr(
    not(all(
        feature = "axum",
        feature = "hyper",
        feature = "sim",
        feature = "tokio",
        feature = "tower"
    )),
    allow(rustdoc::broken_intra_doc_links, reason = "a page links to items of other features")
)]

pub mod delayed_jobs {
    #![doc = include_str!("delayed_jobs.md")]
}

#[cfg(feature = "hyper")]
pub mod http_limits {
    #![doc = include_str!("http_limits.md")]
}

#[cfg(feature = "hyper")]
pub mod hyper_and_axum {
    #![doc = include_str!("hyper_and_axum.md")]
}

pub mod multi_thread_tokio {
    #![doc = include_str!("multi_thread_tokio.md")]
}

pub mod overload_and_restarts {
    #![doc = include_str!("overload_and_restarts.md")]
}

#[cfg(feature = "quinn")]
pub mod quinn {
    #![doc = include_str!("quinn.md")]
}

pub mod statistics {
    #![doc = include_str!("statistics.md")]
}

#[cfg(feature = "tokio")]
pub mod stream {
    #![doc = include_str!("stream.md")]
}

#[cfg(feature = "tower")]
pub mod tower {
    #![doc = include_str!("tower.md")]
}

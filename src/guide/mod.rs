//! Guides: how a kind of server uses this crate, from start to end. They hold no code of their own.

pub mod multi_thread_tokio {
    #![doc = include_str!("multi_thread_tokio.md")]
}

#[cfg(feature = "tokio")]
pub mod stream {
    #![doc = include_str!("stream.md")]
}

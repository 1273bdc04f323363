//! What hyper, tower and axum take their timers from: servers, clients and requests with timeouts,
//! by the shards of a service of [`corewheel`].
//!
//! | feature | brings | costs |
//! |---|---|---|
//! | `hyper` | [`hyper`](mod@hyper): hyper's timer, a service with limits for requests | hyper |
//! | `server` | [`server`](mod@server): a server of hyper, for your loop | HTTP/2, `hyper`, tokio |
//! | `client` | [`client`](mod@client): a proxy's side to another server | hyper-util, `hyper` |
//! | `axum` | [`axum`](mod@axum): axum's `serve` with timeouts | axum, `server` |
//! | `rustls` | [`tls`](mod@tls): TLS, with a time for the handshake | rustls, `server` |
//! | `tower` | [`tower`](mod@tower): a time for each request | tower's two traits, http |
//!
//! ```
//! # #[cfg(feature = "axum")] {
//! use axum::{Router, routing::get};
//! use corewheel_http::axum::serve;
//!
//! # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
//! # runtime.block_on(async {
//! let app = Router::new().route("/", get(|| async { "hello" }));
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! # let stop = async {};
//! // The arguments of `axum::serve`, and a limit for each state of a connection.
//! serve(listener, app).with_graceful_shutdown(stop).await
//! # }).unwrap();
//! # }
//! ```
//!
//! Each adapter is made of a [`Handle`](corewheel::Handle), so it works on every runtime that its
//! library has, and on the threads of shards. Where the interface of a library has no error for a
//! timer that a shard refuses, a thread of the process keeps the deadline; see
//! [`corewheel::fallback`]. The limits of a connection are those of its
//! [`TimedIo`](corewheel::stream::TimedIo), which is told about its requests.
//!
//! With the feature `tokio` of `corewheel`, which `server` turns on, no limit cuts a client whose
//! bytes came in time. The [`guide`] has a page for each kind of server.
#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    not(all(feature = "axum", feature = "client", feature = "rustls", feature = "tower")),
    allow(rustdoc::broken_intra_doc_links, reason = "a page links to items of other features")
)]

// First, for its macro.
#[cfg(any(feature = "hyper", feature = "tower"))]
#[macro_use]
mod debug;

/// An error of a service, of a body or of a timeout, as hyper and tower have it.
#[cfg(any(feature = "hyper", feature = "tower"))]
type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[cfg(feature = "axum")]
pub mod axum;
#[cfg(feature = "client")]
pub mod client;
pub mod guide;
#[cfg(feature = "hyper")]
pub mod hyper;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "rustls")]
pub mod tls;
#[cfg(feature = "tower")]
pub mod tower;

/// The README's code, compiled.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;

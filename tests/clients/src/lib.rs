//! The programs of two guides of `corewheel-http`, whose clients take long to compile, as tests of
//! the documentation: `cargo test` of all packages leaves them out, and the piece `clients` of
//! `.ci/run` runs them.

#[cfg(doctest)]
mod clients {
    #![doc = include_str!("../../../adapters/http/src/guide/clients.md")]
}

#[cfg(doctest)]
mod grpc {
    #![doc = include_str!("../../../adapters/http/src/guide/grpc.md")]
}

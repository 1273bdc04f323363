//! The protocol of the cache's clients: RESP2 and RESP3. Requests are the same in both.
//!
//! Each string of a request is decoded, and each reply encoded, by `redis-protocol`. This module
//! adds the header of an array on its own. So a request whose end has not come is not decoded again
//! from its beginning, and a pipelined request needs no allocation.

mod reply;
mod request;

pub(crate) use reply::{Proto, Reply, integer_of, split_array};
pub(crate) use request::{Args, Decoder, encode_request, integer, is};

//! A client's connection, and inputs for it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};

use arbtest::arbitrary::{Result, Unstructured};
use corewheel_test_support::sockets::connect;

/// What came of a connection.
#[derive(Clone)]
pub(crate) struct Reply {
    pub(crate) bytes: Vec<u8>,
    /// Whether the server has reset the connection, which may have taken the end of the reply.
    is_reset: bool,
}

impl Reply {
    /// Whether two connections have had the same reply, as far as resets have left it.
    fn agrees_with(&self, other: &Self) -> bool {
        let is_begin = |of: &Self, whole: &Self| of.is_reset && whole.bytes.starts_with(&of.bytes);
        self.bytes == other.bytes || is_begin(self, other) || is_begin(other, self)
    }
}

/// Sends pieces, closes the sending side, and reads to the end.
pub(crate) fn talk(address: SocketAddr, pieces: &[&[u8]]) -> Reply {
    // A server that keeps a connection for longer than this client waits is at fault.
    let mut client = connect(address);
    // The server may close before it has read all.
    let _ = pieces.iter().try_for_each(|piece| client.write_all(piece));
    let _ = client.shutdown(Shutdown::Write);
    let mut bytes = Vec::new();
    let end = client.read_to_end(&mut bytes);
    let is_timeout = end.as_ref().is_err_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    });
    let sent = pieces.concat();
    assert!(!is_timeout, "a connection does not end after {:?}", String::from_utf8_lossy(&sent));
    Reply { bytes, is_reset: end.is_err() }
}

/// A server gives the same reply to bytes that come whole and in pieces.
pub(crate) fn check_agree(sent: &[u8], whole: &Reply, cut: &Reply) {
    let [sent, in_one, in_pieces] =
        [sent, &whole.bytes, &cut.bytes].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(whole.agrees_with(cut), "{sent:?} is answered {in_one:?}, and in pieces {in_pieces:?}");
}

/// Words and signs of a protocol.
pub(crate) type Tokens = [&'static [&'static [u8]]; 2];

/// Up to `most` tokens of a protocol, each of which may be a random byte in its place.
pub(crate) fn input(bytes: &mut Unstructured, tokens: Tokens, most: usize) -> Result<Vec<u8>> {
    let (mut input, tokens) = (Vec::new(), tokens.concat());
    for _ in 0..bytes.int_in_range(1..=most)? {
        if bytes.ratio(1, 12)? {
            input.push(bytes.arbitrary()?);
        } else {
            input.extend_from_slice(bytes.choose(&tokens)?);
        }
    }
    Ok(input)
}

/// Cuts an input into a few random pieces.
pub(crate) fn cut<'a>(bytes: &mut Unstructured, input: &'a [u8]) -> Result<Vec<&'a [u8]>> {
    let (mut pieces, mut rest) = (Vec::new(), input);
    for _ in 0..bytes.int_in_range(1..=6)? {
        let (piece, after) = rest.split_at(bytes.int_in_range(0..=rest.len())?);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    Ok(pieces)
}

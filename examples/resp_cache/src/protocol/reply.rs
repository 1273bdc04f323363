//! Replies and pushed messages, in either version of the protocol.

use std::borrow::Cow;
use std::fmt::Write;

use bytes::BytesMut;
use redis_protocol::resp2::encode::extend_encode_borrowed;
use redis_protocol::resp2::types::BorrowedFrame;

use super::request::integer;

/// The version of the protocol that a client has chosen with `HELLO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proto {
    Resp2,
    Resp3,
}

/// Appends replies to the buffer of a connection.
#[derive(Debug)]
pub(crate) struct Reply<'a> {
    pub(crate) out: &'a mut BytesMut,
    pub(crate) proto: Proto,
}

impl Reply<'_> {
    /// A reply to the same client, behind this one.
    pub(crate) fn again(&mut self) -> Reply<'_> {
        Reply { out: self.out, proto: self.proto }
    }

    fn frame(&mut self, frame: &BorrowedFrame<'_>) {
        extend_encode_borrowed(self.out, frame, false).expect("the buffer is extended to fit");
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.frame(&BorrowedFrame::BulkString(bytes));
    }

    /// An entry of a map.
    pub(crate) fn pair(&mut self, name: &str, value: &str) {
        self.bulk(name.as_bytes());
        self.bulk(value.as_bytes());
    }

    pub(crate) fn integer(&mut self, value: i64) {
        self.frame(&BorrowedFrame::Integer(value));
    }

    pub(crate) fn count(&mut self, count: usize) {
        self.integer(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn simple(&mut self, text: &str) {
        self.frame(&BorrowedFrame::SimpleString(text.as_bytes()));
    }

    pub(crate) fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// An error. Line ends, which may be in a client's words, become spaces.
    pub(crate) fn error(&mut self, text: &str) {
        let has_line_ends = memchr::memchr2(b'\r', b'\n', text.as_bytes()).is_some();
        let line: Cow<'_, str> =
            if has_line_ends { text.replace(['\r', '\n'], " ").into() } else { text.into() };
        self.frame(&BorrowedFrame::Error(&line));
    }

    pub(crate) fn null(&mut self) {
        let null: &[u8] = if self.proto == Proto::Resp3 { b"_\r\n" } else { b"$-1\r\n" };
        self.out.extend_from_slice(null);
    }

    /// In place of an array.
    pub(crate) fn null_array(&mut self) {
        let null: &[u8] = if self.proto == Proto::Resp3 { b"_\r\n" } else { b"*-1\r\n" };
        self.out.extend_from_slice(null);
    }

    /// The header of an array; as many values follow.
    pub(crate) fn array(&mut self, count: usize) {
        self.header('*', count);
    }

    /// The header of a map; as many pairs follow.
    pub(crate) fn map(&mut self, count: usize) {
        match self.proto {
            Proto::Resp3 => self.header('%', count),
            Proto::Resp2 => self.header('*', count * 2),
        }
    }

    /// The header of a message that answers no request; as many values follow.
    pub(crate) fn push(&mut self, count: usize) {
        self.header(if self.proto == Proto::Resp3 { '>' } else { '*' }, count);
    }

    fn header(&mut self, kind: char, count: usize) {
        write!(self.out, "{kind}{count}\r\n").expect("the buffer grows");
    }
}

/// The value of an integer reply.
pub(crate) fn integer_of(reply: &[u8]) -> Option<i64> {
    integer(reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?)
}

/// The count of an array reply, and its values.
pub(crate) fn split_array(reply: &[u8]) -> Option<(usize, &[u8])> {
    let end = memchr::memchr(b'\r', reply)?;
    let count = integer(reply[..end].strip_prefix(b"*")?)?;
    Some((usize::try_from(count).ok()?, &reply[end + 2..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_with_a_line_end_stays_one_line() {
        let mut out = BytesMut::new();
        Reply { out: &mut out, proto: Proto::Resp2 }.error("ERR no command 'a\r\nb'");
        assert_eq!(&out[..], b"-ERR no command 'a  b'\r\n");
    }

    #[test]
    fn array_is_split_into_its_count_and_its_values() {
        assert_eq!(split_array(b"*2\r\n:1\r\n:2\r\n"), Some((2, b":1\r\n:2\r\n".as_slice())));
        assert_eq!(split_array(b"-ERR\r\n"), None);
        assert_eq!(integer_of(b":-7\r\n"), Some(-7));
    }
}

//! The protocol of the cache's clients: requests, which are alike in RESP2 and RESP3, and replies.
//!
//! A request is an array of bulk strings, or a line of words. Its strings stay where they were
//! received, so a request needs no allocation. A request whose end has not come is decoded on from
//! where its decoding stopped, and refused as soon as a length in it is too large.
//!
//! Why not `redis-protocol` 6: its frames, each of which allocates, take 2.4 times as long, and its
//! ranges 1.2 times (100, 118 and 240 ns a request). That is for SET with a time and GET in turns,
//! with 10 and 1,000 bytes a value, on two shared cores of an AMD EPYC. By neither does a request
//! that comes in pieces go on where its decoding stopped, and arrays nest without a limit. It takes
//! `$04` for a length. Replies are written in place, without a value for each.

use bytes::{BufMut, BytesMut};
use memchr::memchr;
use smallvec::SmallVec;

/// The most strings of one request.
const ARGS_MAX: i64 = 1 << 20;
/// The most bytes of a number with the end of its line.
const NUMBER_MAX: usize = 32;
/// The most bytes of a request that is a line of words.
const INLINE_MAX: usize = 1 << 16;
/// A decoder keeps room for this many strings between requests.
const ARGS_KEPT: usize = 1 << 10;
/// The strings of a request that need no allocation.
const ARGS_INLINE: usize = 8;

/// The reply to a request that breaks the protocol. The connection ends, as nothing after it can be
/// understood.
pub(crate) type Malformed = String;

/// The strings of one request, which lie in the buffer of its connection.
pub(crate) type Args<'a> = &'a [&'a [u8]];

/// Whether a string of a request is this word, in any case.
pub(crate) fn is(args: Args<'_>, index: usize, word: &str) -> bool {
    args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
}

/// Finds the requests in the bytes of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// Where the strings of the present request lie that have come.
    strings: Vec<(u32, u32)>,
    /// How many strings of the present request have not come; `None` before its header.
    missing: Option<i64>,
    /// The bytes of the present request that are decoded.
    at: usize,
    /// The most bytes of a request.
    request_max: usize,
}

impl Decoder {
    pub(crate) fn new(request_max: usize) -> Self {
        Self { strings: Vec::new(), missing: None, at: 0, request_max }
    }

    /// Decodes the request at the beginning of `input`, and returns its length; `None` if its end
    /// has not come. After `None`, the next call must be given the same bytes and those after them.
    pub(crate) fn decode(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        if self.missing.is_none() {
            self.strings.clear();
            self.strings.shrink_to(ARGS_KEPT);
            match input.first() {
                None => return Ok(None),
                Some(b'*') => {}
                Some(_) => return self.decode_inline(input),
            }
            let Some((count, end)) = number(input, 1, "multibulk")? else { return Ok(None) };
            if count > ARGS_MAX {
                return Err(malformed("invalid multibulk length"));
            }
            (self.missing, self.at) = (Some(count), end);
        }
        while let Some(missing @ 1..) = self.missing {
            if !self.decode_string(input)? {
                return Ok(None);
            }
            self.missing = Some(missing - 1);
        }
        self.missing = None;
        Ok(Some(self.at))
    }

    /// The bytes that it keeps.
    pub(crate) fn memory(&self) -> usize {
        self.strings.capacity() * size_of::<(u32, u32)>()
    }

    /// The strings of the request that was decoded last.
    pub(crate) fn args<'a>(&self, request: &'a [u8]) -> SmallVec<[&'a [u8]; ARGS_INLINE]> {
        self.strings.iter().map(|(begin, end)| &request[*begin as usize..*end as usize]).collect()
    }

    /// Decodes the next string; false if its end has not come.
    fn decode_string(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        match input.get(self.at) {
            None => return Ok(false),
            Some(b'$') => {}
            Some(_) => return Err(malformed("expected '$'")),
        }
        let Some((length, begin)) = number(input, self.at + 1, "bulk")? else { return Ok(false) };
        let end = usize::try_from(length).ok().and_then(|length| length.checked_add(begin + 2));
        // A length that is too large is refused before its bytes are kept.
        let end = end.filter(|end| *end <= self.request_max);
        let end = end.ok_or_else(|| malformed("invalid bulk length"))?;
        match input.get(end - 2..end) {
            None => return Ok(false),
            Some(b"\r\n") => {}
            Some(_) => return Err(malformed("a bulk string does not end where it says")),
        }
        self.strings.push((begin as u32, (end - 2) as u32));
        self.at = end;
        Ok(true)
    }

    fn decode_inline(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some(end) = memchr(b'\n', &input[..input.len().min(INLINE_MAX)]) else {
            let is_long = input.len() >= INLINE_MAX;
            return if is_long { Err(malformed("too big inline request")) } else { Ok(None) };
        };
        let mut begin = 0;
        for word in input[..end].split(u8::is_ascii_whitespace) {
            // A web page can have a browser send a request of HTTP to this server, and commands in
            // its body, which must not be executed.
            if begin == 0 && [&b"POST"[..], b"Host:"].iter().any(|of| word.eq_ignore_ascii_case(of))
            {
                return Err("ERR this is no HTTP server: a browser may have been misled".to_owned());
            }
            if !word.is_empty() {
                self.strings.push((begin as u32, (begin + word.len()) as u32));
            }
            begin += word.len() + 1;
        }
        Ok(Some(end + 1))
    }
}

fn malformed(problem: &str) -> Malformed {
    format!("ERR Protocol error: {problem}")
}

/// The number of a line from `begin` on, and where the next line begins; `None` if the end of the
/// line has not come.
fn number(input: &[u8], begin: usize, of: &str) -> Result<Option<(i64, usize)>, Malformed> {
    let rest = &input[begin..input.len().min(begin + NUMBER_MAX)];
    let value = match memchr(b'\r', rest) {
        None if rest.len() < NUMBER_MAX => return Ok(None),
        Some(end) if end + 1 == rest.len() && end + 1 < NUMBER_MAX => return Ok(None),
        Some(end) if rest.get(end + 1) == Some(&b'\n') => {
            integer(&rest[..end]).map(|value| (value, begin + end + 2))
        }
        _ => None,
    };
    value.map(Some).ok_or_else(|| malformed(&format!("invalid {of} length")))
}

/// The value of a number as it is written without leading zeros or a plus sign.
pub(crate) fn integer(digits: &[u8]) -> Option<i64> {
    let value: i64 = str::from_utf8(digits).ok()?.parse().ok()?;
    (itoa::Buffer::new().format(value).as_bytes() == digits).then_some(value)
}

/// Appends a request of these strings.
pub(crate) fn encode_request(out: &mut BytesMut, args: Args<'_>) {
    let mut request = Reply { out, proto: Proto::Resp2 };
    request.array(args.len());
    for arg in args {
        request.bulk(arg);
    }
}

/// The version of the protocol that a client has chosen with `HELLO`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Proto {
    Resp2 = 2,
    Resp3,
}

/// Appends replies to the buffer of a connection.
#[derive(Debug)]
pub(crate) struct Reply<'a> {
    pub(crate) out: &'a mut BytesMut,
    pub(crate) proto: Proto,
}

impl Reply<'_> {
    fn line(&mut self, kind: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.put_u8(kind);
        self.out.put_slice(text);
        self.out.put_slice(b"\r\n");
    }

    fn count(&mut self, kind: u8, count: usize) {
        self.line(kind, itoa::Buffer::new().format(count).as_bytes());
    }

    pub(crate) fn bulk(&mut self, bytes: &[u8]) {
        self.count(b'$', bytes.len());
        self.out.reserve(bytes.len() + 2);
        self.out.put_slice(bytes);
        self.out.put_slice(b"\r\n");
    }

    /// An entry of a map.
    pub(crate) fn pair(&mut self, name: &str, value: &str) {
        self.bulk(name.as_bytes());
        self.bulk(value.as_bytes());
    }

    pub(crate) fn integer(&mut self, value: i64) {
        self.line(b':', itoa::Buffer::new().format(value).as_bytes());
    }

    pub(crate) fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error. Line ends, which may be in a client's words, become spaces.
    pub(crate) fn error(&mut self, text: &str) {
        self.line(b'-', text.replace(['\r', '\n'], " ").as_bytes());
    }

    pub(crate) fn null(&mut self) {
        let null: &[u8] = if self.proto == Proto::Resp3 { b"_\r\n" } else { b"$-1\r\n" };
        self.out.extend_from_slice(null);
    }

    /// The header of an array; as many values follow.
    pub(crate) fn array(&mut self, count: usize) {
        self.count(b'*', count);
    }

    /// The header of a map; as many pairs follow.
    pub(crate) fn map(&mut self, count: usize) {
        match self.proto {
            Proto::Resp3 => self.count(b'%', count),
            Proto::Resp2 => self.array(count * 2),
        }
    }

    /// The header of a message that answers no request; as many values follow.
    pub(crate) fn push(&mut self, count: usize) {
        self.count(if self.proto == Proto::Resp3 { b'>' } else { b'*' }, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_all(input: &[u8]) -> Result<Vec<Vec<String>>, Malformed> {
        let mut decoder = Decoder::new(1 << 20);
        let (mut requests, mut at) = (Vec::new(), 0);
        while let Some(length) = decoder.decode(&input[at..])? {
            let args = decoder.args(&input[at..]);
            requests.push(args.iter().map(|arg| String::from_utf8_lossy(arg).into()).collect());
            at += length;
        }
        Ok(requests)
    }

    #[test]
    fn request_is_decoded_alike_however_its_bytes_are_cut() {
        let input = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\nPING  you\r\n\r\n*0\r\n";
        let whole = decode_all(input).unwrap();
        assert_eq!(whole[..3], [vec!["GET", "k"], vec!["PING"], vec!["PING", "you"]]);
        assert_eq!(whole.len(), 5, "an empty line and an empty array are requests of no words");
        let mut decoder = Decoder::new(1 << 20);
        let (mut begin, mut requests) = (0, 0);
        for end in 0..=input.len() {
            while let Some(length) = decoder.decode(&input[begin..end]).unwrap() {
                assert_eq!(decoder.args(&input[begin..end]).len(), whole[requests].len());
                requests += 1;
                begin += length;
            }
        }
        assert_eq!((requests, begin), (5, input.len()));
    }

    #[test]
    fn malformed_request_is_refused_however_its_bytes_are_cut() {
        let long_number = [b"*".as_slice(), &[b'1'; 40]].concat();
        for (input, problem) in [
            (&b"*1\r\n*1\r\n$4\r\nPING\r\n"[..], "expected '$'"),
            (b"*x\r\n", "invalid multibulk length"),
            (b"*01\r\n$4\r\nPING\r\n", "invalid multibulk length"),
            (b"*+1\r\n$4\r\nPING\r\n", "invalid multibulk length"),
            (b"*1048577\r\n", "invalid multibulk length"),
            (b"*1\rx", "invalid multibulk length"),
            (&long_number, "invalid multibulk length"),
            (b"*1\r\n$04\r\nPING\r\n", "invalid bulk length"),
            (b"*1\r\n$+4\r\nPING\r\n", "invalid bulk length"),
            (b"*1\r\n$-1\r\n", "invalid bulk length"),
            (b"*1\r\n$ 4\r\nPING\r\n", "invalid bulk length"),
            (b"*1\r\n$4 \r\nPING\r\n", "invalid bulk length"),
            (b"*1\r\n$\r\n", "invalid bulk length"),
            (b"*1\r\n$99999999999\r\n", "invalid bulk length"),
            (b"*1\r\n:1\r\n", "expected '$'"),
            (b"*1\r\n$4\r\nPINGxx", "a bulk string does not end where it says"),
        ] {
            let shown = input.escape_ascii();
            let mut decoder = Decoder::new(1 << 20);
            let refusal = (0..=input.len()).find_map(|end| decoder.decode(&input[..end]).err());
            assert_eq!(refusal, Some(malformed(problem)), "{shown}");
        }
        assert!(decode_all(&vec![b'x'; INLINE_MAX]).is_err());
    }

    #[test]
    fn integer_is_taken_only_as_it_would_be_written() {
        for (digits, value) in [("0", 0), ("-12", -12), ("9223372036854775807", i64::MAX)] {
            assert_eq!(integer(digits.as_bytes()), Some(value));
        }
        for digits in ["", "-", "-0", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808"] {
            assert_eq!(integer(digits.as_bytes()), None, "{digits:?}");
        }
    }

    #[test]
    fn error_with_a_line_end_stays_one_line() {
        let mut out = BytesMut::new();
        Reply { out: &mut out, proto: Proto::Resp2 }.error("ERR no command 'a\r\nb'");
        assert_eq!(&out[..], b"-ERR no command 'a  b'\r\n");
    }
}

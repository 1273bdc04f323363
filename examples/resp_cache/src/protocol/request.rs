//! Requests: arrays of bulk strings, and inline commands, which are lines of words.

use std::borrow::Cow;
use std::io::Write;

use memchr::memchr;
use redis_protocol::resp2::decode::decode_range;
use redis_protocol::resp2::types::RangeFrame;
use smallvec::SmallVec;

/// The most strings of one request.
const ARGS_MAX: i64 = 1 << 20;
/// The most bytes of a line that states a count or a length.
const HEADER_MAX: usize = 32;
/// The most bytes of an inline command.
const INLINE_MAX: usize = 1 << 16;
/// A decoder keeps room for this many strings between requests.
const ARGS_KEPT: usize = 1 << 10;
/// The strings of a request that need no allocation.
const ARGS_INLINE: usize = 8;

/// The reply to a request that breaks the protocol. The connection ends, as nothing after it can be
/// understood.
pub(crate) type Malformed = Cow<'static, str>;

/// The strings of one request, which lie in the buffer of its connection.
pub(crate) type Args<'a> = &'a [&'a [u8]];

/// Whether a string of a request is this word, in any case.
pub(crate) fn is(args: Args<'_>, index: usize, word: &str) -> bool {
    args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()))
}

/// Finds the requests in the bytes of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The strings of the present request that have come.
    ranges: Vec<(u32, u32)>,
    /// How many strings of the present request have not come; `None` before its header.
    missing: Option<usize>,
    /// The bytes of the present request that are decoded.
    at: usize,
    /// The most bytes of a request.
    request_max: usize,
    /// The words of an inline command, one after the other; `None` for an array, whose strings lie
    /// in the request.
    inline: Option<Vec<u8>>,
}

impl Decoder {
    pub(crate) fn new(request_max: usize) -> Self {
        Self { ranges: Vec::new(), missing: None, at: 0, request_max, inline: None }
    }

    /// Decodes the request at the beginning of `input`, and returns its length; `None` if its end
    /// has not come. After `None`, the next call must be given the same bytes and those after them.
    pub(crate) fn decode(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        let mut missing = if let Some(missing) = self.missing {
            missing
        } else {
            self.ranges.clear();
            self.inline = None;
            self.ranges.shrink_to(ARGS_KEPT);
            match input.first() {
                None => return Ok(None),
                Some(b'*') => {}
                Some(_) => return self.decode_inline(input),
            }
            let Some(end) = header_end(input)? else { return Ok(None) };
            self.at = end + 2;
            let count = integer(&input[1..end]).filter(|count| *count <= ARGS_MAX);
            let count = count.ok_or_else(|| malformed("invalid multibulk length"))?;
            usize::try_from(count).unwrap_or(0)
        };
        while missing > 0 {
            self.missing = Some(missing);
            if !self.decode_string(input)? {
                return Ok(None);
            }
            missing -= 1;
        }
        self.missing = None;
        Ok(Some(self.at))
    }

    /// The bytes that it keeps.
    pub(crate) fn memory(&self) -> usize {
        let inline = self.inline.as_ref().map_or(0, Vec::capacity);
        self.ranges.capacity() * size_of::<(u32, u32)>() + inline
    }

    /// The strings of the request that was decoded last.
    pub(crate) fn args<'a>(&'a self, request: &'a [u8]) -> SmallVec<[&'a [u8]; ARGS_INLINE]> {
        let strings = self.inline.as_deref().unwrap_or(request);
        self.ranges.iter().map(|(begin, end)| &strings[*begin as usize..*end as usize]).collect()
    }

    /// Decodes the next string; false if its end has not come.
    fn decode_string(&mut self, input: &[u8]) -> Result<bool, Malformed> {
        let rest = &input[self.at..];
        let Some(first) = rest.first() else { return Ok(false) };
        // The library would accept values of other kinds, and arrays in arrays without a limit.
        if *first != b'$' {
            return Err(malformed(&format!("expected '$', got '{}'", first.escape_ascii())));
        }
        let Some(end) = header_end(rest)? else { return Ok(false) };
        let decoded = decode_range(rest).map_err(|_| malformed("invalid bulk length"))?;
        let Some((frame, length)) = decoded else {
            // It is refused before its bytes are kept.
            let stated = integer(&rest[1..end]).and_then(|stated| usize::try_from(stated).ok());
            let stated = stated.unwrap_or(usize::MAX);
            if self.at.saturating_add(stated) > self.request_max {
                return Err(malformed("invalid bulk length"));
            }
            return Ok(false);
        };
        let RangeFrame::BulkString((from, to)) = frame else {
            return Err(malformed("invalid bulk length"));
        };
        if &rest[to..to + 2] != b"\r\n" {
            return Err(malformed("a bulk string does not end where it says"));
        }
        if self.at + length > self.request_max {
            return Err(malformed("the request is too large"));
        }
        self.ranges.push(((self.at + from) as u32, (self.at + to) as u32));
        self.at += length;
        Ok(true)
    }

    /// Decodes a line of words, which may be quoted.
    fn decode_inline(&mut self, input: &[u8]) -> Result<Option<usize>, Malformed> {
        let Some(end) = memchr(b'\n', &input[..input.len().min(INLINE_MAX)]) else {
            let is_long = input.len() >= INLINE_MAX;
            return if is_long { Err(malformed("too big inline request")) } else { Ok(None) };
        };
        let words = self.inline.insert(Vec::new());
        let mut rest = input[..end].trim_ascii();
        while !rest.is_empty() {
            let begin = words.len();
            let unbalanced = || malformed("unbalanced quotes in request");
            rest = take_word(rest, words).ok_or_else(unbalanced)?.trim_ascii_start();
            self.ranges.push((begin as u32, words.len() as u32));
        }
        Ok(Some(end + 1))
    }
}

/// Appends the first word of a line, and returns what is behind it; `None` if its quotes are not
/// closed. In double quotes, a backslash stands before a letter for a byte, `x` and two hexadecimal
/// digits, or a byte that stands for itself; in single quotes, before a single quote.
fn take_word<'a>(line: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = line;
    while let [first, tail @ ..] = rest
        && !first.is_ascii_whitespace()
    {
        rest = match first {
            b'"' | b'\'' => take_quoted(*first, tail, word)?,
            byte => {
                word.push(*byte);
                tail
            }
        };
    }
    Some(rest)
}

/// Appends the bytes up to a closing quote, behind which the word must end.
fn take_quoted<'a>(quote: u8, text: &'a [u8], word: &mut Vec<u8>) -> Option<&'a [u8]> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut rest = text;
    loop {
        let (byte, length) = match *rest {
            [] => return None,
            [b'\\', b'x', high, low, ..]
                if quote == b'"' && digit(high).zip(digit(low)).is_some() =>
            {
                let (high, low) = digit(high).zip(digit(low))?;
                ((high * 16 + low) as u8, 4)
            }
            [b'\\', escaped, ..] if quote == b'"' => (unescaped(escaped), 2),
            [b'\\', b'\'', ..] => (b'\'', 2),
            [first, ref tail @ ..] if first == quote => {
                let is_end = tail.first().is_none_or(u8::is_ascii_whitespace);
                return is_end.then_some(tail);
            }
            [first, ..] => (first, 1),
        };
        word.push(byte);
        rest = &rest[length..];
    }
}

/// The byte that a letter behind a backslash stands for.
fn unescaped(letter: u8) -> u8 {
    match letter {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn malformed(problem: &str) -> Malformed {
    format!("ERR Protocol error: {problem}").into()
}

/// The length of a header line without its end; `None` if its end has not come.
fn header_end(input: &[u8]) -> Result<Option<usize>, Malformed> {
    let head = &input[..input.len().min(HEADER_MAX)];
    match memchr(b'\r', head) {
        Some(end) if end + 1 == input.len() => Ok(None),
        Some(end) if input[end + 1] == b'\n' => Ok(Some(end)),
        None if head.len() < HEADER_MAX => Ok(None),
        _ => Err(malformed("a count or a length is too long or has no end")),
    }
}

/// The value of a number as it is written without leading zeros or a plus sign.
pub(crate) fn integer(digits: &[u8]) -> Option<i64> {
    let value: i64 = str::from_utf8(digits).ok()?.parse().ok()?;
    (itoa::Buffer::new().format(value).as_bytes() == digits).then_some(value)
}

/// Appends a request of these strings.
pub(crate) fn encode_request(out: &mut Vec<u8>, args: Args<'_>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "*{}\r\n", args.len());
    for arg in args {
        let _ = write!(out, "${}\r\n", arg.len());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
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
                let words = decoder.args(&input[begin..end]);
                assert_eq!(words.len(), whole[requests].len());
                requests += 1;
                begin += length;
            }
        }
        assert_eq!((requests, begin), (5, input.len()));
    }

    #[test]
    fn quoted_words_of_a_line_are_taken_as_redis_takes_them() {
        let taken: [(&str, &[&str]); 6] = [
            (r#"SET h "a b""#, &["SET", "h", "a b"]),
            (r#"SET "" 'it\'s "so"'"#, &["SET", "", "it's \"so\""]),
            (r#""\x41\n\t\"\\\q" "\x4""#, &["A\n\t\"\\q", "x4"]),
            (r"'\x41\n'", &["\\x41\\n"]),
            (r#"a"b c"  d"#, &["ab c", "d"]),
            ("  \t ", &[]),
        ];
        for (line, words) in taken {
            let decoded = decode_all(format!("{line}\r\n").as_bytes()).unwrap();
            assert_eq!(decoded, [words], "{line}");
        }
        for line in [r#"SET h "a"#, r#""a"b"#, "'a", r#""a\""#] {
            assert!(decode_all(format!("{line}\r\n").as_bytes()).is_err(), "{line}");
        }
    }

    #[test]
    fn malformed_request_is_refused() {
        let long_header = [b"*".as_slice(), &[b'1'; 40]].concat();
        let inputs: [&[u8]; 11] = [
            b"*1\r\n*1\r\n$4\r\nPING\r\n",
            b"*x\r\n",
            b"*01\r\n",
            b"*1048577\r\n",
            b"*1\r\n$-1\r\n",
            b"*1\r\n$4\r\nPINGxx",
            b"*1\r\n$x\r\n",
            b"*1\r\n:1\r\n",
            b"*1\r\n$99999999999\r\n",
            b"*1\rx",
            &long_header,
        ];
        for input in inputs {
            let shown = input.escape_ascii();
            assert!(decode_all(input).is_err(), "{shown}");
        }
        assert!(decode_all(&vec![b'x'; INLINE_MAX]).is_err());
    }

    #[test]
    fn integer_is_taken_only_as_it_would_be_written() {
        let taken: [(&[u8], i64); 3] =
            [(b"0", 0), (b"-12", -12), (b"9223372036854775807", i64::MAX)];
        for (digits, value) in taken {
            assert_eq!(integer(digits), Some(value));
        }
        for digits in ["", "-", "-0", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808"] {
            assert_eq!(integer(digits.as_bytes()), None, "{digits:?}");
        }
    }
}

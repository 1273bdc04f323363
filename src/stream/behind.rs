//! Whether bytes were read behind a message, which are those of the next one.
//!
//! Why not the number of bytes alone: a framework does not say how long a head was, and reads on.
//! Why the empty line itself, and not that the last bytes are none: a stream below TLS reads other
//! bytes than the framework, and knows nothing of its messages.
//!
//! A head ends with the first empty line of a message. It is searched for where a read has begun
//! the message, and not where the message came ahead. A read that ends with an empty line is not
//! searched for another one. Bytes that are missed count as part of the message.
//!
//! Cost: a comparison of three bytes and two stores for each read. A read that does not end with an
//! empty line costs a store more, and is searched: all of it in a head, and its last [`SEARCHED`]
//! bytes otherwise.

use crate::link::sync::{AtomicBool, AtomicU64, Ordering};

/// How many bytes are searched at most, from the end of a read behind a head.
const SEARCHED: usize = 512;

/// What was read behind messages. Only the task that reads writes it, but for the end of a head.
/// Relaxed: no other data is carried. A framework hands the bytes of a message on after the read.
#[derive(Default)]
pub(super) struct Behind {
    /// Whether the end of a head is searched for, which a read has begun.
    is_head: AtomicBool,
    /// Whether the last read has bytes behind an empty line.
    is_there: AtomicBool,
    /// How many bytes were read.
    count: AtomicU64,
    /// How many of them the last head ends with; 0, which none ends with, if that is not known.
    head_end: AtomicU64,
    /// How many of them there are up to the last that ends no line, in reads without an empty line
    /// at their end. Line ends behind a body begin no head.
    text_end: AtomicU64,
}

impl Behind {
    /// A read has begun a message, which is noted next.
    pub(super) fn begin_head(&self) {
        self.is_head.store(true, Ordering::Relaxed);
    }

    /// Something was read; nothing if the bytes are not known.
    #[inline]
    pub(super) fn note_read(&self, read: &[u8]) {
        let is_head = self.is_head.load(Ordering::Relaxed);
        let before = self.count.load(Ordering::Relaxed);
        let count = before + read.len() as u64;
        self.count.store(count, Ordering::Relaxed);
        let behind = if read.ends_with(b"\n\r\n") {
            Some(0)
        } else {
            if let Some(last) = read.iter().rposition(|byte| is_text(*byte)) {
                self.text_end.store(before + last as u64 + 1, Ordering::Relaxed);
            }
            behind_line(read, is_head)
        };
        self.is_there.store(behind.is_some_and(|behind| behind > 0), Ordering::Relaxed);
        if is_head {
            if let Some(behind) = behind {
                self.is_head.store(false, Ordering::Relaxed);
                self.head_end.store(count - behind as u64, Ordering::Relaxed);
            }
        }
    }

    /// Takes the end of the last head; `None` if it is not known.
    #[inline]
    pub(super) fn take_head_end(&self) -> Option<u64> {
        let end = self.head_end.load(Ordering::Relaxed);
        self.head_end.store(0, Ordering::Relaxed);
        (end > 0).then_some(end)
    }

    /// Whether there are bytes behind a message that ends with an empty line.
    #[inline]
    pub(super) fn is_behind_line(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Whether there are bytes behind the first `end` of the stream, other than line ends.
    #[inline]
    pub(super) fn is_behind(&self, end: u64) -> bool {
        self.text_end.load(Ordering::Relaxed) > end
    }
}

fn is_text(byte: u8) -> bool {
    !b"\r\n".contains(&byte)
}

/// How many bytes are behind an empty line: the first of a head, or the last.
fn behind_line(read: &[u8], is_head: bool) -> Option<usize> {
    let is_line = |part: &[u8]| part == b"\r\n\r\n";
    if !is_head {
        let last = &read[read.len().saturating_sub(SEARCHED)..];
        return last.windows(4).rev().position(is_line);
    }
    // Empty lines before a head are no part of it.
    let begin = read.iter().position(|byte| is_text(*byte))?;
    let end = read[begin..].windows(4).position(is_line)? + begin + 4;
    Some(read.len() - end)
}

#[cfg(all(test, not(corewheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_behind_an_empty_line_are_found_in_the_last_read() {
        let check = |reads: &[&[u8]], expected: bool| {
            let behind = Behind::default();
            for read in reads {
                behind.note_read(read);
            }
            assert_eq!(behind.is_behind_line(), expected, "{reads:?}");
        };
        let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        check(&[head], false);
        check(&[head, b"G"], false);
        check(&[&[head, &b"G"[..]].concat()], true);
        check(&[&[head, &b"GET / HTTP/1.1\r\n"[..]].concat()], true);
        // All of the next head is there as well.
        check(&[&head.repeat(2)], false);
        check(&[&[&head.repeat(2)[..], b"G"].concat()], true);
        check(&[b"5\r\nhello\r\n0\r\n\r\n"], false);
        check(&[b"5\r\nhello\r\n0\r\n\r\nGET"], true);
        // Of another protocol, as of TLS, nothing is known.
        check(&[b"\x17\x03\x03\x00\x05hello"], false);
        check(&[&[&head[..], &[b'x'; SEARCHED]].concat()], false);
        check(&[], false);
    }

    #[test]
    fn head_ends_with_its_first_empty_line_wherever_reads_part_it() {
        let check = |reads: &[&[u8]], expected: Option<u64>| {
            let behind = Behind::default();
            behind.begin_head();
            for read in reads {
                behind.note_read(read);
            }
            assert_eq!(behind.take_head_end(), expected, "{reads:?}");
            assert_eq!(behind.take_head_end(), None);
        };
        let head = b"POST / HTTP/1.1\r\ncontent-length: 8\r\n\r\n";
        let all = head.len() as u64;
        check(&[head], Some(all));
        check(&[&[&head[..], b"body"].concat()], Some(all));
        check(&[&head[..9], &head[9..]], Some(all));
        check(&[&head[..9], &[&head[9..], b"bo\r\n\r\ndy"].concat(), b"GET"], Some(all));
        // Empty lines before a head.
        check(&[&[b"\r\n\r\n", &head[..], b"body"].concat()], Some(all + 4));
        check(&[&head[..9]], None);
        // Not found are a line in two reads, one before another at the end of a read, and bytes
        // that are not known.
        let lines = [&head[..], b"bo\r\n\r\n"].concat();
        check(&[&lines], Some(lines.len() as u64));
        check(&[&head[..head.len() - 1], b"\nbody"], None);
        check(&[], None);
    }

    #[test]
    fn bytes_behind_a_body_of_a_stated_length_are_counted() {
        let behind = Behind::default();
        behind.begin_head();
        behind.note_read(b"PUT / HTTP/1.1\r\n\r\nbo");
        let end = behind.take_head_end().unwrap() + 4;
        assert!(!behind.is_behind(end));
        behind.note_read(b"dy");
        assert!(!behind.is_behind(end));
        behind.note_read(b"\r\n");
        assert!(!behind.is_behind(end), "line ends begin no head");
        behind.note_read(b"G");
        assert!(behind.is_behind(end));
    }
}

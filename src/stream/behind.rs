//! Whether bytes were read behind the empty line with which a message ends.
//!
//! Why not the number of bytes: a framework does not say how long a head was, and reads on. Why the
//! empty line itself, and not that the last bytes are none: a stream below TLS reads other bytes
//! than the framework, and knows nothing of its messages.
//!
//! Cost: a comparison of three bytes and a store for each read, and a search through the last
//! [`SEARCHED`] bytes of a read that does not end with an empty line.

use crate::link::sync::{AtomicBool, Ordering};

/// How many bytes are searched at most, from the end of a read.
const SEARCHED: usize = 512;

/// Whether the last read has bytes behind an empty line. Only the task that reads writes it.
/// Relaxed: the flag carries no other data.
pub(super) struct Behind(AtomicBool);

impl Behind {
    pub(super) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Something was read; nothing if the bytes are not known.
    #[inline]
    pub(super) fn note_read(&self, read: &[u8]) {
        self.0.store(!read.ends_with(b"\n\r\n") && has_empty_line(read), Ordering::Relaxed);
    }

    #[cfg(feature = "hyper")]
    pub(super) fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn has_empty_line(read: &[u8]) -> bool {
    let last = &read[read.len().saturating_sub(SEARCHED)..];
    last.windows(4).rev().any(|part| part == b"\r\n\r\n")
}

#[cfg(all(test, feature = "hyper", not(corewheel_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bytes_behind_an_empty_line_are_found_in_the_last_read() {
        let check = |reads: &[&[u8]], expected: bool| {
            let behind = Behind::new();
            for read in reads {
                behind.note_read(read);
            }
            assert_eq!(behind.is_there(), expected, "{reads:?}");
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
}

//! A bitmap of the occupied slots, so that the wheel never visits an empty slot.

use alloc::boxed::Box;
use alloc::vec;

const WORD: usize = u64::BITS as usize;

/// A set of slot numbers with a fast search for the first member at or after a number.
///
/// It has two tiers: a bit per slot, and a bit per word of the first tier that is set if the word
/// is not zero. A search reads one word of the first tier, a few of the second (one for up to 4,096
/// slots) and another one of the first.
#[derive(Debug)]
pub(crate) struct Bitmap {
    words: Box<[u64]>,
    summary: Box<[u64]>,
}

impl Bitmap {
    pub(crate) fn new(len: usize) -> Self {
        let words = len.div_ceil(WORD);
        Self {
            words: vec![0; words].into_boxed_slice(),
            summary: vec![0; words.div_ceil(WORD)].into_boxed_slice(),
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, bit: usize) {
        let word = bit / WORD;
        self.words[word] |= 1 << (bit % WORD);
        self.summary[word / WORD] |= 1 << (word % WORD);
    }

    #[inline]
    pub(crate) fn clear(&mut self, bit: usize) {
        let word = bit / WORD;
        self.words[word] &= !(1 << (bit % WORD));
        if self.words[word] == 0 {
            self.summary[word / WORD] &= !(1 << (word % WORD));
        }
    }

    pub(crate) fn contains(&self, bit: usize) -> bool {
        self.words[bit / WORD] & (1 << (bit % WORD)) != 0
    }

    /// The first member in `from..to`.
    #[inline]
    pub(crate) fn first_in(&self, from: usize, to: usize) -> Option<usize> {
        if from >= to {
            return None;
        }
        let word = from / WORD;
        let rest = self.words[word] & (u64::MAX << (from % WORD));
        let found = if rest != 0 {
            word * WORD + rest.trailing_zeros() as usize
        } else {
            let word = first_at_or_after(&self.summary, word + 1)?;
            word * WORD + self.words[word].trailing_zeros() as usize
        };
        (found < to).then_some(found)
    }
}

#[inline]
fn first_at_or_after(summary: &[u64], from: usize) -> Option<usize> {
    let start = from / WORD;
    let first = summary.get(start)? & (u64::MAX << (from % WORD));
    if first != 0 {
        return Some(start * WORD + first.trailing_zeros() as usize);
    }
    let (word, bits) = summary.iter().enumerate().skip(start + 1).find(|(_, bits)| **bits != 0)?;
    Some(word * WORD + bits.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_equals_linear_scan() {
        let len = 3 * WORD * WORD + 5;
        let mut bitmap = Bitmap::new(len);
        let members = [0, 1, 63, 64, 65, 4_095, 4_096, 5_000, 8_191, 8_192, len - 1];
        for member in members {
            bitmap.set(member);
        }
        // One of them is the only one of its word.
        for cleared in [1, 64, 5_000, 8_191] {
            bitmap.clear(cleared);
        }
        for from in 0..len {
            let expected = (from..len).find(|bit| bitmap.contains(*bit));
            assert_eq!(bitmap.first_in(from, len), expected, "from {from}");
        }
        assert_eq!(bitmap.first_in(66, 4_095), None, "the range excludes its end");
        assert_eq!(bitmap.first_in(5, 5), None);
    }
}

//! Keyspace events: which are asked for, and what is published for each.

use bytes::Bytes;

/// The kinds of events, each by its letter in `notify-keyspace-events`, in the order in which they
/// are written and of their bits. Kinds of values that the cache does not have mean nothing.
const LETTERS: &[u8; 15] = b"g$lshzxetdnKEmo";
const KEYSPACE: u64 = 1 << 11;
const KEYEVENT: u64 = 1 << 12;
/// What the letter `A` stands for.
const ALL: u64 = (1 << 10) - 1;

/// A kind of event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class(u64);

impl Class {
    pub(crate) const GENERIC: Self = Self(1);
    pub(crate) const STRING: Self = Self(1 << 1);
    pub(crate) const EXPIRED: Self = Self(1 << 6);
    pub(crate) const EVICTED: Self = Self(1 << 7);
    pub(crate) const NEW: Self = Self(1 << 10);
}

/// Which events are published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flags(pub(crate) u64);

impl Flags {
    /// `None` if a letter names no kind.
    pub(crate) fn parse(letters: &[u8]) -> Option<Self> {
        let bit_of = |letter: &u8| match letter {
            b'A' => Some(ALL),
            letter => LETTERS.iter().position(|known| known == letter).map(|bit| 1 << bit),
        };
        letters.iter().try_fold(0, |bits, letter| Some(bits | bit_of(letter)?)).map(Self)
    }

    pub(crate) fn letters(self) -> String {
        let has_all = self.0 & ALL == ALL;
        let hidden = if has_all { ALL } else { 0 };
        let shown = (0..LETTERS.len()).filter(|bit| self.0 & !hidden & 1 << bit != 0);
        let letters = shown.map(|bit| char::from(LETTERS[bit]));
        has_all.then_some('A').into_iter().chain(letters).collect()
    }

    /// Adds the events of a key, if a client may wait for them.
    #[inline]
    pub(crate) fn push_events(
        self,
        class: Class,
        name: &'static str,
        key: &[u8],
        events: &mut Vec<Event>,
    ) {
        if self.0 & class.0 == 0 {
            return;
        }
        let channel =
            |kind: &str, of: &[u8]| Bytes::from([b"__key", kind.as_bytes(), b"@0__:", of].concat());
        if self.0 & KEYSPACE != 0 {
            let message = Bytes::from_static(name.as_bytes());
            events.push(Event { channel: channel("space", key), message });
        }
        if self.0 & KEYEVENT != 0 {
            let message = Bytes::copy_from_slice(key);
            events.push(Event { channel: channel("event", name.as_bytes()), message });
        }
    }
}

/// A message for the subscribers of a channel.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) channel: Bytes,
    pub(crate) message: Bytes,
}

impl Event {
    /// What it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.channel.len() + self.message.len() + size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use super::Flags;

    #[test]
    fn flags_are_written_in_one_order() {
        for (given, written) in
            [("KA", "AK"), ("EA", "AE"), ("gKE", "gKE"), ("Ex", "xE"), ("", ""), ("nKEA", "AnKE")]
        {
            assert_eq!(Flags::parse(given.as_bytes()).unwrap().letters(), written);
        }
        assert_eq!(Flags::parse(b"Kq"), None);
    }
}

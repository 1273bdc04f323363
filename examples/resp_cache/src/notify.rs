//! Keyspace events: which are asked for, and what is published for each.

use bytes::Bytes;

/// The kinds of events, each with its letter in `notify-keyspace-events`, in the order in which
/// they are written. Kinds of values that the cache does not have are kept and mean nothing.
const LETTERS: [(u8, u32); 15] = [
    (b'g', 1),
    (b'$', 1 << 1),
    (b'l', 1 << 2),
    (b's', 1 << 3),
    (b'h', 1 << 4),
    (b'z', 1 << 5),
    (b'x', 1 << 6),
    (b'e', 1 << 7),
    (b't', 1 << 8),
    (b'd', 1 << 9),
    (b'n', 1 << 10),
    (b'K', KEYSPACE),
    (b'E', KEYEVENT),
    (b'm', 1 << 13),
    (b'o', 1 << 14),
];
const KEYSPACE: u32 = 1 << 11;
const KEYEVENT: u32 = 1 << 12;
/// What the letter `A` stands for.
const ALL: u32 = (1 << 10) - 1;

/// A kind of event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Class(u32);

impl Class {
    pub(crate) const GENERIC: Self = Self(1);
    pub(crate) const STRING: Self = Self(1 << 1);
    pub(crate) const EXPIRED: Self = Self(1 << 6);
    pub(crate) const EVICTED: Self = Self(1 << 7);
    pub(crate) const NEW: Self = Self(1 << 10);
}

/// Which events are published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flags(pub(crate) u32);

impl Flags {
    /// `None` if a letter names no kind.
    pub(crate) fn parse(letters: &[u8]) -> Option<Self> {
        let bit_of = |letter: &u8| match letter {
            b'A' => Some(ALL),
            letter => LETTERS.iter().find(|(known, _)| known == letter).map(|(_, bit)| *bit),
        };
        letters.iter().try_fold(0, |bits, letter| Some(bits | bit_of(letter)?)).map(Self)
    }

    pub(crate) fn letters(self) -> String {
        let has_all = self.0 & ALL == ALL;
        let shown =
            LETTERS.iter().filter(|(_, bit)| self.0 & bit != 0 && !(has_all && bit & ALL != 0));
        let letters = shown.map(|(letter, _)| char::from(*letter));
        has_all.then_some('A').into_iter().chain(letters).collect()
    }

    #[inline]
    pub(crate) fn ask_for(self, class: Class) -> bool {
        self.0 & class.0 != 0 && self.0 & (KEYSPACE | KEYEVENT) != 0
    }

    pub(crate) fn push_events(self, name: &'static str, key: &[u8], events: &mut Vec<Event>) {
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

//! Keyspace events: which are asked for, and what is published for each.

use bytes::Bytes;

/// Which events are published, by the letters of redis' `notify-keyspace-events`: `x` for keys that
/// expire, and `e` for keys that are evicted; `K` for the channel of the key, and `E` for that of
/// the event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Flags([bool; 4]);

const LETTERS: [char; 4] = ['x', 'e', 'K', 'E'];

impl Flags {
    pub(crate) fn parse(letters: &str) -> Result<Self, String> {
        if letters.chars().any(|letter| !LETTERS.contains(&letter)) {
            return Err("use letters of xeKE, with K or E, as in \"Ex\"".to_owned());
        }
        Ok(Self(LETTERS.map(|letter| letters.contains(letter))))
    }

    pub(crate) fn letters(self) -> String {
        LETTERS.iter().zip(self.0).filter_map(|(letter, is_set)| is_set.then_some(letter)).collect()
    }

    /// Adds the events of a key that has been evicted, or has expired.
    #[inline]
    pub(crate) fn push_events(self, is_evicted: bool, key: &[u8], events: &mut Vec<Event>) {
        let [expired, evicted, keyspace, keyevent] = self.0;
        if !(if is_evicted { evicted } else { expired }) {
            return;
        }
        let name = if is_evicted { "evicted" } else { "expired" };
        if keyspace {
            let channel = Bytes::from([b"__keyspace@0__:", key].concat());
            events.push(Event { channel, message: Bytes::from_static(name.as_bytes()) });
        }
        if keyevent {
            let channel = Bytes::from(format!("__keyevent@0__:{name}"));
            events.push(Event { channel, message: Bytes::copy_from_slice(key) });
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

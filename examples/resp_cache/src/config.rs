//! The settings that `CONFIG` reads and changes while the server runs.

use crate::gauges::Gauge;
use crate::glob;
use crate::notify::Flags;
use crate::options::Options;
use crate::protocol::integer;

/// How redis encodes hashes, lists, sets and streams, with its defaults. The cache has only
/// strings, so these settings are kept for the clients that set and read them, and change nothing.
const ENCODINGS: [(&str, i64); 16] = [
    ("hash-max-listpack-entries", 128),
    ("hash-max-listpack-value", 64),
    ("hash-max-ziplist-entries", 128),
    ("hash-max-ziplist-value", 64),
    ("list-compress-depth", 0),
    ("list-max-listpack-size", -2),
    ("list-max-ziplist-size", -2),
    ("set-max-intset-entries", 512),
    ("set-max-listpack-entries", 128),
    ("set-max-listpack-value", 64),
    ("stream-node-max-bytes", 4096),
    ("stream-node-max-entries", 100),
    ("zset-max-listpack-entries", 128),
    ("zset-max-listpack-value", 64),
    ("zset-max-ziplist-entries", 128),
    ("zset-max-ziplist-value", 64),
];

/// The settings. Each core reads them before it executes requests.
#[derive(Debug)]
pub(crate) struct Config {
    /// The bits of [`Flags`].
    pub(crate) notify: Gauge,
    pub(crate) memory_max: Gauge,
    pub(crate) clients_max: Gauge,
    /// After how many seconds of silence a client is disconnected; zero is never.
    pub(crate) idle: Gauge,
    request_max: usize,
    encodings: [(&'static str, Gauge); ENCODINGS.len()],
}

impl Config {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            notify: Gauge::new(options.notify_keyspace_events.0),
            memory_max: Gauge::new(options.memory_max),
            clients_max: Gauge::new(options.clients_max),
            idle: Gauge::new(options.idle.as_secs()),
            request_max: options.request_max,
            encodings: ENCODINGS.map(|(name, value)| (name, Gauge::new(value.cast_unsigned()))),
        }
    }

    /// All settings, by the names that redis has for them.
    fn all(&self) -> impl Iterator<Item = (&'static str, String)> {
        let others = [
            ("appendonly", "no".to_owned()),
            ("databases", "1".to_owned()),
            ("maxclients", self.clients_max.get().to_string()),
            ("maxmemory", self.memory_max.get().to_string()),
            ("maxmemory-policy", "volatile-ttl".to_owned()),
            ("notify-keyspace-events", Flags(self.notify.get()).letters()),
            ("proto-max-bulk-len", self.request_max.to_string()),
            ("save", String::new()),
            ("timeout", self.idle.get().to_string()),
        ];
        let encodings = self.encodings.iter();
        others
            .into_iter()
            .chain(encodings.map(|(name, value)| (*name, value.get().cast_signed().to_string())))
    }

    /// The settings whose names match one of the patterns.
    pub(crate) fn matching(&self, patterns: &[&[u8]]) -> Vec<(&'static str, String)> {
        let patterns: Vec<_> =
            patterns.iter().map(|pattern| pattern.to_ascii_lowercase()).collect();
        let is_asked_for =
            |name: &str| patterns.iter().any(|pattern| glob::matches(pattern, name.as_bytes()));
        self.all().filter(|(name, _)| is_asked_for(name)).collect()
    }

    /// Changes a setting. The error is the reply's text.
    pub(crate) fn set(&self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let name = String::from_utf8_lossy(name).to_lowercase();
        let plain = integer(value).and_then(|value| u64::try_from(value).ok());
        let number = "argument must be a number that is not negative";
        let letters = "Invalid event class character. Use 'Ag$lshzxeKEtmdno'.";
        let encoding = self.encodings.iter().find(|(known, _)| *known == name);
        let (setting, value, problem) = match (name.as_str(), encoding) {
            ("maxmemory", _) => (&self.memory_max, bytes_of(value), number),
            ("maxclients", _) => (&self.clients_max, plain, number),
            ("timeout", _) => (&self.idle, plain, number),
            ("notify-keyspace-events", _) => {
                (&self.notify, Flags::parse(value).map(|flags| flags.0), letters)
            }
            (_, Some((_, setting))) => {
                (setting, integer(value).map(i64::cast_unsigned), "argument must be a number")
            }
            _ => match self.all().find(|(known, _)| *known == name) {
                Some((_, fixed)) if fixed.as_bytes() == value => return Ok(()),
                Some(_) => (&self.notify, None, "can't set immutable config"),
                None => {
                    let unknown = "ERR Unknown option or number of arguments for CONFIG SET";
                    return Err(format!("{unknown} - '{name}'"));
                }
            },
        };
        let failed = "ERR CONFIG SET failed (possibly related to argument";
        let value = value.ok_or_else(|| format!("{failed} '{name}') - {problem}"))?;
        setting.set(value);
        Ok(())
    }
}

/// A number of bytes, with a unit of redis or without one.
fn bytes_of(value: &[u8]) -> Option<u64> {
    let lower = String::from_utf8_lossy(value).to_lowercase();
    let units = [("kb", 1 << 10), ("mb", 1 << 20), ("gb", 1 << 30)];
    let found = units.iter().find_map(|(unit, size)| Some((lower.strip_suffix(unit)?, *size)));
    let (digits, size) = found.unwrap_or((lower.as_str(), 1));
    u64::try_from(integer(digits.as_bytes())?).ok()?.checked_mul(size)
}

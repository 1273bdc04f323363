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
    /// After how many milliseconds of silence a client is disconnected; zero is never.
    pub(crate) idle: Gauge,
    /// The most bytes that all clients take; zero is no limit.
    pub(crate) clients_memory_max: Gauge,
    /// The most bytes of messages that wait for a subscriber; see [`limit_of`].
    pub(crate) output_max: Gauge,
    /// The most bytes of the replies to a transaction, or of a list of keys; see [`limit_of`].
    pub(crate) replies_max: Gauge,
    /// No more clients can be allowed.
    clients_limit: u64,
    request_max: usize,
    encodings: [(&'static str, Gauge); ENCODINGS.len()],
}

impl Config {
    pub(crate) fn new(options: &Options) -> Self {
        let idle = options.idle.as_nanos().div_ceil(1_000_000);
        Self {
            notify: Gauge::new(options.notify_keyspace_events.0),
            memory_max: Gauge::new(options.memory_max),
            clients_max: Gauge::new(options.clients_max),
            // Rounded up, as zero means never.
            idle: Gauge::new(u64::try_from(idle).unwrap_or(u64::MAX)),
            clients_memory_max: Gauge::new(options.clients_memory_max),
            output_max: Gauge::new(limit_of(options.output_max)),
            replies_max: Gauge::new(limit_of(options.replies_max)),
            clients_limit: options.clients_limit(),
            request_max: options.request_max,
            encodings: ENCODINGS.map(|(name, value)| (name, Gauge::new(value.cast_unsigned()))),
        }
    }

    /// All settings, by the names that redis has for them.
    fn all(&self) -> impl Iterator<Item = (&'static str, String)> {
        let others = [
            ("appendonly", "no".to_owned()),
            ("client-output-buffer-limit", self.output_limits()),
            ("databases", "1".to_owned()),
            ("maxclients", self.clients_max.get().to_string()),
            ("maxmemory", self.memory_max.get().to_string()),
            ("maxmemory-clients", self.clients_memory_max.get().to_string()),
            ("maxmemory-policy", "volatile-ttl".to_owned()),
            ("notify-keyspace-events", Flags(self.notify.get()).letters()),
            ("proto-max-bulk-len", self.request_max.to_string()),
            ("save", String::new()),
            ("timeout", self.idle.get().div_ceil(1_000).to_string()),
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

    /// The limits for replies and for messages as redis writes them. All are hard ones.
    fn output_limits(&self) -> String {
        let shown = |max: &Gauge| if max.get() == u64::MAX { 0 } else { max.get() };
        let (normal, pubsub) = (shown(&self.replies_max), shown(&self.output_max));
        format!("normal {normal} 0 0 slave 0 0 0 pubsub {pubsub} 0 0")
    }

    /// Changes settings, whose names and values are given by turns: all, or none if one is refused.
    /// The error is the reply's text.
    pub(crate) fn set(&self, pairs: &[&[u8]]) -> Result<(), String> {
        let mut changes = Vec::new();
        for pair in pairs.chunks_exact(2) {
            let name = String::from_utf8_lossy(pair[0]).to_lowercase();
            if name == "client-output-buffer-limit" {
                changes.extend(self.output_changes(pair[1]).ok_or_else(|| {
                    let problem = "only hard limits for normal and pubsub can be set, as in \
                                   'pubsub 33554432 0 0'";
                    failed(&name, problem)
                })?);
            } else {
                changes.extend(self.change_of(&name, pair[1])?);
            }
        }
        for (setting, value) in changes {
            setting.set(value);
        }
        Ok(())
    }

    /// The limits of a value such as `normal 0 0 0 pubsub 32mb 0 0`. Soft limits must be zero.
    fn output_changes(&self, value: &[u8]) -> Option<Vec<(&Gauge, u64)>> {
        let text = String::from_utf8_lossy(value).to_lowercase();
        let words: Vec<&str> = text.split_whitespace().collect();
        let (limits, []) = words.as_chunks::<4>() else { return None };
        let mut changes = Vec::new();
        for limit in limits {
            let (setting, hard) = match limit {
                ["normal", hard, "0", "0"] => (&self.replies_max, hard),
                ["pubsub", hard, "0", "0"] => (&self.output_max, hard),
                ["slave" | "replica", "0", "0", "0"] => continue,
                _ => return None,
            };
            changes.push((setting, limit_of(bytes_of(hard.as_bytes())?)));
        }
        (!limits.is_empty()).then_some(changes)
    }

    /// What a setting is to become; `None` if it cannot change and has the value already.
    fn change_of(&self, name: &str, value: &[u8]) -> Result<Option<(&Gauge, u64)>, String> {
        let plain = integer(value).and_then(|value| u64::try_from(value).ok());
        let number = "argument must be a number that is not negative";
        let letters = "Invalid event class character. Use 'Ag$lshzxeKEtmdno'.";
        let many = "the timers of so many clients are not reserved: start with more --clients-max";
        let seconds = "argument must be a number of seconds";
        let encoding = self.encodings.iter().find(|(known, _)| *known == name);
        let (setting, value, problem) = match (name, encoding) {
            ("maxmemory", _) => (&self.memory_max, bytes_of(value), number),
            ("maxmemory-clients", _) => (&self.clients_memory_max, bytes_of(value), number),
            ("maxclients", _) => {
                let allowed = plain.filter(|count| *count <= self.clients_limit);
                (&self.clients_max, allowed, if plain.is_some() { many } else { number })
            }
            ("timeout", _) => {
                (&self.idle, plain.and_then(|value| value.checked_mul(1_000)), seconds)
            }
            ("notify-keyspace-events", _) => {
                (&self.notify, Flags::parse(value).map(|flags| flags.0), letters)
            }
            (_, Some((_, setting))) => {
                (setting, integer(value).map(i64::cast_unsigned), "argument must be a number")
            }
            _ => match self.all().find(|(known, _)| *known == name) {
                Some((_, fixed)) if fixed.as_bytes() == value => return Ok(None),
                Some(_) => (&self.notify, None, "can't set immutable config"),
                None => {
                    let unknown = "ERR Unknown option or number of arguments for CONFIG SET";
                    return Err(format!("{unknown} - '{name}'"));
                }
            },
        };
        let value = value.ok_or_else(|| failed(name, problem))?;
        Ok(Some((setting, value)))
    }
}

/// The reply to a change that is refused.
fn failed(name: &str, problem: &str) -> String {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {problem}")
}

/// The limit that a user states as a number of bytes, of which zero is none, as in redis.
fn limit_of(bytes: u64) -> u64 {
    if bytes == 0 { u64::MAX } else { bytes }
}

/// A number of bytes, with a unit of redis or without one.
fn bytes_of(value: &[u8]) -> Option<u64> {
    let lower = String::from_utf8_lossy(value).to_lowercase();
    let units = [("kb", 1 << 10), ("mb", 1 << 20), ("gb", 1 << 30)];
    let found = units.iter().find_map(|(unit, size)| Some((lower.strip_suffix(unit)?, *size)));
    let (digits, size) = found.unwrap_or((lower.as_str(), 1));
    u64::try_from(integer(digits.as_bytes())?).ok()?.checked_mul(size)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config(arguments: &[&str]) -> Config {
        Config::new(&Options::parse_from([&["resp_cache"], arguments].concat()))
    }

    #[test]
    fn settings_are_changed_together_or_not_at_all() {
        let config = config(&[]);
        let pairs: [&[u8]; 4] = [b"maxmemory", b"5mb", b"maxclients", b"many"];
        assert!(config.set(&pairs).is_err());
        assert_eq!(config.memory_max.get(), 0, "the first of them is not changed");
        assert!(config.set(&[b"maxmemory", b"5mb", b"no-such", b"1"]).is_err());
        assert_eq!(config.memory_max.get(), 0);
        assert!(config.set(&[b"maxmemory", b"5mb", b"timeout", b"7"]).is_ok());
        assert_eq!((config.memory_max.get(), config.idle.get()), (5 << 20, 7_000));
    }

    #[test]
    fn short_idle_time_is_a_time_and_not_never() {
        let stated = [("0s", 0), ("1ns", 1), ("500ms", 500), ("1500ms", 1_500)];
        // 2⁶¹ seconds are a multiple of 2⁶⁴ milliseconds.
        for (stated, millis) in stated.into_iter().chain([("2305843009213693952s", u64::MAX)]) {
            assert_eq!(config(&["--idle", stated]).idle.get(), millis, "{stated}");
        }
        let timeout = config(&["--idle", "1500ms"]).matching(&[b"timeout"]);
        assert_eq!(timeout, [("timeout", "2".to_owned())]);
    }

    #[test]
    fn limits_for_replies_and_messages_are_set_as_in_redis() {
        let config = config(&[]);
        let set = |value: &[u8]| config.set(&[b"client-output-buffer-limit", value]).is_ok();
        assert!(set(b"pubsub 1mb 0 0"));
        assert_eq!(config.output_max.get(), 1 << 20);
        assert!(set(b"normal 5mb 0 0 replica 0 0 0"));
        assert_eq!(config.replies_max.get(), 5 << 20);
        assert_eq!(config.output_limits(), "normal 5242880 0 0 slave 0 0 0 pubsub 1048576 0 0");
        assert!(!set(b"normal 1mb 0 0 pubsub none 0 0"));
        assert_eq!(config.replies_max.get(), 5 << 20, "none is set if one is refused");
        assert!(set(config.output_limits().as_bytes()));
        for refused in ["pubsub 1mb 1kb 60", "normal 1mb 1 0", "pubsub", "", "pubsub x 0 0"] {
            assert!(!set(refused.as_bytes()), "{refused}");
        }
        assert_eq!(config.output_max.get(), 1 << 20);
    }

    #[test]
    fn limit_for_replies_or_messages_of_zero_is_none() {
        let config = config(&["--output-max", "0", "--replies-max", "0"]);
        assert_eq!((config.output_max.get(), config.replies_max.get()), (u64::MAX, u64::MAX));
        assert_eq!(config.output_limits(), "normal 0 0 0 slave 0 0 0 pubsub 0 0 0");
    }

    #[test]
    fn more_clients_than_timers_are_reserved_for_are_refused() {
        let config = config(&["--clients-max", "20000"]);
        assert!(config.set(&[b"maxclients", b"20001"]).is_err());
        assert!(config.set(&[b"maxclients", b"10"]).is_ok());
        assert!(config.set(&[b"maxclients", b"20000"]).is_ok());
    }
}

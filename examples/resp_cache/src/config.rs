//! The settings that `CONFIG` reads and changes while the server runs.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::glob;
use crate::notify::Flags;
use crate::options::Options;
use crate::protocol::integer;

/// The settings. Each core reads them before it executes requests.
#[derive(Debug)]
pub(crate) struct Config {
    notify: AtomicU32,
    memory_max: AtomicU64,
    clients_max: AtomicU64,
    /// Seconds; zero is never.
    idle: AtomicU64,
    request_max: usize,
}

// Relaxed: each setting stands alone.
impl Config {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            notify: AtomicU32::new(options.notify_keyspace_events.0),
            memory_max: AtomicU64::new(options.memory_max),
            clients_max: AtomicU64::new(options.clients_max),
            idle: AtomicU64::new(options.idle.as_secs()),
            request_max: options.request_max,
        }
    }

    pub(crate) fn flags(&self) -> Flags {
        Flags(self.notify.load(Ordering::Relaxed))
    }

    pub(crate) fn memory_max(&self) -> u64 {
        self.memory_max.load(Ordering::Relaxed)
    }

    pub(crate) fn clients_max(&self) -> u64 {
        self.clients_max.load(Ordering::Relaxed)
    }

    /// After how many seconds of silence a client is disconnected; zero is never.
    pub(crate) fn idle(&self) -> u64 {
        self.idle.load(Ordering::Relaxed)
    }

    /// All settings, by the names that redis has for them.
    fn all(&self) -> [(&'static str, String); 9] {
        let read = |setting: &AtomicU64| setting.load(Ordering::Relaxed).to_string();
        [
            ("appendonly", "no".to_owned()),
            ("databases", "1".to_owned()),
            ("maxclients", read(&self.clients_max)),
            ("maxmemory", read(&self.memory_max)),
            ("maxmemory-policy", "volatile-ttl".to_owned()),
            ("notify-keyspace-events", self.flags().letters()),
            ("proto-max-bulk-len", self.request_max.to_string()),
            ("save", String::new()),
            ("timeout", read(&self.idle)),
        ]
    }

    /// The settings whose names match one of the patterns.
    pub(crate) fn matching<'a>(
        &self,
        patterns: impl Iterator<Item = &'a [u8]> + Clone,
    ) -> Vec<(&'static str, String)> {
        let mut settings = self.all().to_vec();
        settings.retain(|(name, _)| {
            patterns
                .clone()
                .any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
        });
        settings
    }

    /// Changes a setting. The error is the reply's text.
    pub(crate) fn set(&self, name: &[u8], value: &[u8]) -> Result<(), String> {
        let name = String::from_utf8_lossy(name).to_lowercase();
        let failed = |problem: &str| {
            Err(format!(
                "ERR CONFIG SET failed (possibly related to argument '{name}') - {problem}"
            ))
        };
        let number = |setting: &AtomicU64, value: Option<u64>| match value {
            Some(value) => {
                setting.store(value, Ordering::Relaxed);
                Ok(())
            }
            None => failed("argument must be a number that is not negative"),
        };
        let plain = integer(value).and_then(|value| u64::try_from(value).ok());
        match name.as_str() {
            "maxmemory" => number(&self.memory_max, bytes_of(value)),
            "maxclients" => number(&self.clients_max, plain),
            "timeout" => number(&self.idle, plain),
            "notify-keyspace-events" => match Flags::parse(value) {
                Some(flags) => {
                    self.notify.store(flags.0, Ordering::Relaxed);
                    Ok(())
                }
                None => failed("Invalid event class character. Use 'Ag$lshzxeKEtmdno'."),
            },
            _ => match self.all().iter().find(|(known, _)| *known == name) {
                Some((_, fixed)) if fixed.as_bytes() == value => Ok(()),
                Some(_) => failed("can't set immutable config"),
                None => Err(format!(
                    "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
                )),
            },
        }
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

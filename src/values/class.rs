//! Classes: what timers are for, so that the statistics can tell them apart.
//!
//! ```
//! use corewheel::TimerService;
//! use corewheel::class::TimerClass;
//! use corewheel::clock::ManualClock;
//! use std::time::Duration;
//!
//! const REQUEST: TimerClass = TimerClass::new("request");
//!
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock).class(REQUEST);
//! let service = builder.start_attached_with::<u64>()?;
//! let mut shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
//!
//! // Everything that is scheduled with this view is of the class.
//! let requests = shard.timers().of_class(REQUEST)?;
//! let answered = requests.schedule(Duration::from_secs(5), 1)?;
//! requests.schedule(Duration::from_secs(5), 2)?;
//! assert!(requests.cancel(answered).won());
//! clock.advance(Duration::from_secs(5));
//! let _ = shard.turn();
//! let class = service.stats().shards[0].classes[0];
//! assert_eq!((class.class, class.scheduled, class.cancelled, class.fired), ("request", 2, 1, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not a label on each timer: a slot of the wheel is 24 bytes and stays so. A shard keeps the
//! class of its timers in a table beside the slab, which it makes when the first timer of any class
//! is scheduled. A service without classes never makes it.
//!
//! Why classes are registered with the builder: a shard publishes its counts without a lock and
//! without an allocation, so each class must have its place before its first timer. Their number
//! bounds the lines that a scraper gets.
//!
//! Cost: a timer of a class writes 16 bytes of that table and those of its two neighbours in the
//! order of scheduling. A timer without a class reads 16 bytes of it when it ends, once the table
//! exists, and costs a load and a comparison until then.

use std::fmt;

use crate::values::error::ConfigError;

/// The purpose of a timer, such as `idle`, `handshake` or `request`.
///
/// [`TimerServiceBuilder::class`](crate::TimerServiceBuilder::class) registers a class,
/// [`Timers::of_class`](crate::Timers::of_class) and
/// [`Handle::of_class`](crate::Handle::of_class) schedule timers of it, and
/// [`ShardStats::classes`](crate::stats::ShardStats::classes) and the endpoint have its counts.
///
/// ```
/// use std::time::Duration;
/// use corewheel::clock::ManualClock;
/// use corewheel::class::TimerClass;
/// use corewheel::{Fired, ShardId, TimerService, Timers};
///
/// const IDLE: TimerClass = TimerClass::new("idle");
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(&clock).class(IDLE);
/// let service = builder.start_attached_with::<u64>()?;
/// let attachment = service.attach(ShardId::new(0))?;
/// let mut shard = attachment.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
///
/// let idle = shard.timers().of_class(IDLE)?;
/// idle.schedule(Duration::from_millis(5), 1)?;
/// idle.schedule(Duration::from_secs(60), 2)?;
/// clock.advance(Duration::from_millis(6));
/// let _ = shard.turn();
///
/// let stats = &service.stats().shards[0].classes[0];
/// assert_eq!((stats.class, stats.fired, stats.pending), ("idle", 1, 1));
/// assert_eq!(stats.oldest, Some(Duration::from_millis(6)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TimerClass(&'static str);

impl TimerClass {
    /// The most classes a service can have.
    pub const COUNT_MAX: usize = 64;
    /// The most bytes of a name.
    pub const NAME_LEN_MAX: usize = 64;

    /// A class with this name: 1 to 64 bytes without control characters, quotes and backslashes.
    /// Two classes with the same name are equal. The name is checked when the service starts.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name of the class.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for TimerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The number of a class within its service, from 1; 0 means no class.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct ClassId(u8);

impl ClassId {
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }

    /// The index of the class among those of its service; `None` for no class.
    #[inline]
    pub(crate) fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    #[inline]
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    #[inline]
    pub(crate) fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
}

/// The classes of a service, in the order in which they were registered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes(Vec<TimerClass>);

impl Classes {
    pub(crate) fn push(&mut self, class: TimerClass) {
        self.0.push(class);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn list(&self) -> &[TimerClass] {
        &self.0
    }

    pub(crate) fn name(&self, id: ClassId) -> Option<&'static str> {
        id.index().and_then(|index| self.0.get(index)).map(|class| class.0)
    }

    /// The number of a class.
    #[inline]
    pub(crate) fn find(&self, class: TimerClass) -> Result<ClassId, ConfigError> {
        // A constant is usually one string in memory, so comparing addresses finds it quickly.
        let same = |known: &TimerClass| std::ptr::eq(known.0, class.0);
        let position = self.0.iter().position(same);
        let position = position.or_else(|| self.0.iter().position(|known| *known == class));
        match position {
            Some(position) => Ok(ClassId(position as u8 + 1)),
            None => Err(ConfigError::new(
                "class",
                class.0,
                "the service has no such class",
                "name it with the builder's `class` before the service starts",
            )),
        }
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        const REMEDY: &str = "use one short word for each purpose, such as idle or request";
        let refuse = |value: &dyn fmt::Debug, limit: String, remedy: &str| {
            Err(ConfigError::new("class", value, limit, remedy))
        };
        if self.len() > TimerClass::COUNT_MAX {
            let limit = format!("a service can have {} classes", TimerClass::COUNT_MAX);
            return refuse(&self.len(), limit, "give a class to each purpose, not to each peer");
        }
        for (index, TimerClass(name)) in self.0.iter().enumerate() {
            if let Some(limit) = label_limit(name) {
                return refuse(name, limit, REMEDY);
            }
            if self.0[..index].contains(&TimerClass(name)) {
                let limit = "it was named before".to_owned();
                return refuse(name, limit, "name each class once");
            }
        }
        Ok(())
    }
}

/// Why a text cannot be the value of a metric's label; `None` if it can. It checks the names of
/// classes and of services.
pub(crate) fn label_limit(name: &str) -> Option<String> {
    if name.is_empty() || name.len() > TimerClass::NAME_LEN_MAX {
        return Some(format!("a name must have 1 to {} bytes", TimerClass::NAME_LEN_MAX));
    }
    let is_special = |c: char| c.is_control() || c == '"' || c == '\\';
    name.contains(is_special).then(|| {
        "a name is the label of a metric, without control characters, quotes and backslashes"
            .to_owned()
    })
}

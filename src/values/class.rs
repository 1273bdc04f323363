//! Classes: names for what timers are for, so that the statistics can tell them apart.
//!
//! Why not a label on each timer: a slot of the wheel is 24 bytes and stays so. A shard keeps the
//! class of its timers in a table beside the slab, made when the first timer of any class comes. A
//! service without classes never makes it.
//!
//! Why they are registered: a shard publishes what it has counted without a lock and without an
//! allocation, so there must be a place for each class before its first timer. A number bounds how
//! many there can be, and so how many lines a scraper gets.
//!
//! Cost: a timer of a class writes 16 bytes of that table and those of its two neighbours in the
//! order of scheduling; a timer without a class reads 16 bytes of it when it ends, once the table
//! is there. Two instructions each until then.

use std::fmt;

use crate::values::error::ConfigError;

/// What a timer is for: `idle`, `handshake`, `request`. Registered with
/// [`TimerServiceBuilder::class`](crate::TimerServiceBuilder::class), used with
/// [`Timers::class`](crate::Timers::class) and [`Client::class`](crate::Client::class), told apart
/// in [`ShardStats::classes`](crate::ShardStats::classes) and at the endpoint.
///
/// ```
/// use std::time::Duration;
/// use corewheel::{Fired, ManualClock, ShardId, TimerClass, TimerService, Timers};
///
/// const IDLE: TimerClass = TimerClass::new("idle");
///
/// let clock = ManualClock::new();
/// let builder = TimerService::builder().shards(1).clock(clock.clock()).class(IDLE);
/// let service = builder.start_attached::<u64>()?;
/// let attachment = service.attach(ShardId::new(0))?;
/// let mut shard = attachment.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
///
/// let idle = shard.timers().class(IDLE)?;
/// idle.schedule(Duration::from_millis(5), 1)?;
/// idle.schedule(Duration::from_secs(60), 2)?;
/// clock.advance(Duration::from_millis(6));
/// let _ = shard.turn();
///
/// let stats = &service.stats().shards[0].classes[0];
/// assert_eq!((stats.class, stats.counts.fired, stats.counts.live), ("idle", 1, 1));
/// assert_eq!(stats.oldest, Some(Duration::from_millis(6)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TimerClass(&'static str);

impl TimerClass {
    /// The most classes a service can have.
    pub const COUNT_MAX: usize = 64;
    /// The most bytes of a name.
    pub const NAME_LEN_MAX: usize = 64;

    /// A class of this name: 1 to 64 bytes without control characters, quotes and backslashes. Two
    /// classes of one name are the same. The name is checked when the service starts.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for TimerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TimerClass({:?})", self.0)
    }
}

impl fmt::Display for TimerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The number of a class within its service: 0 is none, and they begin with 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ClassId(u8);

impl ClassId {
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self != Self::NONE
    }

    /// Where it stands among the classes; `None` if there is none.
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

/// The classes of a service, in the order in which they were named.
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
    pub(crate) fn find(&self, class: TimerClass) -> Result<ClassId, UnknownClass> {
        // One constant of the program is mostly one string in memory as well.
        let same = |known: &TimerClass| std::ptr::eq(known.0, class.0);
        let position = self.0.iter().position(same);
        let position = position.or_else(|| self.0.iter().position(|known| *known == class));
        match position {
            Some(position) => Ok(ClassId(position as u8 + 1)),
            None => Err(UnknownClass { class }),
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

/// Why a text cannot be the value of a metric's label; `None` if it can. Both the names of classes
/// and those of services are checked by it.
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

/// The service does not know the class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownClass {
    /// The class that was asked for.
    pub class: TimerClass,
}

impl fmt::Display for UnknownClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.class.0;
        write!(
            f,
            "class is {name:?}, but the service has no such class; name it with the builder's \
             `class` before the service starts"
        )
    }
}

impl std::error::Error for UnknownClass {}

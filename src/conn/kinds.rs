//! The table of deadline kinds: what each is called, what it measures, and which limit sets it, of
//! a connection and of a stream.
//!
//! The kinds, the limits and their setters, the spans, the marks, the errors of streams and their
//! documentation are made from its rows. A new kind is a row here and, if it measures something
//! new, a [`Rule`] with its arm in [`due`](super::rules::due).
//!
//! Invariants: the order of the rows is the order in which events of one turn are delivered. Kinds
//! that can be armed come first, those among them that limits arm before the others. Idle kinds lie
//! side by side.

use std::fmt;

use super::marks::KindBits;
use crate::stats::tally::Tally;

/// Whether a transfer is a read or a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// What a deadline measures.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The time from the beginning of the connection; with a jitter, if it has one.
    Opened { has_jitter: bool },
    /// The time since the deadline of the row before has come.
    After,
    /// It is due when the caller says.
    Armed,
    /// The time of each write in progress.
    Writes,
    /// The rate of a measured transfer.
    Rate(Direction),
    /// The time since the last of these.
    Idle { read: bool, written: bool, request: bool },
}

/// Which waits of a stream a deadline ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    Reads,
    Writes,
    /// Reads, and writes if no read waits.
    Either,
    All,
    Nothing,
}

/// Calls a macro with the rows. A row begins with the kind, its text and its [`Rule`]. Next comes
/// the limit of a connection that is its span, with the name of the least span under pressure.
/// Other limits of a connection that belong to it follow. Then come the limits of a stream, each
/// with the limit of the connection that it sets. Last is which waits of a stream it [ends](Ends).
macro_rules! deadline_kinds {
    ($then:ident) => {
        $then! {
            /// The connection is to end: it has reached its greatest age, its shard
            /// [drains](crate::TimerService::drain), or it is one of the
            /// [idlest](crate::TimerService::close_idlest). The event comes once.
            MaxAge, "max age", Opened { has_jitter: true };
            span {
                /// The time from the beginning of the connection to its end, whatever the
                /// connection does: [`DeadlineKind::MaxAge`].
                max_age | max_age_least
            }
            limits {
                /// The longest time by which the end is later than [`max_age`](Self::max_age) says,
                /// so that connections that began together do not end together. Each connection has
                /// a random part of this time, from none up to and including all of it, evenly
                /// distributed. The part is chosen when the connection begins, and stays: other
                /// limits multiply it by another jitter.
                ///
                /// The part follows from the time of the beginning, in nanoseconds, and from a
                /// count of the connections of a shard or a thread. So a test by a
                /// [manual clock](crate::clock::ManualClock) that is run again has the same parts.
                /// Of the connections that begin in one nanosecond, up to 256 have different parts.
                max_age_jitter: Duration,
            }
            stream {
                /// The time from the beginning of the connection to its end, whatever the
                /// connection does.
                max_age: Duration = max_age | max_age_least = max_age_least,
                /// The longest time by which the end is later than [`max_age`](Self::max_age) says:
                /// each connection has a random part of it, so that connections that began together
                /// do not end together.
                max_age_jitter: Duration = max_age_jitter,
            }
            ends {All, MaxAge(max_age: Duration), "the connection is older than {}"}

            /// The connection has gone on for too long after its greatest age, or the drain of its
            /// shard is over. The event comes once after each event of a greatest age.
            AgeGrace, "age grace", After;
            span {
                /// The time from the event of the greatest age, at which the server tells the peer
                /// to end the connection, until the server cuts it: [`DeadlineKind::AgeGrace`].
                max_age_grace
            }
            stream {
                /// The time for which the stream goes on after its greatest age. With this limit,
                /// the greatest age ends nothing, and the owner learns of it by
                /// [`StreamControl::max_age_reached`](super::StreamControl::max_age_reached).
                max_age_grace: Duration = max_age_grace,
            }
            ends {
                All, AgeGrace(max_age_grace: Duration),
                "the connection went on for {} after its greatest age"
            }

            /// The handshake was not done in time. The event comes once.
            Handshake, "handshake", Opened { has_jitter: false };
            span {
                /// The time from the beginning of the connection until the handshake is disarmed:
                /// [`DeadlineKind::Handshake`].
                handshake | handshake_least
            }
            stream {
                /// The time from the beginning of the connection until the first byte is read.
                first_byte: Duration = handshake | first_byte_least = handshake_least,
            }
            ends {Reads, FirstByte(first_byte: Duration), "no byte was read within {}"}

            /// The present request was not done in time. The event comes once, each time that the
            /// deadline is armed.
            Request, "request", Armed;
            stream {
                /// The time from the first byte of a message until the owner says that the head of
                /// the message is complete:
                /// [`StreamControl::head_complete`](super::StreamControl::head_complete). An owner
                /// that sets this limit must say so for each message.
                head: Duration,
            }
            ends {Reads, Head(head: Duration), "a message's head was not complete within {}"}

            /// A write was not done in time. The event comes once for each write. Writes whose time
            /// is up in the same turn share one event, and so do writes whose event was not taken
            /// yet.
            WriteTimeout, "write timeout", Writes;
            span {
                /// The time from the beginning of a write to its end, or, of a write that is
                /// [raced with its socket](crate::ConnTimers::race_write), from the last progress
                /// of its peer: [`DeadlineKind::WriteTimeout`].
                write_timeout
            }
            stream {
                /// The time for which a write, a flush or a shutdown waits and not one byte is
                /// accepted, or, of a stream [with a socket](super::TimedIo::with_socket),
                /// acknowledged. Of such a stream, bytes that are not acknowledged are a write that
                /// waits, also after the last write was accepted. A response to which an HTTP/2
                /// client gives no window is a write that waits, if an adapter such as
                /// `corewheel-http` tells the stream. Only bytes of responses count for it.
                write_stall: Duration = write_timeout,
            }
            ends {Writes, WriteStall(write_stall: Duration), "no byte could be written for {}"}

            /// A measured read was slower than
            /// [`min_read_rate`](crate::ConnLimits::min_read_rate). The event comes once for each
            /// measured read.
            ReadRate, "read rate", Rate(Direction::Read);
            limits {
                /// The least rate of a
                /// [measured read](crate::ConnTimers::begin_measured_read):
                /// [`DeadlineKind::ReadRate`].
                min_read_rate: DataRate,
            }
            stream {
                /// The least rate at which a message is read. Only time for which a read waits
                /// counts. If the server finds the bytes of a wait after the deadline, it cannot
                /// know how late it was itself: half of the time that was left to the deadline
                /// counts, and none after the tick of the deadline. A message is measured if the
                /// owner says where it begins and where it ends:
                /// [`StreamControl::begin_message`](super::StreamControl::begin_message),
                /// [`message_complete`](super::StreamControl::message_complete).
                ///
                /// The rate is that of the whole message, from its first byte on. With the limit
                /// [`head`](Self::head), a head has that limit alone, and the rate is that of what
                /// follows it: bytes and time count from
                /// [`head_complete`](super::StreamControl::head_complete) on, and with them the
                /// bytes of the last read before that call.
                min_read_rate: DataRate = min_read_rate,
            }
            ends {Reads, ReadRate(min_read_rate: DataRate), "a message was read at less than {}"}

            /// A measured write was slower than
            /// [`min_write_rate`](crate::ConnLimits::min_write_rate). The event comes once for each
            /// measured write.
            WriteRate, "write rate", Rate(Direction::Write);
            limits {
                /// The least rate of a
                /// [measured write](crate::ConnTimers::begin_measured_write), of what the socket
                /// accepts, or of what the peer acknowledges where the write is
                /// [raced with its socket](crate::ConnTimers::race_write):
                /// [`DeadlineKind::WriteRate`].
                min_write_rate: DataRate,
            }
            stream {
                /// The least rate at which writes that must wait are accepted, over the whole
                /// connection. Only time for which a write waits counts, as for reads, and only
                /// bytes that are accepted after a wait: what the system buffers at once, the peer
                /// has not taken yet. A response that waits for an HTTP/2 window counts, as for
                /// [`write_stall`](Self::write_stall).
                ///
                /// Of a stream [with a socket](super::TimedIo::with_socket), the bytes are those
                /// that the peer has acknowledged. Otherwise, the system accepts more bytes when a
                /// good part of its send buffer is empty, on Linux a third. Then the grace period
                /// must be as long as a slow but honest peer takes for that part, and as the server
                /// may be late to see it: a wait that ends in time counts as a whole.
                min_write_rate: DataRate = min_write_rate,
            }
            ends {
                Writes, WriteRate(min_write_rate: DataRate), "writes were accepted at less than {}"
            }

            /// Nothing was read for too long, and no request was
            /// [in flight](crate::ConnTimers::begin_request). The event comes again after each
            /// further such time.
            ReadIdle, "read idle", Idle { read: true, written: false, request: true };
            span {
                /// The time without a read until [`DeadlineKind::ReadIdle`]. A server that may work
                /// on a request for longer calls
                /// [`begin_request`](crate::ConnTimers::begin_request): else the connection counts
                /// as idle meanwhile.
                read_idle | read_idle_least
            }
            stream {
                /// The time for which a read waits without a byte. A write or a flush that had to
                /// wait and goes on counts as a byte: the peer has taken what was sent. While a
                /// write waits that [`write_stall`](Self::write_stall) or
                /// [`min_write_rate`](Self::min_write_rate) bounds, it does not count. It ends a
                /// stream whose server works on a request for longer and says nothing: see
                /// [`idle`](Self::idle).
                read_idle: Duration = read_idle | read_idle_least = read_idle_least,
            }
            ends {Reads, ReadIdle(read_idle: Duration), "no byte was read for {}"}

            /// Nothing was written for too long, and no request was in flight. The event comes
            /// again after each further such time.
            WriteIdle, "write idle", Idle { read: false, written: true, request: true };
            span {
                /// The time without a write until [`DeadlineKind::WriteIdle`].
                /// [`begin_request`](crate::ConnTimers::begin_request) holds it back, too.
                write_idle | write_idle_least
            }
            stream {}
            ends {All}

            /// Nothing was read or written for too long, and no request was in flight. The event
            /// comes again after each further such time.
            AllIdle, "all idle", Idle { read: true, written: true, request: true };
            span {
                /// The time without a read and without a write until [`DeadlineKind::AllIdle`].
                /// [`begin_request`](crate::ConnTimers::begin_request) holds it back, too.
                all_idle | all_idle_least
            }
            stream {
                /// The time in which nothing is read and nothing is written. It counts again from
                /// the moment at which a read begins to wait, and from that at which a write, a
                /// flush or a shutdown begins to wait while no read waits: what the owner did
                /// before is no silence of the peer. While a write waits that
                /// [`write_stall`](Self::write_stall) or [`min_write_rate`](Self::min_write_rate)
                /// bounds, it does not count.
                ///
                /// A server that may work on a request for longer than this, while a read waits,
                /// calls [`StreamControl::begin_request`](super::StreamControl::begin_request), or
                /// its stream ends meanwhile. Under hyper, whose reads always wait,
                /// `TimedHttp` of the package `corewheel-http` does that.
                idle: Duration = all_idle | idle_least = all_idle_least,
            }
            ends {Either, Idle(idle: Duration), "nothing was read or written for {}"}

            /// No request was in flight for too long, whatever was read or written. The event comes
            /// again after each further such time.
            RequestIdle, "request idle", Idle { read: false, written: false, request: true };
            span {
                /// The time without a [request](crate::ConnTimers::begin_request) until
                /// [`DeadlineKind::RequestIdle`]. It counts from the beginning of the connection
                /// and from the end of the last request.
                request_idle
            }
            stream {
                /// The time without a request in flight until the owner is told:
                /// [`StreamControl::request_idle`](super::StreamControl::request_idle). It ends
                /// nothing by itself. It is for a protocol whose peer can send without a request,
                /// such as the PINGs of HTTP/2.
                request_idle: Duration = request_idle,
            }
            ends {Nothing}

            /// It is time to write something, so that the peer sees that the server is there. The
            /// event comes again after each further such time.
            Heartbeat, "heartbeat", Idle { read: false, written: true, request: false };
            span {
                /// The time without a write until the server is to write a heartbeat:
                /// [`DeadlineKind::Heartbeat`].
                heartbeat
            }
            limits {
                /// Whether the first heartbeat comes at a random moment within the first
                /// [`heartbeat`](Self::heartbeat) time of the connection, whatever the server
                /// writes before. So connections that began together, as after a restart, do not
                /// beat together: the later heartbeats keep that distance as long as nothing is
                /// written to all of the connections at once. Where that moment has passed when
                /// this limit is set, the first heartbeat comes at once.
                ///
                /// The moment follows from the time of the beginning and from a count, as that of
                /// [`max_age_jitter`](Self::max_age_jitter) does.
                heartbeat_phase: bool,
            }
            stream {
                /// The time without a write until the owner is to write a heartbeat:
                /// [`StreamControl::heartbeat`](super::StreamControl::heartbeat). It ends nothing.
                heartbeat: Duration = heartbeat,
                /// Whether the first heartbeat comes at a random moment within the first
                /// [`heartbeat`](Self::heartbeat) time, so that connections that began together do
                /// not beat together.
                heartbeat_phase: bool = heartbeat_phase,
            }
            ends {Nothing}
        }
    };
}
pub(crate) use deadline_kinds;

/// A struct of limits, some with the least limit under pressure, and a setter for each.
macro_rules! limits_struct {
    (
        $(#[$about:meta])*
        $name:ident { $($(#[$doc:meta])* $field:ident: $type:ty $(| $least:ident)?,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        pub struct $name {
            $(
                $(#[$doc])*
                pub $field: $type,
                $(
                    #[doc = concat!(
                        "The least [`", stringify!($field), "`](Self::", stringify!($field), ") \
                         under pressure. Zero if pressure does not shorten it."
                    )]
                    ///
                    /// It is in effect at [`Scale::ZERO`](crate::settings::Scale::ZERO).
                    pub $least: $type,
                )?
            )*
        }

        /// Each setter returns the limits with one of them changed.
        impl $name {
            $(limits_struct!(@setter $field $type); $(limits_struct!(@setter $least $type);)?)*
        }
    };
    (@setter $field:ident $type:ty) => {
        #[doc = concat!("Sets `", stringify!($field), "`.")]
        #[must_use]
        pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    };
}
pub(crate) use limits_struct;

macro_rules! kinds {
    ($(
        $(#[$doc:meta])*
        $kind:ident, $text:literal, $rule:expr;
        $(span { $(#[$_span_doc:meta])* $span:ident $(| $least:ident)? })?
        $(limits { $($(#[$_limit_doc:meta])* $limit:ident: $_limit_type:ty,)* })?
        stream { $(
            $(#[$_stream_doc:meta])*
            $stream:ident: $_type:ty $(= $_conn:ident)? $(| $stream_least:ident = $_least:ident)?,
        )* }
        ends $ends:tt
    )*) => {
        /// A kind of deadline. Events that come in one turn are delivered in this order.
        ///
        /// | kind | text | limits of a connection | limits of a stream |
        /// |---|---|---|---|
        $(#[doc = concat!(
            "| [`", stringify!($kind), "`](Self::", stringify!($kind), ") | ", $text, " |",
            $(" `", stringify!($span), "`", $(" `", stringify!($least), "`",)?)?
            $($(" `", stringify!($limit), "`",)*)? " |",
            $(" `", stringify!($stream), "`", $(" `", stringify!($stream_least), "`",)?)* " |",
        )])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[non_exhaustive]
        pub enum DeadlineKind {
            $($(#[$doc])* $kind,)*
            /// A deadline whose meaning is the user's, with a number from 0 to 7. The event comes
            /// once, each time that the deadline is armed.
            Custom(u8),
        }

        enum Position { $($kind,)* }

        /// The kinds that are not custom, in order.
        const NAMED: &[DeadlineKind] = &[$(DeadlineKind::$kind),*];
        const RULES: [Rule; NAMED.len()] = {
            use Rule::{After, Armed, Idle, Opened, Rate, Writes};
            [$($rule),*]
        };
        /// The names of the kinds in order, and that of all custom kinds.
        pub(crate) const NAMES: [&str; NAMED.len() + 1] = [$($text,)* "custom deadline"];

        impl DeadlineKind {
            /// The kind's position in the order; `None` for a custom deadline whose number is too
            /// great.
            pub(super) const fn index(self) -> Option<usize> {
                Some(match self {
                    $(Self::$kind => Position::$kind as usize,)*
                    Self::Custom(number) if number < Self::CUSTOM_COUNT => {
                        NAMED.len() + number as usize
                    }
                    Self::Custom(_) => return None,
                })
            }
        }
    };
}
deadline_kinds!(kinds);

/// The kinds that [are judged](DeadlineKind::is_judged).
pub(super) const JUDGED: KindBits =
    !(1 << MAX_AGE | 1 << AGE_GRACE | 1 << HEARTBEAT) & ((1 << DeadlineKind::COUNT) - 1);

impl DeadlineKind {
    /// The number of [custom](Self::Custom) deadlines of a connection.
    pub const CUSTOM_COUNT: u8 = 8;

    pub(super) const NAMED_COUNT: usize = NAMED.len();
    pub(super) const COUNT: usize = NAMED.len() + Self::CUSTOM_COUNT as usize;

    /// Whether it comes before what is ready, as otherwise a connection that never pauses would
    /// never end.
    pub(crate) fn is_of_age(self) -> bool {
        matches!(self, Self::MaxAge | Self::AgeGrace)
    }

    /// The bit of a kind that limits writes, of which a socket may say that its peer has made
    /// progress; none of another kind.
    pub(super) fn bit_of_writing(self) -> KindBits {
        match self {
            Self::WriteTimeout => 1 << WRITES,
            Self::WriteRate => 1 << rate(Direction::Write),
            _ => 0,
        }
    }

    /// Whether data that lies in a socket may say that the deadline was kept. A heartbeat is about
    /// what the owner has written, and an age about time alone.
    pub(super) fn is_judged(self) -> bool {
        self.index().is_some_and(|kind| JUDGED & 1 << kind != 0)
    }

    /// Counts a deadline of this kind that has come.
    pub(super) fn count_in(self, tally: &Tally) {
        let custom = NAMED.len();
        tally.count(self.index().map_or(custom, |index| index.min(custom)));
    }

    pub(super) fn at(index: usize) -> Self {
        let custom = || Self::Custom((index - NAMED.len()) as u8);
        NAMED.get(index).copied().unwrap_or_else(custom)
    }
}

impl fmt::Display for DeadlineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.index()) {
            (Self::Custom(number), _) => write!(f, "{} {number}", NAMES[NAMED.len()]),
            (_, index) => f.write_str(index.map_or("", |index| NAMES[index])),
        }
    }
}

/// What the deadlines of a kind measure.
pub(super) const fn rule(kind: usize) -> Rule {
    if kind < NAMED.len() { RULES[kind] } else { Rule::Armed }
}

/// The kind of a transfer's least rate.
pub(super) const fn rate(direction: Direction) -> usize {
    match direction {
        Direction::Read => Position::ReadRate as usize,
        Direction::Write => Position::WriteRate as usize,
    }
}

pub(super) const MAX_AGE: usize = Position::MaxAge as usize;
pub(super) const AGE_GRACE: usize = Position::AgeGrace as usize;
pub(super) const HEARTBEAT: usize = Position::Heartbeat as usize;
pub(super) const WRITES: usize = Position::WriteTimeout as usize;
/// The kinds below are armed by limits, and come once.
pub(super) const OPENED_END: usize = Position::Request as usize;
/// The kinds below can be armed.
pub(super) const ARMED_END: usize = Position::WriteTimeout as usize;
/// The idle kinds.
pub(super) const IDLE: std::ops::Range<usize> = Position::ReadIdle as usize..NAMED.len();

const _: () = {
    let mut kind = 0;
    while kind < RULES.len() {
        let is_placed = match RULES[kind] {
            Rule::Opened { .. } | Rule::After => kind < OPENED_END,
            Rule::Armed => OPENED_END <= kind && kind < ARMED_END,
            Rule::Writes | Rule::Rate(_) => ARMED_END <= kind && kind < IDLE.start,
            Rule::Idle { .. } => IDLE.start <= kind,
        };
        assert!(is_placed, "kinds with one sort of rule lie side by side");
        kind += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_of_a_kind_is_its_position() {
        for index in 0..DeadlineKind::COUNT {
            assert_eq!(DeadlineKind::at(index).index(), Some(index));
        }
        assert_eq!(DeadlineKind::Custom(DeadlineKind::CUSTOM_COUNT).index(), None);
    }
}

//! The deadlines of a connection: idle times, heartbeat, least data rates, handshake, request, age,
//! the user's own.
//!
//! [`ConnTimers`] holds all deadlines of one connection in one timer of its shard. The server
//! stamps each read and each write, which is one store, and receives a [`ConnEvent`] for what the
//! connection has not done in time.
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::{ConnLimits, DeadlineKind, Fired, TimerService, Timers};
//! use std::time::Duration;
//!
//! // One shard in this loop, by a clock that the example moves.
//! let clock = ManualClock::new();
//! let builder = TimerService::builder().shards(1).clock(&clock);
//! let service: TimerService<u64> = builder.start_attached_with()?;
//! let attachment = service.attach(service.shards().next().unwrap())?;
//! let mut shard = attachment.into_loop(|_: Fired<u64>, _: &Timers<u64>| {})?;
//!
//! // The server writes after 10 seconds without a write, and closes the connection after 30
//! // seconds without a read.
//! let seconds = Duration::from_secs;
//! let limits = ConnLimits::default().heartbeat(seconds(10)).read_idle(seconds(30));
//! let conn = shard.timers().connection(limits)?;
//! conn.on_event(|conn, event| match event.kind {
//!     DeadlineKind::Heartbeat => conn.touch_write(), // Here the server writes a PING.
//!     kind => {
//!         println!("closed: {kind}");
//!         conn.close();
//!     }
//! });
//! let mut run = |count| {
//!     for _ in 0..count {
//!         clock.advance(seconds(1));
//!         let _ = shard.turn();
//!     }
//! };
//!
//! // A request is in flight for a minute. The connection is not idle meanwhile.
//! let request = conn.begin_request();
//! run(60);
//! assert!(!conn.is_closed());
//! // Half a minute after the end of the request, the connection is idle.
//! drop(request);
//! run(30);
//! assert!(!conn.is_closed());
//! run(1);
//! assert!(conn.is_closed());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Why not a [`Sleep`](crate::Sleep) for each deadline: nearly every packet of a server makes a
//! deadline later, and nearly none of these deadlines is reached. A reset takes a clock reading and
//! a cache miss on the timer, and a connection would have five timers. Here a packet costs one
//! store, and the timer's expiry finds out from the stamps which deadline is due, if any.
//!
//! # What counts as idle
//!
//! An idle deadline is for the silence of the peer, and not for that of the server. The idle times
//! are read idle, write idle, all idle, request idle and the heartbeat. A time that an entry of
//! this list does not name goes on:
//!
//! - A byte is read, [`touch_read`]: read idle and all idle begin again.
//! - A write is accepted, [`touch_write`]: write idle, all idle and the heartbeat begin again.
//! - A read takes long, or the server pauses its reads, [`begin_read`]: read idle and all idle are
//!   held back.
//! - A request is in progress, [`begin_request`]: read idle, write idle, all idle and request idle
//!   are held back.
//! - A write waits that has a limit, [`begin_write`] with [`ConnLimits::write_timeout`]: read idle,
//!   write idle and all idle are held back, until the write ends or its time is up. Then the limit
//!   of the write decides, and no idle time.
//! - A write waits that has no limit: all times go on.
//! - A write that waited goes on, [`touch`]: read idle, write idle, all idle and the heartbeat
//!   begin again.
//!
//! A deadline that is held back does not come, and its time begins again when nothing holds it back
//! any more. After a write, that of reads begins again only if it would be over by then.
//!
//! A write that is accepted at once says nothing of the peer: the bytes lie in the socket's buffer.
//! A write that had to wait, as the buffer was full, goes on only when the peer has taken some of
//! what is in it. So that is activity of the peer. A stream, [`TimedIo`], sees it and begins the
//! idle times again; a server without one calls [`touch`] after such a write. [`race_write`] sees
//! what the peer has acknowledged, which is activity, too. A peer that takes a
//! byte now and then is not idle: for that there are [`ConnLimits::write_timeout`] and the
//! [least rates](#peers-that-are-slow-but-not-idle).
//!
//! In a protocol in which the peer must send a message in each idle time, such as MQTT's keep
//! alive, a byte is not enough: a peer could send a message byte by byte and never end it. There
//! the server calls [`touch_read`](ConnTimers::touch_read) after each complete message, and not
//! after each read.
//!
//! [`touch`]: ConnTimers::touch
//! [`touch_read`]: ConnTimers::touch_read
//! [`touch_write`]: ConnTimers::touch_write
//! [`begin_read`]: ConnTimers::begin_read
//! [`begin_request`]: ConnTimers::begin_request
//! [`begin_write`]: ConnTimers::begin_write
//! [`race_write`]: ConnTimers::race_write
//! [`TimedIo`]: ../stream/struct.TimedIo.html
//!
//! # Peers that are slow, but not idle
//!
//! A peer that sends one byte in each idle time is never idle. A
//! [measured read](ConnTimers::begin_measured_read) must make progress at the
//! [least rate](DataRate) that the limits say, after a grace period, and so must a
//! [measured write](ConnTimers::begin_measured_write). Adding bytes costs as little as a touch: the
//! timer's expiry finds out from their count when the deadline really is.
//!
//! # On a shard, or on any thread
//!
//! [`ConnTimers`] alone, on the side [`Timers`](crate::Timers), is for a connection whose task
//! stays on the thread of a shard: on the shards of the service, and on a server's own executors
//! that shards are [attached](crate::attach) to. A touch reads no clock, and there are callbacks.
//! It is `!Send`.
//!
//! `ConnTimers<Handle>` is for a connection whose task goes from thread to thread, as on a
//! multi-thread tokio runtime, and for several tasks on several threads that serve one connection.
//! Its events are the same. A touch reads the thread's clock, which costs several times as much as
//! a touch of the other, and still takes no lock and sends nothing.
//!
//! The semantics are those of Netty's `IdleStateHandler` and of its read and write timeouts, and of
//! Kestrel's least data rates. Cost: see [`ConnTimers`].

#![cfg_attr(
    not(any(feature = "hyper", feature = "tokio")),
    allow(dead_code, unused_imports, reason = "without streams, nothing uses what they need")
)]

mod acknowledged;
mod any_thread;
mod events;
mod in_progress;
mod kinds;
mod limits;
mod marks;
mod measured;
mod moment;
mod of_stream;
mod on_shard;
mod rules;
mod side;
mod timers;

pub(crate) use self::acknowledged::{LUMP_MAX, QUICK, Sent, UnsentBound};
pub use self::acknowledged::{PeerSocket, UNSENT_MAX};
#[cfg(unix)]
pub(crate) use self::acknowledged::{reset_at_close, sent};
pub use self::events::Raced;
pub use self::in_progress::InProgress;
pub(crate) use self::in_progress::Transfer;
pub use self::kinds::DeadlineKind;
pub(crate) use self::kinds::{Direction, Ends, NAMES as KIND_NAMES, deadline_kinds, limits_struct};
pub use self::limits::{ConnEvent, ConnLimits, DataRate};
pub(crate) use self::moment::{AtomicMoment, Moment};
pub use self::on_shard::PackedConn;
pub use self::side::Side;
pub(crate) use self::side::Wakes;
pub use self::timers::ConnTimers;

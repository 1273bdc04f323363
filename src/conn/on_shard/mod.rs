//! Connection timers on the thread of a shard.
//!
//! A touch is one store, and a turn of the shard finds the deadlines that are due.
//!
//! Invariants: no code of the user runs while the table of connections is borrowed.

mod activity;
mod part;
mod record;
mod record_ref;
mod table;

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

use self::part::Connections;
use self::record_ref::RecordRef;
use self::table::Packed;
use super::limits::{ConnEvent, ConnLimits};
use super::side::{Sealed, Side};
use super::timers::ConnTimers;
use crate::face::timers::Timers;
use crate::values::refused::{Refused, RefusedKind};

impl<T: Send + 'static> Timers<T> {
    /// The deadlines of a connection that begins now. Its timer is of this view's class.
    ///
    /// # Errors
    ///
    /// `Full` if the shard has no room for another timer, `Closed` if it is shut down.
    pub fn connection(&self, limits: ConnLimits) -> Result<ConnTimers, RefusedKind> {
        let connections = Connections::of(self);
        let (now, salt) = (connections.shard.nanos_near(), connections.next_salt());
        connections.open(&Packed::new(limits, self.class(), now, salt))
    }

    /// Takes in the deadlines of a connection that comes from another shard of this service. They
    /// are due when they were due there, and keep their class.
    ///
    /// # Errors
    ///
    /// `Full` or `Closed`, with the packed connection.
    pub fn adopt(&self, connection: PackedConn) -> Result<ConnTimers, Refused<PackedConn>> {
        Connections::of(self).open(&connection.0).map_err(|kind| kind.of(connection))
    }
}

/// What only a connection on a shard has: a callback runs on the shard's thread, and a connection
/// that is on no shard need not go to another.
impl ConnTimers {
    /// Takes the deadlines off this shard, to go with their connection to another, where
    /// [`Timers::adopt`] takes them in. Here the connection is closed. `None` if it was closed
    /// before.
    ///
    /// Events that have come and were not taken go along. The callback stays behind, and so do
    /// reads, writes and requests in progress and measured transfers: they end here, and have no
    /// effect there.
    ///
    /// ```
    /// use corewheel::clock::ManualClock;
    /// use corewheel::{ConnLimits, DeadlineKind, TimerService};
    /// use std::time::Duration;
    ///
    /// let clock = ManualClock::new();
    /// let service = TimerService::builder().shards(2).clock(&clock).start_attached()?;
    /// let mut shards = Vec::new();
    /// for shard in service.shards() {
    ///     shards.push(service.attach(shard)?.into_loop(|_, _| {})?);
    /// }
    /// let [accepting, serving] = [0, 1].map(|n: usize| shards[n].timers().clone());
    ///
    /// // A connection was accepted on one core, and goes to another 20 s later.
    /// let limits = ConnLimits::default().read_idle(Duration::from_secs(30));
    /// let connection = accepting.connection(limits)?;
    /// clock.advance(Duration::from_secs(20));
    /// let packed = connection.pack().expect("it is open"); // `Send`, for a channel of yours
    /// let connection = serving.adopt(packed)?;
    /// assert_eq!((accepting.len(), serving.len()), (0, 1));
    ///
    /// // The idle time goes on there.
    /// connection.on_event(|connection, event| {
    ///     assert_eq!(event.kind, DeadlineKind::ReadIdle);
    ///     connection.close();
    /// });
    /// clock.advance(Duration::from_secs(10));
    /// let _ = shards[1].turn();
    /// assert!(connection.is_closed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pack(self) -> Option<PackedConn> {
        if self.is_closed() {
            return None;
        }
        let packed = self.conn().connections.pack(self.conn().index);
        self.conn().leave();
        Some(PackedConn(Box::new(packed)))
    }

    /// Sets a callback that the shard calls for each event, in the turn in which it comes, instead
    /// of waking a task. It replaces the callback before. Events that have come and were not taken
    /// are delivered in the next turn.
    ///
    /// The callback is given the connection, so it need not hold a handle. A callback that holds
    /// one keeps its connection open, until [`close`](Self::close) drops the callback.
    ///
    /// Nothing is borrowed while the callback runs: it may close the connection, drop its handles,
    /// arm and schedule. A panic of it is counted, and the next event calls it again.
    pub fn on_event(&self, call: impl FnMut(&ConnTimers, ConnEvent) + 'static) {
        if !self.is_closed() {
            let conn = self.conn();
            conn.connections.set_on_event(conn.index, Rc::new(RefCell::new(call)));
        }
    }
}

/// The deadlines of a connection on their way to another shard; made by [`ConnTimers::pack`].
///
/// It is `Send`, and takes some 400 bytes in a box. When it is dropped, the connection has no
/// deadlines any more.
#[must_use = "the connection has no deadlines until a shard adopts them"]
pub struct PackedConn(Box<Packed>);

debug_fields!([] PackedConn, |it| limits: it.0.limits);

impl Side for Timers {
    type Polled<V> = V;
}

impl Sealed for Timers {
    type Conn = RecordRef;

    fn polled<V>(result: Result<V, Infallible>) -> V {
        match result {
            Ok(value) => value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ShardId, ShutdownPolicy, TimerService};

    #[test]
    fn connection_that_a_closed_shard_refuses_keeps_nothing_of_the_shard() {
        let service = TimerService::builder().shards(1).start_attached().unwrap();
        let attachment = service.attach(ShardId::new(0)).unwrap();
        let shard = attachment.into_loop(|_, _| {}).unwrap();
        let timers = shard.timers().clone();
        drop(shard.shutdown(ShutdownPolicy::Drop));
        let refused = timers.connection(ConnLimits::default()).unwrap_err();
        assert_eq!(refused, RefusedKind::Closed);
        let core = timers.downgrade();
        drop(timers);
        assert!(core.upgrade().is_none());
    }
}

//! Containers of your own on a shard: parts of the shard, with timers, gauges and messages.
//!
//! For servers whose timers belong to a structure of their own: sessions, leases, a cache, a
//! protocol's retransmissions. By hand it is a callback for each timer, which is boxed and holds
//! what it works on. A timer of a part carries an index instead; it needs no allocation, and has
//! the size of the shard's other timers. Connections of this crate are such parts, and so are the
//! queues, keyed timers and periodic callbacks of the package `corewheel-kit`.
//!
//! ```
//! use corewheel::clock::ManualClock;
//! use corewheel::part::{Gauges, Part, PartHandle, PartSender, PartTimer};
//! use corewheel::{RefusedKind, ShutdownPolicy, TimerService};
//! use std::cell::RefCell;
//! use std::collections::BTreeMap;
//! use std::rc::Rc;
//! use std::time::Duration;
//!
//! /// Leases by their numbers, each with the timer that ends it.
//! struct Leases {
//!     shard: PartHandle,
//!     held: RefCell<BTreeMap<u32, PartTimer>>,
//!     ended: RefCell<Vec<u32>>,
//! }
//!
//! impl Leases {
//!     fn grant(&self, lease: u32) -> Result<(), RefusedKind> {
//!         let timer = self.shard.schedule(Duration::from_secs(60), lease)?;
//!         if let Some(before) = self.held.borrow_mut().insert(lease, timer) {
//!             self.shard.cancel(before);
//!         }
//!         Ok(())
//!     }
//!
//!     fn end(&self, lease: u32) {
//!         if let Some(timer) = self.held.borrow_mut().remove(&lease) {
//!             self.shard.cancel(timer);
//!             self.ended.borrow_mut().push(lease);
//!         }
//!     }
//! }
//!
//! impl Part for Leases {
//!     // The gauges are published by turns.
//!     fn takes_turns(&self) -> bool {
//!         true
//!     }
//!
//!     fn expired(self: Rc<Self>, lease: u32) {
//!         self.end(lease);
//!     }
//!
//!     fn publish(&self, gauges: &mut Gauges<'_>) {
//!         gauges.set("leases", self.held.borrow().len() as u64);
//!     }
//!
//!     // The shard has ended, and no timer is left.
//!     fn closed(&self, _is_dead: bool) {
//!         let left = self.held.take();
//!         self.ended.borrow_mut().extend(left.into_keys());
//!     }
//! }
//!
//! let clock = ManualClock::new();
//! let service = TimerService::builder().shards(1).clock(&clock).start_attached()?;
//! let mut shard = service.attach(service.shard_for(0))?.into_loop(|_, _| {})?;
//! let leases = shard.timers().add_part(|shard| Leases {
//!     shard,
//!     held: RefCell::default(),
//!     ended: RefCell::default(),
//! });
//! (1..=3).try_for_each(|lease| leases.grant(lease))?;
//!
//! // From any thread: the holder gives a lease back.
//! let sender: PartSender<Leases> = leases.shard.sender();
//! let give_back = move |lease: u32| sender.send(lease, |leases, lease| leases.end(lease));
//! std::thread::spawn(move || give_back(2).is_ok()).join().unwrap();
//! let _next = shard.turn();
//! assert_eq!(*leases.ended.borrow(), [2]);
//! assert_eq!(service.stats().shards[0].gauges["leases"], 2);
//!
//! clock.advance(Duration::from_secs(59));
//! leases.grant(3)?;
//! clock.advance(Duration::from_secs(1));
//! let _next = shard.turn();
//! assert_eq!(*leases.ended.borrow(), [2, 1]);
//!
//! let _report = shard.shutdown(ShutdownPolicy::Drop);
//! assert_eq!(*leases.ended.borrow(), [2, 1, 3]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Turns
//!
//! A part whose work is more than its timers takes part in the turns of its shard. What it
//! [wants](Part::wants) is one value: nothing, a turn by some time, a delivery now, or one in the
//! next turn. The shard asks after each delivery. So a part with much to do delivers one item at a
//! time, within the budget of the turn, and alternates with the timers that are due.
//!
//! # Life
//!
//! [`Timers::add_part`](crate::Timers::add_part) makes a part that lives as long as an
//! [`Rc`](std::rc::Rc) of it: its owner drops it, and its timers are cancelled by its `Drop`, or
//! call nothing any more.
//! [`Timers::shared_part`](crate::Timers::shared_part) finds or makes the only part of its type,
//! which lives until the shard ends.
//!
//! A shutdown first calls [`closing`](Part::closing); the part still has its timers then. After the
//! timers have fired, or were dropped, it calls [`closed`](Part::closed).
//!
//! # Cost
//!
//! 64 bytes for each part, 32 more if it takes part in turns. A timer costs what one with a value
//! costs, and a dynamic call when it is scheduled, cancelled and delivered. A message is a request
//! on the lane of its thread and two boxes, and wakes the shard if it sleeps. On the part's own
//! thread it is a box and a call.

use std::any::Any;
use std::marker::PhantomData;
use std::rc::Rc;

use super::handle::{AnyHandle, Handle, thread_lanes};
pub use crate::shard::part::{Gauges, Part, PartTimer, Wants};
pub use crate::shard::part_handle::PartHandle;
use crate::shard::parts::{Entry, Message, Parts};
use crate::values::ids::{Home, ShardId};
use crate::values::refused::Refused;

/// Sends messages to a [`Part`] of type `P` from any thread; made by [`PartHandle::sender`].
///
/// It is `Copy`, and keeps neither the part nor the service alive.
pub struct PartSender<P> {
    home: Home,
    entry: Entry,
    part: PhantomData<fn() -> P>,
}

impl<P: Part> PartSender<P> {
    /// Sends a message, with which the shard calls `receive` for the part: in one of its turns, or
    /// at once if this is the part's own thread. If there is work to do for the message, let
    /// [`wants`](Part::wants) say so, so that it is done within the budget of a turn.
    ///
    /// It waits for no room: what the lane of this thread has no room for waits beside it, in
    /// order. A message to a part that has left is dropped on the shard's thread.
    ///
    /// # Errors
    ///
    /// `Closed` with the message, if the shard or the service has ended.
    pub fn send<M, F>(&self, message: M, receive: F) -> Result<(), Refused<M>>
    where
        M: Send + 'static,
        F: FnOnce(Rc<P>, M) + Send + 'static,
    {
        let sent = Sent { to: self.entry, message, receive, part: self.part };
        let (service, shard) = (self.home.service(), self.home.shard());
        thread_lanes::send_message(service, shard, Box::new(sent)).map_err(|message| {
            let sent = message.into_any().downcast::<Sent<P, M, F>>();
            Refused::Closed(sent.expect("the message that was sent comes back").message)
        })
    }

    pub(crate) fn handle(&self) -> AnyHandle {
        Handle::new(self.home.service()).on(self.home.shard())
    }

    /// The shard of the part.
    pub fn shard_id(&self) -> ShardId {
        self.home.shard()
    }
}

impl<P> Clone for PartSender<P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for PartSender<P> {}

debug_fields!([P] PartSender<P>, |it| shard: it.home.shard());

impl PartHandle {
    /// A sender of messages to this part, for any thread.
    ///
    /// # Panics
    ///
    /// If the part is not a `P`.
    pub fn sender<P: Part>(&self) -> PartSender<P> {
        let entry = self.entry();
        assert!(self.shard().parts().is_of::<P>(entry), "a sender names the type of its part");
        PartSender { home: self.shard().home(), entry, part: PhantomData }
    }
}

/// A message on its way.
struct Sent<P, M, F> {
    to: Entry,
    message: M,
    receive: F,
    part: PhantomData<fn() -> P>,
}

impl<P, M, F> Message for Sent<P, M, F>
where
    P: Part,
    M: Send + 'static,
    F: FnOnce(Rc<P>, M) + Send + 'static,
{
    fn receive(self: Box<Self>, parts: &Parts) {
        let Sent { to, message, receive, .. } = *self;
        if let Some(part) = parts.find::<P>(to) {
            receive(part, message);
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

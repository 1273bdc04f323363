//! One core: its keys, its clients, and what it sends to other cores.
//!
//! A core is single-threaded state behind `RefCell`s that are never borrowed across an `await`.
//! Other cores reach it by its inbox. The task that reads the inbox waits for no other core, so no
//! two cores wait for each other. The inbox needs no limit of its own: each connection has one
//! message for each core under way, whose bytes are counted as its memory, and events for the
//! subscribers of a core hold [`EVENT_BYTES_MAX`] at most.

use std::cell::{OnceCell, RefCell, RefMut};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf, BytesMut};
use corewheel::{Fired, Timers};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::client::Client;
use crate::commands;
use crate::keyspace::{Key, Keyspace};
use crate::notify::Event;
use crate::options::Options;
use crate::protocol::{Decoder, Proto, Reply};

/// The most bytes of events that wait in the inbox of a core.
const EVENT_BYTES_MAX: usize = 64 << 20;
/// A core that has written so many bytes of replies leaves the other requests for the next message.
const REPLY_BYTES: usize = 256 << 10;

/// A number that one core writes and any thread reads. A change of it needs no atomic addition.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

// Relaxed: no other data is read by these numbers.
impl Gauge {
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, more: u64) {
        self.set(self.get().wrapping_add(more));
    }
}

/// The numbers of one core. On lines of their own, so that no two cores write to one line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Gauges {
    pub(crate) keys: Gauge,
    pub(crate) memory: Gauge,
    pub(crate) expired: Gauge,
    pub(crate) evicted: Gauge,
    pub(crate) clients: Gauge,
    /// Clients of this core that have subscribed to something.
    pub(crate) subscribers: Gauge,
    /// The bytes of requests, replies and messages of clients.
    pub(crate) client_memory: Gauge,
    /// Clients that were ended as they took too much memory, or too many messages waited for them.
    pub(crate) clients_evicted: Gauge,
    /// Clients that were refused.
    pub(crate) clients_refused: Gauge,
    /// Events for other cores that were dropped, as too many waited.
    pub(crate) dropped: Gauge,
}

/// What all cores share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) gauges: Vec<Arc<Gauges>>,
    /// How many clients there were.
    entered: AtomicU64,
    inboxes: Vec<mpsc::UnboundedSender<Message>>,
    /// The room for events in each inbox, in bytes.
    event_room: Vec<Arc<Semaphore>>,
}

/// The inbox of a core.
pub(crate) type Inbox = mpsc::UnboundedReceiver<Message>;

impl Shared {
    pub(crate) fn new(options: Options, cores: usize) -> (Self, Vec<Inbox>) {
        let (inboxes, receivers) = (0..cores).map(|_| mpsc::unbounded_channel()).unzip();
        let shared = Self {
            options,
            gauges: (0..cores).map(|_| Arc::default()).collect(),
            entered: AtomicU64::new(0),
            inboxes,
            event_room: (0..cores).map(|_| Arc::new(Semaphore::new(EVENT_BYTES_MAX))).collect(),
        };
        (shared, receivers)
    }

    /// A gauge of all cores together.
    pub(crate) fn total(&self, gauge: impl Fn(&Gauges) -> &Gauge) -> u64 {
        self.gauges.iter().map(|gauges| gauge(gauges).get()).sum()
    }

    pub(crate) fn cores(&self) -> usize {
        self.gauges.len()
    }

    /// The core of a key. The table of a core uses the lower half of the hash.
    pub(crate) fn owner(&self, key: Key<'_>) -> usize {
        (((key.hash >> 32) * self.cores() as u64) >> 32) as usize
    }

    /// The part of a limit that each core has; 0 is no limit.
    fn share(&self, max: u64) -> u64 {
        max.div_ceil(self.cores() as u64)
    }
}

/// A message from one core to another.
#[derive(Debug)]
pub(crate) enum Message {
    /// Requests for keys of the receiver, encoded one after the other.
    Requests { requests: BytesMut, proto: Proto, reply: oneshot::Sender<Replies> },
    /// A keyspace event, with the room that it takes in the inbox.
    Event(Event, OwnedSemaphorePermit),
}

/// Why a connection ends when a core has ended.
pub(crate) const SHUT_DOWN: &str = "the server is shut down";

/// The replies to several requests, and the requests that were not executed.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    pub(crate) each: VecDeque<BytesMut>,
    /// The bytes of the replies.
    pub(crate) bytes: usize,
    pub(crate) rest: BytesMut,
}

/// The state of one core.
pub(crate) struct Core {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) timers: Timers<u32>,
    keys: RefCell<Keyspace>,
    clients: RefCell<BTreeMap<u64, Rc<Client>>>,
    /// The clients with subscriptions.
    subscribers: RefCell<BTreeMap<u64, Rc<Client>>>,
}

thread_local! {
    /// The core of this thread, for the handler of its shard.
    static CORE: OnceCell<Rc<Core>> = const { OnceCell::new() };
}

/// The timer of a key of this thread's core has fired.
pub(crate) fn fired(fired: &Fired<u32>) {
    CORE.with(|core| {
        let core = core.get().expect("a core has set the timer");
        core.keys().fired(fired);
        core.publish_events();
    });
}

impl Core {
    /// Makes the core of this thread.
    pub(crate) fn open(timers: Timers<u32>, shared: Arc<Shared>) -> Rc<Self> {
        let index = usize::from(timers.shard_id().number());
        let gauges = Arc::clone(&shared.gauges[index]);
        let mut keys = Keyspace::new(timers.clone(), gauges);
        keys.timers_max = shared.options.timers_max as usize;
        keys.memory_max = shared.share(shared.options.memory_max) as usize;
        keys.flags = shared.options.notify_keyspace_events;
        let (clients, subscribers, keys) = (RefCell::default(), RefCell::default(), keys.into());
        let core = Rc::new(Self { index, shared, timers, keys, clients, subscribers });
        CORE.with(|cell| assert!(cell.set(Rc::clone(&core)).is_ok(), "a thread drives one shard"));
        core
    }

    /// The keys. Events are published when the returned guard has been dropped and
    /// [`publish_events`](Self::publish_events) is called.
    pub(crate) fn keys(&self) -> RefMut<'_, Keyspace> {
        self.keys.borrow_mut()
    }

    pub(crate) fn gauges(&self) -> &Gauges {
        &self.shared.gauges[self.index]
    }

    /// Executes requests that a core has encoded, until there are enough replies.
    fn run_all(&self, proto: Proto, mut requests: BytesMut) -> Replies {
        let (mut replies, mut out) = (Replies::default(), BytesMut::new());
        let mut decoder = Decoder::new(usize::MAX);
        while replies.bytes < REPLY_BYTES
            && let Some(length) = decoder.decode(&requests).unwrap_or_default()
        {
            let args = decoder.args(&requests);
            let command = commands::find(args[0]).expect("cores send each other known commands");
            command.run_here(&mut self.keys(), &args, Reply { out: &mut out, proto });
            drop(args);
            replies.bytes += out.len();
            replies.each.push_back(out.split());
            requests.advance(length);
            self.publish_events();
        }
        // What has been executed is not kept for what has not.
        replies.rest = if requests.is_empty() { BytesMut::new() } else { requests };
        replies
    }

    /// Enters a client; `None` if there are as many as the server may have.
    pub(crate) fn enter(&self) -> Option<Rc<Client>> {
        let shared = &self.shared;
        if shared.total(|core| &core.clients) >= shared.options.clients_max {
            return None;
        }
        // Relaxed: a count.
        let id = shared.entered.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Rc::new(Client::new(id, &shared.gauges[self.index]));
        self.clients.borrow_mut().insert(id, Rc::clone(&client));
        self.count_clients();
        Some(client)
    }

    pub(crate) fn leave(&self, client: &Client) {
        self.clients.borrow_mut().remove(&client.id);
        self.subscribers.borrow_mut().remove(&client.id);
        self.count_clients();
    }

    /// States that the subscriptions of a client have changed.
    pub(crate) fn subscriptions_changed(&self, client: &Rc<Client>) {
        self.subscribers.borrow_mut().remove(&client.id);
        if client.subscriptions() > 0 {
            self.subscribers.borrow_mut().insert(client.id, Rc::clone(client));
        }
        self.count_clients();
        self.limit_clients();
    }

    fn count_clients(&self) {
        self.gauges().clients.set(self.clients.borrow().len() as u64);
        self.gauges().subscribers.set(self.subscribers.borrow().len() as u64);
    }

    /// Ends the client of this core that takes the most memory if those that are not ended take
    /// more than the limit. O(clients) where the limit is exceeded.
    pub(crate) fn limit_clients(&self) {
        let max = self.shared.share(self.shared.options.clients_memory_max);
        if max == 0 || self.gauges().client_memory.get() <= max {
            return;
        }
        let clients = self.clients.borrow();
        let alive = || clients.values().filter(|client| !client.is_over());
        let total: usize = alive().map(|client| client.memory()).sum();
        let largest = alive().max_by_key(|client| client.memory());
        if let Some(largest) = largest.filter(|_| total as u64 > max) {
            largest.end("the clients take too much memory, and this one takes the most");
        }
    }

    /// Sends a message to the subscribers of this core.
    fn publish(&self, event: &Event) {
        let max = self.shared.options.output_max;
        for client in self.subscribers.borrow().values() {
            client.send(event, max);
        }
        self.limit_clients();
    }

    /// Sends a message to a core.
    pub(crate) fn send(&self, core: usize, message: Message) -> Result<(), &'static str> {
        self.shared.inboxes[core].send(message).map_err(|_| SHUT_DOWN)
    }

    /// Publishes the events of keys that have expired or were evicted, on all cores.
    pub(crate) fn publish_events(&self) {
        let mut events = std::mem::take(&mut self.keys().events);
        for event in events.drain(..) {
            self.publish(&event);
            for (core, room) in self.shared.event_room.iter().enumerate() {
                if core == self.index || self.shared.gauges[core].subscribers.get() == 0 {
                    continue;
                }
                let bytes = u32::try_from(event.bytes()).unwrap_or(u32::MAX);
                match Arc::clone(room).try_acquire_many_owned(bytes) {
                    // A core that has ended has no subscribers.
                    Ok(held) => drop(self.send(core, Message::Event(event.clone(), held))),
                    Err(_) => self.gauges().dropped.add(1),
                }
            }
        }
        self.keys().events = events;
    }

    /// Executes what other cores send.
    pub(crate) async fn serve_inbox(self: Rc<Self>, mut inbox: Inbox) {
        while let Some(message) = inbox.recv().await {
            match message {
                Message::Requests { requests, proto, reply } => {
                    // Its connection may have ended, and takes no replies.
                    let _ = reply.send(self.run_all(proto, requests));
                }
                Message::Event(event, _room) => self.publish(&event),
            }
            self.timers.consume_budget().await;
        }
    }
}

//! One core: its keys, the subscribers of its clients, and what it sends to other cores.
//!
//! A core is single-threaded state behind `RefCell`s that are never borrowed across an `await`.
//! Other cores reach it by its inbox, a bounded channel. The task that reads the inbox waits for no
//! other core, so two cores that fill each other's inboxes cannot wait for each other.

use std::cell::{OnceCell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bytes::BytesMut;
use corewheel::{Fired, Timers};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::commands::{self, Call};
use crate::config::Config;
use crate::gauges::Gauges;
use crate::host::pause::pause;
use crate::keyspace::{Key, Keyspace};
use crate::notify::{Event, Flags};
use crate::options::Options;
use crate::protocol::{Decoder, Proto, Reply};
use crate::pubsub::Registry;

/// The most messages that wait in an inbox.
const INBOX_MESSAGES: usize = 1 << 10;
/// The most messages for subscribers on one other core that wait to be sent there.
const OUTGOING_MAX: usize = 1 << 20;
/// How often the wall clock and the limit of memory are looked at without a request.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// What all cores share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) options: Options,
    pub(crate) gauges: Vec<Arc<Gauges>>,
    pub(crate) started: Instant,
    pub(crate) clients: AtomicU64,
    pub(crate) next_client: AtomicU64,
    inboxes: Vec<mpsc::Sender<Message>>,
}

/// The inboxes of all cores, each to be taken by its core.
pub(crate) type Inboxes = Vec<mpsc::Receiver<Message>>;

impl Shared {
    pub(crate) fn new(options: Options, cores: usize) -> (Self, Inboxes) {
        let channels = (0..cores).map(|_| mpsc::channel(INBOX_MESSAGES));
        let (inboxes, receivers) = channels.unzip();
        let shared = Self {
            config: Config::new(&options),
            options,
            gauges: (0..cores).map(|_| Arc::default()).collect(),
            started: Instant::now(),
            clients: AtomicU64::new(0),
            next_client: AtomicU64::new(1),
            inboxes,
        };
        (shared, receivers)
    }

    /// A gauge of all cores together.
    pub(crate) fn total(&self, gauge: impl Fn(&Gauges) -> u64) -> u64 {
        self.gauges.iter().map(|gauges| gauge(gauges)).sum()
    }

    pub(crate) fn cores(&self) -> usize {
        self.gauges.len()
    }

    /// The core of a key. The table of a core uses the lower half of the hash.
    pub(crate) fn owner(&self, key: Key<'_>) -> usize {
        (((key.hash >> 32) * self.cores() as u64) >> 32) as usize
    }

    /// Takes one of the places for clients; false if there is none.
    pub(crate) fn enter_client(&self) -> bool {
        let max = self.config.clients_max.get();
        // Relaxed: a count.
        let before = self.clients.fetch_add(1, Ordering::Relaxed);
        if max > 0 && before >= max {
            self.leave_client();
            return false;
        }
        true
    }

    pub(crate) fn leave_client(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A message from one core to another.
#[derive(Debug)]
pub(crate) enum Message {
    /// Requests for keys of the receiver, encoded one after the other.
    Requests { requests: Vec<u8>, proto: Proto, reply: oneshot::Sender<Replies> },
    /// A message of `PUBLISH`; the reply is the number of subscribers.
    Publish { event: Event, reply: oneshot::Sender<i64> },
    /// Keyspace events.
    Events(Vec<Event>),
}

/// A core has ended, as the server is shut down.
#[derive(Debug)]
pub(crate) struct CoreEnded;

/// What a core was asked for, unless a core has ended.
pub(crate) type Asked<T = ()> = Result<T, CoreEnded>;

/// The replies to several requests, and the end of each.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    pub(crate) bytes: BytesMut,
    pub(crate) ends: Vec<usize>,
}

/// The state of one core.
pub(crate) struct Core {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) timers: Timers<u32>,
    pub(crate) registry: RefCell<Registry>,
    keys: RefCell<Keyspace>,
    /// Events for the subscribers of other cores, by core.
    outgoing: RefCell<Vec<Vec<Event>>>,
    has_outgoing: Notify,
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
        let mut keys = Keyspace::new(timers.clone(), Box::new(SystemTime::now), gauges);
        keys.timers_max = shared.options.timers_max as usize;
        let core = Rc::new(Self {
            index,
            registry: RefCell::default(),
            keys: RefCell::new(keys),
            timers,
            outgoing: RefCell::new(vec![Vec::new(); shared.cores()]),
            has_outgoing: Notify::new(),
            shared,
        });
        let kept = Rc::clone(&core);
        CORE.with(|cell| assert!(cell.set(kept).is_ok(), "a thread drives one shard"));
        core
    }

    /// The keys, by the present settings. Events are published when the returned guard has been
    /// dropped and [`publish_events`](Self::publish_events) is called.
    pub(crate) fn keys(&self) -> RefMut<'_, Keyspace> {
        let mut keys = self.keys.borrow_mut();
        keys.flags = Flags(self.shared.config.notify.get());
        let memory_max = self.shared.config.memory_max.get();
        keys.memory_max = memory_max.div_ceil(self.shared.cores() as u64) as usize;
        keys
    }

    /// Executes requests that a core has encoded.
    fn run_all(&self, proto: Proto, requests: &[u8]) -> Replies {
        let mut replies = Replies::default();
        let mut decoder = Decoder::new(usize::MAX);
        let mut at = 0;
        let mut keys = self.keys();
        while let Some(length) = decoder.decode(&requests[at..]).unwrap_or_default() {
            let args = decoder.args(&requests[at..]);
            let run = commands::find(args[0]).and_then(commands::Command::run);
            let run = run.expect("cores send each other commands on keys");
            let key = Key::new(args.get(1).copied().unwrap_or_default());
            let reply = Reply { out: &mut replies.bytes, proto };
            let value_max = self.shared.options.request_max;
            Call { keys: &mut keys, key, args: &args, reply, value_max }.execute(run);
            replies.ends.push(replies.bytes.len());
            at += length;
        }
        drop(keys);
        self.count_commands(replies.ends.len());
        self.publish_events();
        replies
    }

    pub(crate) fn count_commands(&self, count: usize) {
        self.gauges().commands.add(count as u64);
    }

    pub(crate) fn gauges(&self) -> &Gauges {
        &self.shared.gauges[self.index]
    }

    /// Sends a message to a core, and waits while its inbox is full.
    pub(crate) async fn send(&self, core: usize, message: Message) -> Asked {
        self.shared.inboxes[core].send(message).await.map_err(|_| CoreEnded)
    }

    /// Publishes the events that commands and timers have noted, on all cores.
    pub(crate) fn publish_events(&self) {
        let mut events = {
            let mut keys = self.keys.borrow_mut();
            if keys.events.is_empty() {
                return;
            }
            std::mem::take(&mut keys.events)
        };
        let registry = self.registry.borrow();
        for event in &events {
            registry.publish(event);
        }
        let mut outgoing = self.outgoing.borrow_mut();
        for (core, waiting) in outgoing.iter_mut().enumerate() {
            if core == self.index || self.shared.gauges[core].subscribers.get() == 0 {
                continue;
            }
            let room = OUTGOING_MAX.saturating_sub(waiting.len());
            self.gauges().dropped.add(events.len().saturating_sub(room) as u64);
            waiting.extend(events.iter().take(room).cloned());
            self.has_outgoing.notify_one();
        }
        events.clear();
        self.keys.borrow_mut().events = events;
    }

    /// Sends events to the other cores, until they end.
    pub(crate) async fn send_outgoing(self: Rc<Self>) {
        loop {
            self.has_outgoing.notified().await;
            for core in 0..self.shared.cores() {
                let events = std::mem::take(&mut self.outgoing.borrow_mut()[core]);
                if !events.is_empty() && self.send(core, Message::Events(events)).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Executes what cores send, this one too.
    pub(crate) async fn serve_inbox(self: Rc<Self>, mut inbox: mpsc::Receiver<Message>) {
        while let Some(message) = inbox.recv().await {
            // The sender of a reply may have lost its client, and want it no more.
            match message {
                Message::Requests { requests, proto, reply } => {
                    let _ = reply.send(self.run_all(proto, &requests));
                }
                Message::Publish { event, reply } => {
                    let _ = reply.send(self.registry.borrow().publish(&event));
                }
                Message::Events(events) => events.iter().for_each(|event| {
                    self.registry.borrow().publish(event);
                }),
            }
            self.timers.consume_budget().await;
        }
    }

    /// Looks at the wall clock and at the limit of memory from time to time, until the shard ends.
    pub(crate) async fn keep_house(self: Rc<Self>) {
        while pause(&self.timers, HOUSEKEEPING).await {
            loop {
                let has_more = {
                    let mut keys = self.keys();
                    keys.follow_wall();
                    keys.shrink()
                };
                self.publish_events();
                if !has_more {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }
}

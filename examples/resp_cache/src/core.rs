//! One core: its keys, the subscribers of its clients, and what it sends to other cores.
//!
//! A core is single-threaded state behind `RefCell`s that are never borrowed across an `await`.
//! Other cores reach it by its inbox, a bounded channel. The task that reads the inbox waits for no
//! other core, so two cores that fill each other's inboxes cannot wait for each other.

use std::cell::{OnceCell, RefCell, RefMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::BytesMut;
use corewheel::{Fired, Timers};
use tokio::sync::{mpsc, oneshot};

use crate::clients::{Client, Clients};
use crate::commands::{self, Limits};
use crate::config::Config;
use crate::gauges::Gauges;
use crate::host::pause::pause;
use crate::keyspace::{Key, Keyspace};
use crate::notify::{Event, Flags};
use crate::options::Options;
use crate::protocol::{Decoder, Proto, Reply};
use crate::pubsub::{Outgoing, Registry};

/// The most messages that wait in an inbox.
const INBOX_MESSAGES: usize = 1 << 10;
/// So many events of one message are published before the next of its requests is executed.
const EVENTS_MAX: usize = 1 << 10;
/// How often the wall clock and the limit of memory are looked at without a request.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// What all cores share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) options: Options,
    pub(crate) gauges: Vec<Arc<Gauges>>,
    pub(crate) started: Instant,
    pub(crate) clients: Clients,
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
            clients: Clients::default(),
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

    /// The core of a key. The table of a core uses the lower half of the hash. Keys with the same
    /// `{tag}` are on one core, as they are on one node of a cluster of redis.
    pub(crate) fn owner(&self, key: Key<'_>) -> usize {
        if self.cores() == 1 {
            return 0;
        }
        let hash = tag(key.name).map_or(key.hash, |tag| Key::new(tag).hash);
        (((hash >> 32) * self.cores() as u64) >> 32) as usize
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { value: self.options.request_max, replies: self.config.replies_max.get() as usize }
    }

    /// The part of a limit that each core has; 0 is no limit.
    fn share(&self, max: u64) -> u64 {
        max.div_ceil(self.cores() as u64)
    }
}

/// What stands between the first braces of a key, if anything.
fn tag(key: &[u8]) -> Option<&[u8]> {
    let begin = memchr::memchr(b'{', key)? + 1;
    let length = memchr::memchr(b'}', &key[begin..])?;
    (length > 0).then(|| &key[begin..begin + length])
}

/// A message from one core to another.
#[derive(Debug)]
pub(crate) enum Message {
    /// Requests for keys of the receiver, encoded one after the other.
    Requests { requests: Vec<u8>, proto: Proto, most: Most, reply: oneshot::Sender<Replies> },
    /// A message of `PUBLISH`; the reply is the number of subscribers.
    Publish { event: Event, reply: oneshot::Sender<i64> },
    /// Keyspace events. The receiver confirms that it has published them.
    Events { events: Vec<Event>, published: oneshot::Sender<()> },
}

/// The most bytes of replies to the requests of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Most {
    /// The other requests are not executed when there are so many. One reply may go beyond.
    Pause(usize),
    /// All requests are executed, together. A reply that would go beyond this is replaced by an
    /// error that says so.
    Replace(usize),
}

/// A core has ended, as the server is shut down.
#[derive(Debug)]
pub(crate) struct CoreEnded;

/// What a core was asked for, unless a core has ended.
pub(crate) type Asked<T = ()> = Result<T, CoreEnded>;

/// The replies to several requests, the end of each, and the requests that were not executed.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    pub(crate) bytes: BytesMut,
    pub(crate) ends: Vec<usize>,
    pub(crate) rest: Vec<u8>,
}

/// The state of one core.
pub(crate) struct Core {
    pub(crate) index: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) timers: Timers<u32>,
    pub(crate) registry: RefCell<Registry>,
    keys: RefCell<Keyspace>,
    /// Events for the subscribers of other cores, by core.
    outgoing: Vec<Outgoing>,
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
        (keys.core, keys.cores) = (index, shared.gauges.clone());
        keys.timers_max = shared.options.timers_max as usize;
        let core = Rc::new(Self {
            index,
            registry: RefCell::default(),
            keys: RefCell::new(keys),
            timers,
            outgoing: std::iter::repeat_with(Outgoing::default).take(shared.cores()).collect(),
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
        keys.memory_max = self.shared.share(self.shared.config.memory_max.get()) as usize;
        keys
    }

    /// Executes requests that a core has encoded.
    fn run_all(&self, proto: Proto, mut requests: Vec<u8>, most: Most) -> Replies {
        let mut replies = Replies::default();
        let mut decoder = Decoder::new(usize::MAX);
        let mut at = 0;
        let mut keys = self.keys();
        let mut limits = self.shared.limits();
        let (enough, whole) = match most {
            Most::Pause(enough) => (enough, None),
            Most::Replace(whole) => (usize::MAX, Some(whole)),
        };
        while replies.bytes.len() < enough
            && let Some(length) = decoder.decode(&requests[at..]).unwrap_or_default()
        {
            let args = decoder.args(&requests[at..]);
            let command = commands::find(args[0]).expect("cores send each other known commands");
            let begin = replies.bytes.len();
            if let Some(whole) = whole {
                limits.replies = whole.saturating_sub(begin);
            }
            let mut reply = Reply { out: &mut replies.bytes, proto };
            command.run_on(&mut keys, &args, reply.again(), limits);
            if let Some(whole) = whole.filter(|whole| reply.out.len() > *whole) {
                reply.out.truncate(begin);
                reply.error(&commands::too_large(whole));
            }
            replies.ends.push(replies.bytes.len());
            at += length;
            if keys.events.len() >= EVENTS_MAX {
                drop(keys);
                self.publish_events();
                keys = self.keys();
            }
        }
        drop(keys);
        replies.rest = requests.split_off(at);
        self.count_commands(replies.ends.len());
        self.publish_events();
        replies
    }

    /// Enters a client; `None` if there are as many as the server may have.
    pub(crate) fn enter(&self, peer: Option<SocketAddr>) -> Option<Arc<Client>> {
        let limit = self.shared.options.clients_limit();
        let max = match self.shared.config.clients_max.get() {
            0 => limit,
            max => max.min(limit),
        };
        self.shared.clients.enter(max, self.index, peer, &self.shared.gauges[self.index])
    }

    /// Ends the clients of this core that take the most memory while all take too much.
    pub(crate) fn limit_clients(&self) {
        let max = self.shared.share(self.shared.config.clients_memory_max.get());
        if max > 0 && self.gauges().client_memory.get() > max {
            let ended = self.shared.clients.end_largest(self.index, max);
            self.gauges().clients_evicted.add(ended);
        }
    }

    /// Sends a message to the subscribers of this core, and returns how many there are.
    pub(crate) fn publish(&self, event: &Event) -> i64 {
        let max = self.shared.config.output_max.get() as usize;
        let count = self.registry.borrow().publish(event, max);
        self.limit_clients();
        count
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
        for event in &events {
            self.publish(event);
        }
        for (core, outgoing) in self.outgoing.iter().enumerate() {
            if core != self.index && self.shared.gauges[core].subscribers.get() > 0 {
                self.gauges().dropped.add(outgoing.push(&events));
            }
        }
        events.clear();
        self.keys.borrow_mut().events = events;
    }

    /// Sends events to another core, until that ends. The next are sent when the last have been
    /// published there, so no more of them wait than an [`Outgoing`] holds.
    pub(crate) async fn send_outgoing(self: Rc<Self>, to: usize) {
        loop {
            self.outgoing[to].ready.notified().await;
            while let Some(events) = self.outgoing[to].take() {
                let (published, is_done) = oneshot::channel();
                let message = Message::Events { events, published };
                if self.send(to, message).await.is_err() || is_done.await.is_err() {
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
                Message::Requests { requests, proto, most, reply } => {
                    let _ = reply.send(self.run_all(proto, requests, most));
                }
                Message::Publish { event, reply } => {
                    let _ = reply.send(self.publish(&event));
                }
                Message::Events { events, published } => {
                    for event in &events {
                        self.publish(event);
                    }
                    let _ = published.send(());
                }
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

//! The kernel of a simulated network: the buffers of all sockets, and the lists of those that are
//! ready.
//!
//! Why not the memory that tokio's `duplex` shares: there the reader sees a byte in the moment in
//! which it is written, and no reactor lies between the two.
//!
//! A byte is accepted into a send buffer, goes in segments as far as the peer's window lets it, and
//! stays in the send buffer until the peer has acknowledged it. See [`wire`].
//!
//! Invariants: no waker runs under the lock. A socket is in the list of its runtime at most once,
//! and keeps its place when more happens to it, as with epoll. A socket that its owner has closed
//! stays until its peer has acknowledged all of it, or the connection is reset.

mod readiness;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use fastrand::Rng;
use slab::Slab;

use self::wire::Receiving;
pub(super) use self::wire::Sending;
use super::options::Options;
use super::witness::{Known, lock};
use crate::clock::{Clock, saturating_nanos};
use crate::conn::Sent;
use crate::pass::Wait;
use crate::pass::looks::{Proof, Written};

/// What a runtime remembers of a socket.
pub(super) const READ: u8 = 1;
pub(super) const WRITE: u8 = 2;
/// The peer has ended its side, which no read makes undone.
pub(super) const READ_CLOSED: u8 = 4;
pub(super) const WRITE_CLOSED: u8 = 8;

/// What lies in the list of a runtime.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    Socket(usize),
    Listener(SocketAddr),
    /// The barrier of a pass.
    Barrier,
}

#[allow(clippy::struct_excessive_bools, reason = "the states of a socket are independent")]
pub(super) struct Socket {
    /// `None` when the peer's socket is gone.
    peer: Option<usize>,
    /// The runtime that it is registered with; `None` if it has none.
    runtime: Option<usize>,
    /// What the runtime remembers, as bits.
    ready: u8,
    is_listed: bool,
    /// For a read and a write.
    wakers: [Option<Waker>; 2],
    receiving: Receiving,
    sending: Sending,
    /// A write has found too little room.
    wants_room: bool,
    is_reset: bool,
    /// Its close resets the connection.
    resets_at_close: bool,
    /// The error that the next call returns.
    error: Option<ErrorKind>,
    /// The owner has dropped it.
    is_closed: bool,
    known: Arc<Mutex<Known>>,
}

impl Socket {
    fn new(runtime: Option<usize>, latency: u64, options: &Options) -> Self {
        Self {
            peer: None,
            runtime,
            ready: 0,
            is_listed: false,
            wakers: [None, None],
            receiving: Receiving::new(options),
            sending: Sending::new(options, latency),
            wants_room: false,
            is_reset: false,
            resets_at_close: false,
            error: None,
            is_closed: false,
            known: Arc::default(),
        }
    }

    fn is_readable(&self) -> bool {
        !self.receiving.bytes.is_empty() || self.receiving.has_end || self.is_reset
    }

    /// Whether the system says that it can be written to.
    fn has_room(&self, options: &Options) -> bool {
        self.sending.is_writable(options) || self.sending.is_shut || self.is_reset
    }
}

#[derive(Default)]
struct Listener {
    queue: VecDeque<usize>,
    runtime: Option<usize>,
    is_registered: bool,
    is_ready: bool,
    is_listed: bool,
    waker: Option<Waker>,
}

/// The reactor of a runtime, with its settings.
pub(super) struct Reactor {
    list: VecDeque<Entry>,
    pub(super) events_max: usize,
    /// How much a task may do in one poll.
    pub(super) budget: u32,
    pub(super) reads_long: bool,
    /// Until when no look is taken.
    pub(super) held_until: u64,
    waker: Option<Waker>,
    /// What the barrier that is in the list wakes.
    written: Written,
    /// What the barrier after that wakes.
    next: Written,
    /// The last barrier for timers that was handed out.
    pub(super) proof: Proof,
}

/// What a look has left.
pub(super) enum Looked {
    Nothing,
    More,
    /// The look is to be taken at this time.
    Held(u64),
}

pub(super) struct Kernel {
    clock: Clock,
    /// What the clock showed when the simulation began.
    begun: u64,
    rng: Rng,
    options: Options,
    sockets: Slab<Socket>,
    listeners: BTreeMap<SocketAddr, Listener>,
    reactors: Vec<Reactor>,
    /// When bytes of which sockets come to their peers.
    due: BTreeSet<(u64, usize)>,
    /// The task that moves them.
    mover: Option<Waker>,
    /// To be woken without the lock.
    wakes: Vec<Waker>,
    ended: Vec<Arc<Wait>>,
    /// To be dropped without the lock.
    dropped: Vec<Waker>,
    transfers: u64,
}

/// The kernel, as sockets and runtimes share it.
pub(super) struct World(Mutex<Kernel>);

impl World {
    /// `begun` is when the simulation began.
    pub(super) fn new(clock: Clock, begun: u64, rng: Rng) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Kernel {
            clock,
            begun,
            rng,
            options: Options::DEFAULT,
            sockets: Slab::new(),
            listeners: BTreeMap::new(),
            reactors: Vec::new(),
            due: BTreeSet::new(),
            mover: None,
            wakes: Vec::new(),
            ended: Vec::new(),
            dropped: Vec::new(),
            transfers: 0,
        })))
    }

    /// Calls the kernel, and then wakes what it has made ready, in that order.
    pub(super) fn call<O>(&self, call: impl FnOnce(&mut Kernel) -> O) -> O {
        let mut kernel = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let output = call(&mut kernel);
        let wakes = std::mem::take(&mut kernel.wakes);
        let ended = std::mem::take(&mut kernel.ended);
        let dropped = std::mem::take(&mut kernel.dropped);
        drop(kernel);
        drop(dropped);
        wakes.into_iter().for_each(Waker::wake);
        for wait in ended {
            wait.end();
        }
        output
    }
}

/// Connections.
impl Kernel {
    pub(super) fn listen(&mut self, address: SocketAddr) -> Result<(), ErrorKind> {
        if self.listeners.contains_key(&address) {
            return Err(ErrorKind::AddrInUse);
        }
        self.listeners.insert(address, Listener::default());
        Ok(())
    }

    pub(super) fn unlisten(&mut self, address: SocketAddr) {
        let Some(listener) = self.listeners.remove(&address) else { return };
        if let (true, Some(runtime)) = (listener.is_listed, listener.runtime) {
            self.unlist(runtime, Entry::Listener(address));
        }
        listener.queue.into_iter().for_each(|socket| self.close(socket));
    }

    /// A connection to a listener, whose other side is in its queue.
    pub(super) fn connect(
        &mut self,
        address: SocketAddr,
        runtime: Option<usize>,
    ) -> Result<usize, ErrorKind> {
        if !self.listeners.contains_key(&address) {
            return Err(ErrorKind::ConnectionRefused);
        }
        let latency_max = saturating_nanos(self.options.latency_max);
        let latency = self.rng.u64(..=latency_max);
        let now = self.now();
        let [here, there] = [runtime, None].map(|runtime| {
            let socket = Socket::new(runtime, latency, &self.options);
            lock(&socket.known).room_since = Some(Duration::from_nanos(now));
            self.sockets.insert(socket)
        });
        self.sockets[here].peer = Some(there);
        self.sockets[there].peer = Some(here);
        if runtime.is_some() {
            self.event(here);
        }
        let listener = self.listeners.get_mut(&address).expect("it was there above");
        listener.queue.push_back(there);
        self.listener_event(address);
        Ok(here)
    }

    /// The next connection of a listener; `None` if the task is to wait.
    pub(super) fn accept(&mut self, address: SocketAddr, runtime: Option<usize>) -> Option<usize> {
        let listener = self.listeners.get_mut(&address)?;
        if !listener.is_registered {
            (listener.is_registered, listener.runtime) = (true, runtime);
            if !listener.queue.is_empty() {
                self.listener_event(address);
            }
        }
        let listener = self.listeners.get_mut(&address)?;
        let knows = listener.runtime.is_none() || listener.is_ready;
        let accepted = if knows { listener.queue.pop_front() } else { None };
        let Some(socket) = accepted else {
            listener.is_ready = false;
            return None;
        };
        self.sockets[socket].runtime = runtime;
        if runtime.is_some() {
            // A descriptor that is registered is listed at once, as it can be written to.
            self.event(socket);
        }
        Some(socket)
    }

    /// The task waits for the next connection.
    pub(super) fn wait_for_next(&mut self, address: SocketAddr, waker: Waker) {
        if let Some(listener) = self.listeners.get_mut(&address) {
            self.dropped.extend(listener.waker.replace(waker));
        }
    }

    pub(super) fn known(&self, socket: usize) -> Arc<Mutex<Known>> {
        Arc::clone(&self.sockets[socket].known)
    }

    pub(super) fn peer(&self, socket: usize) -> Option<usize> {
        self.sockets[socket].peer
    }

    /// The settings, before the first socket.
    pub(super) fn options(&mut self) -> &mut Options {
        assert!(self.sockets.is_empty(), "a network is set before its first connection");
        &mut self.options
    }

    /// How many reads and writes have moved bytes.
    pub(super) fn transfers(&self) -> u64 {
        self.transfers
    }

    /// How many sockets there are, those that their owners have closed included.
    pub(super) fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Nanoseconds since the simulation began.
    fn now(&self) -> u64 {
        self.clock.nanos() - self.begun
    }
}

/// Bytes.
impl Kernel {
    /// Reads by `take`, which is given the parts of what is received. `None` if there is
    /// nothing.
    pub(super) fn read(
        &mut self,
        id: usize,
        room: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<Option<usize>, ErrorKind> {
        let now = self.now();
        let socket = &mut self.sockets[id];
        let received = &mut socket.receiving.bytes;
        let count = received.len().min(room);
        if count == 0 && room > 0 {
            if let Some(error) = socket.error.take() {
                return Err(error);
            }
            return Ok((socket.receiving.has_end || socket.is_reset).then_some(0));
        }
        let (first, second) = received.as_slices();
        let of_first = first.len().min(count);
        take(&first[..of_first]);
        take(&second[..count - of_first]);
        received.drain(..count);
        lock(&socket.known).note_read(count, Duration::from_nanos(now));
        self.transfers += u64::from(count > 0);
        self.open_window(id);
        Ok(Some(count))
    }

    /// Writes bytes; `None` if there is no room.
    pub(super) fn write(&mut self, id: usize, bytes: &[u8]) -> Result<Option<usize>, ErrorKind> {
        let now = self.now();
        let portion = match self.options.portion_max {
            0 => usize::MAX,
            max => self.rng.usize(1..=max),
        };
        let options = &self.options;
        let third = options.send_buffer.div_ceil(3);
        let socket = &mut self.sockets[id];
        if let Some(error) = socket.error.take() {
            return Err(error);
        }
        if socket.is_reset || socket.sending.is_shut {
            return Err(ErrorKind::BrokenPipe);
        }
        let free = socket.sending.free(options);
        let count = bytes.len().min(free);
        // A socket that has taken a portion and can take more says so, which a third allows.
        let count = if count.min(portion) + third <= free { count.min(portion) } else { count };
        let is_full = count == free;
        socket.wants_room |= is_full && count < bytes.len();
        if count == 0 {
            return Ok(bytes.is_empty().then_some(0));
        }
        socket.sending.accept(&bytes[..count], now);
        {
            let mut known = lock(&socket.known);
            known.accepted += count as u64;
            known.room_since = known.room_since.filter(|_| !is_full);
            known.note_progress(&socket.sending, Duration::from_nanos(now));
        }
        self.transfers += 1;
        if count < bytes.len() && !is_full {
            // It has taken a portion, and can take more.
            self.event(id);
        }
        self.pump(id);
        Ok(Some(count))
    }

    /// Ends the direction from a socket.
    pub(super) fn shut_down(&mut self, id: usize) {
        let now = self.now();
        let socket = &mut self.sockets[id];
        if socket.sending.is_shut || socket.is_reset {
            return;
        }
        socket.sending.shut_down(now);
        self.event(id);
        self.pump(id);
    }

    /// The close of a socket is to reset the connection.
    pub(super) fn reset_at_close(&mut self, id: usize) {
        self.sockets[id].resets_at_close = true;
    }

    /// What the system says of what was written to a socket.
    pub(super) fn sent(&self, id: usize) -> Sent {
        self.sockets[id].sending.say(self.now())
    }

    /// The owner drops a socket. What it has not read is lost, and resets the connection, as on
    /// Linux.
    pub(super) fn close(&mut self, id: usize) {
        self.forget_tasks(id);
        let socket = &self.sockets[id];
        if socket.is_reset {
            self.remove(id);
        } else if socket.receiving.bytes.is_empty() && !socket.resets_at_close {
            self.shut_down(id);
            self.remove_if_done(id);
        } else {
            self.reset(id);
        }
    }

    /// The owner drops a socket, and the peer's is reset.
    fn reset(&mut self, id: usize) {
        self.forget_tasks(id);
        if let Some(peer) = self.sockets[id].peer {
            self.is_reset_by_peer(peer);
        }
        if self.sockets.contains(id) {
            self.remove(id);
        }
    }

    /// The owner has dropped a socket: nothing waits for it any more.
    fn forget_tasks(&mut self, id: usize) {
        let now = self.now();
        let socket = &mut self.sockets[id];
        socket.is_closed = true;
        lock(&socket.known).closed_at.get_or_insert(Duration::from_nanos(now));
        let is_listed = std::mem::take(&mut socket.is_listed);
        let runtime = socket.runtime.take();
        self.dropped.extend(socket.wakers.iter_mut().filter_map(Option::take));
        if let (true, Some(runtime)) = (is_listed, runtime) {
            self.unlist(runtime, Entry::Socket(id));
        }
    }

    fn unlist(&mut self, runtime: usize, entry: Entry) {
        self.reactors[runtime].list.retain(|other| *other != entry);
    }

    fn is_reset_by_peer(&mut self, id: usize) {
        let now = self.now();
        let socket = &mut self.sockets[id];
        socket.is_reset = true;
        socket.error = Some(ErrorKind::ConnectionReset);
        socket.sending.purge(now);
        {
            let mut known = lock(&socket.known);
            known.reset_at = Some(Duration::from_nanos(now));
            known.note_progress(&socket.sending, Duration::from_nanos(now));
        }
        if socket.is_closed {
            self.remove(id);
        } else {
            self.event(id);
        }
    }

    /// Nothing is left of a socket. That of its peer goes with it where its owner has closed it.
    fn remove(&mut self, id: usize) {
        let now = self.now();
        let socket = self.sockets.remove(id);
        lock(&socket.known).gone_at = Some(Duration::from_nanos(now));
        if let Some(peer) = socket.peer {
            self.sockets[peer].peer = None;
            if self.sockets[peer].is_closed {
                self.remove(peer);
            }
        }
    }

    /// Moves all that has come. Returns when the next bytes come.
    pub(super) fn move_due(&mut self, waker: Waker) -> Option<u64> {
        let now = self.now();
        while let Some((at, id)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, id));
            if self.sockets.contains(id) {
                self.pump(id);
            }
        }
        self.dropped.extend(self.mover.replace(waker));
        self.due.first().map(|(at, _)| *at)
    }
}

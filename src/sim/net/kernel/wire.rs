//! What lies between two sockets: segments, acknowledgements and windows.
//!
//! It does what Linux does as far as a sender can see it. A peer acknowledges more than one segment
//! at once and one alone after a while. Its window opens when there is room for a segment or half
//! of its buffer, and has doubled. So a peer that reads steadily shows its progress in lumps.
//!
//! Invariants: what is on its way fits into the window that the peer has given, which never
//! shrinks. Each packet of a direction comes in its order, since a connection has one latency.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::options::Options;
use super::super::witness::lock;
use super::Kernel;
use crate::clock::saturating_nanos;
use crate::conn::Sent;

/// In what parts the system counts for how long bytes were left, and how long ago a packet came.
const JIFFY: u64 = 4_000_000;

/// What is on its way to the peer.
enum Packet {
    /// So many bytes.
    Data(usize),
    /// The end of the direction.
    End,
    /// All bytes before `acknowledged` have come, and the end if `has_end`. The peer may send those
    /// before `edge`.
    Ack { acknowledged: u64, edge: u64, has_end: bool },
}

/// The direction from a socket.
pub(in crate::sim::net) struct Sending {
    /// What the send buffer holds: all that is accepted and not acknowledged.
    pub(in crate::sim::net) bytes: VecDeque<u8>,
    /// How many bytes the peer has acknowledged.
    pub(in crate::sim::net) acknowledged: u64,
    /// How many bytes were sent, and how many of them have come.
    sent: u64,
    came: u64,
    /// Before which byte the peer's window ends.
    edge: u64,
    /// With the time at which each comes.
    packets: VecDeque<(u64, Packet)>,
    /// The owner has ended the direction.
    pub(super) is_shut: bool,
    is_end_sent: bool,
    is_end_acknowledged: bool,
    /// For how long something was left to acknowledge, before it last began to be.
    busy: u64,
    busy_since: Option<u64>,
    /// When the last acknowledgement came.
    heard_at: u64,
    latency: u64,
}

impl Sending {
    pub(super) fn new(options: &Options, latency: u64) -> Self {
        Self {
            bytes: VecDeque::new(),
            acknowledged: 0,
            sent: 0,
            came: 0,
            edge: options.receive_buffer as u64,
            packets: VecDeque::new(),
            is_shut: false,
            is_end_sent: false,
            is_end_acknowledged: false,
            busy: 0,
            busy_since: None,
            heard_at: 0,
            latency,
        }
    }

    /// How many bytes were accepted in all.
    fn accepted(&self) -> u64 {
        self.acknowledged + self.bytes.len() as u64
    }

    fn not_sent(&self) -> usize {
        (self.accepted() - self.sent) as usize
    }

    /// How many bytes a write may bring.
    pub(super) fn free(&self, options: &Options) -> usize {
        let free = options.send_buffer - self.bytes.len();
        match options.not_sent_lowat {
            0 => free,
            lowat => free.min(lowat.saturating_sub(self.not_sent())),
        }
    }

    /// Linux says so when a third of the send buffer is free, and less than half of what may wait
    /// to be sent does.
    pub(super) fn is_writable(&self, options: &Options) -> bool {
        let lowat = options.not_sent_lowat;
        let free = options.send_buffer - self.bytes.len();
        free >= options.send_buffer.div_ceil(3) && (lowat == 0 || 2 * self.not_sent() < lowat)
    }

    pub(super) fn accept(&mut self, bytes: &[u8], now: u64) {
        self.bytes.extend(bytes);
        self.note_busy(now);
    }

    pub(super) fn shut_down(&mut self, now: u64) {
        self.is_shut = true;
        self.note_busy(now);
    }

    /// The connection is reset.
    pub(super) fn purge(&mut self, now: u64) {
        self.bytes.clear();
        self.packets.clear();
        (self.sent, self.came) = (self.acknowledged, self.acknowledged);
        self.is_end_acknowledged = true;
        self.note_busy(now);
    }

    /// Whether the peer has acknowledged all, and the end.
    pub(super) fn is_done(&self) -> bool {
        self.bytes.is_empty() && self.is_end_acknowledged
    }

    fn is_left(&self) -> bool {
        !self.bytes.is_empty() || self.is_shut && !self.is_end_acknowledged
    }

    fn note_busy(&mut self, now: u64) {
        if self.is_left() {
            self.busy_since.get_or_insert(now / JIFFY);
        } else if let Some(since) = self.busy_since.take() {
            self.busy += now / JIFFY - since;
        }
    }

    /// What the system says of it.
    pub(super) fn say(&self, now: u64) -> Sent {
        let jiffies = now / JIFFY;
        let busy = self.busy + self.busy_since.map_or(0, |since| jiffies - since);
        Sent {
            acknowledged: self.acknowledged,
            left: self.bytes.len() as u64 + u64::from(self.is_left() && self.bytes.is_empty()),
            busy: busy * JIFFY,
            quiet: (jiffies - self.heard_at / JIFFY) * JIFFY,
        }
    }

    /// The bytes of a segment that comes, as the two parts in which they lie.
    fn coming(&self, count: usize) -> [&[u8]; 2] {
        let begin = (self.came - self.acknowledged) as usize;
        let (first, second) = self.bytes.as_slices();
        let of_first = |at: usize| at.min(first.len());
        let (from, to) = (of_first(begin), of_first(begin + count));
        let second = &second[begin - from..begin + count - to];
        [&first[from..to], second]
    }
}

/// The direction to a socket.
pub(super) struct Receiving {
    /// What is not read.
    pub(super) bytes: VecDeque<u8>,
    /// No byte comes after those.
    pub(super) has_end: bool,
    /// How many bytes have come, and how many of them were acknowledged.
    came: u64,
    told: u64,
    /// Before which byte the window ends that the peer was given.
    edge: u64,
    /// When what has come is acknowledged; `None` if all is.
    ack_at: Option<u64>,
}

impl Receiving {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            bytes: VecDeque::new(),
            has_end: false,
            came: 0,
            told: 0,
            edge: options.receive_buffer as u64,
            ack_at: None,
        }
    }

    /// The window that there is room for.
    fn window(&self, options: &Options) -> u64 {
        let capacity = options.receive_buffer;
        let free = capacity - self.bytes.len();
        if free < options.segment.min(capacity / 2) { 0 } else { free as u64 }
    }

    /// Acknowledges all that has come, with the window that there is.
    fn acknowledge(&mut self, options: &Options) -> Packet {
        (self.told, self.ack_at) = (self.came, None);
        self.edge = self.edge.max(self.came + self.window(options));
        Packet::Ack { acknowledged: self.came, edge: self.edge, has_end: self.has_end }
    }
}

impl Kernel {
    /// Moves all that can move at this moment in both directions of a connection.
    pub(super) fn pump(&mut self, id: usize) {
        let mut moves = true;
        while moves {
            moves = false;
            let peer = self.sockets.get(id).and_then(|socket| socket.peer);
            for side in [Some(id), peer].into_iter().flatten() {
                moves |= self.send(side) | self.arrive(side);
            }
        }
    }

    /// Sends what the window and the time allow. True if that is anything.
    fn send(&mut self, id: usize) -> bool {
        let (now, options) = (self.now(), &self.options);
        let Some(socket) = self.sockets.get_mut(id) else { return false };
        let (sending, receiving) = (&mut socket.sending, &mut socket.receiving);
        let (at, count) = (now + sending.latency, sending.packets.len());
        // A peer that is gone gives no window. What comes there resets the connection.
        let edge = if socket.peer.is_some() { sending.edge } else { u64::MAX };
        let limit = sending.accepted().min(edge);
        while sending.sent < limit {
            let len = (limit - sending.sent).min(options.segment as u64);
            sending.sent += len;
            sending.packets.push_back((at, Packet::Data(len as usize)));
        }
        let is_all_sent = sending.sent == sending.accepted();
        if sending.is_shut && is_all_sent && !sending.is_end_sent && !socket.is_reset {
            sending.is_end_sent = true;
            sending.packets.push_back((at, Packet::End));
        }
        let has_sent = sending.packets.len() > count;
        // What is sent carries an acknowledgement.
        if receiving.ack_at.is_some_and(|at| has_sent || at <= now) {
            sending.packets.push_back((at, receiving.acknowledge(options)));
        }
        let moves = sending.packets.len() > count;
        if moves {
            self.note_room(id);
        }
        moves
    }

    /// A write may have found room.
    fn note_room(&mut self, id: usize) {
        let now = self.now();
        let socket = &mut self.sockets[id];
        if socket.has_room(&self.options) {
            lock(&socket.known).room_since.get_or_insert(Duration::from_nanos(now));
            if std::mem::take(&mut socket.wants_room) {
                self.event(id);
            }
        }
    }

    /// What a socket has sent comes to its peer, as far as it is time. True if anything has come.
    fn arrive(&mut self, id: usize) -> bool {
        let now = self.now();
        let mut has_come = false;
        while let Some(socket) = self.sockets.get_mut(id) {
            let ack_at = socket.receiving.ack_at;
            let Some((at, _)) = socket.sending.packets.front() else {
                self.come_back(ack_at, id);
                break;
            };
            if *at > now {
                let at = *at;
                self.come_back(Some(ack_at.map_or(at, |ack| ack.min(at))), id);
                break;
            }
            let (_, packet) = socket.sending.packets.pop_front().expect("it was there above");
            let peer = socket.peer;
            has_come = true;
            match packet {
                Packet::Data(count) => self.data_comes(id, peer, count),
                Packet::End => self.end_comes(id, peer),
                Packet::Ack { acknowledged, edge, has_end } => {
                    if let Some(peer) = peer {
                        self.ack_comes(peer, acknowledged, edge, has_end);
                    }
                }
            }
        }
        has_come
    }

    /// The kernel is to look at a connection again then.
    fn come_back(&mut self, at: Option<u64>, id: usize) {
        if let Some(at) = at {
            self.due.insert((at, id));
            self.wakes.extend(self.mover.take());
        }
    }

    fn data_comes(&mut self, id: usize, peer: Option<usize>, count: usize) {
        let now = self.now();
        let Some(peer) = peer.filter(|peer| !self.sockets[*peer].is_closed) else {
            // The peer's socket is closed: what comes resets the connection.
            if let Some(peer) = peer {
                self.sockets[id].peer = None;
                self.sockets[peer].peer = None;
                self.remove(peer);
            }
            return self.is_reset_by_peer(id);
        };
        let (from, to) = self.sockets.get2_mut(id, peer).expect("a connection has two sockets");
        for part in from.sending.coming(count) {
            to.receiving.bytes.extend(part);
        }
        from.sending.came += count as u64;
        let receiving = &mut to.receiving;
        receiving.came = from.sending.came;
        lock(&to.known).note_came(count, Duration::from_nanos(now));
        let delay = saturating_nanos(self.options.ack_delay);
        let is_late = receiving.came - receiving.told > self.options.segment as u64;
        let ack_at = if is_late { now } else { now + delay };
        receiving.ack_at = Some(receiving.ack_at.map_or(ack_at, |at| at.min(ack_at)));
        self.event(peer);
        self.come_back(self.sockets[peer].receiving.ack_at.filter(|at| *at > now), peer);
    }

    fn end_comes(&mut self, id: usize, peer: Option<usize>) {
        let now = self.now();
        if let Some(peer) = peer {
            let socket = &mut self.sockets[peer];
            socket.receiving.has_end = true;
            socket.receiving.ack_at = Some(now);
            if !socket.is_closed {
                lock(&socket.known).end_came_at = Some(Duration::from_nanos(now));
                self.event(peer);
            }
        } else {
            let sending = &mut self.sockets[id].sending;
            sending.is_end_acknowledged = true;
            sending.note_busy(now);
            self.remove_if_done(id);
        }
    }

    fn ack_comes(&mut self, id: usize, acknowledged: u64, edge: u64, has_end: bool) {
        let now = self.now();
        let socket = &mut self.sockets[id];
        if socket.is_reset {
            return;
        }
        let sending = &mut socket.sending;
        sending.bytes.drain(..(acknowledged - sending.acknowledged) as usize);
        (sending.acknowledged, sending.edge) = (acknowledged, sending.edge.max(edge));
        sending.heard_at = now;
        sending.is_end_acknowledged |= has_end;
        sending.note_busy(now);
        lock(&socket.known).note_progress(&socket.sending, Duration::from_nanos(now));
        self.note_room(id);
        self.remove_if_done(id);
    }

    /// Removes a socket that its owner has closed and whose peer has all of it. What it has
    /// received is acknowledged with it.
    pub(super) fn remove_if_done(&mut self, id: usize) {
        let Some(socket) = self.sockets.get(id) else { return };
        if !socket.is_closed || !socket.sending.is_done() {
            return;
        }
        let Receiving { came, edge, has_end, .. } = socket.receiving;
        if let Some(peer) = socket.peer.filter(|peer| !self.sockets[*peer].is_closed) {
            self.ack_comes(peer, came, edge, has_end);
        }
        self.remove(id);
    }

    /// Bytes were read: tells the peer of a window that has doubled.
    pub(super) fn open_window(&mut self, id: usize) {
        let (now, options) = (self.now(), &self.options);
        let receiving = &mut self.sockets[id].receiving;
        let (left, window) = (receiving.edge - receiving.came, receiving.window(options));
        if window > left && window >= 2 * left {
            receiving.ack_at = Some(now);
            self.pump(id);
        }
    }
}

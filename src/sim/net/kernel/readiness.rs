//! Which sockets are ready, as each runtime knows it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::task::Waker;

use super::{Entry, Kernel, Looked, READ, READ_CLOSED, Reactor, WRITE, WRITE_CLOSED};
use crate::pass::looks::{LOOKS, Proof, Written};

/// Readiness.
impl Kernel {
    /// Something has happened to a socket.
    pub(super) fn event(&mut self, id: usize) {
        let socket = &mut self.sockets[id];
        match socket.runtime {
            Some(runtime) if !socket.is_listed => {
                socket.is_listed = true;
                self.list(runtime, Entry::Socket(id));
            }
            Some(_) => {}
            None => self.wakes.extend(socket.wakers.iter_mut().filter_map(Option::take)),
        }
    }

    pub(super) fn listener_event(&mut self, address: SocketAddr) {
        let Some(listener) = self.listeners.get_mut(&address) else { return };
        match listener.runtime {
            Some(runtime) if !listener.is_listed => {
                listener.is_listed = true;
                self.list(runtime, Entry::Listener(address));
            }
            Some(_) => {}
            None => self.wakes.extend(listener.waker.take()),
        }
    }

    pub(super) fn list(&mut self, runtime: usize, entry: Entry) {
        let reactor = &mut self.reactors[runtime];
        reactor.list.push_back(entry);
        self.wakes.extend(reactor.waker.take());
    }

    /// A reactor with the numbers of tokio.
    pub(in crate::sim::net) fn add_reactor(&mut self) -> usize {
        self.reactors.push(Reactor {
            list: VecDeque::new(),
            events_max: 1_024,
            budget: 128,
            reads_long: false,
            held_until: 0,
            waker: None,
            written: Written::default(),
            next: Written::default(),
            proof: Proof::NONE,
        });
        self.reactors.len() - 1
    }

    /// Takes no look until then.
    pub(in crate::sim::net) fn hold(&mut self, runtime: usize, until: u64) {
        let held_until = &mut self.reactors[runtime].held_until;
        *held_until = until.max(*held_until);
    }

    pub(in crate::sim::net) fn reactor(&mut self, runtime: usize) -> &mut Reactor {
        &mut self.reactors[runtime]
    }

    /// Takes a look: hands out what is at the head of the list.
    pub(in crate::sim::net) fn look(&mut self, runtime: usize, waker: Waker) -> Looked {
        let (now, reactor) = (self.now(), &mut self.reactors[runtime]);
        self.dropped.extend(reactor.waker.replace(waker));
        if reactor.list.is_empty() {
            return Looked::Nothing;
        }
        if reactor.held_until > now {
            return Looked::Held(reactor.held_until);
        }
        self.hand_out(runtime);
        if self.reactors[runtime].list.is_empty() { Looked::Nothing } else { Looked::More }
    }

    /// Hands out as many events as one look takes. True if some are left.
    pub(in crate::sim::net) fn hand_out(&mut self, runtime: usize) -> bool {
        for _ in 0..self.reactors[runtime].events_max {
            let Some(entry) = self.reactors[runtime].list.pop_front() else { break };
            match entry {
                Entry::Socket(id) => {
                    let options = &self.options;
                    let socket = &mut self.sockets[id];
                    socket.is_listed = false;
                    let bits = [
                        (READ, socket.is_readable()),
                        (WRITE, socket.has_room(options)),
                        (READ_CLOSED, socket.receiving.has_end || socket.is_reset),
                        (WRITE_CLOSED, socket.is_reset),
                    ];
                    let ready =
                        bits.iter().filter(|(_, is)| *is).fold(0, |all, (bit, _)| all | bit);
                    socket.ready |= ready;
                    let [read, write] = &mut socket.wakers;
                    if ready & (READ | READ_CLOSED) != 0 {
                        self.wakes.extend(read.take());
                    }
                    if ready & (WRITE | WRITE_CLOSED) != 0 {
                        self.wakes.extend(write.take());
                    }
                }
                Entry::Listener(address) => {
                    if let Some(listener) = self.listeners.get_mut(&address) {
                        (listener.is_listed, listener.is_ready) = (false, true);
                        self.wakes.extend(listener.waker.take());
                    }
                }
                Entry::Barrier => {
                    let reactor = &mut self.reactors[runtime];
                    let written = std::mem::take(&mut reactor.next);
                    if !written.is_empty() {
                        reactor.list.push_back(Entry::Barrier);
                    }
                    let ended = std::mem::replace(&mut reactor.written, written);
                    let proof = LOOKS.add(ended.until);
                    if ended.until > 0 {
                        reactor.proof = proof;
                    }
                    self.ended.extend(ended.waits);
                    self.wakes.extend(ended.due);
                }
            }
        }
        !self.reactors[runtime].list.is_empty()
    }

    /// Wakes this when what is in the list now was handed out.
    pub(in crate::sim::net) fn ask(&mut self, runtime: usize, asked: Written) {
        let reactor = &mut self.reactors[runtime];
        if reactor.written.is_empty() {
            reactor.written = asked;
            self.list(runtime, Entry::Barrier);
        } else {
            reactor.next.append(asked);
        }
    }

    /// Whether the runtime remembers one of these bits. A socket without a runtime is always asked.
    pub(in crate::sim::net) fn is_ready(&self, id: usize, bits: u8) -> bool {
        let socket = &self.sockets[id];
        socket.runtime.is_none() || socket.ready & bits != 0
    }

    /// The task waits for these bits.
    pub(in crate::sim::net) fn wait(&mut self, id: usize, bits: u8, waker: Waker) {
        let socket = &mut self.sockets[id];
        self.dropped.extend(socket.wakers[usize::from(bits & WRITE != 0)].replace(waker));
    }

    /// A short read or write has emptied or filled the buffer.
    pub(in crate::sim::net) fn clear(&mut self, id: usize, bits: u8) {
        self.sockets[id].ready &= !(bits & (READ | WRITE));
    }
}

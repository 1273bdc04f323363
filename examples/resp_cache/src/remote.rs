//! Requests of one connection for keys of other cores.

use std::collections::VecDeque;

use bytes::BytesMut;
use tokio::sync::oneshot;

use crate::core::{Core, Message, Replies, SHUT_DOWN};
use crate::protocol::{Args, Proto, Reply, encode_request, integer};

/// The most requests of one connection that wait to be sent to other cores, and the most bytes of
/// them.
const REQUESTS_MAX: usize = 1 << 10;
const REQUEST_BYTES: usize = 1 << 20;

/// The next of the replies to a client.
#[derive(Debug)]
pub(crate) enum Next {
    /// Replies of this core.
    Here(BytesMut),
    /// The reply of another core.
    Reply(usize),
    /// None: the integer reply of a core is added to the total of its command.
    Add(usize),
    /// The total of a command: this number, and those that cores have replied.
    Total(i64),
}

/// The requests of one connection for keys of other cores, and the replies that have come.
///
/// Where a reply is missing, the replies behind it are held back until a further message has
/// brought it. So a connection holds, for each core, no more than a message of replies and one
/// value, however long its pipeline is.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The encoded requests that were not executed, by core.
    requests: Vec<BytesMut>,
    /// The bytes of the requests that were not sent.
    bytes: usize,
    /// The replies that have come and are not written, by core.
    arrived: Vec<Replies>,
    /// The replies that are held back, from the first that is missing on.
    next: VecDeque<Next>,
    /// The bytes of the replies of this core among them.
    pub(crate) held: usize,
    /// The integers that cores have replied for the command whose total comes next.
    total: i64,
}

impl Remote {
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            requests: vec![BytesMut::new(); cores],
            bytes: 0,
            arrived: std::iter::repeat_with(Replies::default).take(cores).collect(),
            next: VecDeque::new(),
            held: 0,
            total: 0,
        }
    }

    /// Adds a request to another core, whose reply comes next behind `out`.
    pub(crate) fn push(&mut self, core: usize, args: Args<'_>, next: Next, out: &mut BytesMut) {
        let before = self.requests[core].len();
        encode_request(&mut self.requests[core], args);
        self.bytes += self.requests[core].len() - before;
        self.hold(next, out);
    }

    /// Whether the requests are to be sent now, as they are many.
    pub(crate) fn is_full(&self) -> bool {
        self.next.len() >= REQUESTS_MAX || self.bytes >= REQUEST_BYTES
    }

    /// Replies with the total of a command: `count`, and what its requests to other cores add.
    pub(crate) fn push_total(&mut self, count: i64, proto: Proto, out: &mut BytesMut) {
        if self.is_resolved() {
            let total = count + std::mem::take(&mut self.total);
            Reply { out, proto }.integer(total);
        } else {
            self.hold(Next::Total(count), out);
        }
    }

    fn hold(&mut self, next: Next, out: &mut BytesMut) {
        if !out.is_empty() {
            self.held += out.len();
            self.next.push_back(Next::Here(out.split()));
        }
        self.next.push_back(next);
    }

    /// Whether no reply is missing.
    pub(crate) fn is_resolved(&self) -> bool {
        self.next.is_empty()
    }

    /// The bytes of requests and replies.
    pub(crate) fn memory(&self) -> usize {
        let requests: usize = self.requests.iter().map(BytesMut::capacity).sum();
        let replies: usize = self.arrived.iter().map(|replies| replies.bytes).sum();
        requests + replies + self.held
    }

    /// Sends the requests, waits for replies, and appends to `out` all up to the first that is
    /// missing. If one is missing, `out` is to be written and emptied, and this called again.
    pub(crate) async fn resolve(
        &mut self,
        core: &Core,
        proto: Proto,
        out: &mut BytesMut,
    ) -> Result<(), &'static str> {
        self.bytes = 0;
        let mut waiting = Vec::new();
        for (to, requests) in self.requests.iter_mut().enumerate() {
            if self.arrived[to].each.is_empty() && !requests.is_empty() {
                let (reply, replies) = oneshot::channel();
                let requests = std::mem::take(requests);
                core.send(to, Message::Requests { requests, proto, reply })?;
                waiting.push((to, replies));
            }
        }
        for (from, replies) in waiting {
            let mut replies = replies.await.map_err(|_| SHUT_DOWN)?;
            self.requests[from] = std::mem::take(&mut replies.rest);
            self.arrived[from] = replies;
        }
        let behind = out.split();
        while let Some(next) = self.next.pop_front() {
            match next {
                Next::Here(replies) => {
                    self.held -= replies.len();
                    out.unsplit(replies);
                }
                Next::Total(count) => {
                    Reply { out, proto }.integer(count + std::mem::take(&mut self.total));
                }
                Next::Reply(core) | Next::Add(core) => {
                    let Some(reply) = self.arrived[core].each.pop_front() else {
                        self.next.push_front(next);
                        break;
                    };
                    if let Next::Reply(_) = next {
                        out.extend_from_slice(&reply);
                    } else {
                        let digits =
                            reply.strip_prefix(b":").and_then(|it| it.strip_suffix(b"\r\n"));
                        self.total += digits.and_then(integer).expect("a count is an integer");
                    }
                }
            }
        }
        for replies in self.arrived.iter_mut().filter(|replies| replies.each.is_empty()) {
            *replies = Replies::default();
        }
        if self.is_resolved() {
            out.unsplit(behind);
        } else if !behind.is_empty() {
            self.held += behind.len();
            self.next.push_back(Next::Here(behind));
        }
        Ok(())
    }
}

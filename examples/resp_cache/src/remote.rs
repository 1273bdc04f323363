//! Requests for keys of other cores.

use bytes::{Bytes, BytesMut};
use corewheel::Timers;
use tokio::sync::oneshot;

use crate::core::{Core, Message, Replies};
use crate::notify::Event;
use crate::protocol::{Proto, Reply, encode_request, integer_of, split_array};
use crate::session::Session;

/// The most requests of one connection that wait for other cores.
const WINDOW_MAX: usize = 1 << 10;
/// After replies of more bytes than these, fewer requests are sent at a time.
const REPLIES_MAX: usize = 1 << 20;

/// The core that has a key has ended, as the server is shut down.
#[derive(Debug)]
pub(crate) struct CoreEnded;

/// The requests of one connection that wait to be sent to other cores.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The encoded requests, by core.
    requests: Vec<Vec<u8>>,
    /// Where each reply belongs among the replies of the connection, and the core that gives it.
    places: Vec<(usize, usize)>,
    /// How many requests may wait: it grows by small replies and shrinks by large ones, so that the
    /// replies of a long pipeline do not fill the memory.
    window: usize,
}

impl Remote {
    pub(crate) fn new(cores: usize) -> Self {
        Self { requests: vec![Vec::new(); cores], places: Vec::new(), window: 16 }
    }

    /// Adds a request whose reply belongs at `at`. True if the requests are to be sent now.
    pub(crate) fn push<'a>(
        &mut self,
        core: usize,
        args: impl Iterator<Item = &'a [u8]> + Clone,
        at: usize,
    ) -> bool {
        encode_request(&mut self.requests[core], args);
        self.places.push((at, core));
        self.places.len() >= self.window
    }

    /// Sends the requests, waits for the replies, and puts them in their places.
    pub(crate) async fn resolve(
        &mut self,
        session: &Session,
        out: &mut BytesMut,
    ) -> Result<(), CoreEnded> {
        if self.places.is_empty() {
            return Ok(());
        }
        let core = &session.core;
        core.publish_events();
        let mut waiting = Vec::with_capacity(self.requests.len());
        for (to, requests) in self.requests.iter_mut().enumerate() {
            waiting.push(if requests.is_empty() {
                None
            } else {
                Some(send(core, to, std::mem::take(requests), session.proto).await?)
            });
        }
        let mut replies = Vec::with_capacity(waiting.len());
        for reply in waiting {
            replies.push(match reply {
                Some(reply) => reply.await.map_err(|_| CoreEnded)?,
                None => Replies::default(),
            });
        }
        let total: usize = replies.iter().map(|replies| replies.bytes.len()).sum();
        let mut spliced = BytesMut::with_capacity(out.len() + total);
        let (mut copied, mut next) = (0, vec![0_usize; replies.len()]);
        for (at, core) in self.places.drain(..) {
            spliced.extend_from_slice(&out[copied..at]);
            copied = at;
            let Replies { bytes, ends } = &replies[core];
            let begin = next[core].checked_sub(1).map_or(0, |before| ends[before]);
            spliced.extend_from_slice(&bytes[begin..ends[next[core]]]);
            next[core] += 1;
        }
        spliced.extend_from_slice(&out[copied..]);
        *out = spliced;
        let window = if total > REPLIES_MAX { self.window / 8 } else { self.window * 2 };
        self.window = window.clamp(1, WINDOW_MAX);
        Ok(())
    }
}

async fn send(
    core: &Core,
    to: usize,
    requests: Vec<u8>,
    proto: Proto,
) -> Result<oneshot::Receiver<Replies>, CoreEnded> {
    let (reply, replies) = oneshot::channel();
    let is_sent = core.send(to, Message::Requests { requests, proto, reply }).await;
    if is_sent { Ok(replies) } else { Err(CoreEnded) }
}

/// Executes a request on each core, and returns the replies of those whose request has words.
pub(crate) async fn gather(
    core: &Core,
    timers: &Timers<u32>,
    proto: Proto,
    parts: &[Vec<&[u8]>],
) -> Result<Vec<BytesMut>, CoreEnded> {
    let mut waiting = Vec::with_capacity(parts.len());
    let mut replies = Vec::with_capacity(parts.len());
    for (to, words) in parts.iter().enumerate().filter(|(_, words)| !words.is_empty()) {
        let mut request = Vec::new();
        encode_request(&mut request, words.iter().copied());
        if to == core.index {
            replies.push(core.run_all(timers, proto, &request).bytes);
        } else {
            waiting.push(send(core, to, request, proto).await?);
        }
    }
    for reply in waiting {
        replies.push(reply.await.map_err(|_| CoreEnded)?.bytes);
    }
    Ok(replies)
}

/// Publishes a message on all cores, and returns how many subscribers it has reached.
pub(crate) async fn publish(core: &Core, channel: &[u8], message: &[u8]) -> Result<i64, CoreEnded> {
    let channel = Bytes::copy_from_slice(channel);
    let event = Event { channel, message: Bytes::copy_from_slice(message) };
    let mut count = core.registry.borrow().publish(&event);
    for to in (0..core.shared.cores()).filter(|to| *to != core.index) {
        if core.shared.gauges[to].subscribers.get() == 0 {
            continue;
        }
        let (reply, reached) = oneshot::channel();
        if !core.send(to, Message::Publish { event: event.clone(), reply }).await {
            return Err(CoreEnded);
        }
        count += reached.await.map_err(|_| CoreEnded)?;
    }
    Ok(count)
}

/// How the replies of several cores become one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Combine {
    /// The sum of integers.
    Sum,
    /// The first refusal, or OK.
    Ok,
    /// One array of all values.
    Join,
}

impl Combine {
    /// Writes the reply. A refusal of any core is the reply.
    pub(crate) fn write(self, replies: &[BytesMut], reply: &mut Reply<'_>) {
        if let Some(refusal) = replies.iter().find(|part| part.starts_with(b"-")) {
            reply.out.extend_from_slice(refusal);
            return;
        }
        match self {
            Self::Sum => reply.integer(replies.iter().filter_map(|part| integer_of(part)).sum()),
            Self::Ok => reply.ok(),
            Self::Join => {
                let parts = || replies.iter().filter_map(|part| split_array(part));
                reply.array(parts().map(|(count, _)| count).sum());
                parts().for_each(|(_, values)| reply.out.extend_from_slice(values));
            }
        }
    }
}

//! Requests for keys of other cores.

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

use crate::core::{Asked, Core, CoreEnded, Message, Replies};
use crate::notify::Event;
use crate::protocol::{Args, Proto, Reply, encode_request, integer_of, split_array};
use crate::session::Session;

/// The most requests of one connection that wait for other cores.
const WINDOW_MAX: usize = 1 << 10;
/// After replies of more bytes than these, fewer requests are sent at a time.
const REPLIES_MAX: usize = 1 << 20;

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
    pub(crate) fn push(&mut self, core: usize, args: Args<'_>, at: usize) -> bool {
        encode_request(&mut self.requests[core], args);
        self.places.push((at, core));
        self.places.len() >= self.window
    }

    /// Sends the requests, waits for the replies, and puts them in their places.
    pub(crate) async fn resolve(&mut self, session: &Session, out: &mut BytesMut) -> Asked {
        if self.places.is_empty() {
            return Ok(());
        }
        session.core.publish_events();
        let requests = self.requests.iter_mut().map(std::mem::take);
        let replies = exchange(&session.core, session.proto, requests).await?;
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

/// Has each core execute its requests, and returns the replies of each.
async fn exchange(
    core: &Core,
    proto: Proto,
    requests: impl Iterator<Item = Vec<u8>>,
) -> Asked<Vec<Replies>> {
    let mut waiting = Vec::new();
    for (to, requests) in requests.enumerate() {
        let (reply, replies) = oneshot::channel();
        if requests.is_empty() {
            let _ = reply.send(Replies::default());
        } else {
            core.send(to, Message::Requests { requests, proto, reply }).await?;
        }
        waiting.push(replies);
    }
    let mut all = Vec::with_capacity(waiting.len());
    for replies in waiting {
        all.push(replies.await.map_err(|_| CoreEnded)?);
    }
    Ok(all)
}

/// Has each core execute a request, and returns the replies of those whose request has words.
pub(crate) async fn gather(core: &Core, parts: &[Vec<&[u8]>]) -> Asked<Vec<BytesMut>> {
    let requests = parts.iter().map(|words| {
        let mut request = Vec::new();
        if !words.is_empty() {
            encode_request(&mut request, words);
        }
        request
    });
    // The cores reply in the same way to all, so that the replies can be combined.
    let replies = exchange(core, Proto::Resp2, requests).await?;
    Ok(replies.into_iter().map(|of| of.bytes).filter(|bytes| !bytes.is_empty()).collect())
}

/// Publishes a message on all cores, and returns how many subscribers it has reached.
pub(crate) async fn publish(core: &Core, channel: &[u8], message: &[u8]) -> Asked<i64> {
    let channel = Bytes::copy_from_slice(channel);
    let event = Event { channel, message: Bytes::copy_from_slice(message) };
    let mut count = core.registry.borrow().publish(&event);
    let has_subscribers = |to: &usize| core.shared.gauges[*to].subscribers.get() > 0;
    for to in (0..core.shared.cores()).filter(|to| *to != core.index).filter(has_subscribers) {
        let (reply, reached) = oneshot::channel();
        core.send(to, Message::Publish { event: event.clone(), reply }).await?;
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

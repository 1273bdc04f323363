//! Requests for keys of other cores.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use tokio::sync::oneshot;

use crate::core::{Asked, Core, CoreEnded, Message, Most, Replies};
use crate::notify::Event;
use crate::protocol::{Args, Proto, Reply, encode_request, integer_of, split_array};
use crate::session::Session;

/// The most requests of one connection that wait to be sent to other cores, and the most bytes of
/// them.
const REQUESTS_MAX: usize = 1 << 10;
const REQUEST_BYTES: usize = 1 << 20;
/// A core that has written so many bytes of replies leaves the other requests for the next message.
pub(crate) const REPLY_BYTES: usize = 256 << 10;

/// The requests of one connection for keys of other cores, and the replies that have come.
///
/// The replies take their places among those of this core. Where one is missing, what comes behind
/// it is held back until a further message has brought it. So a connection holds, for each core, no
/// more than [`REPLY_BYTES`] and one value, however long its pipeline is.
#[derive(Debug)]
pub(crate) struct Remote {
    /// The encoded requests that were not executed, by core.
    requests: Vec<Vec<u8>>,
    /// The bytes of the requests that were not sent.
    bytes: usize,
    /// The replies that have not taken their places, by core.
    arrived: Vec<Arrived>,
    /// Where each missing reply belongs among those that are held back, and the core that gives it.
    places: VecDeque<(usize, usize)>,
    /// Replies of this core, behind the first missing one.
    held: BytesMut,
}

/// Replies of one core, of which the first `next` have taken their places.
#[derive(Debug, Default)]
struct Arrived {
    replies: Replies,
    next: usize,
}

impl Arrived {
    fn is_used_up(&self) -> bool {
        self.next == self.replies.ends.len()
    }

    fn take(&mut self) -> Option<&[u8]> {
        let end = *self.replies.ends.get(self.next)?;
        let begin = self.next.checked_sub(1).map_or(0, |before| self.replies.ends[before]);
        self.next += 1;
        Some(&self.replies.bytes[begin..end])
    }
}

impl Remote {
    pub(crate) fn new(cores: usize) -> Self {
        Self {
            requests: vec![Vec::new(); cores],
            bytes: 0,
            arrived: std::iter::repeat_with(Arrived::default).take(cores).collect(),
            places: VecDeque::new(),
            held: BytesMut::new(),
        }
    }

    /// Adds a request whose reply belongs at `at`. True if the requests are to be sent now.
    pub(crate) fn push(&mut self, core: usize, args: Args<'_>, at: usize) -> bool {
        let before = self.requests[core].len();
        encode_request(&mut self.requests[core], args);
        self.bytes += self.requests[core].len() - before;
        self.places.push_back((at, core));
        self.places.len() >= REQUESTS_MAX || self.bytes >= REQUEST_BYTES
    }

    /// Whether no reply is missing.
    pub(crate) fn is_resolved(&self) -> bool {
        self.places.is_empty()
    }

    /// The bytes of requests and replies.
    pub(crate) fn memory(&self) -> usize {
        let requests: usize = self.requests.iter().map(Vec::capacity).sum();
        let replies = self.arrived.iter().map(|arrived| arrived.replies.bytes.capacity());
        requests + replies.sum::<usize>() + self.held.capacity()
    }

    /// Sends the requests, waits for replies, and puts them in their places in `out`, up to the
    /// first that is missing. If one is missing, `out` is to be written and emptied, and this
    /// called again.
    pub(crate) async fn resolve(&mut self, session: &Session, out: &mut BytesMut) -> Asked {
        session.core.publish_events();
        self.bytes = 0;
        let requests = self.requests.iter_mut().zip(&self.arrived);
        let requests =
            requests.map(
                |(requests, arrived)| {
                    if arrived.is_used_up() { std::mem::take(requests) } else { Vec::new() }
                },
            );
        let most = Most::Pause(REPLY_BYTES);
        let came = exchange(&session.core, session.proto, requests, most).await?;
        for (core, mut replies) in came.into_iter().enumerate() {
            if !replies.ends.is_empty() {
                self.requests[core] = std::mem::take(&mut replies.rest);
                self.arrived[core] = Arrived { replies, next: 0 };
            }
        }
        // While a reply is missing, `out` is empty; before, nothing is held back.
        self.held.unsplit(std::mem::take(out));
        let mut taken = 0;
        while let Some((at, core)) = self.places.front().copied()
            && let Some(reply) = self.arrived[core].take()
        {
            out.extend_from_slice(&self.held[taken..at]);
            out.extend_from_slice(reply);
            taken = at;
            self.places.pop_front();
        }
        let used_up = self.arrived.iter_mut().filter(|arrived| arrived.is_used_up());
        used_up.for_each(|arrived| *arrived = Arrived::default());
        if self.is_resolved() {
            out.extend_from_slice(&self.held[taken..]);
            self.held = BytesMut::new();
        } else {
            let _in_their_places = self.held.split_to(taken);
            self.places.iter_mut().for_each(|(at, _)| *at -= taken);
        }
        Ok(())
    }
}

/// Has each core execute its requests, and returns the replies of each, and the requests that are
/// left.
async fn exchange(
    core: &Core,
    proto: Proto,
    requests: impl Iterator<Item = Vec<u8>>,
    most: Most,
) -> Asked<Vec<Replies>> {
    let mut waiting = Vec::new();
    for (to, requests) in requests.enumerate() {
        let (reply, replies) = oneshot::channel();
        if requests.is_empty() {
            let _ = reply.send(Replies::default());
        } else {
            core.send(to, Message::Requests { requests, proto, most, reply }).await?;
        }
        waiting.push(replies);
    }
    let mut all = Vec::with_capacity(waiting.len());
    for replies in waiting {
        all.push(replies.await.map_err(|_| CoreEnded)?);
    }
    Ok(all)
}

/// Has one core execute requests, and no others of any client between them.
pub(crate) async fn exchange_with(
    core: &Core,
    to: usize,
    proto: Proto,
    requests: Vec<u8>,
) -> Asked<Replies> {
    let mut requests = Some(requests);
    let by_core = (0..=to).map(|at| requests.take_if(|_| at == to).unwrap_or_default());
    let most = Most::Replace(core.shared.limits().replies);
    let mut replies = exchange(core, proto, by_core, most).await?;
    Ok(replies.pop().unwrap_or_default())
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
    let most = Most::Pause(usize::MAX);
    let replies = exchange(core, Proto::Resp2, requests, most).await?;
    Ok(replies.into_iter().map(|of| of.bytes).filter(|bytes| !bytes.is_empty()).collect())
}

/// Publishes a message on all cores, and returns how many subscribers it has reached.
pub(crate) async fn publish(core: &Core, channel: &[u8], message: &[u8]) -> Asked<i64> {
    let channel = Bytes::copy_from_slice(channel);
    let event = Event { channel, message: Bytes::copy_from_slice(message) };
    let mut count = core.publish(&event);
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

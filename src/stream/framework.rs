//! What an adapter of an HTTP library tells the stream below it, beside what each owner says.
//!
//! The module's documentation lists the calls in their order. `TimedHttp` of the package
//! `corewheel-http` makes them for hyper.
//!
//! Why no guard for a request here, as [`StreamControl::begin_request`] has: a request and its
//! response end on any thread, also on a shard, and a guard stays with the side of its stream. An
//! adapter has a guard of its own for each piece of a response.
//!
//! Cost: that of what is called.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Instant;

use super::control::{Shared, StreamControl};
use super::proof::Proof;
use crate::conn::{Direction, Side};
use crate::face::handle::AnyHandle;
use crate::pass::{Pass, Spawner};

/// For an adapter of an HTTP library: see
/// [below an HTTP library](crate::stream#below-an-http-library).
impl<M: Side> StreamControl<M> {
    /// A handle of the stream's service, for timers beside that of the connection. That of a stream
    /// on a shard names the shard.
    pub fn handle(&self) -> AnyHandle {
        self.shared.handle
    }

    /// As [`message_complete`](Self::message_complete), for a message that ends with an empty line,
    /// as a head without a body and a body in chunks do: bytes that were read behind it begin the
    /// next message.
    pub fn message_ends_with_line(&self) {
        self.complete_message(self.shared.behind.is_behind_line());
    }

    /// As [`message_complete`](Self::message_complete), for a message that ends with the first
    /// `end` bytes of the stream: bytes that were read behind it begin the next message. A body of
    /// a stated length ends so many bytes after [`take_head_end`](Self::take_head_end).
    pub fn message_ends_at(&self, end: u64) {
        self.complete_message(self.shared.behind.is_behind(end));
    }

    /// How many bytes of the stream there are up to the end of the last head, counted from the
    /// first byte; `None` if that is not known, or if another call has returned it.
    ///
    /// The end is searched for in what each read of a message's head has brought, so it is called
    /// when a head is complete. It is not known of a head that came in one read with the message
    /// before, nor of a stream with hyper's traits.
    #[inline]
    pub fn take_head_end(&self) -> Option<u64> {
        self.shared.behind.take_head_end()
    }

    /// Begins a request, as [`begin_request`](Self::begin_request) does, without a guard. One of
    /// [`release_request`](Self::release_request),
    /// [`end_request_at_flush`](Self::end_request_at_flush),
    /// [`end_request_at_write`](Self::end_request_at_write) and [`SharedControl::end_request`] ends
    /// it, once. One that is not ended holds the idle times back for ever.
    pub fn hold_request(&self) {
        self.timers.hold_request();
    }

    /// Ends a request that is [held](Self::hold_request) at once: it has no response, or its
    /// response is broken off.
    ///
    /// # Panics
    ///
    /// No request is held.
    pub fn release_request(&self) {
        self.timers.end_requests(1, None);
    }

    /// Ends a request whose response the library has taken to its end, with the next flush: the
    /// library flushes in the same poll of its task, as one of HTTP/1 does. Or with the next read
    /// that waits while no write does, as a library that has more to answer may flush later. Where
    /// no limit [bounds a write](Self::bounds_writes), it ends at once: then idle times alone bound
    /// the peer.
    ///
    /// While the library keeps [pieces](Self::begin_piece), a flush does not show what was
    /// written. So an adapter that makes pieces calls this when the last of the response is
    /// written.
    ///
    /// # Panics
    ///
    /// No request is held, now or where it ends.
    pub fn end_request_at_flush(&self) {
        if self.bounds_writes() {
            self.shared.unsent.end_at_flush();
        } else {
            self.timers.end_requests(1, None);
        }
    }

    /// As [`end_request_at_flush`](Self::end_request_at_flush), but the request ends with the
    /// writes that wait: the library has written all of the response before.
    ///
    /// # Panics
    ///
    /// No request is held, now or where it ends.
    pub fn end_request_at_write(&self) {
        if !(self.bounds_writes() && self.shared.unsent.end_at_write()) {
            self.timers.end_requests(1, None);
        }
    }

    /// A stream of HTTP/2 has become a tunnel: the response to a CONNECT succeeds. Until both sides
    /// have ended the stream, its data counts as a request that ends at that moment, for
    /// [`request_idle`](super::StreamLimits::request_idle).
    pub fn begin_tunnel(&self) {
        self.shared.streams.begin_tunnel();
    }

    /// Whether a [tunnel](Self::begin_tunnel) is open, by the frames that were read and written. It
    /// is until no stream of the connection is: the end of a tunnel beside requests in progress
    /// shows with theirs. A stream with hyper's traits, or below TLS, does not know of any.
    pub fn has_tunnel(&self) -> bool {
        self.shared.streams.has_tunnel()
    }

    /// Whether a limit bounds a write that waits:
    /// [`write_stall`](super::StreamLimits::write_stall) or
    /// [`min_write_rate`](super::StreamLimits::min_write_rate). Without one, pieces change nothing.
    pub fn bounds_writes(&self) -> bool {
        self.timers.bounds_writes()
    }

    /// The library has a part of a response, which it may keep for long: that of an HTTP/2 stream
    /// for which the peer has given no window. While it does, until
    /// [`end_piece`](Self::end_piece), the peer has a stalled write, and only bytes that are
    /// [taken](Self::take_piece) of pieces end the stall.
    pub fn begin_piece(&self) {
        if self.shared.unsent.add_piece() {
            self.shared.wake_waiting(Direction::Read);
        }
    }

    /// The library has written or copied so many bytes of a piece.
    #[inline]
    pub fn take_piece(&self, bytes: usize) {
        self.shared.unsent.take(bytes as u64);
    }

    /// The library has written or copied the rest of a piece, or has forgotten it. `is_taken` says
    /// that all of its bytes were taken: then this is called in the same poll, before the library
    /// flushes.
    pub fn end_piece(&self, is_taken: bool) {
        // A library that has forgotten a part may not flush.
        if self.shared.unsent.remove_piece() && !is_taken {
            self.shared.wake_waiting(Direction::Write);
        }
    }

    /// What any thread uses of this control. Its decisions are made in the tokio runtime that the
    /// calling thread is in, so it is called in the task of the connection.
    pub fn shared(&self) -> SharedControl {
        SharedControl { stream: Arc::clone(&self.shared), spawner: Spawner::present() }
    }
}

/// What any thread uses of a [`StreamControl`], also of a stream that stays on a shard; made by
/// [`StreamControl::shared`]. It is for bodies that are consumed, and end, on other threads than
/// that of their connection.
#[derive(Clone)]
pub struct SharedControl {
    stream: Arc<Shared>,
    spawner: Spawner,
}

impl SharedControl {
    /// Calls a function once, for a deadline that has passed at `due`, of something that another
    /// task waits for: the body of a request. Before the call, the stream was read to its end, and
    /// the calling task has waited for two turns. So the function finds what lay in the socket at
    /// the deadline with the library, and decides about the rest. A task that the read has woken
    /// had its turn, too, unless another worker of the runtime is about to run it: see
    /// [`has_moved_since`](Self::has_moved_since).
    ///
    /// A task of the tokio runtime in which [`shared`](StreamControl::shared) was called proves
    /// that and calls the function. If the runtime shuts down before, the thread calls it that
    /// drops the task. The calling thread does so at once, without a proof, where it was no such
    /// runtime, without the feature `tokio`, and where a test moves the clock of the service:
    /// that test decides itself what is in time. In a simulation with sockets there is a proof.
    ///
    /// # Cost
    ///
    /// A task, and a pass of the runtime over its sockets, which all that are asked for at the same
    /// time share.
    pub fn decide(&self, due: Instant, decision: impl FnOnce() + Send + 'static) {
        let decision = Decision(Some(decision));
        let clock = self.stream.handle.clock();
        if !clock.is_manual() || self.spawner.is_simulated() {
            let mut proof = Proof::new(Arc::clone(&self.stream), clock.nanos_at(due));
            self.spawner.spawn(async move {
                let mut pass = Pass::NONE;
                poll_fn(|cx| proof.poll(&mut pass, cx)).await;
                drop(decision);
            });
        }
    }

    /// Whether the stream has read bytes, or has written such as had to wait, at or after a time.
    /// Then the task of another worker may be about to take what has come, as a response takes its
    /// window, and no proof says when it has. So a decision about it waits a little longer.
    ///
    /// Of reads in a row without a wait, it knows one in eight. On a shard, it says so for a few
    /// ticks longer.
    pub fn has_moved_since(&self, at: Instant) -> bool {
        self.stream.has_moved_since(self.stream.handle.clock().nanos_at(at))
    }

    /// Until when the server itself has last kept the client of an HTTP/2 connection from sending:
    /// its window for the connection was used up. That is now if it is. A request waits for that
    /// without a fault of its client, where the body of another one is not consumed. `None` if it
    /// never was, and of a stream with hyper's traits, or below TLS.
    ///
    /// Not since when: a server that was held up has read the last bytes of the window late.
    pub fn window_shut_until(&self) -> Option<Instant> {
        let until = self.stream.streams.shut_until(|| self.stream.handle.nanos())?;
        Some(self.stream.handle.clock().instant(until))
    }

    /// Ends a request that is [held](StreamControl::hold_request) and whose response was cut, where
    /// no poll of the library's does that: the task that reads the stream ends it, in its next
    /// poll, and is woken.
    pub fn end_request(&self) {
        self.stream.unsent.end_at_flush();
        self.stream.wake_waiting(Direction::Read);
    }
}

debug_fields!([] SharedControl, |it| limit_reached: it.stream.timeout.get());

/// A function that is called when this is dropped.
struct Decision<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Decision<F> {
    fn drop(&mut self) {
        if let Some(decide) = self.0.take() {
            decide();
        }
    }
}

/// On any thread, also for a stream on a shard.
const _: () = {
    const fn is_shared<T: Send + Sync + Unpin + 'static>() {}
    is_shared::<SharedControl>();
};

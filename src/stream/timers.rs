//! The two kinds of connection timers, as a stream uses them.

use std::fmt;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock::when::When;
use crate::conn::{
    ConnEvent, ConnLimits, ConnTimers, DeadlineKind, InProgress, SharedConnTimers,
    SharedInProgress, SharedTransfer, Transfer,
};
use crate::values::refused::RefusedKind;

/// The connection timers of a [`TimedIo`](super::TimedIo): [`SharedConnTimers`], for tasks on any
/// thread, or [`ConnTimers`], for a task that stays on the thread of a shard.
///
/// No other type can implement it.
pub trait StreamTimers: Sealed {}

impl StreamTimers for SharedConnTimers {}
impl StreamTimers for ConnTimers {}

/// What a stream does with its timers.
pub trait Sealed: Clone + fmt::Debug + 'static {
    /// A write or a request that is in progress.
    type InProgress: fmt::Debug;
    /// A read or a write whose rate is measured.
    type Transfer: Measured;

    fn touch_read(&self);
    /// Touches, and returns the present in nanoseconds since the clock's epoch, or a little later.
    fn touch_read_now(&self) -> u64;
    fn touch_write(&self);
    fn begin_request(&self) -> Self::InProgress;
    fn limits(&self) -> ConnLimits;
    fn close(&self);
    /// Disarms a deadline that comes once.
    fn disarm(&self, kind: DeadlineKind);

    /// When a time is, in nanoseconds since the clock's epoch.
    fn nanos_of(&self, when: impl When) -> u64;
    /// Arms a deadline that comes once. The caller polls for events before it waits.
    fn arm(&self, kind: DeadlineKind, due: u64);
    /// A write waits. The caller polls for events before it waits.
    fn begin_write(&self) -> Self::InProgress;
    /// A read waits that is measured. The caller polls for events before it waits.
    fn begin_measured_read(&self) -> Self::Transfer;
    /// A write waits that is measured. The caller polls for events before it waits.
    fn begin_measured_write(&self) -> Self::Transfer;
    /// False if the time of the write was up before.
    fn end_write(&self, write: Self::InProgress) -> bool;
    /// Polls for the next event of the wanted kinds; `Closed` if the connection is closed.
    fn poll_kinds(
        &self,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Result<ConnEvent, RefusedKind>>;

    /// Begins a poll of the stream. Pending if the task must return to its executor first.
    fn begin_poll(&self, is_first: bool, cx: &Context<'_>) -> Poll<()>;
    fn note_ready(&self, is_first: bool, is_ready: bool);
}

/// What a stream does with a transfer.
pub trait Measured {
    fn add(&self, bytes: usize);
    fn pause(&self);
    /// The caller polls for events before it waits.
    fn resume(&self);
}

impl Measured for SharedTransfer {
    fn add(&self, bytes: usize) {
        self.add(bytes as u64);
    }

    fn pause(&self) {
        self.pause();
    }

    fn resume(&self) {
        self.resume_unwoken();
    }
}

impl Measured for Transfer {
    fn add(&self, bytes: usize) {
        self.add(bytes as u64);
    }

    fn pause(&self) {
        self.pause();
    }

    fn resume(&self) {
        self.resume();
    }
}

impl Sealed for SharedConnTimers {
    type InProgress = SharedInProgress;
    type Transfer = SharedTransfer;

    #[inline]
    fn touch_read(&self) {
        self.touch_read();
    }

    #[inline]
    fn touch_read_now(&self) -> u64 {
        self.touch_read_now()
    }

    #[inline]
    fn touch_write(&self) {
        self.touch_write();
    }

    fn begin_request(&self) -> SharedInProgress {
        self.begin_request()
    }

    fn limits(&self) -> ConnLimits {
        self.limits()
    }

    fn close(&self) {
        self.close();
    }

    fn disarm(&self, kind: DeadlineKind) {
        // An error says that the connection is closed, so nothing is armed.
        let _ = self.disarm(kind);
    }

    fn nanos_of(&self, when: impl When) -> u64 {
        self.nanos_of(when)
    }

    fn arm(&self, kind: DeadlineKind, due: u64) {
        // An error says that the connection is closed, which the next poll finds out.
        let _ = self.arm_unwoken(kind, due);
    }

    fn begin_write(&self) -> SharedInProgress {
        self.begin_write_unwoken()
    }

    fn begin_measured_read(&self) -> SharedTransfer {
        self.begin_measured_read_unwoken()
    }

    fn begin_measured_write(&self) -> SharedTransfer {
        self.begin_measured_write_unwoken()
    }

    fn end_write(&self, write: SharedInProgress) -> bool {
        write.finish()
    }

    fn poll_kinds(
        &self,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Result<ConnEvent, RefusedKind>> {
        self.poll_kinds(cx, wanted).map(|event| event?.ok_or(RefusedKind::Closed))
    }

    #[inline]
    fn begin_poll(&self, _: bool, _: &Context<'_>) -> Poll<()> {
        // The task's runtime has a budget of its own, and the shard another thread.
        Poll::Ready(())
    }

    #[inline]
    fn note_ready(&self, _: bool, _: bool) {}
}

impl Sealed for ConnTimers {
    type InProgress = InProgress;
    type Transfer = Transfer;

    #[inline]
    fn touch_read(&self) {
        self.touch_read();
    }

    #[inline]
    fn touch_read_now(&self) -> u64 {
        self.touch_read();
        self.nanos_of(Duration::ZERO)
    }

    #[inline]
    fn touch_write(&self) {
        self.touch_write();
    }

    fn begin_request(&self) -> InProgress {
        self.begin_request()
    }

    fn limits(&self) -> ConnLimits {
        self.limits()
    }

    fn close(&self) {
        self.close();
    }

    fn disarm(&self, kind: DeadlineKind) {
        let _ = self.disarm(kind);
    }

    fn nanos_of(&self, when: impl When) -> u64 {
        self.nanos_of(when)
    }

    fn arm(&self, kind: DeadlineKind, due: u64) {
        let _ = self.arm_at(kind, due);
    }

    fn begin_write(&self) -> InProgress {
        self.begin_write()
    }

    fn begin_measured_read(&self) -> Transfer {
        self.begin_measured_read()
    }

    fn begin_measured_write(&self) -> Transfer {
        self.begin_measured_write()
    }

    fn end_write(&self, write: InProgress) -> bool {
        write.finish()
    }

    fn poll_kinds(
        &self,
        cx: &mut Context<'_>,
        wanted: impl Fn(DeadlineKind) -> bool,
    ) -> Poll<Result<ConnEvent, RefusedKind>> {
        self.poll_kinds(cx, wanted).map(|event| event.ok_or(RefusedKind::Closed))
    }

    #[inline]
    fn begin_poll(&self, is_first: bool, cx: &Context<'_>) -> Poll<()> {
        self.begin_poll(is_first, cx)
    }

    #[inline]
    fn note_ready(&self, is_first: bool, is_ready: bool) {
        self.note_ready(is_first, is_ready);
    }
}

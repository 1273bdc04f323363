//! What a stream asks the socket below it: how much its peer has acknowledged.
//!
//! The system accepts up to 4 MB for a peer that reads nothing, and goes on to accept for a slow
//! reader when a third of that is free. So a write that waits is judged by what the peer has
//! acknowledged, and the socket is asked when a deadline of a write has passed.
//!
//! Why a function of the stream and not the socket itself: a stream owns its socket, and so does a
//! TLS library.
//!
//! Invariants: a stream without a socket is judged by what it accepts.
//!
//! Cost: a system call at each look. A write that waits is looked at four times in its limit.

#[cfg(unix)]
use std::os::fd::BorrowedFd;

use crate::conn::DataRate;

/// The time of a write that waits has so many looks.
pub(super) const LOOKS: u32 = 4;

/// The longest time for which what a peer has acknowledged in one lump lets it go without
/// progress, in nanoseconds: see [`DataRate`].
pub(super) const LUMP_MAX: u64 = DataRate::LUMP_MAX.as_nanos() as u64;

/// Where the socket of a stream is.
pub(super) struct Socket<S> {
    #[cfg(unix)]
    find: Option<fn(&S) -> Option<BorrowedFd<'_>>>,
    #[cfg(not(unix))]
    find: std::marker::PhantomData<fn(&S)>,
}

impl<S> Socket<S> {
    pub(super) const NONE: Self = Self {
        #[cfg(unix)]
        find: None,
        #[cfg(not(unix))]
        find: std::marker::PhantomData,
    };
}

#[cfg(unix)]
impl<S> Socket<S> {
    pub(super) fn new(find: fn(&S) -> Option<BorrowedFd<'_>>) -> Self {
        Self { find: Some(find) }
    }

    pub(super) fn acknowledged(&self, stream: &S) -> Option<u64> {
        crate::conn::acknowledged_bytes(&self.find?(stream)?)
    }

    /// The close of the socket resets the connection.
    pub(super) fn reset(&self, stream: &S) {
        if let Some(socket) = self.find.and_then(|find| find(stream)) {
            crate::conn::reset_at_close(&socket);
        }
    }
}

#[cfg(not(unix))]
impl<S> Socket<S> {
    pub(super) fn acknowledged(&self, _stream: &S) -> Option<u64> {
        let Self { find: std::marker::PhantomData } = self;
        None
    }

    pub(super) fn reset(&self, _stream: &S) {
        let Self { find: std::marker::PhantomData } = self;
    }
}

/// What is known of the peer of a stream with a socket.
pub(super) struct Acknowledged {
    /// The bytes that it had acknowledged at the last look.
    pub(super) bytes: u64,
    /// When a look last found progress, or when the present wait began, whichever is later; in
    /// nanoseconds.
    pub(super) progress_at: u64,
    /// Whether nothing was acknowledged for the whole limit, as of the last look.
    pub(super) is_late: bool,
    /// Whether the write that is polled has looked.
    pub(super) has_looked: bool,
}

impl Acknowledged {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, progress_at: 0, is_late: false, has_looked: false }
    }

    /// A wait begins.
    pub(super) fn begin(&mut self, now: u64) {
        (self.progress_at, self.is_late) = (now, false);
    }

    /// Looks at the socket at `now`. Returns how many bytes were acknowledged since the last look.
    /// `limit` is the time without progress, in nanoseconds.
    pub(super) fn look(&mut self, bytes: u64, now: u64, limit: u64) -> u64 {
        let newly = bytes.saturating_sub(self.bytes);
        self.bytes = bytes;
        self.has_looked = true;
        if newly > 0 {
            self.progress_at = now;
        }
        self.is_late = now.saturating_sub(self.progress_at) >= limit;
        newly
    }
}

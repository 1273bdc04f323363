//! The descriptor of a barrier: an eventfd on Linux, elsewhere a pair of sockets.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::coop::unconstrained;

#[cfg(target_os = "linux")]
use self::event as end;
#[cfg(not(target_os = "linux"))]
use self::pair as end;

/// A descriptor that is registered with the reactor of a runtime. A write makes it readable.
pub(super) struct Descriptor(AsyncFd<end::End>);

impl Descriptor {
    /// A descriptor in the runtime that the calling thread is in.
    ///
    /// # Panics
    ///
    /// The runtime is without I/O.
    #[allow(
        deprecated,
        reason = "the new function is unsafe, for types that do not own their descriptor"
    )]
    pub(super) fn new() -> io::Result<Self> {
        AsyncFd::with_interest(end::new()?, Interest::READABLE).map(Self)
    }

    pub(super) fn write(&self) -> io::Result<()> {
        end::write(self.0.get_ref())
    }

    /// Whether the reactor has handed out a write since the last poll that was ready. `false` if
    /// the runtime has ended.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let ready = poll_fn(|cx| {
            let ready = self.0.poll_read_ready(cx);
            ready.map(|ready| ready.map(|mut ready| ready.clear_ready()).is_ok())
        });
        // A task without a budget would find no write, and would not register the waker.
        let is_open = ready!(pin!(unconstrained(ready)).poll(cx));
        if is_open {
            end::drain(self.0.get_ref());
        }
        Poll::Ready(is_open)
    }
}

#[cfg(target_os = "linux")]
mod event {
    use std::fs::File;
    use std::io::{self, Write};
    use std::os::fd::OwnedFd;

    use nix::sys::eventfd::{EfdFlags, EventFd};

    pub(super) type End = File;

    pub(super) fn new() -> io::Result<End> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(OwnedFd::from(EventFd::from_value_and_flags(0, flags)?).into())
    }

    pub(super) fn write(mut end: &End) -> io::Result<()> {
        end.write_all(&1_u64.to_ne_bytes())
    }

    /// Each write is an event of its own, also while nothing reads the count.
    pub(super) fn drain(_end: &End) {}
}

#[cfg(not(target_os = "linux"))]
mod pair {
    use std::io::{self, Read, Write};
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::unix::net::UnixStream;

    /// The end that is registered, and the end that is written to.
    pub(super) struct End(UnixStream, UnixStream);

    impl AsRawFd for End {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_raw_fd()
        }
    }

    pub(super) fn new() -> io::Result<End> {
        let (read, written) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        written.set_nonblocking(true)?;
        Ok(End(read, written))
    }

    pub(super) fn write(end: &End) -> io::Result<()> {
        (&end.1).write_all(&[1])
    }

    /// Reads the byte of the last write, which is the only one.
    pub(super) fn drain(end: &End) {
        let _ = (&end.0).read(&mut [0; 16]);
    }
}

//! The socket of a glommio stream, while a write has borrowed the stream.
//!
//! Why by its number: a write borrows the stream exclusively, and glommio lends no descriptor. Why
//! no copy of the descriptor for each connection: it would keep the socket open, and take as many
//! descriptors again. A copy is made for each question instead, which is asked only when a limit of
//! a write has passed.
//!
//! Cost: three system calls for each question.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use corewheel::conn::PeerSocket;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// The socket of a stream, for [`ConnTimers::race_write`](corewheel::ConnTimers::race_write) with a
/// write that has borrowed the stream. It is not to be used after the end of the stream, when its
/// number may be that of another file.
///
/// Where a filter of system calls forbids `pidfd_getfd`, nothing is known, and writes are judged by
/// what the socket accepts.
///
/// ```
/// use corewheel::ConnTimers;
/// use corewheel::conn::Raced;
/// use corewheel_glommio::SocketOf;
/// use futures_lite::AsyncWriteExt;
/// use glommio::net::TcpStream;
/// use std::io;
/// use std::pin::pin;
///
/// /// Sends an answer, however long its peer takes for it.
/// async fn send(stream: &mut TcpStream, conn: &ConnTimers, answer: &[u8]) -> io::Result<()> {
///     let socket = SocketOf::new(stream);
///     let _writing = conn.begin_write();
///     match conn.race_write(&socket, pin!(stream.write_all(answer))).await {
///         Raced::Done(written) => written,
///         // The peer takes nothing. The caller drops the stream, which resets the connection.
///         Raced::Event(_) | Raced::Closed => Err(io::ErrorKind::TimedOut.into()),
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SocketOf(RawFd);

impl SocketOf {
    /// The socket of a stream.
    pub fn new(stream: &impl AsRawFd) -> Self {
        Self(stream.as_raw_fd())
    }

    fn copied(self) -> Option<OwnedFd> {
        static OWN: OnceLock<Option<OwnedFd>> = OnceLock::new();
        let own = OWN.get_or_init(|| pidfd_open(getpid(), PidfdFlags::empty()).ok());
        pidfd_getfd(own.as_ref()?, self.0, PidfdGetfdFlags::empty()).ok()
    }
}

impl PeerSocket for SocketOf {
    fn acknowledged(&self) -> Option<u64> {
        self.copied()?.acknowledged()
    }

    fn reset_at_close(&self) {
        if let Some(socket) = self.copied() {
            socket.reset_at_close();
        }
    }

    fn left(&self) -> Option<u64> {
        self.copied()?.left()
    }

    fn set_unsent_max(&self, bytes: u32) -> bool {
        self.copied().is_some_and(|socket| socket.set_unsent_max(bytes))
    }
}

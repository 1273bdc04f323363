//! The listener and the streams of a simulated network.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::executor::preempt;
use super::kernel::{Kernel, READ, READ_CLOSED, WRITE, WRITE_CLOSED, World};
use super::runtime::{give_back, here, takes_budget};
use super::witness::{Known, lock};
use crate::conn::{self, PeerSocket, Side};
use crate::stream::{self, TimedIo};

/// A listener of a simulated network; made by [`Net::listen`](super::Net::listen). It belongs to
/// the runtime whose task first accepts.
///
/// ```
/// use corewheel::sim::net::{Listener, Runtime};
/// use tokio::io::AsyncWriteExt;
///
/// /// Greets each client in a task of its own.
/// async fn serve(listener: Listener, runtime: Runtime) {
///     loop {
///         let mut stream = listener.accept().await;
///         drop(runtime.spawn(async move { stream.write_all(b"hello").await }));
///     }
/// }
/// ```
pub struct Listener {
    pub(super) world: Arc<World>,
    pub(super) address: SocketAddr,
}

impl Listener {
    /// Waits for a connection. May be dropped and called again. One task waits at a time.
    pub async fn accept(&self) -> Stream {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// Polls for a connection, as [`accept`](Self::accept) does.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<Stream> {
        let runtime = here(&self.world);
        let Some(id) = self.world.call(|kernel| kernel.accept(self.address, runtime)) else {
            let waker = cx.waker().clone();
            self.world.call(|kernel| kernel.wait_for_next(self.address, waker));
            return Poll::Pending;
        };
        Poll::Ready(Stream(Socket::of(&self.world, id)))
    }

    /// The address.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Listener {
    /// Connections that were not accepted are closed.
    fn drop(&mut self) {
        self.world.call(|kernel| kernel.unlisten(self.address));
    }
}

debug_fields!([] Listener, |it| address: it.address);

/// One side of a connection of a simulated network; made by [`Listener::accept`] and
/// [`Net::connect`](super::Net::connect).
///
/// It reads and writes as a `TcpStream` of tokio does, by tokio's traits. Dropped, it is closed as
/// Linux closes a socket: what it has sent goes to the peer, unless it has received what it has not
/// read, or receives more. Then the connection is reset.
pub struct Stream(pub(super) Socket);

impl Stream {
    /// The socket of this side.
    pub fn socket(&self) -> Socket {
        self.0.clone()
    }

    /// The socket of the other side; `None` if that is gone.
    pub fn peer_socket(&self) -> Option<Socket> {
        let peer = self.0.world.call(|kernel| kernel.peer(self.0.id))?;
        Some(Socket::of(&self.0.world, peer))
    }

    /// Closes the connection by a reset, as a client does that is killed: what was not read on
    /// either way is lost.
    pub fn reset(self) {
        self.reset_at_close();
    }

    /// Polls by `call`, which returns `None` where it would block, if the runtime remembers that
    /// the socket is ready.
    fn poll(
        &self,
        bits: u8,
        cx: &mut Context<'_>,
        asked: usize,
        call: impl FnOnce(&mut Kernel, usize) -> Result<Option<usize>, io::ErrorKind>,
    ) -> Poll<io::Result<usize>> {
        let Socket { world, id, .. } = &self.0;
        if !takes_budget() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let done = world.call(|kernel| {
            if !kernel.is_ready(*id, bits) {
                return None;
            }
            let done = call(kernel, *id).transpose();
            let is_short = |count: usize| count > 0 && count < asked;
            if done.is_none_or(|done| done.is_ok_and(is_short)) {
                kernel.clear(*id, bits);
            }
            done
        });
        if done.is_none() {
            // No thread has run besides, so nothing came in between.
            let waker = cx.waker().clone();
            world.call(|kernel| kernel.wait(*id, bits, waker));
            give_back();
        }
        if bits & READ != 0 {
            // Not in a write, which libraries make under locks of theirs.
            preempt();
        }
        done.map_or(Poll::Pending, |done| Poll::Ready(done.map_err(io::Error::from)))
    }
}

/// Says what the simulated kernel knows of the peer.
impl PeerSocket for Stream {
    fn acknowledged(&self) -> Option<u64> {
        self.0.acknowledged()
    }

    fn reset_at_close(&self) {
        self.0.reset_at_close();
    }
}

/// What the simulated kernel says of the socket of a [`Stream`] that is borrowed or was dropped;
/// made by [`Stream::socket`] and [`Stream::peer_socket`].
///
/// ```
/// use corewheel::conn::{ConnTimers, PeerSocket, Raced};
/// use corewheel::Handle;
/// use corewheel::sim::net::Stream;
/// use std::pin::pin;
/// use tokio::io::AsyncWriteExt;
///
/// /// Whether the answer was accepted in time.
/// async fn answer(stream: &mut Stream, conn: &ConnTimers<Handle>) -> bool {
///     let (socket, _writing) = (stream.socket(), conn.begin_write());
///     let done = conn.race_write(&socket, pin!(stream.write_all(b"hello"))).await;
///     matches!(done, Ok(Raced::Done(Ok(())))) && socket.acknowledged().is_some()
/// }
/// ```
#[derive(Clone)]
pub struct Socket {
    world: Arc<World>,
    /// That of another socket, it may be, after the owner has closed this one.
    id: usize,
    known: Arc<Mutex<Known>>,
}

impl Socket {
    pub(super) fn of(world: &Arc<World>, id: usize) -> Self {
        let known = world.call(|kernel| kernel.known(id));
        Self { world: Arc::clone(world), id, known }
    }

    /// What the network knows of the socket now.
    pub fn known(&self) -> Known {
        lock(&self.known).clone()
    }

    fn is_open(&self) -> bool {
        lock(&self.known).closed_at.is_none()
    }

    fn sent(&self) -> Option<conn::Sent> {
        self.is_open().then(|| self.world.call(|kernel| kernel.sent(self.id)))
    }
}

impl PeerSocket for Socket {
    fn acknowledged(&self) -> Option<u64> {
        self.sent().map(|sent| sent.acknowledged)
    }

    fn reset_at_close(&self) {
        if self.is_open() {
            self.world.call(|kernel| kernel.reset_at_close(self.id));
        }
    }
}

debug_fields!([] Socket, |it| id: it.id);

impl AsRef<Self> for Stream {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<S: AsRef<Stream>, M: Side> TimedIo<S, M> {
    /// Judges writes by what the peer's simulated socket has acknowledged, as `with_socket` does
    /// for a socket of the system.
    ///
    /// ```
    /// use corewheel::Handle;
    /// use corewheel::sim::net::Stream;
    /// use corewheel::stream::{StreamLimits, TimedIo};
    /// use std::time::Duration;
    ///
    /// fn timed<T: 'static>(stream: Stream, timers: Handle<T>) -> TimedIo<Stream> {
    ///     let limits = StreamLimits::default().write_stall(Duration::from_secs(30));
    ///     TimedIo::new(stream, timers, limits).with_simulated_socket()
    /// }
    /// ```
    #[must_use]
    pub fn with_simulated_socket(self) -> Self {
        let sent = |it: &S| it.as_ref().0.sent();
        self.judged_by_socket(stream::Socket::Simulated(sent, |it| it.as_ref().reset_at_close()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        self.poll(READ | READ_CLOSED, cx, room, |kernel, id| {
            kernel.read(id, room, |part| buf.put_slice(part))
        })
        .map_ok(drop)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll(WRITE | WRITE_CLOSED, cx, buf.len(), |kernel, id| kernel.write(id, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.world.call(|kernel| kernel.shut_down(self.0.id));
        Poll::Ready(Ok(()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.world.call(|kernel| kernel.close(self.0.id));
    }
}

debug_fields!([] Stream, |it| id: it.0.id);

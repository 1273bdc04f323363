//! The tasks that read sockets, and the connections that wait until they have read.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use corewheel::clock::Clock;
use corewheel::pass::POLLS_MAX;
use oneshot::{AsyncReceiver, Sender};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::runtime::Id;
use tokio::task::coop;

use super::driver;

/// The tasks of a [`QuinnRuntime`](super::QuinnRuntime) that read sockets: one for each endpoint.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<Arc<Reader>>>);

impl Readers {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Reader>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a task in its first poll. A connection may ask for the next one at once.
    pub(super) fn add(&self, host: Id, cx: &Context<'_>) -> Arc<Reader> {
        let reader = Arc::new(Reader { host, task: AtomicWaker::new(), waiting: Mutex::default() });
        reader.task.register(cx.waker());
        self.lock().push(Arc::clone(&reader));
        reader
    }

    pub(super) fn remove(&self, reader: &Arc<Reader>) {
        self.lock().retain(|it| !Arc::ptr_eq(it, reader));
    }

    /// Has the sockets read of all endpoints whose tasks run in a tokio runtime. Each of the
    /// returned receivers is ready when an endpoint has read, or has ended.
    pub(super) fn read(&self, host: Id) -> Vec<AsyncReceiver<()>> {
        let readers: Vec<_> = self.lock().iter().filter(|it| it.host == host).cloned().collect();
        readers.iter().map(|reader| reader.read()).collect()
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("count", &self.lock().len()).finish_non_exhaustive()
    }
}

/// A task that reads sockets.
pub(super) struct Reader {
    /// The runtime that runs the task.
    host: Id,
    task: AtomicWaker,
    /// The connections that have asked since the last poll.
    waiting: Mutex<Vec<Sender<()>>>,
}

impl Reader {
    fn lock(&self) -> MutexGuard<'_, Vec<Sender<()>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> AsyncReceiver<()> {
        let (sender, receiver) = oneshot::async_channel();
        self.lock().push(sender);
        self.task.wake();
        receiver
    }

    /// Called before each poll of the task.
    pub(super) fn begin_poll(&self, cx: &Context<'_>, served: &mut Served) {
        self.task.register(cx.waker());
        let waiting = mem::take(&mut *self.lock());
        served.0.extend(waiting.into_iter().map(|sender| (sender, 0)));
    }
}

/// The connections for which a task reads, each with the number of its polls so far that have left
/// something unread.
#[derive(Default)]
pub(super) struct Served(Vec<(Sender<()>, u32)>);

impl Served {
    /// Called after each poll of the task. A socket that never is empty must not hold a connection
    /// back for ever: what was in it when the connection asked is read after some polls. False if
    /// a connection waits for the next poll.
    pub(super) fn end_poll(&mut self, reads: Reads) -> bool {
        for (_, polls) in &mut self.0 {
            *polls += 1;
        }
        let is_done = |(_, polls): &(_, u32)| reads.are_done() || *polls >= POLLS_MAX;
        while let Some(at) = self.0.iter().position(is_done) {
            let (sender, _) = self.0.swap_remove(at);
            // A connection that has ended waits no more.
            let _ = sender.send(());
        }
        self.0.is_empty()
    }
}

/// What a task has read from its sockets in a poll. It reads one after another.
#[derive(Clone, Copy, Default)]
pub(super) struct Reads {
    /// The socket that may have more.
    unread: Option<usize>,
    /// Whether the task has left a socket that may have more, and gone to another.
    has_left: bool,
}

impl Reads {
    fn note(&mut self, socket: usize, is_empty: bool) {
        self.has_left |= self.unread.is_some_and(|unread| unread != socket);
        self.unread = (!is_empty).then_some(socket);
    }

    /// Whether each socket was read until it was empty.
    fn are_done(self) -> bool {
        self.unread.is_none() && !self.has_left
    }
}

/// A socket that notes whether it was read until it was empty.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) inner: Arc<dyn AsyncUdpSocket>,
    pub(super) clock: Clock,
}

impl AsyncUdpSocket for Socket {
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        // The task stamps what it reads with the time at which its poll has begun. Its next poll
        // has another.
        let is_late = driver::is_late(&self.clock);
        let read = if is_late {
            cx.waker().wake_by_ref();
            Poll::Pending
        } else {
            self.inner.poll_recv(cx, bufs, meta)
        };
        // Without a budget, a socket says that it is empty.
        let is_empty = read.is_pending() && !is_late && coop::has_budget_remaining();
        driver::note_read(|reads| reads.note(std::ptr::from_ref(self).addr(), is_empty));
        read
    }

    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

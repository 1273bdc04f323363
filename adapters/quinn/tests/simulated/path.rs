//! The way of datagrams between the endpoints: sockets, and what becomes of each datagram.
//!
//! What comes to a socket lies in a stream of the simulated network, so that the runtime of the
//! endpoint sees it as late as it sees what comes to any socket.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use corewheel::clock::Clock;
use corewheel::sim::Simulation;
use corewheel::sim::net::{Listener, Net, Stream};
use fastrand::Rng;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::runtimes::{act_in_time, opaque};

/// The address of an endpoint.
pub(crate) fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 443))
}

/// What becomes of the datagrams of a seed.
pub(crate) struct Fates {
    rng: Rng,
    delay: Duration,
    /// By how much more a datagram may be delayed, which changes the order.
    jitter: Duration,
    /// In 256.
    lost: u8,
    doubled: u8,
    /// The most that are lost.
    losses_left: u32,
}

impl Fates {
    /// `is_calm` says that nothing happens to them.
    pub(crate) fn new(rng: &mut Rng, rtt: Duration, is_calm: bool) -> Self {
        let any = |rng: &mut Rng, values: &[u8]| {
            if is_calm { 0 } else { values[rng.usize(..values.len())] }
        };
        Self {
            delay: rtt / 2,
            jitter: rtt.mul_f64(f64::from(any(rng, &[0, 0, 128, 255])) / 128.0),
            lost: any(rng, &[0, 20, 60, 120]),
            doubled: any(rng, &[0, 0, 60]),
            losses_left: rng.u32(1..12),
            rng: rng.fork(),
        }
    }

    /// After how long each copy of the next datagram comes.
    fn next(&mut self) -> Vec<Duration> {
        if self.losses_left > 0 && self.rng.u8(..) < self.lost {
            self.losses_left -= 1;
            return Vec::new();
        }
        let copies = 1 + usize::from(self.rng.u8(..) < self.doubled);
        (0..copies).map(|_| self.delay + self.jitter.mul_f64(self.rng.f64())).collect()
    }
}

struct Datagram {
    from: u8,
    to: u8,
    bytes: Vec<u8>,
}

struct Shared {
    clock: Clock,
    /// Of each direction.
    fates: [Fates; 2],
    /// By when they come.
    on_the_way: BTreeMap<(Instant, u64), Datagram>,
    sent: u64,
    /// Where what comes to an endpoint is written.
    ends: BTreeMap<u8, Stream>,
    mover: Option<Waker>,
}

/// The way of datagrams. A clone is the same one.
#[derive(Clone)]
pub(crate) struct Path(Arc<Mutex<Shared>>);

impl Path {
    pub(crate) fn new(sim: &Simulation<u8>, fates: [Fates; 2]) -> Self {
        let shared = Shared {
            clock: sim.service().handle().clock(),
            fates,
            on_the_way: BTreeMap::new(),
            sent: 0,
            ends: BTreeMap::new(),
            mover: None,
        };
        let path = Self(Arc::new(Mutex::new(shared)));
        let moved = path.clone();
        act_in_time(sim, move |cx| moved.deliver(cx));
        path
    }

    /// Writes what has come to its endpoint. Returns when the next comes.
    fn deliver(&self, cx: &mut Context<'_>) -> Option<Instant> {
        let mut shared = self.0.lock().unwrap();
        let shared = &mut *shared;
        shared.mover = Some(cx.waker().clone());
        while let Some(first) = shared.on_the_way.first_entry() {
            if first.key().0 > shared.clock.now() {
                return Some(first.key().0);
            }
            let Datagram { from, to, bytes } = first.remove();
            let length = (bytes.len() as u16).to_be_bytes();
            let frame = [&[from, length[0], length[1]][..], &bytes].concat();
            if let Some(end) = shared.ends.get_mut(&to) {
                // Its buffers are large. A socket that is gone takes nothing.
                let written = Pin::new(end).poll_write(cx, &frame);
                assert!(!matches!(written, Poll::Ready(Ok(count)) if count < frame.len()));
            }
        }
        None
    }

    fn send(&self, from: u8, to: u8, bytes: &[u8]) {
        let mut shared = self.0.lock().unwrap();
        let shared = &mut *shared;
        let now = shared.clock.now();
        for delay in shared.fates[usize::from(from % 2)].next() {
            shared.sent += 1;
            let datagram = Datagram { from, to, bytes: bytes.to_vec() };
            shared.on_the_way.insert((now + delay, shared.sent), datagram);
        }
        if let Some(mover) = shared.mover.take() {
            mover.wake();
        }
    }
}

/// A socket of an endpoint.
pub(crate) struct Socket {
    number: u8,
    path: Path,
    /// The runtime of the task that first reads has what it accepts.
    listener: Listener,
    coming: Mutex<Coming>,
}

#[derive(Default)]
struct Coming {
    stream: Option<Stream>,
    /// What was read and is no whole datagram.
    bytes: Vec<u8>,
}

impl Socket {
    pub(crate) fn new(net: &Net, path: &Path, number: u8) -> Self {
        let listener = net.listen(address(number)).unwrap();
        let end = net.connect(address(number)).unwrap();
        path.0.lock().unwrap().ends.insert(number, end);
        Self { number, path: path.clone(), listener, coming: Mutex::default() }
    }
}

impl Coming {
    /// The next datagram: from which endpoint, and its bytes.
    fn take(&mut self) -> Option<(u8, Vec<u8>)> {
        let [from, high, low] = *self.bytes.first_chunk()?;
        let end = 3 + usize::from(u16::from_be_bytes([high, low]));
        if self.bytes.len() < end {
            return None;
        }
        let datagram = self.bytes[3..end].to_vec();
        self.bytes.drain(..end);
        Some((from, datagram))
    }

    fn poll(&mut self, listener: &Listener, cx: &mut Context<'_>) -> Poll<(u8, Vec<u8>)> {
        loop {
            if let Some(datagram) = self.take() {
                return Poll::Ready(datagram);
            }
            let stream = match &mut self.stream {
                Some(stream) => stream,
                None => match listener.poll_accept(cx) {
                    Poll::Ready(stream) => self.stream.insert(stream),
                    Poll::Pending => return Poll::Pending,
                },
            };
            let mut room = [0; 2_048];
            let mut buffer = ReadBuf::new(&mut room);
            let read = Pin::new(stream).poll_read(cx, &mut buffer);
            if read.is_pending() {
                return Poll::Pending;
            }
            assert!(!buffer.filled().is_empty(), "the path has ended");
            self.bytes.extend(buffer.filled());
        }
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let SocketAddr::V4(to) = transmit.destination else { panic!("it is no address of ours") };
        self.path.send(self.number, to.ip().octets()[3], transmit.contents);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.coming.lock().unwrap().poll(&self.listener, cx).map(|(from, datagram)| {
            bufs[0][..datagram.len()].copy_from_slice(&datagram);
            let len = datagram.len();
            meta[0] = RecvMeta { addr: address(from), len, stride: len, ecn: None, dst_ip: None };
            Ok(1)
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(address(self.number))
    }
}

opaque!(Socket);

/// There is always room on the way.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

//! The same operations on sockets of tokio and of a simulated network, with the same results.
//!
//! What a socket says before its runtime has looked is deterministic in both. Where the system may
//! need time, the script waits.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use corewheel::conn::PeerSocket;
use corewheel::sim::net::Stream;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::io::{Read as _, Write as _};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::judge::{given, poll_read};

/// How many connections the script needs.
const CONNECTIONS: usize = 11;

/// The other side of a connection, which no runtime keeps from its socket.
trait Peer: PeerSocket {
    fn send(&mut self, bytes: &[u8]);
    /// Takes as many bytes as there is room for.
    fn take(&mut self, room: &mut [u8]);
    fn end(&mut self);
    fn take_rest(&mut self, taken: &mut Vec<u8>) -> io::Result<usize>;

    /// How many bytes come until the end, or the error.
    fn take_all(&mut self) -> String {
        let mut taken = Vec::new();
        let read = self.take_rest(&mut taken);
        format!("{} {}", taken.len(), shown(&read))
    }
}

impl Peer for std::net::TcpStream {
    fn send(&mut self, bytes: &[u8]) {
        self.write_all(bytes).unwrap();
    }

    fn take(&mut self, room: &mut [u8]) {
        self.read_exact(room).unwrap();
    }

    fn end(&mut self) {
        self.shutdown(Shutdown::Write).unwrap();
    }

    fn take_rest(&mut self, taken: &mut Vec<u8>) -> io::Result<usize> {
        self.read_to_end(taken)
    }
}

/// The output of a future that waits for nothing.
fn at_once<F: Future>(future: F) -> F::Output {
    let mut future = Box::pin(future);
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

impl Peer for Stream {
    fn send(&mut self, bytes: &[u8]) {
        at_once(self.write_all(bytes)).unwrap();
    }

    fn take(&mut self, room: &mut [u8]) {
        at_once(self.read_exact(room)).unwrap();
    }

    fn end(&mut self) {
        at_once(self.shutdown()).unwrap();
    }

    fn take_rest(&mut self, taken: &mut Vec<u8>) -> io::Result<usize> {
        at_once(self.read_to_end(taken))
    }
}

fn shown(done: &io::Result<usize>) -> String {
    match done {
        Ok(count) => count.to_string(),
        Err(error) => format!("{:?}", error.kind()),
    }
}

/// What one poll of a read says.
fn polled(stream: &mut (impl AsyncRead + Unpin), room: usize, cx: &mut Context<'_>) -> String {
    let mut buffer = [0; 256];
    match poll_read(stream, cx, &mut buffer[..room]) {
        Poll::Ready(done) => shown(&done),
        Poll::Pending => "pending".to_owned(),
    }
}

/// One poll of a read, in a poll of the task.
async fn poll_once(stream: &mut (impl AsyncRead + Unpin), room: usize) -> String {
    poll_fn(|cx| Poll::Ready(polled(stream, room, cx))).await
}

/// Another poll of the task, after those that are ready.
async fn yields() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut has_yielded, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Writes until the socket takes no more. Returns how many bytes it has taken.
async fn fill(stream: &mut (impl AsyncWrite + Unpin)) -> usize {
    let (mut sent, part) = (0, [7; 4_096]);
    // More may fit where the system has moved bytes to the peer meanwhile.
    while let Poll::Ready(count) =
        poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_write(cx, &part))).await
    {
        sent += count.unwrap();
        yields().await;
    }
    sent
}

/// Does the same with any sockets. Returns a line for each result.
async fn script<S, P>(sockets: Vec<(S, P)>) -> Vec<String>
where
    S: AsyncRead + AsyncWrite + PeerSocket + Unpin,
    P: Peer,
{
    let mut lines = Vec::new();
    let mut say = |what: &str, result: String| lines.push(format!("{what}: {result}"));
    let mut sockets = sockets.into_iter();
    let mut next = || sockets.next().expect("there are enough");
    let mut buffer = [0; 256];

    let (mut stream, mut peer) = next();
    say("a read before any byte", poll_once(&mut stream, 10).await);
    peer.send(b"abc");
    for poll in 1..4 {
        // These polls follow without a look at the sockets.
        say(&format!("poll {poll} before the look"), at_once(poll_once(&mut stream, 10)));
    }
    say("the read that waits", shown(&stream.read(&mut buffer[..10]).await));
    peer.send(b"defg");
    say("a read after a short one, before the look", at_once(poll_once(&mut stream, 10)));
    say("a read with less room than bytes", shown(&stream.read(&mut buffer[..2]).await));
    say("a read of the rest", at_once(poll_once(&mut stream, 2)));
    say("a read when all is read", at_once(poll_once(&mut stream, 2)));
    peer.send(b"h");
    say("and before the next look", at_once(poll_once(&mut stream, 2)));
    say("a read without room", shown(&stream.read(&mut []).await));
    say("a read of the next byte", shown(&stream.read(&mut buffer).await));

    peer.end();
    say("the end", shown(&stream.read(&mut buffer).await));
    say("the end again", at_once(poll_once(&mut stream, 2)));
    say("a write to a peer that has ended", shown(&stream.write(b"xyz").await));
    peer.take(&mut buffer[..3]);
    say("a shutdown", shown(&stream.shutdown().await.map(|()| 0)));
    say("a write after the shutdown", shown(&stream.write(b"x").await));

    // The peer closes while bytes lie unread in its socket.
    let (mut stream, mut peer) = next();
    say("a write", shown(&stream.write(b"xyz").await));
    peer.take(&mut buffer[..1]);
    drop(peer);
    say("a read after a reset", shown(&stream.read(&mut buffer).await));
    say("a second read after a reset", shown(&stream.read(&mut buffer).await));
    say("a write after a reset", shown(&stream.write(b"x").await));

    let (mut stream, mut peer) = next();
    peer.send(b"left");
    say("a write", shown(&stream.write(b"xyz").await));
    peer.take(&mut buffer[..3]);
    drop(peer);
    say("what a peer has left", shown(&stream.read(&mut buffer).await));
    say("its end", shown(&stream.read(&mut buffer).await));
    say("a write to a peer that is gone", shown(&stream.write(b"x").await));
    // That write has reset the connection.
    while stream.write(b"x").await.is_ok() {
        yields().await;
    }
    say("a read after it", shown(&stream.read(&mut buffer).await));

    // A socket that takes no more is ready when its peer has taken all.
    let (mut stream, mut peer) = next();
    let sent = fill(&mut stream).await;
    say("a write to a full socket waits", (sent > 0).to_string());
    peer.take(&mut vec![0; sent]);
    say("a write when the peer has taken all", shown(&stream.write(b"x").await));

    // How many reads one poll of a task may do.
    let (mut stream, mut peer) = next();
    peer.send(&[1; 200]);
    say("the first of many", shown(&stream.read(&mut buffer[..1]).await));
    yields().await;
    let mut reads = 0;
    poll_fn(|cx| {
        while polled(&mut stream, 1, cx) == "1" {
            reads += 1;
        }
        Poll::Ready(())
    })
    .await;
    say("reads in one poll", reads.to_string());
    yields().await;
    say("a read in the next poll", poll_once(&mut stream, 1).await);

    // A half-closed connection goes on in the other direction.
    let (mut stream, mut peer) = next();
    stream.shutdown().await.unwrap();
    peer.send(b"late");
    say("a read after the shutdown", shown(&stream.read(&mut buffer).await));

    lines.extend(buffers(sockets).await);
    lines
}

/// What the buffers of two systems do with what is written, read and ended.
async fn buffers<S, P>(mut sockets: impl Iterator<Item = (S, P)>) -> Vec<String>
where
    S: AsyncRead + AsyncWrite + PeerSocket + Unpin,
    P: Peer,
{
    let mut lines = Vec::new();
    let mut say = |what: &str, result: String| lines.push(format!("{what}: {result}"));
    let mut next = || sockets.next().expect("there are enough");
    let mut buffer = [0; 256];

    // A peer's system acknowledges what its buffers take, though the peer reads nothing.
    let (mut stream, mut peer) = next();
    let begun = PeerSocket::acknowledged(&stream).unwrap();
    let acknowledged = |stream: &S| PeerSocket::acknowledged(stream).unwrap() - begun;
    say("a write of some", shown(&stream.write(&[1; 300]).await));
    while acknowledged(&stream) < 300 {
        yields().await;
    }
    say("acknowledged before a read", acknowledged(&stream).to_string());
    peer.take(&mut [0; 200]);
    say("acknowledged after a read", acknowledged(&stream).to_string());
    let of_peer = |peer: &P| PeerSocket::acknowledged(peer).unwrap();
    let before = of_peer(&peer);
    peer.send(b"hello");
    while of_peer(&peer) < before + 5 {
        yields().await;
    }
    say("acknowledged of the peer", (of_peer(&peer) - before).to_string());

    // A peer that reads nothing has less acknowledged than was accepted, and takes all later.
    let sent = 300 + fill(&mut stream).await;
    say("a full socket", (acknowledged(&stream) < sent as u64).to_string());
    let now = acknowledged(&stream);
    yields().await;
    say("acknowledged meanwhile", (acknowledged(&stream) - now).to_string());
    peer.take(&mut vec![0; sent - 200]);
    while acknowledged(&stream) < sent as u64 {
        yields().await;
    }
    say("acknowledged in the end", (sent as u64 - acknowledged(&stream)).to_string());

    // The end comes behind what is in flight, after a close as after a shutdown.
    let (mut stream, mut peer) = next();
    say("a write before the end", shown(&stream.write(&[2; 200]).await));
    say("the shutdown behind it", shown(&stream.shutdown().await.map(|()| 0)));
    say("what comes before the end", peer.take_all());
    peer.send(b"still");
    say("a read of a half-closed socket", shown(&stream.read(&mut buffer).await));
    peer.end();
    say("the end of the other half", shown(&stream.read(&mut buffer).await));
    let (mut stream, mut peer) = next();
    say("a write before the close", shown(&stream.write(&[3; 200]).await));
    drop(stream);
    say("what comes before the close", peer.take_all());

    // The peer ends first, and gets what is written after that.
    let (mut stream, mut peer) = next();
    peer.end();
    say("the end of the peer", shown(&stream.read(&mut buffer).await));
    say("a write after its end", shown(&stream.write(&[4; 200]).await));
    drop(stream);
    say("what comes after its end", peer.take_all());

    // A close that resets takes back what the peer has no room for.
    let (mut stream, mut peer) = next();
    fill(&mut stream).await;
    PeerSocket::reset_at_close(&stream);
    drop(stream);
    yields().await;
    say("what comes after a reset", peer.take_all().contains("ConnectionReset").to_string());
    lines
}

/// Connects from another namespace of the network, if the file of one is given.
fn connect_from(namespace: Option<&OsStr>, address: SocketAddr) -> std::net::TcpStream {
    let connect = || std::net::TcpStream::connect(address).unwrap();
    let Some(namespace) = namespace else { return connect() };
    // The thread ends there, and the socket stays.
    let from_there = || {
        let namespace = File::open(namespace).unwrap();
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(namespace.as_fd(), kind).unwrap();
        connect()
    };
    thread::scope(|scope| scope.spawn(from_there).join().unwrap())
}

fn with_tokio() -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    runtime.block_on(async {
        let peers = env::var_os("COREWHEEL_SIM_PEERS");
        // Of the device between the two namespaces.
        let own = if peers.is_some() { "10.1.1.1:0" } else { "127.0.0.1:0" };
        let listener = TcpListener::bind(own).unwrap();
        let address = listener.local_addr().unwrap();
        let connect = |_| {
            let peer = connect_from(peers.as_deref(), address);
            peer.set_nodelay(true).unwrap();
            let (stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            (TcpStream::from_std(stream).unwrap(), peer)
        };
        let sockets = (0..CONNECTIONS).map(connect).collect();
        tokio::spawn(script(sockets)).await.unwrap()
    })
}

fn simulated(seed: u64) -> Vec<String> {
    let mut sim = given(seed);
    let net = sim.net();
    let runtime = net.runtime(1);
    let address = SocketAddr::from(([10, 0, 0, 1], 80));
    let listener = net.listen(address).unwrap();
    let peers: Vec<_> = (0..CONNECTIONS).map(|_| net.connect(address).unwrap()).collect();
    let task = runtime.spawn(async move {
        let mut sockets = Vec::new();
        for peer in peers {
            sockets.push((listener.accept().await, peer));
        }
        yields().await;
        script(sockets).await
    });
    sim.run(task)
}

#[test]
fn simulated_sockets_say_what_those_of_tokio_say() {
    let of_tokio = with_tokio();
    for seed in 0..20 {
        assert_eq!(simulated(seed), of_tokio, "seed {seed}");
    }
}

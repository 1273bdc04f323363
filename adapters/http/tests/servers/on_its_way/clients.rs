//! Clients that write HTTP by hand and read at the pace of a test.

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::http::{
    DATA, HEADERS, PATIENCE, RST_STREAM, WINDOW_UPDATE, frame, head_of, ms, preface_with,
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    Http1,
    Http2,
}
pub(crate) const VERSIONS: [Version; 2] = [Version::Http1, Version::Http2];

/// A client that takes its response slowly reads after each pause.
const PAUSE: Duration = ms(50);

pub(crate) fn window(stream: u8, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

pub(crate) fn connect(server: SocketAddr, receive_buffer: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Before it connects, as it says what the server may send at first.
    socket.set_recv_buffer_size(receive_buffer).unwrap();
    socket.connect(&server.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

pub(crate) struct Client {
    stream: TcpStream,
    version: Version,
    /// What was read and is no whole frame yet.
    read: Vec<u8>,
}

impl Client {
    /// A client with a small receive buffer. `initial` is the window of each HTTP/2 response.
    pub(crate) fn connect(server: SocketAddr, version: Version, initial: u32) -> Self {
        Self::connect_with(server, version, initial, 16 << 10)
    }

    pub(crate) fn connect_with(
        server: SocketAddr,
        version: Version,
        initial: u32,
        receive_buffer: usize,
    ) -> Self {
        let stream = connect(server, receive_buffer);
        let mut client = Self { stream, version, read: Vec::new() };
        if version == Version::Http2 {
            let settings = [&[0, 4][..], &initial.to_be_bytes()].concat();
            client.send(&[preface_with(&settings), window(0, 64 << 20)].concat());
        }
        client
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.stream.local_addr().unwrap()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends bytes again and again, until the server has cut the connection.
    pub(crate) fn send_until_cut(&mut self, bytes: &[u8]) {
        let begin = Instant::now();
        self.stream.set_nonblocking(true).unwrap();
        loop {
            assert!(begin.elapsed() < PATIENCE, "the client is not cut");
            let is_over = |result: std::io::Result<usize>| match result {
                Ok(count) => count == 0,
                Err(error) => error.kind() != ErrorKind::WouldBlock,
            };
            if is_over(self.stream.write(bytes)) || is_over(self.stream.read(&mut [0; 4096])) {
                return;
            }
            thread::sleep(ms(20));
        }
    }

    /// Sends frames that are answered, until the server takes no more of them, and then reads
    /// either all that has come or a part of it; again and again, until the server has cut the
    /// connection.
    pub(crate) fn flood_until_cut(&mut self, frame: &[u8], empties: bool) {
        let begin = Instant::now();
        self.stream.set_nonblocking(true).unwrap();
        let frames = frame.repeat(256);
        let mut sent = 0;
        let is_full = |error: &Error| error.kind() == ErrorKind::WouldBlock;
        loop {
            assert!(begin.elapsed() < PATIENCE, "the client is not cut");
            let mut refused = 0_u64;
            // The server answers what it has taken.
            while refused < 3 {
                match self.stream.write(&frames[sent..]) {
                    Ok(count) => (sent, refused) = ((sent + count) % frames.len(), 0),
                    Err(error) if is_full(&error) => refused += 1,
                    Err(_) => return,
                }
                thread::sleep(ms(refused));
            }
            loop {
                match self.stream.read(&mut [0; 2048]) {
                    Ok(0) => return,
                    Ok(_) if empties => {}
                    Ok(_) => break,
                    Err(error) if is_full(&error) => break,
                    Err(_) => return,
                }
            }
        }
    }

    /// Sends a request without a body.
    pub(crate) fn get(&mut self, stream: u8, path: &str) {
        self.ask("GET", stream, path);
    }

    pub(crate) fn ask(&mut self, method: &str, stream: u8, path: &str) {
        let request = match self.version {
            Version::Http1 => format!("{method} {path} HTTP/1.1\r\nhost: test\r\n\r\n").into(),
            Version::Http2 => head_of(method, stream, path, b"", false),
        };
        self.send(&request);
    }

    /// Sends an HTTP/2 request for a tunnel.
    pub(crate) fn connect_http2(&mut self, stream: u8) {
        let block = b"\x02\x07CONNECT\x01\x04test";
        self.send(&frame(HEADERS, 4, stream, block));
    }

    /// Sends an HTTP/2 request whose body comes after a `100 Continue`.
    pub(crate) fn post_http2(&mut self, stream: u8, path: &str, body: &[u8]) {
        let expect = b"\x0f\x14\x0c100-continue";
        self.send(&head_of("POST", stream, path, expect, true));
        self.send(&frame(DATA, 1, stream, body));
    }

    pub(crate) fn give_window(&mut self, stream: u8, bytes: u32) {
        self.send(&window(stream, bytes));
    }

    pub(crate) fn reset(&mut self, stream: u8) {
        self.send(&frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
    }

    /// Reads some more. False at the end.
    fn read_more(&mut self, most: usize) -> bool {
        let mut part = vec![0; most];
        let count = self.stream.read(&mut part).unwrap();
        self.read.extend(&part[..count]);
        count > 0
    }

    /// How many bytes of bodies were read.
    fn received(&self) -> usize {
        match self.version {
            Version::Http1 => self.read.split(|byte| *byte == b'x').count() - 1,
            Version::Http2 => {
                let (mut rest, mut received) = (&self.read[..], 0);
                while let Some((head, after)) = rest.split_at_checked(9) {
                    let length = usize::from(head[1]) << 8 | usize::from(head[2]);
                    let present = length.min(after.len());
                    received += if head[3] == DATA { present } else { 0 };
                    rest = &after[present..];
                }
                received
            }
        }
    }

    /// Waits until the server has closed the connection.
    #[track_caller]
    pub(crate) fn wait_for_end(&mut self) {
        loop {
            match self.stream.read(&mut [0; 4096]) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            }
        }
    }

    /// Takes a response of so many bytes at a steady pace.
    #[track_caller]
    pub(crate) fn read_steadily(&mut self, length: usize, case: &str) {
        self.read_at(20 << 10, length, || {});
        // Heads and frames are less than a hundredth.
        while self.received() < length && self.read_more(1 << 10) {}
        assert!(self.received() >= length, "{case}: cut at {} bytes", self.received());
    }

    /// Takes a response of so many bytes, a number of them in a second. Returns how many have come.
    pub(crate) fn read_at(
        &mut self,
        per_second: usize,
        length: usize,
        mut each: impl FnMut(),
    ) -> usize {
        let (begin, before) = (Instant::now(), self.read.len());
        loop {
            each();
            let taken = self.read.len() - before;
            let due = begin.elapsed().as_millis() * per_second as u128 / 1_000;
            if due <= taken as u128 {
                thread::sleep(PAUSE);
            } else if taken >= length || !self.read_more(per_second / 20) {
                return taken;
            }
        }
    }

    /// Reads so many bytes of a response. Returns how many.
    #[track_caller]
    pub(crate) fn read_data(&mut self, length: usize) -> usize {
        let before = self.received();
        while self.received() < before + length {
            assert!(self.read_more(1 << 16), "cut at {} bytes", self.received());
        }
        self.received() - before
    }

    /// Reads until all that it has asked for contains some bytes.
    #[track_caller]
    pub(crate) fn read_until(&mut self, end: &[u8]) {
        while !self.read.windows(end.len()).any(|part| part == end) {
            assert!(self.read_more(1 << 12), "cut: {:?}", String::from_utf8_lossy(&self.read));
        }
        self.read.clear();
    }

    /// Reads a short response.
    #[track_caller]
    pub(crate) fn read_short(&mut self) {
        self.read_until(b"short");
    }
}

//! A client that sends any bytes and reads until the server closes the connection.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use corewheel_test_support::PATIENCE;

/// A connection to the endpoint.
pub(crate) struct Connection(TcpStream);

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the endpoint listens");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    /// Opens a connection and sends these bytes.
    pub(crate) fn opened(address: SocketAddr, sent: &[u8]) -> Self {
        let mut connection = Self::open(address);
        connection.send(sent);
        connection
    }

    /// Returns false if the server has cut the connection off.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    pub(crate) fn shut_down_writes(&self) {
        self.0.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// Whether the server has closed the connection without a response.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.0.set_nonblocking(true).unwrap();
        let read = read(&self.0, &mut [0]);
        self.0.set_nonblocking(false).unwrap();
        match read {
            Ok(0) => true,
            Ok(_) => panic!("the server has answered"),
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// Waits for a second. Returns whether the server sent nothing and did not close.
    pub(crate) fn receives_nothing_for_a_second(&self) -> bool {
        let end = Instant::now() + Duration::from_secs(1);
        let waited = loop {
            let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.0.set_read_timeout(Some(left)).unwrap();
            match (&self.0).read(&mut [0]) {
                // A signal that stopped this process interrupts the read. That time counts.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break matches!(read, Err(error) if is_timeout(error.kind())),
            }
        };
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        waited
    }

    /// All bytes until the server closes the connection.
    pub(crate) fn rest(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut chunk = [0; 1 << 14];
        loop {
            match read(&self.0, &mut chunk) {
                Ok(0) => return bytes,
                Ok(read) => bytes.extend_from_slice(&chunk[..read]),
                Err(error) if is_timeout(error.kind()) => panic!("the server does not close"),
                // The server has reset the connection.
                Err(_) => return bytes,
            }
        }
    }
}

/// Reads. Reads again if a signal that stopped this process has interrupted the read.
fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A parsed response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    /// # Panics
    ///
    /// If the bytes are not one HTTP/1.1 response with a head and a body.
    pub(crate) fn parse(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).expect("all responses are text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a response has a head");
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).unwrap_or("");
        let status = status.get(..3).and_then(|code| code.parse().ok());
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").expect("a header has a name and a value");
            (name.to_ascii_lowercase(), value.to_owned())
        });
        Self {
            status: status.unwrap_or_else(|| panic!("no status in {head:?}")),
            headers: headers.collect(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether the body has the length that the head states.
    pub(crate) fn is_complete(&self) -> bool {
        self.header("content-length") == Some(self.body.len().to_string().as_str())
    }
}

/// Sends these bytes and returns the response.
pub(crate) fn ask(address: SocketAddr, sent: &[u8]) -> Reply {
    Reply::parse(&Connection::opened(address, sent).rest())
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Reply {
    let reply = ask(address, request("GET", path).as_bytes());
    assert!(reply.is_complete(), "{path}: {:?}", reply.headers);
    reply
}

/// A request for the path, which prefers `OpenMetrics`.
pub(crate) fn request(method: &str, path: &str) -> String {
    let headers = "Host: localhost\r\nAccept: application/openmetrics-text, */*;q=0.1";
    format!("{method} {path} HTTP/1.1\r\n{headers}\r\n\r\n")
}

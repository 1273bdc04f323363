//! A client that sends any bytes and reads until the server closes the connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use corewheel_test_support::sockets::{connect, read_to_end};

/// A connection to the endpoint.
pub(crate) struct Connection(TcpStream);

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self(connect(address))
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
        let read = (&self.0).read(&mut [0]);
        self.0.set_nonblocking(false).unwrap();
        match read {
            Ok(0) => true,
            Ok(_) => panic!("the server has answered"),
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    /// All bytes until the server closes the connection.
    pub(crate) fn rest(mut self) -> Vec<u8> {
        read_to_end(&mut self.0)
    }
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

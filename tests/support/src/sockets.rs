//! Clients of the standard library, and what they say in HTTP.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::PATIENCE;

/// A client that waits no longer than [`PATIENCE`].
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The head and the body of the response to a request of HTTP for a path.
pub fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = connect(address);
    let head = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    (read_to(&mut stream, HEAD_END).unwrap(), String::from_utf8(read_to_end(&mut stream)).unwrap())
}

/// Ends a head of HTTP.
pub const HEAD_END: &str = "\r\n\r\n";

/// Reads until the received data ends so.
///
/// # Errors
///
/// The stream ends before, or a read fails.
pub fn read_to(stream: &mut impl Read, end: &str) -> io::Result<String> {
    let mut received = Vec::new();
    while !received.ends_with(end.as_bytes()) {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        received.push(byte[0]);
    }
    Ok(String::from_utf8(received).unwrap())
}

/// Reads until the server closes or resets the connection. Returns the data.
pub fn read_to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Err(error) if !is_closed(&error) => panic!("the connection stays open: {error}"),
        _ => received,
    }
}

/// Whether an error means that the connection is closed.
pub fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

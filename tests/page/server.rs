//! A server that answers with the page of a real endpoint, and with the JSON of the test.
//!
//! It is for what a service shows only on a busy host.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::PATIENCE;

/// The whole answer to a request, and its body.
pub(crate) fn get(address: SocketAddr, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").expect("it has a head");
    let body = body.to_owned();
    (answer, body)
}

/// Stops answering when it is dropped, but for one request.
pub(crate) struct FakeServer {
    pub(crate) address: SocketAddr,
    json: Arc<Mutex<Option<Value>>>,
}

impl FakeServer {
    /// Answers with the page of the endpoint there, headers included.
    pub(crate) fn start(endpoint: SocketAddr, json: Value) -> Self {
        let (page, _) = get(endpoint, "/");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let json = Arc::new(Mutex::new(Some(json)));
        let shared = Arc::clone(&json);
        thread::spawn(move || {
            // A client that is gone gets no answer.
            for mut stream in listener.incoming().map_while(Result::ok) {
                let Some(json) = shared.lock().unwrap().clone() else { return };
                let _ = answer(&mut stream, &page, &json);
            }
        });
        Self { address, json }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        *self.json.lock().unwrap() = None;
        // The accepting thread then sees that it is to end, if it waits.
        drop(TcpStream::connect(self.address));
    }
}

fn answer(stream: &mut TcpStream, page: &str, json: &Value) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if head.starts_with(b"GET / ") {
        return stream.write_all(page.as_bytes());
    }
    let body = json.to_string();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

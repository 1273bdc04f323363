//! A server that answers with the page of a real endpoint, and with the JSON of the test.
//!
//! It is for what a service shows only on a busy host.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use corewheel_test_support::sockets::{HEAD_END, get, read_to};
use serde_json::Value;

/// The statistics that an endpoint serves.
pub(crate) fn json(address: SocketAddr) -> Value {
    serde_json::from_str(&get(address, "/stats.json").1).expect("the body is JSON")
}

/// Stops answering when it is dropped, but for one request.
pub(crate) struct FakeServer {
    pub(crate) address: SocketAddr,
    json: Arc<Mutex<Option<Value>>>,
}

impl FakeServer {
    /// Answers with the page of the endpoint there, headers included, and with its JSON as the test
    /// changes it.
    pub(crate) fn start(endpoint: SocketAddr, change: impl FnOnce(&mut Value)) -> Self {
        let (head, body) = get(endpoint, "/");
        let page = head + &body;
        let mut changed = json(endpoint);
        change(&mut changed);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let json = Arc::new(Mutex::new(Some(changed)));
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
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        *self.json.lock().unwrap() = None;
        // The accepting thread then sees that it is to end, if it waits.
        drop(TcpStream::connect(self.address));
    }
}

fn answer(stream: &mut TcpStream, page: &str, json: &Value) -> std::io::Result<()> {
    stream.set_read_timeout(Some(crate::PATIENCE))?;
    if read_to(stream, HEAD_END)?.starts_with("GET / ") {
        return stream.write_all(page.as_bytes());
    }
    let (body, kind) = (json.to_string(), "Content-Type: application/json\r\nConnection: close");
    let length = body.len();
    write!(stream, "HTTP/1.1 200 OK\r\n{kind}\r\nContent-Length: {length}{HEAD_END}{body}")
}

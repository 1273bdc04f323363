//! The example `reverse_proxy` with `--h2c`, as clients of HTTP/2 and of HTTP/1.1 find it. The
//! HTTP/2 client is hyper's; it begins without an upgrade, and its requests share a connection.

use std::pin::pin;
use std::time::Instant;

use futures_lite::future::poll_once;
use futures_lite::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::{Method, Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::oneshot::{self, error::RecvError};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use corewheel_test_support::{PATIENCE, ms};

use crate::check_not_early;
use crate::proxy::{ALL, Proxy, check, check_to_its_end, get, is_cut, received};

type RequestBody = UnsyncBoxBody<Bytes, RecvError>;

/// A client with one connection to the proxy.
struct Client {
    sender: SendRequest<RequestBody>,
    /// Ends with the connection.
    connection: JoinHandle<hyper::Result<()>>,
}

impl Client {
    async fn connect(proxy: &Proxy) -> Self {
        let stream = TcpStream::connect(proxy.address).await.unwrap();
        let stream = TokioIo::new(stream);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        Self { sender, connection: tokio::spawn(connection) }
    }

    /// Begins a request, before the returned future is polled.
    fn send(
        &mut self,
        method: Method,
        path: &str,
        body: RequestBody,
    ) -> impl Future<Output = hyper::Result<Response<Incoming>>> + use<> {
        let request = Request::builder().method(method).uri(format!("http://proxy{path}"));
        self.sender.send_request(request.body(body).unwrap())
    }

    /// Begins a request without a body, and returns the status and the body of the answer.
    fn get(&mut self, path: &str) -> impl Future<Output = (u16, Vec<u8>)> + use<> {
        let answer = self.send(Method::GET, path, no_body());
        async { read(answer.await.unwrap()).await }
    }

    /// Begins a request whose body is sent later.
    fn post(
        &mut self,
        path: &str,
    ) -> (oneshot::Sender<Bytes>, impl Future<Output = (u16, Vec<u8>)> + use<>) {
        let (body, later) = oneshot::channel();
        let later = stream::once_future(async { later.await.map(Frame::data) });
        let answer = self.send(Method::POST, path, StreamBody::new(later).boxed_unsync());
        (body, async { read(answer.await.unwrap()).await })
    }
}

fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// The status and the body of an answer of HTTP/2.
async fn read(answer: Response<Incoming>) -> (u16, Vec<u8>) {
    assert_eq!(answer.version(), Version::HTTP_2);
    let status = answer.status().as_u16();
    (status, answer.into_body().collect().await.unwrap().to_bytes().into())
}

/// Runs a client on a runtime of the calling thread.
fn run(proxy: &Proxy, client: impl AsyncFnOnce(Client)) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let run = async { client(Client::connect(proxy).await).await };
    let ended = runtime.block_on(async { timeout(PATIENCE, run).await });
    assert!(ended.is_ok(), "the client waits in vain");
}

/// Runs a client, for each mode and each of the timers.
fn check_client(timers: &[&str], options: &[&str], client: impl AsyncFn(Client) + Sync) {
    check(timers, &[&["--h2c"], options].concat(), |proxy| run(proxy, &client));
}

#[test]
fn http2_requests_are_forwarded_in_each_mode_with_each_timer() {
    check_client(&ALL, &[], async |mut client| {
        assert_eq!(client.get("/").await, received(0));
        let (status, body) = client.get("/big?bytes=3000000").await;
        assert_eq!((status, body.len()), (200, 3_000_000));
        let (body, answer) = client.post("/");
        // The client sends more than 65,535 bytes only after the proxy has asked for more.
        body.send(vec![b'x'; 300_000].into()).unwrap();
        assert_eq!(answer.await, received(300_000));
    });
}

#[test]
fn http2_requests_of_one_connection_are_answered_in_any_order() {
    check_client(&["corewheel", "tokio"], &["--response", "1h"], async |mut client| {
        let mut waiting: Vec<_> = (0..20).map(|_| client.post("/")).collect();
        // The request that began last is complete first.
        while let Some((body, answer)) = waiting.pop() {
            let length = 1 + waiting.len();
            body.send(vec![b'x'; length].into()).unwrap();
            assert_eq!(answer.await, received(length));
        }
    });
}

#[test]
fn slow_answer_to_one_http2_request_becomes_504_while_another_is_answered() {
    // The other request has as much time, so this is far longer than an answer takes.
    check_client(&["corewheel", "tokio"], &["--response", "4s"], async |mut client| {
        let start = Instant::now();
        let mut slow = pin!(client.get("/slow?ms=60000"));
        assert_eq!(client.get("/").await, received(0));
        let ended = poll_once(slow.as_mut()).await;
        assert_eq!(ended, None, "the other request has waited for this one");
        assert_eq!(slow.await.0, 504);
        check_not_early(start, ms(4_000));
        // The connection is as good as before.
        assert_eq!(client.get("/").await, received(0));
    });
}

#[test]
fn each_http2_client_has_the_whole_keep_alive_whatever_the_age_of_the_proxy() {
    check(&["corewheel"], &["--h2c", "--keep-alive", "3s"], |proxy| {
        // The first client finds a proxy that has just begun, and the next ones find one that is
        // older than the time. The last has a request, whose end begins the time again.
        for requests in [0, 0, 1] {
            let start = Instant::now();
            run(proxy, async |mut client| {
                for _ in 0..requests {
                    assert_eq!(client.get("/").await, received(0));
                }
                // The proxy ends the connection, although the client holds it.
                client.connection.await.unwrap().unwrap();
            });
            check_not_early(start, ms(3_000));
        }
    });
}

#[test]
fn http2_client_is_cut_without_the_option_h2c() {
    check(&["corewheel"], &[], |proxy| {
        run(proxy, async |mut client| {
            assert!(client.send(Method::GET, "/", no_body()).await.is_err());
        });
    });
}

#[test]
fn proxy_on_sigterm_answers_the_http2_request_in_progress_and_ends() {
    check_to_its_end(&ALL, &["--h2c", "--drain", "20s"], |proxy, _| {
        // A client of HTTP/1 is served beside.
        let mut idle = proxy.connect();
        for _ in 0..2 {
            assert_eq!(get(&mut idle, "/"), received(0));
        }
        run(&proxy, async |mut client| {
            let (body, busy) = client.post("/");
            // When the proxy answers this request, it has read the head of the one before.
            assert_eq!(client.get("/").await, received(0));
            proxy.child.signal(Signal::TERM);
            assert!(is_cut(&mut idle));
            body.send("abc".into()).unwrap();
            assert_eq!(busy.await, received(3));
            // The proxy closes the connection, although the client holds it.
            client.connection.await.unwrap().unwrap();
        });
        proxy.wait_for_code(0);
    });
}

//! The example `reverse_proxy` before an upstream server that stalls, and clients that try to hold
//! it: each is cut by the one limit that counts, and nothing of it stays.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::ANYWHERE;
use crate::proxy::{MODES, Proxy, get, is_cut};
use crate::server::{command_of, read_to_end};
use corewheel_test_support::{PATIENCE, ms};

/// The limit that a test is about. All others are far longer.
pub(super) const LIMIT: Duration = ms(500);

/// The length of a response that the socket accepts, and of which the client's system does not take
/// all.
const LONG: usize = 1 << 20;

/// A server that answers as the path of a request says. Each connection has a thread.
pub(super) struct Upstream {
    pub(super) address: SocketAddr,
    /// Tells the head of each request, and when its connection has ended.
    told: Receiver<Told>,
}

enum Told {
    Request(String),
    Ended,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let tell = tell.clone();
                thread::spawn(move || serve(stream.unwrap(), &tell));
            }
        });
        Self { address, told }
    }

    /// Waits until so many connections have ended.
    #[track_caller]
    pub(super) fn wait_for_ends(&self, mut count: usize) {
        while count > 0 {
            if let Told::Ended = self.told.recv_timeout(PATIENCE).expect("a connection stays") {
                count -= 1;
            }
        }
    }

    /// The head of the next request.
    #[track_caller]
    pub(super) fn request(&self) -> String {
        loop {
            if let Told::Request(head) = self.told.recv_timeout(PATIENCE).unwrap() {
                return head.to_lowercase();
            }
        }
    }
}

fn serve(mut stream: TcpStream, tell: &Sender<Told>) {
    while answer(&mut stream, tell) {}
    let _ = tell.send(Told::Ended);
}

/// Answers a request. False if the connection has ended, or is to end.
fn answer(stream: &mut TcpStream, tell: &Sender<Told>) -> bool {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    if head.is_empty() {
        return false;
    }
    let head = String::from_utf8(head).unwrap();
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let _ = tell.send(Told::Request(head));
    let said = match path.as_str() {
        "/body" => "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_owned(),
        "/chunk" => format!("{chunked}9\r\nabc"),
        "/trailers" => format!("{chunked}3\r\nabc\r\n0\r\nX: "),
        "/big" => "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n".to_owned(),
        "/coded" => chunked.replace("chunked", "gzip, chunked") + "3\r\nabc\r\n0\r\n\r\n",
        "/bad-chunk" => format!("{chunked}xyz\r\nabc\r\n0\r\n\r\n"),
        "/socket" => {
            let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
            format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}Sec-WebSocket-Accept: a\r\n\r\n")
        }
        "/late" => {
            thread::sleep(3 * LIMIT);
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned()
        }
        "/" => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned(),
        "/long" => {
            format!("HTTP/1.1 200 OK\r\nContent-Length: {LONG}\r\n\r\n{}", "x".repeat(LONG))
        }
        // It reads nothing, or answers nothing.
        _ => String::new(),
    };
    let _ = stream.write_all(said.as_bytes());
    if path == "/" || path == "/long" {
        return true;
    } else if path == "/big" {
        while stream.write_all(&[b'x'; 1 << 14]).is_ok() {}
    } else if path == "/socket" {
        // It sends all back, to the end.
        let mut writer = stream.try_clone().unwrap();
        let _ = std::io::copy(stream, &mut writer);
        let _ = writer.shutdown(Shutdown::Write);
    } else if path == "/unread" {
        // A reset shows as an error of a write.
        while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_ok() {
            thread::sleep(ms(50));
        }
    } else {
        while stream.read(&mut [0; 1 << 12]).is_ok_and(|count| count > 0) {}
    }
    false
}

/// Runs a check in each mode, with one limit. Each proxy has an upstream server of its own, and as
/// many descriptors in the end as in the beginning.
pub(super) fn check(options: &[&str], check: impl Fn(&Proxy, &Upstream) + Sync) {
    check_to_its_end(options, |mut proxy, upstream| {
        check(&proxy, upstream);
        proxy.signal(Signal::TERM);
        let log = proxy.log();
        assert!(!log.contains("has ended"), "{}: {log}", proxy.name);
        proxy.wait();
    });
}

/// Runs a check that ends the proxy, in each mode, with one limit.
pub(super) fn check_to_its_end(options: &[&str], check: impl Fn(Proxy, &Upstream) + Sync) {
    let far = ["--header", "--first-byte", "--read-idle", "--write-stall", "--keep-alive"];
    let more = ["--max-age", "--response", "--upstream-stall", "--upstream-idle", "--rate-grace"];
    // The last value of an option would be refused as a second one.
    let far = far.into_iter().chain(more).filter(|option| !options.contains(option));
    let all: Vec<&str> =
        far.flat_map(|option| [option, "1h"]).chain(options.iter().copied()).collect();
    thread::scope(|scope| {
        for mode in MODES {
            let (all, check) = (&all, &check);
            scope.spawn(move || {
                let upstream = Upstream::start();
                let mut command = command_of(ANYWHERE, "reverse_proxy");
                command.args(["--upstream", &upstream.address.to_string(), "--threads", "2"]);
                command.args(["--mode", mode, "--timer", "corewheel"]).args(all);
                command.stderr(Stdio::piped());
                check(Proxy::start_by(command, mode.to_owned()), &upstream);
            });
        }
    });
}

/// Sends the same again and again, until the proxy ends the connection or has said something.
fn send_until_answered(client: &mut TcpStream, part: &[u8], pause: Duration) {
    client.set_nonblocking(true).unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "the client is not answered");
        match client.write(part) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => break,
            _ => thread::sleep(pause),
        }
        match client.peek(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            _ => break,
        }
    }
    client.set_nonblocking(false).unwrap();
}

pub(super) fn said(client: &mut TcpStream) -> String {
    String::from_utf8_lossy(&read_to_end(client)).into_owned()
}

const UPLOAD: &[u8] = b"POST /unread HTTP/1.1\r\nHost: proxy\r\nContent-Length: 1000000000\r\n\r\n";

#[test]
fn upload_that_the_upstream_server_does_not_read_ends_on_both_sides() {
    check(&["--upstream-stall", "500ms"], |proxy, upstream| {
        let before = proxy.descriptors();
        let mut client = proxy.connect();
        client.write_all(UPLOAD).unwrap();
        send_until_answered(&mut client, &[b'x'; 1 << 14], Duration::ZERO);
        let said = said(&mut client);
        assert!(said.starts_with("HTTP/1.1 504 "), "{}: {said}", proxy.name);
        // The client has not closed its side yet.
        upstream.wait_for_ends(1);
        proxy.wait_for_descriptors(&before);
    });
}

#[test]
fn upload_whose_client_leaves_ends_at_the_upstream_server() {
    check(&[], |proxy, upstream| {
        let before = proxy.descriptors();
        let mut client = proxy.connect();
        client
            .write_all(b"POST /sink HTTP/1.1\r\nHost: proxy\r\nContent-Length: 9\r\n\r\nabc")
            .unwrap();
        upstream.request();
        drop(client);
        upstream.wait_for_ends(1);
        proxy.wait_for_descriptors(&before);
    });
}

#[test]
fn upstream_server_that_stalls_in_a_response_ends_it_also_for_pipelining_clients() {
    check(&["--upstream-stall", "500ms"], |proxy, upstream| {
        let before = proxy.descriptors();
        for path in ["/body", "/chunk", "/trailers"] {
            for count in [1, 2] {
                let start = Instant::now();
                let mut client = proxy.connect();
                let request = format!("GET {path} HTTP/1.1\r\nHost: proxy\r\n\r\n").repeat(count);
                client.write_all(request.as_bytes()).unwrap();
                let said = said(&mut client);
                assert!(said.starts_with("HTTP/1.1 200 "), "{} {path}: {said}", proxy.name);
                assert!(start.elapsed() >= LIMIT, "{} {path}", proxy.name);
                upstream.wait_for_ends(1);
            }
        }
        proxy.wait_for_descriptors(&before);
    });
}

/// Frames of HTTP/2: the length, the type, the flags and the stream come before the payload.
pub(super) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![0, length[0], length[1], kind, flags, 0, 0, 0, stream];
    frame.extend(payload);
    frame
}

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The head of a request, on a stream that the client half closes if it has no body.
fn head(stream: u8, path: &str, has_body: bool) -> Vec<u8> {
    let method = if has_body { 0x83 } else { 0x82 };
    let mut block = vec![method, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block.extend(b"\x01\x05proxy");
    frame(HEADERS, if has_body { 4 } else { 5 }, stream, &block)
}

/// An HTTP/2 client that does only what a test says. `window` is that of each response.
pub(super) fn http2(proxy: &Proxy, window: u32) -> TcpStream {
    http2_with(proxy, window, &[])
}

/// Such a client that sends frames with its preface, so that no limit comes between.
fn http2_with(proxy: &Proxy, window: u32, frames: &[u8]) -> TcpStream {
    let mut client = proxy.connect();
    let mut settings = vec![0, 4];
    settings.extend(window.to_be_bytes());
    let (settings, acknowledged) = (frame(SETTINGS, 0, 0, &settings), frame(SETTINGS, 1, 0, &[]));
    client.write_all(&[PREFACE, &settings, &acknowledged, frames].concat()).unwrap();
    client
}

/// The type of a frame, its stream and its payload; `None` at the end.
pub(super) fn read_frame(client: &mut TcpStream) -> Option<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    client.read_exact(&mut head).ok()?;
    let length = usize::from(head[1]) << 8 | usize::from(head[2]);
    let mut payload = vec![0; length];
    client.read_exact(&mut payload).unwrap();
    Some((head[3], head[8], payload))
}

/// Sends the body of a request, as fast as the windows allow, until the proxy ends the stream or
/// the connection. Returns how often each type of frame has come.
fn upload(client: &mut TcpStream, stream: u8) -> HashMap<u8, u32> {
    const PART: i64 = 1 << 14;
    const INITIAL: i64 = 65_535;
    // Of the connection, and of the stream.
    let mut windows = [INITIAL; 2];
    let mut counts = HashMap::new();
    loop {
        if windows.iter().all(|&window| window >= PART) {
            // A connection that has ended shows in the next read.
            let _ = client.write_all(&frame(DATA, 0, stream, &[b'x'; PART as usize]));
            windows = windows.map(|window| window - PART);
            continue;
        }
        let Some((kind, of, payload)) = read_frame(client) else { return counts };
        *counts.entry(kind).or_default() += 1;
        let number = |bytes: &[u8]| i64::from(u32::from_be_bytes(bytes.try_into().unwrap()));
        match kind {
            SETTINGS => {
                let sets = payload.chunks(6).filter(|setting| setting[..2] == [0, 4]);
                windows[1] += sets.map(|set| number(&set[2..]) - INITIAL).sum::<i64>();
            }
            WINDOW_UPDATE => windows[usize::from(of == stream)] += number(&payload),
            RST_STREAM | GOAWAY => return counts,
            _ => {}
        }
    }
}

/// Reads frames until one of a type has come, or to the end. Returns how often each has come.
#[track_caller]
fn read_frames(client: &mut TcpStream, until: Option<u8>) -> HashMap<u8, u32> {
    let mut counts = HashMap::new();
    while let Some((kind, _, _)) = read_frame(client) {
        *counts.entry(kind).or_default() += 1;
        if until == Some(kind) {
            return counts;
        }
    }
    assert_eq!(until, None, "{counts:?}");
    counts
}

/// Sends frames again and again in another thread, and reads to the end meanwhile.
fn read_while_sending(client: &mut TcpStream, frames: Vec<u8>) -> HashMap<u8, u32> {
    let mut writer = client.try_clone().unwrap();
    thread::spawn(move || {
        while writer.write_all(&frames).is_ok() {
            thread::sleep(ms(50));
        }
    });
    read_frames(client, None)
}

#[test]
fn http2_responses_without_a_window_are_cut_with_their_upstream_connections() {
    check(&["--h2c", "--write-stall", "500ms"], |proxy, upstream| {
        let before = proxy.descriptors();
        for is_trickled in [false, true] {
            let mut client = http2(proxy, 0);
            let streams = (1..40).step_by(2);
            // All at once: the first may not reach its limit before the last has come.
            let heads = streams.clone().flat_map(|stream| head(stream, "/big", false));
            client.write_all(&heads.collect::<Vec<_>>()).unwrap();
            let window = |stream| frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0, 1]);
            let counts = if is_trickled {
                read_while_sending(&mut client, streams.flat_map(window).collect())
            } else {
                read_frames(&mut client, None)
            };
            assert!(counts.contains_key(&GOAWAY), "{}: {counts:?}", proxy.name);
            upstream.wait_for_ends(20);
        }
        proxy.wait_for_descriptors(&before);
        // hyper has all of a small response at once.
        let mut client = http2(proxy, 0);
        client.write_all(&head(1, "/", false)).unwrap();
        let counts = read_frames(&mut client, None);
        assert!(counts.contains_key(&GOAWAY), "{}: {counts:?}", proxy.name);
    });
}

#[test]
fn http2_preface_that_comes_byte_by_byte_has_the_time_of_a_head() {
    check(&["--h2c", "--header", "500ms", "--read-rate", "0"], |proxy, _| {
        let start = Instant::now();
        let mut client = proxy.connect();
        for byte in PREFACE {
            let _ = client.write_all(&[*byte]);
            thread::sleep(LIMIT / 10);
        }
        assert!(is_cut(&mut client), "{}", proxy.name);
        assert!(start.elapsed() >= LIMIT, "{}", proxy.name);
    });
}

#[test]
fn http2_upload_that_the_upstream_server_does_not_read_ends_on_both_sides() {
    check(&["--h2c", "--upstream-stall", "500ms"], |proxy, upstream| {
        let before = proxy.descriptors();
        let mut client = http2(proxy, 1 << 16);
        client.write_all(&head(1, "/unread", true)).unwrap();
        let counts = upload(&mut client, 1);
        let is_told = counts.contains_key(&RST_STREAM) || counts.contains_key(&GOAWAY);
        assert!(is_told && counts.contains_key(&HEADERS), "{}: {counts:?}", proxy.name);
        // The client has not closed its side yet.
        upstream.wait_for_ends(1);
        drop(client);
        proxy.wait_for_descriptors(&before);
    });
}

#[test]
fn drain_tells_idle_clients_one_after_another_and_cuts_no_request_within_it() {
    let check = |h2c: &[&str]| {
        check_to_its_end(&[h2c, &["--drain", "10s"]].concat(), |proxy, upstream| {
            let mut idle: Vec<_> = (0..8).map(|_| proxy.connect()).collect();
            for client in &mut idle {
                assert_eq!(get(client, "/").0, 200, "{}", proxy.name);
            }
            let mut busy = if h2c.is_empty() {
                let mut client = proxy.connect();
                client.write_all(b"GET /late HTTP/1.1\r\nHost: proxy\r\n\r\n").unwrap();
                client
            } else {
                let mut client = http2(&proxy, 1 << 16);
                client.write_all(&head(1, "/late", false)).unwrap();
                client
            };
            while !upstream.request().starts_with("get /late ") {}
            let start = Instant::now();
            proxy.signal(Signal::TERM);
            if h2c.is_empty() {
                let said = said(&mut busy);
                assert!(said.starts_with("HTTP/1.1 200 "), "{}: {said}", proxy.name);
            } else {
                let counts = read_frames(&mut busy, None);
                assert!(counts.contains_key(&GOAWAY), "{}: {counts:?}", proxy.name);
                assert!(counts.contains_key(&DATA), "{}: {counts:?}", proxy.name);
            }
            for client in &mut idle {
                assert!(is_cut(client), "{}", proxy.name);
            }
            // At least four clients are those of one shard.
            assert!(start.elapsed() >= Duration::from_secs(5), "{}", proxy.name);
            proxy.wait();
        });
    };
    thread::scope(|scope| {
        scope.spawn(|| check(&[]));
        check(&["--h2c"]);
    });
}

#[test]
fn drain_that_cuts_a_request_is_told_by_the_exit_code() {
    for h2c in [&[][..], &["--h2c"]] {
        check_to_its_end(&[h2c, &["--drain", "500ms"]].concat(), |mut proxy, upstream| {
            let start = Instant::now();
            let mut client = if h2c.is_empty() {
                let mut client = proxy.connect();
                client.write_all(b"GET /sink HTTP/1.1\r\nHost: proxy\r\n\r\n").unwrap();
                client
            } else {
                let mut client = http2(&proxy, 1 << 16);
                client.write_all(&head(1, "/sink", false)).unwrap();
                client
            };
            upstream.request();
            proxy.signal(Signal::TERM);
            read_to_end(&mut client);
            assert!(start.elapsed() >= LIMIT, "{}", proxy.name);
            upstream.wait_for_ends(1);
            let log = proxy.log();
            assert!(log.contains("cut at the end of the drain: 1"), "{}: {log}", proxy.name);
            proxy.wait_for_code(3);
        });
    }
}

#[test]
fn head_that_is_too_large_is_answered_431() {
    check(&[], |proxy, _| {
        let mut client = proxy.connect();
        client.write_all(b"GET / HTTP/1.1\r\nHost: proxy\r\nX: ").unwrap();
        client.write_all(&vec![b'x'; 1 << 20]).unwrap();
        let mut status = [0; 12];
        client.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 431", "{}", proxy.name);
    });
}

#[test]
fn client_waits_for_longer_than_the_idle_time_of_reads_between_requests() {
    let options = ["--read-idle", "500ms", "--keep-alive", "1h"];
    check(&options, |proxy, _| {
        let mut client = proxy.connect();
        for _ in 0..2 {
            assert_eq!(get(&mut client, "/").0, 200, "{}", proxy.name);
            thread::sleep(3 * LIMIT);
        }
    });
}

#[test]
fn upload_that_takes_longer_than_the_time_for_a_response_is_answered() {
    // Far longer than an answer takes.
    check(&["--response", "2s"], |proxy, upstream| {
        let mut client = proxy.connect();
        client
            .write_all(b"POST /sink HTTP/1.1\r\nHost: proxy\r\nContent-Length: 30\r\n\r\n")
            .unwrap();
        for _ in 0..30 {
            thread::sleep(ms(100));
            client.write_all(b"x").unwrap();
        }
        // The upstream server does not answer, and has its time from the end of the upload on.
        let end = Instant::now();
        let mut status = [0; 12];
        client.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 504", "{}", proxy.name);
        assert!(end.elapsed() >= ms(1_900), "{}: {:?}", proxy.name, end.elapsed());
        upstream.wait_for_ends(1);
    });
}

#[test]
fn requests_that_are_no_valid_http_are_refused() {
    check(&[], |proxy, _| {
        let refused = |request: &str, status: &str| {
            let mut client = proxy.connect();
            client.write_all(request.as_bytes()).unwrap();
            let said = said(&mut client);
            let is_refused = said.starts_with(&format!("HTTP/1.1 {status} "));
            assert!(is_refused, "{}: {request:?} {said:?}", proxy.name);
        };
        refused("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400");
        refused("GET / HTTP/1.1\r\n\r\n", "400");
        let coded = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n";
        refused(&format!("{coded}0\r\n\r\n"), "501");
    });
}

#[test]
fn response_in_a_coding_that_is_not_known_becomes_502() {
    check(&[], |proxy, _| {
        assert_eq!(get(&mut proxy.connect(), "/coded").0, 502, "{}", proxy.name);
    });
}

#[test]
fn http2_client_that_leaves_during_a_request_leaves_nothing() {
    check(&["--h2c"], |proxy, upstream| {
        let before = proxy.descriptors();
        let mut client = http2(proxy, 1 << 16);
        client.write_all(&head(1, "/sink", false)).unwrap();
        upstream.request();
        drop(client);
        // The log that each check reads says nothing about it.
        upstream.wait_for_ends(1);
        proxy.wait_for_descriptors(&before);
    });
}

#[test]
fn memory_of_cut_clients_is_given_back() {
    check(&["--h2c", "--write-stall", "500ms"], |proxy, upstream| {
        let resident = || -> u64 {
            let status = fs::read_to_string(format!("/proc/{}/status", proxy.id())).unwrap();
            let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let hold = || {
            let mut client = http2(proxy, 0);
            let heads = (1..200).step_by(2).flat_map(|stream| head(stream, "/big", false));
            client.write_all(&heads.collect::<Vec<_>>()).unwrap();
            read_frames(&mut client, None);
            upstream.wait_for_ends(100);
        };
        hold();
        let first = resident();
        for _ in 0..4 {
            hold();
        }
        // Without a limit, each round would keep some 6 MiB.
        assert!(resident() < first + (12 << 10), "{}: {first} KiB, {} KiB", proxy.name, resident());
    });
}

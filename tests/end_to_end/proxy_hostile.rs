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

use corewheel_test_support::sockets::{HEAD_END, read_to, read_to_end};
use corewheel_test_support::{PATIENCE, ms};
use rustix::process::Signal;

use crate::proxy::{MODES, Proxy, ends_with, get, get_of, is_cut, post_of};
use crate::server::command_of;
use crate::{ANYWHERE, at_once, check_not_early};

/// The limit that a test is about. All others are far longer.
pub(super) const LIMIT: Duration = ms(500);

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
    let Ok(head) = read_to(stream, HEAD_END) else { return false };
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let _ = tell.send(Told::Request(head));
    let of_length = |length: usize, body: &str| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    if path == "/late" {
        thread::sleep(3 * LIMIT);
    }
    let said = match path.as_str() {
        "/body" => of_length(9, "abc"),
        "/chunk" => format!("{chunked}9\r\nabc"),
        "/trailers" => format!("{chunked}3\r\nabc\r\n0\r\nX: "),
        "/big" => of_length(1_000_000_000, ""),
        "/coded" => chunked.replace("chunked", "gzip, chunked") + "3\r\nabc\r\n0\r\n\r\n",
        "/bad-chunk" => format!("{chunked}xyz\r\nabc\r\n0\r\n\r\n"),
        "/socket" => {
            let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
            format!("HTTP/1.1 101 Switching Protocols\r\n{upgrade}Sec-WebSocket-Accept: a\r\n\r\n")
        }
        "/" | "/late" => of_length(2, "ok"),
        // It reads nothing, or answers nothing.
        _ => String::new(),
    };
    let _ = stream.write_all(said.as_bytes());
    match path.as_str() {
        "/" => return true,
        "/big" => while stream.write_all(&[b'x'; 1 << 14]).is_ok() {},
        "/socket" => {
            // It sends all back, to the end.
            let mut writer = stream.try_clone().unwrap();
            let _ = std::io::copy(stream, &mut writer);
            let _ = writer.shutdown(Shutdown::Write);
        }
        "/unread" => {
            // A reset shows as an error of a write.
            while stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").is_ok() {
                thread::sleep(ms(50));
            }
        }
        _ => while stream.read(&mut [0; 1 << 12]).is_ok_and(|count| count > 0) {},
    }
    false
}

/// Runs a check in each mode, with one limit. Each proxy has an upstream server of its own, and as
/// many descriptors in the end as in the beginning.
pub(super) fn check(options: &[&str], check: impl Fn(&Proxy, &Upstream) + Sync) {
    check_to_its_end(options, |mut proxy, upstream| {
        check(&proxy, upstream);
        proxy.child.signal(Signal::TERM);
        let log = proxy.log();
        assert!(!log.contains("has ended"), "{log}");
        proxy.wait_for_code(0);
    });
}

/// Runs a check that ends the proxy, in each mode, with one limit.
pub(super) fn check_to_its_end(options: &[&str], check: impl Fn(Proxy, &Upstream) + Sync) {
    let far = ["--header", "--first-byte", "--read-idle", "--write-stall", "--keep-alive"];
    let more = ["--max-age", "--response", "--upstream-stall", "--upstream-idle", "--rate-grace"];
    // The last value of an option would be refused as a second one.
    let far = far.into_iter().chain(more).filter(|option| !options.contains(option));
    let all: Vec<_> =
        far.flat_map(|option| [option, "1h"]).chain(options.iter().copied()).collect();
    at_once(MODES, |mode| {
        let upstream = Upstream::start();
        let mut command = command_of(ANYWHERE, "reverse_proxy");
        command.args(["--upstream", &upstream.address.to_string(), "--threads", "2"]);
        command.args(["--mode", mode, "--timer", "corewheel"]).args(&all).stderr(Stdio::piped());
        check(Proxy::start_by(&mut command), &upstream);
    });
}

/// Runs a check, and then that the proxy has no more descriptors than before.
fn check_leaving_nothing(options: &[&str], leave: impl Fn(&Proxy, &Upstream) + Sync) {
    check(options, |proxy, upstream| {
        let before = proxy.descriptors();
        leave(proxy, upstream);
        proxy.wait_for_descriptors(&before);
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

/// The status of an answer, of which the rest stays.
pub(super) fn said_status(client: &mut TcpStream) -> u16 {
    assert!(read_to(client, " ").unwrap().starts_with("HTTP/1."));
    read_to(client, " ").unwrap().trim().parse().unwrap()
}

#[test]
fn upload_that_the_upstream_server_does_not_read_ends_on_both_sides() {
    check(&["--upstream-stall", "500ms"], |proxy, upstream| {
        let before = proxy.descriptors();
        let mut client = proxy.send(post_of("/unread", 1_000_000_000));
        send_until_answered(&mut client, &[b'x'; 1 << 14], Duration::ZERO);
        assert!(ends_with(&mut client, 504));
        // The client has not closed its side yet.
        upstream.wait_for_ends(1);
        proxy.wait_for_descriptors(&before);
    });
}

#[test]
fn upload_whose_client_leaves_ends_at_the_upstream_server() {
    check_leaving_nothing(&[], |proxy, upstream| {
        let client = proxy.send(post_of("/sink", 9) + "abc");
        upstream.request();
        drop(client);
        upstream.wait_for_ends(1);
    });
}

#[test]
fn upstream_server_that_stalls_in_a_response_ends_it_also_for_pipelining_clients() {
    check_leaving_nothing(&["--upstream-stall", "500ms"], |proxy, upstream| {
        for path in ["/body", "/chunk", "/trailers"] {
            for count in [1, 2] {
                let start = Instant::now();
                let mut client = proxy.send(get_of(path).repeat(count));
                assert!(ends_with(&mut client, 200), "{path}");
                check_not_early(start, LIMIT);
                upstream.wait_for_ends(1);
            }
        }
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

/// An HTTP/2 client that does only what a test says. `window` is that of each response. It sends
/// frames with its preface, so that no limit comes between.
pub(super) fn http2(proxy: &Proxy, window: u32, frames: &[u8]) -> TcpStream {
    let mut settings = vec![0, 4];
    settings.extend(window.to_be_bytes());
    let (settings, acknowledged) = (frame(SETTINGS, 0, 0, &settings), frame(SETTINGS, 1, 0, &[]));
    proxy.send([PREFACE, &settings, &acknowledged, frames].concat())
}

/// A client that has sent a request of HTTP/1, or one of HTTP/2.
fn ask(proxy: &Proxy, is_http2: bool, path: &str) -> TcpStream {
    if is_http2 { http2(proxy, 1 << 16, &head(1, path, false)) } else { proxy.send(get_of(path)) }
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

/// The payload of the next frame of a type.
#[track_caller]
pub(super) fn next(client: &mut TcpStream, kind: u8) -> Vec<u8> {
    let mut frames = std::iter::from_fn(|| read_frame(client));
    frames.find(|frame| frame.0 == kind).expect("the connection goes on").2
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

/// Reads frames to the end. Returns how often each type has come.
fn read_frames(client: &mut TcpStream) -> HashMap<u8, u32> {
    let mut counts = HashMap::new();
    while let Some((kind, _, _)) = read_frame(client) {
        *counts.entry(kind).or_default() += 1;
    }
    counts
}

/// The heads of requests for a response that does not end, of a client without a window for it.
fn ask_without_window(proxy: &Proxy, count: u8) -> TcpStream {
    // All at once: the first may not reach its limit before the last has come.
    let heads = (0..count).flat_map(|number| head(2 * number + 1, "/big", false));
    http2(proxy, 0, &heads.collect::<Vec<_>>())
}

#[test]
fn http2_responses_without_a_window_are_cut_with_their_upstream_connections() {
    check(&["--h2c", "--write-stall", "500ms"], |proxy, upstream| {
        let before = proxy.descriptors();
        for is_trickled in [false, true] {
            let mut client = ask_without_window(proxy, 20);
            if is_trickled {
                let window = |number: u8| frame(WINDOW_UPDATE, 0, 2 * number + 1, &[0, 0, 0, 1]);
                let windows: Vec<_> = (0..20).flat_map(window).collect();
                let mut writer = client.try_clone().unwrap();
                thread::spawn(move || {
                    while writer.write_all(&windows).is_ok() {
                        thread::sleep(ms(50));
                    }
                });
            }
            let counts = read_frames(&mut client);
            assert!(counts.contains_key(&GOAWAY), "{counts:?}");
            upstream.wait_for_ends(20);
        }
        proxy.wait_for_descriptors(&before);
        // hyper has all of a small response at once.
        let counts = read_frames(&mut http2(proxy, 0, &head(1, "/", false)));
        assert!(counts.contains_key(&GOAWAY), "{counts:?}");
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
        assert!(is_cut(&mut client));
        check_not_early(start, LIMIT);
    });
}

#[test]
fn http2_upload_that_the_upstream_server_does_not_read_ends_on_both_sides() {
    check_leaving_nothing(&["--h2c", "--upstream-stall", "500ms"], |proxy, upstream| {
        let mut client = http2(proxy, 1 << 16, &head(1, "/unread", true));
        let counts = upload(&mut client, 1);
        let is_told = counts.contains_key(&RST_STREAM) || counts.contains_key(&GOAWAY);
        assert!(is_told && counts.contains_key(&HEADERS), "{counts:?}");
        // The client has not closed its side yet.
        upstream.wait_for_ends(1);
    });
}

#[test]
fn drain_tells_idle_clients_one_after_another_and_cuts_no_request_within_it() {
    at_once([&[][..], &["--h2c"]], |h2c| {
        check_to_its_end(&[h2c, &["--drain", "10s"]].concat(), |proxy, upstream| {
            let mut idle: Vec<_> = (0..8).map(|_| proxy.connect()).collect();
            for client in &mut idle {
                assert_eq!(get(client, "/").0, 200);
            }
            let mut busy = ask(&proxy, !h2c.is_empty(), "/late");
            while !upstream.request().starts_with("get /late ") {}
            let start = Instant::now();
            proxy.child.signal(Signal::TERM);
            if h2c.is_empty() {
                assert!(ends_with(&mut busy, 200));
            } else {
                let counts = read_frames(&mut busy);
                assert!(counts.contains_key(&GOAWAY) && counts.contains_key(&DATA), "{counts:?}");
            }
            for client in &mut idle {
                assert!(is_cut(client));
            }
            // At least four clients are those of one shard.
            check_not_early(start, ms(5_000));
            proxy.wait_for_code(0);
        });
    });
}

#[test]
fn drain_that_cuts_a_request_is_told_by_the_exit_code() {
    for h2c in [&[][..], &["--h2c"]] {
        check_to_its_end(&[h2c, &["--drain", "500ms"]].concat(), |mut proxy, upstream| {
            let start = Instant::now();
            let mut client = ask(&proxy, !h2c.is_empty(), "/sink");
            upstream.request();
            proxy.child.signal(Signal::TERM);
            read_to_end(&mut client);
            check_not_early(start, LIMIT);
            upstream.wait_for_ends(1);
            let log = proxy.log();
            assert!(log.contains("cut at the end of the drain: 1"), "{log}");
            proxy.wait_for_code(3);
        });
    }
}

#[test]
fn head_that_is_too_large_and_response_in_a_coding_that_is_not_known_are_refused() {
    check(&[], |proxy, _| {
        let mut client = proxy.send("GET / HTTP/1.1\r\nHost: proxy\r\nX: ");
        client.write_all(&vec![b'x'; 1 << 20]).unwrap();
        assert_eq!(said_status(&mut client), 431);
        assert_eq!(get(&mut proxy.connect(), "/coded").0, 502);
    });
}

#[test]
fn client_waits_for_longer_than_the_idle_time_of_reads_between_requests() {
    check(&["--read-idle", "500ms", "--keep-alive", "1h"], |proxy, _| {
        let mut client = proxy.connect();
        for _ in 0..2 {
            assert_eq!(get(&mut client, "/").0, 200);
            thread::sleep(3 * LIMIT);
        }
    });
}

#[test]
fn upload_that_takes_longer_than_the_time_for_a_response_is_answered() {
    // Far longer than an answer takes.
    check(&["--response", "2s"], |proxy, upstream| {
        let mut client = proxy.send(post_of("/sink", 30));
        for _ in 0..30 {
            thread::sleep(ms(100));
            client.write_all(b"x").unwrap();
        }
        // The upstream server does not answer, and has its time from the end of the upload on.
        let end = Instant::now();
        assert_eq!(said_status(&mut client), 504);
        check_not_early(end, ms(1_900));
        upstream.wait_for_ends(1);
    });
}

#[test]
fn http2_client_that_leaves_during_a_request_leaves_nothing() {
    check_leaving_nothing(&["--h2c"], |proxy, upstream| {
        let client = ask(proxy, true, "/sink");
        upstream.request();
        drop(client);
        // The log that each check reads says nothing about it.
        upstream.wait_for_ends(1);
    });
}

#[test]
fn memory_of_cut_clients_is_given_back() {
    check(&["--h2c", "--write-stall", "500ms"], |proxy, upstream| {
        let resident = || -> u64 {
            let path = format!("/proc/{}/status", proxy.child.process.id());
            let status = fs::read_to_string(path).unwrap();
            let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        let hold = || {
            read_frames(&mut ask_without_window(proxy, 100));
            upstream.wait_for_ends(100);
        };
        hold();
        let first = resident();
        (0..4).for_each(|_| hold());
        // Without a limit, each round would keep some 6 MiB.
        assert!(resident() < first + (12 << 10), "{first} KiB, {} KiB", resident());
    });
}

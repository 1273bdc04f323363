//! The example `reverse_proxy`, in both modes and with each timer, as honest and slow clients find
//! it. Its own small upstream server answers.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use corewheel_test_support::child::Child;
use corewheel_test_support::sockets::{self, HEAD_END, is_closed, read_to, read_to_end};
use corewheel_test_support::{PATIENCE, ms};
use rustix::process::Signal;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::server::{command_of, counts, is_silent};
use crate::{ANYWHERE, at_once, check_not_early, wait_while};

pub(super) const MODES: [&str; 2] = ["multi-thread", "per-core"];
/// The most runtimes that a proxy of these tests has: one for each of its threads.
const RUNTIMES_MAX: usize = 2;

/// A running proxy.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) child: Child,
    pub(super) address: SocketAddr,
    stats: SocketAddr,
}

impl Proxy {
    fn start(mode: &str, timer: &str, options: &[&str]) -> Self {
        let mut command = command_of(ANYWHERE, "reverse_proxy");
        command.args(["--demo-upstream", "--threads", "2", "--mode", mode, "--timer", timer]);
        Self::start_by(command.args(options))
    }

    /// Starts a proxy on free ports.
    pub(super) fn start_by(command: &mut Command) -> Self {
        let child =
            Child::start(command.args(["--listen", "127.0.0.1:0", "--stats", "127.0.0.1:0"]));
        let address = |begin: &str| {
            let told = child.told(begin);
            told.split(' ').next().unwrap().trim_end_matches('/').parse().unwrap()
        };
        let proxy = address("listening on ");
        child.told("upstream: ");
        let stats = address("statistics: http://");
        child.told("try it: ");
        Self { child, address: proxy, stats }
    }

    pub(super) fn connect(&self) -> TcpStream {
        sockets::connect(self.address)
    }

    /// A client that has sent this.
    pub(super) fn send(&self, request: impl AsRef<[u8]>) -> TcpStream {
        let mut client = self.connect();
        client.write_all(request.as_ref()).unwrap();
        client
    }

    fn stats(&self) -> Value {
        let (_, body) = sockets::get(self.stats, "/stats.json");
        serde_json::from_str(&body).unwrap()
    }

    /// How many heads were too slow.
    fn late_heads(&self) -> u64 {
        let stats = self.stats();
        let kinds = stats["deadlines"].as_array().unwrap();
        kinds.iter().find(|row| row["kind"] == "request").unwrap()["count"].as_u64().unwrap()
    }

    /// The sum of a count of a class over all shards.
    fn count(&self, class: &str, count: &str) -> u64 {
        let stats = self.stats();
        let shards = stats["shards"].as_array().unwrap().iter();
        let classes = shards.flat_map(|shard| shard["classes"].as_array().unwrap());
        let of_class = classes.filter(|row| row["class"] == class);
        of_class.map(|row| row[count].as_u64().unwrap()).sum()
    }

    /// The descriptors of the proxy by their numbers, each with what it is open to. A proxy has
    /// printed its addresses after it has opened all that it has without a client.
    pub(super) fn descriptors(&self) -> BTreeMap<String, PathBuf> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.child.process.id())).unwrap();
        // One that is closed meanwhile is none.
        let open_to = |entry: DirEntry| {
            let file = fs::read_link(entry.path()).ok()?;
            Some((entry.file_name().into_string().unwrap(), file))
        };
        entries.filter_map(|entry| open_to(entry.unwrap())).collect()
    }

    /// Waits until the proxy has no descriptors but those of before, and one for each of its
    /// runtimes, which the first timeout that expires makes for the passes of the runtime.
    #[track_caller]
    pub(super) fn wait_for_descriptors(&self, before: &BTreeMap<String, PathBuf>) {
        wait_while(|| {
            let mut stay = self.descriptors();
            stay.retain(|number, file| before.get(number) != Some(file));
            let is_of_passes = |file: &PathBuf| file.as_os_str() == "anon_inode:[eventfd]";
            let are_of_passes = stay.len() <= RUNTIMES_MAX && stay.values().all(is_of_passes);
            (!are_of_passes).then(|| format!("descriptors stay: {stay:?}"))
        });
    }

    /// What the proxy has logged, until it ends, where standard error is piped.
    pub(super) fn log(&mut self) -> String {
        let mut log = String::new();
        self.child.process.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        log
    }

    /// Waits for the end of a proxy that was sent a signal, and checks its exit code: 0 if it has
    /// cut no request. Each timer of each shard must have ended.
    pub(super) fn wait_for_code(mut self, code: i32) {
        let (ended, lines) = self.child.wait();
        assert_eq!(ended, Some(code), "{lines:?}");
        assert!(!counts(&lines).is_empty());
    }

    /// Ends the proxy, which must cut no request.
    fn end(self, signal: Signal) {
        self.child.signal(signal);
        self.wait_for_code(0);
    }
}

/// A request without a body.
pub(super) fn get_of(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: proxy\r\n\r\n")
}

/// The head of a request with a body of so many bytes.
pub(super) fn post_of(path: &str, length: usize) -> String {
    format!("POST {path} HTTP/1.1\r\nHost: proxy\r\nContent-Length: {length}\r\n\r\n")
}

/// Sends a request without a body, and returns the status and the body of the answer.
pub(super) fn get(stream: &mut TcpStream, path: &str) -> (u16, Vec<u8>) {
    stream.write_all(get_of(path).as_bytes()).unwrap();
    read_answer(stream)
}

/// Reads an answer with a `Content-Length`.
pub(super) fn read_answer(stream: &mut TcpStream) -> (u16, Vec<u8>) {
    let (status, length) = read_answer_head(stream).unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    (status, body)
}

/// Reads the head of an answer. Returns the status, and the length of the body.
fn read_answer_head(stream: &mut TcpStream) -> io::Result<(u16, usize)> {
    let head = read_to(stream, HEAD_END)?.to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    Ok((status, length.parse().unwrap()))
}

/// Whether the server has closed the connection of a client that has read everything.
pub(super) fn is_cut(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => is_closed(&error),
    }
}

/// Whether all that the server says until it closes the connection begins with this status.
pub(super) fn ends_with(stream: &mut TcpStream, status: u16) -> bool {
    read_to_end(stream).starts_with(format!("HTTP/1.1 {status} ").as_bytes())
}

/// Runs a check for each mode and each of the timers, at the same time.
pub(super) fn check(timers: &[&str], options: &[&str], check: impl Fn(&Proxy) + Sync) {
    check_to_its_end(timers, options, |proxy, _| {
        check(&proxy);
        proxy.end(Signal::TERM);
    });
}

/// Runs a check, which ends the proxy and knows its timer, for each mode and each of the timers, at
/// the same time.
pub(super) fn check_to_its_end(
    timers: &[&str],
    options: &[&str],
    check: impl Fn(Proxy, &str) + Sync,
) {
    let cases = MODES.iter().flat_map(|mode| timers.iter().map(move |timer| (*mode, *timer)));
    at_once(cases, |(mode, timer)| {
        check(Proxy::start(mode, timer, options), timer);
    });
}

/// What the upstream server of the example says of a body.
pub(super) fn received(bytes: usize) -> (u16, Vec<u8>) {
    (200, format!("the body of the request had {bytes} bytes\n").into_bytes())
}

/// All timers.
pub(super) const ALL: [&str; 3] = ["corewheel", "tokio", "none"];

#[test]
fn proxy_forwards_requests_in_each_mode_with_each_timer() {
    check(&ALL, &[], |proxy| {
        let mut client = proxy.connect();
        assert_eq!(get(&mut client, "/"), received(0));
        client.write_all(post_of("/", 300_000).as_bytes()).unwrap();
        client.write_all(&vec![b'x'; 300_000]).unwrap();
        assert_eq!(read_answer(&mut client), received(300_000));
        let (status, body) = get(&mut client, "/big?bytes=3000000");
        assert_eq!((status, body.len()), (200, 3_000_000));
    });
}

#[test]
fn slow_upstream_answer_becomes_504() {
    // The request after the slow one has as much time, so this is far longer than an answer takes.
    check(&["corewheel", "tokio"], &["--response", "4s"], |proxy| {
        let start = Instant::now();
        let mut client = proxy.connect();
        assert_eq!(get(&mut client, "/slow?ms=60000").0, 504);
        check_not_early(start, ms(4_000));
        // The connection is as good as before.
        assert_eq!(get(&mut client, "/").0, 200);
    });
}

#[test]
fn absent_upstream_server_becomes_502() {
    // The socket does not listen, so connects are refused, and no other socket takes its port.
    let upstream = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    upstream.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = upstream.local_addr().unwrap().as_socket().unwrap();
    let mut command = command_of(ANYWHERE, "reverse_proxy");
    let proxy = Proxy::start_by(command.args(["--upstream", &address.to_string()]));
    assert_eq!(get(&mut proxy.connect(), "/").0, 502);
    proxy.end(Signal::INT);
}

#[test]
fn client_with_slow_head_gets_408_and_is_cut() {
    const HEAD: &str = "GET / HTTP/1.1\r\nHost: proxy\r\n";
    check_to_its_end(&["corewheel", "tokio"], &["--header", "400ms"], |proxy, timer| {
        // A client that sends nothing more gets the answer, which hyper itself does not send.
        let mut silent = proxy.send(HEAD);
        let is_408 = ends_with(&mut silent, 408);
        let start = Instant::now();
        let mut client = proxy.send(HEAD);
        let mut reader = client.try_clone().unwrap();
        let answer = thread::scope(|scope| {
            // The client goes on to send, so that only the whole head can be too slow.
            scope.spawn(move || {
                while client.write_all(b"X-More: x\r\n").is_ok() {
                    thread::sleep(ms(20));
                }
            });
            read_to_end(&mut reader)
        });
        check_not_early(start, ms(400));
        // What the client sends after the answer may reset the connection, and take the answer.
        let is_408_or_reset = answer.is_empty() || answer.starts_with(b"HTTP/1.1 408 ");
        assert!(is_408_or_reset, "{}", String::from_utf8_lossy(&answer));
        if timer == "corewheel" {
            assert!(is_408);
            // Those of the head and of the end of the close of the silent client, which holds its
            // socket until then. A read of the other client, which sends on, may find that its
            // head is late, or that its close is over, before the timer fires.
            let count = |name| proxy.count("connection", name);
            wait_while(|| (count("fired") < 2).then(|| format!("{} fired", count("fired"))));
            wait_while(|| (count("pending") > 0).then(|| "a timer is pending".to_owned()));
            assert!((2..=4).contains(&count("fired")), "{}", count("fired"));
            assert_eq!(proxy.late_heads(), 2);
        }
        proxy.end(Signal::TERM);
    });
}

#[test]
fn client_with_slow_head_is_not_cut_without_timers() {
    check(&["none"], &["--header", "50ms", "--first-byte", "50ms"], |proxy| {
        let mut client = proxy.send("GET / HTTP/1.1\r\nHost: proxy\r\n");
        assert!(is_silent(&mut client, ms(500)));
        client.write_all(b"\r\n").unwrap();
        assert_eq!(read_answer(&mut client).0, 200);
    });
}

#[test]
fn idle_connection_of_a_client_is_closed_without_an_answer() {
    // With tokio's timers, the time for the head ends the wait for it.
    check(&["corewheel", "tokio"], &["--header", "3s", "--keep-alive", "3s"], |proxy| {
        let mut client = proxy.connect();
        let start = Instant::now();
        assert_eq!(get(&mut client, "/").0, 200);
        assert!(is_cut(&mut client));
        check_not_early(start, ms(3_000));
    });
}

#[test]
fn client_with_stalled_body_is_answered_408_by_the_limit_of_each_timer() {
    let of_reads = ["--read-idle", "300ms", "--response", "1h", "--read-rate", "0"];
    let cases: [(&str, &[&str]); 2] =
        [("tokio", &["--response", "300ms"]), ("corewheel", &of_reads)];
    for (timer, options) in cases {
        check(&[timer], options, |proxy| {
            let start = Instant::now();
            let mut client = proxy.send(post_of("/", 9) + "abc");
            assert_eq!(read_answer(&mut client).0, 408);
            assert!(is_cut(&mut client));
            check_not_early(start, ms(300));
        });
    }
}

/// Options by which only the rates of a client count, after a grace.
fn rates<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let far = ["--read-idle", "--write-stall", "--keep-alive", "--response"];
    far.into_iter().flat_map(|limit| [limit, "1h"]).chain(more.iter().copied()).collect()
}

#[test]
fn client_that_sends_its_body_byte_by_byte_is_cut() {
    let options = rates(&["--rate-grace", "300ms", "--read-rate", "1000"]);
    check(&["corewheel"], &options, |proxy| {
        let start = Instant::now();
        let mut client = proxy.send(post_of("/", 100_000));
        while client.write_all(b"x").is_ok() {
            assert!(start.elapsed() < PATIENCE, "the client is not cut");
            thread::sleep(ms(20));
        }
        check_not_early(start, ms(300));
    });
}

/// How many bytes a client asks for that is cut as it reads none of them, or too few.
const BYTES: usize = 30_000_000;

#[test]
fn client_that_reads_byte_by_byte_is_cut() {
    let options = ["--rate-grace", "300ms", "--write-rate", "1000000", "--send-buffer", "65536"];
    check(&["corewheel"], &rates(&options), |proxy| is_cut_after_pause(proxy, true));
}

#[test]
fn client_that_does_not_read_is_cut() {
    let mut options = vec!["--write-stall", "300ms", "--read-idle", "1h", "--keep-alive", "1h"];
    options.extend(["--send-buffer", "65536"]);
    check(&["corewheel"], &options, |proxy| is_cut_after_pause(proxy, false));
    // With tokio's timers the client is not cut, and gets everything.
    check(&["tokio"], &options, |proxy| {
        assert!(received_after_pause(proxy, ms(600), false) >= BYTES);
    });
}

/// Checks that a client is cut that does not read, or only byte by byte, for long enough.
fn is_cut_after_pause(proxy: &Proxy, reads: bool) {
    let mut pause = ms(600);
    while received_after_pause(proxy, pause, reads) >= BYTES {
        assert!(pause < PATIENCE, "the client is not cut");
        pause *= 2;
    }
}

/// How many bytes a client receives that asks for many, reads none or single ones for a time, and
/// then reads all that comes.
fn received_after_pause(proxy: &Proxy, pause: Duration, reads: bool) -> usize {
    let head = format!("GET /big?bytes={BYTES} HTTP/1.1\r\nHost: proxy\r\n");
    let mut client = proxy.send(head + "Connection: close\r\n\r\n");
    let (start, mut received) = (Instant::now(), 0);
    while start.elapsed() < pause {
        thread::sleep(ms(20));
        if reads && client.read(&mut [0]).is_ok_and(|length| length == 1) {
            received += 1;
        }
    }
    received + read_to_end(&mut client).len()
}

#[test]
fn connection_ends_at_its_greatest_age() {
    check(&["corewheel"], &["--max-age", "500ms", "--max-age-jitter", "200ms"], |proxy| {
        let start = Instant::now();
        let mut client = proxy.connect();
        let (request, mut answer) = (get_of("/"), [0; 1_000]);
        while client.write_all(request.as_bytes()).is_ok()
            && client.read(&mut answer).is_ok_and(|n| n > 0)
        {
            assert!(start.elapsed() < PATIENCE, "the client is not cut");
        }
        check_not_early(start, ms(500));
    });
}

#[test]
fn request_in_flight_is_not_cut_as_idle() {
    let options = ["--read-idle", "3s", "--keep-alive", "3s", "--response", "1h"];
    check(&["corewheel"], &options, |proxy| {
        let requests = [get_of("/slow?ms=5000"), post_of("/slow?ms=5000", 3) + "abc"];
        for mut client in requests.map(|request| proxy.send(request)) {
            assert_eq!(read_answer(&mut client).0, 200);
        }
    });
}

#[test]
fn request_with_body_is_not_measured_while_it_is_answered() {
    let options = rates(&["--rate-grace", "3s", "--read-rate", "1000"]);
    check(&["corewheel"], &options, |proxy| {
        let mut client = begin_body(proxy, "/slow?ms=5000");
        client.write_all(b"abc").unwrap();
        assert_eq!(read_answer(&mut client).0, 200);
    });
}

/// Sends the head of a request with a body of three bytes, and waits until the proxy forwards it.
fn begin_body(proxy: &Proxy, path: &str) -> TcpStream {
    let head = format!("POST {path} HTTP/1.1\r\nHost: proxy\r\nContent-Length: 3\r\n");
    let mut client = proxy.send(head + "Expect: 100-continue\r\n\r\n");
    assert_eq!(read_to(&mut client, HEAD_END).unwrap(), "HTTP/1.1 100 Continue\r\n\r\n");
    client
}

/// A client that takes longer than each limit for everything together, and for no part of it.
struct Honest {
    stream: TcpStream,
    last: Instant,
    longest_pause: Duration,
}

impl Honest {
    fn pause(&mut self) {
        thread::sleep(ms(100));
        self.longest_pause = self.longest_pause.max(self.last.elapsed());
        self.last = Instant::now();
    }

    /// Uploads, downloads and asks.
    fn run(&mut self) -> io::Result<()> {
        self.stream.write_all(post_of("/", 3_000).as_bytes())?;
        for _ in 0..30 {
            self.pause();
            self.stream.write_all(&[b'x'; 100])?;
        }
        self.read(39)?;
        for _ in 0..30 {
            self.pause();
            self.stream.write_all(get_of("/").as_bytes())?;
            self.read(36)?;
        }
        self.stream.write_all(get_of("/big?bytes=6000000").as_bytes())?;
        self.read(6_000_000)
    }

    /// Reads an answer with a body of so many bytes, a large body in 30 parts.
    fn read(&mut self, length: usize) -> io::Result<()> {
        assert_eq!(read_answer_head(&mut self.stream)?, (200, length));
        let mut body = vec![0; length];
        let is_big = length > 1_000;
        for part in body.chunks_mut(length.div_ceil(if is_big { 30 } else { 1 })) {
            self.stream.read_exact(part)?;
            if is_big {
                self.pause();
            }
        }
        self.last = Instant::now();
        Ok(())
    }
}

#[test]
fn honest_client_is_served_for_longer_than_each_limit() {
    let mut options = vec!["--response", "1h", "--send-buffer", "65536"];
    for name in ["--header", "--first-byte", "--read-idle", "--write-stall", "--keep-alive"] {
        options.extend([name, "2s"]);
    }
    check(&["corewheel", "tokio"], &options, |proxy| {
        let (stream, last) = (proxy.connect(), Instant::now());
        let mut client = Honest { stream, last, longest_pause: Duration::ZERO };
        if let Err(error) = client.run() {
            // A client that the machine has held up may have been too slow.
            let pause = client.longest_pause.max(client.last.elapsed());
            assert!(pause >= ms(1_000), "{error}");
            println!("skipped: the client was held up, {error}");
        }
    });
}

#[test]
fn proxy_on_sigterm_answers_the_request_in_progress_and_ends() {
    check_to_its_end(&ALL, &["--drain", "20s"], |proxy, _| {
        let mut idle = proxy.connect();
        assert_eq!(get(&mut idle, "/").0, 200);
        let mut busy = begin_body(&proxy, "/");
        proxy.child.signal(Signal::TERM);
        assert!(is_cut(&mut idle));
        busy.write_all(b"abc").unwrap();
        assert_eq!(read_answer(&mut busy), received(3));
        assert!(is_cut(&mut busy));
        proxy.wait_for_code(0);
    });
}

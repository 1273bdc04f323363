//! The example `reverse_proxy`, in both modes and with each timer, as honest and slow clients find
//! it. Its own small upstream server answers.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::server::{Kill, command_of, is_closed, read_to_end};
use crate::{ANYWHERE, World};
use corewheel_test_support::{PATIENCE, ms};

pub(super) const MODES: [&str; 2] = ["multi-thread", "per-core"];
/// The most runtimes that a proxy of these tests has: one for each of its threads.
const RUNTIMES_MAX: usize = 2;

/// A running proxy.
#[derive(Debug)]
pub(super) struct Proxy {
    process: Kill,
    stdout: BufReader<ChildStdout>,
    pub(super) name: String,
    pub(super) address: SocketAddr,
    stats: SocketAddr,
}

impl Proxy {
    fn start(mode: &str, timer: &str, options: &[&str]) -> Self {
        Self::start_in(ANYWHERE, mode, timer, options)
    }

    fn start_in(world: World, mode: &str, timer: &str, options: &[&str]) -> Self {
        let mut command = command_of(world, "reverse_proxy");
        command.args(["--demo-upstream", "--threads", "2", "--mode", mode, "--timer", timer]);
        command.args(options);
        Self::start_by(command, format!("{mode} {timer}"))
    }

    /// Starts a proxy on free ports.
    pub(super) fn start_by(mut command: Command, name: String) -> Self {
        command.args(["--listen", "127.0.0.1:0", "--stats", "127.0.0.1:0"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Kill(command.spawn().unwrap());
        let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
        let mut fact = |name: &str| {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            let fact = line.strip_prefix(name).unwrap_or_else(|| panic!("{name}? {line}"));
            fact.split_whitespace().next().unwrap().trim_end_matches('/').to_owned()
        };
        let address = fact("listening on ").parse().unwrap();
        fact("upstream: ");
        let stats = fact("statistics: http://").parse().unwrap();
        fact("try it: ");
        Self { process, stdout, name, address, stats }
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// The sum of a count of a class over all shards.
    fn count(&self, class: &str, count: &str) -> u64 {
        let mut stream = TcpStream::connect(self.stats).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = self.stats;
        write!(stream, "GET /stats.json HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
            .unwrap();
        let answer = read_to_end(&mut stream);
        let answer = String::from_utf8(answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let stats: Value = serde_json::from_str(body).unwrap();
        let shards = stats["shards"].as_array().unwrap().iter();
        let classes = shards.flat_map(|shard| shard["classes"].as_array().unwrap());
        let of_class = classes.filter(|row| row["class"] == class);
        of_class.map(|row| row[count].as_u64().unwrap()).sum()
    }

    /// Waits until a count of a class has this value, or more.
    fn wait_for(&self, class: &str, name: &str, value: u64) {
        let start = Instant::now();
        loop {
            let count = self.count(class, name);
            if count >= value {
                return;
            }
            let late = start.elapsed() >= PATIENCE;
            assert!(!late, "{}: {class} {name} is {count}, not {value}", self.name);
            thread::sleep(ms(20));
        }
    }

    /// Waits until no timer of a class is pending.
    fn wait_until_none_is_pending(&self, class: &str) {
        let start = Instant::now();
        while self.count(class, "pending") > 0 {
            assert!(start.elapsed() < PATIENCE, "{}: {class} is pending", self.name);
            thread::sleep(ms(20));
        }
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process.0), signal).unwrap();
    }

    pub(super) fn id(&self) -> u32 {
        self.process.0.id()
    }

    /// The descriptors of the proxy by their numbers, each with what it is open to. A proxy has
    /// printed its addresses after it has opened all that it has without a client.
    pub(super) fn descriptors(&self) -> BTreeMap<String, PathBuf> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.id())).unwrap();
        let entries = entries.map(|entry| entry.unwrap());
        // One that is closed meanwhile is none.
        let open_to =
            |entry: DirEntry| Some((entry.file_name(), fs::read_link(entry.path()).ok()?));
        let named = entries.filter_map(open_to);
        named.map(|(number, file)| (number.into_string().unwrap(), file)).collect()
    }

    /// Waits until the proxy has no descriptors but those of before, and one for each of its
    /// runtimes, which the first timeout that expires makes for the passes of the runtime.
    #[track_caller]
    pub(super) fn wait_for_descriptors(&self, before: &BTreeMap<String, PathBuf>) {
        let start = Instant::now();
        loop {
            let mut stay = self.descriptors();
            stay.retain(|number, file| before.get(number) != Some(file));
            let is_of_passes = |file: &&PathBuf| file.as_os_str() == "anon_inode:[eventfd]";
            if stay.len() <= RUNTIMES_MAX && stay.values().all(|file| is_of_passes(&file)) {
                return;
            }
            let is_late = start.elapsed() >= PATIENCE;
            assert!(!is_late, "{}: descriptors stay:\n{}", self.name, self.describe(&stay));
            thread::sleep(ms(20));
        }
    }

    /// Descriptors, one on a line, each socket with its line of the system's table.
    fn describe(&self, descriptors: &BTreeMap<String, PathBuf>) -> String {
        let table = |name| fs::read_to_string(format!("/proc/{}/net/{name}", self.id()));
        let tables = ["tcp", "tcp6", "unix"].map(|name| table(name).unwrap_or_default());
        let lines = || tables.iter().flat_map(|table| table.lines());
        let describe = |(number, file): (&String, &PathBuf)| {
            let file = file.display().to_string();
            let inode = file.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
            let is_of = |line: &&str| line.split_whitespace().any(|word| Some(word) == inode);
            let line = lines().find(is_of).unwrap_or_default();
            format!("{number}: {file} {line}\n")
        };
        descriptors.iter().map(describe).collect()
    }

    /// What the proxy has logged, until it ends, where standard error is piped.
    pub(super) fn log(&mut self) -> String {
        let mut log = String::new();
        self.process.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        log
    }

    /// Waits for the end of a proxy that was sent a signal, and checks that it has cut no request
    /// and that each timer of each shard has ended.
    pub(super) fn wait(self) {
        self.wait_for_code(0);
    }

    /// As [`wait`](Self::wait), for another exit code.
    pub(super) fn wait_for_code(mut self, code: i32) {
        let mut said = String::new();
        self.stdout.read_to_string(&mut said).unwrap();
        let status = self.process.0.wait().unwrap();
        assert_eq!(status.code(), Some(code), "{}: {said}", self.name);
        assert!(said.contains("shard 0: "), "{}: {said}", self.name);
        for line in said.lines() {
            let words: Vec<_> = line.split([' ', ':', ',']).collect();
            let counts: Vec<u64> = words[2..].iter().filter_map(|word| word.parse().ok()).collect();
            let &[scheduled, ref ended @ ..] = counts.as_slice() else { panic!("{line}") };
            assert_eq!(scheduled, ended.iter().sum::<u64>(), "{}: {line}", self.name);
        }
    }
}

/// Sends a request without a body, and returns the status and the body of the answer.
pub(super) fn get(stream: &mut TcpStream, path: &str) -> (u16, Vec<u8>) {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: proxy\r\n\r\n").unwrap();
    read_answer(stream)
}

/// Reads an answer with a `Content-Length`.
pub(super) fn read_answer(stream: &mut TcpStream) -> (u16, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (status, body)
}

/// Whether the server has closed the connection of a client that has read everything.
pub(super) fn is_cut(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(length) => length == 0,
        Err(error) => is_closed(&error),
    }
}

/// Runs a check for each mode and each of the timers, at the same time.
pub(super) fn check(timers: &[&str], options: &[&str], check: impl Fn(&Proxy) + Sync) {
    check_to_its_end(timers, options, |proxy| {
        check(&proxy);
        proxy.signal(Signal::TERM);
        proxy.wait();
    });
}

/// Runs a check, which ends the proxy, for each mode and each of the timers, at the same time.
pub(super) fn check_to_its_end(timers: &[&str], options: &[&str], check: impl Fn(Proxy) + Sync) {
    thread::scope(|scope| {
        for mode in MODES {
            for timer in timers {
                let check = &check;
                scope.spawn(move || check(Proxy::start(mode, timer, options)));
            }
        }
    });
}

#[test]
fn proxy_forwards_requests_in_each_mode_with_each_timer() {
    check(&["corewheel", "tokio", "none"], &[], |proxy| {
        let mut client = proxy.connect();
        let nothing = b"the body of the request had 0 bytes\n".to_vec();
        assert_eq!(get(&mut client, "/"), (200, nothing), "{}", proxy.name);
        let head = b"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: 300000\r\n\r\n";
        client.write_all(head).unwrap();
        client.write_all(&vec![b'x'; 300_000]).unwrap();
        let all = b"the body of the request had 300000 bytes\n".to_vec();
        assert_eq!(read_answer(&mut client), (200, all), "{}", proxy.name);
        let (status, body) = get(&mut client, "/big?bytes=3000000");
        assert_eq!((status, body.len()), (200, 3_000_000), "{}", proxy.name);
    });
}

#[test]
fn proxy_runs_where_io_uring_is_forbidden() {
    for mode in MODES {
        let world = World { forbidden: Some("EPERM"), ..ANYWHERE };
        let proxy = Proxy::start_in(world, mode, "corewheel", &[]);
        assert_eq!(get(&mut proxy.connect(), "/").0, 200, "{mode}");
        proxy.signal(Signal::INT);
        proxy.wait();
    }
}

#[test]
fn slow_upstream_answer_becomes_504() {
    // The request after the slow one has as much time, so this is far longer than an answer takes.
    const RESPONSE: Duration = ms(4_000);
    check(&["corewheel", "tokio"], &["--response", "4s"], |proxy| {
        let mut client = proxy.connect();
        let start = Instant::now();
        let (status, _) = get(&mut client, "/slow?ms=60000");
        assert_eq!(status, 504, "{}", proxy.name);
        assert!(start.elapsed() >= RESPONSE, "{}: {:?}", proxy.name, start.elapsed());
        // The connection is as good as before.
        assert_eq!(get(&mut client, "/").0, 200, "{}", proxy.name);
    });
}

#[test]
fn absent_upstream_server_becomes_502() {
    // The socket does not listen, so connects are refused, and no other socket takes its port.
    let upstream = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    upstream.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = upstream.local_addr().unwrap().as_socket().unwrap();
    let mut command = command_of(ANYWHERE, "reverse_proxy");
    command.args(["--upstream", &address.to_string()]);
    let proxy = Proxy::start_by(command, "no upstream server".to_owned());
    assert_eq!(get(&mut proxy.connect(), "/").0, 502);
    proxy.signal(Signal::TERM);
    proxy.wait();
}

#[test]
fn client_with_slow_head_gets_408_and_is_cut() {
    const HEAD: Duration = ms(400);
    let options = ["--header", "400ms"];
    check(&["corewheel", "tokio"], &options, |proxy| {
        let start = Instant::now();
        let mut client = proxy.connect();
        client.write_all(b"GET / HTTP/1.1\r\nHost: proxy\r\n").unwrap();
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
        assert!(start.elapsed() >= HEAD, "{}: {:?}", proxy.name, start.elapsed());
        // What the client sends after the answer may reset the connection, and take the answer.
        let is_408 = answer.is_empty() || answer.starts_with(b"HTTP/1.1 408 ");
        assert!(is_408, "{}: {}", proxy.name, String::from_utf8_lossy(&answer));
        // A client that sends nothing more gets the answer, which hyper itself does not send.
        let mut client = proxy.connect();
        client.write_all(b"GET / HTTP/1.1\r\nHost: proxy\r\n").unwrap();
        let answer = read_to_end(&mut client);
        if proxy.name.ends_with("corewheel") {
            assert!(answer.starts_with(b"HTTP/1.1 408 "), "{}", proxy.name);
            // Two heads, and the ends of two closes: both clients hold their sockets until then. A
            // close is over by the clock, so where the first client sends at that moment, the read
            // of it may find the end before the timer fires.
            proxy.wait_for("connection", "fired", 3);
            proxy.wait_until_none_is_pending("connection");
            let fired = proxy.count("connection", "fired");
            assert!((3..=4).contains(&fired), "{}: {fired}", proxy.name);
        }
    });
}

#[test]
fn client_with_slow_head_is_not_cut_without_timers() {
    check(&["none"], &["--header", "50ms", "--first-byte", "50ms"], |proxy| {
        let mut client = proxy.connect();
        client.write_all(b"GET / HTTP/1.1\r\nHost: proxy\r\n").unwrap();
        client.set_read_timeout(Some(ms(500))).unwrap();
        let waited = client.read(&mut [0]).unwrap_err().kind();
        assert!(matches!(waited, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{waited}");
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"\r\n").unwrap();
        assert_eq!(read_answer(&mut client).0, 200, "{}", proxy.name);
    });
}

#[test]
fn idle_connection_of_a_client_is_closed_without_an_answer() {
    const IDLE: Duration = ms(3_000);
    // With tokio's timers, the time for the head ends the wait for it.
    let options = ["--header", "3s", "--keep-alive", "3s"];
    check(&["corewheel", "tokio"], &options, |proxy| {
        let mut client = proxy.connect();
        let start = Instant::now();
        assert_eq!(get(&mut client, "/").0, 200, "{}", proxy.name);
        assert!(is_cut(&mut client), "{}", proxy.name);
        assert!(start.elapsed() >= IDLE, "{}: {:?}", proxy.name, start.elapsed());
    });
}

#[test]
fn client_with_stalled_body_is_answered_408_by_the_response_time_of_tokio() {
    let options = ["--response", "300ms"];
    check(&["tokio"], &options, |proxy| {
        let mut client = proxy.connect();
        let start = Instant::now();
        client
            .write_all(b"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: 9\r\n\r\nabc")
            .unwrap();
        let (status, _) = read_answer(&mut client);
        assert_eq!(status, 408, "{}", proxy.name);
        assert!(start.elapsed() >= ms(300), "{}: {:?}", proxy.name, start.elapsed());
        assert!(is_cut(&mut client), "{}", proxy.name);
    });
}

#[test]
fn client_with_stalled_body_is_answered_408_by_the_idle_time_of_reads() {
    const READ_IDLE: Duration = ms(300);
    let options = ["--read-idle", "300ms", "--response", "1h", "--read-rate", "0"];
    check(&["corewheel"], &options, |proxy| {
        let mut client = proxy.connect();
        let start = Instant::now();
        client
            .write_all(b"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: 9\r\n\r\nabc")
            .unwrap();
        assert_eq!(read_answer(&mut client).0, 408, "{}", proxy.name);
        assert!(is_cut(&mut client), "{}", proxy.name);
        assert!(start.elapsed() >= READ_IDLE, "{}: {:?}", proxy.name, start.elapsed());
    });
}

#[test]
fn client_that_sends_its_body_byte_by_byte_is_cut() {
    const GRACE: Duration = ms(300);
    let options = ["--read-idle", "1h", "--response", "1h", "--rate-grace", "300ms"];
    let options = [&options[..], &["--read-rate", "1000"]].concat();
    check(&["corewheel"], &options, |proxy| {
        let mut client = proxy.connect();
        let start = Instant::now();
        let head = b"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: 100000\r\n\r\n";
        client.write_all(head).unwrap();
        while client.write_all(b"x").is_ok() {
            assert!(start.elapsed() < PATIENCE, "{}: the client is not cut", proxy.name);
            thread::sleep(ms(20));
        }
        assert!(start.elapsed() >= GRACE, "{}: {:?}", proxy.name, start.elapsed());
    });
}

#[test]
fn client_that_reads_byte_by_byte_is_cut() {
    const BYTES: usize = 30_000_000;
    let options = ["--write-stall", "1h", "--read-idle", "1h", "--keep-alive", "1h"];
    let rate = ["--rate-grace", "300ms", "--write-rate", "1000000", "--send-buffer", "65536"];
    let options = [&options[..], &rate].concat();
    check(&["corewheel"], &options, |proxy| {
        let mut pause = ms(600);
        while received_after_pause(proxy, BYTES, pause, true) >= BYTES {
            assert!(pause < PATIENCE, "{}: the client is not cut", proxy.name);
            pause *= 2;
        }
    });
}

#[test]
fn connection_ends_at_its_greatest_age() {
    const AGE: Duration = ms(500);
    let options = ["--max-age", "500ms", "--max-age-jitter", "200ms"];
    check(&["corewheel"], &options, |proxy| {
        let start = Instant::now();
        let mut client = proxy.connect();
        let request = b"GET / HTTP/1.1\r\nHost: proxy\r\n\r\n";
        let mut answer = [0; 1_000];
        while client.write_all(request).is_ok() && client.read(&mut answer).is_ok_and(|n| n > 0) {
            assert!(start.elapsed() < PATIENCE, "{}: the client is not cut", proxy.name);
        }
        assert!(start.elapsed() >= AGE, "{}: {:?}", proxy.name, start.elapsed());
    });
}

/// How many bytes a client receives that asks for so many, reads none or single ones for a time,
/// and then reads all that comes.
fn received_after_pause(proxy: &Proxy, bytes: usize, pause: Duration, reads: bool) -> usize {
    let mut client = proxy.connect();
    let head = format!("GET /big?bytes={bytes} HTTP/1.1\r\nHost: proxy\r\n");
    client.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).unwrap();
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
fn client_that_does_not_read_is_cut() {
    const BYTES: usize = 30_000_000;
    let options = ["--write-stall", "300ms", "--read-idle", "1h", "--keep-alive", "1h"];
    let options = [&options[..], &["--send-buffer", "65536"]].concat();
    check(&["corewheel"], &options, |proxy| {
        let mut pause = ms(600);
        while received_after_pause(proxy, BYTES, pause, false) >= BYTES {
            assert!(pause < PATIENCE, "{}: the client is not cut", proxy.name);
            pause *= 2;
        }
    });
    // With tokio's timers the client is not cut, and gets everything.
    check(&["tokio"], &options, |proxy| {
        assert!(received_after_pause(proxy, BYTES, ms(600), false) >= BYTES, "{}", proxy.name);
    });
}

#[test]
fn request_in_flight_is_not_cut_as_idle() {
    let options = ["--read-idle", "3s", "--keep-alive", "3s", "--response", "1h"];
    check(&["corewheel"], &options, |proxy| {
        let mut client = proxy.connect();
        let (status, _) = get(&mut client, "/slow?ms=5000");
        assert_eq!(status, 200, "{}", proxy.name);
        let mut client = proxy.connect();
        let head = "POST /slow?ms=5000 HTTP/1.1\r\nHost: proxy\r\nContent-Length: 3\r\n\r\n";
        client.write_all(format!("{head}abc").as_bytes()).unwrap();
        assert_eq!(read_answer(&mut client).0, 200, "{}", proxy.name);
    });
}

#[test]
fn request_with_body_is_not_measured_while_it_is_answered() {
    let options = ["--read-idle", "1h", "--keep-alive", "1h", "--response", "1h"];
    let options = [&options[..], &["--rate-grace", "3s", "--read-rate", "1000"]].concat();
    check(&["corewheel"], &options, |proxy| {
        let mut client = proxy.connect();
        begin_body(&mut client, "/slow?ms=5000");
        client.write_all(b"abc").unwrap();
        assert_eq!(read_answer(&mut client).0, 200, "{}", proxy.name);
    });
}

/// Sends the head of a request with a body of three bytes, and waits until the proxy forwards it.
fn begin_body(client: &mut TcpStream, path: &str) {
    let head = format!("POST {path} HTTP/1.1\r\nHost: proxy\r\nContent-Length: 3\r\n");
    client.write_all(format!("{head}Expect: 100-continue\r\n\r\n").as_bytes()).unwrap();
    let mut go_on = [0; 25];
    client.read_exact(&mut go_on).unwrap();
    assert_eq!(String::from_utf8_lossy(&go_on), "HTTP/1.1 100 Continue\r\n\r\n");
}

/// A client that takes longer than each limit for everything together, and for no part of it.
struct Honest {
    stream: TcpStream,
    last: Instant,
    longest_pause: Duration,
}

impl Honest {
    fn pause(&mut self, time: Duration) {
        thread::sleep(time);
        self.longest_pause = self.longest_pause.max(self.last.elapsed());
        self.last = Instant::now();
    }

    /// Uploads, downloads and asks.
    fn run(&mut self) -> io::Result<()> {
        let head = b"POST / HTTP/1.1\r\nHost: proxy\r\nContent-Length: 3000\r\n\r\n";
        self.stream.write_all(head)?;
        for _ in 0..30 {
            self.pause(ms(100));
            self.stream.write_all(&[b'x'; 100])?;
        }
        self.read(39)?;
        for _ in 0..30 {
            self.pause(ms(100));
            self.stream.write_all(b"GET / HTTP/1.1\r\nHost: proxy\r\n\r\n")?;
            self.read(36)?;
        }
        let head = b"GET /big?bytes=6000000 HTTP/1.1\r\nHost: proxy\r\n\r\n";
        self.stream.write_all(head)?;
        self.read(6_000_000)
    }

    /// Reads an answer with a body of so many bytes, the body in 30 parts.
    fn read(&mut self, length: usize) -> io::Result<()> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        assert!(head.contains(&format!("content-length: {length}\r\n")), "{head}");
        let mut body = vec![0; length];
        let is_big = length > 1_000;
        for part in body.chunks_mut(length.div_ceil(if is_big { 30 } else { 1 })) {
            self.stream.read_exact(part)?;
            if is_big {
                self.pause(ms(100));
            }
        }
        self.last = Instant::now();
        Ok(())
    }
}

#[test]
fn honest_client_is_served_for_longer_than_each_limit() {
    const LIMIT: Duration = Duration::from_secs(2);
    let mut options = vec!["--response", "1h", "--send-buffer", "65536"];
    for name in ["--header", "--first-byte", "--read-idle", "--write-stall", "--keep-alive"] {
        options.extend([name, "2s"]);
    }
    check(&["corewheel", "tokio"], &options, |proxy| {
        let (stream, last) = (proxy.connect(), Instant::now());
        let mut client = Honest { stream, last, longest_pause: Duration::ZERO };
        let served = client.run();
        // A client that the machine has held up may have been too slow.
        let was_quick = client.longest_pause.max(client.last.elapsed()) < LIMIT / 2;
        match served {
            Ok(()) => {}
            Err(error) if was_quick => panic!("{}: {error}", proxy.name),
            Err(error) => println!("skipped: the client was held up, {error}"),
        }
    });
}

#[test]
fn proxy_on_sigterm_answers_the_request_in_progress_and_ends() {
    check_to_its_end(&["corewheel", "tokio", "none"], &["--drain", "50s"], |proxy| {
        let mut idle = proxy.connect();
        assert_eq!(get(&mut idle, "/").0, 200, "{}", proxy.name);
        let mut busy = proxy.connect();
        begin_body(&mut busy, "/");
        proxy.signal(Signal::TERM);
        assert!(is_cut(&mut idle), "{}", proxy.name);
        busy.write_all(b"abc").unwrap();
        let answer = b"the body of the request had 3 bytes\n".to_vec();
        assert_eq!(read_answer(&mut busy), (200, answer), "{}", proxy.name);
        assert!(is_cut(&mut busy), "{}", proxy.name);
        proxy.wait();
    });
}

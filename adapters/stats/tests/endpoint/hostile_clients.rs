//! Clients that are slow, silent, wrong or too many.

use std::time::Duration;

use crate::client::{Connection, Reply, get, request};
use crate::{check_status, fire, huge_service, served, served_by, wait_until};

/// The most connections of an endpoint.
const CONNECTIONS_MAX: usize = 64;

#[test]
fn request_that_is_not_http_or_has_a_nul_byte_gets_400() {
    let not_http: [&[u8]; 11] = [
        b"what is this\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on",
        &[0xff; 300],
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\n: no name\r\n\r\n",
        &[0; 8],
        b"GET /\0 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHo\0st: a\r\n\r\n",
    ];
    for sent in not_http {
        check_status(sent, 400);
    }
}

#[test]
fn request_with_conflicting_or_malformed_lengths_gets_400() {
    for headers in [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: wonderful",
        "Content-Length: -5",
        "Content-Length: 5, 6",
        "Content-Length: 99999999999999999999999",
    ] {
        check_status(format!("GET / HTTP/1.1\r\n{headers}\r\n\r\n0\r\n\r\n"), 400);
    }
}

#[test]
fn request_with_huge_head_gets_431() {
    let a = |count| "a".repeat(count);
    for length in [20_000, 100_000, 3_000_000] {
        check_status(format!("GET /{} HTTP/1.1\r\n\r\n", a(length)), 431);
    }
    check_status(format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", a(20_000)), 431);
    check_status(format!("GET / HTTP/1.1\r\n{}: x\r\n\r\n", a(20_000)), 431);
    check_status(format!("GET / HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(200)), 431);
    // A head without an end.
    check_status(a(1 << 20), 431);
    check_status(format!("GET / HTTP/1.1\r\nX: {}", a(1 << 20)), 431);
}

#[test]
fn request_with_huge_body_gets_413() {
    let head = |length: usize| format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
    check_status(head(100_000_000), 413);
    check_status(head(500_000) + &"b".repeat(500_000), 413);
    check_status(head(4_000_000) + &"b".repeat(4_000_000), 413);
    check_status("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5000\r\n\r\n", 413);
    // The server ignores a body this short.
    check_status(head(100) + &"b".repeat(100), 405);
    check_status("GET /live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nbody", 200);
}

#[test]
fn client_that_sends_one_byte_at_a_time_is_cut_off() {
    let (_service, _endpoint, address) = served();
    let mut connection = Connection::open(address);
    let mut endless = b"GET /live HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x'));
    wait_until("the slow client is cut off", || {
        connection.is_cut_off() || !connection.send(&[*endless.next().unwrap()])
    });
    assert_eq!(get(address, "/live").status, 200);
}

#[test]
fn client_that_sends_half_a_request_or_none_is_cut_off() {
    let (_service, _endpoint, address) = served();
    let halves = ["", "G", "GET /live HTTP/1.1\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n"];
    // All of them wait for the deadline at once.
    let opened = halves.map(|half| Connection::opened(address, half.as_bytes()));
    for (half, connection) in halves.iter().zip(opened) {
        let rest = connection.rest();
        assert!(rest.is_empty(), "{half:?}: {}", rest.escape_ascii());
    }
}

#[test]
fn client_that_disconnects_early_does_not_affect_other_clients() {
    let (_service, _endpoint, address) = served();
    for half in ["", "GET /hea", "GET /metrics HTTP/1.1\r\n\r\n"] {
        drop(Connection::opened(address, half.as_bytes()));
        let connection = Connection::opened(address, half.as_bytes());
        connection.shut_down_writes();
        connection.rest();
    }
    assert_eq!(get(address, "/live").status, 200);
}

#[test]
fn slow_clients_lose_their_connections_to_newer_clients() {
    const SLOW: usize = 200;
    let (service, _endpoint, address) = served();
    let half = b"GET /live HTTP/1.1\r\nHost: ";
    let slow: Vec<_> = (0..SLOW).map(|_| Connection::opened(address, half)).collect();
    fire(&service, 0, 10);
    assert_eq!(get(address, "/live").status, 200);
    wait_until("at most the maximum of connections is open", || {
        slow.iter().filter(|connection| !connection.is_cut_off()).count() <= CONNECTIONS_MAX
    });
    assert!(slow[0].is_cut_off(), "the oldest connection is cut off");
    fire(&service, 0, 10);
}

#[test]
fn clients_beyond_the_maximum_of_connections_are_all_answered() {
    let (_service, _endpoint, address) = served();
    let start_client = |_| {
        std::thread::spawn(move || {
            // On a busy machine the endpoint may cut off a slow client, which then tries again.
            wait_until("a client is answered", || {
                let sent = request("GET", "/live");
                let response = Connection::opened(address, sent.as_bytes()).rest();
                !response.is_empty() && Reply::parse(&response).status == 200
            });
        })
    };
    let clients: Vec<_> = (0..5 * CONNECTIONS_MAX).map(start_client).collect();
    for client in clients {
        client.join().unwrap();
    }
}

#[test]
fn client_that_reads_too_late_is_cut_off() {
    let (_service, _endpoint, address) = served_by(huge_service());
    // The deadline passes in this time. On a busy machine the endpoint may notice later.
    let mut pause = Duration::from_secs(11);
    loop {
        let sent = request("GET", "/metrics");
        let connection = Connection::opened(address, sent.as_bytes());
        std::thread::sleep(pause);
        let rest = connection.rest();
        if rest.is_empty() || !Reply::parse(&rest).is_complete() {
            break;
        }
        pause *= 2;
        assert!(pause < corewheel_test_support::PATIENCE, "the response is always complete");
    }
    assert_eq!(get(address, "/").status, 200);
}

#[test]
fn stop_does_not_wait_for_open_connections() {
    let (_service, endpoint, address) = served_by(huge_service());
    let unread = Connection::opened(address, request("GET", "/metrics").as_bytes());
    let silent = Connection::open(address);
    let slow = Connection::opened(address, b"GET / HTTP");
    // When a later connection is answered, these three have been accepted.
    assert_eq!(get(address, "/").status, 200);
    drop(endpoint);
    assert!(silent.rest().is_empty());
    assert!(slow.rest().is_empty());
    assert!(!Reply::parse(&unread.rest()).is_complete());
}

/// Runs in a child process, so that the lack of descriptors does not affect other tests.
#[cfg(target_os = "linux")]
#[test]
fn endpoint_without_free_descriptors_waits_and_does_not_spin() {
    const CHILD: &str = "COREWHEEL_TEST_WITHOUT_DESCRIPTORS";
    if std::env::var_os(CHILD).is_some() {
        return use_up_descriptors();
    }
    let name = "hostile_clients::endpoint_without_free_descriptors_waits_and_does_not_spin";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", name]).env(CHILD, "yes");
    let output = command.output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && report.contains("1 passed"), "{report}");
}

#[cfg(target_os = "linux")]
fn use_up_descriptors() {
    let (service, _endpoint, address) = served();
    let before = endpoint_ticks();
    let mut files = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        files.push(file);
    }
    files.pop();
    // The client's socket takes the last descriptor, so the server cannot accept it.
    let sent = request("GET", "/live");
    let connection = Connection::opened(address, sent.as_bytes());
    std::thread::sleep(Duration::from_secs(2));
    assert!(!connection.is_cut_off());
    fire(&service, 0, 10);
    drop(files);
    assert_eq!(Reply::parse(&connection.rest()).status, 200);
    let used = endpoint_ticks() - before;
    assert!(used < 50, "{used} hundredths of a second of work in two seconds of waiting");
}

/// The processor time that the endpoint's thread has used, in hundredths of a second.
#[cfg(target_os = "linux")]
fn endpoint_ticks() -> u64 {
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        let (name, numbers) = stat.rsplit_once(") ").unwrap();
        if name.ends_with("(corewheel-http") {
            // The 14th and 15th field of the line; the first two are not in `numbers`.
            let numbers: Vec<_> = numbers.split(' ').skip(11).take(2).collect();
            return numbers.iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum();
        }
    }
    panic!("the endpoint has no thread");
}

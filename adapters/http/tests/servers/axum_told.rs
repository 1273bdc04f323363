//! What `serve` of this package tells its clients, over real sockets, of HTTP/1 and HTTP/2: before
//! a connection that is idle, too old or drained ends, and where a head or a body is too slow.

use std::io::Write;
use std::thread;
use std::time::Instant;

use corewheel::conn::DataRate;
use corewheel_http::hyper::BodyLimits;
use corewheel_test_support::stream::NONE as OFF;

use crate::http::{
    DATA, GOAWAY, HEADERS, PING, RST_STREAM, check_at_once, connect, frame, get, head, ping,
    preface, rest_of,
};
use crate::served::{FAR, Http2, LIMIT, OK, Server, WORK};

/// `:status` of the static table with a literal, which is `408` in Huffman's code of HPACK.
const REQUEST_TIMEOUT: [u8; 5] = [0x48, 0x83, 0x68, 0x0f, 0x7f];

#[test]
fn http2_client_that_sends_pings_and_no_request_gets_goaway_and_is_cut() {
    check_at_once([false, true], |has_asked| {
        let server = Server::of(OFF.idle(LIMIT));
        let begin = Instant::now();
        let client = if has_asked { server.greet_http2() } else { Http2::connect(server.address) };
        let kinds = client.rest_beside_pings(LIMIT / 5);
        assert!(kinds.contains(&GOAWAY), "{kinds:?}");
        assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
        assert_eq!(server.stop(), [("request idle", 1)]);
    });
}

#[test]
fn http2_client_without_a_request_has_the_time_of_an_idle_connection() {
    // Of the limits for the first request, those of a head and of its rate end with the preface.
    let limits = OFF.idle(FAR).head(LIMIT).min_read_rate(DataRate::new(1_000_000, LIMIT));
    let server = Server::of(limits);
    let mut client = Http2::connect(server.address);
    client.send(&ping());
    client.wait_for(PING);
    thread::sleep(2 * LIMIT);
    client.send(&head(1, "/", false));
    assert_eq!(client.status(), OK);
    drop(client);
    server.stop();
}

#[test]
fn client_is_told_and_gets_its_response_at_the_greatest_age_and_in_a_drain() {
    let limits = [OFF.max_age(LIMIT).max_age_grace(FAR), OFF];
    let cases = limits.into_iter().flat_map(|limits| [(limits, false), (limits, true)]);
    check_at_once(cases, |(limits, is_http2)| {
        let server = Server::of(limits);
        let head = if is_http2 { head(1, "/work", false) } else { get("/work") };
        let begin = if is_http2 { preface() } else { Vec::new() };
        let client = server.send(&[begin, head].concat());
        server.wait_for_work();
        if limits == OFF {
            // The only connection is told at the beginning of the window.
            server.service.drain(FAR);
        }
        if is_http2 {
            let mut client = Http2(client);
            client.wait_for(GOAWAY);
            server.answer();
            assert_eq!(client.status(), OK);
            assert_eq!(client.wait_for(DATA), (1, b"worked".to_vec()));
            // The client does not close its side, and holds nothing by that.
            client.rest();
            server.stop();
        } else {
            thread::sleep(2 * LIMIT);
            server.answer();
            let answer = rest_of(client);
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("worked"), "{answer:?}");
            assert!(answer.contains("connection: close"), "{answer:?}");
            assert_eq!(server.stop(), [("max age", 1)]);
        }
    });
}

#[test]
fn idle_client_of_http2_is_told_once_when_the_service_drains() {
    let server = Server::of(OFF.idle(FAR));
    let client = server.greet_http2();
    server.service.drain(FAR);
    let mut told = client.rest();
    told.retain(|kind| *kind == GOAWAY);
    assert_eq!(told, [GOAWAY]);
    server.stop();
}

#[test]
fn drained_server_answers_requests_in_flight_and_closes_each_connection() {
    let server = Server::of(OFF);
    let has_request = |number| number % 2 == 0;
    let connect = |number| {
        if has_request(number) { server.send(&get("/late")) } else { server.greet() }
    };
    let clients: Vec<_> = (0..20).map(connect).collect();
    (0..10).for_each(|_| server.wait_for_work());
    server.service.drain(2 * WORK);
    for (number, client) in clients.into_iter().enumerate() {
        let answer = rest_of(client);
        assert_eq!(answer.ends_with("worked"), has_request(number), "{answer}");
    }
    // Each is told once, and ends by that.
    let told = server.service.stats().deadlines[0];
    assert_eq!((told.kind, told.count), ("max age", 20));
    assert_eq!(server.stop(), [("max age", 20)]);
}

#[test]
fn request_that_takes_longer_than_the_drain_is_cut() {
    let server = Server::of(OFF);
    let clients = [server.send(&get("/work")), server.greet()];
    server.wait_for_work();
    server.service.drain(LIMIT);
    for client in clients {
        assert_eq!(rest_of(client), "");
    }
    assert_eq!(server.stop(), [("max age", 1), ("age grace", 1)]);
}

#[test]
fn connection_that_begins_in_a_drain_has_one_request() {
    let server = Server::of(OFF);
    server.service.drain(FAR);
    let mut one = connect(server.address);
    // The server has told the connection before its first request.
    thread::sleep(LIMIT / 5);
    one.write_all(&get("/")).unwrap();
    let answer = rest_of(one);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer:?}");
    let mut two = Http2::connect(server.address);
    thread::sleep(LIMIT / 5);
    two.send(&head(1, "/", false));
    let kinds = two.rest();
    assert!(kinds.contains(&HEADERS) && kinds.contains(&GOAWAY), "{kinds:?}");
    server.stop();
}

#[test]
fn http2_client_that_goes_on_does_not_hold_the_graceful_shutdown() {
    let server = Server::of(OFF);
    let client = server.greet_http2();
    let reading = thread::spawn(move || client.rest());
    server.stop();
    assert!(reading.join().unwrap().contains(&GOAWAY));
}

/// The head and a half of the body of a request.
pub(super) fn half(path: &str) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 9\r\n\r\n");
    [head.as_bytes(), b"half"].concat()
}

#[test]
fn http1_client_gets_408_also_while_it_sends_its_slow_body() {
    let rate = DataRate::new(1_000, LIMIT);
    let server = Server::start(OFF, BodyLimits::NONE.min_frame_rate(rate));
    let client = server.send(b"POST /post HTTP/1.1\r\nhost: test\r\ncontent-length: 9999\r\n\r\n");
    let mut sending = client.try_clone().unwrap();
    let sends = thread::spawn(move || {
        while sending.write_all(b"x").is_ok() {
            thread::sleep(LIMIT / 20);
        }
    });
    // What comes after the response does not take it back: the server reads on.
    let answer = rest_of(client);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    assert!(answer.contains("connection: close"), "{answer:?}");
    sends.join().unwrap();
    server.stop();
}

#[test]
fn http2_client_whose_body_is_slow_gets_408_and_its_connection_goes_on() {
    let server = Server::start(OFF.idle(FAR), BodyLimits::NONE.next_frame(LIMIT));
    let mut client = Http2::connect(server.address);
    client.send(&[head(1, "/post", true), frame(DATA, 0, 1, b"half")].concat());
    let (stream, block) = client.wait_for(HEADERS);
    assert_eq!((stream, &block[..5]), (1, &REQUEST_TIMEOUT[..]));
    client.wait_for(RST_STREAM);
    client.send(&head(3, "/", false));
    assert_eq!(client.status(), OK);
    drop(client);
    server.wait_for_tasks();
    server.stop();
}

#[test]
fn answer_of_a_handler_that_goes_on_without_the_body_stays() {
    let server = Server::start(OFF, BodyLimits::NONE.next_frame(LIMIT));
    let answer = server.answer_to(&half("/tolerant"));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("whole: false"), "{answer:?}");
    server.stop();
}

#[test]
fn http1_client_whose_head_is_slow_gets_408_and_one_of_http2_nothing() {
    let server = Server::of(OFF.head(LIMIT));
    let begin = Instant::now();
    let answer = server.answer_to(b"GET / HTTP/1.1\r\nhost: te");
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer:?}");
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    // The head of a later request.
    let mut client = server.greet();
    let begin = Instant::now();
    client.write_all(b"GET / HT").unwrap();
    assert!(rest_of(client).starts_with("HTTP/1.1 408 "));
    assert!(begin.elapsed() >= LIMIT, "after {:?}", begin.elapsed());
    assert_eq!(server.answer_to(&preface()[..10]), "");
    assert_eq!(server.stop(), [("request", 3)]);
}

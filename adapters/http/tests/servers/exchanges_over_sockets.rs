//! The limits of bodies in a server with real sockets, of HTTP/1 and HTTP/2: a body that waits for
//! too long ends, and its request with it, once.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::DataRate;
use corewheel_http::hyper::BodyLimits;
use corewheel_test_support::stream::NONE as OFF;

use crate::http::{GOAWAY, HEADERS, PATIENCE, RST_STREAM, frame, get, ms, wait_until};
use crate::on_its_way::clients::{Client, Version};
use crate::served::{FAR, LIMIT, LONG, Server, Settings, UNLIMITED};

/// A server whose responses must be asked for on in time.
fn next_poll(idle: Duration) -> Server {
    let (limits, response) = (OFF.idle(idle).write_stall(FAR), BodyLimits::NONE.next_poll(LIMIT));
    Server::with(Settings { limits, response, ..UNLIMITED })
}

/// A size alone is no fault: HTTP sets no bound, and the bytes may come.
#[test]
fn chunk_of_an_impossible_size_is_ended_by_the_stall_and_by_the_rate_as_any_other() {
    let drips = BodyLimits::default().min_frame_rate(DataRate::new(1_000, LIMIT));
    for (limits, drips) in [(BodyLimits::default().next_frame(LIMIT), false), (drips, true)] {
        let server = Server::start(OFF, limits);
        let head = b"POST /post HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut client = server.send(&[&head[..], b"ffffffffffffffff\r\nhello"].concat());
        let begun = Instant::now();
        client.set_read_timeout(Some(ms(50))).unwrap();
        let mut answer = [0; 12];
        // A byte each 50 ms is too few for the rate, and never a stall.
        while client.peek(&mut answer).is_err() {
            assert!(begun.elapsed() < PATIENCE, "it goes on");
            if drips {
                // It fails once the server has answered.
                let _ = client.write_all(b"x");
            }
        }
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer.escape_ascii().to_string(), "HTTP/1.1 408");
        assert!(begun.elapsed() >= LIMIT, "after {:?}", begun.elapsed());
    }
}

#[test]
fn response_whose_handler_stops_is_broken_off() {
    let response = BodyLimits::NONE.next_frame(LIMIT);
    let server = Server::with(Settings { response, ..UNLIMITED });
    let answer = server.answer_to(&get("/stalls"));
    assert!(answer.contains("xxx") && !answer.ends_with("0\r\n\r\n"), "{answer:?}");
    server.wait_for_drop();
    server.wait_for_tasks();
    let mut client = server.ask_http2("/stalls");
    client.wait_for(HEADERS);
    client.wait_for(RST_STREAM);
    server.wait_for_drop();
    drop(client);
    server.wait_for_tasks();
}

#[test]
fn response_that_its_client_does_not_take_is_dropped_while_the_client_stays() {
    let server = next_poll(Duration::ZERO);
    let http1 = server.send(&get("/endless"));
    server.wait_for_drop();
    drop(http1);
    server.wait_for_tasks();
    let client = server.ask_http2("/endless");
    server.wait_for_drop();
    drop(client);
    server.wait_for_tasks();
}

#[test]
fn http2_request_that_the_client_cancels_holds_nothing() {
    let server = Server::of(OFF.idle(2 * LIMIT));
    let mut client = server.ask_http2("/never");
    server.wait_for_work();
    thread::sleep(3 * LIMIT);
    client.send(&frame(RST_STREAM, 0, 1, &[0, 0, 0, 8]));
    server.wait_for_drop();
    // The client itself stays, and is idle.
    assert!(client.rest().contains(&GOAWAY));
    assert_eq!(server.stop(), [("request idle", 1)]);
}

#[test]
fn http2_request_that_is_cut_while_hyper_holds_its_last_frame_ends_once() {
    let server = next_poll(FAR);
    let mut client = Client::connect(server.address, Version::Http2, 40_000);
    client.get(1, "/long");
    client.read_data(40_000);
    // The rest of the only frame has no window, and its body is cut meanwhile.
    thread::sleep(2 * LIMIT);
    // The frame was given to hyper, so the client may have it yet; a second request ends as well.
    client.give_window(1, 1 << 20);
    client.read_data(LONG - 40_000);
    client.get(3, "/");
    client.get(5, "/long");
    client.give_window(5, 1 << 20);
    client.read_data(LONG);
    // A connection with a request in progress is not one of the idlest.
    let ending = thread::spawn(move || client.wait_for_end());
    wait_until(|| {
        server.service.close_idlest(1);
        ending.is_finished()
    });
    ending.join().unwrap();
    assert_eq!(server.stop(), [("max age", 1)]);
}

#[test]
fn http1_request_is_not_cut_while_hyper_holds_its_last_frame() {
    let server = next_poll(LIMIT);
    let mut client = Client::connect(server.address, Version::Http1, 0);
    client.get(1, "/long");
    // hyper holds what the socket does not take, and the body has ended.
    thread::sleep(3 * LIMIT);
    client.read_data(LONG);
    client.wait_for_end();
    drop(client);
    assert_eq!(server.stop(), [("all idle", 1)]);
}

//! The time in which the server holds its own window shut does not count against its clients.

use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::DataRate;
use corewheel_http::hyper::BodyLimits;
use corewheel_test_support::stream::NONE as OFF;

use crate::exchanges::{Asked, NONE, Polled};
use crate::http::{DATA, HEADERS, Lab, WINDOW_UPDATE, check_comes, frame, head, lab, ms, preface};
use crate::served::{Http2, LIMIT, OK, Server};

/// The window of a connection at its beginning.
const WINDOW: usize = 65_535;

/// For how much time in all a body is excused.
const EXCUSE_MAX: Duration = Duration::from_secs(60);

/// A client whose first request, which a handler does not read yet, has used up the window of the
/// connection.
fn use_up(server: &Server) -> Http2 {
    let mut client = Http2::connect(server.address);
    client.send(&head(1, "/hold", true));
    server.wait_for_work();
    let (_, added) = client.wait_for(WINDOW_UPDATE);
    let added = u32::from_be_bytes(added.try_into().unwrap());
    let mut left = WINDOW + usize::try_from(added).unwrap();
    while left > 0 {
        let part = left.min(16 << 10);
        client.send(&frame(DATA, 0, 1, &vec![b'a'; part]));
        left -= part;
    }
    client
}

#[test]
fn request_that_waits_for_the_window_that_another_one_has_used_up_is_not_late() {
    let next_frame = BodyLimits::default().next_frame(LIMIT);
    let rate = BodyLimits::default().min_frame_rate(DataRate::new(1_000, LIMIT));
    for limits in [next_frame, rate] {
        let server = Server::start(OFF, limits);
        let mut client = use_up(&server);
        client.send(&head(3, "/post", true));
        thread::sleep(3 * LIMIT);
        // The other handler reads, and the server gives a window.
        server.answer();
        client.wait_for(WINDOW_UPDATE);
        client.send(&frame(DATA, 1, 3, b"in time"));
        loop {
            let (_, head) = client.wait_for(HEADERS);
            assert_eq!(head[0], OK, "{head:?}");
            let (stream, body) = client.wait_for(DATA);
            if stream == 3 {
                assert_eq!(body, b"in time");
                break;
            }
        }
        drop(client);
        server.stop();
    }
}

#[test]
fn client_that_stops_when_the_window_is_open_again_is_late() {
    let server = Server::start(OFF, BodyLimits::default().next_frame(LIMIT));
    let mut client = use_up(&server);
    client.send(&frame(DATA, 1, 1, b""));
    client.send(&head(3, "/post", true));
    thread::sleep(2 * LIMIT);
    let opened = Instant::now();
    server.answer();
    assert_eq!(client.status(), OK, "that of the first request");
    assert_ne!(client.status(), OK);
    assert!(opened.elapsed() + ms(1) >= LIMIT / 2, "after {:?}", opened.elapsed());
    drop(client);
    server.stop();
}

/// A request whose body waits, and another one of its connection has used up the window.
fn waiting_for_window(lab: &Lab) -> Asked {
    let mut asked = Asked::new(lab.handle(), NONE.next_frame(LIMIT), NONE);
    assert_eq!(asked.request.poll_with(std::task::Waker::noop()), Polled::Waits);
    asked.receive(&[preface(), head(1, "/", true)].concat());
    for _ in 0..5 {
        asked.receive(&frame(DATA, 0, 1, &[0; WINDOW / 5]));
    }
    asked
}

#[test]
fn window_that_stays_shut_excuses_a_body_for_a_bounded_time() {
    let mut lab = lab();
    let asked = waiting_for_window(&lab);
    for _ in 0..EXCUSE_MAX.as_secs() {
        lab.advance(Duration::from_secs(1));
    }
    check_comes(&mut lab, LIMIT, || asked.request.is_dropped());
}

#[test]
fn window_excuses_a_body_for_as_long_as_it_was_shut() {
    let mut lab = lab();
    let mut asked = waiting_for_window(&lab);
    lab.advance(10 * LIMIT);
    assert!(!asked.request.is_dropped());
    asked.send(&frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]));
    check_comes(&mut lab, LIMIT, || asked.request.is_dropped());
}

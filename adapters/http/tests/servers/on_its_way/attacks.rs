//! Clients without a window for their response that take other frames, and responses that come
//! when nothing else is to be written.

use super::clients::ping;
use super::*;

/// Far longer than a round of the clients takes.
const SLOW: Duration = ms(1_000);

#[test]
fn client_without_a_window_that_fills_the_socket_by_pings_is_a_stalled_write() {
    let limits = StreamLimits::default().write_stall(SLOW).idle(STALL);
    thread::scope(|scope| {
        for side in SIDES {
            for empties in [false, true] {
                scope.spawn(move || {
                    let case = format!("{side:?}, the client empties the socket: {empties}");
                    let server = Server::start(side, limits);
                    let begin = Instant::now();
                    let mut client = Client::connect(server.address, Version::Http2, 0);
                    client.get(1, "/long");
                    client.flood_until_cut(&ping(), empties);
                    server.check_ended(Some(WriteStall(SLOW)), &case);
                    assert!(begin.elapsed() >= SLOW, "{case}");
                });
            }
        }
    });
}

#[test]
fn data_that_comes_after_all_was_flushed_is_a_stalled_write_without_a_window() {
    let limits = StreamLimits::default().write_stall(LIMIT).idle(STALL);
    for side in SIDES {
        let server = Server::start(side, limits);
        let begin = Instant::now();
        let mut client = Client::connect(server.address, Version::Http2, 0);
        client.get(1, "/late");
        server.check_ended(Some(WriteStall(LIMIT)), &format!("{side:?}"));
        assert!(begin.elapsed() >= LATE + LIMIT, "{side:?}");
    }
}

#[test]
fn http2_client_that_asks_for_more_while_a_response_waits_is_a_stalled_write() {
    // The responses that it takes have no data.
    let limits = StreamLimits::default().write_stall(SLOW).idle(STALL);
    thread::scope(|scope| {
        for side in SIDES {
            scope.spawn(move || {
                let server = Server::start(side, limits);
                let mut client = Client::connect(server.address, Version::Http2, 0);
                client.get(1, "/long");
                client.get(3, "/204");
                client.get(5, "/304");
                server.check_ended(Some(WriteStall(SLOW)), &format!("{side:?}"));
            });
        }
    });
}

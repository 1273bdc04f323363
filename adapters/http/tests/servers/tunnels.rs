//! Tunnels and streams last until their sides have ended them: a success to CONNECT of HTTP/1 and
//! HTTP/2, a `101`, a stream of gRPC in both directions, and events that a server sends. Their
//! bytes keep a connection from being idle, and nothing but a grace cuts one that was told to end.

use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use corewheel::conn::DataRate;
use corewheel::stream::StreamLimits;
use corewheel_http::hyper::BodyLimits;
use corewheel_test_support::stream::NONE as OFF;

use crate::http::{
    DATA, GOAWAY, HEADERS, PING, RST_STREAM, check_at_once, frame, head, head_of, ms, pong,
    read_until, rest_of, wait_until,
};
use crate::served::{FAR, Http2, LIMIT, OK, Server, present};

/// Longer than a connection that was told to end stays without a request.
const PAST_TOLD: Duration = ms(1_500);

/// What opens a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Opening {
    /// `101` of HTTP/1.
    Upgrade,
    /// CONNECT of HTTP/1.
    Connect,
    /// CONNECT of HTTP/2, as for a WebSocket.
    Extended,
    /// A request of gRPC, whose messages the server sends back.
    Stream,
    /// A request of gRPC without messages, while the server sends some.
    Pushed,
    /// Events of a server over HTTP/2.
    Events,
    EventsOfHttp1,
}

impl Opening {
    const ALL: [Self; 7] = {
        use Opening::{Connect, Events, EventsOfHttp1, Extended, Pushed, Stream, Upgrade};
        [Upgrade, Connect, Extended, Stream, Pushed, Events, EventsOfHttp1]
    };

    fn has_events(self) -> bool {
        matches!(self, Self::Pushed | Self::Events | Self::EventsOfHttp1)
    }
}

/// A tunnel to a server that sends each byte back, or a stream of such a server.
struct Tunnel {
    opening: Opening,
    /// Its connection, of HTTP/1 or HTTP/2.
    client: Http2,
    /// The stream of HTTP/2.
    stream: u8,
}

/// When the server has sent an event.
fn sent_at(event: &str) -> Option<u128> {
    event.trim_end().rsplit_once("data: ")?.1.parse().ok()
}

/// The head of a CONNECT with a protocol.
fn connect_head(stream: u8) -> Vec<u8> {
    head_of("CONNECT", stream, "/upgrade", b"\x00\x09:protocol\x09websocket", true)
}

impl Tunnel {
    fn open(server: &Server, opening: Opening) -> Self {
        let head = match opening {
            Opening::Upgrade => {
                "GET /upgrade HTTP/1.1\r\nhost: test\r\nupgrade: test\r\n\
                connection: upgrade\r\n\r\n"
            }
            Opening::Connect => "CONNECT test:1 HTTP/1.1\r\nhost: test:1\r\n\r\n",
            Opening::EventsOfHttp1 => "GET /events HTTP/1.1\r\nhost: test\r\n\r\n",
            Opening::Extended | Opening::Stream | Opening::Pushed | Opening::Events => {
                let mut tunnel =
                    Self { opening, client: Http2::connect(server.address), stream: 1 };
                tunnel.begin();
                return tunnel;
            }
        };
        let mut client = server.send(head.as_bytes());
        let answer = read_until(&mut client, b"\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 101") || answer.starts_with("HTTP/1.1 200"));
        Self { opening, client: Http2(client), stream: 0 }
    }

    fn begin(&mut self) {
        self.client.send(&match self.opening {
            Opening::Stream => head(self.stream, "/stream", true),
            Opening::Pushed => head(self.stream, "/push", true),
            Opening::Events => head(self.stream, "/events", false),
            _ => connect_head(self.stream),
        });
        assert_eq!(self.client.status(), OK);
    }

    /// Begins another stream on the connection, if that is one of HTTP/2.
    fn begin_another(&mut self) {
        if self.stream > 0 {
            self.stream += 2;
            self.begin();
        }
    }

    /// Whether a byte comes back, or an event that is sent from now on.
    fn echo(&mut self) -> bool {
        let (begin, has_events) = (present(), self.opening.has_events());
        let sent = if self.stream > 0 { frame(DATA, 0, self.stream, b"x") } else { b"x".to_vec() };
        if !has_events && self.client.0.write_all(&sent).is_err() {
            return false;
        }
        if self.stream == 0 && !has_events {
            return self.client.0.read_exact(&mut [0]).is_ok();
        }
        loop {
            let event = if self.stream == 0 {
                read_until(&mut self.client.0, b"\n\n")
            } else {
                match self.client.next() {
                    Some((DATA, _, _, bytes)) if has_events => String::from_utf8(bytes).unwrap(),
                    Some((DATA, _, _, bytes)) if bytes == b"x" => return true,
                    Some((PING, 0, _, bytes)) => {
                        self.client.send(&pong(&bytes));
                        continue;
                    }
                    Some(_) => continue,
                    None => return false,
                }
            };
            let at = sent_at(&event);
            if at.is_none_or(|at| at >= begin) {
                return at.is_some();
            }
        }
    }

    /// Ends the tunnel from here. The server ends it, and the connection that was told to end.
    fn end(mut self) {
        const CANCEL: [u8; 4] = [0, 0, 0, 8];
        match self.opening {
            // Nothing but the end of the connection ends events of HTTP/1.
            Opening::EventsOfHttp1 => return,
            Opening::Upgrade | Opening::Connect => {
                self.client.0.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(self.client.0.read(&mut [0]).unwrap(), 0);
                return;
            }
            Opening::Events => self.client.send(&frame(RST_STREAM, 0, self.stream, &CANCEL)),
            _ => self.client.send(&frame(DATA, 1, self.stream, b"")),
        }
        self.client.rest();
    }
}

/// Whether a tunnel is open that was busy for longer than its connection may be idle; `None` if
/// this machine was too busy for that.
fn is_open_when_busy(opening: Opening, idle: Duration) -> Option<bool> {
    let server = Server::of(OFF.idle(idle));
    let mut tunnel = Tunnel::open(&server, opening);
    let (begin, mut last, mut longest) = (Instant::now(), Instant::now(), Duration::ZERO);
    let mut is_open = true;
    while is_open && begin.elapsed() < 2 * idle + PAST_TOLD {
        is_open = tunnel.echo();
        longest = longest.max(last.elapsed());
        last = Instant::now();
        thread::sleep(idle / 10);
    }
    let is_known = is_open || longest < idle / 2;
    is_known.then_some(is_open)
}

#[test]
fn tunnel_that_is_busy_is_not_idle() {
    check_at_once(Opening::ALL, |opening| {
        let idles = (0..5).map(|tries| LIMIT * 2_u32.pow(tries));
        let is_open = idles.into_iter().find_map(|idle| is_open_when_busy(opening, idle));
        assert_eq!(is_open, Some(true), "{opening:?}");
    });
}

#[test]
fn tunnel_that_is_silent_is_idle_whatever_pings_come_and_holds_no_shutdown() {
    let idle = 2 * LIMIT;
    check_at_once([Opening::Extended, Opening::Upgrade], |opening| {
        let server = Server::of(OFF.idle(idle));
        let mut tunnel = Tunnel::open(&server, opening);
        let last = Instant::now();
        assert!(tunnel.echo());
        if opening == Opening::Extended {
            assert!(tunnel.client.rest_beside_pings(idle / 5).contains(&GOAWAY));
        } else {
            assert_eq!(rest_of(tunnel.client.0), "");
        }
        assert!(last.elapsed() >= idle, "{opening:?} after {:?}", last.elapsed());
        // Another one stays open, without an end of its own in the time of the test.
        let _other = (opening == Opening::Upgrade).then(|| Tunnel::open(&server, opening));
        server.stop();
    });
}

/// Checks that tunnels outlast what tells their connections to end, until both sides end them.
fn check_told(
    openings: &[Opening],
    count: usize,
    limits: StreamLimits,
    tell: impl Fn(&Server) + Sync,
) {
    check_at_once(openings, |&opening| {
        let server = Server::of(limits.max_age_grace(FAR));
        let mut tunnels: Vec<_> = (0..count).map(|_| Tunnel::open(&server, opening)).collect();
        assert!(tunnels.iter_mut().all(Tunnel::echo), "{opening:?}");
        tell(&server);
        thread::sleep(PAST_TOLD);
        for mut tunnel in tunnels {
            assert!(tunnel.echo(), "{opening:?}: it was cut");
            tunnel.end();
        }
        server.stop();
    });
}

#[test]
fn tunnels_outlast_the_beginning_of_a_drain() {
    // The only connection is told at the beginning of the window.
    check_told(&Opening::ALL, 1, OFF, |server| server.service.drain(FAR));
}

#[test]
fn tunnels_outlast_the_greatest_age() {
    check_told(&Opening::ALL, 3, OFF.max_age(LIMIT), |_| {});
}

#[test]
fn tunnels_outlast_the_close_of_the_idlest() {
    // A stream is a request in progress, whose connection is not told.
    check_told(&Opening::ALL[..3], 3, OFF, |server| server.service.close_idlest(9));
}

#[test]
fn tunnels_of_http2_and_streams_outlast_a_graceful_shutdown_which_waits_for_them() {
    use Opening::{Events, EventsOfHttp1, Extended, Pushed, Stream};
    check_at_once([Extended, Stream, Pushed, Events, EventsOfHttp1], |opening| {
        let server = Server::of(OFF);
        let mut tunnel = Tunnel::open(&server, opening);
        let stopping = thread::spawn(move || server.stop());
        thread::sleep(PAST_TOLD);
        assert!(tunnel.echo() && !stopping.is_finished(), "{opening:?}");
        tunnel.end();
        stopping.join().unwrap();
    });
}

#[test]
fn stream_of_both_directions_has_no_limits_for_a_client_that_has_its_response() {
    let limits = BodyLimits::default();
    let rate = limits.min_frame_rate(DataRate::new(1_000, LIMIT));
    check_at_once([limits.next_frame(LIMIT), rate], |limits| {
        let server = Server::start(OFF.idle(LIMIT), limits);
        let mut tunnels = [Opening::Stream, Opening::Pushed].map(|it| Tunnel::open(&server, it));
        for (pause, times) in [(LIMIT / 5, 6), (3 * LIMIT, 2)] {
            for _ in 0..times {
                thread::sleep(pause);
                assert!(tunnels.iter_mut().all(Tunnel::echo), "{limits:?}, {pause:?}");
            }
        }
        drop(tunnels);
        server.stop();
    });
}

#[test]
fn tunnels_and_streams_are_cut_by_the_grace_of_their_age_and_not_before() {
    check_at_once(Opening::ALL, |opening| {
        let begin = Instant::now();
        let server = Server::of(OFF.max_age(LIMIT).max_age_grace(3 * LIMIT));
        let mut tunnel = Tunnel::open(&server, opening);
        while tunnel.echo() {
            thread::sleep(LIMIT / 10);
        }
        assert!(begin.elapsed() >= 4 * LIMIT, "{opening:?} after {:?}", begin.elapsed());
        server.stop();
    });
}

#[test]
fn close_of_the_idlest_takes_an_idle_connection_and_none_with_a_stream() {
    use Opening::{Events, EventsOfHttp1, Pushed, Stream};
    check_at_once([Stream, Pushed, Events, EventsOfHttp1], |opening| {
        let server = Server::of(OFF.max_age_grace(FAR));
        let mut stream = Tunnel::open(&server, opening);
        assert!(stream.echo());
        let idle = server.greet();
        // The response may come before its end is noted, and its connection is not idle until then.
        idle.set_nonblocking(true).unwrap();
        wait_until(|| {
            server.service.close_idlest(9);
            matches!(idle.peek(&mut [0]), Ok(0))
        });
        // It was not told, and takes another one.
        stream.begin_another();
        assert!(stream.echo(), "{opening:?}");
        drop((stream, idle));
        server.stop();
    });
}

#[test]
fn close_of_the_idlest_takes_a_silent_tunnel_before_one_that_was_busy() {
    let server = Server::of(OFF.max_age_grace(FAR));
    let mut busy = Tunnel::open(&server, Opening::Extended);
    let mut silent = Tunnel::open(&server, Opening::Extended);
    assert!(silent.echo());
    thread::sleep(LIMIT / 5);
    assert!(busy.echo());
    server.service.close_idlest(1);
    silent.client.wait_for(GOAWAY);
    silent.client.send(&frame(DATA, 1, 1, b""));
    drop(silent);
    // The other one takes a further stream.
    busy.begin_another();
    drop(busy);
    server.stop();
}

/// Reads frames until each of a connection's tunnels has one that `is_wanted` names, by its kind,
/// flags and payload.
fn await_each(client: &mut Http2, count: usize, is_wanted: impl Fn(u8, u8, &[u8]) -> bool) {
    let mut left = count;
    while left > 0 {
        let (kind, flags, _, payload) = client.next().expect("the connection was cut");
        if (kind, flags) == (PING, 0) {
            client.send(&pong(&payload));
        }
        left -= usize::from(is_wanted(kind, flags, &payload));
    }
}

#[test]
fn many_tunnels_are_used_and_end_while_their_connections_are_told_to_end() {
    const CONNECTIONS: usize = 25;
    /// The numbers of their streams are a byte.
    const TUNNELS: usize = 100;
    let frames = |frame: &dyn Fn(u8) -> Vec<u8>| {
        (0..TUNNELS).flat_map(|at| frame(2 * u8::try_from(at).unwrap() + 1)).collect::<Vec<_>>()
    };
    let tells: [fn(&Server); 3] = [
        |server| server.service.drain(FAR),
        |server| server.service.close_idlest(CONNECTIONS),
        // It stops beside the tunnels.
        |_| {},
    ];
    check_at_once(tells.into_iter().enumerate(), |(at, tell)| {
        let server = Server::of(OFF.max_age_grace(FAR));
        let echo = |client: &mut Http2| {
            client.send(&frames(&|stream| frame(DATA, 0, stream, b"x")));
            await_each(client, TUNNELS, |kind, _, bytes| kind == DATA && bytes == b"x");
        };
        let open = |_| {
            let mut client = Http2::connect(server.address);
            client.send(&frames(&connect_head));
            await_each(&mut client, TUNNELS, |kind, _, _| kind == HEADERS);
            echo(&mut client);
            client
        };
        let mut clients: Vec<_> = (0..CONNECTIONS).map(open).collect();
        tell(&server);
        let stopping = thread::spawn(move || {
            if at < 2 {
                thread::sleep(PAST_TOLD);
            }
            server.stop();
        });
        thread::sleep(PAST_TOLD / 2);
        for client in &mut clients {
            echo(client);
            client.send(&frames(&|stream| frame(DATA, 1, stream, b"")));
            await_each(client, TUNNELS, |kind, flags, _| kind == DATA && flags == 1);
        }
        drop(clients);
        stopping.join().unwrap();
    });
}

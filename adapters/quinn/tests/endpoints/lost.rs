//! Datagrams that are lost in each position, and peers that never answer. An endpoint whose task
//! has nothing to read is not polled by itself.

use std::sync::Mutex;

use quinn::VarInt;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::connections::{CAPACITY, on_each_host};
use super::*;

/// The time after which a datagram without an answer is sent again is three times as long.
const RTT: Duration = ms(20);
/// So many bytes need more than 20 datagrams.
const LENGTH: u32 = 30_000;

fn quick(idle: Duration) -> TransportConfig {
    let mut transport = transport(idle);
    transport.initial_rtt(RTT);
    transport
}

/// Transfers by a path that loses the `nth` datagram of a side, and ends both endpoints.
async fn check_lost(endpoints: Endpoints, sender: Sender, nth: usize) {
    let mut count = 0;
    let is_lost = move |from| {
        count += usize::from(from == sender);
        from == sender && count == nth
    };
    let path = lossy_path(endpoints.server_address(), is_lost).await;
    let (client, server) = endpoints.connect_by(path).await.unwrap();
    let echo = tokio::spawn(echo_all(server));
    check_echo(&client, LENGTH).await;
    client.close(VarInt::from_u32(0), b"");
    echo.await.unwrap();
    drop(client);
    endpoints.wait_idle().await;
}

#[test]
fn connection_goes_on_whichever_of_its_first_datagrams_is_lost() {
    on_each_host(CAPACITY, async |_, service, _| {
        let mut tries = JoinSet::new();
        for nth in 1..=20 {
            for sender in [Sender::Client, Sender::Server] {
                // No other endpoint of the runtime reads.
                let runtime = QuinnRuntime::new(service.handle());
                let endpoints = Endpoints::new(&runtime, quick(PATIENCE));
                tries.spawn(check_lost(endpoints, sender, nth));
            }
        }
        while let Some(tried) = tries.join_next().await {
            tried.unwrap();
        }
    });
}

#[test]
fn attempts_whose_first_datagrams_are_lost_connect_by_the_next() {
    const CONNECTIONS: usize = 100;
    on_each_host(CAPACITY, async |_, _, runtime| {
        let endpoints = Endpoints::new(runtime, quick(PATIENCE));
        let mut count = 0;
        let is_lost = move |_| {
            count += 1;
            count <= CONNECTIONS
        };
        let path = lossy_path(endpoints.server_address(), is_lost).await;
        let attempts = (0..CONNECTIONS).map(|_| endpoints.client.connect(path, "localhost"));
        let attempts: Vec<_> = attempts.map(Result::unwrap).collect();
        let server = endpoints.server.clone();
        tokio::spawn(async move {
            while let Some(incoming) = server.accept().await {
                tokio::spawn(async move { echo_all(incoming.await.unwrap()).await });
            }
        });
        for attempt in attempts {
            check_echo(&attempt.await.unwrap(), 100).await;
        }
        endpoints.server.close(VarInt::from_u32(0), b"");
        endpoints.wait_idle().await;
    });
}

#[test]
fn attempt_at_a_silent_peer_is_sent_again_and_ends_at_its_limit() {
    on_each_host(CAPACITY, async |host, _, runtime| {
        let endpoints = Endpoints::new(runtime, quick(Duration::from_secs(1)));
        let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        peer.set_nonblocking(true).unwrap();
        let attempt = endpoints.client.connect(peer.local_addr().unwrap(), "localhost").unwrap();
        assert_eq!(attempt.await.unwrap_err(), ConnectionError::TimedOut, "{host:?}");
        let received = std::iter::from_fn(|| peer.recv(&mut [0; 1 << 11]).ok()).count();
        assert!(received > 1, "{host:?}: {received} datagrams came");
        endpoints.wait_idle().await;
    });
}

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Its attempt was not polled.
    New,
    /// It waits for a peer that is silent.
    Unanswered,
    /// The server has answered in vain.
    HalfOpen,
    Open,
    /// What it sends does not arrive any more.
    Sends,
}

/// What ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Drop,
    Close,
    DropOfEndpoint,
    CloseOfEndpoint,
}

/// Brings a connection into a state, ends it, and waits until no task of its endpoints is left.
async fn check_ended(runtime: &QuinnRuntime, state: State, by: By) {
    let tasks = Handle::current().metrics().num_alive_tasks();
    let endpoints = Endpoints::new(runtime, quick(ms(300)));
    let losing = Arc::new(Mutex::new(match state {
        State::Unanswered => Some(Sender::Client),
        State::HalfOpen => Some(Sender::Server),
        _ => None,
    }));
    let loses = Arc::clone(&losing);
    let is_lost = move |from| *loses.lock().unwrap() == Some(from);
    let path = lossy_path(endpoints.server_address(), is_lost).await;
    let mut attempt = endpoints.client.connect(path, "localhost").unwrap();
    let open = match state {
        State::New => None,
        State::Unanswered | State::HalfOpen => {
            // The endpoint is polled, and so is the connection, before anything is sent again.
            tokio::select! {
                biased;
                ended = &mut attempt => panic!("{:?}", ended.err()),
                incoming = endpoints.server.accept() => drop(incoming.unwrap().accept()),
                () = tokio::task::yield_now(), if state == State::Unanswered => {}
            }
            None
        }
        State::Open | State::Sends => {
            let accept = async { endpoints.server.accept().await.unwrap().await };
            let (client, server) = tokio::join!(&mut attempt, accept);
            let (client, server) = (client.unwrap(), server.unwrap());
            if state == State::Sends {
                *losing.lock().unwrap() = Some(Sender::Client);
                let mut stream = client.open_uni().await.unwrap();
                stream.write_all(b"lost").await.unwrap();
            }
            if by == By::Close {
                client.close(VarInt::from_u32(0), b"");
            }
            Some((client, server))
        }
    };
    drop((attempt, open));
    let Endpoints { client, server } = endpoints;
    match by {
        By::Drop | By::Close => client.wait_idle().await,
        By::DropOfEndpoint => {}
        By::CloseOfEndpoint => {
            client.close(VarInt::from_u32(0), b"");
            client.wait_idle().await;
        }
    }
    server.close(VarInt::from_u32(0), b"");
    server.wait_idle().await;
    drop((client, server));
    // The path goes on.
    while Handle::current().metrics().num_alive_tasks() > tasks + 1 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn endpoints_end_however_far_a_connection_is_and_whatever_ends_it() {
    on_each_host(CAPACITY, async |host, service, _| {
        use State::{HalfOpen, New, Open, Sends, Unanswered};
        for state in [New, Unanswered, HalfOpen, Open, Sends] {
            for by in [By::Drop, By::Close, By::DropOfEndpoint, By::CloseOfEndpoint] {
                let runtime = QuinnRuntime::new(service.handle());
                let ended = check_ended(&runtime, state, by);
                let waited = service.handle().timeout(PATIENCE / 2, ended).await;
                assert!(waited.is_ok(), "{host:?}: {state:?} by {by:?} does not end");
            }
        }
    });
}

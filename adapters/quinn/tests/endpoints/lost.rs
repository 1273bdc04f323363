//! Datagrams that are lost in each position, and peers that never answer. An endpoint whose task
//! has nothing to read is not polled by itself.

use std::sync::atomic::AtomicBool;

use quinn::VarInt;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, JoinSet};

use super::connections::{CAPACITY, on_each_host};
use super::*;

/// The time after which a datagram without an answer is sent again is three times as long.
const RTT: Duration = ms(20);
/// So many bytes need more than 20 datagrams.
const LENGTH: u32 = 30_000;

fn quick(idle: Duration) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport.max_idle_timeout(Some(idle.try_into().unwrap()));
    transport.initial_rtt(RTT).mtu_discovery_config(None);
    Arc::new(transport)
}

/// A socket that answers nothing, and its address.
fn silent_peer() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

/// Connects by a path that loses the `nth` datagram of a side, and transfers.
async fn transfer_lossy(
    endpoints: &Endpoints,
    sender: Sender,
    nth: usize,
) -> (Connection, JoinHandle<()>) {
    let mut count = 0;
    let is_lost = move |from| {
        count += usize::from(from == sender);
        from == sender && count == nth
    };
    let path = lossy_path(endpoints.server_address(), is_lost).await;
    let (client, server) = endpoints.connect_by(path).await;
    let echo = tokio::spawn(echo_all(server));
    check_echo(&client, LENGTH).await;
    (client, echo)
}

/// Transfers over such a path, and ends both endpoints.
async fn check_lost(endpoints: Endpoints, sender: Sender, nth: usize) {
    let (client, echo) = transfer_lossy(&endpoints, sender, nth).await;
    client.close(VarInt::from_u32(0), b"");
    echo.await.unwrap();
    drop(client);
    endpoints.client.wait_idle().await;
    endpoints.server.wait_idle().await;
}

/// The shortest of three times that an event takes, in milliseconds.
async fn shortest(mut event: impl AsyncFnMut() -> Duration) -> f64 {
    let mut shortest = Duration::MAX;
    for _ in 0..3 {
        shortest = shortest.min(event().await);
    }
    shortest.as_secs_f64() * 1e3
}

/// Prints how long a connection takes whose nth datagram is lost, beside quinn's own runtime, with
/// the limits of quinn's defaults. Each takes as long as the other, within a tick and a pass.
#[test]
#[allow(clippy::print_stdout)]
#[ignore = "it prints times, which only a machine without other work shows"]
fn times_of_lost_datagrams_beside_quinns_own_runtime() {
    let service = TimerService::beside_runtime().shards(1).start().unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtimes: [Arc<dyn quinn::Runtime>; 2] =
        [Arc::new(QuinnRuntime::new(service.handle())), Arc::new(quinn::TokioRuntime)];
    let transport = |idle: Duration| {
        let mut transport = TransportConfig::default();
        transport.max_idle_timeout(Some(idle.try_into().unwrap()));
        Arc::new(transport)
    };
    let print = |row: &str, [own, quinns]: [f64; 2]| {
        println!("| {row} | {own:.1} | {quinns:.1} | {:+.1} |", own - quinns);
    };
    println!("| what is lost | corewheel, ms | quinn, ms | difference |\n|---|--:|--:|--:|");
    tokio.unwrap().block_on(async {
        for sender in [Sender::Client, Sender::Server] {
            for nth in 1..=20 {
                let mut times = [0.0; 2];
                for (runtime, time) in runtimes.iter().zip(&mut times) {
                    *time = shortest(async || {
                        let endpoints = Endpoints::by(Arc::clone(runtime), &transport(PATIENCE));
                        let begin = Instant::now();
                        transfer_lossy(&endpoints, sender, nth).await;
                        begin.elapsed()
                    })
                    .await;
                }
                print(&format!("datagram {nth} of the {sender:?}"), times);
            }
        }
        let [mut gives_up, mut wait_idle, mut datagrams] = [[0.0; 2]; 3];
        for (at, runtime) in runtimes.iter().enumerate() {
            let endpoints = || Endpoints::by(Arc::clone(runtime), &transport(ms(1_000)));
            gives_up[at] = shortest(async || {
                let (peer, address) = silent_peer();
                let (endpoints, begin) = (endpoints(), Instant::now());
                let attempt = endpoints.client.connect(address, "localhost").unwrap();
                assert_eq!(attempt.await.unwrap_err(), ConnectionError::TimedOut);
                let time = begin.elapsed();
                let received = std::iter::from_fn(|| peer.recv(&mut [0; 1 << 11]).ok()).count();
                datagrams[at] = f64::from(u32::try_from(received).unwrap());
                time
            })
            .await;
            wait_idle[at] = shortest(async || {
                let (_peer, address) = silent_peer();
                let (endpoints, begin) = (endpoints(), Instant::now());
                drop(endpoints.client.connect(address, "localhost").unwrap());
                endpoints.client.wait_idle().await;
                begin.elapsed()
            })
            .await;
        }
        print("all: an attempt at a silent peer ends", gives_up);
        print("`wait_idle` after an attempt that was dropped", wait_idle);
        print("datagrams to a silent peer", datagrams);
    });
}

#[test]
fn connection_goes_on_whichever_of_its_first_datagrams_is_lost() {
    on_each_host(CAPACITY, async |_, service, _| {
        let mut tries = JoinSet::new();
        for nth in 1..=20 {
            for sender in [Sender::Client, Sender::Server] {
                // No other endpoint of the runtime reads.
                let runtime = QuinnRuntime::new(service.handle());
                let endpoints = Endpoints::new(&runtime, &quick(PATIENCE));
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
        let endpoints = Endpoints::new(runtime, &quick(PATIENCE));
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
        endpoints.client.wait_idle().await;
        endpoints.server.wait_idle().await;
    });
}

#[test]
fn attempt_at_a_silent_peer_is_sent_again_and_ends_at_its_limit() {
    on_each_host(CAPACITY, async |host, _, runtime| {
        let endpoints = Endpoints::new(runtime, &quick(Duration::from_secs(1)));
        let (peer, address) = silent_peer();
        let attempt = endpoints.client.connect(address, "localhost").unwrap();
        assert_eq!(attempt.await.unwrap_err(), ConnectionError::TimedOut, "{host:?}");
        let received = std::iter::from_fn(|| peer.recv(&mut [0; 1 << 11]).ok()).count();
        assert!(received > 1, "{host:?}: {received} datagrams came");
        endpoints.client.wait_idle().await;
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
    let endpoints = Endpoints::new(runtime, &quick(ms(300)));
    let (of_client, of_server) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let is_lost = {
        let (of_client, of_server) = (Arc::clone(&of_client), Arc::clone(&of_server));
        move |from| match from {
            Sender::Client => of_client.load(Ordering::SeqCst),
            Sender::Server => of_server.load(Ordering::SeqCst),
        }
    };
    of_client.store(state == State::Unanswered, Ordering::SeqCst);
    of_server.store(state == State::HalfOpen, Ordering::SeqCst);
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
                of_client.store(true, Ordering::SeqCst);
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

//! Connections by a manual clock, over real sockets: their deadlines come when the test says so.

use tokio::runtime::Builder;

use super::*;

const IDLE: Duration = Duration::from_secs(2);

/// Runs a test on a current-thread runtime whose thread also drives the shard.
fn with_lab(test: impl AsyncFnOnce(Timed) + Send + 'static) {
    within_patience(|| {
        let tokio = Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(test(Timed::new(1 << 10)));
    });
}

/// How many datagrams each side of a connection has received.
fn received(sides: [&Connection; 2]) -> [u64; 2] {
    sides.map(|side| side.stats().udp_rx.datagrams)
}

/// How many datagrams both sides of a connection have sent and not received.
fn in_flight(client: &Connection, server: &Connection) -> u64 {
    let (client, server) = (client.stats(), server.stats());
    let sent = client.udp_tx.datagrams + server.udp_tx.datagrams;
    sent - client.udp_rx.datagrams - server.udp_rx.datagrams
}

/// Advances the clock by ticks until both sides have been silent for a while, and returns when
/// each has received its last datagram.
async fn wait_for_silence(lab: &mut Timed, sides: [&Connection; 2]) -> [Instant; 2] {
    const SILENT_TICKS: u32 = 200;
    let mut last = [lab.clock.now(); 2];
    let mut counts = received(sides);
    let mut silent = 0;
    while silent < SILENT_TICKS {
        lab.run_tasks().await;
        let now_counts = received(sides);
        for side in 0..2 {
            if now_counts[side] != counts[side] {
                last[side] = lab.clock.now();
            }
        }
        silent = if now_counts == counts { silent + 1 } else { 0 };
        counts = now_counts;
        lab.advance(ms(1));
    }
    last
}

#[test]
fn keep_alive_holds_a_connection_open_for_many_idle_times() {
    const KEEP_ALIVE: Duration = ms(300);
    with_lab(async |mut lab| {
        let transport = transport(Some(IDLE), Some(KEEP_ALIVE));
        let endpoints = Endpoints::new(&lab.runtime, &transport);
        let (client, server) = lab.drive(endpoints.connect()).await;
        wait_for_silence(&mut lab, [&client, &server]).await;
        let pings = || client.stats().frame_tx.ping + server.stats().frame_tx.ping;
        let (begin, before) = (lab.clock.now(), pings());
        // The server does not count the datagram that began the connection as received.
        let at_rest = in_flight(&client, &server);
        while lab.clock.now() < begin + 3 * IDLE {
            lab.advance(ms(10));
            lab.run_tasks().await;
            let have_arrived = || in_flight(&client, &server) == at_rest;
            lab.run_until("all datagrams have arrived", have_arrived).await;
        }
        let sent = pings() - before;
        assert!(sent >= 10, "{sent} pings");
        assert_eq!((client.close_reason(), server.close_reason()), (None, None));
        lab.drive(async {
            let echo = echo_all(server.clone());
            tokio::select! {
                () = echo => panic!("the connection has ended"),
                () = check_echo(&client, 100) => {}
            }
        })
        .await;
    });
}

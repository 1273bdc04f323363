//! Connections by a manual clock, over real sockets: their deadlines come when the test says so.

use std::sync::atomic::AtomicBool;

use tokio::runtime::Builder;

use super::*;

const IDLE: Duration = Duration::from_secs(2);

/// Runs a test on a current-thread runtime whose thread also drives the shard.
fn with_lab(test: impl AsyncFnOnce(Lab) + Send + 'static) {
    within_patience(|| {
        let tokio = Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(test(Lab::new(1 << 10)));
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
async fn wait_for_silence(lab: &mut Lab, sides: [&Connection; 2]) -> [Instant; 2] {
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
fn idle_connection_is_open_a_tick_before_its_deadline_and_closed_a_tick_after() {
    with_lab(async |mut lab| {
        let endpoints = Endpoints::new(&lab.runtime, &transport(Some(IDLE), None));
        let (client, server) = lab.drive(endpoints.connect()).await;
        tokio::spawn(echo_all(server.clone()));
        lab.drive(check_echo(&client, 100)).await;
        let last = wait_for_silence(&mut lab, [&client, &server]).await;
        // Each side by its own last datagram, in the order of their deadlines.
        let mut sides = [(last[0], "client", client), (last[1], "server", server)];
        sides.sort_by_key(|(last, ..)| *last);
        for (last, name, side) in sides {
            let deadline = last + IDLE;
            let until = |now| deadline.saturating_duration_since(now);
            lab.advance(until(lab.clock.now() + ms(1)));
            lab.run_tasks().await;
            if lab.clock.now() < deadline {
                assert_eq!(side.close_reason(), None, "the {name} is early");
            }
            lab.advance(until(lab.clock.now()) + ms(1));
            lab.run_until("an idle connection is closed", || side.close_reason().is_some()).await;
            assert_eq!(side.close_reason(), Some(ConnectionError::TimedOut), "the {name}");
        }
    });
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

#[test]
fn lost_datagram_is_sent_again_once_its_time_has_come() {
    /// The longest delay of an acknowledgement. A datagram is not sent again before.
    const ACK_DELAY_MAX: Duration = ms(25);
    with_lab(async |mut lab| {
        let endpoints = Endpoints::new(&lab.runtime, &transport(Some(IDLE), None));
        let (loses, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let is_lost = {
            let (loses, lost) = (Arc::clone(&loses), Arc::clone(&lost));
            move |_| {
                let is_lost = loses.load(Ordering::SeqCst);
                lost.fetch_add(usize::from(is_lost), Ordering::SeqCst);
                is_lost
            }
        };
        let path = lossy_path(endpoints.server_address(), is_lost).await;
        let (client, server) = lab.drive(endpoints.connect_by(path)).await;
        wait_for_silence(&mut lab, [&client, &server]).await;
        loses.store(true, Ordering::SeqCst);
        let mut stream = lab.drive(client.open_uni()).await.unwrap();
        lab.drive(stream.write_all(b"again")).await.unwrap();
        lab.run_until("the datagram is lost", || lost.load(Ordering::SeqCst) > 0).await;
        loses.store(false, Ordering::SeqCst);
        let begin = lab.clock.now();
        let arrived = || server.stats().frame_rx.stream > 0;
        while lab.clock.now() < begin + ACK_DELAY_MAX {
            lab.run_tasks().await;
            assert!(!arrived(), "it is sent again after {:?}", lab.clock.now() - begin);
            lab.advance(ms(1));
        }
        while !arrived() {
            lab.run_tasks().await;
            lab.advance(ms(1));
            assert!(lab.clock.now() < begin + IDLE, "it is not sent again");
        }
        assert_eq!(client.close_reason(), None);
    });
}

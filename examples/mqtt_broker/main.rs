//! A broker of MQTT 3.1.1, in which each wait for a client has a time.
//!
//! | time | by |
//! |---|---|
//! | the first packet | `handshake` of the connection's limits |
//! | the client's keep-alive, half of it more | `read_idle` |
//! | a client that takes nothing | `write_timeout`, judged by what its system has acknowledged |
//! | a message that was not acknowledged is sent again | `Custom(0)`, armed and disarmed for each |
//! | the will of a client that has left, a session without a client | timers with a value |
//!
//! A message is delivered at most once, or at least once. Exactly once, retained messages,
//! `UNSUBSCRIBE`, and users with passwords are left out.
//!
//! ```text
//! cargo run --release --example mqtt_broker
//! mosquitto_sub -p 1883 -t 'room/+/door' -q 1 &
//! mosquitto_pub -p 1883 -t room/7/door -q 1 -m open
//! ```
//!
//! To try: `mosquitto_sub -i a -c -t t -q 1 --will-topic left --will-payload a`, kill it by
//! `kill -9`, publish to `t`, and connect it again. Another address is an argument.

#![allow(clippy::print_stdout, reason = "it is a command")]

mod broker;
mod connection;

use std::{sync::Arc, time::Duration};

use corewheel::{Fired, TimerId, TimerService, Timers};
use tokio::net::TcpListener;

use broker::{Broker, Session};
use connection::serve;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The timer of a will, or of a session.
type Pending = TimerId;
/// What is to be done with a session. A timer of the service carries it.
type Act = fn(&Broker, &Arc<Session>);
type Due = (Act, Arc<Session>);

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:1883".to_owned());
    let broker = Arc::new(Broker::default());
    let of_service = Arc::clone(&broker);
    let service = TimerService::beside_runtime().start_with(move |_| {
        let broker = Arc::clone(&of_service);
        move |fired: Fired<Due>, _: &Timers<Due>| (fired.payload.0)(&broker, &fired.payload.1)
    })?;
    let timers = service.handle();
    let listener = TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        match listener.accept().await {
            Ok((socket, _peer)) => drop(tokio::spawn(serve(Arc::clone(&broker), timers, socket))),
            // No file is left, and a client that leaves gives one back.
            Err(_) => timers.sleep(Duration::from_millis(100)).await?,
        }
    }
}

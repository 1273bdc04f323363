//! The example as it is.

use std::sync::Arc;

use corewheel::{Fired, TimerId, TimerService, Timers};
use tokio::net::TcpListener;

use crate::Failed;

#[path = "../../../examples/mqtt_broker/broker.rs"]
mod broker;
#[path = "../../../examples/mqtt_broker/connection.rs"]
mod connection;

use broker::{Broker, Session};

type Pending = TimerId;
type Act = fn(&Broker, &Arc<Session>);
type Due = (Act, Arc<Session>);

pub(crate) async fn run(listener: TcpListener) -> Result<(), Failed> {
    let broker = Arc::new(Broker::default());
    let of_service = Arc::clone(&broker);
    let service = TimerService::beside_runtime().start_with(move |_| {
        let broker = Arc::clone(&of_service);
        move |fired: Fired<Due>, _: &Timers<Due>| (fired.payload.0)(&broker, &fired.payload.1)
    })?;
    loop {
        let (socket, _peer) = listener.accept().await?;
        tokio::spawn(connection::serve(Arc::clone(&broker), service.handle(), socket));
    }
}

//! The same broker with the timers of `tokio::time`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use rumqttc::mqttbytes::v4::{self, Codec, Packet};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::codec::FramedRead;

use crate::Failed;

#[path = "../../../examples/mqtt_broker/broker.rs"]
mod broker;

use broker::{Broker, Session};

type Pending = AbortHandle;
type Act = fn(&Broker, &Arc<Session>);

const CODEC: Codec = Codec { max_incoming_size: 64 << 10, max_outgoing_size: 64 << 10 };

pub(crate) async fn run(listener: TcpListener) -> Result<(), Failed> {
    let broker = Arc::new(Broker::default());
    loop {
        let (socket, _peer) = listener.accept().await?;
        tokio::spawn(serve(Arc::clone(&broker), socket));
    }
}

async fn serve(broker: Arc<Broker>, socket: TcpStream) -> Result<(), Failed> {
    let seconds = Duration::from_secs;
    let (reader, mut writer) = socket.into_split();
    let mut input = FramedRead::with_capacity(reader, CODEC, 512);
    let Some(Ok(Packet::Connect(hello))) = timeout(seconds(10), input.next()).await? else {
        return Err("it has sent no CONNECT".into());
    };
    let keep_alive = seconds(hello.keep_alive.into()) * 3 / 2;
    let is_clean = hello.clean_session;
    let (session, is_known) = broker.connect(hello);
    let (number, mut pending) = session.begin();
    pending.drain(..).for_each(|timer| timer.abort());
    let mut output = BytesMut::new();
    v4::ConnAck::new(v4::ConnectReturnCode::Success, is_known).write(&mut output)?;
    let served = async {
        let (mut silent, mut retry) = (pin!(sleep(keep_alive)), pin!(sleep(seconds(0))));
        let mut is_armed = false;
        loop {
            if session.queue.lock().unwrap().send(&mut output)? {
                retry.as_mut().reset(Instant::now() + seconds(5));
                is_armed = true;
            }
            if !output.is_empty() {
                timeout(seconds(30), writer.write_all(&output)).await??;
                output.clear();
            }
            tokio::select! {
                packet = input.next() => {
                    silent.as_mut().reset(Instant::now() + keep_alive);
                    match packet.ok_or("it has left")?? {
                        Packet::Disconnect => {
                            session.queue.lock().unwrap().will = None;
                            return Ok(());
                        }
                        packet => is_armed &= !broker.answer(packet, &session, &mut output)?,
                    }
                }
                () = session.changed.notified() => {
                    if session.queue.lock().unwrap().connections != number {
                        return Err("it has another connection".into());
                    }
                }
                () = &mut silent, if !keep_alive.is_zero() => return Err("it is silent".into()),
                () = &mut retry, if is_armed => {
                    is_armed = false;
                    session.queue.lock().unwrap().return_in_flight();
                }
            }
        }
    }
    .await;
    let queue = &mut *session.queue.lock().unwrap();
    if queue.connections == number {
        let kept_for = seconds(if is_clean { 0 } else { 3_600 });
        for (after, act) in [(seconds(1), Broker::tell_will as Act), (kept_for, Broker::remove)] {
            let (broker, session) = (Arc::clone(&broker), Arc::clone(&session));
            let task = tokio::spawn(async move {
                sleep(after).await;
                act(&broker, &session);
            });
            queue.pending.push(task.abort_handle());
        }
    }
    served
}

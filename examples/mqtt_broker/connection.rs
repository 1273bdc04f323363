//! A connection of a client, and all its times.

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::BytesMut;
use corewheel::{ConnLimits, DeadlineKind, Handle, conn::Raced};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use rumqttc::mqttbytes::v4::{self, Codec, Packet};
use tokio::{io::AsyncWriteExt, net::TcpStream};
use tokio_util::codec::FramedRead;

use super::broker::Broker;
use super::{Act, Due, Failed};

const CODEC: Codec = Codec { max_incoming_size: 64 << 10, max_outgoing_size: 64 << 10 };
/// When what was sent is sent again, unless the client has acknowledged it before.
const RETRY: DeadlineKind = DeadlineKind::Custom(0);

/// Serves a client until it leaves, is silent, takes nothing, or breaks the protocol.
pub(crate) async fn serve(
    broker: Arc<Broker>,
    timers: Handle<Due>,
    socket: TcpStream,
) -> Result<(), Failed> {
    let seconds = Duration::from_secs;
    // Not a value that the task would hold.
    let limits = || ConnLimits::default().handshake(seconds(10)).write_timeout(seconds(30));
    let conn = timers.connection(limits());
    let (reader, mut writer) = socket.into_split();
    let mut input = FramedRead::with_capacity(reader, CODEC, 512);
    let Raced::Done(Some(Ok(Packet::Connect(hello)))) = conn.race(input.next()).await? else {
        return Err("it has sent no CONNECT".into());
    };
    conn.disarm(DeadlineKind::Handshake)?;
    // The protocol gives a client half of its keep-alive more.
    conn.set_limits(limits().read_idle(seconds(hello.keep_alive.into()) * 3 / 2));
    let is_clean = hello.clean_session;
    let (session, is_known) = broker.connect(hello);
    let (number, mut pending) = session.begin();
    pending.drain(..).for_each(|timer| timers.cancel_detached(timer));
    let mut output = BytesMut::new();
    v4::ConnAck::new(v4::ConnectReturnCode::Success, is_known).write(&mut output)?;
    let served = async {
        loop {
            if session.queue.lock().unwrap().send(&mut output)? {
                conn.arm(RETRY, seconds(5))?;
            }
            if !output.is_empty() {
                let _writing = conn.begin_write();
                let write = pin!(writer.write_all(&output));
                let written = conn.race_write(input.get_ref().as_ref(), write).await?;
                if !matches!(written, Raced::Done(Ok(()))) {
                    return Err("it takes nothing".into());
                }
                output.clear();
            }
            let is_current = || session.queue.lock().unwrap().connections == number;
            let changed = pin!(session.changed.notified());
            match conn.race(select(input.next(), changed)).await? {
                Raced::Done(_) if !is_current() => return Err("it has another connection".into()),
                Raced::Done(Either::Right(_)) => {}
                Raced::Done(Either::Left((Some(Ok(Packet::Disconnect)), _))) => {
                    session.queue.lock().unwrap().will = None;
                    return Ok(());
                }
                Raced::Done(Either::Left((Some(packet), _))) => {
                    conn.touch_read();
                    if broker.answer(packet?, &session, &mut output)? {
                        conn.disarm(RETRY)?;
                    }
                }
                Raced::Event(event) if event.kind == RETRY => {
                    session.queue.lock().unwrap().return_in_flight();
                }
                _ => return Err("it is silent, or has left".into()),
            }
        }
    }
    .await;
    let queue = &mut *session.queue.lock().unwrap();
    if queue.connections == number {
        // They need no task: the handler of the service is given the value of each.
        let kept_for = seconds(if is_clean { 0 } else { 3_600 });
        for (after, act) in [(seconds(1), Broker::tell_will as Act), (kept_for, Broker::remove)] {
            let due = (act, Arc::clone(&session));
            queue.pending.push(timers.schedule(after, due).map_err(|it| it.kind())?);
        }
    }
    served
}

//! Sessions and topics. Nothing here knows a socket or sets a timer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use rumqttc::mqttbytes::v4::{self, Packet, Publish, SubscribeReasonCode as Granted};
use rumqttc::mqttbytes::{Error, QoS, matches, valid_filter};
use tokio::sync::Notify;

use super::{Failed, Pending};

/// The most messages that a client has not acknowledged. Later ones are dropped.
const WAITING_MAX: usize = 1_000;

/// What the broker keeps of a client, also while the client is away.
#[derive(Default)]
pub(crate) struct Session {
    pub(crate) queue: Mutex<Queue>,
    /// A message waits, or the connection is to end.
    pub(crate) changed: Notify,
}

#[derive(Default)]
pub(crate) struct Queue {
    /// Those that are in flight come first.
    messages: VecDeque<Publish>,
    in_flight: usize,
    last_packet: u16,
    /// Counts the connections that the session has had, and its end.
    pub(crate) connections: u64,
    pub(crate) will: Option<Publish>,
    /// The timers of the will and of the session, while the client is away.
    pub(crate) pending: Vec<Pending>,
}

impl Queue {
    /// Writes what waits and may be in flight. True if the client is to acknowledge some of it.
    pub(crate) fn send(&mut self, output: &mut BytesMut) -> Result<bool, Error> {
        let before = self.in_flight;
        while let Some(message) = self.messages.get_mut(self.in_flight) {
            let is_to_acknowledge = message.qos != QoS::AtMostOnce;
            if is_to_acknowledge && message.pkid == 0 {
                // Fewer are in flight than there are numbers, and 0 is none.
                self.last_packet = self.last_packet.checked_add(1).unwrap_or(1);
                message.pkid = self.last_packet;
            }
            message.write(output)?;
            let _ = (!is_to_acknowledge).then(|| self.messages.remove(self.in_flight));
            self.in_flight += usize::from(is_to_acknowledge);
        }
        Ok(self.in_flight > before)
    }

    /// What the client has not acknowledged is to be sent again.
    pub(crate) fn return_in_flight(&mut self) {
        self.messages.iter_mut().take(self.in_flight).for_each(|message| message.dup = true);
        self.in_flight = 0;
    }

    /// The client has acknowledged a message. True if none is in flight.
    fn acknowledge(&mut self, packet: u16) -> bool {
        let before = self.messages.len();
        self.messages.retain(|message| message.pkid != packet || packet == 0);
        self.in_flight = self.in_flight.saturating_sub(before - self.messages.len());
        self.in_flight == 0
    }
}

impl Session {
    /// Ends the connection that there is. Returns the number of the next one, and the timers that
    /// wait for it.
    pub(crate) fn begin(&self) -> (u64, Vec<Pending>) {
        let queue = &mut *self.queue.lock().unwrap();
        queue.connections += 1;
        queue.return_in_flight();
        self.changed.notify_one();
        (queue.connections, std::mem::take(&mut queue.pending))
    }
}

/// The sessions that have subscribed by each filter. True for delivery at most once.
type Subscriptions = HashMap<String, Vec<(Arc<Session>, bool)>>;

#[derive(Default)]
pub(crate) struct Broker {
    /// By their clients.
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// By filters without wildcards, and with.
    subscriptions: Mutex<[Subscriptions; 2]>,
}

impl Broker {
    /// The session of a client that connects, and whether there was one.
    pub(crate) fn connect(&self, connect: v4::Connect) -> (Arc<Session>, bool) {
        let id = Some(connect.client_id).filter(|id| !id.is_empty());
        let id = id.unwrap_or_else(|| format!("anonymous {}", fastrand::u64(..)));
        let known = self.sessions.lock().unwrap().get(&id).cloned();
        known.iter().filter(|_| connect.clean_session).for_each(|known| self.remove(known));
        let sessions = &mut *self.sessions.lock().unwrap();
        let is_known = sessions.contains_key(&id);
        let session = Arc::clone(sessions.entry(id).or_default());
        let will = connect.last_will.map(|it| Publish::new(it.topic, it.qos, it.message));
        session.queue.lock().unwrap().will = will;
        (session, is_known)
    }

    /// A session ends, and so does its connection.
    pub(crate) fn remove(&self, session: &Arc<Session>) {
        session.begin();
        self.sessions.lock().unwrap().retain(|_, known| !Arc::ptr_eq(known, session));
        for subscriptions in self.subscriptions.lock().unwrap().iter_mut() {
            subscriptions.retain(|_, of_path| {
                of_path.retain(|it| !Arc::ptr_eq(&it.0, session));
                !of_path.is_empty()
            });
        }
    }

    fn subscribe(&self, session: &Arc<Session>, filter: v4::SubscribeFilter) -> Granted {
        if !valid_filter(&filter.path) {
            return Granted::Failure;
        }
        let kind = usize::from(filter.path.contains(['+', '#']));
        let is_qos_0 = filter.qos == QoS::AtMostOnce;
        let subscriptions = &mut self.subscriptions.lock().unwrap()[kind];
        let of_path = subscriptions.entry(filter.path).or_default();
        of_path.retain(|it| !Arc::ptr_eq(&it.0, session));
        of_path.push((Arc::clone(session), is_qos_0));
        Granted::Success(if is_qos_0 { QoS::AtMostOnce } else { QoS::AtLeastOnce })
    }

    /// Gives a message to all that have subscribed to its topic.
    fn publish(&self, message: &Publish) {
        let [exact, patterns] = &*self.subscriptions.lock().unwrap();
        let patterns = patterns.iter().filter(|of| matches(&message.topic, of.0)).map(|of| of.1);
        for (session, is_qos_0) in exact.get(&message.topic).into_iter().chain(patterns).flatten() {
            let qos = if *is_qos_0 { QoS::AtMostOnce } else { message.qos };
            let copy = Publish { dup: false, retain: false, qos, pkid: 0, ..message.clone() };
            let messages = &mut session.queue.lock().unwrap().messages;
            messages.extend((messages.len() < WAITING_MAX).then_some(copy));
            session.changed.notify_one();
        }
    }

    /// Answers a packet. True if no message is in flight any more.
    pub(crate) fn answer(
        &self,
        packet: Packet,
        session: &Arc<Session>,
        output: &mut BytesMut,
    ) -> Result<bool, Failed> {
        match packet {
            Packet::Publish(message) if message.qos != QoS::ExactlyOnce => {
                self.publish(&message);
                if message.qos == QoS::AtLeastOnce {
                    v4::PubAck::new(message.pkid).write(output)?;
                }
            }
            Packet::PubAck(ack) => return Ok(session.queue.lock().unwrap().acknowledge(ack.pkid)),
            Packet::Subscribe(v4::Subscribe { pkid, filters }) => {
                let granted = filters.into_iter().map(|it| self.subscribe(session, it));
                v4::SubAck::new(pkid, granted.collect()).write(output)?;
            }
            Packet::PingReq => drop(v4::PingResp.write(output)?),
            _ => return Err("it has sent a packet that the broker does not serve".into()),
        }
        Ok(false)
    }

    /// The time has come to tell that a client has left.
    pub(crate) fn tell_will(&self, session: &Arc<Session>) {
        let will = session.queue.lock().unwrap().will.take();
        let _ = will.inspect(|will| self.publish(will));
    }
}

//! A container of its own on a shard: packets that are sent again until they are acknowledged.
//!
//! A datagram protocol keeps each packet until its acknowledgement comes, and sends it again when
//! its timer expires, each time after twice as long. The window of packets is a part of a shard:
//! the timer of a packet carries the packet's number, and needs no allocation. Other threads send
//! the window messages. The exit status says whether each packet ended as it should.
//!
//! ```text
//! cargo run --example retransmissions
//! ```
//!
//! To try: another `TRIES_MAX`, and which packets are given up then.

#![allow(clippy::print_stdout, reason = "it is a command")]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::rc::Rc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use corewheel::part::{Gauges, Part, PartHandle, PartTimer, Wants};
use corewheel::{Runtime, ShutdownPolicy, TimerService, Timers};

/// How often a packet is sent at most.
const TRIES_MAX: u32 = 3;

/// A packet that is not acknowledged.
struct Packet {
    wait: Duration,
    tries: u32,
    /// `None` while the packet waits to be sent.
    timer: Option<PartTimer>,
}

/// What becomes of packets.
#[derive(PartialEq, Eq, Debug)]
enum Event {
    Sent {
        packet: u32,
        tries: u32,
    },
    Acknowledged(u32),
    GivenUp(u32),
    /// The shard has ended.
    Left(u32),
}

/// The packets of one peer.
struct Window {
    shard: PartHandle,
    packets: RefCell<BTreeMap<u32, Packet>>,
    /// The numbers of packets that wait to be sent.
    outgoing: RefCell<VecDeque<u32>>,
    events: Sender<Event>,
}

impl Window {
    fn new(shard: PartHandle, events: Sender<Event>) -> Self {
        Self { shard, packets: RefCell::default(), outgoing: RefCell::default(), events }
    }

    fn report(&self, event: Event) {
        // The other end may have gone.
        let _ = self.events.send(event);
    }

    /// Sends a packet soon, and waits so long for its acknowledgement.
    fn transmit(&self, number: u32, wait: Duration) {
        self.packets.borrow_mut().insert(number, Packet { wait, tries: 0, timer: None });
        self.outgoing.borrow_mut().push_back(number);
    }

    /// The peer has a packet.
    fn acknowledge(&self, number: u32) {
        let Some(packet) = self.packets.borrow_mut().remove(&number) else { return };
        if let Some(timer) = packet.timer {
            self.shard.cancel(timer);
        }
        self.report(Event::Acknowledged(number));
    }

    /// Sends a packet, and schedules the next try.
    fn send(&self, number: u32) {
        let mut packets = self.packets.borrow_mut();
        let Some(packet) = packets.get_mut(&number) else { return };
        packet.tries += 1;
        packet.timer = self.shard.schedule(packet.wait, number).ok();
        packet.wait *= 2;
        // A server would write to its socket here.
        self.report(Event::Sent { packet: number, tries: packet.tries });
    }
}

impl Part for Window {
    fn takes_turns(&self) -> bool {
        true
    }

    fn wants(&self) -> Wants {
        if self.outgoing.borrow().is_empty() { Wants::Nothing } else { Wants::Delivery }
    }

    fn deliver(self: Rc<Self>, _now: Duration) {
        let next = self.outgoing.borrow_mut().pop_front();
        if let Some(number) = next {
            self.send(number);
        }
    }

    fn expired(self: Rc<Self>, number: u32) {
        let tries = self.packets.borrow().get(&number).map(|packet| packet.tries);
        if tries == Some(TRIES_MAX) {
            self.packets.borrow_mut().remove(&number);
            self.report(Event::GivenUp(number));
        } else {
            self.send(number);
        }
    }

    fn publish(&self, gauges: &mut Gauges<'_>) {
        gauges.set("packets_in_flight", self.packets.borrow().len() as u64);
    }

    fn closed(&self, _is_dead: bool) {
        for number in self.packets.take().into_keys() {
            self.report(Event::Left(number));
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let service = TimerService::builder().shards(1).runtime(Runtime::Thread).start()?;
    let shard = service.shards().next().ok_or("there is no shard")?;
    let (events, happened) = channel();
    let make = move |timers: &Timers| timers.add_part(|shard| Window::new(shard, events));
    let window = service.handle().on(shard).keep(make)?.wait()?;
    let sender = window.try_run(|window| window.shard.sender::<Window>());
    let sender = sender.map_err(|refused| refused.kind())?.wait()?;

    // Packet 1 is acknowledged, packet 2 never, and packet 3 waits until the end.
    let hour = Duration::from_hours(1);
    for (number, wait) in [(1, hour), (2, Duration::from_millis(5)), (3, hour)] {
        let transmit = move |window: Rc<Window>, wait| window.transmit(number, wait);
        sender.send(wait, transmit).map_err(|refused| refused.kind())?;
    }
    let mut ends = Vec::new();
    let mut tries_of_2 = 0;
    while ends.len() < 2 {
        match happened.recv()? {
            Event::Sent { packet: 1, .. } => {
                // The acknowledgement comes on another thread.
                let acknowledge = |window: Rc<Window>, number| window.acknowledge(number);
                let peer = thread::spawn(move || sender.send(1, acknowledge).is_ok());
                assert!(peer.join().is_ok_and(|is_sent| is_sent), "the shard runs");
            }
            Event::Sent { packet: 2, tries } => tries_of_2 = tries,
            Event::Sent { .. } => {}
            end => ends.push(end),
        }
    }
    while service.stats().shards[0].gauges.get("packets_in_flight") != Some(&1) {
        thread::sleep(Duration::from_millis(1));
    }
    let report = service.shutdown(ShutdownPolicy::Drop)?;
    ends.extend(happened.try_iter());

    let counts = report.shards[0].counts;
    let expected = [Event::Acknowledged(1), Event::GivenUp(2), Event::Left(3)];
    if ends != expected || tries_of_2 != TRIES_MAX || counts.panicked > 0 || counts.pending > 0 {
        return Err(format!("{ends:?} happened, with {tries_of_2} tries; {counts:?}").into());
    }
    println!("{ends:?}");
    println!("all of them came to their end");
    Ok(())
}

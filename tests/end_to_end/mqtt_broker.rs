//! The example of a broker with the clients of mosquitto.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Instant;

use corewheel_test_support::child::Child;
use corewheel_test_support::{ms, sockets};

use crate::built::example;
use crate::check_not_early;

/// Whether mosquitto's clients are here. Prints a line if not.
fn has_clients() -> bool {
    let help = Command::new("mosquitto_sub").arg("--help").stdout(Stdio::null()).spawn();
    let is_here = help.is_ok_and(|mut help| help.wait().is_ok());
    if !is_here {
        println!("skipped: there is no mosquitto_sub (Debian's package mosquitto-clients)");
    }
    is_here
}

struct Broker {
    _process: Child,
    address: SocketAddr,
}

impl Broker {
    fn start() -> Self {
        let process = Child::start(Command::new(example("mqtt_broker")).arg("127.0.0.1:0"));
        let address = process.told("listening on ").parse().unwrap();
        Self { _process: process, address }
    }

    fn client(&self, name: &str, arguments: &str) -> Command {
        let mut command = Command::new(name);
        command.args(["-h", "127.0.0.1", "-V", "mqttv311", "-p"]);
        command.arg(self.address.port().to_string()).args(arguments.split_whitespace());
        command
    }

    fn publish(&self, arguments: &str) {
        assert!(self.client("mosquitto_pub", arguments).status().unwrap().success(), "{arguments}");
    }

    /// Subscribes, and publishes to the topic `ready` until the subscription is there.
    fn subscribe(&self, arguments: &str) -> Child {
        let arguments = format!("{arguments} -t ready -v");
        let client = Child::start(&mut self.client("mosquitto_sub", &arguments));
        loop {
            self.publish("-t ready -m now -q 0");
            if let Ok(said) = client.lines.recv_timeout(ms(10)) {
                assert_eq!(said, "ready now");
                return client;
            }
        }
    }
}

/// The next line of a client that is not about the start of the test.
fn next(client: &Child) -> String {
    client.lines.iter().find(|line| line != "ready now").expect("the client goes on")
}

#[test]
fn mosquitto_clients_exchange_messages_wills_and_what_came_while_they_were_away() {
    if !has_clients() {
        return;
    }
    let broker = Broker::start();
    let watcher = broker.subscribe("-i watcher -q 1 -t room/+/door -t left/#");
    for number in 0..100 {
        broker.publish(&format!("-t room/{number}/door -q 1 -m open"));
        assert_eq!(next(&watcher), format!("room/{number}/door open"));
    }
    // A client that is killed leaves its will, and its session takes what comes meanwhile.
    let will = "--will-topic left/now --will-payload kept --will-qos 1";
    drop(broker.subscribe(&format!("-i kept -c -q 1 -t for/kept {will}")));
    assert_eq!(next(&watcher), "left/now kept");
    broker.publish("-t for/kept -q 1 -m later");
    let kept = &mut broker.client("mosquitto_sub", "-i kept -c -q 1 -t for/kept -v");
    assert_eq!(next(&Child::start(kept)), "for/kept later");
    // One that says goodbye has no will.
    broker.publish("-i polite -t other -m x --will-topic left/now --will-payload polite");
    broker.publish("-t left/last -q 1 -m end");
    assert_eq!(next(&watcher), "left/last end");
}

#[test]
fn message_that_is_not_acknowledged_comes_again_and_silent_client_is_cut() {
    let broker = Broker::start();
    let mut client = sockets::connect(broker.address);
    let mut exchange = |request: &[u8], answer: &[u8]| {
        client.write_all(request).unwrap();
        let mut read = vec![0; answer.len()];
        client.read_exact(&mut read).unwrap();
        assert_eq!(read, answer);
    };
    // It connects for a keep-alive of 4 s, subscribes to `t`, publishes to it, and acknowledges no
    // more.
    exchange(b"\x10\x0d\0\x04MQTT\x04\x02\0\x04\0\x01a", b"\x20\x02\0\0");
    exchange(b"\x82\x06\0\x01\0\x01t\x01", b"\x90\x03\0\x01\x01");
    let begin = Instant::now();
    exchange(b"\x32\x06\0\x01t\0\x07x", b"\x40\x02\0\x07\x32\x06\0\x01t\0\x01x");
    exchange(b"", b"\x3a\x06\0\x01t\0\x01x");
    check_not_early(begin, ms(5_000));
    assert_eq!(sockets::read_to_end(&mut client), b"");
    check_not_early(begin, ms(6_000));
}

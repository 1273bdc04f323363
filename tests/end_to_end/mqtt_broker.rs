//! The example of a broker with the clients of mosquitto.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Instant;

use crate::built::example;
use crate::server::Kill;
use corewheel_test_support::{PATIENCE, ms};

/// Whether mosquitto's clients are here. Prints a line if not.
fn has_clients() -> bool {
    let help = Command::new("mosquitto_sub").arg("--help").stdout(Stdio::null()).spawn();
    let is_here = help.is_ok_and(|mut help| help.wait().is_ok());
    if !is_here {
        println!("skipped: there is no mosquitto_sub (Debian's package mosquitto-clients)");
    }
    is_here
}

fn lines(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().expect("it is piped")).lines()
}

fn spawn(command: &mut Command) -> Kill {
    Kill(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
}

struct Broker {
    _process: Kill,
    address: SocketAddr,
}

impl Broker {
    fn start() -> Self {
        let mut process = spawn(Command::new(example("mqtt_broker")).arg("127.0.0.1:0"));
        let first = lines(&mut process.0).next().unwrap().unwrap();
        let address = first.trim_start_matches("listening on ").parse().unwrap();
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
    fn subscribe(&self, arguments: &str) -> (Kill, Lines<BufReader<ChildStdout>>) {
        let arguments = format!("{arguments} -t ready -v");
        let mut client = spawn(&mut self.client("mosquitto_sub", &arguments));
        let mut said = lines(&mut client.0);
        thread::scope(|scope| {
            let is_there = scope.spawn(|| said.next().unwrap().unwrap());
            while !is_there.is_finished() {
                self.publish("-t ready -m now -q 0");
                thread::sleep(ms(10));
            }
            assert_eq!(is_there.join().unwrap(), "ready now");
        });
        (client, said)
    }
}

/// The next line of a client that is not about the start of the test.
fn next(said: &mut Lines<BufReader<ChildStdout>>) -> String {
    said.map(Result::unwrap).find(|line| line != "ready now").expect("the client goes on")
}

#[test]
fn mosquitto_clients_exchange_messages_wills_and_what_came_while_they_were_away() {
    if !has_clients() {
        return;
    }
    let broker = Broker::start();
    let (_watcher, mut watched) = broker.subscribe("-i watcher -q 1 -t room/+/door -t left/#");
    for number in 0..100 {
        broker.publish(&format!("-t room/{number}/door -q 1 -m open"));
        assert_eq!(next(&mut watched), format!("room/{number}/door open"));
    }
    // A client that is killed leaves its will, and its session takes what comes meanwhile.
    let will = "--will-topic left/now --will-payload kept --will-qos 1";
    let (kept, _) = broker.subscribe(&format!("-i kept -c -q 1 -t for/kept {will}"));
    drop(kept);
    assert_eq!(next(&mut watched), "left/now kept");
    broker.publish("-t for/kept -q 1 -m later");
    let mut kept = spawn(&mut broker.client("mosquitto_sub", "-i kept -c -q 1 -t for/kept -v"));
    assert_eq!(next(&mut lines(&mut kept.0)), "for/kept later");
    // One that says goodbye has no will.
    broker.publish("-i polite -t other -m x --will-topic left/now --will-payload polite");
    broker.publish("-t left/last -q 1 -m end");
    assert_eq!(next(&mut watched), "left/last end");
}

#[test]
fn message_that_is_not_acknowledged_comes_again_and_silent_client_is_cut() {
    let broker = Broker::start();
    let mut client = TcpStream::connect(broker.address).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
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
    assert!(begin.elapsed() >= ms(5_000), "{:?}", begin.elapsed());
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(begin.elapsed() >= ms(6_000), "{:?}", begin.elapsed());
    assert_eq!(rest, b"");
}

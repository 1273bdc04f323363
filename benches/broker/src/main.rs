//! The example `mqtt_broker` with the timers of corewheel, or with tokio's: a round of one of them.
//!
//! Each client subscribes to a topic of its own, and publishes to that of the next client, at
//! random times, what is delivered at least once. So the broker arms and disarms a deadline for
//! each message. The clients run in this process, and the broker in one of its own. The command
//! `broker` of `corewheel-bench` runs both in turns, and prints their table.
#![allow(clippy::print_stdout, reason = "it is a command")]

#[allow(clippy::duplicate_mod, reason = "what the two have in common")]
mod of_corewheel;
#[allow(clippy::duplicate_mod, reason = "what the two have in common")]
mod of_tokio;

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs};

use bytes::BytesMut;
use clap::Parser;
use futures_util::StreamExt;
use rumqttc::mqttbytes::QoS;
use rumqttc::mqttbytes::v4::{Codec, Connect, Packet, PubAck, Publish, Subscribe};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::codec::FramedRead;

type Failed = Box<dyn Error + Send + Sync>;

/// A round of a broker.
#[derive(Parser, Clone, Debug)]
struct Options {
    /// `corewheel` or `tokio`.
    timers: String,
    clients: u64,
    /// The mean time between two messages of a client, in milliseconds.
    every_ms: u64,
    /// How long the round lasts, in seconds.
    seconds: u64,
    /// Only runs the broker.
    #[arg(long)]
    serve: bool,
}

fn main() -> Result<(), Failed> {
    let options = Options::parse();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match (options.serve, &*options.timers) {
            (true, "tokio") => of_tokio::run(listen().await?).await,
            (true, _) => of_corewheel::run(listen().await?).await,
            (false, _) => round(&options).await,
        }
    })
}

async fn listen() -> Result<TcpListener, Failed> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    Ok(listener)
}

/// A broker in a process of its own, which ends with this.
struct Broker(Child);

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Broker {
    /// In clock ticks of 10 ms.
    fn processor_time(&self) -> Result<u64, Failed> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let after_name = stat.rsplit(") ").next().ok_or("the name ends")?;
        let fields: Vec<_> = after_name.split(' ').collect();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    }

    fn memory_kb(&self) -> Result<u64, Failed> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        Ok(line.ok_or("there is a line")?.trim_end_matches("kB").trim().parse()?)
    }
}

/// Prints the values of a round, with the titles of their tables, as JSON.
async fn round(options: &Options) -> Result<(), Failed> {
    let mut command = Command::new(env::current_exe()?);
    let child = command.args(env::args().skip(1)).arg("--serve").stdout(Stdio::piped()).spawn()?;
    let mut broker = Broker(child);
    let mut line = String::new();
    BufReader::new(broker.0.stdout.take().ok_or("it is piped")?).read_line(&mut line)?;
    let address: SocketAddr = line.trim().parse()?;
    let received = Arc::new(AtomicU64::new(0));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..options.clients {
        let socket = TcpStream::connect(address).await?;
        clients.spawn(client(socket, number, options.clone(), Arc::clone(&received)));
    }
    // All have connected, and timers that were armed at first have been filed.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (begin, before) = (broker.processor_time()?, received.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    let messages = received.load(Ordering::Relaxed) - before;
    let micros = (broker.processor_time()? - begin) as f64 * 10_000.0 / messages as f64;
    let measured = [
        ("a message of the broker, processor time, µs", micros),
        ("the broker's memory, kB", broker.memory_kb()? as f64),
        ("messages in a round", messages as f64),
    ];
    let measured = measured.map(|(table, value)| format!(r#"[["{table}", "{{}}"], {value}]"#));
    println!("[{}]", measured.join(", "));
    Ok(())
}

async fn client(
    mut socket: TcpStream,
    number: u64,
    options: Options,
    received: Arc<AtomicU64>,
) -> Result<(), Failed> {
    let mut random = fastrand::Rng::with_seed(number);
    let (reader, mut writer) = socket.split();
    let codec = Codec { max_incoming_size: 1 << 16, max_outgoing_size: 1 << 16 };
    let mut input = FramedRead::with_capacity(reader, codec, 512);
    let mut output = BytesMut::new();
    let mut connect = Connect::new(format!("client {number}"));
    connect.keep_alive = 60;
    connect.write(&mut output)?;
    let mut subscribe = Subscribe::new(format!("of/{number}"), QoS::AtLeastOnce);
    subscribe.pkid = 1;
    subscribe.write(&mut output)?;
    let topic = format!("of/{}", (number + 1) % options.clients);
    let every = Duration::from_millis(options.every_ms);
    let mut next = Instant::now() + every.mul_f64(random.f64());
    loop {
        writer.write_all(&output).await?;
        output.clear();
        tokio::select! {
            packet = input.next() => {
                if let Packet::Publish(message) = packet.ok_or("the broker has closed")?? {
                    received.fetch_add(1, Ordering::Relaxed);
                    PubAck::new(message.pkid).write(&mut output)?;
                }
            }
            () = tokio::time::sleep_until(next.into()) => {
                next += every.mul_f64(random.f64() * 2.0);
                let mut message = Publish::new(&topic, QoS::AtLeastOnce, [7; 32]);
                message.pkid = 1;
                message.write(&mut output)?;
            }
        }
    }
}

//! Requests and responses over real sockets, with a timeout for each request and retries: a client
//! that keeps what it waits for in a [`Purgatory`](corewheel::Purgatory), and a server that
//! answers at once, late, or never.
//!
//! Server and client are on different shards if there are two, and talk over some connections. The
//! server forgets some requests and is too slow with others; the client asks again, gives up after
//! three attempts, and drops answers that nobody waits for any more. At the end both count what
//! they have sent and got, and it must add up, or the exit code is 1.
//!
//! ```text
//! cargo run --release --example requests -- --runtime tokio --requests 10000
//! ```
//!
//! What to copy into a client of your own: [`client`], which knows nothing of the runtime.

#![allow(clippy::print_stdout, reason = "it is a command")]

mod client;
mod connection;
#[cfg(target_os = "linux")]
mod on_glommio;
mod on_tokio;
mod server;

use std::error::Error;
use std::io::{Write, stderr};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use corewheel::{ShutdownPolicy, TimerService, Timers};

/// A client that asks a server, with a timeout for each request and retries.
#[derive(Parser, Debug)]
#[command(name = "requests", version)]
struct Options {
    /// What the shards run on.
    #[arg(long, default_value = "auto")]
    runtime: Runtime,

    /// How many requests there are.
    #[arg(long, default_value_t = 2_000, value_name = "COUNT")]
    requests: u32,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Runtime {
    /// Glommio where `io_uring` works, else tokio.
    Auto,
    Glommio,
    Tokio,
}

impl From<Runtime> for corewheel::Runtime {
    fn from(runtime: Runtime) -> Self {
        match runtime {
            Runtime::Auto => Self::Auto,
            Runtime::Glommio => Self::Glommio,
            Runtime::Tokio => Self::Tokio,
        }
    }
}

/// How many connections the client has to the server.
const CONNECTIONS: usize = 4;
/// By then both have ended, unless something is wrong.
const PATIENCE: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Without a standard error there is nobody to tell but the exit code.
            let _ = writeln!(stderr(), "requests: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let builder = TimerService::builder().name("requests").shards(cores.min(2));
    let service = builder.runtime(options.runtime.into()).start()?;
    println!("runtime: {} ({})", service.runtime(), service.runtime_reason());
    let (client, server) = match service.runtime() {
        #[cfg(target_os = "linux")]
        "glommio" => talk::<on_glommio::Glommio>(&service, options.requests)?,
        "tokio" => talk::<on_tokio::Tokio>(&service, options.requests)?,
        _ => return Err("no runtime for connections works here".into()),
    };
    let report = service.shutdown(ShutdownPolicy::Return)?;
    let unfired: usize = report.shards.iter().map(|shard| shard.unfired as usize).sum();
    say(&client, &server);
    check(options.requests, &client, &server, unfired)?;
    println!("it adds up");
    Ok(())
}

/// Runs a server and a client until both have ended.
fn talk<N: connection::Network>(
    service: &TimerService,
    requests: u32,
) -> Result<(client::Counts, server::Counts), Box<dyn Error>> {
    let shards: Vec<_> = service.shards().collect();
    let (ready, listening) = mpsc::channel();
    let server = service.spawn_on(shards[0], move |timers: Timers| async move {
        let served = server::serve::<N>(&timers, CONNECTIONS, &ready);
        timers.timeout(PATIENCE, served).await.map_err(|error| error.to_string())
    })?;
    let address = listening.recv()??;
    let client = service.spawn_on(shards[shards.len() - 1], move |timers: Timers| async move {
        let asked = client::ask::<N>(&timers, address, CONNECTIONS, requests);
        timers.timeout(PATIENCE, asked).await.map_err(|error| error.to_string())
    })?;
    let client = client.wait()??.map_err(|error| format!("the client: {error}"))?;
    let server = server.wait()??.map_err(|error| format!("the server: {error}"))?;
    Ok((client, server))
}

fn say(client: &client::Counts, server: &server::Counts) {
    let client::Counts { answered, timed_out, attempts, retried, late, .. } = *client;
    println!("requests: {answered} answered, {timed_out} timed out");
    println!("attempts: {attempts}, of which {retried} were retries");
    println!("late answers dropped: {late}");
    let server::Counts { at_once, late, never } = *server;
    println!("the server answered {at_once} at once, {late} late and {never} never");
}

/// Whether everything that was sent has come to exactly one end.
fn check(
    requests: u32,
    client: &client::Counts,
    server: &server::Counts,
    unfired: usize,
) -> Result<(), String> {
    let purgatory = client.purgatory;
    let sums = [
        ("requests", u64::from(requests), client.answered + client.timed_out),
        ("attempts", client.attempts, u64::from(requests) + client.retried),
        ("attempts that were watched", client.attempts, purgatory.accepted),
        ("answers in time", client.answered, purgatory.completed),
        ("deadlines", client.retried + client.timed_out, purgatory.expired),
        ("attempts that wait still", 0, purgatory.delayed),
        ("what the server got", client.attempts, server.at_once + server.late + server.never),
        ("answers", server.at_once + server.late, client.answered + client.late),
        ("timers that are left", 0, unfired as u64),
    ];
    for (what, one, other) in sums {
        if one != other {
            return Err(format!("{what} do not add up: {one} and {other}"));
        }
    }
    Ok(())
}

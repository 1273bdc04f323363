//! Requests and responses over real sockets, with a timeout for each request and retries: a client
//! that keeps its attempts in a [`Purgatory`](corewheel_kit::purgatory::Purgatory), and a
//! server that answers at once, late, or never.
//!
//! Server and client are on different shards if there are two, and talk over four connections. The
//! server forgets some requests and is too slow with others; the client asks again, gives up after
//! three attempts, and drops late answers. At the end the counts of both sides must add up, or the
//! exit code is 1.
//!
//! ```text
//! cargo run --release --example requests -- --runtime tokio --requests 10000
//! ```
//!
//! To try: another runtime, and what the counts and the times say then.
//!
//! The module to copy into a client of your own is [`client`], which names no runtime.

#![allow(clippy::print_stdout, reason = "it is a command")]

mod client;
mod connection;
#[path = "../host/network/mod.rs"]
mod network;
mod server;

use std::error::Error;
use std::io::{Write, stderr};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use clap::Parser;
use corewheel::{ShutdownPolicy, TimerService, Timers};
use corewheel_glommio::Runtime;

/// A client and a server, with a timeout for each request and retries.
#[derive(Parser, Debug)]
#[command(name = "requests", version)]
struct Options {
    /// The runtime of the shards.
    #[arg(long, default_value = "auto", value_name = "auto|glommio|tokio", value_parser = runtime)]
    runtime: Runtime,

    /// How many requests there are.
    #[arg(long, default_value_t = 2_000, value_name = "COUNT")]
    requests: u32,
}

fn runtime(name: &str) -> Result<Runtime, &'static str> {
    match name {
        "auto" => Ok(Runtime::GlommioOrTokio),
        "glommio" => Ok(Runtime::Glommio),
        "tokio" => Ok(Runtime::Tokio),
        _ => Err("use auto, glommio or tokio"),
    }
}

/// How many connections the client has to the server.
const CONNECTIONS: usize = 4;
/// Far longer than client and server take.
const PATIENCE: Duration = Duration::from_mins(1);

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the exit code alone tells of the failure.
            let _ = writeln!(stderr(), "requests: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let builder = TimerService::builder().name("requests").shards(cores.min(2));
    let service = builder.runtime(options.runtime).start()?;
    println!("runtime: {} ({})", service.stats().runtime, service.runtime_reason());
    let (client, server) = match service.runtime() {
        #[cfg(target_os = "linux")]
        Some("glommio") => talk::<network::on_glommio::Glommio>(&service, options.requests)?,
        _ => talk::<network::on_tokio::Tokio>(&service, options.requests)?,
    };
    let report = service.shutdown(ShutdownPolicy::Return)?;
    let counts = report.shards.iter().map(|shard| shard.counts);
    let unfired: u64 = counts.map(|counts| counts.returned + counts.dropped).sum();
    say(&client, &server);
    check(options.requests, &client, &server, unfired)?;
    println!("it adds up");
    Ok(())
}

/// Runs a server and a client until both have ended.
fn talk<N: network::Network>(
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

/// Checks that every request and every attempt has ended exactly once.
fn check(
    requests: u32,
    client: &client::Counts,
    server: &server::Counts,
    unfired: u64,
) -> Result<(), String> {
    let purgatory = client.purgatory;
    let sums = [
        ("requests", u64::from(requests), client.answered + client.timed_out),
        ("attempts", client.attempts, u64::from(requests) + client.retried),
        ("attempts that were watched", client.attempts, purgatory.accepted),
        ("answers in time", client.answered, purgatory.completed),
        ("deadlines", client.retried + client.timed_out, purgatory.expired),
        ("attempts that still wait", 0, purgatory.delayed),
        (
            "requests that the server received",
            client.attempts,
            server.at_once + server.late + server.never,
        ),
        ("answers", server.at_once + server.late, client.answered + client.late),
        ("timers that are left", 0, unfired),
    ];
    let wrong = sums.into_iter().find(|(_, left, right)| left != right);
    wrong.map_or(Ok(()), |(name, left, right)| {
        Err(format!("{name} do not add up: {left} and {right}"))
    })
}

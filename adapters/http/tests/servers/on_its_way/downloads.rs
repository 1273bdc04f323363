//! Downloads of many megabytes at the pace of a client, with the limits of a server in use. They
//! take minutes, so they run when they are asked for:
//!
//! ```sh
//! cargo test --test adapters -- --ignored --nocapture downloads
//! ```

use super::*;

/// A download of so many bytes in a second, with limits.
struct Download {
    name: &'static str,
    length: usize,
    per_second: usize,
    limits: StreamLimits,
    /// Tells the idlest connection to end two seconds after the beginning.
    closes_idlest: bool,
}

/// What the client has received in how many seconds, and the limit that has cut it.
fn run(side: On, version: Version, download: &Download) -> (bool, String) {
    let server = Server::start_with(side, download.limits, None);
    let mut client = Client::connect_with(server.address, version, 32 << 20, None);
    client.get(1, &format!("/bytes/{}", download.length));
    let begin = Instant::now();
    let mut to_close = download.closes_idlest;
    let received = client.read_at(download.per_second, download.length, || {
        if to_close && begin.elapsed() > Duration::from_secs(2) {
            to_close = false;
            server.service.close_idlest(1);
        }
    });
    let limit = server.ended.try_recv().ok().and_then(|(_, limit)| limit);
    let taken = begin.elapsed().as_secs_f64();
    let megabytes = received as f64 / 1e6;
    let is_whole = received >= download.length;
    let end = if is_whole { "complete".to_owned() } else { format!("cut by {limit:?}") };
    (is_whole, format!("{end}: {megabytes:.1} MB after {taken:.1} s"))
}

#[test]
#[ignore = "takes minutes"]
#[expect(clippy::print_stdout, reason = "the program is run for its table")]
fn steady_downloads_at_the_pace_of_clients_in_use_are_complete() {
    let seconds = Duration::from_secs;
    let short = StreamLimits::default().write_stall(seconds(7));
    let long = StreamLimits::default().idle(seconds(5)).write_stall(seconds(50));
    let fast = (12_000_000, 1_500_000);
    let download = |name, (length, per_second), limits, closes_idlest| Download {
        name,
        length,
        per_second,
        limits,
        closes_idlest,
    };
    let downloads = [
        download("idle 700 ms, write stall 7 s", fast, short.idle(ms(700)), false),
        download("read idle 700 ms, write stall 7 s", fast, short.read_idle(ms(700)), false),
        download("close_idlest after 2 s", fast, short.idle(seconds(60)), true),
        download("idle 5 s, write stall 50 s", (9_000_000, 100_000), long, false),
    ];
    let mut are_whole = true;
    thread::scope(|scope| {
        let mut running = Vec::new();
        for download in &downloads {
            for version in VERSIONS {
                for side in SIDES {
                    let run = scope.spawn(move || run(side, version, download));
                    running.push((format!("{} | {version:?} | {side:?}", download.name), run));
                }
            }
        }
        for (row, run) in running {
            let (is_whole, result) = run.join().unwrap();
            println!("| {row} | {result} |");
            are_whole &= is_whole;
        }
    });
    assert!(are_whole, "a steady client is cut");
}

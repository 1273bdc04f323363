//! The echo server with five thousand clients at once.

use std::sync::Arc;

use rustix::process::{Resource, Signal, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::server::{Server, sum};
use crate::worlds;
use corewheel_test_support::PATIENCE;

const CLIENTS: usize = 5_000;
/// The other files of this process: the pipes and clients of tests that run at the same time.
const OTHER_FILES: u64 = 500;

#[test]
fn five_thousand_connections_at_once_are_all_served() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|files| files < CLIENTS as u64 + OTHER_FILES) {
        println!("skipped: this host allows a process only {:?} files", limit.maximum);
        return;
    }
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let runtime = Runtime::new().unwrap();
    // One world after the other, as each takes this many files.
    for world in worlds().filter(|world| world.runtime != "auto") {
        let server = Server::start(world, &["--heartbeat", "10m", "--read-idle", "10m"]);
        runtime.block_on(serve_all(&server));
        server.wait_for("pending", 0);
        let ended = server.stop(Signal::TERM);
        // Read-idle and heartbeat share one entry.
        assert_eq!(sum(&ended, "cancelled"), CLIENTS as u64, "{world:?}");
        assert!(ended.iter().all(|shard| shard["scheduled"] > 0), "{world:?}: {ended:?}");
    }
}

/// Connects all clients, exchanges lines while all are connected, and closes all connections.
async fn serve_all(server: &Server) {
    let all_are_in = Arc::new(Barrier::new(CLIENTS + 1));
    let all_may_leave = Arc::new(Barrier::new(CLIENTS + 1));
    let address = server.address;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (all_are_in, all_may_leave) = (Arc::clone(&all_are_in), Arc::clone(&all_may_leave));
        clients.spawn(async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            echo(&mut stream, &format!("client {number} is new\n")).await;
            all_are_in.wait().await;
            echo(&mut stream, &format!("client {number} is here\n")).await;
            all_may_leave.wait().await;
        });
    }
    let in_time = "all of them are served in time";
    timeout(PATIENCE, all_are_in.wait()).await.expect(in_time);
    server.wait_for("pending", CLIENTS as u64);
    timeout(PATIENCE, all_may_leave.wait()).await.expect(in_time);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

async fn echo(stream: &mut TcpStream, line: &str) {
    stream.write_all(line.as_bytes()).await.unwrap();
    let mut back = vec![0; line.len()];
    stream.read_exact(&mut back).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&back), line);
}

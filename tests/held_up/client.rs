//! The clients of a round, on threads that no runtime holds up.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::rows::Row;
use crate::server::{Rows, Where, start, start_child};
use corewheel_test_support::held::{HeldUp, Hold};

/// The limit of the first try with few clients. Each further one doubles it.
const LIMIT: Duration = Duration::from_millis(400);
const TRIES: u32 = 8;
/// How long a client waits before it says that it was neither served nor cut.
const PATIENCE: Duration = Duration::from_mins(2);

/// Runs a round with so many clients for each row, and a silent one besides.
pub(crate) fn check(rows: Rows<'_>, clients: usize, at: Where, hold: Hold) {
    let first = LIMIT * (1 + (rows.len() * clients / 500) as u32);
    check_from(first, rows, clients, at, hold);
}

/// Like [`check`], with this limit in the first try. The runtime is held up for half as long again.
pub(crate) fn check_from(first: Duration, rows: Rows<'_>, clients: usize, at: Where, hold: Hold) {
    let what = format!("{:?}, {:?}, {hold:?}", at.0, at.1);
    let mut limits = (0..TRIES).map(|tries| first * 2_u32.pow(tries));
    let cut = limits.find_map(|limit| round(rows, clients, at, hold, limit));
    let cut = cut.unwrap_or_else(|| panic!("{what}: this machine is too busy to send in time"));
    assert!(cut.is_empty(), "{what}, of {clients} clients each: {cut:#?}");
}

/// The rows with the number of clients that were cut, or that were silent and not cut. `None` if
/// the clients have sent too late.
fn round(
    rows: Rows<'_>,
    clients: usize,
    at: Where,
    hold: Hold,
    limit: Duration,
) -> Option<Vec<(&'static str, usize)>> {
    let (server, addresses) = if hold == Hold::Stopped {
        let (child, addresses) = start_child(rows, clients + 1, at, limit);
        (HeldUp::Child(child), addresses)
    } else {
        let (server, addresses) = start(rows, clients + 1, at, limit);
        (HeldUp::Here(server), addresses)
    };
    // The limits begin later.
    let begin = Instant::now();
    // Each row's silent client is its last.
    let mut sockets: Vec<Vec<TcpStream>> = addresses
        .iter()
        .map(|address| (0..=clients).map(|_| connect(*address)).collect())
        .collect();
    for (row, sockets) in rows.iter().zip(&mut sockets) {
        for socket in &mut *sockets {
            socket.write_all(row.first).unwrap();
        }
        for socket in sockets {
            if !row.replies[0].is_empty() && !row.first.is_empty() && !is_replied(socket, row, 0) {
                return None;
            }
        }
    }
    let released = server.hold_up(hold);
    for (row, sockets) in rows.iter().zip(&mut sockets) {
        for socket in &mut sockets[..clients] {
            // A client may have been cut before, as this thread was too late.
            if socket.write_all(row.second).is_err() {
                return None;
            }
        }
    }
    let is_in_time = begin.elapsed() < limit;
    if hold != Hold::Computing {
        // The limits of the last clients have begun later.
        thread::sleep(limit + limit / 2);
    }
    drop(released);
    if let HeldUp::Child(child) = &server {
        child.go_on();
    }
    if !is_in_time {
        return None;
    }
    let cut = rows.iter().zip(sockets).map(|(row, mut sockets)| {
        let mut silent = sockets.pop().unwrap();
        let cut =
            sockets.iter_mut().filter_map(|it| (!is_replied(it, row, 1)).then_some(())).count();
        assert!(!is_replied(&mut silent, row, 1), "{}: a silent client is served", row.name);
        (row.name, cut)
    });
    Some(cut.filter(|(_, cut)| *cut > 0).collect())
}

fn connect(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

/// Whether the server replies to the first, or to the second, that a client sends. False if it
/// closes the connection.
fn is_replied(socket: &mut TcpStream, row: &Row, which: usize) -> bool {
    let (mut received, mut part) = (Vec::new(), [0; 1024]);
    loop {
        match socket.read(&mut part) {
            Ok(0) => return false,
            Ok(count) => received.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("{}: a client is neither served nor cut", row.name)
            }
            Err(_) => return false,
        }
        let reply = row.replies[which];
        if received.windows(reply.len()).any(|part| part == reply) {
            return true;
        }
    }
}

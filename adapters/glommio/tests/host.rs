//! Glommio passes the tests of a host.

#![cfg(target_os = "linux")]

use std::io;
use std::net::SocketAddr;
use std::pin::pin;

use corewheel::ConnTimers;
use corewheel::conn::Raced;
use corewheel::host::Engine;
use corewheel_glommio::{Runtime, SocketOf};
use corewheel_host_tests::{Sockets, check};
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use glommio::net::TcpStream;

#[derive(Clone, Copy)]
struct OfGlommio;

impl Sockets for OfGlommio {
    type Stream = TcpStream;

    async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await.map_err(|error| io::Error::other(error.to_string()))
    }

    async fn read(self, stream: &mut TcpStream, most: usize) -> io::Result<usize> {
        stream.read(&mut vec![0; most]).await
    }

    async fn race_write(
        self,
        stream: &mut TcpStream,
        conn: &ConnTimers,
        bytes: Vec<u8>,
    ) -> Raced<io::Result<()>> {
        let socket = SocketOf::new(stream);
        conn.race_write(&socket, pin!(stream.write_all(&bytes))).await
    }
}

#[test]
fn host_of_glommio_passes() {
    match Runtime::Glommio.probe() {
        Ok(_) => check(Runtime::Glommio, OfGlommio),
        #[allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]
        Err(why) => println!("skipped: {why}"),
    }
}

//! The hosts of corewheel pass the tests.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;

use corewheel::conn::Raced;
use corewheel::{ConnTimers, Runtime};
use corewheel_host_tests::{PATIENCE, Sockets, check, check_sockets};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[derive(Clone, Copy)]
struct OfTokio;

impl Sockets for OfTokio {
    type Stream = TcpStream;

    async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
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
        let (reader, mut writer) = stream.split();
        conn.race_write(reader.as_ref(), pin!(writer.write_all(&bytes))).await
    }
}

#[test]
fn host_of_plain_threads_passes() {
    check(Runtime::Thread, PATIENCE);
}

#[test]
fn host_of_tokio_passes() {
    check(Runtime::Tokio, PATIENCE);
}

#[test]
fn sockets_of_tokio_pass() {
    check_sockets(Runtime::Tokio, OfTokio, PATIENCE);
}

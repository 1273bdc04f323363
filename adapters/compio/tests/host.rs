//! Compio passes the tests of a host.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;

use compio::BufResult;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::TcpStream;
use corewheel::ConnTimers;
use corewheel::conn::Raced;
use corewheel_compio::Compio;
use corewheel_host_tests::{PATIENCE, Sockets, check, check_sockets};

#[derive(Clone, Copy)]
struct OfCompio;

impl Sockets for OfCompio {
    type Stream = TcpStream;

    async fn connect(self, address: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(address).await
    }

    async fn read(self, stream: &mut TcpStream, most: usize) -> io::Result<usize> {
        let BufResult(read, _buffer) = stream.read(Vec::with_capacity(most)).await;
        read
    }

    async fn race_write(
        self,
        stream: &mut TcpStream,
        conn: &ConnTimers,
        bytes: Vec<u8>,
    ) -> Raced<io::Result<()>> {
        let (socket, mut writer) = (&*stream, &*stream);
        let write = async { writer.write_all(bytes).await.0 };
        conn.race_write(socket, pin!(write)).await
    }
}

#[test]
fn host_of_compio_passes() {
    check(Compio, PATIENCE);
}

#[test]
fn sockets_of_compio_pass() {
    check_sockets(Compio, OfCompio, PATIENCE);
}

//! Glommio passes the tests of a host.

#![cfg(target_os = "linux")]

use std::io;
use std::net::SocketAddr;

use corewheel::host::Engine;
use corewheel_glommio::Runtime;
use corewheel_host_tests::{Sockets, check};
use futures_lite::AsyncReadExt;
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
}

#[test]
fn host_of_glommio_passes() {
    match Runtime::Glommio.probe() {
        Ok(_) => check(Runtime::Glommio, OfGlommio),
        #[allow(clippy::print_stdout, reason = "a test that cannot run on its host says so")]
        Err(why) => println!("skipped: {why}"),
    }
}

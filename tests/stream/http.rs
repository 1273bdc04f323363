//! hyper's HTTP/1 server over streams with their timeouts, through both families of traits.

use std::io::{Read, Write};
use std::net::TcpStream as Client;
use std::thread;
use std::time::Instant;

use corewheel::stream::StreamTimeout::{Head, Idle, ReadRate};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read as HyperRead, Write as HyperWrite};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::servers::{Part, RATE, SLOW, check_server, send_until_cut, start_multi_thread};
use super::*;

fn limits() -> StreamLimits {
    StreamLimits::default().head(SLOW).idle(SLOW).min_read_rate(RATE)
}

/// Answers with the length of the body. It works for longer than a connection may be idle.
async fn answer<M: Side>(
    request: Request<Incoming>,
    control: StreamControl<M>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    control.head_complete();
    let in_flight = control.begin_request();
    let body = request.into_body().collect().await?.to_bytes();
    control.message_complete();
    tokio::time::sleep(SLOW + SLOW / 4).await;
    drop(in_flight);
    control.begin_message();
    Ok(Response::new(Full::new(Bytes::from(body.len().to_string()))))
}

/// Serves one connection. The error is the limit that has ended it, as hyper's error says it.
async fn serve<I, M>(io: I, control: StreamControl<M>) -> io::Result<()>
where
    I: HyperRead + HyperWrite + Unpin,
    M: Side,
{
    control.begin_message();
    let service = service_fn(|request| answer(request, control.clone()));
    let served = http1::Builder::new().serve_connection(io, service).await;
    let Err(error) = served else { return Ok(()) };
    // The error of a body that is cut is the service's.
    let mut source: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
            assert_eq!(inner.copied(), control.limit_reached());
        }
        source = error.source();
    }
    control.limit_reached().map_or(Ok(()), |limit| Err(limit.into()))
}

async fn over_tokio_traits(stream: TcpStream, timers: Handle) -> io::Result<()> {
    let stream = TimedIo::new(stream, timers, limits());
    let control = stream.control();
    serve(TokioIo::new(stream), control).await
}

async fn over_hyper_traits(stream: TcpStream, timers: Handle) -> io::Result<()> {
    let stream = TimedIo::new(TokioIo::new(stream), timers, limits());
    let control = stream.control();
    serve(stream, control).await
}

const HEAD: &[u8] = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 24\r\n\r\n";

/// Reads until the answer to one request is there.
fn read_answer(client: &mut Client) {
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n24") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
}

const PARTS: [(&str, Part); 4] = [
    ("slow head", |client, _| {
        let begin = Instant::now();
        send_until_cut(client, b"GET", ms(50));
        Some((begin, SLOW, Head(SLOW)))
    }),
    ("slow body", |client, _| {
        // The message is measured from the first byte of its head.
        let begin = Instant::now();
        client.write_all(HEAD).unwrap();
        send_until_cut(client, b"b", ms(500));
        Some((begin, SLOW, ReadRate(RATE)))
    }),
    ("slow second head", |client, _| {
        client.write_all(&[HEAD, &[b'b'; 24]].concat()).unwrap();
        read_answer(client);
        let begin = Instant::now();
        send_until_cut(client, b"GET", ms(50));
        Some((begin, SLOW, Head(SLOW)))
    }),
    ("honest", |client, _| {
        for _ in 0..2 {
            client.write_all(HEAD).unwrap();
            for _ in 0..24 {
                client.write_all(b"b").unwrap();
                thread::sleep(ms(20));
            }
            read_answer(client);
        }
        // After its requests, the connection is idle. Its end may lie between the server's write
        // and the client's read of it; both are later than the work for the answer.
        Some((Instant::now(), Duration::ZERO, Idle(SLOW)))
    }),
];

#[test]
fn http_server_over_tokio_traits_cuts_slow_clients_and_serves_honest_ones() {
    check_server(start_multi_thread(over_tokio_traits), &PARTS);
}

#[test]
fn http_server_over_hyper_traits_cuts_slow_clients_and_serves_honest_ones() {
    check_server(start_multi_thread(over_hyper_traits), &PARTS);
}

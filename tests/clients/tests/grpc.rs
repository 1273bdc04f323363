//! The times of gRPC: tonic's client, whose requests bring a time, and tonic's side of a server in
//! a router, over real sockets.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::routing::post;
use bytes::{Buf, BufMut};
use corewheel::TimerService;
use corewheel_http::axum::serve;
use corewheel_http::tower::TimeoutLayer;
use hyper::body::{Body, Bytes};
use hyper::http::uri::PathAndQuery;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tonic::client::{Grpc, GrpcService};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;
use tonic::{Code, Status, body};
use tower::{Layer, service_fn};

const SHORT: Duration = Duration::from_millis(100);
const FAR: Duration = Duration::from_secs(400);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Messages are bytes.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// Serves two calls: `Echo` answers at once and `Wait` never.
async fn start(service: &TimerService, limit: Duration) -> SocketAddr {
    let echo = async |request: Request| {
        let echo = async |request: tonic::Request<Bytes>| {
            Ok::<_, Status>(tonic::Response::new(request.into_inner()))
        };
        tonic::server::Grpc::new(Raw).unary(service_fn(echo), request).await
    };
    let app = Router::new()
        .route("/test.Test/Echo", post(echo))
        .route("/test.Test/Wait", post(pending::<()>))
        .layer(TimeoutLayer::grpc(service.handle(), limit));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, app).timers(service.handle()).into_future());
    address
}

/// Calls a method of a server. `time` is sent with the request.
async fn call<S>(
    service: S,
    address: SocketAddr,
    path: &'static str,
    time: Option<Duration>,
) -> Result<Bytes, Status>
where
    S: GrpcService<body::Body, ResponseBody: Send + 'static>,
    <S::ResponseBody as Body>::Error: Into<BoxError>,
{
    let mut request = tonic::Request::new(Bytes::from("hello"));
    if let Some(time) = time {
        request.set_timeout(time);
    }
    let origin = format!("http://{address}").parse().unwrap();
    let mut client = Grpc::with_origin(service, origin);
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    let response = client.unary(request, PathAndQuery::from_static(path), Raw).await?;
    Ok(response.into_inner())
}

#[track_caller]
fn check_late(answer: Result<Bytes, Status>) {
    let status = answer.expect_err("the time of the request is not up");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(status.message(), "the time of the request is up");
}

#[tokio::test]
async fn call_ends_by_the_time_that_its_client_has_sent_or_by_the_shorter_limit() {
    let service = TimerService::beside_runtime().start().unwrap();
    // Unlike tonic's own channel, this client only sends the time.
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let server = start(&service, FAR).await;
    let echoed = call(client.clone(), server, "/test.Test/Echo", Some(FAR)).await;
    assert_eq!(echoed.unwrap(), "hello");
    check_late(call(client.clone(), server, "/test.Test/Wait", Some(SHORT)).await);
    let strict = start(&service, SHORT).await;
    check_late(call(client.clone(), strict, "/test.Test/Wait", Some(FAR)).await);
    check_late(call(client, strict, "/test.Test/Wait", None).await);
}

#[tokio::test]
async fn channel_with_a_limit_gives_the_status_that_tonic_has_for_a_deadline() {
    let service = TimerService::beside_runtime().start().unwrap();
    let server = start(&service, FAR).await;
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap().connect().await;
    let channel = TimeoutLayer::grpc(service.handle(), SHORT).layer(channel.unwrap());
    check_late(call(channel.clone(), server, "/test.Test/Wait", None).await);
    check_late(call(channel, server, "/test.Test/Wait", Some(FAR)).await);
}

//! The times of gRPC: tonic's client, whose requests bring a time, and tonic's side of a server in
//! a router, over real sockets.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use corewheel::TimerService;
use corewheel_http::axum::serve;
use corewheel_http::tower::TimeoutLayer;
use hyper::body::{Body, Bytes};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tonic::client::GrpcService;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status, body};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Layer;

const SHORT: Duration = Duration::from_millis(100);
const FAR: Duration = Duration::from_secs(400);

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Serves two calls: `Check` answers at once and `Watch` never.
async fn start(service: &TimerService, limit: Duration) -> SocketAddr {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("test", ServingStatus::NotServing).await;
    let app = Router::new()
        .route_service("/grpc.health.v1.Health/Check", health)
        .route("/grpc.health.v1.Health/Watch", post(pending::<()>))
        .layer(TimeoutLayer::grpc(service.handle(), limit));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, app).timers(service.handle()).into_future());
    address
}

/// A call that is answered at once, or never. `time` is sent with the request. Returns the status
/// that the server has of the service that the call names.
async fn call<S>(
    service: S,
    address: SocketAddr,
    is_answered: bool,
    time: Option<Duration>,
) -> Result<i32, Status>
where
    S: GrpcService<body::Body, Error: Into<Failed>>,
    S::ResponseBody: Body<Data = Bytes, Error: Into<Failed> + Send> + Send + 'static,
{
    let mut request = Request::new(HealthCheckRequest { service: "test".into() });
    if let Some(time) = time {
        request.set_timeout(time);
    }
    let origin = format!("http://{address}").parse().unwrap();
    let mut client = HealthClient::with_origin(service, origin);
    if is_answered {
        client.check(request).await.map(|answer| answer.into_inner().status)
    } else {
        client.watch(request).await.map(|_| 0)
    }
}

#[track_caller]
fn check_late(answer: Result<i32, Status>) {
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
    let answer = call(client.clone(), server, true, Some(FAR)).await;
    assert_eq!(answer.unwrap(), ServingStatus::NotServing as i32);
    check_late(call(client.clone(), server, false, Some(SHORT)).await);
    let strict = start(&service, SHORT).await;
    check_late(call(client.clone(), strict, false, Some(FAR)).await);
    check_late(call(client, strict, false, None).await);
}

#[tokio::test]
async fn channel_with_a_limit_gives_the_status_that_tonic_has_for_a_deadline() {
    let service = TimerService::beside_runtime().start().unwrap();
    let server = start(&service, FAR).await;
    let channel = Endpoint::from_shared(format!("http://{server}")).unwrap().connect().await;
    let channel = TimeoutLayer::grpc(service.handle(), SHORT).layer(channel.unwrap());
    check_late(call(channel.clone(), server, false, None).await);
    check_late(call(channel, server, false, Some(FAR)).await);
}

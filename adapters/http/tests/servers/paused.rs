//! hyper's timer and the layer of tower in runtimes whose clock a test has paused. Each check of
//! the timer is made for that of hyper-util as well, which goes by tokio's clock.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::LazyLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use corewheel::{TimerService, time};
use corewheel_http::hyper::HyperTimer;
use corewheel_http::tower::TimeoutLayer;
use hyper::rt::Timer;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower::{ServiceExt, service_fn as tower_fn};

use crate::http::{FAR, PING, answer, frames, lab, ms, preface};

/// A service in real time.
fn service() -> &'static TimerService {
    static SERVICE: LazyLock<TimerService> =
        LazyLock::new(|| TimerService::builder().shards(1).start().unwrap());
    &SERVICE
}

fn own_timer() -> HyperTimer {
    HyperTimer::new(service().handle())
}

/// Runs a check for both timers, each in a runtime whose clock is paused. By tokio's clock, a check
/// that waits for real time takes too long.
macro_rules! for_both {
    ($check:ident) => {
        paused($check(TokioTimer::new()));
        paused($check(own_timer()));
    };
}

fn paused(check: impl Future<Output = ()>) {
    run_paused(pin!(check));
}

/// Is compiled once for all checks.
fn run_paused(check: Pin<&mut dyn Future<Output = ()>>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let in_time = tokio::time::timeout(1_000 * FAR, check).await;
        assert!(in_time.is_ok(), "the paused clock is not followed");
    });
}

async fn look<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

async fn check_sleeps<T: Timer>(timer: T) {
    let begin = tokio::time::Instant::now();
    timer.sleep(FAR).await;
    assert_eq!(begin.elapsed(), FAR);
    timer.sleep_until(timer.now() + FAR).await;
    assert_eq!(begin.elapsed(), 2 * FAR);
    // It ends before a later one of tokio, and after an earlier one.
    assert!(tokio::time::timeout(2 * FAR, timer.sleep(FAR)).await.is_ok());
    assert!(tokio::time::timeout(FAR, timer.sleep(2 * FAR)).await.is_err());
    assert_eq!(begin.elapsed(), 4 * FAR);
}

#[test]
fn sleeps_of_the_timer_end_when_the_paused_clock_comes_to_them() {
    for_both!(check_sleeps);
}

async fn check_present<T: Timer>(timer: T) {
    let begin = timer.now();
    tokio::time::advance(FAR).await;
    assert_eq!(timer.now() - begin, FAR);
    assert_eq!(tokio::time::Instant::now().into_std(), timer.now());
    // From here on real time passes again, from where the clock is.
    tokio::time::resume();
    assert!(timer.now() >= begin + FAR);
}

#[test]
fn present_of_the_timer_is_that_of_the_paused_clock() {
    for_both!(check_present);
}

async fn check_resets<T: Timer>(timer: T) {
    let begin = timer.now();
    let mut sleep = timer.sleep(FAR);
    assert!(look(sleep.as_mut()).await.is_pending());
    timer.reset(&mut sleep, begin + 3 * FAR);
    tokio::time::advance(2 * FAR).await;
    assert!(look(sleep.as_mut()).await.is_pending(), "the deadline before the reset counts");
    timer.reset(&mut sleep, begin + ms(7_200_500));
    sleep.as_mut().await;
    assert_eq!(timer.now() - begin, ms(7_200_500));
    // After its end.
    timer.reset(&mut sleep, begin + 3 * FAR);
    sleep.await;
    assert_eq!(timer.now() - begin, 3 * FAR);
}

#[test]
fn sleep_that_is_reset_ends_when_the_paused_clock_comes_to_its_new_deadline() {
    for_both!(check_resets);
}

async fn check_http1<T: Timer + Send + Sync + 'static>(timer: T) {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let mut builder = http1::Builder::new();
    builder.timer(timer).header_read_timeout(Duration::from_secs(30));
    let begin = tokio::time::Instant::now();
    let served = tokio::spawn(builder.serve_connection(TokioIo::new(near), service_fn(answer)));
    far.write_all(b"GET / HTTP/1.1\r\nhost: te").await.unwrap();
    // A client that sends the rest within the limit, by the paused clock.
    tokio::time::sleep(Duration::from_secs(29)).await;
    far.write_all(b"st\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    far.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    // The next head does not come.
    served.await.unwrap().unwrap_err();
    assert_eq!(begin.elapsed(), Duration::from_secs(59));
}

async fn check_http2<T: Timer + Send + Sync + 'static>(timer: T) {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(timer).keep_alive_interval(FAR).keep_alive_timeout(Duration::from_secs(10));
    let begin = tokio::time::Instant::now();
    let served = tokio::spawn(builder.serve_connection(TokioIo::new(near), service_fn(answer)));
    far.write_all(&preface()).await.unwrap();
    let mut said = Vec::new();
    far.read_to_end(&mut said).await.unwrap();
    assert!(frames(&said).iter().any(|frame| frame.0 == PING));
    served.await.unwrap().unwrap_err();
    assert_eq!(begin.elapsed(), FAR + Duration::from_secs(10));
}

#[test]
fn limit_for_a_head_and_those_of_http2s_pings_come_by_the_paused_clock() {
    for_both!(check_http1);
    for_both!(check_http2);
}

#[test]
fn request_has_its_time_by_the_paused_clock() {
    paused(async {
        const LIMIT: Duration = Duration::from_secs(30);
        const SHORTER: Duration = ms(29_999);
        let late = || StatusCode::GATEWAY_TIMEOUT.into_response();
        let limit = TimeoutLayer::with_response(service().handle(), LIMIT, late);
        let slow = || async { tokio::time::sleep(SHORTER).await };
        let app: Router =
            Router::new().route("/late", get(pending::<()>)).route("/slow", get(slow)).layer(limit);
        for (path, status, after) in
            [("/late", StatusCode::GATEWAY_TIMEOUT, LIMIT), ("/slow", StatusCode::OK, SHORTER)]
        {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let begin = time::Instant::now();
            let response = app.clone().oneshot(request).await.unwrap();
            assert_eq!((response.status(), begin.elapsed()), (status, after), "{path}");
        }
    });
}

#[test]
fn service_with_a_manual_clock_has_its_time_in_a_paused_runtime() {
    let mut lab = lab();
    let timer = HyperTimer::new(lab.handle());
    let begin = timer.now();
    let mut service = tower::Layer::layer(&TimeoutLayer::new(lab.handle(), ms(10)), {
        tower_fn(|()| pending::<Result<(), Infallible>>())
    });
    let mut sleep = timer.sleep(ms(10));
    let mut request = pin!(tower::Service::call(&mut service, ()));
    paused(async {
        assert!(look(sleep.as_mut()).await.is_pending());
        assert!(look(request.as_mut()).await.is_pending());
        tokio::time::advance(FAR).await;
        assert!(look(sleep.as_mut()).await.is_pending());
        assert!(look(request.as_mut()).await.is_pending());
        assert_eq!(timer.now(), begin);
    });
    lab.advance(ms(10));
    paused(async {
        sleep.await;
        request.await.unwrap_err();
        assert_eq!(timer.now() - begin, ms(10));
    });
}

#[test]
fn runtime_whose_clock_is_not_paused_has_the_time_of_the_service() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (begin, timer) = (Instant::now(), own_timer());
        let scheduled = || service().stats().shards[0].counts.scheduled_remote;
        let before = scheduled();
        timer.sleep(ms(5)).await;
        assert!(begin.elapsed() >= ms(5));
        assert!(scheduled() > before, "the service has had no timer for the sleep");
    });
}

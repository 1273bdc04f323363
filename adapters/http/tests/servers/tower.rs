//! The layer of tower that gives each request a time, alone and in axum routers: one tick before
//! the time is up and when it is up, by a manual clock.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, pending, ready};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::error_handling::HandleErrorLayer;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::get;
use corewheel::TimeoutError;
use corewheel::fallback::InfallibleSleep;
use corewheel_http::tower::TimeoutLayer;
use tokio::sync::oneshot;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::http::{Alarm, FAR, Failed, Lab, builder, check_comes, lab, ms, poll_with, wait_until};

const LIMIT: Duration = ms(100);

/// A service whose requests bring their responses.
fn answers() -> impl Service<
    oneshot::Receiver<u32>,
    Response = u32,
    Error = oneshot::error::RecvError,
    Future: Send + Unpin,
> {
    service_fn(|response: oneshot::Receiver<u32>| response)
}

type Answering<E> = Pin<Box<dyn Future<Output = Result<u32, E>>>>;

/// A request to a service whose limit gives an error, and one to a service whose limit gives 504;
/// and what answers them.
fn requests(
    lab: &Lab,
) -> ([oneshot::Sender<u32>; 2], Answering<Failed>, Answering<oneshot::error::RecvError>) {
    let (first, second) = (oneshot::channel(), oneshot::channel());
    let fails = TimeoutLayer::new(lab.handle(), LIMIT).layer(answers()).call(first.1);
    let answers = TimeoutLayer::with_response(lab.handle(), LIMIT, || 504).layer(answers());
    ([first.0, second.0], Box::pin(fails), Box::pin({ answers }.call(second.1)))
}

#[test]
fn request_ends_with_an_error_or_a_response_at_the_limit_from_its_call() {
    for is_polled in [true, false] {
        let mut lab = lab();
        lab.advance(ms(50));
        let (_answers, mut failing, mut answering) = requests(&lab);
        let (alarm, waker) = Alarm::new();
        if is_polled {
            assert!(poll_with(failing.as_mut(), &waker).is_pending());
            assert!(poll_with(answering.as_mut(), &waker).is_pending());
        }
        lab.advance(ms(99));
        assert_eq!(alarm.count(), 0);
        assert!(poll_with(failing.as_mut(), &waker).is_pending(), "a tick early");
        assert!(poll_with(answering.as_mut(), &waker).is_pending(), "a tick early");
        lab.advance(ms(1));
        assert_eq!(alarm.count(), 2);
        let Poll::Ready(Err(error)) = poll_with(failing.as_mut(), &waker) else {
            panic!("a tick late")
        };
        assert!(error.is::<TimeoutError>(), "{error}");
        assert_eq!(poll_with(answering.as_mut(), &waker), Poll::Ready(Ok(504)));
    }
}

#[test]
fn response_that_is_ready_at_the_deadline_wins() {
    let mut lab = lab();
    let (senders, mut failing, mut answering) = requests(&lab);
    assert!(poll_with(failing.as_mut(), Waker::noop()).is_pending());
    assert!(poll_with(answering.as_mut(), Waker::noop()).is_pending());
    lab.advance(FAR);
    for sender in senders {
        sender.send(200).unwrap();
    }
    assert!(matches!(poll_with(failing.as_mut(), Waker::noop()), Poll::Ready(Ok(200))));
    assert_eq!(poll_with(answering.as_mut(), Waker::noop()), Poll::Ready(Ok(200)));
}

#[test]
fn error_of_the_service_comes_in_a_box_or_as_it_is() {
    let lab = lab();
    let (senders, failing, answering) = requests(&lab);
    drop(senders);
    let error = lab.block_on(failing).unwrap_err();
    assert!(error.is::<oneshot::error::RecvError>() && !error.is::<TimeoutError>(), "{error}");
    lab.block_on(answering).unwrap_err();
}

/// A service that is ready when it has been asked twice.
struct ReadyLater(Rc<Cell<u32>>);

impl Service<()> for ReadyLater {
    type Response = ();
    type Error = Infallible;
    type Future = std::future::Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.set(self.0.get() + 1);
        if self.0.get() < 2 { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}

#[test]
fn readiness_is_that_of_the_service_and_has_no_time() {
    let mut lab = lab();
    let asked: [Rc<Cell<u32>>; 2] = Default::default();
    let [first, second] = asked.each_ref().map(|asked| ReadyLater(Rc::clone(asked)));
    let mut fails = TimeoutLayer::new(lab.handle(), LIMIT).layer(first);
    let mut answers = TimeoutLayer::with_response(lab.handle(), LIMIT, || ()).layer(second);
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(fails.poll_ready(cx).is_pending());
    assert!(answers.poll_ready(cx).is_pending());
    lab.advance(FAR);
    assert!(matches!(fails.poll_ready(cx), Poll::Ready(Ok(()))));
    assert!(matches!(answers.poll_ready(cx), Poll::Ready(Ok(()))));
    assert_eq!(asked.map(|asked| asked.get()), [2, 2]);
    assert_eq!(lab.settled().scheduled_local, 0);
}

#[test]
fn request_that_ends_or_is_dropped_leaves_no_timer() {
    let mut lab = lab();
    let ([answer, _other], mut ends, mut dropped) = requests(&lab);
    assert!(poll_with(ends.as_mut(), Waker::noop()).is_pending());
    assert!(poll_with(dropped.as_mut(), Waker::noop()).is_pending());
    assert_eq!(lab.settled().pending, 2);
    answer.send(200).unwrap();
    assert_eq!(lab.block_on(ends).unwrap(), 200);
    drop(dropped);
    let counts = lab.settled();
    assert_eq!((counts.pending, counts.cancelled), (0, 2));
    // A request that is ready at once has no timer at all.
    let ([answer, _other], ends, _) = requests(&lab);
    answer.send(200).unwrap();
    assert_eq!(lab.block_on(ends).unwrap(), 200);
    assert_eq!(lab.settled().scheduled_local, 2);
}

#[test]
fn longest_limit_never_comes() {
    let mut lab = lab();
    let mut service = TimeoutLayer::new(lab.handle(), Duration::MAX).layer(answers());
    let (_answer, request) = oneshot::channel();
    let mut response = pin!(service.call(request));
    assert!(poll_with(response.as_mut(), Waker::noop()).is_pending());
    lab.advance(FAR);
    assert!(poll_with(response, Waker::noop()).is_pending());
}

#[test]
fn full_shard_leaves_the_limit_of_a_request_as_it_is() {
    let mut lab: Lab = Lab::new(builder(1).capacity(1)).with_tasks();
    let mut slot = pin!(lab.handle().sleep(FAR));
    assert!(poll_with(slot.as_mut(), Waker::noop()).is_pending());
    let mut service = TimeoutLayer::with_response(lab.handle(), LIMIT, || 504).layer(answers());
    let before = InfallibleSleep::fallback_count();
    let (_answer, request) = oneshot::channel();
    let (alarm, waker) = Alarm::new();
    let mut response = pin!(service.call(request));
    assert!(poll_with(response.as_mut(), &waker).is_pending(), "the request is refused");
    assert!(InfallibleSleep::fallback_count() > before);
    lab.advance(ms(99));
    // The fallback thread wakes the task each millisecond, and the clock of the service decides,
    // though the deadline has come by the system's clock.
    let begin = Instant::now();
    while begin.elapsed() <= LIMIT {
        // The thread may wake the task as soon as it is polled.
        let before = alarm.count();
        assert!(poll_with(response.as_mut(), &waker).is_pending(), "a tick early");
        wait_until(|| alarm.count() > before);
    }
    lab.advance(ms(1));
    assert_eq!(poll_with(response, &waker), Poll::Ready(Ok(504)));
}

#[test]
fn request_has_its_own_time_if_that_is_shorter_than_the_limit() {
    for (own, expected) in [(Some(ms(50)), ms(50)), (Some(ms(150)), LIMIT), (None, LIMIT)] {
        let mut lab = lab();
        let time = |request: &Option<Duration>| *request;
        let never = service_fn(|_: Option<Duration>| pending::<Result<u32, Infallible>>());
        let fails = TimeoutLayer::new(lab.handle(), LIMIT).by_request(time);
        let answers = TimeoutLayer::with_response(lab.handle(), LIMIT, || 504).by_request(time);
        let mut failing = pin!(fails.layer(never).call(own));
        let mut answering = pin!(answers.layer(never).call(own));
        assert!(poll_with(failing.as_mut(), Waker::noop()).is_pending());
        assert!(poll_with(answering.as_mut(), Waker::noop()).is_pending());
        let mut answered = Poll::Pending;
        check_comes(&mut lab, expected, || {
            answered = poll_with(answering.as_mut(), Waker::noop());
            let failed = poll_with(failing.as_mut(), Waker::noop());
            assert_eq!(failed.is_ready(), answered.is_ready());
            matches!(failed, Poll::Ready(Err(_)))
        });
        assert_eq!(answered, Poll::Ready(Ok(504)));
    }
}

#[test]
fn classes_of_the_handle_count_the_requests() {
    use corewheel::class::TimerClass;
    const REQUEST: TimerClass = TimerClass::new("request");
    let mut lab: Lab = Lab::new(builder(1).classes([REQUEST])).with_tasks();
    let handle = lab.handle().of_class(REQUEST).unwrap();
    let mut service = TimeoutLayer::new(handle, LIMIT).layer(answers());
    let (_answer, request) = oneshot::channel();
    let mut response = pin!(service.call(request));
    assert!(poll_with(response.as_mut(), Waker::noop()).is_pending());
    lab.settle();
    let stats = lab.service.stats();
    let class = stats.shards[0].classes.iter().find(|class| class.class == "request").unwrap();
    assert_eq!(class.scheduled, 1);
}

/// The status of the response of a router to a request.
async fn status(router: Router, path: &'static str) -> StatusCode {
    let request = Request::builder().uri(path).body(Body::empty()).unwrap();
    router.oneshot(request).await.unwrap().status()
}

fn check_router(layered: impl FnOnce(Router, &Lab) -> Router) {
    let mut lab = lab();
    // A route that never answers, and one that does at once.
    let late = Router::new().route("/late", get(pending::<()>));
    let router = layered(late.route("/", get(|| async { "hello" })), &lab);
    let in_time = lab.spawn(status(router.clone(), "/"));
    let late = lab.spawn(status(router, "/late"));
    lab.settle();
    assert_eq!(lab.output(in_time), StatusCode::OK);
    check_comes(&mut lab, LIMIT, || late.is_finished());
    assert_eq!(lab.output(late), StatusCode::GATEWAY_TIMEOUT);
}

#[test]
fn axum_router_takes_the_layer_with_a_response_or_behind_an_error_handler() {
    async fn handle(error: Failed) -> StatusCode {
        assert!(error.is::<TimeoutError>(), "{error}");
        StatusCode::GATEWAY_TIMEOUT
    }
    check_router(|routes, lab| {
        let late = || StatusCode::GATEWAY_TIMEOUT.into_response();
        routes.layer(TimeoutLayer::with_response(lab.handle(), LIMIT, late))
    });
    check_router(|routes, lab| {
        let limit = TimeoutLayer::new(lab.handle(), LIMIT);
        routes.layer((HandleErrorLayer::new(handle), limit))
    });
}

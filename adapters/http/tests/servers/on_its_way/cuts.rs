//! A response whose exchange has a limit, while hyper holds the last frame of it: the request ends
//! once.

use corewheel::Handle;
use corewheel_http::hyper::{BodyLimits, TimedBody, TimedHttp};

use super::*;
use crate::http::wait_until;

async fn answer_whole(
    request: Request<TimedBody<Incoming>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let length = if request.uri().path() == "/long" { LONG } else { 0 };
    Ok(Response::new(Full::new(Bytes::from(vec![b'x'; length]))))
}

/// Serves connections whose responses must be asked for on in time.
fn start(timers: Handle<u64>, limits: StreamLimits) -> (SocketAddr, impl Sized, Receiver<Outcome>) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(async { listen(Some(16 << 10)) });
    let address = listener.local_addr().unwrap();
    let (sender, ended) = mpsc::channel();
    runtime.spawn(async move {
        loop {
            let (socket, peer) = listener.accept().await.unwrap();
            let stream = TimedIo::new(socket, timers, limits);
            let report = Report { peer, control: stream.control(), ended: sender.clone() };
            let service = TimedHttp::new(service_fn(answer_whole), stream.control())
                .response(BodyLimits::default().next_poll(LIMIT));
            tokio::spawn(async move {
                let _report = report;
                let server = auto::Builder::new(TokioExecutor::new());
                let _ = server.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (address, runtime, ended)
}

fn service() -> TimerService<u64> {
    TimerService::builder().start_with(|_| |_: Fired<u64>, _: &Timers<u64>| {}).unwrap()
}

#[test]
fn http2_request_that_is_cut_while_hyper_holds_its_last_frame_ends_once() {
    let service = service();
    let limits = StreamLimits::default().idle(STALL).write_stall(STALL);
    let (address, _runtime, ended) = start(service.handle(), limits);
    let mut client = Client::connect(address, Version::Http2, 40_000);
    client.get(1, "/long");
    client.read_data(40_000);
    // The rest of the only frame has no window, and its body is cut meanwhile.
    thread::sleep(3 * LIMIT);
    // The frame was given to hyper, so the client may have it yet; a second request ends as well.
    client.give_window(1, 1 << 20);
    client.read_data(LONG - 40_000);
    client.get(3, "/");
    client.get(5, "/long");
    client.give_window(5, 1 << 20);
    client.read_data(LONG);
    // A connection with a request in progress is not one of the idlest.
    let mut told = None;
    wait_until(|| {
        service.close_idlest(1);
        told = ended.try_recv().ok();
        told.is_some()
    });
    assert_eq!(told.unwrap().1, Some(Told));
}

#[test]
fn http1_request_is_not_cut_while_hyper_holds_its_last_frame() {
    let service = service();
    let limits = StreamLimits::default().idle(LIMIT).write_stall(STALL);
    let (address, _runtime, ended) = start(service.handle(), limits);
    let mut client = Client::connect(address, Version::Http1, 0);
    client.get(1, "/long");
    // hyper holds what the socket does not take, and the body has ended.
    thread::sleep(3 * LIMIT);
    assert!(ended.try_recv().is_err(), "a write waits");
    client.read_steadily(LONG, "HTTP/1");
    let limit = ended.recv_timeout(PATIENCE).unwrap().1;
    assert_eq!(limit, Some(Idle(LIMIT)));
}

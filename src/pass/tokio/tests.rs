//! The passes of a runtime whose futures are dropped before they are over.

use std::future::poll_fn;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;

use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;

use super::*;
use crate::pass::{Pass, looks};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_io().build().unwrap()
}

fn begin() -> Pass {
    let mut pass = Pass::NONE;
    pass.renew(Waker::noop()).ask();
    assert!(!pass.is_over());
    pass
}

/// How many waits the runtime that the thread is in keeps.
fn kept() -> usize {
    let barrier = Arc::clone(&table().barriers[&Handle::current().id()]);
    let state = barrier.lock();
    state.written.waits.len() + state.next.waits.len()
}

/// Lets the runtime look at its sockets until it keeps no wait.
async fn settle() {
    while kept() > 0 {
        yield_now().await;
    }
}

/// A pass hands out the readiness of a socket that was written to before it began.
async fn check_next_is_right() {
    let (mut peer, socket) = UnixStream::pair().unwrap();
    socket.set_nonblocking(true).unwrap();
    let socket = tokio::net::UnixStream::from_std(socket).unwrap();
    let read = || socket.try_read(&mut [0]).map_err(|error| error.kind());
    peer.write_all(b"a").unwrap();
    assert_eq!(read(), Err(ErrorKind::WouldBlock), "the runtime has looked before");
    let mut pass = Pass::NONE;
    poll_fn(|cx| pass.poll_over(cx)).await;
    assert_eq!(read(), Ok(1));
}

#[test]
fn pass_after_one_that_was_dropped_before_its_proof_is_right() {
    runtime().block_on(async {
        drop(begin());
        assert_eq!(kept(), 1);
        check_next_is_right().await;
        // The write of the dropped pass is handed out before another pass begins.
        drop(begin());
        settle().await;
        check_next_is_right().await;
        // A pass beside it goes on.
        let (dropped, mut other) = (begin(), begin());
        drop(dropped);
        poll_fn(|cx| other.poll_over(cx)).await;
        settle().await;
        check_next_is_right().await;
    });
}

#[test]
fn passes_that_are_dropped_in_one_poll_leave_a_bounded_number_of_waits() {
    runtime().block_on(async {
        (0..10_000).for_each(|_| drop(begin()));
        assert!(kept() <= 16, "{}", kept());
        let waiting: Vec<_> = (0..100).map(|_| begin()).collect();
        (0..10_000).for_each(|_| drop(begin()));
        assert!(kept() >= waiting.len() && kept() <= 300, "{}", kept());
        check_next_is_right().await;
        assert!(waiting.iter().all(Pass::is_over));
    });
}

/// A runtime whose worker is told from the thread that waits.
fn runtime_of_one_worker() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_io().build().unwrap()
}

/// A waker that sends a message.
struct Sends(std::sync::mpsc::Sender<()>);

impl Wake for Sends {
    fn wake(self: Arc<Self>) {
        self.0.send(()).unwrap();
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker panics, and the others of its batch are woken");
    }
}

#[test]
fn relay_of_a_worker_wakes_after_a_look_that_proves_the_time_of_its_timers() {
    let runtime = runtime_of_one_worker();
    let worker = runtime.spawn(async {
        assert!(relay_of_thread().is_none(), "no pass has begun");
        let mut pass = Pass::NONE;
        poll_fn(|cx| pass.poll_over(cx)).await;
        let relay = relay_of_thread().expect("the thread is a worker");
        let (sends, woken) = std::sync::mpsc::channel();
        let before = looks();
        let waker = || Waker::from(Arc::new(Sends(sends.clone())));
        relay.take_over(vec![Waker::from(Arc::new(Panics)), waker(), waker()], 70).unwrap();
        relay.take_over(vec![waker()], 60).unwrap();
        let mut count = 0;
        while count < 3 {
            yield_now().await;
            count += woken.try_iter().count();
        }
        let after = looks();
        assert!(is_proven(after, 60) && is_proven(after, 70));
        assert!(!is_proven(after, 71), "the write was made before");
        assert!(!is_proven(before, 60), "the future was polled before");
        (relay, sends)
    });
    let (relay, sends) = runtime.block_on(worker).unwrap();
    runtime.block_on(async {
        assert!(relay_of_thread().is_none(), "the thread may run another runtime later");
    });
    drop(runtime);
    let waker = Waker::from(Arc::new(Sends(sends)));
    assert_eq!(relay.take_over(vec![waker], 80).unwrap_err().len(), 1, "the runtime has ended");
}

//! Wakers that count, polls, and waits for what a test expects.

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Instant;

use crate::{PATIENCE, ms};

/// A waker that counts how often it is woken.
#[derive(Default)]
pub struct Alarm(AtomicUsize);

impl Alarm {
    /// The count, and its waker.
    pub fn new() -> (Arc<Self>, Waker) {
        let alarm = Arc::new(Self::default());
        (Arc::clone(&alarm), Waker::from(alarm))
    }

    /// How often it was woken.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until it was woken.
    #[track_caller]
    pub fn wait(&self) {
        wait_until("a waker is woken", || self.count() > 0);
    }

    /// Whether it was woken since the last call.
    pub fn rang(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) > 0
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

type Run = Rc<dyn Fn()>;

thread_local! {
    /// What the wakers of [`waker_of`] run, by their numbers. `None` once such a waker is dropped.
    static RUNS: RefCell<Vec<Option<Run>>> = const { RefCell::new(Vec::new()) };
}

struct Runs(usize);

/// A waker that runs code of the test each time that it is woken. It is woken and dropped on the
/// thread that made it.
pub fn waker_of(run: impl Fn() + 'static) -> Waker {
    let number = RUNS.with_borrow_mut(|runs| {
        runs.push(Some(Rc::new(run)));
        runs.len() - 1
    });
    Waker::from(Arc::new(Runs(number)))
}

impl Wake for Runs {
    fn wake(self: Arc<Self>) {
        let run = RUNS.with_borrow(|runs| runs.get(self.0).cloned().flatten());
        run.expect("it is woken on the thread that made it")();
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        // Fails when the thread ends.
        drop(RUNS.try_with(|runs| runs.borrow_mut()[self.0].take()));
    }
}

struct Calls<F>(F);

/// A waker that runs code of the test each time that it is woken, on the thread that wakes it.
pub fn waker_that(run: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Calls(run)))
}

impl<F: Fn() + Send + Sync> Wake for Calls<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// A waker that unparks a thread, and says that it has.
pub(crate) struct Unpark(Thread, AtomicBool);

impl Unpark {
    /// For the calling thread.
    pub(crate) fn waker() -> (Arc<Self>, Waker) {
        let unpark = Arc::new(Self(thread::current(), AtomicBool::new(false)));
        (Arc::clone(&unpark), Waker::from(unpark))
    }
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// Blocks this thread until a future is ready. It is polled when it is woken, and at no other time.
#[track_caller]
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    let mut future = pin!(future.into_future());
    let (unpark, waker) = Unpark::waker();
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Poll::Ready(output) = poll_with(future.as_mut(), &waker) {
            return output;
        }
        while !unpark.1.swap(false, Ordering::SeqCst) {
            assert!(Instant::now() < give_up, "a future is not woken in time");
            thread::park_timeout(ms(100));
        }
    }
}

/// Polls a pinned future once.
pub fn poll_with<F: Future + ?Sized>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Polls a future once.
pub fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    poll_with(Pin::new(future), waker)
}

/// Polls a future once. `None` if it is pending.
pub fn look<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match poll(future, Waker::noop()) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Waits until a condition holds. `what` names it.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < give_up, "waited in vain until {what}");
        thread::sleep(ms(1));
    }
}

/// Waits until a condition holds that the place of the call says.
#[track_caller]
pub fn wait_for(is_so: impl FnMut() -> bool) {
    wait_until("an expected event comes", is_so);
}

/// Runs a test on a thread of its own, and fails if it does not end in time.
#[track_caller]
pub fn within_patience<O: Send + 'static>(run: impl FnOnce() -> O + Send + 'static) -> O {
    let (done, is_done) = mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        let output = run();
        drop(done);
        output
    });
    let ended = is_done.recv_timeout(PATIENCE);
    assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected), "a test does not end");
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

//! Many futures in one task: each has a waker of its own, and the task polls those that were woken.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};

/// The futures of one task.
pub(crate) struct FutureSet<F> {
    /// A future that is done is `None`.
    futures: Vec<Option<F>>,
    wakers: Vec<Waker>,
    woken: Arc<Woken>,
}

/// The futures of a set that were woken since the last poll. Each waker of the set holds it.
#[derive(Default)]
pub(crate) struct Woken(Mutex<(Vec<usize>, Option<Waker>)>);

struct OneOf {
    index: usize,
    woken: Arc<Woken>,
}

impl Wake for OneOf {
    fn wake(self: Arc<Self>) {
        let mut woken = self.woken.0.lock().unwrap();
        woken.0.push(self.index);
        let task = woken.1.take();
        drop(woken);
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F: Future + Unpin> FutureSet<F> {
    pub(crate) fn new(futures: impl IntoIterator<Item = F>) -> Self {
        let futures: Vec<_> = futures.into_iter().map(Some).collect();
        let woken = Arc::new(Woken(Mutex::new(((0..futures.len()).collect(), None))));
        let waker = |index| Arc::new(OneOf { index, woken: Arc::clone(&woken) }).into();
        let wakers = (0..futures.len()).map(waker).collect();
        Self { futures, wakers, woken }
    }

    /// Polls the futures that were woken, and returns the outputs of those that are done.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Vec<F::Output> {
        let mut woken = self.woken.0.lock().unwrap();
        woken.1 = Some(cx.waker().clone());
        let woken_now = mem::take(&mut woken.0);
        drop(woken);
        let mut done = Vec::new();
        for index in woken_now {
            let Some(future) = &mut self.futures[index] else { continue };
            let mut cx = Context::from_waker(&self.wakers[index]);
            if let Poll::Ready(output) = Pin::new(future).poll(&mut cx) {
                self.futures[index] = None;
                done.push(output);
            }
        }
        done
    }

    /// It can be upgraded as long as the set or a clone of one of its wakers is there.
    pub(crate) fn wakers_left(&self) -> Weak<Woken> {
        Arc::downgrade(&self.woken)
    }
}

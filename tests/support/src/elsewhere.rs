//! A thread that drives no shard, and polls sleeps when a test says so.

use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use corewheel::{AnyHandle, RefusedKind, Sleep};

use crate::{Alarm, FAR, Lab, look, poll};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that drives no shard and runs what it is given, and then waits.
pub struct Elsewhere {
    /// Makes its sleeps.
    pub handle: AnyHandle,
    alarm: (Arc<Alarm>, Waker),
    /// `None` once it has ended.
    thread: Option<(mpsc::Sender<Job>, JoinHandle<()>)>,
}

impl Elsewhere {
    /// A thread whose sleeps a handle makes.
    pub fn new(handle: AnyHandle) -> Self {
        let (sender, jobs) = mpsc::channel::<Job>();
        let thread = thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Self { handle, alarm: Alarm::new(), thread: Some((sender, thread)) }
    }

    /// Runs code there, and waits for it.
    pub fn run<O: Send + 'static>(&self, code: impl FnOnce() -> O + Send + 'static) -> O {
        let (sender, output) = mpsc::channel();
        let job = Box::new(move || sender.send(code()).unwrap());
        let (jobs, _) = self.thread.as_ref().expect("the thread has not ended");
        jobs.send(job).unwrap();
        output.recv().unwrap()
    }

    /// Polls a sleep there, which is pending.
    pub fn poll(&self, mut sleep: Sleep, waker: &Waker) -> Sleep {
        let waker = waker.clone();
        self.run(move || {
            assert_eq!(poll(&mut sleep, &waker), Poll::Pending);
            sleep
        })
    }

    /// Polls sleeps of these delays there, which wake the waker of this thread.
    pub fn sleeps(&self, delays: Vec<Duration>) -> Vec<Sleep> {
        self.sleeps_of(self.handle, delays)
    }

    /// Polls sleeps of a handle and these delays there.
    pub fn sleeps_of(&self, handle: AnyHandle, delays: Vec<Duration>) -> Vec<Sleep> {
        let waker = self.alarm.1.clone();
        self.run(move || {
            let mut sleeps: Vec<_> = delays.into_iter().map(|delay| handle.sleep(delay)).collect();
            assert!(sleeps.iter_mut().all(|sleep| poll(sleep, &waker).is_pending()));
            sleeps
        })
    }

    /// Polls a sleep of this delay there, which wakes the waker of this thread.
    pub fn sleep(&self, delay: Duration) -> Sleep {
        self.sleeps(vec![delay]).remove(0)
    }

    /// How often its sleeps have woken its waker.
    pub fn woken(&self) -> usize {
        self.alarm.0.count()
    }

    /// How many clones of its waker are kept.
    pub fn kept(&self) -> usize {
        Arc::strong_count(&self.alarm.0) - 2
    }

    /// Polls a sleep there, again after the shard has looked for room.
    ///
    /// # Errors
    ///
    /// What the sleep returns then.
    pub fn settle<T: Send + 'static>(
        &self,
        lab: &mut Lab<T>,
        sleep: Sleep,
    ) -> Result<Sleep, RefusedKind> {
        let mut sleep = self.poll(sleep, Waker::noop());
        lab.settle();
        self.run(move || match look(&mut sleep) {
            None => Ok(sleep),
            Some(done) => Err(done.expect_err("it is early")),
        })
    }

    /// Polls sleeps there, until one is refused.
    pub fn fill<T: Send + 'static>(&self, lab: &mut Lab<T>) -> Vec<Sleep> {
        let mut armed = Vec::new();
        loop {
            match self.settle(lab, self.handle.sleep(FAR)) {
                Ok(sleep) => armed.push(sleep),
                Err(refused) => {
                    assert_eq!(refused, RefusedKind::Full);
                    return armed;
                }
            }
        }
    }

    /// Ends the thread, and waits for its end.
    pub fn end(&mut self) {
        let (jobs, thread) = self.thread.take().expect("the thread has not ended");
        drop(jobs);
        thread.join().unwrap();
    }
}

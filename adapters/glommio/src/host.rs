//! A shard on a glommio executor.
//!
//! Properties of glommio, all read from its source, shape this driver. A queue that is not of
//! `Latency::Matters` may wait behind all others, so the driver has one that is. A look at its
//! timers takes time in proportion to their number, and each poll of a timer adds to them. So there
//! is one, re-armed only when it must be earlier, and polled twice, see [`Registered`]. A duration
//! that does not fit into an instant panics, so the alarm is clamped.
//!
//! An executor that always has a task to run reads its rings and its timers when a connection or a
//! wake from another thread comes in. Otherwise it reads them only once in each period of its
//! preempt timer. It has no budget for a task whose socket is always ready. A queue that becomes
//! active while the rings are read runs after the queue that was interrupted. So tasks that use the
//! shard return after some results in a row and wake the driver when its time has come. The
//! executor is told to run the driver's queue next. If a task had to wake the driver, the driver
//! writes a byte to its own socket, which makes glommio poll its rings, see [`PollRequest`].
//!
//! The period of the preempt timer seems to ask to be a tick. It must not be short, though: a
//! preempt timer that goes off between glommio's look at its rings and its first task makes it go
//! to sleep with tasks that are ready to run. It sleeps until something else happens, if anything
//! does. All that takes is that the thread loses its cpu there for the length of the period. The
//! system call that starts the timer is where threads lose it. See [`PREEMPT`].

use std::cell::{Cell, OnceCell};
use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use corewheel::host::{Host, Needs, Shard};
use glommio::net::UnixDatagram;
use glommio::timer::Timer;
use glommio::{GlommioError, Latency, LocalExecutorBuilder, Placement, Shares, TaskQueueHandle};
use io_uring::{IoUring, Probe, opcode};
use rustix::process::{Resource, getrlimit};

use crate::wake_again::Watched;

/// The executor that a driver is made in.
pub(crate) struct GlommioHost {
    alarm: Option<Registered<Timer>>,
    /// `None` where there are no descriptors for it.
    request: Option<PollRequest>,
    /// Where futures go that are spawned from outside.
    queue: TaskQueueHandle,
    mark: Watched,
    /// Wakes the driver from any thread, and leaves the mark. Made once, as the task of a driver
    /// has one waker.
    waker: OnceCell<Waker>,
}

impl GlommioHost {
    pub(crate) fn new() -> Self {
        let queue = glommio::executor().current_task_queue();
        let (mark, waker) = (Watched::new(), OnceCell::new());
        Self { alarm: None, request: PollRequest::new(), queue, mark, waker }
    }
}

impl Host for GlommioHost {
    fn arm(&mut self, after: Duration) {
        match &mut self.alarm {
            Some(alarm) => {
                alarm.future.reset(after);
                alarm.entry = None;
            }
            None => self.alarm = Some(Registered::new(Timer::new(after))),
        }
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(alarm) = &mut self.alarm else { return Poll::Pending };
        let waker = self.waker.get_or_init(|| self.mark.waker(cx.waker()));
        let poll = alarm.poll(&Context::from_waker(waker));
        if poll.is_ready() {
            self.alarm = None;
        }
        poll.map(drop)
    }

    fn waker<'a>(&'a mut self, cx: &'a Context<'_>) -> &'a Waker {
        self.waker.get_or_init(|| self.mark.waker(cx.waker()))
    }

    async fn step_aside(&mut self) {
        glommio::executor().yield_task_queue_now().await;
    }

    fn request_poll(&mut self) {
        if let Some(request) = &mut self.request {
            request.send();
        }
    }

    fn keep_poll_request(&mut self, cx: &mut Context<'_>) {
        if self.mark.driver_runs(cx.waker()) {
            let mark = Arc::clone(&self.mark);
            // Tasks of a queue run in the order in which they became ready. Without the queue,
            // there are none.
            match glommio::spawn_local_into(async move { mark.remove() }, self.queue) {
                Ok(task) => drop(task.detach()),
                Err(_) => self.mark.remove(),
            }
        }
        drop(self.request.take_if(|request| request.poll(cx).is_err()));
    }

    async fn read_sockets(&mut self, _connections: usize) {
        self.request_poll();
        poll_fn(|cx| {
            self.keep_poll_request(cx);
            let is_sent = self.request.as_ref().is_some_and(|request| request.is_sent);
            if is_sent { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        // Tasks of a queue run in the order in which they became ready, so this one runs after the
        // tasks that have something to read.
        if let Ok(last) = glommio::spawn_local_into(async {}, self.queue) {
            last.await;
        }
    }

    fn spawn(&self, mut future: Pin<Box<dyn Future<Output = ()>>>) {
        let (mark, mut waker) = (Arc::clone(&self.mark), None);
        let future = poll_fn(move |cx| {
            // A task has one waker.
            let waker = waker.get_or_insert_with(|| mark.waker(cx.waker()));
            future.as_mut().poll(&mut Context::from_waker(waker))
        });
        match glommio::spawn_local_into(future, self.queue) {
            Ok(task) => drop(task.detach()),
            Err(error) => tracing::error!(
                name: "task-queue-gone",
                target: "corewheel::glommio",
                %error, "the executor's task queue is gone"
            ),
        }
    }

    fn prefer_driver(&self) -> Option<fn()> {
        Some(prefer_driver)
    }
}

/// A future of glommio that is polled once, and again only after glommio has woken it.
///
/// Each poll of a pending timer or read adds an entry with the waker to a list of the executor. The
/// earlier entries stay until the timer is due or the read is ready. A driver polls its alarm
/// and its reads for each wake-up, so with an alarm in an hour the lists would grow with each
/// wake-up of that hour.
///
/// The clock does not tell whether a timer's entry is still in the list: an executor that has once
/// had more than 256 entries keeps them by whole milliseconds, and wakes them up to a millisecond
/// early. So the entry has a waker of its own, which glommio drops with the entry.
struct Registered<F> {
    future: F,
    /// `None` if the future has not been polled since it was made or reset. Glommio has a clone of
    /// it while it has the entry.
    entry: Option<Arc<Entry>>,
}

/// The waker of an entry: wakes the driver.
struct Entry(Waker);

impl Wake for Entry {
    fn wake(self: Arc<Self>) {
        self.0.wake_by_ref();
    }
}

impl<F: Future + Unpin> Registered<F> {
    fn new(future: F) -> Self {
        Self { future, entry: None }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<F::Output> {
        // The driver has one waker, its task's, so an entry need not be replaced.
        if self.entry.as_ref().is_some_and(|entry| Arc::strong_count(entry) > 1) {
            return Poll::Pending;
        }
        let entry = self.entry.insert(Arc::new(Entry(cx.waker().clone())));
        let waker = Waker::from(Arc::clone(entry));
        Pin::new(&mut self.future).poll(&mut Context::from_waker(&waker))
    }
}

/// A pair of sockets by which a driver makes its executor look at the rings, while it has tasks
/// that are ready to run.
///
/// The executor goes to its rings when something has completed in one of them, the one that holds
/// receives. So receives wait there, and a byte that is sent completes one of them. The executor
/// hands a receive to the ring when it next goes there, so there are two: while one is on its way
/// to the ring, the other one is in it.
struct PollRequest {
    sender: UnixDatagram,
    receiver: Rc<UnixDatagram>,
    receives: [Option<Registered<Receive>>; 2],
    /// A byte is on its way.
    is_sent: bool,
}

type Receive = Pin<Box<dyn Future<Output = glommio::Result<usize, ()>>>>;

impl PollRequest {
    fn new() -> Option<Self> {
        let (sender, receiver) = UnixDatagram::pair()
            .inspect_err(|error| {
                tracing::warn!(
                    name: "sockets-read-late",
                    target: "corewheel::glommio",
                    %error, "an executor with busy tasks reads its sockets late"
                );
            })
            .ok()?;
        Some(Self { sender, receiver: Rc::new(receiver), receives: [None, None], is_sent: false })
    }

    fn send(&mut self) {
        if !self.is_sent {
            let mut send = pin!(self.sender.send(&[0]));
            // There is room for a byte, so it is sent by the first poll or not at all.
            let poll = send.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            self.is_sent = matches!(poll, Poll::Ready(Ok(_)));
        }
    }

    /// Sees to it that both receives wait.
    fn poll(&mut self, cx: &mut Context<'_>) -> glommio::Result<(), ()> {
        for receive in &mut self.receives {
            loop {
                let waits = receive.get_or_insert_with(|| {
                    let receiver = Rc::clone(&self.receiver);
                    Registered::new(Box::pin(async move { receiver.recv(&mut [0]).await }))
                });
                let Poll::Ready(received) = waits.poll(cx) else { break };
                *receive = None;
                self.is_sent = false;
                received?;
            }
        }
        Ok(())
    }
}

/// Makes the executor run another task queue when the current task returns.
fn prefer_driver() {
    let executor = glommio::executor();
    let mut aside = pin!(executor.yield_task_queue_now());
    // It panics outside of a task of the executor, where there is nothing to prefer. A second
    // poll would wake the task.
    let poll = || aside.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    let _ = catch_unwind(AssertUnwindSafe(poll));
}

/// The period of the preempt timer, and so how late a timer can be behind tasks that have always
/// something to compute.
///
/// Sixty servers were started and stopped together on two cpus. They hung in 16 of 900 cases with a
/// period of 1 ms, in 2 with 10 ms, and in none with glommio's own 100 ms.
const PREEMPT: Duration = Duration::from_millis(100);
/// A queue's latency counts as a preempt timer's period while it has something to run.
const LATENCY: Latency = Latency::Matters(PREEMPT);

/// The bytes that each executor registers with its rings for direct reads and writes of files,
/// which the kernel keeps resident. Buffers that do not fit are allocated on the heap.
///
/// Glommio's own 10 MiB made 256 shards take 2.7 GB and, on two shared cores, 4.6 s to start.
const IO_MEMORY: usize = 256 << 10;

/// An executor for one shard, which is pinned already, by its thread.
pub(crate) fn make(thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
    let builder = LocalExecutorBuilder::new(Placement::Unbound).name(thread);
    let made = builder.preempt_timer(PREEMPT).io_memory(IO_MEMORY).make();
    let executor = made.map_err(|error| match &error {
        GlommioError::IoError(source) if source.kind() == ErrorKind::OutOfMemory => locked(source),
        _ => error.to_string(),
    })?;
    Ok(Box::new(move |shard| {
        executor.run(async move {
            start(shard.drive(GlommioHost::new())).await;
        });
    }))
}

/// Starts a driver in a queue of its own, on the executor that this is called in.
pub(crate) fn start(
    driver: impl Future<Output = ()> + 'static,
) -> impl Future<Output = Option<()>> {
    let here = Here::enter();
    let queue = glommio::executor().create_task_queue(Shares::default(), LATENCY, "corewheel");
    let drive = async move {
        driver.await;
        drop(here);
    };
    let task = glommio::spawn_local_into(drive, queue);
    task.expect("the queue was just made").detach()
}

thread_local! {
    /// How many shards are driven by an executor of this thread.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is in an executor that drives a shard. Glommio itself panics where
/// there is no executor, so it is asked only where the thread may have left one.
pub(crate) fn is_executor_here() -> bool {
    HERE.get() > 0 && catch_unwind(|| glommio::executor().id()).is_ok()
}

struct Here;

impl Here {
    fn enter() -> Self {
        HERE.set(HERE.get() + 1);
        Self
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(HERE.get() - 1);
    }
}

/// The limit of locked memory that glommio requires before it makes a ring, in bytes.
const MEMLOCK_MIN: u64 = 512 * 1_024;
/// Entries of the ring that is tried, as many as glommio's.
const RING_ENTRIES: u32 = 128;

/// What a shard takes.
pub(crate) const NEEDS: Needs = Needs {
    // A doorbell, three rings, one that stays open when it has ended, and the two sockets of its
    // `PollRequest`.
    files: 7,
    // For tasks without an executor, for a ring that is tried, and two to spare.
    files_once: 4,
    // The shard's, and one for calls that block.
    threads: 2,
    // The rings and small allocations.
    memory: IO_MEMORY + (2 << 20),
};

/// What to do about memory that the kernel refuses to rings.
fn locked(error: &io::Error) -> String {
    let limit = getrlimit(Resource::Memlock).current;
    let limit = limit.map_or("unlimited".to_owned(), |limit| format!("{limit} bytes"));
    format!(
        "io_uring got no memory ({error}); the memlock limit, {limit}, is for the rings of all \
         processes of this user, and for rings that ended a moment ago; raise it with `ulimit -l` \
         or in limits.conf, or start fewer shards"
    )
}

/// Whether glommio can work here, found out without an executor, which starts a thread: before any
/// shard starts, so that another runtime can be chosen, and with the remedy in the error.
pub(crate) fn probe() -> Result<String, String> {
    let memlock = getrlimit(Resource::Memlock).current;
    if let Some(limit) = memlock.filter(|limit| *limit < MEMLOCK_MIN) {
        return Err(format!(
            "the memlock limit is {limit} bytes, but an executor needs {MEMLOCK_MIN}; raise it \
             with `ulimit -l` or in limits.conf"
        ));
    }
    let ring = IoUring::new(RING_ENTRIES).map_err(|error| match error.kind() {
        ErrorKind::OutOfMemory => locked(&error),
        _ => format!(
            "io_uring cannot be set up ({error}); a container's seccomp profile, the sysctl \
             kernel.io_uring_disabled or a kernel before 5.8 may be in the way"
        ),
    })?;
    // Each of its system calls can be forbidden by itself.
    ring.submit().map_err(|error| {
        format!("io_uring_enter is refused ({error}); a seccomp profile may forbid it")
    })?;
    let mut supported = Probe::new();
    ring.submitter()
        .register_probe(&mut supported)
        .map_err(|error| format!("io_uring cannot be probed ({error}); use a kernel from 5.8"))?;
    let needed = [
        ("read", opcode::Read::CODE),
        ("write", opcode::Write::CODE),
        ("accept", opcode::Accept::CODE),
        ("connect", opcode::Connect::CODE),
        ("poll_add", opcode::PollAdd::CODE),
        ("timeout", opcode::Timeout::CODE),
        ("async_cancel", opcode::AsyncCancel::CODE),
        ("openat", opcode::OpenAt::CODE),
        ("close", opcode::Close::CODE),
        ("statx", opcode::Statx::CODE),
    ];
    match needed.iter().find(|(_, code)| !supported.is_supported(*code)) {
        Some((name, _)) => {
            Err(format!("io_uring lacks the operation {name}; use a kernel from 5.8"))
        }
        None => Ok("io_uring works".to_owned()),
    }
}

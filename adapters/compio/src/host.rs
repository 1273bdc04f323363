//! The host of a shard on a compio runtime, and the engine that starts such runtimes.
//!
//! Properties of compio, all read from its source, shape this host. A runtime runs up to 61 tasks
//! that are ready, then looks at its sockets, then at its timers, and begins again. So busy tasks
//! hold neither up for long, and the host asks for nothing early. Tasks run in the order in which
//! they became ready.
//!
//! A timer whose time has come when it is first polled is ready at once, without a look at the
//! sockets. And a look that finds a result of a thread that may block ends before the sockets, but
//! the timers have their turn. So an alarm that goes off waits for one look more, see [`Look`].
//!
//! A timer of compio cannot be reset, so each alarm is another one, which costs an allocation and
//! an entry in a tree. A driver sets an alarm only when it must be earlier.
//!
//! A waker of another thread waits in a loop while 64 other tasks that were woken from outside wait
//! for a runtime that runs none. The driver is one of them only once for each sleep.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use compio::driver::{DriverType, Proactor, ProactorBuilder};
use compio::runtime::{Runtime, spawn, time::sleep};
use corewheel::host::{Engine, Host, Needs, Shard};

/// How many events a runtime takes at a time where it polls: as many as the crate `polling` does by
/// default.
const EVENTS_MAX: usize = 1_024;
/// Looks at the sockets of which at least one is a whole one, unless threads that may block return
/// results all the time.
const LOOKS: usize = 2;

/// The runtime that a driver is made in.
#[derive(Default)]
struct CompioHost {
    alarm: Alarm,
}

#[derive(Default)]
enum Alarm {
    #[default]
    Unset,
    /// It has been set for a time.
    Set(Look),
    /// The time has come, and the runtime looks at its sockets once more.
    Due(Look),
}

impl Host for CompioHost {
    fn arm(&mut self, after: Duration) {
        self.alarm = Alarm::Set(Look::after(after));
    }

    fn poll_alarm(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            match &mut self.alarm {
                Alarm::Unset => return Poll::Pending,
                Alarm::Set(look) => {
                    if look.poll(cx).is_pending() {
                        return Poll::Pending;
                    }
                    self.alarm = Alarm::Due(Look::after(Duration::ZERO));
                }
                Alarm::Due(look) => {
                    let looked = look.poll(cx);
                    if looked.is_ready() {
                        self.alarm = Alarm::Unset;
                    }
                    return looked;
                }
            }
        }
    }

    async fn read_sockets(&mut self, connections: usize) {
        for _ in 0..LOOKS + connections / EVENTS_MAX {
            let mut look = Look::after(Duration::ZERO);
            poll_fn(|cx| look.poll(cx)).await;
        }
        // Runs after the tasks that have something to read. It does nothing that could fail.
        let _done = spawn(async {}).await;
    }

    async fn step_aside(&mut self) {
        let mut has_waited = false;
        poll_fn(|cx| {
            if has_waited {
                return Poll::Ready(());
            }
            has_waited = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        spawn(future).detach();
    }
}

/// Waits for a time, and for a look at the runtime's timers, which follows one at its sockets.
struct Look {
    timer: Pin<Box<dyn Future<Output = ()>>>,
    /// The runtime knows the timer, so it has looked when the timer is ready.
    is_known: bool,
}

impl Look {
    fn after(time: Duration) -> Self {
        Self { timer: Box::pin(sleep(time.max(AT_ONCE))), is_known: false }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut time = AT_ONCE;
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.is_known {
                return Poll::Ready(());
            }
            // Its time had come before the runtime knew it: this thread had no cpu.
            time *= 2;
            self.timer = Box::pin(sleep(time));
        }
        self.is_known = true;
        Poll::Pending
    }
}

/// A time that has not come yet when the timer is polled, most times.
const AT_ONCE: Duration = Duration::from_micros(1);

/// A compio runtime for each shard, for
/// [`TimerServiceBuilder::runtime`](corewheel::TimerServiceBuilder::runtime). It uses `io_uring`
/// where that works, and else polls.
///
/// ```
/// use corewheel::{ShutdownPolicy, TimerService};
/// use corewheel_compio::Compio;
///
/// let service = TimerService::builder().shards(1).runtime(Compio).start()?;
/// assert_eq!(service.runtime(), Some("compio"));
/// service.shutdown(ShutdownPolicy::Drop)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compio;

impl Engine for Compio {
    fn name(&self) -> &'static str {
        "compio"
    }

    fn needs(&self) -> Needs {
        // A ring and what wakes it, or a poller with two descriptors and what wakes it.
        Needs { files: 4, files_once: 4, threads: 1, memory: 1 << 20 }
    }

    fn probe(&self) -> Result<String, String> {
        let runtime = new_runtime().map_err(no_runtime)?;
        Ok(match runtime.driver_type() {
            DriverType::IoUring => "io_uring works".to_owned(),
            _ => "io_uring does not work, so compio polls".to_owned(),
        })
    }

    fn make(&self, _thread: &str) -> Result<Box<dyn FnOnce(Shard)>, String> {
        let runtime = new_runtime().map_err(no_runtime)?;
        Ok(Box::new(move |shard| {
            // A task, as the main future is polled after each look at the sockets.
            let driver = async { spawn(shard.drive(CompioHost::default())).await };
            let _ended = runtime.block_on(driver);
        }))
    }
}

/// A runtime that polls where a ring can be made and then not entered, which compio panics at.
fn new_runtime() -> io::Result<Runtime> {
    let entered = Proactor::new()?.poll(Some(Duration::ZERO));
    let mut proactor = ProactorBuilder::new();
    if entered.is_err_and(|error| {
        !matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
    }) {
        proactor.driver_type(DriverType::Poll);
    }
    Runtime::builder().with_proactor(proactor).build()
}

fn no_runtime(error: io::Error) -> String {
    format!("a compio runtime cannot be made ({error}); raise the limit of open files")
}

//! The parts of the comparison, beside the rows of the wheel itself.

pub mod api;
pub mod remote;
pub mod scaling;
pub mod server;
pub mod sleeps;
pub mod turns;

use std::time::Duration;

use corewheel::{Runtime, ShutdownPolicy, TimerService};
use rustix::time::{ClockId, clock_gettime};

/// Farther away than any measurement takes.
const HOUR: Duration = Duration::from_hours(1);

/// Whether glommio can run here: `io_uring` may be forbidden.
pub fn glommio_works() -> bool {
    let service = TimerService::builder().shards(1).runtime(Runtime::Glommio).start();
    service.is_ok_and(|service| service.shutdown(ShutdownPolicy::Drop).is_ok())
}

/// What this thread has had of a processor.
fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(spent).expect("a time that was spent")
}

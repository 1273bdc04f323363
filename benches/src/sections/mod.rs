//! The rows of the comparison other than those of the wheel itself.

pub mod api;
pub mod remote;
pub mod scaling;
pub mod server;
pub mod sleeps;
pub mod turns;

use std::time::Duration;

use corewheel::{ShutdownPolicy, TimerService};
use corewheel_glommio::Runtime;
use rustix::time::{ClockId, clock_gettime};

/// A delay that is longer than any measurement.
const HOUR: Duration = Duration::from_hours(1);

/// Whether glommio can run here: `io_uring` may be forbidden.
pub fn glommio_works() -> bool {
    let service = TimerService::builder().shards(1).runtime(Runtime::Glommio).start();
    service.is_ok_and(|service| service.shutdown(ShutdownPolicy::Drop).is_ok())
}

/// The processor time that this thread has used.
fn processor_time() -> Duration {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(spent).expect("a time that was spent")
}

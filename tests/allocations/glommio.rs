//! Waking a shard in a glommio executor leaves nothing in the executor's lists of timers and reads.

use std::thread;
use std::time::Duration;

use corewheel::{Fired, ResetOutcome, TimerService, Timers};
use corewheel_glommio::Runtime;
use corewheel_test_support::{FAR, SHARD, block_on, glommio_works};
use stats_alloc::Region;

use crate::ALLOCATOR;

const WAKE_UPS: u64 = 2_000;
/// The bytes that may stay. A timer's entry for each wake-up would take some 50 bytes, a read's 16.
const KEPT_MAX: usize = 16 << 10;

pub(crate) fn wake_ups_under_a_far_alarm_keep_no_memory() {
    if !glommio_works() {
        return;
    }
    let builder = TimerService::builder().shards(1).runtime(Runtime::Glommio);
    let service = builder.start_with(|_| |_: Fired<u64>, _: &Timers<u64>| {}).unwrap();
    let client = corewheel::sim::Thread::of(&service);
    let timer = client.on(SHARD).schedule(FAR, 1).unwrap();
    // A reset that is waited for wakes the shard, if that has fallen asleep since the last one.
    let made = || service.stats().shards[0].counts.wakeups_made;
    let wake = |times: u64| {
        let enough = made() + times;
        while made() < enough {
            let reset = block_on(client.reset(timer, FAR)).unwrap();
            assert_eq!(reset, ResetOutcome::Reset);
            thread::sleep(Duration::from_micros(50));
        }
    };
    wake(WAKE_UPS / 5);
    let region = Region::new(ALLOCATOR);
    wake(WAKE_UPS);
    let change = region.change();
    let kept = change.bytes_allocated.saturating_sub(change.bytes_deallocated);
    assert!(kept < KEPT_MAX, "{kept} bytes are kept: {change:?}");
}

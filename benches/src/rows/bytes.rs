//! The memory that timers and connections take from the system.
//!
//! Measured as the growth of the resident set and not by counting allocations: capacity that is
//! reserved and never touched costs nothing, and the rounding of the allocator costs something. A
//! process measures one row once, since freed memory may stay resident: this program is started
//! again with [`ARGUMENT`].

use std::env;
use std::hint::black_box;
use std::pin::Pin;
use std::process::Command;
use std::task::{Context, Waker};
use std::time::Duration;

use corewheel::{ConnLimits, Timers as OnShard};
use corewheel_timeouts::process::resident_bytes;

use crate::peers::contenders;
use crate::report::Report;
use crate::{Home, Payload, Timers};

/// The title of the table.
pub const TABLE: &str = "resident bytes of one";
/// The argument by which a process of its own measures a row, before the number and the names.
pub const ARGUMENT: &str = "bytes-of";
const DELAY_MAX: u64 = 60_000;
const FILLED: &str = "W6 timer, filled";
const CHURNED: &str = "W6 timer, churned";

/// Fills a shard with so many, and returns how many bytes their handles take.
type Fill = fn(&OnShard<Payload>, usize) -> usize;

const ON_A_SHARD: [(&str, Fill); 4] = [
    ("timer of the service", |timers, count| {
        hold(count, |n| timers.schedule(delay(n), Payload::MIN).expect("there is room"))
    }),
    ("sleep that is awaited", |timers, count| {
        hold(count, |n| {
            let mut sleep = timers.sleep(delay(n));
            assert!(Pin::new(&mut sleep).poll(&mut nothing_to_wake()).is_pending());
            sleep
        })
    }),
    ("connection with five deadlines", |timers, count| {
        hold(count, |n| timers.connection(limits(n)).expect("there is room"))
    }),
    ("connection with five deadlines, awaited", |timers, count| {
        hold(count, |n| {
            let connection = timers.connection(limits(n)).expect("there is room");
            assert!(connection.poll_next(&mut nothing_to_wake()).is_pending());
            connection
        })
    }),
];

/// All rows with so many timers or connections.
pub fn all(count: usize) -> Report {
    let mut report = Report::default();
    for row in [FILLED, CHURNED] {
        for contender in contenders() {
            let bytes = apart(count, row, contender.name);
            report.push(TABLE, row, count, contender.name, bytes);
        }
    }
    for (row, _) in ON_A_SHARD {
        report.push(TABLE, row, count, "corewheel", apart(count, row, "corewheel"));
    }
    report
}

fn apart(count: usize, row: &str, contender: &str) -> f64 {
    let this = env::current_exe().expect("the path of this process");
    let output = Command::new(this).args([ARGUMENT, &count.to_string(), row, contender]).output();
    let output = output.expect("this process can be started again");
    assert!(output.status.success(), "{row}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number was printed")
}

/// What a process of its own measures.
pub fn measure(count: usize, row: &str, name: &str) -> f64 {
    if let Some((_, fill)) = ON_A_SHARD.into_iter().find(|(known, _)| *known == row) {
        return of_shard(count, fill);
    }
    let contender = contenders().into_iter().find(|contender| contender.name == name);
    (contender.expect("a contender has this name").bytes)(count, row == CHURNED)
}

/// The growth of the resident set by `count` pending timers, divided by `count`. The caller's
/// handles are not included. `is_churned` is whether four times as many random timers are cancelled
/// and others scheduled, so that the figure contains the entries that cancels leave.
///
/// # Panics
///
/// If the system does not report the resident set of the process: this needs Linux.
pub fn of<T: Timers>(count: usize, is_churned: bool) -> f64 {
    let mut rng = fastrand::Rng::with_seed(0x0C0D_E5EE_D000_0006);
    let before = resident_bytes();
    let mut timers = T::with_capacity(count);
    let mut handles = Vec::with_capacity(if is_churned { count } else { 0 });
    for _ in 0..count {
        let handle = timers.schedule(rng.u64(1..=DELAY_MAX), Payload::MIN);
        if is_churned {
            handles.push(handle);
        }
    }
    for _ in 0..if is_churned { 4 * count } else { 0 } {
        let picked = handles.swap_remove(rng.usize(..count));
        black_box(timers.cancel(picked));
        handles.push(timers.schedule(rng.u64(1..=DELAY_MAX), Payload::MIN));
    }
    let grown = resident_bytes() - before - handles.len() * size_of::<T::Handle>();
    assert_eq!(timers.pending(), count, "{}: pending", T::NAME);
    black_box(&timers);
    grown as f64 / count as f64
}

fn of_shard(count: usize, fill: Fill) -> f64 {
    let mut home = Home::new(count + 1);
    let timers = home.shard.timers().clone();
    // The first connection allocates memory that all share, which is not included.
    drop(timers.connection(limits(0)).expect("there is room"));
    let _ = home.shard.turn();
    let before = resident_bytes();
    let held = fill(&timers, count);
    (resident_bytes() - before - held) as f64 / count as f64
}

fn nothing_to_wake() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn delay(n: usize) -> Duration {
    Duration::from_millis(600_000 + n as u64 % 60_000)
}

fn limits(n: usize) -> ConnLimits {
    let [read, write, all, beat, age] = std::array::from_fn(|more| delay(n % 4 + more));
    let limits = ConnLimits::default().read_idle(read).write_idle(write).all_idle(all);
    limits.heartbeat(beat).max_age(age)
}

/// Makes handles and holds them until the process ends. Returns how many bytes they take.
fn hold<H>(count: usize, make: impl FnMut(usize) -> H) -> usize {
    let mut held = Vec::with_capacity(count);
    held.extend((0..count).map(make));
    std::mem::ManuallyDrop::new(black_box(held)).len() * size_of::<H>()
}

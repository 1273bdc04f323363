//! A suspend of the machine, as a process sees it: the monotonic clock stands still, and the
//! processor's counter counts on. A library that is loaded before the system's plays it.

use std::process::Command;
use std::{env, fs};

use futures_lite::future::block_on;

use super::*;
use corewheel_test_support::child::this_test;

const NAME: &str = "suspend::no_sleep_is_early_after_a_suspend_that_the_first_readings_lie_around";
/// After so many milliseconds the machine is suspended, and for so many.
const SUSPEND: [u64; 2] = [60, 1_500];

#[test]
fn no_sleep_is_early_after_a_suspend_that_the_first_readings_lie_around() {
    if env::var_os("SUSPEND_FOR_MS").is_some() {
        return sleep_after_a_suspend();
    }
    let folder = env::temp_dir().join(format!("corewheel-suspend-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let library = folder.join("suspend.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/service/suspend.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&library).args([source, "-ldl"]);
    assert!(compiler.status().unwrap().success(), "{compiler:?}");
    let mut command = this_test(NAME);
    command.env("LD_PRELOAD", &library);
    let [after, suspended] = SUSPEND.map(|ms| ms.to_string());
    let output = command.env("SUSPEND_AFTER_MS", after).env("SUSPEND_FOR_MS", suspended).output();
    fs::remove_dir_all(folder).unwrap();
    let output = output.unwrap();
    let printed =
        [output.stdout, output.stderr].map(|out| String::from_utf8_lossy(&out).into_owned());
    let is_passed = output.status.success() && printed[0].contains("1 passed");
    assert!(is_passed, "{}\n{}", output.status, printed.join("\n"));
}

fn sleep_after_a_suspend() {
    let start = || TimerService::builder().shards(1).start().unwrap();
    let before = start();
    before.handle().clock().near();
    // The system sleeps by a clock of its own.
    thread::sleep(ms(SUSPEND.iter().sum()));
    before.handle().clock().near();
    let service = start();
    let handle = service.handle();
    let threads = (0..4).map(|_| {
        let sleeper = handle.on(SHARD);
        thread::spawn(move || {
            let mut early = 0;
            for nth in 0..50 {
                // The near clock counts on meanwhile, and asks no system.
                thread::sleep(ms(nth % 7));
                let begun = Instant::now();
                block_on(sleeper.sleep(ms(20))).unwrap();
                early += usize::from(begun.elapsed() < ms(20));
            }
            early
        })
    });
    let threads: Vec<_> = threads.collect();
    let mut behind = 0;
    for _ in 0..1_000_000 {
        let now = handle.clock().now();
        behind += usize::from(handle.clock().near() < now);
    }
    let early: usize = threads.into_iter().map(|sleeps| sleeps.join().unwrap()).sum();
    assert_eq!((early, behind), (0, 0), "early sleeps, and readings that are behind");
}

//! How long does each operation take, beside the peers?
//!
//! An iteration is an operation. Operations are run in whole passes of a row, and the time is
//! scaled to the requested number. `compare` runs the same rows interleaved and prints the ratios,
//! which are more reliable on a busy machine.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::time::Duration;

use corewheel_bench::{Case, Row, contenders, pin_to_one_core, sizes};
use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};

fn wheel(criterion: &mut Criterion) {
    pin_to_one_core();
    let contenders = contenders();
    for contender in &contenders {
        (contender.verify)();
    }
    // The longest of some operations is not a time of one operation. `compare` has it.
    for row in Row::ALL.into_iter().filter(|row| *row != Row::ChurnLongest) {
        let mut group = criterion.benchmark_group(row.name());
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group.warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_secs(1));
        for count in sizes().into_iter().filter(|count| row.applies_to(*count)) {
            for contender in &contenders {
                // Populated at the first run, so that a filter on the command line also saves the
                // preparation of the others.
                let mut case = None;
                let id = BenchmarkId::new(contender.name, count);
                group.bench_function(id, |bencher| {
                    let case = case.get_or_insert_with(|| (contender.case)(row, count));
                    bencher.iter_custom(|operations| run(case.as_mut(), operations));
                });
            }
        }
        group.finish();
    }
}

/// How long this many operations take.
fn run(case: &mut dyn Case, operations: u64) -> Duration {
    let mut elapsed = Duration::ZERO;
    let mut done = 0;
    while done < operations {
        let sample = case.round();
        elapsed += sample.elapsed;
        done += sample.operations;
    }
    elapsed.mul_f64(operations as f64 / done as f64)
}

criterion_group!(benches, wheel);
criterion_main!(benches);

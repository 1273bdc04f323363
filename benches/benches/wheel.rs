//! How long does each operation take, beside the peers?
//!
//! One iteration is one pass of a row; the throughput that is printed tells operations a second.
//! `compare` runs the same rows interleaved and prints the ratios: on a busy machine, believe that
//! one.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::time::Duration;

use corewheel_bench::{Row, contenders, pin_to_one_core, sizes};
use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};

fn wheel(criterion: &mut Criterion) {
    pin_to_one_core();
    let contenders = contenders();
    for contender in &contenders {
        (contender.verify)();
    }
    for row in Row::ALL {
        let mut group = criterion.benchmark_group(row.name());
        group.sampling_mode(SamplingMode::Flat).sample_size(10);
        group.warm_up_time(Duration::from_millis(100));
        group.measurement_time(Duration::from_secs(1));
        for count in sizes().into_iter().filter(|count| row.applies_to(*count)) {
            for contender in &contenders {
                // Populated when it is first run, so that a filter on the command line saves the
                // time that the others would take.
                let mut case = None;
                let id = BenchmarkId::new(contender.name, count);
                group.bench_function(id, |bencher| {
                    let case = case.get_or_insert_with(|| (contender.case)(row, count));
                    bencher.iter_custom(|passes| (0..passes).map(|_| case.round().elapsed).sum());
                });
                if let Some(mut case) = case {
                    group.throughput(Throughput::Elements(case.round().operations));
                }
            }
        }
        group.finish();
    }
}

criterion_group!(benches, wheel);
criterion_main!(benches);

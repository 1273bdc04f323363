//! What do the public methods cost on a running service?
//!
//! The rows are: methods on a core, beside the bare wheel and the timers of glommio and tokio;
//! requests from another core; the refusal of a full lane; the delivery of a parked shard.
//! `compare` runs the same rows interleaved.
#![allow(missing_docs, reason = "the macros of Criterion make a public function without one")]

use std::time::Duration;

use corewheel_bench::figure::Entrant;
use corewheel_bench::sections::{api, glommio_works, remote, scaling, sleeps};
use criterion::{BenchmarkId, Criterion, SamplingMode, criterion_group, criterion_main};

/// The time of an operation, for entrants whose rounds return millions of operations a second.
fn rates(criterion: &mut Criterion, row: &str, entrants: Vec<Entrant>) {
    let as_nanos = |entrant: Entrant| entrant.map(|millions| 1_000.0 / millions);
    bench(criterion, row, entrants.into_iter().map(as_nanos).collect());
}

fn bench(criterion: &mut Criterion, row: &str, entrants: Vec<Entrant>) {
    let mut group = criterion.benchmark_group(row);
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(100)).measurement_time(Duration::from_secs(1));
    for mut entrant in entrants {
        let id = BenchmarkId::new(entrant.name(), entrant.count());
        group.bench_function(id, |bencher| {
            // A round executes enough operations to time them. Its value is the time of one.
            bencher.iter_custom(|operations| {
                let nanos = entrant.round();
                Duration::from_secs_f64(nanos * operations as f64 / 1e9)
            });
        });
    }
    group.finish();
}

fn service(criterion: &mut Criterion) {
    let cores = scaling::cores();
    let (here, home) = (cores[0], cores[1 % cores.len()]);
    let glommio = glommio_works();
    for count in [1_000, 100_000] {
        bench(criterion, api::CHURN, api::churn(count, glommio));
        bench(criterion, api::RESET, api::resets(count, glommio));
    }
    bench(criterion, sleeps::SLEEPS, sleeps::sleeps(1_000));
    rates(criterion, scaling::LOCAL, scaling::local(&cores));
    rates(criterion, remote::CLIENTS, remote::clients(&cores));
    bench(criterion, remote::REFUSAL, remote::refusal());
    // From here on this thread is pinned. The threads of the earlier sections inherit its cores.
    if glommio {
        bench(criterion, remote::WAKE, remote::wake(here, home));
    }
    bench(criterion, remote::PAIR, remote::pairs(here, home, 100_000));
}

criterion_group!(benches, service);
criterion_main!(benches);

//! The concurrency limit under each kind of load: acquire and immediate release.

mod support;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam_utils::CachePadded;
use portcullis_core::Concurrency;

use crate::support::{Pressure, bench, group};

fn concurrency(criterion: &mut Criterion) {
    let mut group = group(criterion, "Concurrency");
    let mut press = |pressure, limit| {
        let limiter = CachePadded::new(Concurrency::new(limit));
        let _held = matches!(pressure, Pressure::DenialStorm).then(|| limiter.try_acquire(limit));
        bench(&mut group, pressure, |_| limiter.try_acquire(1).is_ok());
    };
    press(Pressure::Uncontended, 10);
    press(Pressure::Contended, 10);
    press(Pressure::DenialStorm, 10);
    // One permit for two threads.
    press(Pressure::Mixed, 1);
    group.finish();
}

criterion_group!(benches, concurrency);
criterion_main!(benches);

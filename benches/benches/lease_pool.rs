//! The lease pool under each kind of load: a claim, and a release by the id.

mod support;

use criterion::{Criterion, criterion_group, criterion_main};
use portcullis_core::{Concurrency, LeasePool, Timestamp};

use crate::support::{Pressure, bench, group};

fn lease_pool(criterion: &mut Criterion) {
    let mut group = group(criterion, "LeasePool");
    let mut press = |pressure, limit| {
        let pool: LeasePool<Concurrency, 16> = LeasePool::new(Concurrency::new(limit));
        let cycle = |_| {
            pool.claim_at(Timestamp::ZERO, 1, None)
                .is_ok_and(|id| pool.release(id) == Ok(1))
        };
        if matches!(pressure, Pressure::DenialStorm) {
            pool.claim_at(Timestamp::ZERO, limit, None)
                .expect("all permits");
        }
        bench(&mut group, pressure, cycle);
    };
    press(Pressure::Uncontended, 10);
    press(Pressure::Contended, 10);
    press(Pressure::DenialStorm, 10);
    // One permit for two threads.
    press(Pressure::Mixed, 1);
    group.finish();
}

criterion_group!(benches, lease_pool);
criterion_main!(benches);

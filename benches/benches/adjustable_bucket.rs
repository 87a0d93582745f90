//! The token bucket with adjustable settings, under each kind of load, and a change of settings.

mod support;

use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam_utils::CachePadded;
use portcullis_core::state::Carry;
use portcullis_core::{AdjustableBucket, Rate, Timestamp};

use crate::support::{Pressure, bench, group};

fn adjustable_bucket(criterion: &mut Criterion) {
    let mut group = group(criterion, "AdjustableBucket");
    let mut press = |pressure, rate, burst| {
        let bucket = CachePadded::new(AdjustableBucket::new(rate, burst));
        if matches!(pressure, Pressure::DenialStorm) {
            bucket
                .try_acquire_at(Timestamp::ZERO, 1)
                .expect("the only permit")
                .forget();
        }
        bench(&mut group, pressure, |now| {
            bucket.try_acquire_at(now, 1).is_ok()
        });
    };
    press(
        Pressure::Uncontended,
        Rate::per_second(999_999_937),
        1 << 30,
    );
    press(Pressure::Contended, Rate::per_second(999_999_937), 1 << 30);
    press(Pressure::DenialStorm, Rate::ZERO, 1);
    press(Pressure::Mixed, Rate::new(1, Duration::from_nanos(8)), 10);
    let bucket = AdjustableBucket::new(Rate::per_second(1_000), 10);
    group.bench_function("change", |bencher| {
        bencher
            .iter(|| bucket.adjust_at(Timestamp::ZERO, Rate::per_second(2_000), 20, Carry::Keep));
    });
    group.finish();
}

criterion_group!(benches, adjustable_bucket);
criterion_main!(benches);

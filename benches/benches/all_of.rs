//! A composition of three token buckets, under each kind of load.

mod support;

use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam_utils::CachePadded;
use portcullis_core::{AllOf, Rate, Timestamp, TokenBucket};

use crate::support::{Pressure, bench, group};

fn all_of(criterion: &mut Criterion) {
    let mut group = group(criterion, "AllOf");
    let mut press = |pressure, rate, burst| {
        let [a, b, c] = core::array::from_fn(|_| CachePadded::new(TokenBucket::new(rate, burst)));
        let limits: AllOf<(&TokenBucket, &TokenBucket, &TokenBucket)> = AllOf::new((&a, &b, &c));
        if matches!(pressure, Pressure::DenialStorm) {
            limits
                .try_acquire_at(Timestamp::ZERO, 1)
                .expect("the only permits")
                .forget();
        }
        bench(&mut group, pressure, |now| {
            limits.try_acquire_at(now, 1).is_ok()
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
    group.finish();
}

criterion_group!(benches, all_of);
criterion_main!(benches);

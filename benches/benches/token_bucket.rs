//! The token bucket under each kind of load, at explicit times.

mod support;

use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam_utils::CachePadded;
use portcullis_core::{Rate, Timestamp, TokenBucket};

use crate::support::{Pressure, bench, group};

fn token_bucket(criterion: &mut Criterion) {
    let mut group = group(criterion, "TokenBucket");
    let mut press = |pressure, rate, burst| {
        let bucket = CachePadded::new(TokenBucket::new(rate, burst));
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
    // Two requests per 4 ns: one in four is granted.
    press(Pressure::Mixed, Rate::new(1, Duration::from_nanos(8)), 10);
    group.finish();
}

criterion_group!(benches, token_bucket);
criterion_main!(benches);

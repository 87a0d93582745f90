//! Slices of one token bucket under each kind of load, one per thread; and direct takes from the
//! bucket, which use the same word.

mod support;

use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam_utils::CachePadded;
use portcullis_core::{Rate, SlicedBucket, Timestamp};

use crate::support::{Pressure, bench, bench_owned, group};

fn bucket(rate: Rate, burst: u64) -> CachePadded<SlicedBucket> {
    // At the highest rate the word wraps every two minutes, so the bucket must not start at zero.
    let settings = SlicedBucket::builder(rate, burst).origin(Timestamp::from_nanos(1 << 40));
    CachePadded::new(settings.build().expect("settings that fit"))
}

fn slice(criterion: &mut Criterion) {
    let plenty = (Rate::per_second(1_000_000_000), 1 << 27);
    let scarce = (Rate::new(1, Duration::from_nanos(8)), 10_000);

    let mut slices = group(criterion, "Slice");
    let mut press = |pressure, (rate, burst), size| {
        let bucket = bucket(rate, burst);
        if matches!(pressure, Pressure::DenialStorm) {
            bucket
                .try_acquire_at(Timestamp::ZERO, 1)
                .expect("the only permit")
                .forget();
        }
        // If the rest has too few permits, the slice is empty and asks the bucket each time.
        let cut = |now| {
            bucket
                .slice_at(now, size)
                .or_else(|_| bucket.slice_at(now, 0))
        };
        bench_owned(&mut slices, pressure, cut, |slice, now| {
            slice
                .as_ref()
                .is_ok_and(|slice| slice.try_acquire_at(now, 1).is_ok())
        });
    };
    press(Pressure::Uncontended, plenty, 1_024);
    press(Pressure::Contended, plenty, 1_024);
    press(Pressure::DenialStorm, (Rate::ZERO, 1), 0);
    press(Pressure::Mixed, scarce, 100);
    slices.finish();

    let mut rest = group(criterion, "SlicedBucket");
    for (pressure, (rate, burst)) in [
        (Pressure::Uncontended, plenty),
        (Pressure::Contended, plenty),
        (Pressure::Mixed, scarce),
    ] {
        let bucket = bucket(rate, burst);
        bench(&mut rest, pressure, |now| {
            bucket.try_acquire_at(now, 1).is_ok()
        });
    }
    rest.finish();
}

criterion_group!(benches, slice);
criterion_main!(benches);

//! A token bucket with a clock, under each kind of load. Most of the cost is the clock reading.

mod support;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam_utils::CachePadded;
use portcullis_core::{Clock, Clocked, CoarseClock, MonotonicClock, Rate, TokenBucket, TscClock};

use crate::support::{Pressure, bench, group};

fn with_clock(criterion: &mut Criterion, name: &str, clock: &(impl Clock + Sync)) {
    let mut group = group(criterion, &format!("Clocked by {name}"));
    let mut press = |pressure, rate, burst| {
        let bucket = TokenBucket::builder(rate, burst)
            .origin(clock.now())
            .build()
            .expect("settings that fit");
        let bucket = CachePadded::new(Clocked::new(bucket, clock));
        if matches!(pressure, Pressure::DenialStorm) {
            bucket.try_acquire(1).expect("the only permit").forget();
        }
        bench(&mut group, pressure, |_| bucket.try_acquire(1).is_ok());
    };
    press(
        Pressure::Uncontended,
        Rate::per_second(999_999_937),
        1 << 30,
    );
    press(Pressure::Contended, Rate::per_second(999_999_937), 1 << 30);
    press(Pressure::DenialStorm, Rate::ZERO, 1);
    press(Pressure::Mixed, Rate::per_second(1_000_000), 10);
    group.finish();
}

fn clocked(criterion: &mut Criterion) {
    with_clock(criterion, "MonotonicClock", &MonotonicClock::new());
    with_clock(criterion, "CoarseClock", &CoarseClock::new());
    with_clock(criterion, "TscClock", &TscClock::new());
}

criterion_group!(benches, clocked);
criterion_main!(benches);

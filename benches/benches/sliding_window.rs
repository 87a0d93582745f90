//! The sliding window of eight segments under each kind of load, at explicit times.

mod support;

use core::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use crossbeam_utils::CachePadded;
use portcullis_core::{SlidingWindow, Timestamp};

use crate::support::{Pressure, bench, group};

fn sliding_window(criterion: &mut Criterion) {
    let mut group = group(criterion, "SlidingWindow");
    let mut press = |pressure, limit, window| {
        let limiter = CachePadded::new(SlidingWindow::<8>::new(limit, window, 8));
        if matches!(pressure, Pressure::DenialStorm) {
            limiter
                .try_acquire_at(Timestamp::ZERO, 1)
                .expect("the only permit")
                .forget();
        }
        bench(&mut group, pressure, |now| {
            limiter.try_acquire_at(now, 1).is_ok()
        });
    };
    press(Pressure::Uncontended, 1 << 31, Duration::from_millis(80));
    press(Pressure::Contended, 1 << 31, Duration::from_millis(80));
    press(Pressure::DenialStorm, 1, Duration::from_hours(24));
    // 2,000 requests per window, and 500 permits; a roll every 250 requests.
    press(Pressure::Mixed, 500, Duration::from_micros(4));
    group.finish();
}

criterion_group!(benches, sliding_window);
criterion_main!(benches);

//! Common code of the benches of all types: four kinds of load on a limiter, and a check of the
//! outcome.

// Each bench is a crate of its own; none is a library.
#![allow(unreachable_pub)]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::sync::Barrier;
use std::time::Instant;

use criterion::{BenchmarkGroup, Criterion, measurement::WallTime};
use portcullis_core::Timestamp;

/// The time from one call to the next.
const STEP: u64 = 4;
/// A start time far from zero, so that no special case applies.
const START: u64 = 1 << 40;

/// The kinds of load, each with its expected outcome.
#[derive(Clone, Copy)]
pub enum Pressure {
    /// One thread, all granted.
    Uncontended,
    /// Two threads on one limiter, all granted.
    Contended,
    /// Two threads on an exhausted limiter, all denied.
    DenialStorm,
    /// Two threads on a limiter that has permits for some of the requests.
    Mixed,
}

impl Pressure {
    fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Contended => "contended",
            Self::DenialStorm => "denial storm",
            Self::Mixed => "mixed",
        }
    }

    fn threads(self) -> usize {
        if matches!(self, Self::Uncontended) {
            1
        } else {
            2
        }
    }

    fn check(self, asked: u64, granted: u64) {
        let right = match self {
            Self::Uncontended | Self::Contended => granted == asked,
            Self::DenialStorm => granted == 0,
            // A few calls may all meet an exhausted limiter.
            Self::Mixed => asked < 10_000 || (granted > 0 && granted < asked),
        };
        assert!(right, "{}: {granted} of {asked} were granted", self.name());
    }
}

/// Returns a group of benches with the settings of this project.
pub fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .sample_size(50);
    group
}

/// Measures `operation`, which takes the time and returns whether it was granted.
///
/// Time advances by 4 ns from one call to the next in each thread, and from one sample to the next.
pub fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    pressure: Pressure,
    operation: impl Fn(Timestamp) -> bool + Sync,
) {
    bench_owned(group, pressure, |_| (), |(), now| operation(now));
}

/// Measures `operation` on a value that each thread creates for itself, once per sample.
pub fn bench_owned<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    pressure: Pressure,
    own: impl Fn(Timestamp) -> T + Sync,
    operation: impl Fn(&T, Timestamp) -> bool + Sync,
) {
    let (next, granted) = (AtomicU64::new(0), AtomicU64::new(0));
    let time = |i| Timestamp::from_nanos(START + STEP * i);
    group.bench_function(pressure.name(), |bencher| {
        bencher.iter_custom(|operations| {
            let first = next.fetch_add(operations, Relaxed);
            let barrier = Barrier::new(pressure.threads());
            let work = || {
                let own = own(time(first));
                barrier.wait();
                let start = Instant::now();
                let count = (first..first + operations)
                    .filter(|i| operation(&own, time(*i)))
                    .count() as u64;
                let taken = start.elapsed();
                granted.fetch_add(count, Relaxed);
                taken
            };
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..pressure.threads()).map(|_| scope.spawn(work)).collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().expect("an operation panicked"))
                    .max()
            })
            .unwrap_or_default()
        });
    });
    pressure.check(
        next.into_inner() * pressure.threads() as u64,
        granted.into_inner(),
    );
}

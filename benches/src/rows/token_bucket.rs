//! The token bucket, compared with governor's generic cell rate algorithm, the buckets of ratelimit
//! and leaky-bucket, and a bucket in a mutex.

use core::num::NonZeroU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::thread;
use std::time::Instant;

use crossbeam_utils::CachePadded;
use governor::clock::{Clock as _, DefaultClock, FakeRelativeClock};
use governor::{Quota, RateLimiter};
use leaky_bucket::RateLimiter as LeakyBucket;
use parking_lot::Mutex;
use portcullis_core::{
    AdjustableBucket, Clock, Clocked, CoarseClock, Limiter, LimiterExt, MonotonicClock, Rate,
    Timestamp, TokenBucket,
};
use ratelimit::Ratelimiter;

use crate::measure::{Contest, Contestant, Expected, Ready};

/// Permits per second, for rows in which all requests are granted: close to the clock's resolution,
/// and a prime.
pub(super) const PLENTY: u32 = 999_999_937;

/// The burst of the buckets in rows in which all requests are granted.
const BURST: u32 = 1 << 30;

/// A bucket in which each request finds permits.
#[derive(Clone, Copy)]
pub(super) struct Load {
    /// Permits per second.
    rate: u32,
    /// The permits that are taken at first.
    taken: u32,
}

impl Load {
    /// More permits come in than one thread takes: each request finds the bucket full.
    pub(super) const FULL: Self = Self {
        rate: PLENTY,
        taken: 0,
    };
    /// Fewer permits come in than one thread takes, but half of the burst lasts for many runs: each
    /// request finds the bucket in use.
    pub(super) const IN_USE: Self = Self {
        rate: 999_983,
        taken: BURST / 2,
    };

    /// Our bucket. At the higher rate its word wraps every 18 s, so it starts at `now`, and not at
    /// the clock's zero. A row with a real clock prepares it when the row begins, for the same
    /// reason.
    pub(super) fn bucket(self, now: Timestamp) -> TokenBucket {
        TokenBucket::builder(Rate::per_second(self.rate), BURST.into())
            .initial((BURST - self.taken).into())
            .origin(now)
            .build()
            .expect("settings that fit")
    }

    /// leaky-bucket refills in intervals of at least a millisecond, driven by a timer of tokio's.
    pub(super) fn leaky_bucket(self, fair: bool) -> LeakyBucket {
        LeakyBucket::builder()
            .max(BURST as usize)
            .initial((BURST - self.taken) as usize)
            .refill(self.rate as usize / 1_000)
            .interval(Duration::from_millis(1))
            .fair(fair)
            .build()
    }
}

pub(crate) fn rows() -> Vec<Contest> {
    vec![
        allow(1),
        allow(2),
        deny(),
        clocked(),
        clocked_std("token_bucket.clocked_std", Load::IN_USE),
        clocked_std("token_bucket.clocked_std_full", Load::FULL),
        adjustable(),
    ]
}

/// Grants at explicit times, which advance by 4 ns per operation.
fn allow(threads: usize) -> Contest {
    Contest {
        row: "token_bucket.allow",
        threads,
        expected: Expected::Granted,
        ours: allow_ours(),
        peers: if threads == 1 {
            vec![governor_fake_clock(), governor(Expected::Granted), mutex()]
        } else {
            vec![governor_fake_clock(), governor(Expected::Granted)]
        },
    }
}

pub(crate) fn allow_ours() -> Contestant {
    // A burst that lets one thread fall behind the other by a second.
    granting(TokenBucket::new(Rate::per_second(PLENTY), 1 << 30))
}

pub(super) fn granting(limiter: impl LimiterExt + Sync + 'static) -> Contestant {
    let bucket = CachePadded::new(limiter);
    granting_by(move |_, now| bucket.try_acquire_at(now, 1).is_ok())
}

/// Returns the time of each thread, which advances by as many nanoseconds as a run needs. So a run
/// continues where the previous one ended.
pub(super) fn clocks() -> impl Fn(usize, u64) -> u64 + Sync {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // Rows of two threads are measured on one core, too.
    let clocks: Vec<_> = (0..cores.max(2))
        .map(|_| CachePadded::new(AtomicU64::new(1 << 40)))
        .collect();
    move |thread, nanos| clocks[thread].fetch_add(nanos, Relaxed)
}

/// A contestant whose threads call `grants` with their number and a time.
pub(super) fn granting_by(
    grants: impl Fn(usize, Timestamp) -> bool + Sync + 'static,
) -> Contestant {
    let clock = clocks();
    Contestant::new("portcullis", move |thread, operations| {
        let start = clock(thread, 4 * operations);
        let mut granted = 0;
        for i in 0..operations {
            granted += u64::from(grants(thread, Timestamp::from_nanos(start + 4 * i)));
        }
        granted
    })
}

/// The bucket with adjustable settings, compared with the plain bucket.
fn adjustable() -> Contest {
    Contest {
        row: "adjustable_bucket.allow",
        threads: 1,
        expected: Expected::Granted,
        ours: granting(AdjustableBucket::new(Rate::per_second(PLENTY), 1 << 30)),
        peers: vec![allow_ours().named("token-bucket")],
    }
}

/// governor's own fake clock, which stands still during a run. It is cheaper for governor than a
/// clock that it would have to read each time.
pub(crate) fn governor_fake_clock() -> Contestant {
    let clock = FakeRelativeClock::default();
    let quota = Quota::per_second(NonZeroU32::new(PLENTY).unwrap()).allow_burst(NonZeroU32::MAX);
    let limiter = CachePadded::new(RateLimiter::direct_with_clock(quota, clock.clone()));
    Contestant::new("governor-fake-clock", move |_, operations| {
        // Twice what it needs. With much more, a thread that reads the clock before another thread
        // advances it would be denied.
        clock.advance(Duration::from_nanos(2 * operations));
        (0..operations).filter(|_| limiter.check().is_ok()).count() as u64
    })
}

pub(super) fn governor(expected: Expected) -> Contestant {
    let quota = match expected {
        Expected::Granted => Quota::per_second(NonZeroU32::new(PLENTY).unwrap())
            .allow_burst(NonZeroU32::new(1 << 30).unwrap()),
        Expected::Denied | Expected::Either => Quota::per_hour(NonZeroU32::MIN),
    };
    let limiter = CachePadded::new(RateLimiter::direct(quota));
    if expected == Expected::Denied {
        assert!(limiter.check().is_ok(), "the one permit of the hour");
    }
    Contestant::new("governor", move |_, operations| {
        (0..operations).filter(|_| limiter.check().is_ok()).count() as u64
    })
}

/// A straightforward implementation: level and time behind a lock, in floating point.
pub(crate) fn mutex() -> Contestant {
    struct Bucket {
        level: f64,
        last: Instant,
    }
    let burst = f64::from(1 << 30);
    let bucket = CachePadded::new(Mutex::new(Bucket {
        level: burst,
        last: Instant::now(),
    }));
    Contestant::new("mutex", move |_, operations| {
        let mut granted = 0;
        for _ in 0..operations {
            let mut bucket = bucket.lock();
            let now = Instant::now();
            let gained = now.duration_since(bucket.last).as_secs_f64() * f64::from(PLENTY);
            bucket.level = (bucket.level + gained).min(burst);
            bucket.last = now;
            if bucket.level >= 1.0 {
                bucket.level -= 1.0;
                granted += 1;
            }
        }
        granted
    })
}

/// Denials: one permit per hour, which is already taken.
fn deny() -> Contest {
    let bucket = CachePadded::new(TokenBucket::new(Rate::per_hour(1), 1));
    let start = 1 << 40;
    bucket
        .take_at(Timestamp::from_nanos(start), 1)
        .expect("the one permit");
    let ours = Contestant::new("portcullis", move |_, operations| {
        let mut granted = 0;
        for i in 0..operations {
            granted += u64::from(
                bucket
                    .try_acquire_at(Timestamp::from_nanos(start + i), 1)
                    .is_ok(),
            );
        }
        granted
    });
    Contest {
        row: "token_bucket.deny",
        threads: 1,
        expected: Expected::Denied,
        ours,
        peers: vec![governor(Expected::Denied)],
    }
}

fn with_clock(load: Load, clock: impl Clock + Sync + 'static) -> Contestant {
    Contestant::prepared("portcullis", move || {
        let bucket = load.bucket(clock.now());
        let limit = CachePadded::new(Clocked::new(bucket, clock));
        Ready::new(move |_, operations| {
            (0..operations)
                .filter(|_| limit.try_acquire(1).is_ok())
                .count() as u64
        })
    })
}

/// Grants, with a reading of our coarse clock for each.
fn clocked() -> Contest {
    Contest {
        row: "token_bucket.clocked",
        threads: 1,
        expected: Expected::Granted,
        ours: with_clock(Load::FULL, CoarseClock::new()),
        peers: vec![
            governor(Expected::Granted),
            ratelimit(Load::FULL),
            leaky_bucket(Load::FULL),
        ],
    }
}

/// Grants at the exact time of our default clock: by a bucket in use, which seldom needs more than
/// the clock's interval, or by a full one, which always does.
fn clocked_std(row: &'static str, load: Load) -> Contest {
    Contest {
        row,
        threads: 1,
        expected: Expected::Granted,
        ours: with_clock(load, MonotonicClock::new()),
        peers: vec![ratelimit(load), governor_loaded(load)],
    }
}

fn governor_loaded(load: Load) -> Contestant {
    // governor's clock calibrates itself at its first use, which must not count in any row.
    DefaultClock::default().now();
    let quota = Quota::per_second(NonZeroU32::new(load.rate).unwrap())
        .allow_burst(NonZeroU32::new(BURST).unwrap());
    let limiter = CachePadded::new(RateLimiter::direct(quota));
    if let Some(taken) = NonZeroU32::new(load.taken) {
        assert_eq!(limiter.check_n(taken), Ok(Ok(())), "the bucket starts full");
    }
    Contestant::new("governor", move |_, operations| {
        (0..operations).filter(|_| limiter.check().is_ok()).count() as u64
    })
}

fn ratelimit(load: Load) -> Contestant {
    let limiter = Ratelimiter::builder(load.rate.into())
        .max_tokens(BURST.into())
        .initial_available((BURST - load.taken).into())
        .build()
        .expect("within its bounds");
    Contestant::new("ratelimit", move |_, operations| {
        (0..operations)
            .filter(|_| limiter.try_wait().is_ok())
            .count() as u64
    })
}

fn leaky_bucket(load: Load) -> Contestant {
    let limiter = load.leaky_bucket(false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    Contestant::new("leaky-bucket", move |_, operations| {
        let _runtime = runtime.enter();
        (0..operations).filter(|_| limiter.try_acquire(1)).count() as u64
    })
}

//! The limiters, their settings, and their bounds.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::{Mutex, PoisonError};

use portcullis_core::{
    AllOf, Concurrency, Counted, FixedWindow, Keyed, LeasePool, Limiter, LimiterExt, Rate,
    SlidingWindow, Timestamp, TokenBucket, Unlimited,
};

use super::bound::{self, Verdict};
use super::hammer::{Hammer, Progress};

/// A trial of one limiter.
pub(crate) struct Trial {
    /// The name of the limiter.
    pub(crate) name: &'static str,
    /// The bound, for the table.
    pub(crate) bound: &'static str,
    /// Hammers a new limiter, and checks its bound.
    pub(crate) run: fn(&Hammer, &Progress) -> Verdict,
}

const fn trial(
    name: &'static str,
    bound: &'static str,
    run: fn(&Hammer, &Progress) -> Verdict,
) -> Trial {
    Trial { name, bound, run }
}

/// The trials of the library's limiters.
pub(crate) const ALL: [Trial; 12] = [
    trial("token bucket", "500 + 5000/s x t", token_bucket),
    trial("stepwise bucket", "500 + 250 per 50ms", stepwise_bucket),
    trial("fixed window", "500 per 100ms", fixed_window),
    trial("started window", "1000 in any 100ms", started_window),
    trial("sliding window", "500 in 8 segments", sliding_window),
    trial("strict window", "500 in any 100ms", strict_window),
    trial("concurrency", "5 at once", concurrency),
    trial("lease pool", "5 at once", lease_pool),
    trial("keyed bucket", "100 + 1000/s x t", keyed_bucket),
    trial("all of two", "both of their own", all_of),
    trial("counted bucket", "100 + 2000/s x t", counted),
    trial("unlimited", "none", unlimited),
];

/// The trial of a limiter as it is often written, for comparison.
pub(crate) const NAIVE: Trial = trial("naive bucket", "500 + 5000/s x t", naive_bucket);

/// Checks every span of time against `allowed`, which takes the first and the last instant of the
/// span in nanoseconds.
fn spans(
    limiter: &(impl Limiter + Sync),
    hammer: &Hammer,
    progress: &Progress,
    allowed: impl Fn(u64, u64) -> u64,
) -> Verdict {
    let ask = |_, now| limiter.try_acquire_at(now, 1).is_ok();
    let [records] = hammer.admissions(progress, ask);
    bound::spans(records, allowed)
}

const SECOND: u64 = 1_000_000_000;
const WINDOW: u64 = SECOND / 10;

fn token_bucket(hammer: &Hammer, progress: &Progress) -> Verdict {
    let limiter = TokenBucket::new(Rate::per_second(5_000), 500);
    spans(&limiter, hammer, progress, |from, to| {
        500 + (to - from) * 5_000 / SECOND
    })
}

fn stepwise_bucket(hammer: &Hammer, progress: &Progress) -> Verdict {
    let rate = Rate::new(250, Duration::from_millis(50));
    match TokenBucket::builder(rate, 500).stepwise().build() {
        Ok(limiter) => {
            let steps = |from, to| to / (SECOND / 20) - from / (SECOND / 20);
            spans(&limiter, hammer, progress, |from, to| {
                500 + 250 * steps(from, to)
            })
        }
        Err(error) => Verdict::Broken(error.to_string()),
    }
}

fn fixed_window(hammer: &Hammer, progress: &Progress) -> Verdict {
    let limiter = FixedWindow::new(500, Duration::from_nanos(WINDOW));
    spans(&limiter, hammer, progress, |from, to| {
        500 * (to / WINDOW - from / WINDOW + 1)
    })
}

fn started_window(hammer: &Hammer, progress: &Progress) -> Verdict {
    match FixedWindow::builder(500, Duration::from_nanos(WINDOW))
        .started_by_first_request()
        .build()
    {
        // Windows do not overlap, and none is shorter than its length. So this is the most windows
        // that a span can touch.
        Ok(limiter) => spans(&limiter, hammer, progress, |from, to| {
            500 * ((to - from).div_ceil(WINDOW) + 1)
        }),
        Err(error) => Verdict::Broken(error.to_string()),
    }
}

fn sliding_window(hammer: &Hammer, progress: &Progress) -> Verdict {
    let limiter = SlidingWindow::<8>::new(500, Duration::from_nanos(WINDOW), 8);
    spans(&limiter, hammer, progress, |from, to| {
        let segments = to * 8 / WINDOW - from * 8 / WINDOW + 1;
        500 * segments.div_ceil(8)
    })
}

fn strict_window(hammer: &Hammer, progress: &Progress) -> Verdict {
    match SlidingWindow::<9>::builder(500, Duration::from_nanos(WINDOW), 8)
        .strict()
        .build()
    {
        Ok(limiter) => spans(&limiter, hammer, progress, |from, to| {
            500 * ((to - from) / WINDOW + 1)
        }),
        Err(error) => Verdict::Broken(error.to_string()),
    }
}

fn concurrency(hammer: &Hammer, progress: &Progress) -> Verdict {
    let limiter = Concurrency::new(5);
    let records = hammer.leases(&limiter, progress);
    bound::held_at_once(&records, 5).and(limiter.in_use() == 0, "permits lost")
}

fn lease_pool(hammer: &Hammer, progress: &Progress) -> Verdict {
    let pool: LeasePool<Concurrency, 8> = LeasePool::new(Concurrency::new(5));
    let records = hammer.claims(&pool, progress);
    pool.sweep(Timestamp::from_nanos(u64::MAX - 1));
    bound::held_at_once(&records, 5).and(
        pool.limiter().in_use() == 0 && pool.leases() == 0,
        "permits lost",
    )
}

fn counted(hammer: &Hammer, progress: &Progress) -> Verdict {
    let limiter = Counted::new(TokenBucket::new(Rate::per_second(2_000), 100));
    let verdict = spans(&limiter, hammer, progress, |from, to| {
        100 + (to - from) * 2_000 / SECOND
    });
    let counts = limiter.counts();
    let expected = (
        progress.admitted.load(Relaxed),
        progress.denied.load(Relaxed),
        0,
    );
    verdict.and(
        (counts.granted.requests, counts.denied.requests, counts.held) == expected,
        "counts wrong",
    )
}

/// Three keys of a table: each has the bound of its limiter.
fn keyed_bucket(hammer: &Hammer, progress: &Progress) -> Verdict {
    const KEYS: [&str; 3] = ["alice", "bob", "carol"];
    let users = Keyed::for_keys(TokenBucket::new(Rate::per_second(1_000), 100), 1_000);
    let ask = |key, now| users.key(KEYS[key]).try_acquire_at(now, 1).is_ok();
    let records: [_; KEYS.len()] = hammer.admissions(progress, ask);
    // The slot of a key has fewer bits than a limiter of its own, so it counts in coarser ticks.
    let tick = users.rules().timing().tick.as_nanos() as u64;
    let allowed = |from, to| 100 + (to / tick - from / tick) * tick * 1_000 / SECOND;
    let [first, others @ ..] = records.map(|records| bound::spans(records, allowed));
    others.into_iter().fold(first, Verdict::or)
}

fn all_of(hammer: &Hammer, progress: &Progress) -> Verdict {
    let bucket = TokenBucket::new(Rate::per_second(5_000), 500);
    let window = FixedWindow::new(300, Duration::from_nanos(WINDOW));
    spans(
        &AllOf::new((&bucket, &window)),
        hammer,
        progress,
        |from, to| {
            let by_window = 300 * (to / WINDOW - from / WINDOW + 1);
            by_window.min(500 + (to - from) * 5_000 / SECOND)
        },
    )
}

/// A token bucket as it is often written: it refills by the time since the call before, and forgets
/// whether that call came with an older time than others.
struct NaiveBucket {
    rate: f64,
    burst: f64,
    state: Mutex<(f64, Timestamp)>,
}

impl NaiveBucket {
    fn try_acquire_at(&self, now: Timestamp) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, last) = &mut *state;
        let elapsed = now.saturating_since(*last).as_secs_f64();
        *tokens = (*tokens + elapsed * self.rate).min(self.burst);
        *last = now;
        let is_granted = *tokens >= 1.0;
        if is_granted {
            *tokens -= 1.0;
        }
        is_granted
    }
}

fn naive_bucket(hammer: &Hammer, progress: &Progress) -> Verdict {
    let bucket = NaiveBucket {
        rate: 5_000.0,
        burst: 500.0,
        state: Mutex::new((500.0, Timestamp::ZERO)),
    };
    let [records] = hammer.admissions(progress, |_, now| bucket.try_acquire_at(now));
    bound::spans(records, |from, to| 500 + (to - from) * 5_000 / SECOND)
}

fn unlimited(hammer: &Hammer, progress: &Progress) -> Verdict {
    hammer.requests(progress, |now| Unlimited.try_acquire_at(now, 1).is_ok());
    Verdict::Held("all admitted".into()).and(progress.denied.load(Relaxed) == 0, "denied")
}

/// A trial of a limiter that keeps its bound, for tests.
#[cfg(test)]
pub(super) const HONEST: Trial = trial("honest", "", token_bucket);

/// Returns a trial of a limiter that sometimes grants a request that it should deny, for tests.
#[cfg(test)]
pub(super) fn generous() -> Trial {
    use core::sync::atomic::AtomicU64;

    let run = |hammer: &Hammer, progress: &Progress| {
        let limiter = TokenBucket::new(Rate::per_second(5_000), 500);
        let denied = AtomicU64::new(0);
        let ask = |_, now| {
            limiter.try_acquire_at(now, 1).is_ok()
                || denied.fetch_add(1, Relaxed).is_multiple_of(100)
        };
        let [records] = hammer.admissions(progress, ask);
        bound::spans(records, |from, to| 500 + (to - from) * 5_000 / SECOND)
    };
    trial("generous", "", run)
}

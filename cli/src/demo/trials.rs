//! The limiters, their settings, and their bounds.

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use portcullis_core::limiter::{Answer, Ask, Back, Read, Reading, Returned};
use portcullis_core::{
    Concurrency, Counted, FixedWindow, LeasePool, Limiter, Rate, SlidingWindow, Timestamp,
    TokenBucket, Unlimited,
};

use super::bound::{self, Verdict};
use super::hammer::{Hammer, Progress};

/// A trial of one limiter.
pub(crate) struct Trial {
    /// The name of the limiter.
    pub(crate) name: &'static str,
    /// Its settings.
    pub(crate) configured: &'static str,
    /// The bound, for the table.
    pub(crate) bound: &'static str,
    /// Hammers a new limiter, and checks its bound.
    pub(crate) run: fn(&Hammer, &Progress) -> Verdict,
}

/// Returns the trials of all limiters.
pub(crate) fn all() -> Vec<Trial> {
    vec![
        Trial {
            name: "token bucket",
            configured: "5000/s, burst 500",
            bound: "500 + 5000/s x t",
            run: token_bucket,
        },
        Trial {
            name: "stepwise bucket",
            configured: "250/50ms, burst 500",
            bound: "500 + 250 x steps",
            run: stepwise_bucket,
        },
        Trial {
            name: "fixed window",
            configured: "500/100ms",
            bound: "500 a window",
            run: fixed_window,
        },
        Trial {
            name: "started window",
            configured: "500/100ms from first",
            bound: "1000 in 100ms",
            run: started_window,
        },
        Trial {
            name: "sliding window",
            configured: "500/100ms, 8 segments",
            bound: "500 in 8 segments",
            run: sliding_window,
        },
        Trial {
            name: "strict window",
            configured: "500/100ms, 8 segments",
            bound: "500 in 100ms",
            run: strict_window,
        },
        Trial {
            name: "concurrency",
            configured: "5, leases of 1 to 3",
            bound: "5 at once",
            run: concurrency,
        },
        Trial {
            name: "lease pool",
            configured: "5, deadline 200µs",
            bound: "5 at once",
            run: lease_pool,
        },
        Trial {
            name: "counted bucket",
            configured: "2000/s, burst 100",
            bound: "100 + 2000/s x t",
            run: counted,
        },
        Trial {
            name: "unlimited",
            configured: "no limit",
            bound: "none",
            run: unlimited,
        },
    ]
}

/// Checks every span of time against `allowed`, which takes the first and the last instant of the
/// span in nanoseconds.
fn spans(
    limiter: &(impl Limiter + Sync),
    hammer: &Hammer,
    progress: &Progress,
    allowed: impl Fn(u64, u64) -> u64,
) -> Verdict {
    bound::spans(hammer.admissions(limiter, progress), allowed)
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

fn unlimited(hammer: &Hammer, progress: &Progress) -> Verdict {
    hammer.requests(&Unlimited, progress);
    Verdict::Held("all admitted".into()).and(progress.denied.load(Relaxed) == 0, "denied")
}

/// Returns a trial of a limiter that keeps its bound, for tests.
#[cfg(test)]
pub(super) fn honest() -> Trial {
    Trial {
        name: "honest",
        configured: "",
        bound: "",
        run: token_bucket,
    }
}

/// Returns a trial of a limiter that sometimes grants a request that it should deny, for tests.
#[cfg(test)]
pub(super) fn generous() -> Trial {
    use core::sync::atomic::AtomicU64;
    use portcullis_core::limiter::Receipt;
    use portcullis_core::{Denied, Retry};

    struct Generous {
        limiter: TokenBucket,
        denied: AtomicU64,
    }

    impl Limiter for Generous {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.limiter
                .take_at(now, n)
                .or_else(|denied| match self.denied.fetch_add(1, Relaxed) % 100 {
                    0 => Ok(Receipt::NONE),
                    _ => Err(denied),
                })
                .into()
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, read: Read<'_>) -> Reading {
            self.limiter.read(read)
        }

        fn retry(&self, denied: Denied) -> Retry {
            self.limiter.retry(denied)
        }
    }

    let run = |hammer: &Hammer, progress: &Progress| {
        let limiter = TokenBucket::new(Rate::per_second(5_000), 500);
        let limiter = Generous {
            limiter,
            denied: AtomicU64::new(0),
        };
        spans(&limiter, hammer, progress, |from, to| {
            500 + (to - from) * 5_000 / SECOND
        })
    };
    Trial {
        name: "generous",
        configured: "",
        bound: "",
        run,
    }
}

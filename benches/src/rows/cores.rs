//! One limiter that all cores use at once, with 1, 2, 4, 8, ... threads: grants, denials, tables,
//! a queue, a policy, and shared memory.
//!
//! Rows of denials are of a limit under attack: each thread asks again at once. At the time of a
//! real clock, a permit comes in each microsecond; of permits at once, the holder keeps one while
//! it asks 64 times more. So the row has the grants that take the line of the limiter away from the
//! others.
//!
//! `words` is the floor of a table: an exchange of one of as many words, without a decision. Most
//! often another core has written the line last, whatever a table does.

use core::num::NonZeroU32;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use portcullis_async::Queue;
use portcullis_core::{
    Clock as _, Concurrency, Keyed, LimiterExt, MonotonicClock, Rate, StripedBucket,
    StripedConcurrency, Timeless, Timestamp, TokenBucket,
};
use portcullis_policy::{Key, Limit, Policy, Request, Rule};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::measure::{Contest, Contestant, Expected, Ready};
use crate::rows::shared;
use crate::rows::token_bucket::{self, PLENTY, clocks, granting};

/// Returns the rows for a number of threads.
pub(crate) fn rows(threads: usize) -> Vec<Contest> {
    let row = |(row, expected, ours, peers)| Contest {
        row,
        threads,
        expected,
        ours,
        peers,
    };
    [rates(), at_once(), tables(), others(threads)]
        .into_iter()
        .flatten()
        .map(row)
        .collect()
}

/// A row without its threads.
type Row = (&'static str, Expected, Contestant, Vec<Contestant>);

use Expected::{Either, Granted};

fn rates() -> Vec<Row> {
    let (rate, burst) = (Rate::per_second(PLENTY), 1 << 30);
    let governor = || vec![token_bucket::governor(Granted)];
    let plain = granting(TokenBucket::new(rate, burst));
    let striped = granting(<StripedBucket>::new(rate, burst));
    let burst = BURST.into();
    let plain_attacked = attacked(TokenBucket::new(ATTACKED, burst));
    let striped_attacked = attacked(<StripedBucket>::new(ATTACKED, burst));
    vec![
        ("cores.bucket", Granted, plain, governor()),
        ("cores.striped_bucket", Granted, striped, governor()),
        (
            "cores.bucket_deny",
            Either,
            plain_attacked,
            vec![governor_attacked()],
        ),
        (
            "cores.striped_bucket_deny",
            Either,
            striped_attacked,
            vec![governor_attacked()],
        ),
    ]
}

fn at_once() -> Vec<Row> {
    let (plain, striped) = (
        || Concurrency::new(LIMIT),
        || <StripedConcurrency>::new(LIMIT),
    );
    vec![
        (
            "cores.concurrency",
            Granted,
            holding(plain()),
            vec![tokio()],
        ),
        (
            "cores.striped_concurrency",
            Granted,
            holding(striped()),
            vec![tokio()],
        ),
        (
            "cores.concurrency_deny",
            Either,
            held(plain()),
            vec![tokio_held()],
        ),
        (
            "cores.striped_concurrency_deny",
            Either,
            held(striped()),
            vec![tokio_held()],
        ),
    ]
}

fn tables() -> Vec<Row> {
    let of = |name, keys| {
        let peers = vec![governor_keyed(keys), words(keys)];
        (name, Granted, keyed(keys), peers)
    };
    let peers = vec![governor_key_attacked()];
    vec![
        of("cores.keyed_1k", 1_000),
        of("cores.keyed_10k", 10_000),
        of("cores.keyed_100k", 100_000),
        ("cores.keyed_deny", Either, keyed_attacked(), peers),
    ]
}

fn others(threads: usize) -> Vec<Row> {
    vec![
        ("cores.queue", Granted, queue(), vec![tokio()]),
        ("cores.policy", Granted, policy(PLENTY.into()), vec![]),
        ("cores.policy_deny", Either, policy(5), vec![]),
        (
            "cores.shm_bucket",
            Granted,
            shared::ours(threads),
            shared::peers(),
        ),
    ]
}

const LIMIT: u32 = 10_000;
const ATTACKED: Rate = Rate::per_second(1_000_000);
const BURST: u32 = 1_000;
/// How often a holder of a permit asks for more before it releases it.
const ASKS: u32 = 64;

fn attacked(limiter: impl LimiterExt + Sync + 'static) -> Contestant {
    let (limiter, clock) = (CachePadded::new(limiter), MonotonicClock::new());
    Contestant::new("portcullis", move |_, operations| {
        (0..operations)
            .filter(|_| limiter.take_at(clock.now(), 1).is_ok())
            .count() as u64
    })
}

fn attacked_quota() -> Quota {
    let quota = Quota::per_second(NonZeroU32::new(1_000_000).expect("not 0"));
    quota.allow_burst(NonZeroU32::new(BURST).expect("not 0"))
}

fn governor_attacked() -> Contestant {
    let limiter = CachePadded::new(RateLimiter::direct(attacked_quota()));
    Contestant::new("governor", move |_, operations| {
        (0..operations).filter(|_| limiter.check().is_ok()).count() as u64
    })
}

/// Acquires and releases.
fn holding(limit: impl LimiterExt + Sync + 'static) -> Contestant {
    let limit = CachePadded::new(limit);
    Contestant::new("portcullis", move |_, operations| {
        (0..operations)
            .filter(|_| {
                let taken = limit.take_at(Timestamp::ZERO, 1);
                if taken.is_ok() {
                    limit.release(1);
                }
                taken.is_ok()
            })
            .count() as u64
    })
}

fn tokio() -> Contestant {
    let semaphore = CachePadded::new(Semaphore::new(LIMIT as usize));
    Contestant::new("tokio", move |_, operations| {
        (0..operations)
            .filter(|_| semaphore.try_acquire().is_ok())
            .count() as u64
    })
}

/// One permit is left, and who gets it keeps it for a while.
fn held(limit: impl LimiterExt + Sync + 'static) -> Contestant {
    let taken = limit.take_at(Timestamp::ZERO, LIMIT - 1);
    taken.expect("all but one permit");
    let limit = CachePadded::new(limit);
    Contestant::new("portcullis", move |_, operations| {
        keeping(
            operations,
            || limit.take_at(Timestamp::ZERO, 1).is_ok(),
            || limit.release(1),
        )
    })
}

fn tokio_held() -> Contestant {
    let semaphore = CachePadded::new(Semaphore::new(1));
    Contestant::new("tokio", move |_, operations| {
        keeping(
            operations,
            || semaphore.try_acquire().map(SemaphorePermit::forget).is_ok(),
            || semaphore.add_permits(1),
        )
    })
}

fn keeping(operations: u64, take: impl Fn() -> bool, release: impl Fn()) -> u64 {
    let (mut granted, mut left) = (0, 0);
    for _ in 0..operations {
        if left > 0 {
            left -= 1;
            if left == 0 {
                release();
            }
        }
        if take() {
            granted += 1;
            left = ASKS;
        }
    }
    if left > 0 {
        release();
    }
    granted
}

/// Calls `f` with keys at random, different ones on each thread. `xorshift64` of G. Marsaglia.
fn at_random(
    thread: usize,
    operations: u64,
    keys: u64,
    mut f: impl FnMut(u64, u64) -> bool,
) -> u64 {
    let mut x = 88_172_645_463_325_252 + thread as u64 * 7_919;
    (0..operations)
        .filter(|i| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            f(*i, x % keys)
        })
        .count() as u64
}

fn keyed(keys: u64) -> Contestant {
    Contestant::prepared("portcullis", move || {
        let bucket = TokenBucket::new(Rate::per_second(PLENTY), 1 << 20);
        let table = Keyed::for_keys(bucket, keys as usize);
        let clock = clocks();
        Ready::new(move |thread, operations| {
            let start = clock(thread, 4 * operations);
            at_random(thread, operations, keys, |i, key| {
                let now = Timestamp::from_nanos(start + 4 * i);
                table.key(&key).try_acquire_at(now, 1).is_ok()
            })
        })
    })
}

fn governor_keyed(keys: u64) -> Contestant {
    Contestant::prepared("governor-keyed", move || {
        let quota = Quota::per_second(NonZeroU32::new(PLENTY).expect("not 0"));
        let map: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(quota);
        Ready::new(move |thread, operations| {
            at_random(thread, operations, keys, |_, key| {
                map.check_key(&key).is_ok()
            })
        })
    })
}

fn words(keys: u64) -> Contestant {
    Contestant::prepared("words", move || {
        let words: Vec<_> = (0..keys).map(|_| AtomicU64::new(0)).collect();
        Ready::new(move |thread, operations| {
            at_random(thread, operations, keys, |_, key| {
                let word = &words[key as usize];
                let mut value = word.load(Relaxed);
                while let Err(newer) =
                    word.compare_exchange_weak(value, value + 1, Relaxed, Relaxed)
                {
                    value = newer;
                }
                true
            })
        })
    })
}

/// All threads ask for one key of a thousand.
fn keyed_attacked() -> Contestant {
    let table = Keyed::for_keys(TokenBucket::new(ATTACKED, BURST.into()), 1_000);
    let clock = MonotonicClock::new();
    Contestant::new("portcullis", move |_, operations| {
        (0..operations)
            .filter(|_| table.key(&7_u64).try_acquire_at(clock.now(), 1).is_ok())
            .count() as u64
    })
}

fn governor_key_attacked() -> Contestant {
    let map: DefaultKeyedRateLimiter<u64> = RateLimiter::keyed(attacked_quota());
    Contestant::new("governor-keyed", move |_, operations| {
        (0..operations)
            .filter(|_| map.check_key(&7).is_ok())
            .count() as u64
    })
}

/// A queue with a permit for every request, so that none waits.
fn queue() -> Contestant {
    let queue = CachePadded::new(Queue::new(Concurrency::new(LIMIT), Timeless, u64::MAX));
    Contestant::new("portcullis", move |_, operations| {
        (0..operations)
            .filter(|_| queue.try_acquire(1).is_ok())
            .count() as u64
    })
}

/// A thousand users in turn, each from another start, or one user.
fn policy(per_minute: u64) -> Contestant {
    Contestant::prepared("portcullis", move || {
        let minute = core::time::Duration::from_mins(1);
        let rule = Rule::new("users")
            .key(Key::header("user"))
            .limit(Limit::per(per_minute, minute));
        let policy = Policy::new([rule]).expect("valid rules");
        let count = if per_minute > 1_000 { 1_000 } else { 1 };
        let users: Vec<String> = (0..count).map(|user| format!("user-{user}")).collect();
        let clock = MonotonicClock::new();
        Ready::new(move |thread, operations| {
            let from = thread * 61 % users.len();
            let asking = users.iter().cycle().skip(from).take(operations as usize);
            asking
                .filter(|user| {
                    let headers = [("user", *user)];
                    let request = Request::new("GET", "/items").headers(&headers);
                    policy.decide_at(clock.now(), &request).is_allowed()
                })
                .count() as u64
        })
    })
}

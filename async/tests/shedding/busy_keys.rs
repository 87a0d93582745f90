//! Keys that share a total and all have more requests than they get, in virtual time: what
//! shedding does if a key seldom has its turn. The figures of `docs/overload.md`.

use core::time::Duration;
use std::sync::Arc;

use portcullis_async::{KeyedQueue, Rejected, Shedding, TokioTimer};
use portcullis_core::keyed::WithTotal;
use portcullis_core::{Concurrency, Keyed, Rate, TokenBucket};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::millis;
use super::support::random::Random;

const TOTAL: u32 = 60;

/// How long requests come, and from when on they count.
const COME: Duration = Duration::from_secs(30);
const FROM: Duration = Duration::from_secs(10);

/// The permits per second, and the waits in milliseconds of the requests that got them.
#[derive(Debug)]
struct Seen {
    per_second: u64,
    median: u128,
    longest: u128,
}

/// Each key has twice as many requests as it gets, at random times.
async fn run(keys: u64, target: u64, interval: u64) -> Seen {
    let total = TokenBucket::new(Rate::per_second(TOTAL), 2);
    let table = Keyed::for_keys(Concurrency::new(4), 1_000);
    let queue = KeyedQueue::new(WithTotal::new(table, total), TokioTimer::new(), 1_000);
    let shedding = Shedding::controlled_delay(millis(target), millis(interval));
    let queue = queue.with_shedding(shedding).shared();
    let (start, mut tasks, mut random) = (Instant::now(), JoinSet::new(), Random::new(7));
    let requests = 2 * u64::from(TOTAL) * COME.as_secs();
    for _ in 0..requests {
        let key = random.below(keys);
        let at = start + Duration::from_nanos(random.below(COME.as_nanos() as u64));
        let queue = Arc::clone(&queue);
        tasks.spawn(async move {
            sleep_until(at).await;
            let result = queue.acquire(&key, 1).await;
            (at - start, at.elapsed().as_millis(), result.map(drop))
        });
    }
    let mut granted = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        match ended.unwrap() {
            (at, ..) if at < FROM => {}
            (_, waited, Ok(())) => granted.push(waited),
            (.., Err(Rejected::Shed { .. })) => {}
            (.., Err(rejected)) => panic!("{rejected}"),
        }
    }
    granted.sort_unstable();
    Seen {
        per_second: granted.len() as u64 / (COME.as_secs() - FROM.as_secs()),
        median: granted[granted.len() / 2],
        longest: granted[granted.len() - 1],
    }
}

#[tokio::test(start_paused = true)]
async fn a_target_holds_only_if_it_is_many_times_as_long_as_a_turn_takes() {
    // The keys, the target, the interval, whether the target is the bound.
    for (keys, target, interval, holds) in [
        (6, 1_000, 2_000, true),
        (30, 100, 500, false),
        (30, 500, 2_000, false),
        (30, 1_000, 2_000, false),
        (60, 100, 500, false),
        (60, 500, 2_000, false),
        (60, 1_000, 2_000, false),
    ] {
        let seen = run(keys, target, interval).await;
        println!("{keys} keys, {target}/{interval}: {seen:?}");
        let (target, interval) = (u128::from(target), u128::from(interval));
        // No permit is lost: another key takes it.
        assert!((59..=61).contains(&seen.per_second), "{seen:?}");
        let bound = if holds { target } else { interval };
        assert!(seen.longest <= bound + 20, "{seen:?}");
        assert!(seen.median <= bound, "{seen:?}");
        assert!(holds || seen.longest > interval * 9 / 10, "{seen:?}");
    }
}

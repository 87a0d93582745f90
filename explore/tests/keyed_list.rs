//! A call that claims the entry of a key with several limits, pre-empted at every atomic access by
//! calls of that key.
#![cfg(portcullis_explore)]

use core::cell::Cell;
use core::time::Duration;

use portcullis_core::builder::TokenBucketBuilder;
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed};
use portcullis_core::{KeyedList, Limiter, LimiterExt, Rate, Timestamp, TokenBucket};
use portcullis_explore::{Plan, run};

const SECOND: Duration = Duration::from_secs(1);

/// Pre-empts a claim of an entry at each access. The bucket of the entry is full from `full` on,
/// after a take at `begun`. The claim comes `late` after the staleness. Returns how often it
/// succeeds.
fn explore(bucket: TokenBucketBuilder, begun: Timestamp, full: Timestamp, late: Duration) -> u64 {
    let rules = bucket.rules().unwrap();
    let burst = u32::try_from(rules.burst()).unwrap();
    let (mut claims, mut first) = (0, 0);
    loop {
        let lines: Vec<Line> = (0..2).map(|_| Line::new()).collect();
        let table = KeyedList::new((rules, ConcurrencyRules::new(1)), lines, Seed::new());
        let alice = table.key("alice");
        assert!(alice.take_at(begun, 1).is_ok());
        alice.release(1);
        // The entries of other keys are in use.
        let (stale, now) = (full + late, full + late + table.staleness());
        for other in 0..7 {
            let key = table.key(&other);
            let since = now - SECOND / 2;
            assert!((0..burst).all(|_| key.take_at(since, 1).map(|_| key.release(1)).is_ok()));
        }
        let (is_out, is_claimed) = (Cell::new(false), Cell::new(false));
        let claim = || is_claimed.set(table.key("bob").take_at(now, 1).is_ok());
        let plan = Plan {
            at: [first, u64::MAX],
            failing: 0,
        };
        let accesses = run(plan, claim, &|other| {
            // The request has failed, so the rate is refunded. It is still in progress.
            if other == 0
                && let Ok((lease, [rate, ..])) = alice.try_acquire_each_noted_at(stale, 1)
            {
                is_out.set(lease.forget() == 1);
                let address = alice.address();
                assert_eq!(table.refund_limit_at(address, 0, stale, 1, rate), 1);
            }
        });
        claims += u64::from(is_claimed.get());
        let is_forgotten = is_out.get() && alice.idle_at(now).is_idle();
        assert!(!is_forgotten, "pre-empted at {first}");
        if first > accesses {
            return claims;
        }
        first += 1;
    }
}

#[test]
fn a_key_whose_rate_is_refunded_keeps_its_entry_while_a_permit_is_in_use() {
    let at = Timestamp::from_secs;
    let once = TokenBucket::builder(Rate::ZERO, 1);
    assert_eq!(explore(once, at(1), at(1), Duration::ZERO), 0);
    let tick = Duration::from_micros(1);
    let fine = TokenBucket::builder(Rate::per_second(1), 1).tick(tick);
    // As long as the staleness, and longer.
    let [second, minute] = [1, 60].map(|seconds| {
        let rate = Rate::new(1, seconds * SECOND);
        TokenBucket::builder(rate, 5).stepwise()
    });
    for (bucket, begun, full, tick) in [
        (fine, at(1), at(2), tick),
        (second, at(1), at(2), SECOND),
        (minute, at(59), at(60), 60 * SECOND),
    ] {
        // Not yet free, and free.
        assert_eq!(explore(bucket, begun, full, Duration::ZERO), 0);
        assert!(explore(bucket, begun, full, tick) > 0);
    }
}

//! The behaviour that the tests of other rate limiters show for many limits at once, partial grants
//! and refunds. Waits and keyed limits have tests of their own.
//!
//! Each module is one of their suites. Each function is the test of that name there, in our
//! spelling, with its number in our catalogue of cases. Time is manual, also where those tests
//! sleep. The function names the intended differences.

use core::cell::RefCell;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::panic::catch_unwind;

use portcullis_core::composition::Limits;
use portcullis_core::leases::TooFewHeld;
use portcullis_core::limiter::{Answer, Ask, Back, Detail, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::metadata::Name;
use portcullis_core::{
    AllOf, Concurrency, Counted, Denied, Limiter, LimiterExt, Rate, Retry, Timestamp, TokenBucket,
};

const fn millis(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

/// `n` per second, and as many at once.
fn per_second(n: u32) -> TokenBucket {
    TokenBucket::new(Rate::per_second(n), n.into())
}

/// `n` per minute, and as many at once.
fn per_minute(n: u32) -> TokenBucket {
    TokenBucket::new(Rate::per_minute(n), n.into())
}

/// clipperhouse/rate, `bucket_test.go` and related files. Our limiter is one key of theirs.
mod clipperhouse {
    use super::*;

    fn wait(bucket: &TokenBucket, now: Timestamp, n: u32) -> Duration {
        bucket
            .explain_at(now, n)
            .retry
            .wait_from(now)
            .expect("not more than the burst")
    }

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// 53: has tokens. Differs: there is no unchecked take, and so no debt.
    #[test]
    fn has_tokens() {
        let bucket = per_second(9);
        let has = |now, n| bucket.explain_at(now, n).is_allowed();
        assert!(has(millis(0), 9) && !has(millis(0), 10));
        bucket.take_at(millis(0), 3).unwrap();
        assert!(has(millis(0), 6) && !has(millis(0), 7));
        bucket.take_at(millis(0), 5).unwrap();
        assert!(has(millis(0), 1) && !has(millis(0), 2));
        assert!(bucket.try_acquire_at(millis(0), 5).is_err());
        bucket.take_at(millis(0), 1).unwrap();
        // Six ninths of a second, where theirs counts whole nanoseconds per token.
        let (just, before) = (
            Timestamp::from_nanos(666_666_667),
            Timestamp::from_nanos(666_666_666),
        );
        assert!(has(just, 6) && !has(just, 7) && has(before, 5) && !has(before, 6));
    }

    /// 55: the time of the next tokens.
    #[test]
    fn next_tokens_time() {
        let now = millis(7_000);
        let (spent, used) = (per_second(10), per_second(10));
        spent.take_at(now, 10).unwrap();
        used.take_at(now, 3).unwrap();
        let next = |bucket: &TokenBucket, n| bucket.explain_at(now, n).retry;
        assert_eq!(next(&spent, 1), Retry::At(millis(7_100)));
        assert_eq!(next(&spent, 5), Retry::At(millis(7_500)));
        assert_eq!(next(&used, 7), Retry::At(now));
        assert_eq!(next(&used, 8), Retry::At(millis(7_100)));
        assert_eq!(next(&used, 10), Retry::At(millis(7_300)));
    }

    /// 57: the table of retry times. Differs: 0 is a probe, and waits as 1 would.
    #[test]
    fn retry_after() {
        let now = millis(0);
        let spent = per_second(10);
        spent.take_at(now, 10).unwrap();
        assert_eq!(
            (wait(&spent, now, 1), wait(&spent, now, 5)),
            (ms(100), ms(500))
        );
        assert_eq!(
            wait(&spent, millis(500), 1),
            ms(0),
            "half of the period later"
        );
        assert_eq!(wait(&spent, now, 0), ms(100));

        let used = per_second(10);
        used.take_at(now, 3).unwrap();
        assert_eq!(
            [7, 8, 9, 0].map(|n| wait(&used, now, n)),
            [ms(0), ms(100), ms(200), ms(0)]
        );

        let returned = per_second(10);
        assert_eq!(
            returned.try_acquire_at(now, 5).unwrap().refund_at(now, 2),
            Ok(2)
        );
        assert_eq!([7, 8].map(|n| wait(&returned, now, n)), [ms(0), ms(100)]);
    }

    /// 61: two per second and three per minute, all or nothing.
    #[test]
    fn multi_limit_all_or_nothing() {
        let all = AllOf::new((per_second(2), per_minute(3)));
        let (second, minute) = all.limits();
        let left = |now| (second.available_at(now), minute.available_at(now));
        let allow = |now| all.try_acquire_at(now, 1).is_ok();
        assert!(allow(millis(0)) && allow(millis(0)) && !allow(millis(0)));
        assert_eq!(left(millis(0)), (0, 1), "nothing is taken from either");
        assert!(allow(millis(1_000)));
        assert_eq!(left(millis(1_000)), (1, 0));
        assert!(!allow(millis(1_000)));
        assert_eq!(left(millis(1_000)), (1, 0));
        assert!(allow(millis(61_000)));
    }

    /// 67: the wait is that of the tightest limit.
    #[test]
    fn details_of_the_tightest() {
        let all = AllOf::new((per_second(10), per_minute(6)));
        let granted: Vec<bool> = (0..10)
            .map(|_| all.try_acquire_at(millis(0), 1).is_ok())
            .collect();
        assert_eq!(granted, [[true; 6].as_slice(), &[false; 4]].concat());
        let wait = |now, n| {
            all.retry(all.try_acquire_at(now, n).unwrap_err())
                .wait_from(now)
                .unwrap()
        };
        assert_eq!(wait(millis(0), 1), ms(10_000));
        assert_eq!(wait(millis(50), 1), ms(9_950));

        let all = AllOf::new((per_second(10), per_minute(6)));
        assert!(all.try_acquire_at(millis(0), 3).is_ok());
        let denied = all.try_acquire_at(millis(0), 4).unwrap_err();
        assert_eq!(
            (denied.index, all.retry(denied)),
            (1, Retry::At(millis(10_000)))
        );
    }

    /// 69: far more than the capacity. Differs: a separate error, and no time to wait.
    #[test]
    fn n_far_above_capacity() {
        let bucket = per_second(5);
        let denied = bucket.try_acquire_at(millis(0), 1_000_000).unwrap_err();
        assert_eq!(
            denied,
            Denied::ExceedsCapacity {
                permits: 1_000_000,
                capacity: 5
            }
        );
        assert_eq!(
            (bucket.available_at(millis(0)), denied.retry(&bucket)),
            (5, Retry::Never)
        );
    }

    /// 70: the remaining permits after an idle time are capped.
    #[test]
    fn idle_caps_remaining() {
        let bucket = per_second(5);
        bucket.take_at(millis(0), 3).unwrap();
        bucket.take_at(millis(10_000), 1).unwrap();
        assert_eq!(bucket.available_at(millis(10_000)), 4);
    }

    /// 71: two limiters of one key. Differs: a third of a second is not rounded down to a
    /// nanosecond.
    #[test]
    fn combine_same_key() {
        let all = AllOf::new([per_second(3), per_second(5)]);
        let allow = |nanos| all.try_acquire_at(Timestamp::from_nanos(nanos), 1).is_ok();
        assert!((0..3).all(|_| allow(0)));
        assert!(!allow(0));
        assert_eq!(all.limits()[1].available_at(millis(0)), 2, "not consumed");
        assert!(!allow(333_333_333));
        assert!(allow(333_333_334));
    }

    /// 73: two pairs of limits, and fifteen threads.
    #[test]
    fn combine_two_pairs() {
        let all = AllOf::new((per_second(4), per_minute(60), per_second(8), per_minute(40)));
        for now in [millis(0), millis(1_000)] {
            let granted = std::thread::scope(|scope| {
                let ask = || all.try_acquire_at(now, 1).is_ok();
                let threads = [(); 15].map(|()| scope.spawn(ask));
                threads
                    .map(|thread| thread.join().unwrap())
                    .iter()
                    .filter(|granted| **granted)
                    .count()
            });
            assert_eq!(granted, 4, "at {now}");
        }
    }

    /// 75: requests of several sizes.
    #[test]
    fn combine_n_sequence() {
        let all = AllOf::new([per_second(8), per_second(12)]);
        let sequence = [
            (0, 4, true),
            (0, 2, true),
            (0, 3, false),
            (0, 2, true),
            (0, 1, false),
            (1_000, 6, true),
            (1_000, 2, true),
            (1_000, 1, false),
        ];
        for (at, n, granted) in sequence {
            assert_eq!(
                all.try_acquire_at(millis(at), n).is_ok(),
                granted,
                "{n} at {at} ms"
            );
        }
    }

    /// 77: the answer of each limit to a request that one of them denies.
    #[test]
    fn combine_debug_mask() {
        let all = AllOf::new([per_second(2), per_minute(20), per_second(10), per_minute(5)]);
        let now = millis(0);
        assert!(all.try_acquire_at(now, 2).is_ok());
        let left = || all.limits().each_ref().map(|limit| limit.available_at(now));
        assert!(all.try_acquire_at(now, 2).is_err());
        let details: Vec<_> = all.explain_at(now, 2).collect();
        let allowed: Vec<bool> = details.iter().map(Detail::is_allowed).collect();
        assert_eq!(allowed, [false, true, true, true]);
        assert_eq!(left(), [0, 18, 8, 3], "consumed 0 everywhere");
        assert!(details.iter().map(|detail| detail.available).eq(left()));
    }

    /// 79: no limits allow everything. Differs: the remaining number is the largest, theirs is 0.
    #[test]
    fn empty_limiter() {
        let none = AllOf::new([] as [TokenBucket; 0]);
        assert_eq!(
            none.try_acquire_at(millis(0), u32::MAX).unwrap().permits(),
            u32::MAX
        );
        assert_eq!(
            (
                none.available_at(millis(0)),
                none.explain_at(millis(0), 1).len()
            ),
            (u64::MAX, 0)
        );
    }

    /// 83: two orders of the same limits at once finish. (Theirs deadlocks.)
    #[test]
    fn combine_order_inverse() {
        let (a, b) = (per_second(1_000), per_minute(60_000));
        let (ab, ba) = (AllOf::new([&a, &b]), AllOf::new([&b, &a]));
        let granted: usize = std::thread::scope(|scope| {
            let hammer = |all| {
                move || {
                    let all: &AllOf<[&TokenBucket; 2]> = all;
                    (0..50_000u64)
                        .filter(|turn| all.try_acquire_at(millis(turn / 50), 1).is_ok())
                        .count()
                }
            };
            let threads = [scope.spawn(hammer(&ab)), scope.spawn(hammer(&ba))];
            threads.map(|thread| thread.join().unwrap()).iter().sum()
        });
        assert!(
            (1_000..2_000).contains(&granted),
            "{granted} of 1,000 at once, and 999 by time"
        );
    }
}

/// folly, `TokenBucketTest.cpp`: returning and borrowing.
mod folly {
    use super::*;

    /// 35: returned tokens are capped. Differs: only what was taken can be refunded.
    #[test]
    fn return_tokens() {
        let (bucket, now) = (per_second(10), Timestamp::from_secs(5));
        let mut lease = bucket.try_acquire_at(now, 10).unwrap();
        assert!(bucket.try_acquire_at(now, 1).is_err());
        assert!(bucket.drain_at(now).is_none());
        assert_eq!(lease.refund_at(now, 50), Err(TooFewHeld { held: 10 }));
        assert_eq!(lease.refund_at(now, 10), Ok(10));
        assert!(bucket.try_acquire_at(now, 10).is_ok());
        assert!(bucket.try_acquire_at(now, 1).is_err());
    }

    /// 37: the available permits are what is left. Differs: nothing can be borrowed, so no balance
    /// is negative.
    #[test]
    fn available_and_balance() {
        let (bucket, now) = (per_second(100), millis(0));
        assert_eq!(bucket.available_at(now), 100);
        for left in [50, 0] {
            assert!(bucket.try_acquire_at(now, 50).is_ok());
            assert_eq!(bucket.available_at(now), left);
        }
        assert!(bucket.try_acquire_at(now, 50).is_err());
        assert_eq!(bucket.available_at(now), 0);
    }
}

/// bucket4j's core specifications, of buckets with several bandwidths.
mod bucket4j {
    use super::*;

    fn bandwidth(capacity: u64, refill: u32, nanos: u64, initial: u64) -> TokenBucket {
        let rate = Rate::new(refill, Duration::from_nanos(nanos));
        TokenBucket::builder(rate, capacity)
            .initial(initial)
            .build()
            .unwrap()
    }

    /// 89: the available number is the least of all bandwidths.
    #[test]
    fn available_tokens() {
        let all = AllOf::new((bandwidth(10, 10, 100, 5), bandwidth(2, 10, 100, 2)));
        assert_eq!(all.available_at(millis(0)), 2);
        let all = AllOf::new([bandwidth(10, 10, 100, 5), bandwidth(10, 10, 100, 0)]);
        assert_eq!(all.available_at(millis(0)), 0);
        assert_eq!(
            AllOf::new((bandwidth(10, 10, 100, 10),)).available_at(millis(0)),
            10
        );
    }

    /// 95: as much as possible, with or without an upper limit. Differs: there is no debt.
    #[test]
    fn consume_as_much_as_possible() {
        let all =
            |initial| AllOf::new([bandwidth(10, 10, 100, initial), bandwidth(10, 1, 100, 10)]);
        let taken = |initial, max| {
            all(initial)
                .try_acquire_between_at(millis(0), 1, max)
                .map_or(0, |lease| lease.permits())
        };
        assert_eq!([0, 2].map(|initial| taken(initial, u32::MAX)), [0, 2]);
        assert_eq!([4, 5, 6].map(|initial| taken(initial, 5)), [4, 5, 5]);
        let alone = |initial| bandwidth(10, 10, 100, initial);
        assert_eq!(
            [0, 2].map(|n| alone(n)
                .drain_at(millis(0))
                .map_or(0, |lease| lease.permits())),
            [0, 2]
        );
    }

    /// 105: the delay is that of the slowest bandwidth, in either order.
    #[test]
    fn delay_of_two_bandwidths() {
        let delay = |all: AllOf<[TokenBucket; 2]>, n| {
            all.try_acquire_at(millis(0), n)
                .map_or_else(|denied| all.retry(denied), |_| Retry::At(millis(0)))
        };
        let twenty = Retry::At(Timestamp::from_nanos(20));
        let (slow, fast) = (|| bandwidth(10, 10, 100, 1), || bandwidth(5, 5, 10, 2));
        assert_eq!(delay(AllOf::new([slow(), fast()]), 3), twenty);
        assert_eq!(delay(AllOf::new([fast(), slow()]), 3), twenty);
        let there = AllOf::new([bandwidth(5, 5, 10, 5), bandwidth(10, 10, 100, 3)]);
        assert_eq!(delay(there, 3), Retry::At(millis(0)));
    }
}

/// .NET `ChainedLimiterTests`.
mod chained_limiter_tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1);

    /// What a limiter of the tests does.
    #[derive(Clone, Copy, PartialEq)]
    enum Does {
        Grant,
        PanicInTake,
        PanicInRelease,
    }

    /// Grants, and records its name and the calls it gets.
    struct Track<'a> {
        name: &'static str,
        does: Does,
        calls: &'a RefCell<Vec<String>>,
    }

    impl Track<'_> {
        fn note(&self, call: &str) {
            self.calls
                .borrow_mut()
                .push(format!("{call} {}", self.name));
        }
    }

    impl Limiter for Track<'_> {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            if ask.is_look() {
                return ask.granted(Receipt::NONE);
            }
            self.note("take");
            assert!(self.does != Does::PanicInTake, "scripted");
            Answer::Granted(Receipt::NONE)
        }
        fn give_back(&self, back: Back<'_>) -> Returned {
            match back {
                Back::Release { permits: _ } => {
                    self.note("release");
                    assert!(self.does != Does::PanicInRelease, "scripted");
                    Returned::NOTHING
                }
                Back::Refund {
                    permits, receipt, ..
                } => {
                    self.release(permits);
                    receipt.refunded(0).into()
                }
                _ => Returned::NOTHING,
            }
        }
        fn read(&self, _: Read<'_>) -> Reading {
            Reading {
                available: u64::MAX,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }
        fn retry(&self, _: Denied) -> Retry {
            Retry::Never
        }
    }

    /// 219: `ThrowsWhenNoLimitersProvided`. Differs: no limits grant everything.
    #[test]
    fn no_limiters_provided() {
        assert!(
            AllOf::new([] as [Concurrency; 0])
                .try_acquire_at(NOW, 1)
                .is_ok()
        );
    }

    /// 227, except waits: `GetStatisticsHasCorrectValues`. Each link counts for itself; the
    /// available number is the least.
    #[test]
    fn get_statistics_has_correct_values() {
        let links = [34, 22, 13].map(|limit| Counted::new(Concurrency::new(limit)));
        let all = AllOf::new(&links);
        let lease = all.try_acquire_at(NOW, 10).unwrap();
        assert_eq!(all.available_at(NOW), 3);
        for link in &links {
            let counts = link.counts();
            assert_eq!(
                (counts.granted.requests, counts.denied.requests, counts.held),
                (1, 0, 10)
            );
        }
        assert_eq!(all.try_acquire_at(NOW, 10).unwrap_err().index, 2);
        assert_eq!(
            links.each_ref().map(|link| link.limiter().available()),
            [24, 12, 3]
        );
        assert_eq!(
            links.each_ref().map(|link| link.counts().denied.requests),
            [0, 0, 1]
        );
        drop(lease);
        assert_eq!(all.available_at(NOW), 13);
        assert!(all.try_acquire_at(NOW, 10).is_ok());
        assert!(
            links
                .iter()
                .all(|link| link.counts().granted.requests == 2 && link.counts().held == 0)
        );
    }

    /// 229: `AcquireWorksWithSingleLimiter`.
    #[test]
    fn acquire_works_with_single_limiter() {
        let calls = RefCell::new(Vec::new());
        let all = AllOf::new((Track {
            name: "1",
            does: Does::Grant,
            calls: &calls,
        },));
        let lease = all.try_acquire_at(NOW, 1).unwrap();
        assert_eq!(*calls.borrow(), ["take 1"]);
        drop(lease);
    }

    /// 231: `AcquireWorksWithMultipleLimiters`.
    #[test]
    fn acquire_works_with_multiple_limiters() {
        let calls = RefCell::new(Vec::new());
        let all = AllOf::new(["1", "2"].map(|name| Track {
            name,
            does: Does::Grant,
            calls: &calls,
        }));
        let lease = all.try_acquire_at(NOW, 1).unwrap();
        assert_eq!(*calls.borrow(), ["take 1", "take 2"]);
        drop(lease);
    }

    /// 233: `AcquireLeaseCorrectlyDisposesWithMultipleLimiters`.
    #[test]
    fn a_lease_returns_permits_to_multiple_limiters() {
        let all = AllOf::new([1, 1].map(Concurrency::new));
        let available = || all.limits().each_ref().map(Concurrency::available);
        let lease = all.try_acquire_at(NOW, 1).unwrap();
        assert_eq!(available(), [0, 0]);
        drop(lease);
        assert_eq!(available(), [1, 1]);
    }

    /// 235: `AcquireLeaseCorrectlyDisposesWithSingleLimiter`.
    #[test]
    fn a_lease_returns_permits_to_a_single_limiter() {
        let all = AllOf::new((Concurrency::new(1),));
        let lease = all.try_acquire_at(NOW, 1).unwrap();
        assert_eq!(all.limits().0.available(), 0);
        drop(lease);
        assert_eq!(all.limits().0.available(), 1);
    }

    /// 237: `AcquireFailsWhenOneLimiterDoesNotHaveEnoughResources`. Differs: all limits are looked
    /// at first, so none is taken from.
    #[test]
    fn acquire_fails_when_one_limiter_does_not_have_enough_resources() {
        let (calls, limit) = (RefCell::new(Vec::new()), Concurrency::new(1));
        let _outside = limit.try_acquire(1).unwrap();
        let all = AllOf::new((
            Track {
                name: "1",
                does: Does::Grant,
                calls: &calls,
            },
            &limit,
        ));
        assert_eq!(all.try_acquire_at(NOW, 1).unwrap_err().index, 1);
        assert!(calls.borrow().is_empty());
    }

    /// 239: `AcquireFailsAndReleasesAcquiredResources`.
    #[test]
    fn acquire_fails_and_releases_acquired_resources() {
        let all = AllOf::new([1, 1].map(Concurrency::new));
        let _outside = all.limits()[1].try_acquire(1).unwrap();
        assert!(all.try_acquire_at(NOW, 1).is_err());
        assert_eq!(all.limits()[0].available(), 1);
    }

    /// 241: `AcquireThrowsAndReleasesAcquiredResources`; a panic here for an exception there.
    #[test]
    fn acquire_panics_and_releases_acquired_resources() {
        let (calls, limit) = (RefCell::new(Vec::new()), Concurrency::new(1));
        let all = AllOf::new((
            &limit,
            Track {
                name: "2",
                does: Does::PanicInTake,
                calls: &calls,
            },
        ));
        assert!(catch_unwind(AssertUnwindSafe(|| all.try_acquire_at(NOW, 1).map(drop))).is_err());
        assert_eq!(
            (limit.available(), &**calls.borrow()),
            (1, &["take 2".to_owned()][..])
        );
    }

    /// 243: `AcquireThrows_SingleLimiter`.
    #[test]
    fn acquire_panics_with_single_limiter() {
        let calls = RefCell::new(Vec::new());
        let all = AllOf::new((Track {
            name: "1",
            does: Does::PanicInTake,
            calls: &calls,
        },));
        assert!(catch_unwind(AssertUnwindSafe(|| all.try_acquire_at(NOW, 1).map(drop))).is_err());
        assert_eq!(*calls.borrow(), ["take 1"]);
    }

    /// 251: `AcquireSucceedsDisposeThrowsAndReleasesResources`: one limit that panics does not keep
    /// the other from its release.
    #[test]
    fn a_panic_in_a_release_does_not_stop_the_others() {
        for panics_first in [true, false] {
            let (calls, limit) = (RefCell::new(Vec::new()), Concurrency::new(1));
            let bad = Track {
                name: "bad",
                does: Does::PanicInRelease,
                calls: &calls,
            };
            let places: [&dyn Limiter; 2] = if panics_first {
                [&bad, &limit]
            } else {
                [&limit, &bad]
            };
            let all = AllOf::new(places);
            let lease = all.try_acquire_at(NOW, 1).unwrap();
            assert_eq!(limit.available(), 0);
            assert!(catch_unwind(AssertUnwindSafe(|| drop(lease))).is_err());
            assert_eq!((limit.available(), calls.borrow().len()), (1, 2));
        }
    }

    /// 253: `AcquireForwardsCorrectPermitCount`.
    #[test]
    fn acquire_forwards_correct_permit_count() {
        let all = AllOf::new([5, 3].map(Concurrency::new));
        let available = || all.limits().each_ref().map(Concurrency::available);
        let lease = all.try_acquire_at(NOW, 3).unwrap();
        assert_eq!(available(), [2, 0]);
        drop(lease);
        assert_eq!(available(), [5, 3]);
    }

    /// 259: `LeasesAreDisposedInReverseOrderWhenAcquireThrows`.
    #[test]
    fn permits_are_returned_in_reverse_when_acquire_panics() {
        let calls = RefCell::new(Vec::new());
        let link = |name, does| Track {
            name,
            does,
            calls: &calls,
        };
        let all = AllOf::new((
            link("1", Does::Grant),
            link("2", Does::Grant),
            link("3", Does::PanicInTake),
        ));
        assert!(catch_unwind(AssertUnwindSafe(|| all.try_acquire_at(NOW, 1).map(drop))).is_err());
        assert_eq!(
            *calls.borrow(),
            ["take 1", "take 2", "take 3", "release 2", "release 1"]
        );
    }

    /// 261: `MetadataIsCombined`. Differs: a composition has no metadata of its own; each of its
    /// limits is asked for its own.
    #[test]
    fn metadata_of_each_limit_is_its_own() {
        const NAMES: [Name<u32>; 4] = [
            Name::new("1"),
            Name::new("2"),
            Name::new("3"),
            Name::new("4"),
        ];
        /// Has a value for two of the names.
        struct Named(usize);
        impl Limiter for Named {
            fn decide(&self, ask: Ask<'_>) -> Answer {
                if ask.is_look() {
                    return ask.granted(Receipt::NONE);
                }
                Answer::Granted(Receipt::NONE)
            }

            fn give_back(&self, _: Back<'_>) -> Returned {
                Returned::NOTHING
            }

            fn read(&self, mut read: Read<'_>) -> Reading {
                for index in [self.0, self.0 + 1] {
                    read.offer(NAMES[index], || 10 * index as u32);
                }
                Reading {
                    available: u64::MAX,
                    capacity: u64::MAX,
                    idle: Idle::InUse,
                    held: 0,
                }
            }

            fn retry(&self, _: Denied) -> Retry {
                Retry::Never
            }
        }
        let all = AllOf::new((Named(0), Named(2)));
        let lease = all.try_acquire_at(NOW, 1).unwrap();
        let limits = || (0..lease.limits().len()).filter_map(|index| lease.limits().get(index));
        let values: [Vec<u32>; 4] = NAMES.map(|name| {
            limits()
                .filter_map(|limit| name.of_granted(limit, NOW))
                .collect()
        });
        assert_eq!(values, [vec![0], vec![10], vec![20], vec![30]]);
    }
}

//! The behaviour that the tests of other rate limiters show for keyed limits, except waiting.
//!
//! Each module is one of their suites. Each function is one behaviour that a test there shows. Time
//! is manual, also where those tests sleep. The function names the intended differences.

use core::cell::Cell;
use core::hash::{BuildHasher, Hash, Hasher};
use core::time::Duration;

use portcullis_core::keyed::{ConcurrencyRules, KeyedRules, Line, Seed, TokenBucketRules};
use portcullis_core::{
    AllOf, Denied, Keyed, Lease, Limiter, LimiterExt, Rate, Retry, Timestamp, TokenBucket,
};

const fn millis(n: u64) -> Timestamp {
    Timestamp::from_millis(n)
}

type Table<L, S = Seed> = Keyed<L, Vec<Line>, S>;

/// A table with room for some hundred keys.
fn table<L: KeyedRules, S: BuildHasher>(limit: L, hasher: S) -> Table<L, S> {
    Keyed::new(limit, (0..128).map(|_| Line::new()).collect(), hasher)
}

fn bucket(rate: Rate, burst: u64) -> TokenBucketRules {
    TokenBucket::builder(rate, burst).rules().unwrap()
}

/// `n` per second for each key, and as many at once.
fn per_second(n: u32) -> Table<TokenBucketRules> {
    table(bucket(Rate::per_second(n), n.into()), Seed::new())
}

/// `n` per minute for each key, and as many at once.
fn per_minute(n: u32) -> Table<TokenBucketRules> {
    table(bucket(Rate::per_minute(n), n.into()), Seed::new())
}

/// The number of slots in use in a table.
fn held<L: KeyedRules, S: BuildHasher>(table: &Table<L, S>) -> usize {
    table.statistics_at(Timestamp::ZERO).held
}

/// clipperhouse/rate.
mod clipperhouse {
    use super::*;

    /// Requests a permit for one key of both limits.
    fn allow(
        limits: &[Table<TokenBucketRules>; 2],
        key: &str,
        now: Timestamp,
    ) -> Result<(), portcullis_core::composition::DeniedBy> {
        let limits = limits.each_ref().map(|limit| *limit.key(key));
        AllOf::new(limits).try_acquire_at(now, 1).map(|_| ())
    }

    #[test]
    fn two_limits_of_one_key_are_all_or_nothing_and_leave_other_keys_alone() {
        let limits = [per_second(2), per_minute(3)];
        let left = |key: &str, now| {
            limits
                .each_ref()
                .map(|limit| limit.key(key).available_at(now))
        };
        assert!(allow(&limits, "a", millis(0)).is_ok() && allow(&limits, "a", millis(0)).is_ok());
        assert!(allow(&limits, "a", millis(0)).is_err());
        assert_eq!(
            (left("a", millis(0)), left("b", millis(0))),
            ([0, 1], [2, 3])
        );
        assert!(allow(&limits, "a", millis(1_000)).is_ok());
        assert_eq!(left("a", millis(1_000)), [1, 0]);
        assert!(
            allow(&limits, "a", millis(1_000)).is_err()
                && allow(&limits, "b", millis(1_000)).is_ok()
        );
        assert!(allow(&limits, "a", millis(61_000)).is_ok());
    }

    #[test]
    fn each_limit_of_each_key_has_a_bucket_after_a_grant_and_none_after_a_look() {
        let limits = [per_second(2), per_minute(3)];
        for key in ["a", "b", "c"] {
            assert!(allow(&limits, key, millis(0)).is_ok());
        }
        assert_eq!(limits.each_ref().map(held), [3, 3], "six");
        for key in ["d", "e", "f"] {
            let limits = limits.each_ref().map(|limit| *limit.key(key));
            assert!(AllOf::new(limits).peek_at(millis(0), 1).is_ok());
        }
        assert_eq!(limits.each_ref().map(held), [3, 3]);
    }

    #[test]
    fn threads_that_take_for_several_keys_get_what_the_tighter_limit_of_each_has() {
        let limits = [per_second(2), per_minute(3)];
        let keys = ["a", "b", "c"];
        for (now, each) in [(0, 2), (1_000, 1), (1_000, 0), (2_000, 0)] {
            let granted = std::thread::scope(|scope| {
                let ask = |key| {
                    let limits = &limits;
                    move || allow(limits, key, millis(now)).is_ok()
                };
                let threads: Vec<_> = (0..10)
                    .flat_map(|_| keys)
                    .map(|key| (key, scope.spawn(ask(key))))
                    .collect();
                let granted = threads
                    .into_iter()
                    .filter_map(|(key, thread)| thread.join().unwrap().then_some(key));
                granted.collect::<Vec<_>>()
            });
            for key in keys {
                assert_eq!(
                    granted.iter().filter(|of| **of == key).count(),
                    each,
                    "{key} at {now} ms"
                );
            }
        }
    }

    #[test]
    fn the_wait_of_a_key_is_that_of_its_tightest_limit() {
        let limits = [per_second(10), per_minute(6)];
        for key in ["a", "b"] {
            assert!((0..6).all(|_| allow(&limits, key, millis(0)).is_ok()));
            let denied = allow(&limits, key, millis(50)).unwrap_err();
            let of = AllOf::new(limits.each_ref().map(|limit| *limit.key(key)));
            assert_eq!(
                (denied.index, of.retry(denied)),
                (1, Retry::At(millis(10_000)))
            );
        }
    }

    #[test]
    fn the_empty_string_is_a_key() {
        let table = per_second(3);
        assert!(table.key("").try_acquire_at(millis(0), 1).is_ok());
        assert_eq!(table.key("").available_at(millis(0)), 2);
        assert!(
            table
                .key(&String::new())
                .try_acquire_at(millis(0), 1)
                .is_ok()
        );
        assert_eq!(
            (table.key("").available_at(millis(0)), held(&table)),
            (1, 1)
        );
    }

    #[test]
    fn six_and_seven_limits_of_a_key_decide_as_two_do() {
        fn check<const N: usize>() {
            let tables: [_; N] = core::array::from_fn(|index| {
                table(ConcurrencyRules::new(3 + index as u32), Seed::new())
            });
            let live = || {
                tables
                    .iter()
                    .map(|table| table.statistics_at(millis(0)).live)
                    .sum()
            };
            let all = AllOf::new(tables.each_ref().map(|table| *table.key("a")));
            let leases: Vec<_> = (0..3)
                .map(|_| all.try_acquire_at(millis(0), 1).unwrap())
                .collect();
            assert_eq!(all.try_acquire_at(millis(0), 1).unwrap_err().index, 0);
            assert_eq!(tables[N - 1].key("a").available_at(millis(0)), N as u64 - 1);
            let in_use: usize = live();
            assert_eq!(in_use, N);
            drop(leases);
            assert_eq!(live(), 0);
        }
        check::<6>();
        check::<7>();
    }

    /// Differs: a key without a grant has no bucket to remove. A key with a full bucket is kept for
    /// the staleness, for stale timestamps.
    #[test]
    fn full_buckets_are_removed_and_the_others_stay() {
        let lines = (0..512).map(|_| Line::new()).collect::<Vec<_>>();
        let table = Keyed::new(bucket(Rate::per_second(1), 1), lines, Seed::new());
        for key in 0..1_000u32 {
            let mut lease = Lease::try_acquire_at(table.key(&key), millis(5_000), 1).unwrap();
            if key % 4 > 0 {
                assert_eq!(lease.refund_at(millis(5_000), 1), Ok(1), "full again");
            }
        }
        assert_eq!(
            (table.sweep_at(millis(5_000), ..), held(&table)),
            (0, 1_000)
        );
        assert_eq!(
            (table.sweep_at(millis(6_000), ..), held(&table)),
            (750, 250)
        );
        assert_eq!((table.sweep_at(millis(6_999), ..), held(&table)), (0, 250));
        assert_eq!((table.sweep_at(millis(7_000), ..), held(&table)), (250, 0));
    }
}

/// Uses a number as its own hash.
#[derive(Clone, Copy, Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0 << 8 | u64::from(byte);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl BuildHasher for AsItIs {
    type Hasher = Self;

    fn build_hasher(&self) -> Self {
        *self
    }
}

/// webriots/rate.
mod webriots {
    use super::*;

    #[test]
    fn two_ids_with_equal_line_and_tag_share_a_bucket() {
        let table = table(bucket(Rate::per_second(1), 3), AsItIs::default());
        // The ids differ in a bit that neither the line nor the tag is taken from.
        let (one, other, third) = (1u64, 1u64 | 1 << 25, 2u64);
        assert!(table.key(&one).try_acquire_at(millis(0), 2).is_ok());
        assert_eq!(table.key(&other).available_at(millis(0)), 1);
        assert!(table.key(&other).try_acquire_at(millis(0), 2).is_err());
        assert_eq!(table.key(&third).available_at(millis(0)), 3);
    }

    /// Differs: nothing rotates by itself. In a table with another seed, other ids share a bucket.
    #[test]
    fn ids_that_share_under_one_seed_do_not_share_under_another() {
        let of = |seed| {
            let hasher = Seed::new();
            hasher.set(seed).unwrap();
            table(ConcurrencyRules::new(1), hasher)
        };
        let (before, after) = (of([1, 2]), of([3, 4]));
        // Two ids with one tag and one line; some ten thousand ids contain such a pair.
        let mut ids = std::collections::HashMap::new();
        let pair = (0..u64::MAX).find_map(|id| Some((ids.insert(before.key(&id).id(), id)?, id)));
        let (one, other) = pair.unwrap();
        assert!(before.key(&one).take_at(millis(0), 1).is_ok());
        assert!(
            before.key(&other).take_at(millis(0), 1).is_err(),
            "{one} and {other} share"
        );
        assert!(after.key(&one).take_at(millis(0), 1).is_ok());
        assert!(after.key(&other).take_at(millis(0), 1).is_ok());
    }

    #[test]
    fn a_keys_burst_may_exceed_255() {
        let table = table(bucket(Rate::per_second(1_000), 100_000), Seed::new());
        assert!(table.key("a").try_acquire_at(millis(0), 256).is_ok());
        assert_eq!(table.key("a").available_at(millis(0)), 100_000 - 256);
    }
}

/// .NET `PartitionedRateLimiterTests`.
mod dotnet {
    use super::*;

    #[test]
    fn a_partition_is_created_once_and_used_by_all_requests_of_its_key() {
        let table = table(ConcurrencyRules::new(4), Seed::new());
        let key = table.key("a");
        let leases: Vec<_> = (0..4)
            .map(|_| Lease::try_acquire_at(table.key("a"), millis(0), 1))
            .collect();
        assert!(leases.iter().all(Result::is_ok));
        assert_eq!((key.available_at(millis(0)), held(&table)), (0, 1));
        assert!(key.try_acquire_at(millis(0), 1).is_err());
    }

    #[test]
    fn partitions_of_two_keys_are_two() {
        let table = table(ConcurrencyRules::new(1), Seed::new());
        let _busy = Lease::try_acquire_at(table.key(&2u32), millis(0), 1).unwrap();
        assert!(table.key(&2u32).try_acquire_at(millis(0), 1).is_err());
        assert!(
            table.key(&1u32).try_acquire_at(millis(0), 1).is_ok(),
            "not limited by the other"
        );
        assert_eq!(held(&table), 2);
    }

    /// Differs: a hash identifies a slot, and keys are never compared.
    #[test]
    fn a_custom_hasher_is_used_once_for_each_key_that_is_named() {
        struct Counting<'a>(&'a Cell<u32>);
        impl BuildHasher for Counting<'_> {
            type Hasher = AsItIs;
            fn build_hasher(&self) -> AsItIs {
                self.0.set(self.0.get() + 1);
                AsItIs::default()
            }
        }
        let count = Cell::new(0);
        let table = table(ConcurrencyRules::new(2), Counting(&count));
        for (name, hashed, entries) in [("1", 1, 1), ("1", 2, 1), ("2", 3, 2)] {
            let limiter = table.key(name);
            limiter.take_at(millis(0), 1).unwrap();
            assert_eq!((count.get(), held(&table)), (hashed, entries));
        }
        assert_eq!(table.key("1").available_at(millis(0)), 0);
        assert_eq!(table.key("2").available_at(millis(0)), 1);
    }

    #[test]
    fn the_partition_of_an_unlimited_key_is_cleaned_up_and_created_again() {
        let table = table(bucket(Rate::UNLIMITED, 1), Seed::new());
        let ask = || {
            table
                .key("a")
                .try_acquire_at(millis(9_000), 1_000_000)
                .is_ok()
        };
        assert!(ask());
        let entries = held(&table);
        assert_eq!(table.sweep_at(millis(99_000), ..), entries);
        assert_eq!(held(&table), 0);
        assert!(ask());
        assert_eq!(held(&table), entries);
    }

    #[test]
    fn idle_partitions_are_cleaned_up_and_the_one_in_use_is_not() {
        let table = table(ConcurrencyRules::new(1), Seed::new());
        let _used = Lease::try_acquire_at(table.key(&3u32), millis(0), 1).unwrap();
        for key in [1u32, 2] {
            drop(table.key(&key).try_acquire_at(millis(0), 1).unwrap());
        }
        assert_eq!(table.sweep_at(millis(60_000), ..), 2);
        assert_eq!(held(&table), 1);
        assert!(table.key(&3u32).try_acquire_at(millis(60_000), 1).is_err());
    }

    #[test]
    fn what_a_chain_holds_for_a_key_is_cleaned_up_once_all_of_it_is_idle() {
        let tables = [per_second(1), per_minute(1)];
        let ask = |now| {
            let limits = tables.each_ref().map(|table| *table.key("a"));
            AllOf::new(limits).try_acquire_at(now, 1).is_ok()
        };
        let swept = |now| tables.each_ref().map(|table| table.sweep_at(now, ..));
        assert!(ask(millis(0)));
        assert_eq!(
            swept(millis(60_999)),
            [1, 0],
            "the minute is in use, and its slot is kept for a second more"
        );
        assert_eq!(swept(millis(61_000)), [0, 1]);
        assert!(ask(millis(61_000)), "created again");
        assert_eq!(tables.each_ref().map(held), [1, 1]);
    }

    /// For a key that is computed from another key: here, the caller that names it translates it.
    #[test]
    fn a_translated_key_is_the_key_it_is_translated_to() {
        /// Hashed as its text.
        struct Number<'a>(i32, &'a Cell<u32>);
        impl Hash for Number<'_> {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.1.set(self.1.get() + 1);
                self.0.to_string().hash(state);
            }
        }
        let table = table(ConcurrencyRules::new(1), Seed::new());
        let translated = Cell::new(0);
        let lease =
            Lease::try_acquire_at(table.key(&Number(1, &translated)), millis(0), 1).unwrap();
        assert_eq!(translated.get(), 1);
        let denied = table.key("1").try_acquire_at(millis(0), 1).unwrap_err();
        assert_eq!(
            denied,
            Denied::Exhausted {
                now: millis(0),
                permits: 1
            }
        );
        drop(lease);
        assert!(table.key("1").try_acquire_at(millis(0), 1).is_ok());
        assert_eq!(translated.get(), 1, "not translated again for the release");
        assert_eq!(held(&table), 1);
    }

    #[test]
    fn queries_of_a_translated_key_answer_as_those_of_the_key() {
        let table = table(ConcurrencyRules::new(5), Seed::new());
        let _lease = Lease::try_acquire_at(table.key("1"), millis(0), 2).unwrap();
        let outer = *table.key(&1.to_string());
        assert_eq!(
            (
                outer.available_at(millis(0)),
                outer.capacity(),
                held(&table)
            ),
            (3, 5, 1)
        );
        assert_eq!(outer.id(), table.key("1").id());
    }

    #[test]
    fn partitions_of_two_kinds_of_limit_are_in_a_table_each() {
        let plans = [
            table(bucket(Rate::per_second(1), 1), Seed::new()),
            table(bucket(Rate::per_minute(1), 3), Seed::new()),
        ];
        let of = |plan: usize, key| *plans[plan].key(key);
        assert!(
            of(0, "a").try_acquire_at(millis(0), 1).is_ok()
                && of(1, "b").try_acquire_at(millis(0), 3).is_ok()
        );
        let wait = |limiter: &dyn Limiter| {
            let denied = limiter.take_at(millis(0), 1).unwrap_err();
            denied.retry(limiter).wait_from(millis(0)).unwrap()
        };
        assert_eq!(wait(&of(0, "a")), Duration::from_secs(1));
        assert_eq!(wait(&of(1, "b")), Duration::from_mins(1));
    }
}

//! Compositions: two passes over words that other threads change in between, and the rollback.
#![cfg(portcullis_loom)]

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::clock::Interval;
use portcullis_core::composition::{AllLease, Limits};
use portcullis_core::state::Word;
use portcullis_core::{
    AllOf, Clock, Clocked, Concurrency, Counted, FixedWindow, Limiter, Rate, SlidingWindow,
    Timestamp, TokenBucket,
};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    opposite_orders_of_concurrency_limits_never_share_a_permit_nor_leak_one,
    opposite_orders_of_buckets_never_share_a_permit_nor_lose_one,
    opposite_orders_of_windows_never_share_a_permit_nor_lose_one,
    a_release_makes_room_in_both_limits,
    either_a_direct_take_or_a_concurrent_composition_is_granted,
    a_rollback_during_a_take_from_the_same_bucket_never_returns_too_much,
    a_refund_during_a_composition_returns_what_was_taken,
    a_limit_that_is_named_twice_is_taken_from_once_for_both,
    a_bucket_that_is_named_twice_is_taken_from_once_for_both,
    paths_to_one_limit_take_all_or_none_and_leak_none,
    paths_to_one_bucket_take_all_or_none_and_lose_none,
    compositions_in_compositions_take_all_or_none_and_lose_none,
    a_rollback_of_a_started_window_keeps_a_take_in_it_or_in_its_own_window,
    within_an_interval_a_composition_and_a_direct_take_share_no_permit_and_leak_none,
    within_an_interval_a_limit_that_another_thread_changes_is_left_to_the_time,
);

/// A clock at 5.7 s, which tells only that the time is between 5.2 s and 6.1 s.
struct BetweenTicks;

/// How often the precise time of any such clock was read.
static READINGS: AtomicUsize = AtomicUsize::new(0);

impl Clock for BetweenTicks {
    fn now(&self) -> Timestamp {
        READINGS.fetch_add(1, Relaxed);
        Timestamp::from_millis(5_700)
    }

    fn interval(&self) -> Option<Interval> {
        Interval::new(Timestamp::from_millis(5_200), Timestamp::from_millis(6_100))
    }
}

/// Takes 1 permit of each limit permanently, within the interval if possible. Returns the number of
/// permits taken of each.
fn take_all_within<T: Limits>(limits: T) -> u64 {
    turn();
    let taken = Clocked::new(AllOf::new(limits), BetweenTicks).take(1);
    u64::from(taken.is_ok())
}

/// A bucket of 3 with 1 permit left at 5 s.
fn bucket_in_use<W: Word>() -> TokenBucket<W> {
    let bucket = bucket(3);
    assert_eq!(take(&bucket, at(5), 2), 2);
    bucket
}

fn within_an_interval_a_composition_and_a_direct_take_share_no_permit_and_leak_none<W: Word>() {
    let before = READINGS.load(Relaxed);
    explore(|| {
        let limits = Arc::new((concurrency::<W>(1), bucket_in_use::<W>()));
        let direct = spawn(&limits, |(_, bucket)| take(bucket, at(5), 1));
        let (limit, bucket) = &*limits;
        let all = take_all_within((limit, bucket));
        assert_eq!(all + join(direct), 1);
        assert_eq!(u64::from(limit.in_use()), all, "no permit leaks");
        has(bucket, 6, 1);
    });
    assert!(
        READINGS.load(Relaxed) > before,
        "the other take came in between"
    );
}

/// After the other take, the second bucket has a permit at the end of the interval, and none at its
/// beginning. So the composition gives up the take from the first bucket, and reads the time.
fn within_an_interval_a_limit_that_another_thread_changes_is_left_to_the_time<W: Word>() {
    explore(|| {
        let limits = Arc::new((bucket_in_use::<W>(), bucket_in_use::<W>()));
        let direct = spawn(&limits, |(_, bucket)| take(bucket, at(5), 1));
        let (one, bucket) = &*limits;
        let all = take_all_within((one, bucket));
        assert_eq!(all + join(direct), 1);
        // No other thread takes from this bucket, so the rollback is exact.
        has(one, 6, 2 - all);
        has(bucket, 6, 1);
    });
}

/// Takes 1 permit of each limit at 5 s permanently. Returns the number of permits taken of each.
fn take_all<T: Limits>(limits: T) -> u64 {
    turn();
    AllOf::new(limits)
        .into_lease_at(at(5), 1)
        .map_or(0, AllLease::forget)
        .into()
}

fn concurrency<W: Word>(limit: u32) -> Concurrency<W> {
    Concurrency::builder(limit).build_on().unwrap()
}

/// A bucket with a rate of 1 permit per second.
fn bucket<W: Word>(burst: u64) -> TokenBucket<W> {
    TokenBucket::builder(Rate::per_second(1), burst)
        .build_on()
        .unwrap()
}

/// Checks that exactly `permits` permits are available at `seconds`.
fn has<L: Limiter>(limiter: &L, seconds: u64, permits: u64) {
    assert_eq!(limiter.available_at(at(seconds)), permits, "at {seconds} s");
    let n = u32::try_from(permits).unwrap();
    assert_eq!(take(limiter, at(seconds), n + 1), 0);
    if n > 0 {
        assert_eq!(take(limiter, at(seconds), n), permits);
    }
}

fn opposite_orders_of_concurrency_limits_never_share_a_permit_nor_leak_one<W: Word>() {
    explore(|| {
        let limits = Arc::new((concurrency::<W>(1), concurrency::<W>(1)));
        let a = spawn(&limits, |(a, b)| take_all((a, b)));
        let (one, other) = &*limits;
        let granted = take_all((other, one)) + join(a);
        assert!(granted <= 1, "both at once");
        assert_eq!(
            (u64::from(one.in_use()), u64::from(other.in_use())),
            (granted, granted)
        );
        if granted == 1 {
            one.release(1);
            other.release(1);
        }
        assert_eq!(take_all([one, other]), 1);
    });
}

fn opposite_orders_of_buckets_never_share_a_permit_nor_lose_one<W: Word>() {
    explore(|| {
        let limits = Arc::new((bucket::<W>(1), bucket::<W>(1)));
        let a = spawn(&limits, |(a, b)| take_all((a, b)));
        let (one, other) = &*limits;
        let granted = take_all([other, one]) + join(a);
        assert!(granted <= 1, "both at once");
        // An empty bucket grants nothing to other threads, so each rollback is exact.
        has(one, 5, 1 - granted);
        has(other, 5, 1 - granted);
        assert_eq!((one.available_at(at(6)), other.available_at(at(6))), (1, 1));
    });
}

/// If a limit of the outer composition denies, the inner composition returns what it took, with a
/// receipt for each of its parts.
fn compositions_in_compositions_take_all_or_none_and_lose_none<W: Word>() {
    explore(|| {
        let limits = Arc::new((bucket::<W>(1), bucket::<W>(1), bucket::<W>(2)));
        let a = spawn(&limits, |(a, b, c)| take_all((AllOf::new((c, a)), b)));
        let (one, other, both) = &*limits;
        let granted = take_all((AllOf::new((both, other)), one)) + join(a);
        assert!(granted <= 1, "both at once");
        has(one, 5, 1 - granted);
        has(other, 5, 1 - granted);
        assert!(
            both.available_at(at(5)) <= 2 - granted,
            "never more than before"
        );
        assert_eq!(both.available_at(at(7)), 2, "and not lost permanently");
    });
}

fn opposite_orders_of_windows_never_share_a_permit_nor_lose_one<W: Word>() {
    explore(|| {
        let fixed = FixedWindow::builder(1, Duration::from_secs(1))
            .build_on::<W>()
            .unwrap();
        let sliding = SlidingWindow::<2>::builder(1, Duration::from_secs(2), 2)
            .build_on::<W>()
            .unwrap();
        let limits = Arc::new((fixed, sliding));
        let a = spawn(&limits, |(fixed, sliding)| take_all((fixed, sliding)));
        let (fixed, sliding) = &*limits;
        let granted = take_all((sliding, fixed)) + join(a);
        assert!(granted <= 1, "both at once");
        assert_eq!(sliding.available_at(at(6)), 1 - granted);
        has(fixed, 5, 1 - granted);
        has(sliding, 5, 1 - granted);
        assert_eq!(
            (fixed.available_at(at(6)), sliding.available_at(at(7))),
            (1, 1)
        );
    });
}

fn a_release_makes_room_in_both_limits<W: Word>() {
    explore(|| {
        let limits = Arc::new((concurrency::<W>(1), concurrency::<W>(1)));
        let visit = |(a, b): &(Concurrency<W>, Concurrency<W>)| {
            turn();
            let lease = AllOf::new((a, b)).into_lease_at(at(5), 1);
            if lease.is_ok() {
                assert_eq!((a.available(), b.available()), (0, 0), "held");
            }
        };
        let a = spawn(&limits, visit);
        visit(&limits);
        join(a);
        assert_eq!((limits.0.in_use(), limits.1.in_use()), (0, 0));
    });
}

fn either_a_direct_take_or_a_concurrent_composition_is_granted<W: Word>() {
    explore(|| {
        let limits = Arc::new((bucket::<W>(1), concurrency::<W>(1)));
        let direct = spawn(&limits, |(_, limit)| take(limit, at(5), 1));
        let (bucket, limit) = &*limits;
        let all = take_all((bucket, limit));
        assert_eq!(all + join(direct), 1);
        assert_eq!(
            (limit.in_use(), bucket.available_at(at(5))),
            (1, 1 - all),
            "no permit leaks"
        );
    });
}

fn a_rollback_during_a_take_from_the_same_bucket_never_returns_too_much<W: Word>() {
    explore(|| {
        let limits = Arc::new((bucket::<W>(2), concurrency::<W>(1)));
        let blocks = spawn(&limits, |(_, limit)| take(limit, at(5), 1));
        let takes = spawn(&limits, |(bucket, _)| take(bucket, at(5), 1));
        let (bucket, limit) = &*limits;
        let all = take_all((bucket, limit));
        assert_eq!((all + join(blocks), join(takes)), (1, 1));
        // Permits that could not be refunded because of the other thread's take are replenished by
        // time.
        let left = bucket.available_at(at(5));
        assert!(left + all <= 1, "{left} left of 2, with 1 and {all} taken");
        has(bucket, 5, left);
        has(bucket, 7, 2);
    });
}

fn a_refund_during_a_composition_returns_what_was_taken<W: Word>() {
    explore(|| {
        let limits = Arc::new((bucket::<W>(2), concurrency::<W>(1)));
        let noted = limits.0.take_at(at(5), 1).unwrap();
        let back = spawn(&limits, move |(bucket, _)| {
            u64::from(bucket.refund_at(at(5), 1, noted).permits)
        });
        let (bucket, limit) = &*limits;
        let all = take_all((bucket, limit));
        assert_eq!(
            (all, limit.in_use()),
            (1, 1),
            "one permit is available with or without the refund"
        );
        has(bucket, 5, join(back));
        has(bucket, 7, 2);
    });
}

fn a_limit_that_is_named_twice_is_taken_from_once_for_both<W: Word>() {
    explore(|| {
        let limit = Arc::new(concurrency::<W>(3));
        let a = spawn(&limit, |limit| take_all((limit, limit)));
        let granted = take_all([&*limit, &*limit]) + join(a);
        assert_eq!(
            (granted, limit.in_use()),
            (1, 2),
            "one composition is granted, and no part of the other"
        );
        limit.release(2);
        assert_eq!(take_all((&*limit,)), 1);
    });
}

fn a_bucket_that_is_named_twice_is_taken_from_once_for_both<W: Word>() {
    explore(|| {
        let limits = Arc::new((bucket::<W>(3), concurrency::<W>(5)));
        let a = spawn(&limits, |(bucket, limit)| take_all((bucket, limit, bucket)));
        let (bucket, limit) = &*limits;
        let granted = take_all((limit, bucket, bucket)) + join(a);
        assert_eq!((granted, limit.in_use()), (1, 1));
        has(bucket, 5, 1);
        has(bucket, 8, 3);
    });
}

fn paths_to_one_limit_take_all_or_none_and_leak_none<W: Word>() {
    explore(|| {
        let limits = Arc::new(Counted::new(concurrency::<W>(3)));
        let a = spawn(&limits, |counted| take_all((counted.limiter(), counted)));
        let counted = &*limits;
        let granted = take_all((counted, counted.limiter())) + join(a);
        assert!(granted <= 1, "each takes two of three permits");
        let in_use = u64::from(counted.limiter().in_use());
        assert_eq!((in_use, counted.counts().held), (2 * granted, granted));
        if granted == 1 {
            counted.limiter().release(1);
            counted.release(1);
        }
        assert_eq!(take_all((counted, counted.limiter())), 1);
    });
}

fn paths_to_one_bucket_take_all_or_none_and_lose_none<W: Word>() {
    explore(|| {
        let limits = Arc::new(Counted::new(bucket::<W>(2)));
        let a = spawn(&limits, |counted| take(counted.limiter(), at(5), 1));
        let counted = &*limits;
        let all = take_all((counted, counted.limiter()));
        let alone = join(a);
        assert!(
            all + alone <= 1,
            "the composition takes two of two permits, the other take one"
        );
        assert_eq!(counted.counts().held, all);
        // Permits whose refund came after the other thread's take are replenished by time.
        let left = counted.limiter().available_at(at(5));
        assert!(
            left + 2 * all + alone <= 2,
            "{left} left of 2, with {alone} and {all} taken"
        );
        has(counted.limiter(), 5, left);
        has(counted.limiter(), 7, 2);
    });
}

fn a_rollback_of_a_started_window_keeps_a_take_in_it_or_in_its_own_window<W: Word>() {
    explore(|| {
        let settings = FixedWindow::builder(2, Duration::from_secs(1)).started_by_first_request();
        let window = settings
            .tick(Duration::from_millis(1))
            .build_on::<W>()
            .unwrap();
        let limits = Arc::new((window, concurrency::<W>(1)));
        let blocks = spawn(&limits, |(_, limit)| take(limit, at(5), 1));
        // The take is in the window of the composition if that has begun, and otherwise in its own.
        let later = Timestamp::from_millis(5_500);
        let takes = spawn(&limits, move |(window, _)| take(window, later, 1));
        let (window, limit) = &*limits;
        let all = take_all((window, limit));
        assert_eq!((all + join(blocks), join(takes)), (1, 1));
        assert_eq!(
            window.available_at(later),
            1 - all,
            "all permits are returned, and no more"
        );
        let left = window.available_at(at(6));
        assert!(
            left == 2 || left == 1 - all,
            "{left} left in a window that ends at 6 s or 6.5 s"
        );
        has(window, 6, left);
        has(window, 8, 2);
    });
}

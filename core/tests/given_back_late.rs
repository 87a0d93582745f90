//! Late and out-of-turn refunds. A receipt is worth nothing once the state word may have wrapped,
//! and a rollback leaves a limiter as if nothing had been taken.

#[macro_use]
#[path = "support/limiters.rs"]
mod limiters;

use core::time::Duration;

use portcullis_core::state::{Carry, ChangeError, KeyedWord, Word};
use portcullis_core::{
    AdjustableBucket, AdjustableWindow, AllOf, Concurrency, Limiter, Rate, Timestamp,
};

const SECOND: Duration = Duration::from_secs(1);

const fn at(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

fn plus(now: Timestamp, time: Duration) -> Timestamp {
    now.saturating_add(time)
}

/// Takes, one by one, all permits that are available at `now`.
fn drain<L: Limiter + ?Sized>(limit: &L, now: Timestamp) -> u64 {
    let mut taken = 0;
    while taken < 100_000 && limit.take_at(now, 1).is_ok() {
        taken += 1;
    }
    taken
}

/// Keeps a receipt for `age`, refunds it to an exhausted limit, and returns what the limit then
/// grants.
fn granted_by_a_receipt_of_age<L: Limiter>(limit: &L, n: u32, age: Duration) -> u64 {
    let now = at(5_000);
    let receipt = limit.take_at(now, n).expect("there is room");
    let later = plus(now, age);
    // Takes until the word would wrap, so that it is as the take left it.
    while limit.available_at(later) > limit.capacity() - u64::from(n) {
        limit.take_at(later, 1).expect("it is available");
    }
    let before = limit.available_at(later);
    limit.refund_at(later, n, receipt);
    limit.available_at(later).saturating_sub(before)
}

fn ages(horizon: Duration) -> impl Iterator<Item = Duration> {
    let beyond = [0, 1, 1_000, 1_000_000, 100_000_000, 1_000_000_000].map(Duration::from_nanos);
    (8..=24).flat_map(move |eighths| beyond.map(|beyond| horizon * eighths / 8 + beyond))
}

#[test]
fn a_receipt_that_is_a_horizon_old_is_worth_nothing() {
    fn check<L: Limiter>(name: &str, horizon: Duration, new: impl Fn() -> L) {
        for age in ages(horizon) {
            let back = granted_by_a_receipt_of_age(&new(), 3, age);
            assert_eq!(back, 0, "{name}: {age:?} of {horizon:?}");
        }
    }
    macro_rules! check_all {
        ($($name:ident: $type:ty {
            on: $_on:tt,
            new: $_new:tt,
            on_board: $_board:tt,
            back: $_back:ident,
            denial: $_denial:ident,
            refunds: [$(|$limiter:ident, $time:ident| $age:expr)?],
            $($_rest:tt)*
        })*) => {
            fn on<W: Word>() -> u32 {
                let mut checked = 0;
                $($(
                    if let Ok($limiter) = limiters::new::$name::<W>(10, SECOND) {
                        let $time = SECOND;
                        let new = || limiters::new::$name::<W>(10, SECOND).unwrap();
                        check(stringify!($name), $age, new);
                        checked += 1;
                    }
                )?)*
                checked
            }
        };
    }
    for_each_limiter!(check_all);
    assert!(on::<u32>() >= 6);
    assert!(on::<KeyedWord>() >= 4);
}

#[test]
fn an_awkward_rate_accepts_no_receipt_older_than_its_horizon() {
    for (rate, burst) in [
        (Rate::per_minute(1_000_003), 10_000),
        (Rate::per_minute(999_983), 9_000),
    ] {
        let bucket = AdjustableBucket::builder(rate, burst).build().unwrap();
        let horizon = bucket.timing().horizon;
        for age in ages(horizon) {
            let bucket = AdjustableBucket::builder(rate, burst).build().unwrap();
            let receipt = bucket.take_at(at(0), burst as u32).unwrap();
            let now = plus(at(0), age);
            let first = drain(&bucket, now);
            bucket.refund_at(now, burst as u32, receipt);
            let second = drain(&bucket, now);
            assert!(
                first + second <= burst,
                "{first} and {second} at once after {age:?}"
            );
        }
    }
}

#[test]
fn a_bucket_long_paused_or_unlimited_is_not_filled_by_a_refund_or_a_rollback() {
    for rate in [Rate::ZERO, Rate::UNLIMITED] {
        for eighths in 1..=24u64 {
            let build = AdjustableBucket::builder(rate, 100).tick(Duration::from_millis(1));
            let bucket = build.build_on::<u32>();
            let Ok(bucket) = bucket else {
                panic!("{rate:?} does not fit")
            };
            let now = at((1 << 32) / 8 * eighths + 17);
            match bucket.adjust_at(now, Rate::per_second(1), 100, Carry::Keep) {
                // A change of an idle bucket may have to be tried again.
                Err(ChangeError::Busy) => continue,
                outcome => outcome.unwrap(),
            }
            let (mut receipt, mut held) = (bucket.take_at(now, 50).unwrap(), 50);
            held += drain(&bucket, now);
            for late in [0, 500, 1_000, 1_000] {
                let now = at((1 << 32) / 8 * eighths + 17 + late);
                // As a denied composition does.
                if let Ok(receipt) = bucket.take_at(now, 1) {
                    held += 1 - u64::from(bucket.refund_at(now, 1, receipt).permits);
                }
                held += drain(&bucket, now);
                let refund = bucket.refund_at(now, 1, receipt);
                receipt = refund.rest;
                held -= u64::from(refund.permits);
                held += drain(&bucket, now);
            }
            assert!(
                held <= 101,
                "{held} of 100 after {eighths} eighths of a wrap"
            );
        }
    }
}

#[test]
fn a_window_accepts_no_receipt_from_as_many_changes_ago_as_the_word_distinguishes() {
    fn check<W: Word>() {
        let window: AdjustableWindow<W> = AdjustableWindow::builder(10, 3_600 * SECOND)
            .staleness(SECOND)
            .build_on()
            .unwrap();
        let mut receipt = window.take_at(at(0), 10).unwrap();
        let mut now = 0;
        for _ in 0..5_000 {
            match window.adjust_at(at(now), 10, 3_600 * SECOND, Carry::Additive) {
                Ok(()) => {
                    let refund = window.refund_at(at(now), 10, receipt);
                    receipt = refund.rest;
                    assert_eq!(refund.permits, 0, "after {now} ms");
                }
                Err(ChangeError::Busy) => now += 500,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(window.available_at(at(now)), 0);
    }
    check::<u32>();
    check::<u64>();
}

#[test]
fn many_out_of_turn_refunds_exceed_no_bound() {
    fn check<W: Word>(most: u64) {
        for refunds in 1..=most {
            let bucket = AdjustableBucket::builder(Rate::per_second(1_000), 10_000)
                .tick(Duration::from_millis(1));
            let bucket = bucket.build_on::<W>().unwrap();
            let take = |n| bucket.take_at(at(0), n).unwrap();
            let (first, second) = (take(2_500), take(2_500));
            assert_eq!(
                bucket.refund_at(at(0), 2_500, first).permits,
                2_500,
                "out of turn"
            );
            // Each out-of-turn refund makes older receipts worthless.
            for _ in 1..refunds {
                let (older, _newer) = (take(1), take(1));
                bucket.refund_at(at(0), 1, older);
            }
            // The bucket is full, so the second take has been replenished.
            let full = at(2_500 + 2 * refunds);
            let held = drain(&bucket, full);
            bucket.refund_at(full, 2_500, second);
            let more = drain(&bucket, full);
            assert!(
                held + more <= 10_000,
                "{held} and {more} at once after {refunds} refunds"
            );
        }
    }
    check::<u32>(40);
    check::<u64>(1_100);
}

#[test]
fn settings_can_change_any_number_of_times_and_takes_decide_by_them() {
    fn check<W: Word>() {
        let bucket = AdjustableBucket::builder(Rate::per_second(1), 10_000).staleness(SECOND);
        let bucket = bucket.build_on::<W>().unwrap();
        for burst in 1..5_000 {
            bucket
                .adjust_at(at(0), Rate::per_second(1), burst, Carry::Reset)
                .unwrap();
            assert_eq!(bucket.available_at(at(0)), burst);
            assert!(bucket.try_acquire_at(at(0), burst as u32).is_ok());
            assert!(bucket.try_acquire_at(at(0), 1).is_err());
        }
        // Fast again, once no call can have been paused since before the slow rate.
        for later in 1..100 {
            assert_eq!(drain(&bucket, at(later * 1_000)), 1);
        }
    }
    check::<u32>();
    check::<u64>();
}

#[test]
fn a_late_change_settles_at_the_newest_grant() {
    // The old settings allow a much larger staleness than the new ones.
    let bucket =
        AdjustableBucket::builder(Rate::per_second(1), 5_000).tick(Duration::from_micros(1));
    let bucket = bucket.initial(0).build().unwrap();
    assert!(
        bucket.take_at(at(100_000), 100).is_ok(),
        "a hundred permits came in"
    );
    bucket
        .adjust_at(at(92_000), Rate::per_second(1_000_000), 5_000, Carry::Keep)
        .unwrap();
    assert_eq!(bucket.available_at(at(100_000)), 0);

    let paused = AdjustableBucket::builder(Rate::ZERO, 100)
        .initial(50)
        .tick(Duration::from_millis(1));
    let paused = paused.build_on::<u32>().unwrap();
    assert!(paused.take_at(at(5_000), 50).is_ok());
    match paused.adjust_at(at(4_000), Rate::per_second(100), 100, Carry::Keep) {
        Ok(()) | Err(ChangeError::Busy) => {}
        Err(error) => panic!("{error}"),
    }
    assert_eq!(paused.available_at(at(5_000)), 0, "nothing came in by then");
}

#[test]
fn a_reservation_past_its_due_time_is_worth_nothing() {
    let bucket = AdjustableBucket::builder(Rate::per_second(10), 2)
        .debt(9)
        .build()
        .unwrap();
    let _taken = bucket.try_acquire_at(at(0), 2).unwrap();
    let reserved = bucket.reserve_at(at(0), 2, SECOND).unwrap();
    assert_eq!(reserved.due(), at(200));
    // Due at 200 ms, and cancelled at 300 ms.
    assert_eq!(reserved.cancel_at(at(300)), 0);
    let granted = 2 + 2 + drain(&bucket, at(300));
    assert!(granted <= 2 + 3, "{granted} in 0.3 s");

    let reserved = bucket.reserve_at(at(300), 2, SECOND).unwrap();
    let due = reserved.due();
    assert_eq!(reserved.cancel_at(due), 2, "it may not be used yet");
}

#[test]
fn a_denied_composition_leaves_the_worth_of_an_earlier_reservation_unchanged() {
    let gate = Concurrency::new(1);
    let _held = gate.try_acquire(1).unwrap();
    let bucket = AdjustableBucket::builder(Rate::per_second(10), 5)
        .debt(9)
        .build()
        .unwrap();
    let _taken = bucket.try_acquire_at(at(0), 5).unwrap();
    let reserved = bucket.reserve_at(at(0), 5, SECOND).unwrap();
    assert!(
        AllOf::new((&bucket, &gate))
            .try_acquire_at(at(0), 1)
            .is_err()
    );
    assert_eq!(reserved.cancel_at(at(0)), 5);

    let taken = AdjustableBucket::builder(Rate::per_second(10), 5)
        .debt(9)
        .build()
        .unwrap();
    let mut lease = taken.try_acquire_at(at(0), 3).unwrap();
    let beyond = taken.reserve_at(at(0), 5, SECOND).unwrap();
    assert_eq!(beyond.cancel_at(at(0)), 5);
    assert_eq!(
        lease.refund_at(at(0), 3),
        Ok(3),
        "as if nothing had been reserved"
    );
}

#[test]
fn a_rolled_back_take_that_ends_a_debt_leaves_the_worth_of_an_earlier_reservation_unchanged() {
    fn check<W: Word>() {
        let bucket = AdjustableBucket::builder(Rate::per_second(10), 8).debt(20);
        let bucket = bucket.build_on::<W>().unwrap();
        let _taken = bucket.try_acquire_at(at(0), 8).unwrap();
        bucket.force_at(at(0), 2).unwrap();
        let reserved = bucket.reserve_at(at(700), 3, SECOND).unwrap();
        assert_eq!(reserved.due(), at(700));
        for n in [1, 2, 1] {
            // As a composition does that is denied in its take; more often than the word
            // distinguishes eras.
            for _ in 0..9_000 {
                let receipt = bucket.take_at(at(700), n).unwrap();
                assert_eq!(bucket.refund_at(at(700), n, receipt).permits, n);
            }
        }
        assert_eq!(bucket.available_at(at(700)), 2);
        assert_eq!(reserved.cancel_at(at(700)), 3);
        assert_eq!(bucket.available_at(at(700)), 5);
    }
    check::<u32>();
    check::<u64>();
}

#[test]
fn a_take_that_ends_a_debt_and_is_refunded_in_part_is_worth_the_rest() {
    let bucket = AdjustableBucket::builder(Rate::per_second(10), 8)
        .debt(20)
        .build()
        .unwrap();
    bucket.force_at(at(0), 10).unwrap();
    let first = bucket.take_at(at(1_000), 3).unwrap();
    let second = bucket.take_at(at(1_000), 2).unwrap();
    assert_eq!(
        bucket.refund_at(at(1_000), 2, second).permits,
        2,
        "it is not the take that ended the debt"
    );
    let first = bucket.refund_at(at(1_000), 1, first);
    assert_eq!(first.permits, 1);
    let third = bucket.take_at(at(1_000), 4).unwrap();
    assert_eq!(
        bucket.refund_at(at(1_000), 2, first.rest).permits,
        2,
        "out of turn"
    );
    assert_eq!(
        bucket.refund_at(at(1_000), 4, third).permits,
        0,
        "from the previous era"
    );
    assert_eq!(drain(&bucket, at(1_000)), 4);
}

#[test]
fn changing_a_window_often_gains_nothing() {
    let carries = [Carry::Keep, Carry::Additive, Carry::Proportional];
    for spent in 0..10 {
        for plan in 0..9 {
            let window = AdjustableWindow::builder(10, SECOND)
                .max_limit(10)
                .build()
                .unwrap();
            let mut granted = spent;
            for _ in 0..spent {
                window.take_at(at(0), 1).unwrap();
            }
            for _ in 0..3 {
                window
                    .adjust_at(at(0), 1, SECOND, carries[plan % 3])
                    .unwrap();
                window
                    .adjust_at(at(0), 10, SECOND, carries[plan / 3])
                    .unwrap();
            }
            granted += drain(&window, at(0));
            assert!(granted <= 10, "{granted} of 10 with {plan}");
        }
    }
}

#[test]
fn changing_a_bucket_often_gains_nothing() {
    fn check<W: Word>(tally: &mut u64) {
        let carries = [Carry::Keep, Carry::Additive, Carry::Proportional];
        let settings = |set| {
            [
                (Rate::per_second(10), 10),
                (Rate::per_second(7), 1),
                (Rate::per_minute(7), 4),
            ][set]
        };
        for spent in 0..=13 {
            for plan in 0..27 {
                for (one, other) in [(1, 0), (2, 0), (1, 2)] {
                    let bucket = AdjustableBucket::builder(Rate::per_second(10), 10).debt(5);
                    let bucket = bucket.build_on::<W>().unwrap();
                    bucket.force_at(at(0), spent).unwrap();
                    let mut granted = u64::from(spent);
                    for step in 0..4 {
                        for (set, carry) in [(one, plan % 3), (other, plan / 3 % 3)] {
                            let (rate, burst) = settings(set);
                            match bucket.adjust_at(at(0), rate, burst, carries[carry]) {
                                Ok(()) | Err(ChangeError::Owes) => {}
                                Err(error) => panic!("{error}"),
                            }
                        }
                        // Some permits are taken in between.
                        if plan / 9 == step && bucket.take_at(at(0), 1).is_ok() {
                            granted += 1;
                        }
                    }
                    granted += drain(&bucket, at(0));
                    assert!(
                        granted <= 10.max(spent.into()),
                        "{granted} of 10 with {plan}, {spent} earlier"
                    );
                    *tally += 1;
                }
            }
        }
    }
    let mut tally = 0;
    check::<u32>(&mut tally);
    check::<u64>(&mut tally);
    assert_eq!(tally, 2 * 14 * 27 * 3);
}

#[test]
fn what_a_change_forgets_is_remembered_until_as_much_has_come_in() {
    for (later, left) in [(0, 1), (100, 2), (1_000, 10), (500, 6), (900, 10)] {
        let bucket = AdjustableBucket::builder(Rate::per_second(10), 10)
            .build()
            .unwrap();
        bucket.take_at(at(0), 9).unwrap();
        bucket
            .adjust_at(at(0), Rate::per_second(10), 1, Carry::Keep)
            .unwrap();
        bucket
            .adjust_at(at(later), Rate::per_second(10), 10, Carry::Additive)
            .unwrap();
        assert_eq!(bucket.available_at(at(later)), left, "after {later} ms");
    }
}

#[test]
fn a_tick_is_fine_enough_to_reserve_the_whole_debt() {
    let rate = Rate::new(10, Duration::from_nanos(100));
    let bucket = AdjustableBucket::builder(rate, 10)
        .debt(20)
        .build()
        .unwrap();
    let _taken = bucket.try_acquire_at(at(0), 10).unwrap();
    let reserved = (0..30)
        .filter(|_| bucket.reserve_at(at(0), 1, SECOND).is_ok())
        .count();
    assert!(reserved >= 18, "{reserved} of 20");
}

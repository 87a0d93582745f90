//! Refunds. A bucket accepts a refund by one exchange from the word that the take left, a fixed
//! window by one exchange of its count, and a sliding window first in the slot and then in the
//! state.
#![cfg(portcullis_loom)]

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc as Shared;

use loom::sync::Arc;
use portcullis_core::limiter::Receipt;
use portcullis_core::state::Word;
use portcullis_core::{FixedWindow, Limiter, Rate, SlidingWindow, Timestamp, TokenBucket};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    a_bucket_accepts_a_refund_during_a_take_exactly_or_not_at_all,
    a_bucket_accepts_two_refunds_in_reverse_order_or_only_the_last,
    a_replenished_bucket_accepts_no_refund_beyond_its_burst,
    refunded_permits_are_taken_once,
    a_fixed_window_accepts_a_refund_during_a_take,
    a_fixed_window_accepts_two_refunds_in_any_order,
    a_new_fixed_window_accepts_no_refund_of_the_previous_one,
    a_started_window_accepts_no_refund_of_the_previous_one,
    a_refunded_window_stays_open_for_a_concurrent_take_or_the_take_starts_its_own,
    a_started_window_with_two_refunds_belongs_to_no_take,
    a_sliding_window_accepts_a_refund_during_a_take,
    a_sliding_window_accepts_two_refunds_in_any_order,
    a_refund_during_the_roll_that_retags_its_slot_counts_once,
    a_refund_of_all_permits_during_a_roll_counts_once,
    two_refunds_during_a_roll_count_once_each,
    a_refund_within_the_window_during_a_roll_counts,
    a_stale_take_and_its_refund_during_a_roll_exceed_no_bound,
    refunded_permits_are_never_counted_as_expired_too,
);

/// Takes `n` permits at `seconds` and returns the receipt.
fn receipt<L: Limiter>(limiter: &L, seconds: u64, n: u32) -> Receipt {
    turn();
    limiter.take_at(at(seconds), n).unwrap()
}

/// Refunds `n` permits at `seconds`. Returns the number of permits that were returned.
fn give_back<L: Limiter>(limiter: &L, seconds: u64, n: u32, receipt: Receipt) -> u64 {
    turn();
    limiter.refund_at(at(seconds), n, receipt).permits.into()
}

/// Half-way through the window that began at 5 s.
const LATER: Timestamp = Timestamp::from_millis(5_500);

/// Checks that exactly `permits` permits are available at `seconds`.
fn has<L: Limiter>(limiter: &L, seconds: u64, permits: u64) {
    assert_eq!(limiter.available_at(at(seconds)), permits, "at {seconds} s");
    let n = u32::try_from(permits).unwrap();
    assert_eq!(take(limiter, at(seconds), n + 1), 0);
    if n > 0 {
        assert_eq!(take(limiter, at(seconds), n), permits);
    }
    assert_eq!(take(limiter, at(seconds), 1), 0);
}

// The token bucket.

/// A bucket with a rate of 1 permit per second.
fn bucket<W: Word>(burst: u64) -> Arc<TokenBucket<W>> {
    Arc::new(
        TokenBucket::builder(Rate::per_second(1), burst)
            .build_on()
            .unwrap(),
    )
}

fn a_bucket_accepts_a_refund_during_a_take_exactly_or_not_at_all<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(3);
        let noted = receipt(&*limit, 5, 1);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 1, noted));
        let taker = spawn(&limit, |limit| take(limit, at(5), 1));
        let taken = 1 + take(&*limit, at(5), 1) + join(taker);
        assert_eq!(taken, 3);
        let back = join(back);
        has(&*limit, 5, 3 - taken + back);
        has(&*limit, 8, 3);
    });
}

fn a_bucket_accepts_two_refunds_in_reverse_order_or_only_the_last<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(3);
        let first = receipt(&*limit, 5, 1);
        let last = receipt(&*limit, 5, 1);
        let a = spawn(&limit, move |limit| give_back(limit, 5, 1, first));
        let b = give_back(&*limit, 5, 1, last);
        assert_eq!(b, 1, "no take came after it");
        has(&*limit, 5, 1 + join(a) + b);
        has(&*limit, 8, 3);
    });
}

fn a_replenished_bucket_accepts_no_refund_beyond_its_burst<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        // The bucket is full again by time or by the refund, but not by both.
        let back = spawn(&limit, move |limit| give_back(limit, 7, 2, noted));
        assert_eq!(take(&*limit, at(7), 2), 2);
        join(back);
        has(&*limit, 7, 0);
        has(&*limit, 8, 1);
        has(&*limit, 10, 2);
    });
}

fn refunded_permits_are_taken_once<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 2, noted));
        let a = spawn(&limit, |limit| take(limit, at(5), 2));
        let taken = take(&*limit, at(5), 2) + join(a);
        assert_eq!(join(back), 2, "no permit was free before the refund");
        assert!(taken <= 2);
        has(&*limit, 5, 2 - taken);
        has(&*limit, 7, 2);
    });
}

// The fixed window.

fn fixed<W: Word>(limit: u64) -> Arc<FixedWindow<W>> {
    Arc::new(
        FixedWindow::builder(limit, Duration::from_secs(1))
            .build_on()
            .unwrap(),
    )
}

fn started<W: Word>(limit: u64) -> Arc<FixedWindow<W>> {
    let settings = FixedWindow::builder(limit, Duration::from_secs(1)).started_by_first_request();
    Arc::new(settings.tick(Duration::from_millis(1)).build_on().unwrap())
}

fn a_fixed_window_accepts_a_refund_during_a_take<W: Word>() {
    explore(|| {
        let limit = fixed::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 1, noted));
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let taken = take(&*limit, at(5), 1) + join(a);
        assert_eq!(join(back), 1);
        assert!(taken <= 1);
        has(&*limit, 5, 1 - taken);
        has(&*limit, 6, 2);
    });
}

fn a_fixed_window_accepts_two_refunds_in_any_order<W: Word>() {
    explore(|| {
        let limit = fixed::<W>(3);
        let (first, last) = (receipt(&*limit, 5, 1), receipt(&*limit, 5, 2));
        let a = spawn(&limit, move |limit| give_back(limit, 5, 1, first));
        let b = spawn(&limit, move |limit| give_back(limit, 5, 2, last));
        let taken = take(&*limit, at(5), 1);
        assert_eq!((join(a), join(b)), (1, 2));
        has(&*limit, 5, 3 - taken);
        has(&*limit, 6, 3);
    });
}

fn a_new_fixed_window_accepts_no_refund_of_the_previous_one<W: Word>() {
    explore(|| {
        let limit = fixed::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 6, 2, noted));
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        assert_eq!((take(&*limit, at(6), 1), join(a)), (1, 1));
        join(back);
        has(&*limit, 6, 0);
        has(&*limit, 7, 2);
    });
}

fn a_started_window_accepts_no_refund_of_the_previous_one<W: Word>() {
    explore(|| {
        let limit = started::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 6, 1, noted));
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        assert_eq!((take(&*limit, at(6), 1), join(a)), (1, 1));
        join(back);
        has(&*limit, 6, 0);
        has(&*limit, 7, 2);
    });
}

fn a_refunded_window_stays_open_for_a_concurrent_take_or_the_take_starts_its_own<W: Word>() {
    let stayed = Shared::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let seen = Shared::clone(&stayed);
    explore(move || {
        let limit = started::<W>(2);
        let noted = receipt(&*limit, 5, 1);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 1, noted));
        assert_eq!(
            take(&*limit, LATER, 1),
            1,
            "there is room with or without the refund"
        );
        assert_eq!(join(back), 1);
        // The window is 5 s to 6 s, or 5.5 s to 6.5 s, and the permit counts in one of the two.
        let stays = limit.available_at(at(6)) == 2;
        seen[usize::from(stays)].store(true, Relaxed);
        assert_eq!(limit.available_at(LATER), 1);
        if stays {
            has(&*limit, 6, 2);
        } else {
            has(&*limit, 6, 1);
        }
        has(&*limit, 8, 2);
    });
    assert!(
        stayed.iter().all(|seen| seen.load(Relaxed)),
        "both outcomes occur"
    );
}

fn a_started_window_with_two_refunds_belongs_to_no_take<W: Word>() {
    explore(|| {
        let limit = started::<W>(3);
        let (first, last) = (receipt(&*limit, 5, 1), receipt(&*limit, 5, 2));
        let a = spawn(&limit, move |limit| give_back(limit, 5, 1, first));
        let b = spawn(&limit, move |limit| give_back(limit, 5, 2, last));
        let taken = take(&*limit, LATER, 1);
        assert_eq!(
            (join(a), join(b)),
            (1, 2),
            "no refund goes to another window"
        );
        assert_eq!(limit.available_at(LATER), 3 - taken);
        let left = limit.available_at(at(6));
        assert!(left == 3 || left == 3 - taken, "{left}");
        has(&*limit, 8, 3);
    });
}

// The sliding window: two segments of a second each, so the window at second `s` is `s - 1` and
// `s`.

fn sliding<W: Word>(limit: u64) -> Arc<SlidingWindow<2, W>> {
    Arc::new(
        SlidingWindow::builder(limit, Duration::from_secs(2), 2)
            .build_on()
            .unwrap(),
    )
}

fn a_sliding_window_accepts_a_refund_during_a_take<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 1, noted));
        let taken = take(&*limit, at(5), 1);
        assert_eq!(join(back), 1);
        assert_eq!(
            limit.available_at(at(6)),
            1 - taken,
            "its segment is still in the window"
        );
        has(&*limit, 5, 1 - taken);
        has(&*limit, 7, 2);
    });
}

fn a_sliding_window_accepts_two_refunds_in_any_order<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(3);
        let (first, last) = (receipt(&*limit, 5, 1), receipt(&*limit, 5, 2));
        let a = spawn(&limit, move |limit| give_back(limit, 5, 1, first));
        let b = give_back(&*limit, 5, 2, last);
        assert_eq!((join(a), b), (1, 2));
        has(&*limit, 6, 3);
        has(&*limit, 8, 3);
    });
}

fn a_refund_during_the_roll_that_retags_its_slot_counts_once<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(3);
        let noted = receipt(&*limit, 5, 1);
        assert_eq!(take(&*limit, at(6), 1), 1);
        // The first grant at 7 s re-uses the slot of 5 s.
        let back = spawn(&limit, move |limit| give_back(limit, 7, 1, noted));
        assert_eq!(
            take(&*limit, at(7), 1),
            1,
            "there is room with or without the refund"
        );
        join(back);
        assert_eq!(
            limit.available_at(at(7)),
            1,
            "the permits of 6 s and 7 s count"
        );
        assert_eq!(take(&*limit, at(7), 2), 0);
        assert_eq!(limit.available_at(at(8)), 2, "the permit of 7 s counts");
        has(&*limit, 7, 1);
        has(&*limit, 9, 3);
    });
}

fn a_refund_of_all_permits_during_a_roll_counts_once<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 7, 2, noted));
        // The refund has left its slot and is not yet subtracted from the total, so this take may
        // be denied.
        let taken = take(&*limit, at(7), 2);
        join(back);
        assert_eq!(limit.available_at(at(8)), 2 - taken);
        has(&*limit, 7, 2 - taken);
        has(&*limit, 9, 2);
    });
}

fn two_refunds_during_a_roll_count_once_each<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(3);
        let (first, last) = (receipt(&*limit, 5, 1), receipt(&*limit, 5, 1));
        assert_eq!(take(&*limit, at(6), 1), 1);
        let a = spawn(&limit, move |limit| give_back(limit, 7, 1, first));
        let b = spawn(&limit, move |limit| give_back(limit, 7, 1, last));
        let taken = take(&*limit, at(7), 1);
        join(a);
        join(b);
        assert_eq!(limit.available_at(at(8)), 3 - taken);
        has(&*limit, 7, 2 - taken);
        has(&*limit, 9, 3);
    });
}

fn a_refund_within_the_window_during_a_roll_counts<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(3);
        assert_eq!(take(&*limit, at(5), 1), 1);
        let noted = receipt(&*limit, 6, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 7, 1, noted));
        assert_eq!(take(&*limit, at(7), 1), 1);
        assert_eq!(join(back), 1, "its segment is in the window");
        assert_eq!(limit.available_at(at(8)), 2);
        has(&*limit, 7, 1);
        has(&*limit, 9, 3);
    });
}

fn a_stale_take_and_its_refund_during_a_roll_exceed_no_bound<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(3);
        assert_eq!(take(&*limit, at(5), 1), 1);
        let undone = spawn(&limit, |limit| {
            turn();
            // The take counts at 5 s; or, as a stale one, in the epoch of 7 s; or in a slot that
            // was re-tagged in the meantime.
            limit
                .take_at(at(5), 1)
                .map_or(0, |noted| 1 - give_back(limit, 7, 1, noted))
        });
        let taken = take(&*limit, at(7), 2);
        let kept = join(undone);
        let left = limit.available_at(at(7));
        assert!(
            left + taken <= 3 && left + taken + kept >= 3,
            "{left} left, {taken} taken, {kept} kept"
        );
        assert!(limit.available_at(at(8)) + taken <= 3);
        has(&*limit, 7, left);
        has(&*limit, 9, 3);
    });
}

fn refunded_permits_are_never_counted_as_expired_too<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(2);
        let noted = receipt(&*limit, 5, 1);
        assert_eq!(take(&*limit, at(6), 1), 1);
        let back = spawn(&limit, move |limit| give_back(limit, 7, 1, noted));
        turn();
        assert!(
            limit.available_at(at(7)) <= 1,
            "the permit of 6 s is in the window"
        );
        assert_eq!(take(&*limit, at(7), 2), 0);
        join(back);
        has(&*limit, 7, 1);
        has(&*limit, 9, 2);
    });
}

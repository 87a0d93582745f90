//! Giving back: a bucket by one exchange from the word that the take left, a fixed window by one on
//! its count, a sliding window first in the slot and then in the state.
#![cfg(loom)]

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::Arc as Shared;

use loom::sync::Arc;
use portcullis_core::{
    FixedWindow, Limiter, Rate, Receipt, SlidingWindow, Timestamp, TokenBucket, Word,
};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    a_bucket_takes_back_beside_a_take_exactly_or_not_at_all,
    a_bucket_takes_back_two_takes_in_reverse_or_the_last_alone,
    a_bucket_that_has_refilled_takes_nothing_back_beyond_full,
    a_take_of_what_was_given_back_finds_it_there_once,
    a_fixed_window_takes_back_beside_a_take,
    a_fixed_window_takes_back_two_takes_in_any_order,
    a_new_fixed_window_gets_nothing_back_from_the_one_before,
    a_started_window_gets_nothing_back_from_the_one_before,
    a_started_window_stays_if_another_take_is_in_it_and_else_the_take_starts_its_own,
    a_started_window_that_two_give_back_is_nobodys,
    a_sliding_window_takes_back_beside_a_take,
    a_sliding_window_takes_back_two_takes_in_any_order,
    what_is_given_back_beside_the_roll_that_retags_its_slot_comes_back_once,
    all_that_is_given_back_beside_a_roll_comes_back_once,
    two_that_give_back_beside_a_roll_give_back_once_each,
    what_is_given_back_in_the_window_beside_a_roll_comes_back,
    a_late_take_and_its_undo_beside_a_roll_pass_no_bound,
    what_is_given_back_is_never_counted_as_expired_as_well,
);

/// Takes `n` permits at `seconds`, and notes how they can be given back.
fn receipt<L: Limiter>(limiter: &L, seconds: u64, n: u32) -> Receipt {
    turn();
    limiter.take_at(at(seconds), n).unwrap()
}

/// Gives `n` permits back at `seconds`; returns how many have come back.
fn give_back<L: Limiter>(limiter: &L, seconds: u64, n: u32, receipt: Receipt) -> u64 {
    turn();
    limiter.refund_at(at(seconds), n, receipt).permits.into()
}

/// When the window that began at 5 s is half over.
const LATER: Timestamp = Timestamp::from_millis(5_500);

/// At `seconds`, so many permits are available, and not one more.
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

/// One permit a second.
fn bucket<W: Word>(burst: u64) -> Arc<TokenBucket<W>> {
    Arc::new(
        TokenBucket::builder(Rate::per_second(1), burst)
            .build_on()
            .unwrap(),
    )
}

fn a_bucket_takes_back_beside_a_take_exactly_or_not_at_all<W: Word>() {
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

fn a_bucket_takes_back_two_takes_in_reverse_or_the_last_alone<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(3);
        let first = receipt(&*limit, 5, 1);
        let last = receipt(&*limit, 5, 1);
        let a = spawn(&limit, move |limit| give_back(limit, 5, 1, first));
        let b = give_back(&*limit, 5, 1, last);
        assert_eq!(b, 1, "nobody has taken since");
        has(&*limit, 5, 1 + join(a) + b);
        has(&*limit, 8, 3);
    });
}

fn a_bucket_that_has_refilled_takes_nothing_back_beyond_full<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        // Full again by time, or by what is given back; not by both.
        let back = spawn(&limit, move |limit| give_back(limit, 7, 2, noted));
        assert_eq!(take(&*limit, at(7), 2), 2);
        join(back);
        has(&*limit, 7, 0);
        has(&*limit, 8, 1);
        has(&*limit, 10, 2);
    });
}

fn a_take_of_what_was_given_back_finds_it_there_once<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 2, noted));
        let a = spawn(&limit, |limit| take(limit, at(5), 2));
        let taken = take(&*limit, at(5), 2) + join(a);
        assert_eq!(join(back), 2, "nobody could take before");
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

fn a_fixed_window_takes_back_beside_a_take<W: Word>() {
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

fn a_fixed_window_takes_back_two_takes_in_any_order<W: Word>() {
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

fn a_new_fixed_window_gets_nothing_back_from_the_one_before<W: Word>() {
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

fn a_started_window_gets_nothing_back_from_the_one_before<W: Word>() {
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

fn a_started_window_stays_if_another_take_is_in_it_and_else_the_take_starts_its_own<W: Word>() {
    let stayed = Shared::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let seen = Shared::clone(&stayed);
    explore(move || {
        let limit = started::<W>(2);
        let noted = receipt(&*limit, 5, 1);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 1, noted));
        assert_eq!(
            take(&*limit, LATER, 1),
            1,
            "there is room, given back or not"
        );
        assert_eq!(join(back), 1);
        // From 5 to 6 s, or from 5.5 to 6.5 s: what was taken is in one of the two.
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
    assert!(stayed.iter().all(|seen| seen.load(Relaxed)), "both happen");
}

fn a_started_window_that_two_give_back_is_nobodys<W: Word>() {
    explore(|| {
        let limit = started::<W>(3);
        let (first, last) = (receipt(&*limit, 5, 1), receipt(&*limit, 5, 2));
        let a = spawn(&limit, move |limit| give_back(limit, 5, 1, first));
        let b = spawn(&limit, move |limit| give_back(limit, 5, 2, last));
        let taken = take(&*limit, LATER, 1);
        assert_eq!(
            (join(a), join(b)),
            (1, 2),
            "none is given back to a window that it was not taken in"
        );
        assert_eq!(limit.available_at(LATER), 3 - taken);
        let left = limit.available_at(at(6));
        assert!(left == 3 || left == 3 - taken, "{left}");
        has(&*limit, 8, 3);
    });
}

// The sliding window: two segments of a second each, so that the window at second `s` is `s - 1`
// and `s`.

fn sliding<W: Word>(limit: u64) -> Arc<SlidingWindow<2, W>> {
    Arc::new(
        SlidingWindow::builder(limit, Duration::from_secs(2), 2)
            .build_on()
            .unwrap(),
    )
}

fn a_sliding_window_takes_back_beside_a_take<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 1, noted));
        let taken = take(&*limit, at(5), 1);
        assert_eq!(join(back), 1);
        assert_eq!(limit.available_at(at(6)), 1 - taken, "in the window still");
        has(&*limit, 5, 1 - taken);
        has(&*limit, 7, 2);
    });
}

fn a_sliding_window_takes_back_two_takes_in_any_order<W: Word>() {
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

fn what_is_given_back_beside_the_roll_that_retags_its_slot_comes_back_once<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(3);
        let noted = receipt(&*limit, 5, 1);
        assert_eq!(take(&*limit, at(6), 1), 1);
        // The first grant of 7 s gives the slot of 5 s away.
        let back = spawn(&limit, move |limit| give_back(limit, 7, 1, noted));
        assert_eq!(
            take(&*limit, at(7), 1),
            1,
            "there is room, given back or not"
        );
        join(back);
        assert_eq!(
            limit.available_at(at(7)),
            1,
            "besides the one of 6 s and the one of 7 s"
        );
        assert_eq!(take(&*limit, at(7), 2), 0);
        assert_eq!(limit.available_at(at(8)), 2, "besides the one of 7 s");
        has(&*limit, 7, 1);
        has(&*limit, 9, 3);
    });
}

fn all_that_is_given_back_beside_a_roll_comes_back_once<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(2);
        let noted = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 7, 2, noted));
        // Out of its slot and not off the total yet, it may keep this one out.
        let taken = take(&*limit, at(7), 2);
        join(back);
        assert_eq!(limit.available_at(at(8)), 2 - taken);
        has(&*limit, 7, 2 - taken);
        has(&*limit, 9, 2);
    });
}

fn two_that_give_back_beside_a_roll_give_back_once_each<W: Word>() {
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

fn what_is_given_back_in_the_window_beside_a_roll_comes_back<W: Word>() {
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

fn a_late_take_and_its_undo_beside_a_roll_pass_no_bound<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(3);
        assert_eq!(take(&*limit, at(5), 1), 1);
        let undone = spawn(&limit, |limit| {
            turn();
            // At 5 s, or late in the epoch of 7 s, or in a slot that has been re-tagged meanwhile.
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

fn what_is_given_back_is_never_counted_as_expired_as_well<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(2);
        let noted = receipt(&*limit, 5, 1);
        assert_eq!(take(&*limit, at(6), 1), 1);
        let back = spawn(&limit, move |limit| give_back(limit, 7, 1, noted));
        turn();
        assert!(
            limit.available_at(at(7)) <= 1,
            "the one of 6 s is in the window"
        );
        assert_eq!(take(&*limit, at(7), 2), 0);
        join(back);
        has(&*limit, 7, 1);
        has(&*limit, 9, 2);
    });
}

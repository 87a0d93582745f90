//! Windows whose settings change during takes: a fixed window's limit and length in one exchange
//! with its word, and a sliding window's limit in a word of its own.
#![cfg(portcullis_loom)]

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::limiter::Receipt;
use portcullis_core::state::{Carry, ChangeError, Word};
use portcullis_core::{AdjustableWindow, Denied, Limiter, SlidingWindow};
use portcullis_loom::{
    at, explore, explore_briefly, explore_within, join, on_both_widths, spawn, take, turn,
};

on_both_widths!(
    a_change_during_takes_keeps_the_permits_that_are_left,
    a_take_after_a_change_is_judged_by_the_new_limit,
    a_change_beside_the_first_takes_of_a_window_loses_none_of_them,
    two_concurrent_changes_leave_the_settings_of_one,
    a_take_during_two_changes_is_judged_by_one_set_of_settings,
    a_denial_during_two_changes_reports_a_limit_that_was_set,
    available_permits_stay_the_same_during_two_changes_that_keep_them,
    a_stale_change_during_a_newer_take_adds_nothing_at_the_newest_time,
    two_stale_changes_during_a_newer_take_add_nothing_at_the_newest_time,
    a_stale_change_during_two_takes_counts_them_in_its_current_window,
    a_window_refunded_during_a_take_is_restarted_by_it_or_stays_open,
    a_refund_during_a_change_counts_once_or_not_at_all,
    a_refund_during_a_take_and_a_change_exceeds_no_bound,
    takes_during_a_limit_increase_share_the_new_limit,
    a_take_after_a_limit_decrease_is_judged_by_the_new_limit,
    a_take_during_a_limit_decrease_exceeds_neither_limit,
    takes_during_a_reset_share_what_was_there_and_what_it_leaves,
    a_refund_during_a_reset_of_a_window_adds_nothing_to_it,
);

const SECOND: Duration = Duration::from_secs(1);

/// A window of `limit` permits per second, adjustable to up to nine permits and nine seconds.
fn window<W: Word>(limit: u64) -> Arc<AdjustableWindow<W>> {
    let settings = AdjustableWindow::builder(limit, SECOND)
        .max_limit(9)
        .max_window(9 * SECOND);
    Arc::new(settings.staleness(20 * SECOND).build_on().unwrap())
}

fn adjust<W: Word>(
    limiter: &AdjustableWindow<W>,
    seconds: u64,
    limit: u64,
    window: u32,
    carry: Carry,
) -> Result<(), ChangeError> {
    turn();
    limiter.adjust_at(at(seconds), limit, window * SECOND, carry)
}

/// Returns whether a change during a refund was made. A change is busy while a refund is in
/// progress.
fn changed(change: Result<(), ChangeError>) -> bool {
    match change {
        Ok(()) => true,
        Err(ChangeError::Busy) => false,
        Err(other) => panic!("{other}"),
    }
}

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

fn a_change_during_takes_keeps_the_permits_that_are_left<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = window::<W>(2);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 2));
        assert_eq!(adjust(&limit, 5, 3, 1, Carry::Keep), Ok(()));
        has(&*limit, 5, 2 - join(a) - join(b));
        has(&*limit, 6, 3);
    });
}

fn a_take_after_a_change_is_judged_by_the_new_limit<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = window::<W>(2);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        assert_eq!(adjust(&limit, 5, 1, 1, Carry::Additive), Ok(()));
        let own = take(&*limit, at(5), 1);
        let others = join(a) + join(b);
        assert!(
            own == 0 || others == 0,
            "{own} of a limit of one, after {others}"
        );
        assert!(own + others >= 1);
        has(&*limit, 5, 0);
        has(&*limit, 6, 1);
    });
}

fn a_change_beside_the_first_takes_of_a_window_loses_none_of_them<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = window::<W>(2);
        assert_eq!(take(&*limit, at(5), 2), 2);
        // The current window then ends at 9 s, whether or not the window of 7 s has begun.
        let a = spawn(&limit, |limit| take(limit, at(7), 1));
        let b = spawn(&limit, |limit| take(limit, at(7), 1));
        assert_eq!(adjust(&limit, 7, 3, 3, Carry::Additive), Ok(()));
        assert_eq!(join(a) + join(b), 2);
        assert_eq!(limit.available_at(at(8)), 1);
        has(&*limit, 7, 1);
        has(&*limit, 9, 3);
    });
}

fn two_concurrent_changes_leave_the_settings_of_one<W: Word>() {
    let busy = std::sync::Arc::new(AtomicUsize::new(0));
    let counted = std::sync::Arc::clone(&busy);
    explore(move || {
        let limit = window::<W>(1);
        assert_eq!(take(&*limit, at(12), 1), 1);
        let other = spawn(&limit, |limit| adjust(limit, 12, 2, 2, Carry::Additive));
        let own = adjust(&limit, 12, 3, 3, Carry::Additive);
        let other = join(other);
        match (own, other) {
            (Ok(()), Ok(())) => {}
            (Ok(()), Err(ChangeError::Busy)) | (Err(ChangeError::Busy), Ok(())) => {
                counted.fetch_add(1, Relaxed);
            }
            outcomes => panic!("{outcomes:?}"),
        }
        let (permits, end) = match (limit.limit(), limit.window().as_secs()) {
            (2, 2) if other.is_ok() => (2, 14),
            (3, 3) if own.is_ok() => (3, 15),
            mixture => panic!("{mixture:?}"),
        };
        assert_eq!(limit.available_at(at(end - 1)), permits - 1);
        assert_eq!(limit.available_at(at(end)), permits);
        // The next change is accepted.
        assert_eq!(adjust(&limit, 12, 5, 1, Carry::Reset), Ok(()));
        has(&*limit, 12, 5);
        has(&*limit, 13, 5);
    });
    assert!(busy.load(Relaxed) > 0, "no change was busy");
}

fn a_take_during_two_changes_is_judged_by_one_set_of_settings<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = window::<W>(1);
        // The take is the first of its window, whose end depends on the length and its reciprocal.
        let taker = spawn(&limit, |limit| take(limit, at(20), 1));
        assert_eq!(adjust(&limit, 5, 2, 7, Carry::Additive), Ok(()));
        assert_eq!(adjust(&limit, 8, 3, 3, Carry::Additive), Ok(()));
        assert_eq!(join(taker), 1);
        let left = [14, 15, 20, 21].map(|seconds| limit.available_at(at(seconds)));
        // The window is 18 s to 21 s in any order: a stale change applies at 20 s.
        assert_eq!(left, [2, 2, 2, 3]);
    });
}

fn a_denial_during_two_changes_reports_a_limit_that_was_set<W: Word>() {
    explore(|| {
        let limit = window::<W>(1);
        let taker = spawn(&limit, |limit| {
            let outcome = limit.take_at(at(5), 7);
            (outcome, limit.limit())
        });
        assert_eq!(adjust(&limit, 5, 8, 1, Carry::Keep), Ok(()));
        assert_eq!(adjust(&limit, 5, 2, 1, Carry::Keep), Ok(()));
        match join(taker) {
            (Err(Denied::ExceedsCapacity { permits: 7, capacity: 1 }), _)
            | (Err(Denied::ExceedsCapacity { permits: 7, capacity: 2 }), 2)
            // One of eight permits is available.
            | (Err(Denied::Exhausted { permits: 7, .. }), 8 | 2) => {}
            other => panic!("{other:?}"),
        }
        has(&*limit, 5, 1);
    });
}

fn available_permits_stay_the_same_during_two_changes_that_keep_them<W: Word>() {
    explore(|| {
        let limit = window::<W>(1);
        let reader = spawn(&limit, |limit| limit.available_at(at(5)));
        assert_eq!(adjust(&limit, 5, 9, 1, Carry::Keep), Ok(()));
        assert_eq!(adjust(&limit, 5, 5, 1, Carry::Keep), Ok(()));
        assert_eq!(join(reader), 1);
    });
}

/// Returns a window of two permits in nine seconds. One was taken at 19 s, in the window from 18 s
/// to 27 s.
fn long_window<W: Word>() -> Arc<AdjustableWindow<W>> {
    let limit = Arc::new(
        AdjustableWindow::builder(2, 9 * SECOND)
            .staleness(20 * SECOND)
            .max_limit(9)
            .build_on()
            .unwrap(),
    );
    assert_eq!(take(&*limit, at(19), 1), 1);
    limit
}

fn a_stale_change_during_a_newer_take_adds_nothing_at_the_newest_time<W: Word>() {
    explore(|| {
        let limit = long_window::<W>();
        let taker = spawn(&limit, |limit| take(limit, at(26), 1));
        assert_eq!(adjust(&limit, 20, 2, 3, Carry::Additive), Ok(()));
        let own = take(&*limit, at(26), 1);
        let taken = own + join(taker);
        let left = limit.available_at(at(26));
        // Only if the change comes first, at 20 s, is its window over at 26 s, together with the
        // permit that was taken at 19 s.
        assert!(
            taken >= 1 && taken + left <= 2,
            "{taken} taken at 26 s, {left} left"
        );
        has(&*limit, 26, left);
        has(&*limit, 27, 2);
    });
}

fn two_stale_changes_during_a_newer_take_add_nothing_at_the_newest_time<W: Word>() {
    explore_within(2, || {
        let limit = long_window::<W>();
        let taker = spawn(&limit, |limit| take(limit, at(26), 1));
        assert_eq!(adjust(&limit, 20, 9, 3, Carry::Keep), Ok(()));
        assert_eq!(adjust(&limit, 19, 9, 1, Carry::Keep), Ok(()));
        assert_eq!(join(taker), 1);
        let left = limit.available_at(at(26));
        // Either the whole new window, or what is left of the permits that were kept.
        assert!([0, 8].contains(&left), "{left} left instead of 0 or 8");
        assert_eq!(limit.available_at(at(27)), 9);
    });
}

fn a_stale_change_during_two_takes_counts_them_in_its_current_window<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = window::<W>(3);
        let a = spawn(&limit, |limit| take(limit, at(20), 1));
        let b = spawn(&limit, |limit| take(limit, at(20), 2));
        assert_eq!(adjust(&limit, 5, 4, 3, Carry::Additive), Ok(()));
        assert_eq!(join(a) + join(b), 3);
        has(&*limit, 20, 1);
        // The window that begins at 18 s.
        has(&*limit, 21, 4);
    });
}

fn a_window_refunded_during_a_take_is_restarted_by_it_or_stays_open<W: Word>() {
    let ends = std::sync::Arc::new([const { AtomicUsize::new(0) }; 3]);
    let counted = std::sync::Arc::clone(&ends);
    explore_briefly(2, 3, move || {
        let settings = AdjustableWindow::builder(3, 4 * SECOND).started_by_first_request();
        let limit = Arc::new(settings.build_on::<W>().unwrap());
        let noted = receipt(&*limit, 5, 1);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 1, noted));
        let taker = spawn(&limit, |limit| take(limit, at(7), 1));
        let own = take(&*limit, at(6), 1);
        let (taken, back) = (own + join(taker), join(back));
        assert_eq!((taken, back), (2, 1));
        let left = [8, 9, 10, 11].map(|seconds| limit.available_at(at(seconds)));
        // The window lasts until 9 s, or begins at 6 s or 7 s.
        let end = [[1, 3, 3, 3], [1, 1, 3, 3], [1, 1, 1, 3]]
            .iter()
            .position(|outcome| *outcome == left);
        counted[end.unwrap_or_else(|| panic!("{left:?}"))].fetch_add(1, Relaxed);
        has(&*limit, 7, 1);
    });
    assert!(ends.iter().all(|seen| seen.load(Relaxed) > 0), "{ends:?}");
}

fn a_refund_during_a_change_counts_once_or_not_at_all<W: Word>() {
    explore(|| {
        let limit = window::<W>(2);
        let (first, last) = (receipt(&*limit, 5, 1), receipt(&*limit, 5, 1));
        let a = spawn(&limit, move |limit| give_back(limit, 5, 1, first));
        let b = spawn(&limit, move |limit| give_back(limit, 5, 1, last));
        let changed = changed(adjust(&limit, 5, 3, 1, Carry::Keep));
        has(&*limit, 5, join(a) + join(b));
        has(&*limit, 6, if changed { 3 } else { 2 });
    });
}

fn a_refund_during_a_take_and_a_change_exceeds_no_bound<W: Word>() {
    explore(|| {
        let limit = window::<W>(1);
        let noted = receipt(&*limit, 5, 1);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 1, noted));
        let taker = spawn(&limit, |limit| take(limit, at(5), 1));
        // The limit stays 1, whether the change is made or busy.
        changed(adjust(&limit, 5, 1, 1, Carry::Additive));
        let (taken, back) = (join(taker), join(back));
        assert!(taken <= back, "{taken} taken, {back} refunded");
        has(&*limit, 5, back - taken);
        has(&*limit, 6, 1);
    });
}

// The sliding window: two segments of a second each.

fn sliding<W: Word>(limit: u64) -> Arc<SlidingWindow<2, W>> {
    Arc::new(
        SlidingWindow::builder(limit, 2 * SECOND, 2)
            .max_limit(3)
            .build_on()
            .unwrap(),
    )
}

fn set_limit<W: Word>(limiter: &SlidingWindow<2, W>, limit: u64) -> u64 {
    turn();
    limiter.set_limit(limit).unwrap()
}

fn takes_during_a_limit_increase_share_the_new_limit<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(1);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        assert_eq!(set_limit(&limit, 2), 1);
        let own = take(&*limit, at(5), 2);
        let taken = own + join(a);
        assert!([1, 2].contains(&taken), "{taken}");
        has(&*limit, 5, 2 - taken);
        has(&*limit, 7, 2);
    });
}

fn a_take_after_a_limit_decrease_is_judged_by_the_new_limit<W: Word>() {
    explore(|| {
        let limit = sliding::<W>(3);
        assert_eq!(take(&*limit, at(5), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        assert_eq!(set_limit(&limit, 1), 3);
        assert_eq!(take(&*limit, at(6), 1), 0, "one permit counts already");
        join(a);
        has(&*limit, 6, 0);
        has(&*limit, 7, 1);
    });
}

fn a_take_during_a_limit_decrease_exceeds_neither_limit<W: Word>() {
    // The take is in a new segment, so it rolls.
    explore_within(2, || {
        let limit = sliding::<W>(2);
        assert_eq!(take(&*limit, at(5), 2), 2);
        let a = spawn(&limit, |limit| take(limit, at(7), 1));
        assert_eq!(set_limit(&limit, 1), 2);
        let own = take(&*limit, at(7), 1);
        let taken = own + join(a);
        assert!([1, 2].contains(&taken), "{taken}");
        assert_eq!(limit.available_at(at(7)), 0);
        has(&*limit, 8, 0);
        has(&*limit, 9, 1);
    });
}

fn takes_during_a_reset_share_what_was_there_and_what_it_leaves<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = window::<W>(3);
        let a = spawn(&limit, |limit| take(limit, at(5), 2));
        let b = spawn(&limit, |limit| take(limit, at(5), 2));
        turn();
        assert_eq!(limit.reset_at(at(5), 2), Ok(()));
        let (a, b) = (join(a), join(b));
        // At most one of them before the reset, and at most one after it.
        let left = limit.available_at(at(5));
        assert!(
            matches!((a + b, left), (2, 0) | (2, 2) | (4, 0)),
            "{a} and {b}, and {left} are left"
        );
        has(&*limit, 5, left);
        has(&*limit, 6, 3);
    });
}

fn a_refund_during_a_reset_of_a_window_adds_nothing_to_it<W: Word>() {
    explore(|| {
        let limit = window::<W>(3);
        let taken = receipt(&*limit, 5, 2);
        let back = spawn(&limit, move |limit| give_back(limit, 5, 2, taken));
        turn();
        let reset = changed(limit.reset_at(at(5), 1));
        let back = join(back);
        let left = limit.available_at(at(5));
        if reset {
            assert_eq!(left, 1, "{back} were refunded");
        } else {
            assert_eq!((back, left), (2, 3));
        }
    });
}

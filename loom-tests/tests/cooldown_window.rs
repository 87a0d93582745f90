//! The cooldown window: one word, replaced by compare-exchange, every access `Relaxed`.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::state::Word;
use portcullis_core::{CooldownWindow, Limiter, Timestamp};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    racing_takes_share_the_limit_and_the_denied_one_starts_the_wait,
    only_one_of_two_exceeding_requests_starts_the_wait,
    an_exceeding_request_during_a_take_leaves_no_permits_in_the_wait,
    a_refund_during_an_exceeding_request_admits_no_more_than_the_limit,
    a_refund_counts_once,
    two_requests_after_the_wait_start_one_window,
    a_stale_exceeding_request_does_not_end_the_window_immediately,
    a_wait_started_by_a_stale_request_does_not_end_before_a_newer_grant,
    the_newest_of_racing_grants_is_remembered,
);

const SECOND: Duration = Duration::from_secs(1);

/// A window of `limit` permits in 10 s, with a wait of 2 s.
fn limit<W: Word>(limit: u64) -> CooldownWindow<W> {
    let settings = CooldownWindow::builder(limit, 10 * SECOND).wait(2 * SECOND);
    let settings = settings.tick(Duration::from_millis(1));
    settings.staleness(10 * SECOND).build_on().unwrap()
}

/// Checks that no permit is lost: after the wait or the window, exactly the limit is available.
fn has_all_permits<W: Word>(limit: &CooldownWindow<W>, now: Timestamp) {
    assert_eq!(limit.available_at(now), limit.limit());
    let all = u32::try_from(limit.limit()).unwrap();
    assert_eq!(take(limit, now, all), limit.limit());
    assert_eq!(take(limit, now, 1), 0);
}

fn racing_takes_share_the_limit_and_the_denied_one_starts_the_wait<W: Word>() {
    explore(|| {
        let limit = Arc::new(limit::<W>(2));
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        let c = take(&*limit, at(5), 1);
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!((limit.available_at(at(6)), take(&*limit, at(6), 1)), (0, 0));
        has_all_permits(&limit, at(7));
    });
}

fn only_one_of_two_exceeding_requests_starts_the_wait<W: Word>() {
    explore(|| {
        let limit = Arc::new(limit::<W>(1));
        assert_eq!(take(&*limit, at(5), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        assert_eq!(take(&*limit, at(7), 1) + join(a), 0);
        // The wait is that of one request, and the other does not prolong it.
        let end = if limit.available_at(at(8)) == 1 { 8 } else { 9 };
        assert_eq!(limit.available_at(at(end - 1)), 0);
        has_all_permits(&limit, at(end));
    });
}

fn an_exceeding_request_during_a_take_leaves_no_permits_in_the_wait<W: Word>() {
    explore(|| {
        let limit = Arc::new(limit::<W>(3));
        assert_eq!(take(&*limit, at(5), 2), 2);
        let exceeds = spawn(&limit, |limit| take(limit, at(5), 2));
        let one = take(&*limit, at(5), 1);
        assert_eq!(join(exceeds), 0);
        assert!(one <= 1);
        assert_eq!((limit.available_at(at(5)), take(&*limit, at(6), 1)), (0, 0));
        has_all_permits(&limit, at(7));
    });
}

fn a_refund_during_an_exceeding_request_admits_no_more_than_the_limit<W: Word>() {
    refund_beside_an_exceeding_request(|| limit::<W>(1), at(7));
    // A wait without its own length ends with the window.
    refund_beside_an_exceeding_request(
        || {
            CooldownWindow::builder(1, 10 * SECOND)
                .tick(SECOND)
                .build_on::<W>()
                .unwrap()
        },
        at(15),
    );
}

fn refund_beside_an_exceeding_request<W: Word>(
    new: impl Fn() -> CooldownWindow<W> + Send + Sync + 'static,
    end: Timestamp,
) {
    explore(move || {
        let limit = Arc::new(new());
        turn();
        let receipt = limit.take_at(at(5), 1).unwrap();
        let other = spawn(&limit, |limit| take(limit, at(5), 1));
        turn();
        let back = limit.refund_at(at(5), 1, receipt).permits;
        let other = join(other);
        // The refund came before the other request, or too late.
        assert_eq!(u64::from(back), other);
        assert_eq!(take(&*limit, at(5), 1), 0);
        has_all_permits(&limit, end);
    });
}

fn a_refund_counts_once<W: Word>() {
    explore(|| {
        let limit = Arc::new(limit::<W>(2));
        turn();
        let receipt = limit.take_at(at(5), 1).unwrap();
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        turn();
        let back = u64::from(limit.refund_at(at(5), 1, receipt).permits);
        let granted = join(a) + join(b);
        assert!(granted <= 1 + back, "{granted} and {back} back");
        assert!(granted >= 1);
        has_all_permits(&limit, at(15));
    });
}

fn two_requests_after_the_wait_start_one_window<W: Word>() {
    explore(|| {
        let limit = Arc::new(limit::<W>(1));
        assert_eq!(take(&*limit, at(5), 1) + take(&*limit, at(5), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(7), 1));
        let b = spawn(&limit, |limit| take(limit, at(8), 1));
        let early = take(&*limit, Timestamp::from_millis(6_999), 1);
        assert_eq!(join(a) + join(b), 1);
        assert_eq!(
            early, 0,
            "its time is before the new window, and the limit is used up"
        );
        // The denied request exceeded the limit at 7 s or at 8 s, but not before the window
        // started.
        assert_eq!(take(&*limit, Timestamp::from_millis(8_999), 1), 0);
        has_all_permits(&limit, at(10));
    });
}

fn a_stale_exceeding_request_does_not_end_the_window_immediately<W: Word>() {
    explore(|| {
        let limit = Arc::new(limit::<W>(1));
        assert_eq!(take(&*limit, at(5), 1), 1);
        let newer = spawn(&limit, |limit| take(limit, at(15), 1));
        let late = take(&*limit, at(12), 1);
        assert_eq!((join(newer), late), (1, 0));
        let start = if limit.available_at(at(16)) == 1 {
            0
        } else {
            15
        };
        assert_eq!(
            start, 15,
            "the newer window ends at least 2 s after its start"
        );
        has_all_permits(&limit, at(25));
    });
}

fn a_wait_started_by_a_stale_request_does_not_end_before_a_newer_grant<W: Word>() {
    explore(|| {
        let limit = Arc::new(limit::<W>(3));
        assert_eq!(take(&*limit, at(5), 2), 2);
        let newer = spawn(&limit, |limit| take(limit, at(12), 1));
        let late = take(&*limit, at(6), 2);
        assert_eq!((join(newer), late), (1, 0));
        // The newer request either started a window after the wait, or was granted in the window
        // that was exceeded.
        let left = limit.available_at(at(12));
        assert!(left == 2 || left == 0, "{left} left");
        // The time of the newest grant is kept in steps of 1,024 of the 2,000 ms, counted from 5 s.
        has_all_permits(
            &limit,
            if left == 2 {
                at(22)
            } else {
                Timestamp::from_millis(11_144 + 2_000)
            },
        );
    });
}

fn the_newest_of_racing_grants_is_remembered<W: Word>() {
    explore(|| {
        let limit = Arc::new(limit::<W>(3));
        assert_eq!(take(&*limit, at(5), 1), 1);
        let newest = spawn(&limit, |limit| take(limit, at(14), 1));
        assert_eq!(take(&*limit, at(9), 1) + join(newest), 2);
        assert_eq!(take(&*limit, at(5), 1), 0);
        assert_eq!(limit.available_at(at(14)), 0);
        // 5 s, plus eight steps of 1,024 ms, plus the wait.
        has_all_permits(&limit, Timestamp::from_millis(13_192 + 2_000));
    });
}

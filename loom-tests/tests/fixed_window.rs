//! The fixed window: one word, replaced by compare-exchange, every access `Relaxed`.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::state::Word;
use portcullis_core::{FixedWindow, Timestamp};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take};

on_both_widths!(
    racing_takes_share_the_limit_and_never_exceed_it,
    racers_into_a_new_window_share_its_limit,
    a_stale_timestamp_counts_in_the_newest_window,
    two_first_requests_start_one_window,
    two_requests_after_the_end_start_one_window,
);

const SECOND: Duration = Duration::from_secs(1);

fn on_grid<W: Word>(limit: u64) -> FixedWindow<W> {
    FixedWindow::builder(limit, SECOND).build_on().unwrap()
}

fn started<W: Word>(limit: u64) -> FixedWindow<W> {
    let settings = FixedWindow::builder(limit, SECOND).started_by_first_request();
    settings.tick(Duration::from_millis(1)).build_on().unwrap()
}

/// Checks that no permit is lost: a later window has exactly the limit.
fn has_all_permits<W: Word>(limit: &FixedWindow<W>, now: Timestamp) {
    assert_eq!(limit.available_at(now), limit.limit());
    let all = u32::try_from(limit.limit()).unwrap();
    assert_eq!(take(limit, now, all), limit.limit());
    assert_eq!(take(limit, now, 1), 0);
}

fn racing_takes_share_the_limit_and_never_exceed_it<W: Word>() {
    explore(|| {
        let limit = Arc::new(on_grid::<W>(2));
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        let c = take(&*limit, at(5), 1);
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!(limit.available_at(at(5)), 0);
        has_all_permits(&limit, at(6));
    });
}

fn racers_into_a_new_window_share_its_limit<W: Word>() {
    explore(|| {
        let limit = Arc::new(on_grid::<W>(1));
        assert_eq!(take(&*limit, at(5), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        let b = spawn(&limit, |limit| take(limit, at(6), 1));
        assert_eq!(join(a) + join(b), 1);
        has_all_permits(&limit, at(7));
    });
}

fn a_stale_timestamp_counts_in_the_newest_window<W: Word>() {
    explore(|| {
        let limit = Arc::new(on_grid::<W>(2));
        assert_eq!(take(&*limit, at(5), 2), 2);
        let newer = spawn(&limit, |limit| take(limit, at(6), 1));
        // The window of its own timestamp is full. Once there is a newer window, that has room.
        let late = take(&*limit, at(5), 1);
        assert_eq!(join(newer), 1);
        assert_eq!(limit.available_at(at(6)), 1 - late);
        assert_eq!(take(&*limit, at(6), 2), 0, "the stale take counts as well");
        has_all_permits(&limit, at(7));
    });
}

fn two_first_requests_start_one_window<W: Word>() {
    explore(|| {
        let limit = Arc::new(started::<W>(1));
        let a = spawn(&limit, |limit| {
            take(limit, Timestamp::from_millis(5_300), 1)
        });
        let b = take(&*limit, Timestamp::from_millis(5_500), 1);
        assert_eq!(join(a) + b, 1);
        assert_eq!(take(&*limit, Timestamp::from_millis(6_299), 1), 0);
        has_all_permits(&limit, Timestamp::from_millis(6_500));
    });
}

fn two_requests_after_the_end_start_one_window<W: Word>() {
    explore(|| {
        let limit = Arc::new(started::<W>(2));
        assert_eq!(take(&*limit, at(5), 2), 2);
        let a = spawn(&limit, |limit| {
            take(limit, Timestamp::from_millis(6_000), 1)
        });
        let b = spawn(&limit, |limit| {
            take(limit, Timestamp::from_millis(6_200), 1)
        });
        let late = take(&*limit, Timestamp::from_millis(5_999), 1);
        // If the stale take is granted, it counts in the new window, which has room for two of the
        // three takes.
        assert!(join(a) + join(b) + late == 2);
        assert_eq!(take(&*limit, Timestamp::from_millis(6_999), 1), 0);
        has_all_permits(&limit, Timestamp::from_millis(7_200));
    });
}

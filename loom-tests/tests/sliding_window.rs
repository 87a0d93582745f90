//! The sliding window: one word decides, and a ring remembers which permits to return.
//!
//! Unless a model says otherwise, there are two segments of a second each, so the window at second
//! `s` is `s - 1` and `s`.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::state::Word;
use portcullis_core::{Denied, Limiter, Retry, SlidingWindow, Timestamp};
use portcullis_loom::{
    Witness, at, explore, explore_within, join, on_both_widths, spawn, take, turn,
};

on_both_widths!(
    racing_takes_share_the_limit_and_never_exceed_it,
    racing_rolls_to_one_epoch_return_expired_permits_once,
    racing_rolls_to_two_epochs_return_expired_permits_once,
    a_roll_to_an_older_epoch_does_not_move_the_state_back,
    an_addition_during_a_retag_is_returned_by_one_of_two_rolls,
    a_stale_timestamp_counts_in_the_newest_segment,
    a_slot_is_retagged_before_its_epoch_can_be_taken_in,
    a_strict_window_holds_the_limit_in_any_span_of_its_length,
    expired_permits_are_returned_after_any_race,
    a_request_denied_by_a_take_sees_the_roll_before_it,
    a_request_denied_after_a_lost_exchange_sees_the_roll_before_it,
    a_request_denied_after_its_own_roll_sees_the_roll_before_it,
    a_request_granted_returned_permits_sees_the_take_they_came_from,
    a_denial_during_a_roll_changes_nothing,
    available_permits_are_never_returned_twice,
    a_retry_is_never_earlier_than_every_state_allows,
);

type Window<W> = SlidingWindow<2, W>;

fn window<W: Word>(limit: u64) -> Arc<Window<W>> {
    Arc::new(
        SlidingWindow::builder(limit, Duration::from_secs(2), 2)
            .build_on()
            .unwrap(),
    )
}

/// Checks that no permit is lost: after everything has left the window, a take gets the whole
/// limit, and no more.
fn has_all_permits<const N: usize, W: Word>(limit: &SlidingWindow<N, W>) {
    let all = u32::try_from(limit.limit()).unwrap();
    assert_eq!(limit.available_at(at(20)), limit.limit());
    assert_eq!(take(limit, at(20), all), limit.limit());
    assert_eq!(take(limit, at(20), 1), 0);
}

fn racing_takes_share_the_limit_and_never_exceed_it<W: Word>() {
    explore(|| {
        let limit = window::<W>(3);
        assert_eq!(take(&*limit, at(5), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        let c = take(&*limit, at(5), 1);
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!(take(&*limit, at(6), 1), 0);
        has_all_permits(&limit);
    });
}

fn racing_rolls_to_one_epoch_return_expired_permits_once<W: Word>() {
    explore(|| {
        let limit = window::<W>(3);
        assert_eq!(take(&*limit, at(5), 1), 1);
        assert_eq!(take(&*limit, at(6), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(7), 1));
        let b = take(&*limit, at(7), 1);
        let granted = join(a) + b;
        // The permits of 6 s and of these takes count.
        assert_eq!(limit.available_at(at(7)), 2 - granted);
        assert_eq!(take(&*limit, at(7), 3 - u32::try_from(granted).unwrap()), 0);
        assert_eq!(granted, 2);
        has_all_permits(&limit);
    });
}

fn racing_rolls_to_two_epochs_return_expired_permits_once<W: Word>() {
    explore(|| {
        let limit = window::<W>(3);
        assert_eq!(take(&*limit, at(5), 1), 1);
        assert_eq!(take(&*limit, at(6), 2), 2);
        let a = spawn(&limit, |limit| take(limit, at(7), 1));
        let b = take(&*limit, at(8), 1);
        let a = join(a);
        assert!(a + b >= 1, "the take that loses no race is granted");
        let left = limit.available_at(at(8));
        assert!(
            left + a + b <= 3,
            "all permits taken from 7 s on are still in the window"
        );
        assert_eq!(take(&*limit, at(8), u32::try_from(left + 1).unwrap()), 0);
        has_all_permits(&limit);
    });
}

fn a_roll_to_an_older_epoch_does_not_move_the_state_back<W: Word>() {
    explore(|| {
        let limit = window::<W>(3);
        assert_eq!(take(&*limit, at(5), 1), 1);
        let older = spawn(&limit, |limit| take(limit, at(7), 1));
        let newest = take(&*limit, at(8), 1);
        // A stale timestamp, so the take counts at 8 s.
        let late = if newest == 1 {
            take(&*limit, at(7), 1)
        } else {
            0
        };
        join(older);
        // Permits that count at 8 s are in the window at 9 s.
        assert!(limit.available_at(at(9)) + newest + late <= 3);
        assert_eq!(
            take(&*limit, at(9), u32::try_from(4 - newest - late).unwrap()),
            0
        );
        has_all_permits(&limit);
    });
}

fn an_addition_during_a_retag_is_returned_by_one_of_two_rolls<W: Word>() {
    explore(|| {
        let limit = window::<W>(2);
        assert_eq!(take(&*limit, at(5), 1), 1);
        // The take counts at 5 s; or, as a stale one, in the epoch of 7 s; or in a slot that was
        // re-tagged in the meantime.
        let adds = spawn(&limit, |limit| take(limit, at(5), 1));
        let rolls = take(&*limit, at(7), 1);
        let added = join(adds);
        assert!(limit.available_at(at(7)) + rolls <= 2);
        let refill = take(&*limit, at(8), 2);
        assert!(rolls + refill <= 2);
        assert!(added <= 1);
        has_all_permits(&limit);
    });
}

/// Runs on one width only: it takes as long as all other models together.
#[test]
fn an_addition_during_two_rolls_is_returned_once() {
    explore_within(2, || {
        let limit = window::<u64>(2);
        assert_eq!(take(&*limit, at(5), 1), 1);
        let adds = spawn(&limit, |limit| take(limit, at(5), 1));
        let rolls = spawn(&limit, |limit| take(limit, at(7), 1));
        let newest = take(&*limit, at(8), 1);
        join(adds);
        assert!(join(rolls) + newest + limit.available_at(at(8)) <= 2);
        assert!(newest + take(&*limit, at(9), 2) <= 2);
        has_all_permits(&limit);
    });
}

fn a_stale_timestamp_counts_in_the_newest_segment<W: Word>() {
    explore(|| {
        let limit = window::<W>(2);
        assert_eq!(take(&*limit, at(6), 1), 1);
        // The take counts in the segment of 6 s, although its timestamp is 5 s: there is room for
        // one more until 8 s.
        let late = spawn(&limit, |limit| take(limit, at(5), 1));
        let next = take(&*limit, at(7), 1);
        assert_eq!(join(late) + next, 1);
        assert_eq!(take(&*limit, at(7), 1), 0);
        has_all_permits(&limit);
    });
}

fn a_slot_is_retagged_before_its_epoch_can_be_taken_in<W: Word>() {
    explore(|| {
        let limit = window::<W>(2);
        assert_eq!(take(&*limit, at(5), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(7), 1));
        let b = take(&*limit, at(7), 1);
        assert_eq!(join(a) + b, 2);
        // Both count at 7 s, so no permit is available before 9 s.
        assert_eq!(limit.available_at(at(8)), 0);
        assert_eq!(take(&*limit, at(8), 1), 0);
        has_all_permits(&limit);
    });
}

fn a_strict_window_holds_the_limit_in_any_span_of_its_length<W: Word>() {
    explore(|| {
        let settings = SlidingWindow::<3>::builder(2, Duration::from_secs(2), 2).strict();
        let limit = Arc::new(settings.build_on::<W>().unwrap());
        assert_eq!(take(&*limit, Timestamp::from_millis(5_900), 1), 1);
        let a = spawn(&limit, |limit| {
            take(limit, Timestamp::from_millis(7_800), 1)
        });
        let b = take(&*limit, Timestamp::from_millis(8_000), 1);
        let a = join(a);
        assert!(a + b >= 1);
        assert!(limit.available_at(Timestamp::from_millis(9_700)) + a + b <= 2);
        assert_eq!(
            take(
                &*limit,
                Timestamp::from_millis(9_700),
                u32::try_from(3 - a - b).unwrap()
            ),
            0
        );
        has_all_permits(&limit);
    });
}

fn expired_permits_are_returned_after_any_race<W: Word>() {
    explore(|| {
        let limit = window::<W>(2);
        assert_eq!(take(&*limit, at(5), 1), 1);
        assert_eq!(take(&*limit, at(6), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(7), 2));
        let b = spawn(&limit, |limit| take(limit, at(8), 1));
        let late = take(&*limit, at(6), 1);
        assert!(join(a) + join(b) + late <= 2);
        has_all_permits(&limit);
    });
}

/// A window of two permits, one of which was taken at 5 s, and data that the models check.
fn watched<W: Word>() -> Arc<(Window<W>, Witness)> {
    let limit = SlidingWindow::builder(2, Duration::from_secs(2), 2)
        .build_on()
        .unwrap();
    assert_eq!(take(&limit, at(5), 1), 1);
    Arc::new((limit, Witness::new()))
}

/// Writes, and then rolls to 7 s, which no other thread does, and takes both permits. A take that
/// comes before gets one permit, and then this take is denied.
fn writes_rolls_and_takes<W: Word>((limit, data): &(Window<W>, Witness)) {
    data.write();
    take(limit, at(7), 2);
}

/// With the permit of 5 s there is room for one more. So only the take of the other thread, and the
/// roll before it, can deny this take.
fn reads_if_denied<W: Word>((limit, data): &(Window<W>, Witness), now: Timestamp, n: u32) {
    turn();
    if limit.take_at(now, n).is_err() {
        data.read();
    }
}

fn a_request_denied_by_a_take_sees_the_roll_before_it<W: Word>() {
    explore(|| {
        let watched = watched::<W>();
        let writer = spawn(&watched, writes_rolls_and_takes);
        // A probe has no exchange that could be lost.
        reads_if_denied(&watched, at(5), 0);
        join(writer);
    });
}

fn a_request_denied_after_a_lost_exchange_sees_the_roll_before_it<W: Word>() {
    explore(|| {
        let watched = watched::<W>();
        let writer = spawn(&watched, writes_rolls_and_takes);
        reads_if_denied(&watched, at(5), 1);
        join(writer);
    });
}

fn a_request_denied_after_its_own_roll_sees_the_roll_before_it<W: Word>() {
    explore(|| {
        let watched = watched::<W>();
        let writer = spawn(&watched, writes_rolls_and_takes);
        reads_if_denied(&watched, at(6), 1);
        join(writer);
    });
}

fn a_request_granted_returned_permits_sees_the_take_they_came_from<W: Word>() {
    explore(|| {
        let watched = watched::<W>();
        let writer = spawn(&watched, |(limit, data)| {
            data.write();
            // This take needs no roll, because the state is at 5 s already.
            take(limit, at(5), 1);
        });
        let (limit, data) = &*watched;
        // Both permits are taken. If both are available at 7 s, both have been returned.
        turn();
        if limit.take_at(at(5), 0).is_err() && take(limit, at(7), 2) == 2 {
            data.read();
        }
        join(writer);
    });
}

fn a_denial_during_a_roll_changes_nothing<W: Word>() {
    explore(|| {
        let limit = window::<W>(3);
        assert_eq!(take(&*limit, at(5), 2), 2);
        let alone = window::<W>(3);
        assert_eq!((take(&*alone, at(5), 2), take(&*alone, at(7), 3)), (2, 3));

        let taker = spawn(&limit, |limit| take(limit, at(7), 3));
        // Before the take of the other thread, one permit is available at 5 s. What that thread
        // takes at 7 s is still in the window at 8 s.
        turn();
        let full = limit.take_at(at(5), 0).is_err();
        let denied = full && take(&*limit, at(8), 1) == 0;
        assert_eq!((join(taker), denied), (3, full));
        if denied {
            assert_eq!(format!("{:?}", *limit), format!("{:?}", *alone));
        }
    });
}

fn available_permits_are_never_returned_twice<W: Word>() {
    explore(|| {
        let limit = window::<W>(3);
        assert_eq!(take(&*limit, at(5), 2), 2);
        let taker = spawn(&limit, |limit| take(limit, at(7), 3));
        // Before the take of the other thread, at least one permit is available. What that thread
        // takes at 7 s is still in the window at 8 s.
        turn();
        let full = limit.available_at(at(7)) == 0;
        turn();
        let next = limit.available_at(at(8));
        assert!(!full || next == 0, "{next} available at 8 s");
        assert_eq!(join(taker), 3);
        has_all_permits(&limit);
    });
}

fn a_retry_is_never_earlier_than_every_state_allows<W: Word>() {
    explore(|| {
        let settings = SlidingWindow::<3>::builder(3, Duration::from_secs(3), 3);
        let limit = Arc::new(settings.build_on::<W>().unwrap());
        assert_eq!(take(&*limit, at(5), 2), 2);
        assert_eq!(take(&*limit, at(7), 1), 1);
        let taker = spawn(&limit, |limit| take(limit, at(8), 1));
        // At 8 s at most two permits are available. All three are available at 10 s, or at 11 s
        // after the take of the other thread.
        let denied = Denied::Exhausted {
            now: at(8),
            permits: 3,
        };
        turn();
        let retry = limit.retry(denied);
        assert!(
            retry == Retry::At(at(10)) || retry == Retry::At(at(11)),
            "{retry:?}"
        );
        assert_eq!(join(taker), 1);
        assert_eq!(limit.retry(denied), Retry::At(at(11)));
    });
}

/// Returns a window of three segments on 32 bits, 30 of which hold the epoch, and a timestamp one
/// horizon later. By then the word has wrapped, but the ring has not.
fn around(limit: u64) -> (SlidingWindow<3, u32>, u64) {
    let window = SlidingWindow::builder(limit, Duration::from_secs(3), 3)
        .build_on()
        .unwrap();
    assert_eq!(take(&window, at(5), 1), 1);
    (window, 5 + (1 << 30))
}

#[test]
fn a_take_after_a_whole_horizon_counts_in_its_own_segment() {
    explore(|| {
        let (limit, now) = around(3);
        let limit = Arc::new(limit);
        let a = spawn(&limit, move |limit| take(limit, at(now), 1));
        let b = take(&*limit, at(now), 1);
        assert_eq!(join(a) + b, 2, "the old permit still counts");
        for later in [now, now + 1, now + 2] {
            assert!(limit.available_at(at(later)) <= 1);
            assert_eq!(take(&*limit, at(later), 2), 0);
        }
        assert_eq!(take(&*limit, at(now + 9), 3), 3);
    });
}

#[test]
fn a_request_denied_after_a_whole_horizon_sees_the_roll_before_it() {
    explore(|| {
        let (limit, now) = around(2);
        let watched = Arc::new((limit, Witness::new()));
        let writer = spawn(&watched, move |(limit, data)| {
            data.write();
            take(limit, at(now + 3), 2);
        });
        let (limit, data) = &*watched;
        // One more permit is available until the other thread has rolled and taken both.
        if take(limit, at(now), 1) == 0 {
            data.read();
        }
        join(writer);
    });
}

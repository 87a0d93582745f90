//! The penalty: one word beside the limiter, replaced by compare-exchange, every access `Relaxed`.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::state::Word;
use portcullis_core::{Denied, FixedWindow, Limiter, Penalty, Timestamp};
use portcullis_loom::{at, explore, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    one_of_two_concurrent_denials_starts_the_penalty_and_the_other_keeps_it,
    a_take_during_the_start_of_a_penalty_stays_within_the_limit,
    a_thread_that_has_seen_a_penalty_is_denied_until_its_end,
    a_pardon_during_the_start_of_a_penalty_ends_it_or_precedes_it,
    clearing_the_word_does_not_lose_a_penalty_that_starts,
    the_third_of_three_denials_starts_the_penalty,
    of_two_concurrent_penalties_by_hand_the_later_end_counts,
    a_penalty_by_hand_outlasts_one_of_a_denial_and_a_cleared_one,
);

const WAIT: Duration = Duration::from_secs(5);

type Limit<W> = Penalty<FixedWindow<W>, W>;

/// A limit of `limit` per second, with a penalty of 5 s after `denials` denials in a minute.
fn window<W: Word>(limit: u64, denials: u64) -> Limit<W> {
    let window = FixedWindow::builder(limit, Duration::from_secs(1))
        .build_on()
        .unwrap();
    let settings = Penalty::builder(WAIT).staleness(Duration::from_secs(1));
    settings
        .after(denials, Duration::from_mins(1))
        .build_on()
        .unwrap()
        .around(window)
}

/// Returns the first second without a penalty.
fn end<W: Word>(limit: &Limit<W>, from: u64) -> u64 {
    (from..from + 60)
        .find(|&second| !limit.is_on_at(at(second)))
        .unwrap()
}

fn one_of_two_concurrent_denials_starts_the_penalty_and_the_other_keeps_it<W: Word>() {
    explore(|| {
        let limit = Arc::new(window::<W>(1, 1));
        assert_eq!(take(&*limit, at(10), 1), 1);
        let late = Timestamp::from_millis(10_500);
        let a = spawn(&limit, move |limit| take(limit, late, 1));
        assert_eq!(take(&*limit, at(10), 1), 0);
        // The penalty is that of one denial, and the other does not prolong it.
        turn();
        let longer = limit.is_on_at(Timestamp::from_millis(15_499));
        assert_eq!(join(a), 0);
        assert!(limit.is_on_at(Timestamp::from_millis(14_999)));
        assert_eq!(limit.is_on_at(Timestamp::from_millis(15_499)), longer);
        assert_eq!(take(&*limit, Timestamp::from_millis(15_500), 1), 1);
    });
}

fn a_take_during_the_start_of_a_penalty_stays_within_the_limit<W: Word>() {
    explore(|| {
        let limit = Arc::new(window::<W>(2, 1));
        assert_eq!(take(&*limit, at(10), 1), 1);
        let denied = spawn(&limit, |limit| take(limit, at(10), 2));
        let a = spawn(&limit, |limit| take(limit, at(10), 1));
        let b = take(&*limit, at(10), 1);
        assert_eq!(join(denied), 0);
        assert!(join(a) + b <= 1);
        assert_eq!((end(&limit, 10), limit.available_at(at(10))), (15, 0));
        assert_eq!(limit.limiter().available_at(at(15)), 2);
        assert_eq!(take(&*limit, at(15), 2), 2, "no permit is lost");
    });
}

fn a_thread_that_has_seen_a_penalty_is_denied_until_its_end<W: Word>() {
    explore(|| {
        let limit = Arc::new(window::<W>(1, 1));
        assert_eq!(take(&*limit, at(10), 1), 1);
        let denied = spawn(&limit, |limit| take(limit, at(10), 1));
        let seen = spawn(&limit, |limit| {
            // The window is over, so the inner limiter would grant.
            let on = limit.is_on_at(at(11));
            turn();
            (on, limit.take_at(at(11), 1))
        });
        assert_eq!(join(denied), 0);
        let (on, decision) = join(seen);
        assert!(
            !on || decision
                == Err(Denied::Penalized {
                    now: at(11),
                    permits: 1
                })
        );
        assert!(limit.is_on_at(at(14)));
        assert_eq!(take(&*limit, at(14), 1), 0);
    });
}

fn a_pardon_during_the_start_of_a_penalty_ends_it_or_precedes_it<W: Word>() {
    explore(|| {
        let limit = Arc::new(window::<W>(1, 1));
        assert_eq!(take(&*limit, at(10), 1), 1);
        let denied = spawn(&limit, |limit| take(limit, at(10), 1));
        turn();
        limit.pardon();
        assert_eq!(join(denied), 0);
        let end = end(&limit, 10);
        assert!(end == 10 || end == 15, "{end}");
        turn();
        limit.pardon();
        assert!(!limit.is_on_at(at(10)));
        assert_eq!(take(&*limit, at(11), 1), 1);
    });
}

fn clearing_the_word_does_not_lose_a_penalty_that_starts<W: Word>() {
    explore(|| {
        let limit = Arc::new(window::<W>(1, 1));
        assert_eq!(take(&*limit, at(10), 1) + take(&*limit, at(10), 1), 1);
        // The earlier penalty has been over for longer than the staleness.
        let a = spawn(&limit, |limit| take(limit, at(20), 1));
        let b = take(&*limit, at(20), 1);
        assert_eq!(join(a) + b, 1);
        assert_eq!(end(&limit, 20), 25);
    });
}

fn the_third_of_three_denials_starts_the_penalty<W: Word>() {
    explore(|| {
        let limit = Arc::new(window::<W>(1, 3));
        assert_eq!(take(&*limit, at(10), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(10), 1));
        let b = spawn(&limit, |limit| take(limit, at(10), 1));
        assert_eq!(take(&*limit, at(10), 1) + join(a) + join(b), 0);
        assert_eq!(end(&limit, 10), 15);

        let limit = Arc::new(window::<W>(1, 3));
        assert_eq!(take(&*limit, at(10), 1), 1);
        let a = spawn(&limit, |limit| take(limit, at(10), 1));
        assert_eq!(take(&*limit, at(10), 1) + join(a), 0);
        assert_eq!(end(&limit, 10), 10, "two do not");
    });
}

fn of_two_concurrent_penalties_by_hand_the_later_end_counts<W: Word>() {
    explore(|| {
        let limit = Arc::new(window::<W>(1, 1));
        let a = spawn(&limit, |limit| limit.penalize_at(at(10), at(12)));
        let b = spawn(&limit, |limit| limit.penalize_at(at(10), at(14)));
        let c = limit.penalize_at(at(10), at(13));
        let (a, b) = (join(a), join(b));
        assert_eq!(b, at(14));
        assert!((at(12)..=at(14)).contains(&a) && (at(13)..=at(14)).contains(&c));
        assert_eq!(end(&limit, 10), 14);
    });
}

fn a_penalty_by_hand_outlasts_one_of_a_denial_and_a_cleared_one<W: Word>() {
    explore(|| {
        let limit = Arc::new(window::<W>(1, 1));
        assert_eq!(take(&*limit, at(10), 1) + take(&*limit, at(10), 1), 1);
        // The earlier penalty has been over for longer than the staleness: a grant clears it, and
        // a denial starts another one.
        let a = spawn(&limit, |limit| take(limit, at(20), 1));
        let b = spawn(&limit, |limit| take(limit, at(20), 1));
        let until = limit.penalize_at(at(19), at(22));
        assert!(join(a) + join(b) <= 1);
        let end = end(&limit, 20);
        assert!(until >= at(22) && (end == 22 || end == 25), "{end}");
    });
}

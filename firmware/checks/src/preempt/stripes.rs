//! Two calls on different stripes of one limiter. One stripe of a bucket holds all permits that are
//! left: that of the interrupted call, that of the handler, or a third one. So the other call takes
//! them from that stripe, or both do.
//!
//! With 32-bit words the stripes of a concurrency limit hold nothing.

use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

use critical_section::Mutex;
use portcullis_core::limiter::Receipt;
use portcullis_core::parts::Stripe;
use portcullis_core::{Limiter, Rate, StripedBucket, StripedConcurrency, Timestamp};

use super::{AFTER, BEFORE, CAME_IN, GRANTED, Point, Scenario, WITHIN, both, note, now};

/// The stripes of the two calls, and two others.
const INTERRUPTED: usize = 0;
const HANDLER: usize = 1;
const THIRD: usize = 2;
const FOURTH: usize = 3;

const BURST: u32 = 160;
/// A stripe draws so many permits, while the rest has 16 times as many left.
const DRAWN: u32 = 8;
/// A draw, less the permit that it is made for.
const LEFT: u32 = DRAWN - 1;
/// What is refunded, and what the other call takes.
const PART: u32 = 3;

static BUCKET: StripedBucket<4, u32> = built!(
    StripedBucket::builder(Rate::per_second(20), BURST as u64)
        .tick(Duration::from_millis(10))
        .build_on()
);
static LIMIT: StripedConcurrency<2, u32> = built!(StripedConcurrency::builder(2).build_on());

/// What the bucket had when the handler took from it.
static SEEN: AtomicU32 = AtomicU32::new(0);
/// What the handler refunds, or the interrupted call.
static RECEIPT: Mutex<Cell<Option<Receipt>>> = Mutex::new(Cell::new(None));

fn bucket(stripe: usize) -> Stripe<'static, StripedBucket<4, u32>> {
    Stripe::of(&BUCKET, stripe)
}

fn limit(stripe: usize) -> Stripe<'static, StripedConcurrency<2, u32>> {
    Stripe::of(&LIMIT, stripe)
}

fn takes(stripe: usize, n: u32) -> bool {
    bucket(stripe).take_at(now(), n).is_ok()
}

fn came_in(phase: u32) -> bool {
    CAME_IN.load(Relaxed) == phase
}

/// Empties a full bucket, except for `LEFT` permits, which are in `stripe`. Returns whether it did.
fn leave_in(stripe: usize) -> bool {
    // More than a draw, so these are of the rest. It is not full then, so nothing is settled.
    let first = DRAWN + 1;
    BUCKET.available_at(now()) == BURST.into()
        && takes(FOURTH, first)
        && takes(stripe, 1)
        && takes(FOURTH, BURST - first - DRAWN)
        && BUCKET.held() == LEFT.into()
        && BUCKET.available_at(now()) == LEFT.into()
}

/// Takes what is left, and returns whether it was exactly `left` permits. No stripe holds any
/// afterwards.
fn are_left(left: u32) -> bool {
    BUCKET.available_at(now()) == left.into() && takes(FOURTH, left) && !takes(FOURTH, 1)
}

/// In the handler: takes from the bucket.
fn take(n: u32) {
    SEEN.store(BUCKET.available_at(now()) as u32, Relaxed);
    note(takes(HANDLER, n));
}

/// A take of `n` permits, and one within it. `stripe` holds all permits.
fn two_takes(point: &mut Point<'_>, stripe: usize, n: u32) -> bool {
    let is_left = leave_in(stripe);
    let own = point.interrupted(|| takes(INTERRUPTED, n));
    let (seen, within) = (SEEN.load(Relaxed), both(false) == 1);
    let after = if own { LEFT - n } else { LEFT };
    // While the interrupted call takes from another stripe, it may have all permits in its hands.
    // The handler is denied these, and only these.
    let is_seen = seen == LEFT && !came_in(AFTER)
        || seen == after && !came_in(BEFORE)
        || seen == 0 && came_in(WITHIN) && stripe != INTERRUPTED;
    let fit = 2 * n <= LEFT;
    is_left
        && is_seen
        && within == (seen >= n)
        && own == (fit || !within || came_in(AFTER))
        && are_left(LEFT - n * both(own))
}

/// Leaves permits in the third stripe and takes `n` of them, for a refund.
fn leave_and_take(n: u32) -> bool {
    let is_left = leave_in(THIRD);
    let receipt = bucket(THIRD).take_at(now(), n).ok();
    let is_taken = receipt.is_some();
    critical_section::with(|section| RECEIPT.borrow(section).set(receipt));
    is_left && is_taken
}

/// Refunds these permits. Returns how many return.
fn refund(n: u32) -> u32 {
    let receipt = critical_section::with(|section| RECEIPT.borrow(section).take());
    receipt.map_or(0, |receipt| {
        bucket(HANDLER).refund_at(now(), n, receipt).permits
    })
}

/// Checks an outcome that depends on which call was first: it is `true` if the handler came in
/// `phase`, before or after the other call.
fn is_due(outcome: bool, phase: u32) -> bool {
    came_in(WITHIN) || outcome == came_in(phase)
}

/// Takes a permit of the limit.
fn take_of_limit(stripe: usize) -> bool {
    limit(stripe).take_at(Timestamp::ZERO, 1).is_ok()
}

macro_rules! two_takes {
    ($name:literal, $stripe:ident, $n:literal) => {
        ($name, || take($n), |point| two_takes(point, $stripe, $n))
    };
}

/// The bucket's come first: they end before its word repeats.
pub(super) const SCENARIOS: &[Scenario] = &[
    two_takes!("the handler empties the stripe", INTERRUPTED, 3),
    two_takes!("the handler empties the stripe, for one", INTERRUPTED, 5),
    two_takes!("the handler's stripe is emptied", HANDLER, 3),
    two_takes!("the handler's stripe is emptied, for one", HANDLER, 5),
    two_takes!("a third stripe is emptied by both", THIRD, 3),
    two_takes!("a third stripe is emptied by both, for one", THIRD, 5),
    (
        "a refund to a stripe that is emptied",
        || GRANTED.store(refund(PART), Relaxed),
        |point| {
            let is_taken = leave_and_take(PART);
            let own = point.interrupted(|| takes(INTERRUPTED, PART));
            let back = both(false);
            is_taken
                && own
                && [0, PART].contains(&back)
                && is_due(back == PART, BEFORE)
                && are_left(LEFT - 2 * PART + back)
        },
    ),
    (
        "a stripe is emptied within a refund to it",
        || take(PART),
        |point| {
            let is_taken = leave_and_take(PART);
            let back = point.interrupted(|| refund(PART));
            is_taken
                && both(false) == 1
                && [0, PART].contains(&back)
                && is_due(back == PART, AFTER)
                && are_left(LEFT - 2 * PART + back)
        },
    ),
    (
        "one for two, stripes of a limit",
        || note(take_of_limit(HANDLER)),
        |point| {
            let had = take_of_limit(INTERRUPTED);
            let own = point.interrupted(|| take_of_limit(INTERRUPTED));
            let is_out = both(own) == 1 && LIMIT.in_use() == 2 && !take_of_limit(INTERRUPTED);
            limit(HANDLER).release(2);
            had && is_out && LIMIT.available() == 2
        },
    ),
    (
        "a release to another stripe within a take",
        || limit(HANDLER).release(1),
        |point| {
            let had = take_of_limit(HANDLER);
            let own = point.interrupted(|| take_of_limit(INTERRUPTED));
            let is_out = LIMIT.in_use() == 1;
            limit(INTERRUPTED).release(1);
            had && own && is_out && LIMIT.available() == 2
        },
    ),
    (
        "a take from another stripe within a release",
        || note(take_of_limit(HANDLER)),
        |point| {
            let had = take_of_limit(INTERRUPTED);
            point.interrupted(|| limit(INTERRUPTED).release(1));
            let is_out = both(false) == 1 && LIMIT.in_use() == 1;
            limit(HANDLER).release(1);
            had && is_out && LIMIT.available() == 2
        },
    ),
];

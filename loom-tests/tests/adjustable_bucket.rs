//! The adjustable bucket: one word names one of two sets of settings; the other set may be being
//! written, and a claim protects the writer.
#![cfg(portcullis_loom)]

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;

use loom::sync::Arc;
use portcullis_core::limiter::Receipt;
use portcullis_core::state::{Carry, ChangeError, Word};
use portcullis_core::{AdjustableBucket, Limiter, Rate, Timestamp};
use portcullis_loom::{
    at, explore, explore_briefly, explore_within, join, on_both_widths, spawn, take, turn,
};

on_both_widths!(
    takes_at_one_instant_during_a_change_share_the_available_permits,
    during_a_change_that_adds_a_permit_one_more_is_taken,
    a_change_during_takes_keeps_all_of_them,
    an_available_permit_is_granted_during_a_change,
    an_available_permit_is_granted_during_two_changes,
    an_available_permit_is_reported_during_two_changes,
    a_probe_during_two_changes_finds_the_available_permit,
    a_grant_costs_what_the_settings_it_was_decided_by_say,
    a_stale_change_during_a_newer_take_applies_at_the_newest_time,
    a_stale_change_during_a_newer_reservation_applies_at_the_newest_time,
    a_stale_change_after_a_newer_one_applies_at_the_newest_time,
    two_concurrent_changes_each_apply_fully_or_are_busy,
    a_change_reads_the_settings_that_the_previous_change_wrote,
    a_reservation_keeps_its_instant_while_another_is_cancelled,
    two_reservations_cancelled_concurrently_return_only_their_own_permits,
    permits_taken_while_a_reservation_is_cancelled_are_taken_once,
    a_take_is_refunded_out_of_order_during_another_take,
    a_reservation_during_a_change_is_carried_over_or_made_after_it,
    a_stale_change_during_a_newer_denied_take_adds_nothing,
    a_refund_during_another_refund_and_a_newer_take_exceeds_no_bound,
    permits_added_during_takes_are_taken_once,
    a_stale_addition_during_a_newer_take_leaves_no_more_than_a_full_bucket,
    a_refund_during_a_reset_is_worth_nothing_after_it,
    a_reset_during_a_change_of_the_settings_leaves_no_more_than_it_says,
);

const LONG: Duration = Duration::MAX;

/// A bucket that counts time in seconds and may owe two permits.
fn bucket<W: Word>(rate: Rate, burst: u64) -> Arc<AdjustableBucket<W>> {
    let settings = AdjustableBucket::builder(rate, burst)
        .debt(2)
        .staleness(Duration::from_secs(1));
    Arc::new(settings.tick(Duration::from_secs(1)).build_on().unwrap())
}

/// Returns a rate of one permit per `seconds`.
const fn every(seconds: u64) -> Rate {
    Rate::new(1, Duration::from_secs(seconds))
}

fn keep<W: Word>(bucket: &AdjustableBucket<W>, now: Timestamp, rate: Rate, burst: u64) {
    turn();
    assert_eq!(bucket.adjust_at(now, rate, burst, Carry::Keep), Ok(()));
}

/// Returns when a permit that is reserved at `now` is due, in seconds.
fn due<W: Word>(bucket: &AdjustableBucket<W>, now: Timestamp) -> u64 {
    turn();
    bucket.reserve_at(now, 1, LONG).unwrap().due().as_nanos() / 1_000_000_000
}

fn takes_at_one_instant_during_a_change_share_the_available_permits<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>(every(1), 2);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        keep(&limit, at(5), every(3), 2);
        let c = take(&*limit, at(5), 1);
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!(
            (limit.available_at(at(7)), limit.available_at(at(8))),
            (0, 1)
        );
    });
}

fn during_a_change_that_adds_a_permit_one_more_is_taken<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>(every(1), 1);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        turn();
        assert_eq!(limit.adjust_at(at(5), every(2), 2, Carry::Additive), Ok(()));
        let c = take(&*limit, at(5), 1);
        assert!(join(a) + join(b) + c <= 2);
        while take(&*limit, at(5), 1) == 1 {}
        assert_eq!(
            (limit.available_at(at(5)), limit.available_at(at(7))),
            (0, 1)
        );
    });
}

fn a_change_during_takes_keeps_all_of_them<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>(every(1), 3);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        keep(&limit, at(5), every(2), 3);
        assert_eq!((join(a), join(b)), (1, 1));
        assert_eq!(limit.available_at(at(5)), 1);
        assert_eq!(
            (limit.available_at(at(6)), limit.available_at(at(7))),
            (1, 2)
        );
    });
}

/// Returns a bucket with one of two permits left. A call that uses settings which are not fully
/// written, or of another set, would find none.
fn one_left<W: Word>() -> Arc<AdjustableBucket<W>> {
    let limit = bucket::<W>(every(1), 2);
    assert_eq!(take(&*limit, at(5), 1), 1);
    limit
}

fn an_available_permit_is_granted_during_a_change<W: Word>() {
    explore(|| {
        let limit = one_left::<W>();
        let change = spawn(&limit, |limit| keep(limit, at(5), every(3), 2));
        assert_eq!(take(&*limit, at(5), 1), 1);
        join(change);
        assert_eq!(
            (limit.available_at(at(7)), limit.available_at(at(8))),
            (0, 1)
        );
    });
}

fn change_twice<W: Word>(limit: &AdjustableBucket<W>) {
    keep(limit, at(5), every(3), 2);
    keep(limit, at(5), every(2), 2);
}

fn an_available_permit_is_granted_during_two_changes<W: Word>() {
    explore(|| {
        let limit = one_left::<W>();
        let changes = spawn(&limit, change_twice);
        assert_eq!(take(&*limit, at(5), 1), 1);
        join(changes);
        assert_eq!(
            (limit.available_at(at(6)), limit.available_at(at(7))),
            (0, 1)
        );
    });
}

fn an_available_permit_is_reported_during_two_changes<W: Word>() {
    explore(|| {
        let limit = one_left::<W>();
        let changes = spawn(&limit, change_twice);
        turn();
        assert_eq!(limit.available_at(at(5)), 1);
        join(changes);
    });
}

fn a_probe_during_two_changes_finds_the_available_permit<W: Word>() {
    explore(|| {
        let limit = one_left::<W>();
        let changes = spawn(&limit, change_twice);
        turn();
        assert!(limit.take_at(at(5), 0).is_ok());
        assert!(
            limit.take_at(at(5), 2).is_err(),
            "at no time are two permits available"
        );
        join(changes);
    });
}

static KEPT: AtomicBool = AtomicBool::new(false);

/// All three settings have the same word at 0 s, before any permit is replenished.
fn a_grant_costs_what_the_settings_it_was_decided_by_say<W: Word>() {
    explore(|| {
        let settings = AdjustableBucket::builder(Rate::per_second(10), 10)
            .initial(0)
            .debt(2);
        let settings = settings
            .staleness(Duration::from_secs(1))
            .tick(Duration::from_secs(1));
        let limit = Arc::new(settings.build_on::<W>().unwrap());
        let changes = spawn(&limit, |limit| {
            keep(limit, at(0), every(1), 10);
            keep(limit, at(0), every(10), 10);
        });
        let taken = take(&*limit, at(1), 2);
        join(changes);
        // If nothing has changed yet, ten permits are available by 1 s, and at most eight are left.
        // Otherwise two were not available. (A change that cannot tell whether the take at 1 s was
        // granted leaves what it would leave at either time. If a change came between, the next one
        // may apply at 1 s.)
        let later = limit.available_at(at(11));
        assert!(
            matches!((taken, later), (2, 0..=9) | (0, 1..=2)),
            "{taken} {later}"
        );
        KEPT.fetch_or(taken == 2 && later == 9, Relaxed);
    });
    assert!(KEPT.load(Relaxed));
}

/// One of five permits is left at 9 s, in a bucket from which one of five was taken at 10 s. From
/// then on, a faster rate would fill it.
fn a_stale_change_during_a_newer_take_applies_at_the_newest_time<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(every(1), 5);
        let a = spawn(&limit, |limit| take(limit, at(10), 1));
        keep(&limit, at(9), Rate::per_second(3), 5);
        assert_eq!(join(a), 1);
        assert_eq!(
            (limit.available_at(at(10)), limit.available_at(at(11))),
            (4, 5)
        );
    });
}

fn a_stale_change_during_a_newer_reservation_applies_at_the_newest_time<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(every(1), 5);
        let a = spawn(&limit, |limit| due(limit, at(10)));
        keep(&limit, at(9), Rate::per_second(3), 5);
        assert_eq!(join(a), 10);
        assert_eq!(
            (limit.available_at(at(10)), limit.available_at(at(11))),
            (4, 5)
        );
    });
}

/// The bucket is frozen at 10 s. So no permit is replenished, and a stale change adds none.
fn a_stale_change_after_a_newer_one_applies_at_the_newest_time<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(every(1), 5);
        assert_eq!(take(&*limit, at(5), 5), 5);
        let a = spawn(&limit, |limit| {
            limit.adjust_at(at(10), Rate::ZERO, 4, Carry::Reset).is_ok()
        });
        turn();
        let b = limit
            .adjust_at(at(9), Rate::per_second(3), 9, Carry::Keep)
            .is_ok();
        let a = join(a);
        assert!(a || b);
        assert!(!a || limit.available_at(at(10)) == 4);
    });
}

static WAS_BUSY: AtomicBool = AtomicBool::new(false);

fn two_concurrent_changes_each_apply_fully_or_are_busy<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(every(1), 1);
        assert_eq!(take(&*limit, at(5), 1), 1);
        // Either slow and large, or fast and small. Both replenish one permit in a second.
        let a = spawn(&limit, |limit| {
            limit.adjust_at(at(5), every(1), 4, Carry::Keep)
        });
        let fast = Rate::per_second(4);
        turn();
        let b = limit.adjust_at(at(5), fast, 1, Carry::Keep);
        let a = join(a);
        let refused = [a, b]
            .iter()
            .filter(|changed| **changed == Err(ChangeError::Busy))
            .count();
        assert!(
            refused <= 1 && [a, b].iter().filter(|changed| changed.is_ok()).count() == 2 - refused
        );
        WAS_BUSY.fetch_or(refused == 1, Relaxed);
        assert_eq!(
            (limit.available_at(at(5)), limit.available_at(at(6))),
            (0, 1)
        );
        let burst = limit.burst();
        assert_eq!(limit.available_at(at(7)), if burst == 4 { 2 } else { 1 });
        // The claim was released.
        keep(&limit, at(5), every(2), 2);
        assert_eq!(
            (limit.available_at(at(6)), limit.available_at(at(7))),
            (0, 1)
        );
    });
    assert!(WAS_BUSY.load(Relaxed));
}

fn a_change_reads_the_settings_that_the_previous_change_wrote<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(every(1), 4);
        assert_eq!(take(&*limit, at(5), 3), 3);
        let a = spawn(&limit, |limit| {
            limit.adjust_at(at(5), every(3), 4, Carry::Keep).is_ok()
        });
        turn();
        let b = limit.adjust_at(at(5), every(2), 4, Carry::Keep).is_ok();
        assert_eq!(limit.available_at(at(5)), 1);
        assert!(join(a) || b);
        assert_eq!(
            limit.available_at(at(5)),
            1,
            "whichever settings are in effect"
        );
    });
}

// Reservations.

/// Returns a bucket with a rate of one permit per second and no permits left.
fn spent<W: Word>(burst: u32) -> Arc<AdjustableBucket<W>> {
    let limit = bucket::<W>(every(1), burst.into());
    assert_eq!(take(&*limit, at(5), burst), burst.into());
    limit
}

fn a_reservation_keeps_its_instant_while_another_is_cancelled<W: Word>() {
    explore(|| {
        let limit = spent::<W>(1);
        let cancelled = spawn(&limit, |limit| {
            let reserved = limit.reserve_at(at(5), 1, LONG).unwrap();
            turn();
            reserved.cancel_at(at(5))
        });
        let kept = due(&limit, at(5));
        let back = join(cancelled);
        assert!(
            (kept, back) == (6, 1) || (kept, back) == (7, 0),
            "{kept} {back}"
        );
        assert_eq!(due(&limit, at(6)), kept + 1);
    });
}

fn two_reservations_cancelled_concurrently_return_only_their_own_permits<W: Word>() {
    explore(|| {
        let settings = AdjustableBucket::builder(every(1), 2)
            .debt(4)
            .staleness(Duration::from_secs(1));
        let limit = Arc::new(
            settings
                .tick(Duration::from_secs(1))
                .build_on::<W>()
                .unwrap(),
        );
        assert_eq!(take(&*limit, at(5), 2), 2);
        // Loom's threads own their data, so the reservations own the bucket.
        let first =
            portcullis_core::parts::Reservation::reserve_at(Arc::clone(&limit), at(5), 2, LONG)
                .unwrap();
        let last =
            portcullis_core::parts::Reservation::reserve_at(Arc::clone(&limit), at(5), 1, LONG)
                .unwrap();
        let a = spawn(&limit, move |_| first.cancel_at(at(5)));
        turn();
        let last = last.cancel_at(at(5));
        let first = join(a);
        // A cancellation that runs during the other one returns nothing.
        assert!(
            matches!((first, last), (2, 1) | (1, 0) | (0, 1)),
            "{first} {last}"
        );
        assert_eq!(due(&limit, at(5)), 6 + 3 - u64::from(first + last));
    });
}

fn permits_taken_while_a_reservation_is_cancelled_are_taken_once<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = spent::<W>(1);
        let reserved =
            portcullis_core::parts::Reservation::reserve_at(Arc::clone(&limit), at(5), 1, LONG)
                .unwrap();
        let a = spawn(&limit, |limit| take(limit, at(6), 1));
        let b = spawn(&limit, move |_| reserved.cancel_at(at(6)));
        let c = take(&*limit, at(6), 1);
        assert_eq!(join(b), 1, "no permit was free before the refund");
        let taken = join(a) + c;
        assert!(taken <= 1);
        assert_eq!(
            (limit.available_at(at(6)), limit.available_at(at(7))),
            (1 - taken, 1)
        );
    });
}

fn a_take_is_refunded_out_of_order_during_another_take<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>(every(1), 4);
        assert_eq!(take(&*limit, at(5), 2), 2);
        let noted: Receipt = limit.take_at(at(5), 1).unwrap();
        let back = spawn(&limit, move |limit| {
            let noted = noted;
            limit.refund_at(at(5), 1, noted).permits
        });
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let taken = take(&*limit, at(5), 1) + join(a);
        assert_eq!(join(back), 1, "in order or out of order");
        assert!((1..=2).contains(&taken));
        assert_eq!(limit.available_at(at(5)), 2 - taken);
        assert_eq!(limit.available_at(at(9)), 4);
    });
}

fn a_reservation_during_a_change_is_carried_over_or_made_after_it<W: Word>() {
    explore_within(2, || {
        let limit = spent::<W>(1);
        let change = spawn(&limit, |limit| keep(limit, at(5), every(3), 1));
        let kept = due(&limit, at(5));
        join(change);
        assert!(kept == 6 || kept == 8, "{kept}");
        // Charged at the current rate in either case.
        assert_eq!(due(&limit, at(5)), 11);
    });
}

/// By 6 s one permit is replenished, and by 7 s two. The bucket is frozen from 6 s on, so the
/// second permit is never replenished, unless it was granted before.
fn a_stale_change_during_a_newer_denied_take_adds_nothing<W: Word>() {
    explore_within(2, || {
        let limit = spent::<W>(5);
        let newer = spawn(&limit, |limit| take(limit, at(7), 2));
        let older = spawn(&limit, |limit| take(limit, at(6), 1));
        keep(&limit, at(6), Rate::ZERO, 5);
        let (newer, older) = (join(newer), join(older));
        let most = if newer == 2 { 2 } else { 1 };
        assert!(
            newer + older + limit.available_at(at(9)) <= most,
            "{newer} {older}"
        );
    });
}

/// At 6 s the bucket would be full without the two permits that were taken at 5 s. So refunding
/// them is worth nothing then.
fn a_refund_during_another_refund_and_a_newer_take_exceeds_no_bound<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(Rate::per_second(2), 4);
        let first: Receipt = limit.take_at(at(5), 2).unwrap();
        let second: Receipt = limit.take_at(at(5), 1).unwrap();
        let back = spawn(&limit, move |limit| {
            limit.refund_at(at(5), 2, first).permits
        });
        turn();
        limit.refund_at(at(5), 1, second);
        let mut taken = take(&*limit, at(6), 1);
        join(back);
        while take(&*limit, at(6), 1) == 1 {
            taken += 1;
        }
        assert!(taken <= 4, "{taken} at once");
    });
}

fn permits_added_during_takes_are_taken_once<W: Word>() {
    explore_briefly(2, 3, || {
        let limit = bucket::<W>(every(1), 3);
        assert_eq!(take(&*limit, at(5), 2), 2);
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 1));
        turn();
        assert_eq!(limit.add_at(at(5), 1), Ok(()));
        let c = take(&*limit, at(5), 1);
        let taken = join(a) + join(b) + c;
        assert_eq!(taken, 2, "one that was left, and one that was added");
        assert_eq!(limit.available_at(at(5)), 0);
    });
}

/// At 5 s an empty bucket has room for four permits. After a take at 6 s, a stale request must not
/// find four permits, and the request after it one more.
fn a_stale_addition_during_a_newer_take_leaves_no_more_than_a_full_bucket<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(every(1), 4);
        assert_eq!(take(&*limit, at(5), 4), 4);
        let newer = spawn(&limit, |limit| take(limit, at(6), 1));
        turn();
        assert_eq!(limit.add_at(at(5), 9), Ok(()));
        assert_eq!(join(newer), 1);
        let left = limit.available_at(at(6));
        assert!((3..=4).contains(&left), "{left}");
        let mut taken = 0;
        for now in [5, 6] {
            while take(&*limit, at(now), 1) == 1 {
                taken += 1;
            }
        }
        assert_eq!(taken, left);
    });
}

fn a_refund_during_a_reset_is_worth_nothing_after_it<W: Word>() {
    explore(|| {
        let limit = bucket::<W>(every(1), 3);
        let taken: Receipt = limit.take_at(at(5), 2).unwrap();
        let back = spawn(&limit, move |limit| {
            limit.refund_at(at(5), 2, taken).permits
        });
        turn();
        let reset = limit.reset_at(at(5), 1);
        let back = join(back);
        let left = limit.available_at(at(5));
        match reset {
            Ok(()) => assert_eq!(left, 1, "{back} were refunded"),
            Err(busy) => assert_eq!((busy, back, left), (ChangeError::Busy, 2, 3)),
        }
    });
}

fn a_reset_during_a_change_of_the_settings_leaves_no_more_than_it_says<W: Word>() {
    explore_within(2, || {
        let limit = bucket::<W>(every(1), 3);
        let change = spawn(&limit, |limit| {
            turn();
            limit.adjust_at(at(5), every(2), 2, Carry::Keep)
        });
        let a = spawn(&limit, |limit| take(limit, at(5), 1));
        turn();
        let reset = limit.reset_at(at(5), 1);
        let (change, a) = (join(change), join(a));
        assert!(change.is_ok() || reset.is_ok(), "one of them is not busy");
        let left = limit.available_at(at(5));
        if reset.is_ok() {
            assert!(left == 1 || left + a == 1, "{left}");
        } else {
            assert!(left == 2.min(3 - a) || left == 2 - a, "{left}");
        }
    });
}

//! Slices: the bucket's word and the permits that slices hold, every access `Relaxed`. And slices
//! of a concurrency limit, whose own accesses order memory.
#![cfg(portcullis_loom)]

use core::time::Duration;

use loom::sync::Arc;
use loom::thread::JoinHandle;
use portcullis_core::parts::{Slice, Sliceable};
use portcullis_core::state::Word;
use portcullis_core::{Concurrency, Limiter, Rate, SlicedBucket, Timestamp};
use portcullis_loom::{Witness, at, explore, join, on_both_widths, spawn, take, turn};

on_both_widths!(
    a_cut_during_takes_shares_the_burst_with_them,
    concurrent_cuts_get_at_most_half_together,
    a_draw_during_a_take_shares_the_rest_with_it,
    two_slices_that_draw_concurrently_share_the_rest,
    a_drop_during_takes_neither_loses_nor_adds_a_permit,
    a_drop_during_a_cut_keeps_the_permits_of_the_other_slice,
    a_drop_during_a_draw_keeps_the_permits_of_the_other_slice,
    a_slice_settled_and_dropped_during_a_take_adds_no_permits,
    a_slice_cut_in_advance_and_dropped_during_a_take_adds_no_permits,
    a_slice_settled_in_advance_and_dropped_during_a_take_adds_no_permits,
    a_slice_settled_by_a_take_stays_settled_when_the_take_is_refunded,
    a_take_is_refunded_during_a_cut_exactly_or_not_at_all,
    slices_of_a_limit_leave_one_permit_for_direct_takes,
    a_slice_of_a_limit_draws_and_releases_during_a_take,
    a_permit_taken_through_a_slice_guards_data,
);

/// A bucket with a rate of 1 permit per second and a burst of 4.
fn bucket<W: Word>() -> Arc<SlicedBucket<W>> {
    bucket_of(4)
}

/// A bucket with a rate of 1 permit per second, and ticks of a second.
fn bucket_of<W: Word>(burst: u64) -> Arc<SlicedBucket<W>> {
    let settings = SlicedBucket::builder(Rate::per_second(1), burst).tick(Duration::from_secs(1));
    Arc::new(settings.build_on().unwrap())
}

fn cut<L: Sliceable>(limiter: &Arc<L>, now: Timestamp, k: u32) -> Slice<Arc<L>> {
    turn();
    Slice::cut_at(Arc::clone(limiter), now, k).unwrap()
}

/// Runs `work` with a slice in a new thread.
fn with<L: Sliceable + 'static, T: 'static>(
    slice: Slice<Arc<L>>,
    work: impl FnOnce(Slice<Arc<L>>) -> T + 'static,
) -> JoinHandle<T> {
    loom::thread::spawn(move || {
        turn();
        work(slice)
    })
}

/// Checks that no permit is lost: without slices, exactly `left` permits are available.
fn has<W: Word>(bucket: &SlicedBucket<W>, now: Timestamp, left: u64) {
    assert_eq!((bucket.sliced(), bucket.available_at(now)), (0, left));
    assert_eq!(bucket.available_at(at(20)), 4);
}

fn a_cut_during_takes_shares_the_burst_with_them<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let a = spawn(&limit, |limit| take(limit, at(5), 2));
        let b = spawn(&limit, |limit| match limit.slice_at(at(5), 2) {
            Ok(slice) => take(&slice, at(5), 1),
            Err(_) => 0,
        });
        let c = take(&*limit, at(5), 1);
        let taken = join(a) + join(b) + c;
        has(&limit, at(5), 4 - taken);
    });
}

fn concurrent_cuts_get_at_most_half_together<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let one = |limit: &SlicedBucket<W>| {
            limit.slice_at(at(5), 1).map_or(0, |slice| {
                let held = slice.held();
                core::mem::forget(slice);
                held
            })
        };
        let a = spawn(&limit, one);
        let b = spawn(&limit, one);
        turn();
        let c = one(&limit);
        assert_eq!(
            (
                join(a) + join(b) + c,
                limit.sliced(),
                limit.available_at(at(5))
            ),
            (2, 2, 2)
        );
    });
}

fn a_draw_during_a_take_shares_the_rest_with_it<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let slice = cut(&limit, at(5), 1);
        let a = with(slice, |slice| take(&slice, at(5), 3));
        let b = spawn(&limit, |limit| take(limit, at(5), 2));
        let c = take(&*limit, at(5), 1);
        let taken = join(a) + join(b) + c;
        has(&limit, at(5), 4 - taken);
    });
}

fn two_slices_that_draw_concurrently_share_the_rest<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let (one, other) = (cut(&limit, at(5), 1), cut(&limit, at(5), 1));
        let a = with(one, |slice| take(&slice, at(5), 2) + take(&slice, at(5), 1));
        let b = with(other, |slice| take(&slice, at(5), 2));
        let taken = join(a) + join(b);
        assert!(
            taken >= 3,
            "one permit is not drawn by the other slice: {taken}"
        );
        has(&limit, at(5), 4 - taken);
    });
}

fn a_drop_during_takes_neither_loses_nor_adds_a_permit<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let slice = cut(&limit, at(5), 2);
        let a = with(slice, |slice| take(&slice, at(5), 1));
        let b = spawn(&limit, |limit| take(limit, at(5), 3));
        let c = take(&*limit, at(5), 2);
        let (a, b) = (join(a), join(b));
        assert!(a == 1 && b + c <= 3);
        has(&limit, at(5), 3 - b - c);
    });
}

fn a_drop_during_a_cut_keeps_the_permits_of_the_other_slice<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let slice = cut(&limit, at(5), 1);
        let dropped = with(slice, drop);
        let other = cut(&limit, at(5), 1);
        join(dropped);
        assert_eq!((limit.sliced(), limit.available_at(at(5))), (1, 3));
        assert_eq!(take(&other, at(5), 4), 4);
        drop(other);
        has(&limit, at(5), 0);
    });
}

fn a_drop_during_a_draw_keeps_the_permits_of_the_other_slice<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let (one, other) = (cut(&limit, at(5), 1), cut(&limit, at(5), 1));
        let dropped = with(one, drop);
        let first = take(&other, at(5), 3);
        join(dropped);
        assert_eq!((first, take(&other, at(5), 1)), (3, 1));
        drop(other);
        has(&limit, at(5), 0);
    });
}

/// Four permits are available at 9 s in total: those that were replenished by then beyond four had
/// no room.
fn a_slice_settled_and_dropped_during_a_take_adds_no_permits<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let slice = cut(&limit, at(1), 2);
        let a = with(slice, |slice| take(&slice, at(9), 2));
        let b = spawn(&limit, |limit| take(limit, at(9), 2));
        let c = take(&*limit, at(9), 2);
        assert_eq!(
            (join(a), join(b) + c),
            (2, 2),
            "two from the slice and two from the rest"
        );
        has(&limit, at(9), 0);
    });
}

/// Cuts a slice of half of the burst of 32, which holds for two seconds in advance.
fn half<W: Word>(limit: &Arc<SlicedBucket<W>>) -> Slice<Arc<SlicedBucket<W>>> {
    assert_eq!(limit.hold().as_secs(), 2);
    cut(limit, at(1), 16)
}

fn a_slice_cut_in_advance_and_dropped_during_a_take_adds_no_permits<W: Word>() {
    explore(|| {
        let limit = bucket_of::<W>(32);
        let slice = half(&limit);
        let a = with(slice, |slice| take(&slice, at(3), 16));
        let b = take(&*limit, at(3), 17);
        assert_eq!((join(a), b), (16, 0));
        assert_eq!((limit.sliced(), limit.available_at(at(3))), (0, 16));
    });
}

fn a_slice_settled_in_advance_and_dropped_during_a_take_adds_no_permits<W: Word>() {
    explore(|| {
        let limit = bucket_of::<W>(32);
        let slice = half(&limit);
        let a = with(slice, |slice| {
            take(&slice, at(9), 1) + take(&slice, at(11), 15)
        });
        let b = take(&*limit, at(11), 17);
        assert_eq!(
            (join(a), b),
            (16, 0),
            "the rest has room for only 16 permits at 11 s"
        );
        assert_eq!((limit.sliced(), limit.available_at(at(11))), (0, 16));
    });
}

fn a_slice_settled_by_a_take_stays_settled_when_the_take_is_refunded<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let slice = cut(&limit, at(1), 2);
        // After the take from the rest at 1 s, the slice finds itself settled at 3 s, and writes
        // nothing.
        let receipt = limit.take_at(at(1), 2).unwrap();
        let a = with(slice, |slice| take(&slice, at(3), 2));
        turn();
        limit.refund_at(at(1), 2, receipt);
        let a = join(a);
        assert!(a + limit.available_at(at(3)) <= 4);
        assert_eq!(limit.sliced(), 0);
    });
}

fn a_take_is_refunded_during_a_cut_exactly_or_not_at_all<W: Word>() {
    explore(|| {
        let limit = bucket::<W>();
        let receipt = limit.take_at(at(5), 2).unwrap();
        let a = spawn(&limit, |limit| {
            let slice = limit.slice_at(at(5), 1).unwrap();
            let taken = take(&slice, at(5), 1);
            core::mem::forget(slice);
            taken
        });
        turn();
        let back = u64::from(limit.refund_at(at(5), 2, receipt).permits);
        assert_eq!((join(a), limit.sliced()), (1, 1));
        assert_eq!(limit.available_at(at(5)), 1 + back);
    });
}

// Slices of a concurrency limit.

fn slices_of_a_limit_leave_one_permit_for_direct_takes<W: Word>() {
    explore(|| {
        let limit = Arc::new(Concurrency::builder(3).build_on::<W>().unwrap());
        let held = |limit: &Concurrency<W>, k| {
            limit.slice(k).map_or(0, |slice| {
                let held = slice.held();
                core::mem::forget(slice);
                held
            })
        };
        let a = spawn(&limit, move |limit| held(limit, 2));
        let b = spawn(&limit, move |limit| held(limit, 1));
        turn();
        let c = held(&limit, 1);
        let out = join(a) + join(b) + c;
        assert!(out <= 2);
        assert_eq!((limit.in_use(), limit.available()), (out, 3 - out));
    });
}

fn a_slice_of_a_limit_draws_and_releases_during_a_take<W: Word>() {
    explore(|| {
        let limit = Arc::new(Concurrency::builder(3).build_on::<W>().unwrap());
        let slice = cut(&limit, at(0), 1);
        let a = with(slice, |slice| {
            let lease = slice.try_acquire(2);
            let taken = lease.as_ref().map_or(0, |lease| lease.permits());
            drop(lease);
            assert_eq!(slice.held(), 1);
            taken
        });
        let b = spawn(&limit, |limit| {
            limit.try_acquire(2).map_or(0, |lease| lease.permits())
        });
        turn();
        let c = limit.try_acquire(1).map_or(0, |lease| lease.permits());
        let _ = (join(a), join(b), c);
        assert_eq!((limit.in_use(), limit.available()), (0, 3));
    });
}

fn a_permit_taken_through_a_slice_guards_data<W: Word>() {
    explore(|| {
        let guard = Arc::new((
            Concurrency::builder(2).build_on::<W>().unwrap(),
            Witness::new(),
        ));
        let a = spawn(&guard, |(limit, data)| {
            if let Ok(slice) = limit.slice(1) {
                let lease = slice.try_acquire(2);
                if lease.is_ok() {
                    data.write();
                }
                drop(lease);
            }
        });
        turn();
        if let Ok(_all) = guard.0.try_acquire(2) {
            guard.1.write();
        }
        join(a);
        assert_eq!(guard.0.in_use(), 0);
    });
}

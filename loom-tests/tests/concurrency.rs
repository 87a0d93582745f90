//! The concurrency limit: one word. A take acquires, a release releases.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use portcullis_core::limiter::{Back, Waiting};
use portcullis_core::state::Word;
use portcullis_core::{Concurrency, Limiter};
use portcullis_loom::{Witness, at, explore, join, on_both_widths, spawn, take, turn};

/// Releases one permit. Returns whether a request waits for it.
fn released(limit: &impl Limiter) -> Waiting {
    limit.give_back(Back::Release { permits: 1 }).waiting
}

on_both_widths!(
    racing_takes_share_the_limit_and_never_exceed_it,
    a_take_and_a_release_never_lose_a_permit,
    a_limit_decrease_during_a_release_neither_loses_nor_adds_a_permit,
    a_take_during_a_limit_decrease_is_judged_by_one_of_the_two_limits,
    a_take_during_a_limit_increase_is_judged_by_one_of_the_two_limits,
    two_concurrent_resizes_apply_in_sequence_and_keep_held_permits,
    a_permit_of_a_limit_of_one_guards_data,
    a_permit_guards_data_across_a_resize,
    a_taker_of_all_permits_sees_what_every_former_holder_wrote,
    a_waiter_bit_set_during_a_release_is_observed_or_the_permit_is,
    a_waiter_bit_survives_a_resize_and_a_take,
    a_waiter_bit_cleared_during_a_resize_stays_clear,
    a_permit_guards_data_across_changes_of_the_waiter_bit,
);

fn limit<W: Word>(limit: u32) -> Arc<Concurrency<W>> {
    Arc::new(Concurrency::builder(limit).build_on().unwrap())
}

/// A limit, and data that its permits guard.
fn guard<W: Word>(limit: u32) -> Arc<(Concurrency<W>, Witness)> {
    Arc::new((
        Concurrency::builder(limit).build_on().unwrap(),
        Witness::new(),
    ))
}

fn racing_takes_share_the_limit_and_never_exceed_it<W: Word>() {
    explore(|| {
        let limit = limit::<W>(2);
        let a = spawn(&limit, |limit| take(limit, at(0), 1));
        let b = spawn(&limit, |limit| take(limit, at(0), 1));
        let c = take(&*limit, at(0), 1);
        assert_eq!(join(a) + join(b) + c, 2);
        assert_eq!((limit.in_use(), limit.available()), (2, 0));
    });
}

fn a_take_and_a_release_never_lose_a_permit<W: Word>() {
    explore(|| {
        let limit = limit::<W>(2);
        limit.try_acquire(2).unwrap().forget();
        let a = spawn(&limit, |limit| take(limit, at(0), 1));
        let b = spawn(&limit, |limit| take(limit, at(0), 1));
        turn();
        limit.release(1);
        let out = 1 + join(a) + join(b);
        assert!(out <= 2);
        assert_eq!(u64::from(limit.in_use()), out);
        limit.release(u32::try_from(out).unwrap());
        assert_eq!((limit.in_use(), limit.available()), (0, 2));
    });
}

fn a_limit_decrease_during_a_release_neither_loses_nor_adds_a_permit<W: Word>() {
    explore(|| {
        let limit = limit::<W>(2);
        limit.try_acquire(2).unwrap().forget();
        let resize = spawn(&limit, |limit| {
            assert_eq!(limit.set_limit(1), Ok(2));
            // One of the two permits is still held.
            take(limit, at(0), 1)
        });
        turn();
        limit.release(1);
        assert_eq!(join(resize), 0);
        assert_eq!(
            (limit.in_use(), limit.limit(), limit.available()),
            (1, 1, 0)
        );
        limit.release(1);
        assert_eq!(
            (limit.in_use(), limit.limit(), limit.available()),
            (0, 1, 1)
        );
    });
}

fn a_take_during_a_limit_decrease_is_judged_by_one_of_the_two_limits<W: Word>() {
    explore(|| {
        let limit = limit::<W>(2);
        limit.try_acquire(1).unwrap().forget();
        let a = spawn(&limit, |limit| take(limit, at(0), 1));
        turn();
        assert_eq!(limit.set_limit(1), Ok(2));
        assert_eq!(take(&*limit, at(0), 1), 0, "the new limit applies");
        let out = 1 + join(a);
        assert_eq!((u64::from(limit.in_use()), limit.limit()), (out, 1));
        limit.release(u32::try_from(out).unwrap());
        assert_eq!((limit.in_use(), limit.available()), (0, 1));
    });
}

fn a_take_during_a_limit_increase_is_judged_by_one_of_the_two_limits<W: Word>() {
    explore(|| {
        let limit = limit::<W>(1);
        let a = spawn(&limit, |limit| take(limit, at(0), 1));
        let b = spawn(&limit, |limit| take(limit, at(0), 1));
        turn();
        assert_eq!(limit.set_limit(2), Ok(1));
        let out = join(a) + join(b);
        assert!(out == 1 || out == 2);
        assert_eq!(u64::from(limit.in_use()), out);
        assert_eq!(
            u64::from(limit.available()),
            2 - out,
            "the new limit applies"
        );
    });
}

fn two_concurrent_resizes_apply_in_sequence_and_keep_held_permits<W: Word>() {
    explore(|| {
        let limit = limit::<W>(5);
        limit.try_acquire(4).unwrap().forget();
        let a = spawn(&limit, |limit| limit.set_limit(3).unwrap());
        let b = spawn(&limit, |limit| limit.set_limit(7).unwrap());
        turn();
        limit.release(1);
        let last = match (join(a), join(b)) {
            (5, 3) => 7,
            (7, 5) => 3,
            other => panic!("the resizes did not apply in sequence: {other:?}"),
        };
        assert_eq!(
            (limit.limit(), limit.in_use(), limit.available()),
            (last, 3, last - 3)
        );
    });
}

fn a_permit_of_a_limit_of_one_guards_data<W: Word>() {
    explore(|| {
        let guard = guard::<W>(1);
        let visit = |(limit, data): &(Concurrency<W>, Witness)| {
            let lease = limit.try_acquire(1);
            if lease.is_ok() {
                data.write();
            }
        };
        let a = spawn(&guard, visit);
        let b = spawn(&guard, visit);
        turn();
        visit(&guard);
        join(a);
        join(b);
        assert_eq!(guard.0.in_use(), 0);
    });
}

fn a_permit_guards_data_across_a_resize<W: Word>() {
    explore(|| {
        let guard = guard::<W>(1);
        let visit = |(limit, data): &(Concurrency<W>, Witness)| {
            let lease = limit.try_acquire(1);
            if lease.is_ok() {
                data.write();
            }
        };
        let a = spawn(&guard, visit);
        // Sets the same limit, so a permit still excludes all other holders.
        let resize = spawn(&guard, |(limit, _)| limit.set_limit(1));
        turn();
        visit(&guard);
        join(a);
        assert_eq!(join(resize), Ok(1));
        assert_eq!(guard.0.in_use(), 0);
    });
}

fn a_taker_of_all_permits_sees_what_every_former_holder_wrote<W: Word>() {
    explore(|| {
        let guard = guard::<W>(2);
        let read = |(limit, data): &(Concurrency<W>, Witness)| {
            if let Ok(_lease) = limit.try_acquire(1) {
                data.read();
            }
        };
        let a = spawn(&guard, read);
        let b = spawn(&guard, read);
        turn();
        if let Ok(_lease) = guard.0.try_acquire(2) {
            guard.1.write();
        }
        join(a);
        join(b);
        assert_eq!(guard.0.in_use(), 0);
    });
}

fn a_waiter_bit_set_during_a_release_is_observed_or_the_permit_is<W: Word>() {
    explore(|| {
        let limit = limit::<W>(1);
        limit.try_acquire(1).unwrap().forget();
        let release = spawn(&limit, |limit| released(limit));
        turn();
        let _ = limit.give_back(Back::Watch(true));
        let found = take(&*limit, at(0), 1) == 1;
        assert!(
            join(release) == Waiting::Yes || found,
            "the waiter is missed"
        );
        assert_eq!(limit.in_use(), u32::from(found));
    });
}

fn a_waiter_bit_survives_a_resize_and_a_take<W: Word>() {
    explore(|| {
        let limit = limit::<W>(2);
        limit.try_acquire(1).unwrap().forget();
        let resize = spawn(&limit, |limit| limit.set_limit(3).unwrap());
        let other = spawn(&limit, |limit| take(limit, at(0), 1));
        turn();
        let _ = limit.give_back(Back::Watch(true));
        assert_eq!((join(resize), join(other)), (2, 1));
        assert_eq!(
            (limit.limit(), limit.in_use(), limit.available()),
            (3, 2, 1)
        );
        assert_eq!(released(&*limit), Waiting::Yes);
        assert_eq!(
            (limit.limit(), limit.in_use(), limit.available()),
            (3, 1, 2)
        );
    });
}

fn a_waiter_bit_cleared_during_a_resize_stays_clear<W: Word>() {
    explore(|| {
        let limit = limit::<W>(2);
        limit.try_acquire(2).unwrap().forget();
        let _ = limit.give_back(Back::Watch(true));
        let resize = spawn(&limit, |limit| limit.set_limit(3).unwrap());
        let release = spawn(&limit, |limit| released(limit) != Waiting::Unknown);
        turn();
        let _ = limit.give_back(Back::Watch(false));
        assert_eq!((join(resize), join(release)), (2, true));
        assert_eq!(released(&*limit), Waiting::No);
        assert_eq!(
            (limit.limit(), limit.in_use(), limit.available()),
            (3, 0, 3)
        );
    });
}

fn a_permit_guards_data_across_changes_of_the_waiter_bit<W: Word>() {
    explore(|| {
        let guard = guard::<W>(1);
        guard.0.try_acquire(1).unwrap().forget();
        let next = spawn(&guard, |(limit, data)| {
            if take(limit, at(0), 1) == 1 {
                data.write();
            }
        });
        let marks = spawn(&guard, |(limit, _)| {
            let _ = limit.give_back(Back::Watch(true));
            turn();
            let _ = limit.give_back(Back::Watch(false));
        });
        guard.1.write();
        turn();
        guard.0.release(1);
        join(next);
        join(marks);
    });
}

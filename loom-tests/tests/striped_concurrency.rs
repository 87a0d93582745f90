//! A concurrency limit in two stripes. A stripe draws an eighth of what the rest has left here,
//! from 1 permit on, and gives back more than a quarter of the limit. With a 32-bit word stripes
//! hold nothing, so these models are of a wide one.
#![cfg(portcullis_loom)]

use loom::sync::Arc;
use portcullis_core::limiter::{Back, Waiting};
use portcullis_core::parts::Stripe;
use portcullis_core::{Limiter, StripedConcurrency};
use portcullis_loom::queue::{Task, around, beside, beside_of, ends_well, hold};
use portcullis_loom::{Witness, at, explore, explore_briefly, join, spawn, take, turn};

/// Releases one permit. Returns whether a request waits for it.
fn released(limit: &impl Limiter) -> Waiting {
    limit.give_back(Back::Release { permits: 1 }).waiting
}

type Limit = StripedConcurrency<2, u64>;

fn limit(limit: u32) -> Arc<Limit> {
    Arc::new(StripedConcurrency::builder(limit).build_on().unwrap())
}

fn on(limit: &Limit, stripe: usize, n: u32) -> u64 {
    take(&Stripe::of(limit, stripe), at(0), n)
}

fn back(limit: &Limit, stripe: usize, n: u32) {
    turn();
    Stripe::of(limit, stripe).release(n);
}

/// Checks that all permits are there but those that are out.
fn has(limit: &Limit, out: u64) {
    let left = u64::from(limit.limit()) - out;
    assert_eq!(u64::from(limit.available()), left);
    assert_eq!(u64::from(limit.in_use()), out);
    assert_eq!((on(limit, 0, left as u32 + 1), limit.held()), (0, 0));
    assert_eq!(on(limit, 1, left as u32), left);
}

#[test]
fn two_calls_that_open_one_stripe_draw_once_each_and_lose_no_permit() {
    explore(|| {
        let limit = limit(16);
        let a = spawn(&limit, |limit| on(limit, 0, 1));
        let b = on(&limit, 0, 1);
        assert_eq!((join(a), b), (1, 1));
        has(&limit, 2);
    });
}

#[test]
fn two_calls_that_open_different_stripes_finish_the_moves_of_each_other() {
    explore(|| {
        let limit = limit(24);
        let a = spawn(&limit, |limit| on(limit, 0, 1));
        let b = on(&limit, 1, 1);
        assert_eq!((join(a), b), (1, 1));
        assert!(limit.held() >= 2);
        has(&limit, 2);
    });
}

#[test]
fn a_call_takes_back_what_a_stripe_holds_while_another_takes_from_it() {
    explore(|| {
        let limit = limit(9);
        assert_eq!(on(&limit, 0, 1), 1);
        assert_eq!(limit.held(), 1);
        let a = spawn(&limit, |limit| on(limit, 1, 8));
        let b = on(&limit, 0, 1);
        let a = join(a);
        assert!(a == 0 || b == 0, "the last permit is granted once");
        assert!(a + b > 0, "the one that came first is granted");
        has(&limit, 1 + a + b);
    });
}

#[test]
fn a_release_to_a_stripe_that_another_call_closes_is_not_lost() {
    explore(|| {
        let limit = limit(9);
        assert_eq!(on(&limit, 0, 1), 1);
        let a = spawn(&limit, |limit| on(limit, 1, 9));
        back(&limit, 0, 1);
        let a = join(a);
        has(&limit, a);
    });
}

#[test]
fn two_calls_that_need_all_permits_get_them_once() {
    explore(|| {
        let limit = limit(9);
        assert_eq!(on(&limit, 0, 1), 1);
        let a = spawn(&limit, |limit| on(limit, 0, 8));
        let b = on(&limit, 1, 8);
        let a = join(a);
        assert_eq!(a + b, 8, "one of them is granted");
        has(&limit, 9);
    });
}

#[test]
fn a_request_is_granted_if_there_is_a_permit_at_each_instant() {
    explore(|| {
        let limit = limit(9);
        assert_eq!(on(&limit, 0, 1) + on(&limit, 1, 7), 8);
        assert_eq!(
            limit.held(),
            1,
            "in the first stripe, and the rest has none"
        );
        // The only permit is released elsewhere before it is taken here.
        let a = spawn(&limit, |limit| {
            back(limit, 1, 1);
            on(limit, 0, 1)
        });
        assert_eq!(on(&limit, 1, 1), 1);
        assert_eq!(join(a), 1);
        has(&limit, 9);
    });
}

#[test]
fn a_full_stripe_returns_permits_while_another_call_takes_them() {
    explore(|| {
        let limit = limit(9);
        assert_eq!(on(&limit, 0, 1) + on(&limit, 1, 7), 8);
        back(&limit, 0, 1);
        assert_eq!(limit.held(), 2, "as many as it can hold");
        let a = spawn(&limit, |limit| on(limit, 1, 2));
        back(&limit, 0, 1);
        assert_eq!(join(a), 2);
        has(&limit, 8);
    });
}

#[test]
fn a_call_that_fills_a_stripe_and_one_that_closes_it_lose_no_permit() {
    explore(|| {
        let limit = limit(18);
        assert_eq!(on(&limit, 0, 1) + on(&limit, 0, 2), 3);
        assert_eq!(limit.held(), 0);
        let a = spawn(&limit, |limit| on(limit, 0, 1));
        let b = on(&limit, 1, 15);
        let a = join(a);
        assert!(a == 1 || b == 15);
        has(&limit, 3 + a + b);
    });
}

fn guard(of: u32) -> Arc<(Limit, Witness)> {
    let limit = StripedConcurrency::builder(of).build_on().unwrap();
    Arc::new((limit, Witness::new()))
}

#[test]
fn a_permit_guards_data_from_one_stripe_to_another() {
    explore(|| {
        let shared = guard(9);
        assert_eq!(on(&shared.0, 0, 1), 1);
        let a = spawn(&shared, |(limit, data)| {
            data.write();
            back(limit, 0, 1);
        });
        let (limit, data) = &*shared;
        if on(limit, 1, 9) == 9 {
            data.write();
        }
        join(a);
    });
}

#[test]
fn a_permit_guards_data_within_a_stripe() {
    explore(|| {
        let shared = guard(9);
        assert_eq!(on(&shared.0, 0, 1) + on(&shared.0, 1, 7), 8);
        assert_eq!(on(&shared.0, 0, 1), 1);
        let a = spawn(&shared, |(limit, data)| {
            data.write();
            back(limit, 0, 1);
        });
        let (limit, data) = &*shared;
        if on(limit, 0, 1) == 1 {
            data.write();
        }
        join(a);
    });
}

#[test]
fn a_permit_guards_data_within_the_rest() {
    explore(|| {
        // Too few for a draw. The word is the same before the take and after the release.
        let shared = guard(1);
        let work = |(limit, data): &(Limit, Witness)| {
            if on(limit, 0, 1) == 1 {
                data.write();
                back(limit, 0, 1);
            }
        };
        let a = spawn(&shared, work);
        work(&shared);
        join(a);
    });
}

#[test]
fn a_permit_guards_data_if_its_stripe_is_closed_as_it_was_before() {
    explore(|| {
        let shared = guard(9);
        assert_eq!(on(&shared.0, 0, 1), 1);
        let a = spawn(&shared, |(limit, data)| {
            // The only permit of the stripe.
            if on(limit, 0, 1) == 1 {
                data.write();
                back(limit, 0, 1);
            }
        });
        let (limit, data) = &*shared;
        if on(limit, 1, 8) == 8 {
            data.write();
            back(limit, 1, 8);
        }
        join(a);
    });
}

#[test]
fn a_permit_guards_data_through_a_move_that_a_third_thread_makes() {
    explore(|| {
        let shared = guard(9);
        assert_eq!(on(&shared.0, 1, 9), 9);
        let a = spawn(&shared, |(limit, data)| {
            data.write();
            // Opens the stripe.
            back(limit, 0, 9);
        });
        let b = spawn(&shared, |(limit, _)| limit.available());
        let (limit, data) = &*shared;
        if on(limit, 0, 1) == 1 {
            data.read();
        }
        join(a);
        join(b);
    });
}

// Waiters.

#[test]
fn a_waiter_bit_set_during_a_release_to_a_stripe_is_observed_or_the_permit_is() {
    explore(|| {
        let limit = limit(9);
        assert_eq!(on(&limit, 0, 1) + on(&limit, 1, 7) + on(&limit, 0, 1), 9);
        let release = spawn(&limit, |limit| released(limit));
        turn();
        let _ = limit.give_back(Back::Watch(true));
        assert_eq!(limit.held(), 0);
        let found = on(&limit, 1, 1) == 1;
        assert!(
            join(release) == Waiting::Yes || found,
            "the waiter is missed"
        );
        has(&limit, 8 + u64::from(found));
    });
}

#[test]
fn a_waiter_bit_set_during_a_draw_hides_no_permit() {
    explore(|| {
        let limit = limit(18);
        let draw = spawn(&limit, |limit| on(limit, 0, 1));
        turn();
        let _ = limit.give_back(Back::Watch(true));
        assert_eq!(
            on(&limit, 1, 17),
            17,
            "one permit is taken, the others are free"
        );
        assert_eq!(join(draw), 1);
        assert_eq!(limit.held(), 0);
        turn();
        let _ = limit.give_back(Back::Watch(false));
        back(&limit, 0, 18);
        assert!(limit.held() > 0, "stripes draw again");
        has(&limit, 0);
    });
}

#[test]
fn a_waiter_bit_set_during_a_return_of_a_full_stripe_is_observed_or_the_permits_are() {
    explore(|| {
        let limit = limit(9);
        assert_eq!(on(&limit, 0, 1) + on(&limit, 1, 7), 8);
        back(&limit, 0, 1);
        let release = spawn(&limit, |limit| released(limit));
        turn();
        let _ = limit.give_back(Back::Watch(true));
        let found = on(&limit, 1, 3) == 3;
        assert!(on(&limit, 1, 2) == 2 || found, "two have been free");
        assert!(
            join(release) == Waiting::Yes || found,
            "the waiter is missed"
        );
    });
}

#[test]
fn a_request_queued_during_a_release_to_a_stripe_is_granted() {
    explore_briefly(2, 3, || {
        let queue = around(StripedConcurrency::<2>::new(9));
        let held = [1, 7, 1].map(|n| hold(&queue, n));
        let [last, others @ ..] = held;
        assert_eq!(queue.available(), 0);
        let release = beside(move || drop(last));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "the permit is free or granted to it");
        drop(others);
        ends_well(&queue, 9, [&mut wait]);
    });
}

#[test]
fn a_request_queued_during_a_draw_is_granted() {
    explore_briefly(2, 3, || {
        let queue = around(StripedConcurrency::<2>::new(9));
        let draw = beside_of(&queue, |queue| Task::polled(queue, 1));
        let mut wait = Task::polled(&queue, 8);
        let mut draw = join(draw);
        assert!(wait.is_served() && draw.is_served(), "there are 9 permits");
        ends_well(&queue, 9, [&mut wait, &mut draw]);
    });
}

//! Hand-over: a release passes its permits directly to the first waiter, without returning them to
//! the limiter. No other request gets them, no other waiter is skipped, and the waiter bit that
//! stays set after the last waiter keeps no request from a free permit.
#![cfg(portcullis_loom)]

use std::sync::Arc;

use loom::sync::Arc as Shared;
use portcullis_async::{Drained, Rejected};
use portcullis_core::{Lease, Limiter};
use portcullis_loom::queue::{Drain, Queued, Task, beside, beside_of, ends_well, hold, queue};
use portcullis_loom::{Witness, at, explore, explore_within, join, turn};

type Wait = Task<Arc<Queued>>;

/// Returns whether `n` permits can be taken immediately. It only calls a take: any other call of
/// the queue clears a waiter bit that was left set.
fn are_free(queue: &Arc<Queued>, n: u32) -> bool {
    turn();
    Lease::try_acquire_at(Arc::clone(queue), at(0), n).is_ok()
}

/// Returns a queue whose only permit was handed to its last waiter.
fn handed_over() -> (Arc<Queued>, Wait) {
    let queue = queue(1);
    let held = hold(&queue, 1);
    let mut last = Task::polled(&queue, 1);
    drop(held);
    assert!(last.is_served() && !are_free(&queue, 1));
    (queue, last)
}

#[test]
fn a_permit_is_handed_to_the_waiter_and_not_to_a_concurrent_request() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut first = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        let mut second = Task::polled(&queue, 1);
        join(release);
        assert!(
            first.is_served() && !second.is_served(),
            "the only permit goes to the first waiter"
        );
        first.leave();
        assert!(second.is_served(), "waits although its permits are free");
        assert!(!are_free(&queue, 1));
        second.leave();
        assert!(are_free(&queue, 1), "no request waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_permit_handed_to_a_cancelled_waiter_is_free() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let only = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        only.leave();
        join(release);
        assert!(are_free(&queue, 1), "no request waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_permit_handed_to_a_cancelled_waiter_goes_to_a_concurrent_request() {
    explore_within(2, || {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let first = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        let gone = beside(move || first.leave());
        let mut second = Task::polled(&queue, 1);
        join(release);
        join(gone);
        assert!(second.is_served(), "waits although its permits are free");
        second.leave();
        assert!(are_free(&queue, 1), "no request waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_waiter_is_either_handed_a_permit_or_closed() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let close = beside_of(&queue, |queue| queue.close());
        turn();
        drop(held);
        join(close);
        assert!(wait.is_served(), "a closed queue has no waiters");
        assert!(wait.permits() == 1 || wait.rejected() == Some(Rejected::Closed { permits: 1 }));
        assert_eq!(queue.available_at(at(0)) + wait.permits(), 1);
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_released_above_a_lowered_limit_is_not_handed_over() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let lower = beside_of(&queue, |queue| {
            assert_eq!(queue.change(|limit| limit.set_limit(1)), Ok(2));
            // The other permit is held, by `held` or by the first waiter.
            drop(more);
        });
        turn();
        drop(held);
        join(lower);
        assert!(
            first.is_served() && !second.is_served(),
            "the new limit is one"
        );
        first.leave();
        assert!(second.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut second]);
    });
}

#[test]
fn a_hand_over_during_a_limit_increase_leaves_the_other_permits_to_the_next_waiter() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let raise = beside_of(&queue, |queue| queue.change(|limit| limit.set_limit(3)));
        turn();
        drop(held);
        assert_eq!(join(raise), Ok(1));
        assert!(
            first.is_served() && second.is_served(),
            "waits although its permits are free"
        );
        assert!(are_free(&queue, 1), "no request waits");
        ends_well(&queue, 3, [&mut first, &mut second]);
    });
}

#[test]
fn a_hand_over_to_the_last_waiter_during_a_limit_increase_leaves_the_other_permits_free() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut last = Task::polled(&queue, 1);
        let raise = beside_of(&queue, |queue| queue.change(|limit| limit.set_limit(2)));
        turn();
        drop(held);
        assert_eq!(join(raise), Ok(1));
        assert!(last.is_served() && are_free(&queue, 1), "no request waits");
        ends_well(&queue, 2, [&mut last]);
    });
}

#[test]
fn a_hand_over_of_two_permits_leaves_a_free_one_to_the_next_waiter() {
    explore(|| {
        let queue = queue(3);
        let held = hold(&queue, 2);
        // One permit is free, and the first waiter wants two.
        let (mut first, mut second) = (Task::polled(&queue, 2), Task::polled(&queue, 1));
        let release = beside(move || drop(held));
        second.poll();
        join(release);
        assert!(
            first.is_served() && second.is_served(),
            "waits although its permits are free"
        );
        assert!(!are_free(&queue, 1));
        ends_well(&queue, 3, [&mut first, &mut second]);
    });
}

#[test]
fn a_hand_over_of_two_permits_leaves_a_free_one_to_a_concurrent_request() {
    explore(|| {
        let queue = queue(3);
        let held = hold(&queue, 2);
        let mut first = Task::polled(&queue, 2);
        let release = beside(move || drop(held));
        let mut second = Task::polled(&queue, 1);
        join(release);
        assert!(
            first.is_served() && second.is_served(),
            "waits although its permits are free"
        );
        second.leave();
        assert!(are_free(&queue, 1), "no request waits");
        ends_well(&queue, 3, [&mut first]);
    });
}

#[test]
fn a_hand_over_of_two_permits_to_the_last_waiter_leaves_the_other_one_free() {
    explore(|| {
        let queue = queue(3);
        let held = hold(&queue, 2);
        let mut last = Task::polled(&queue, 2);
        let release = beside(move || drop(held));
        let newcomer = are_free(&queue, 1);
        join(release);
        assert!(
            last.is_served() && are_free(&queue, 1),
            "no request waits; {newcomer} before"
        );
        ends_well(&queue, 3, [&mut last]);
    });
}

#[test]
fn one_permit_is_not_handed_to_a_request_for_two() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let mut wait = Task::polled(&queue, 2);
        let release = beside(move || drop(more));
        turn();
        drop(held);
        join(release);
        assert!(wait.is_served(), "waits although its permits are free");
        assert_eq!(wait.permits(), 2);
        ends_well(&queue, 2, [&mut wait]);
    });
}

#[test]
fn two_concurrent_releases_are_handed_to_two_waiters() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let release = beside(move || drop(more));
        turn();
        drop(held);
        join(release);
        assert!(
            first.is_served() && second.is_served(),
            "waits although its permits are free"
        );
        assert!(!are_free(&queue, 1));
        ends_well(&queue, 2, [&mut first, &mut second]);
    });
}

#[test]
fn a_hand_over_to_the_last_waiter_during_a_release_leaves_the_released_permit_free() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let mut last = Task::polled(&queue, 1);
        let release = beside(move || drop(more));
        turn();
        drop(held);
        join(release);
        assert!(last.is_served() && are_free(&queue, 1), "no request waits");
        ends_well(&queue, 2, [&mut last]);
    });
}

#[test]
fn a_handed_over_permit_released_during_a_take_is_free() {
    explore(|| {
        let (queue, last) = handed_over();
        let release = beside(move || last.leave());
        // The new request may still find the waiter bit set.
        let taken = are_free(&queue, 1);
        join(release);
        assert!(are_free(&queue, 1), "no request waits; {taken} before");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_handed_over_permit_released_during_a_new_request_is_granted() {
    explore(|| {
        let (queue, last) = handed_over();
        let release = beside(move || last.leave());
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "waits although its permits are free");
        wait.leave();
        assert!(are_free(&queue, 1), "no request waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn two_handed_over_permits_released_concurrently_are_free() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        drop((held, more));
        assert!(first.is_served() && second.is_served() && !are_free(&queue, 1));
        let release = beside(move || first.leave());
        second.leave();
        join(release);
        assert!(are_free(&queue, 2), "no request waits");
        ends_well(&queue, 2, []);
    });
}

#[test]
fn a_handed_over_permit_refunded_during_a_take_is_free() {
    explore(|| {
        let (queue, last) = handed_over();
        let mut lease = last.outcome.unwrap().unwrap();
        let refund = beside(move || lease.refund_at(at(0), 1));
        let taken = are_free(&queue, 1);
        assert_eq!(join(refund), Ok(1));
        assert!(are_free(&queue, 1), "no request waits; {taken} before");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_drain_that_begins_during_the_release_of_a_handed_over_permit_ends() {
    explore(|| {
        let (queue, last) = handed_over();
        let release = beside(move || last.leave());
        let (mut drain, over) = Drain::polled(Drained::new(Arc::clone(&queue)));
        join(release);
        assert!(over || drain.is_over(), "waits although no permit is held");
        assert!(are_free(&queue, 1), "no request waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_drain_does_not_end_when_a_permit_is_handed_over() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(Drained::new(Arc::clone(&queue)));
        let mut wait = Task::polled(&queue, 1);
        let next = beside(move || {
            wait.is_served();
            wait
        });
        turn();
        drop(held);
        let mut wait = join(next);
        assert!(
            wait.is_served() && !drain.is_over(),
            "the permit was not free in between"
        );
        wait.leave();
        assert!(drain.is_over(), "waits although no permit is held");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_drain_sees_what_was_written_before_a_permit_was_handed_over() {
    explore_within(2, || {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(Drained::new(Arc::clone(&queue)));
        let mut wait = Task::polled(&queue, 1);
        let next = beside(move || {
            wait.poll();
            wait.leave();
        });
        let theirs = Shared::clone(&data);
        let told = beside(move || {
            if drain.is_over() {
                theirs.write();
            }
        });
        data.write();
        turn();
        drop(held);
        join(next);
        join(told);
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_permit_handed_from_waiter_to_waiter_guards_data() {
    explore_within(2, || {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let visit = |mut wait: Wait, data: Shared<Witness>| {
            move || {
                if wait.is_served() {
                    data.write();
                }
                wait.outcome = None;
                wait
            }
        };
        let (first, second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let first = beside(visit(first, Shared::clone(&data)));
        let second = beside(visit(second, Shared::clone(&data)));
        data.write();
        turn();
        drop(held);
        let (mut first, mut second) = (join(first), join(second));
        for wait in [&mut first, &mut second] {
            if wait.waits() {
                assert!(wait.is_served(), "waits although its permits are free");
                data.write();
                wait.outcome = None;
            }
        }
        assert!(are_free(&queue, 1), "no request waits");
        ends_well(&queue, 1, []);
    });
}

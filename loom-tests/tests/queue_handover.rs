//! Permits that a release hands over to the first one who waits, without their having been free:
//! nobody else gets them, nobody is left out by it, and the gate that stays raised after the last
//! wait keeps nobody from a permit that is free.
#![cfg(loom)]

use std::sync::Arc;

use loom::sync::Arc as Shared;
use portcullis_async::Rejected;
use portcullis_core::{Lease, Limiter};
use portcullis_loom::queue::{Drain, Queued, Task, beside, beside_of, ends_well, hold, queue};
use portcullis_loom::{Witness, at, explore, explore_within, join, turn};

type Wait = Task<Arc<Queued>>;

/// Whether `n` permits can be taken at once. Nothing but a take is called: all else that comes to
/// the queue lowers a gate at which nobody is.
fn are_free(queue: &Arc<Queued>, n: u32) -> bool {
    turn();
    Lease::try_acquire_at(Arc::clone(queue), at(0), n).is_ok()
}

/// One who has been handed the only permit, as the last one who waited.
fn handed_over() -> (Arc<Queued>, Wait) {
    let queue = queue(1);
    let held = hold(&queue, 1);
    let mut last = Task::polled(&queue, 1);
    drop(held);
    assert!(last.is_served() && !are_free(&queue, 1));
    (queue, last)
}

#[test]
fn a_permit_is_handed_to_who_waits_and_not_to_one_who_comes_beside_it() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut first = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        let mut second = Task::polled(&queue, 1);
        join(release);
        assert!(
            first.is_served() && !second.is_served(),
            "there is one permit, and one was first"
        );
        first.leave();
        assert!(second.is_served(), "sleeps though its permits are free");
        assert!(!are_free(&queue, 1));
        second.leave();
        assert!(are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_permit_that_is_handed_to_one_who_gives_up_is_free() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let only = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        only.leave();
        join(release);
        assert!(are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_permit_that_is_handed_to_one_who_gives_up_goes_to_one_who_comes_beside_it() {
    explore_within(2, || {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let first = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        let gone = beside(move || first.leave());
        let mut second = Task::polled(&queue, 1);
        join(release);
        join(gone);
        assert!(second.is_served(), "sleeps though its permits are free");
        second.leave();
        assert!(are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_permit_that_is_handed_over_beside_a_close_is_the_one_or_the_other() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let close = beside_of(&queue, |queue| queue.close());
        turn();
        drop(held);
        join(close);
        assert!(wait.is_served(), "nobody waits for what is closed");
        assert!(wait.permits() == 1 || wait.rejected() == Some(Rejected::Closed { permits: 1 }));
        assert_eq!(queue.available_at(at(0)) + wait.permits(), 1);
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn what_is_released_after_a_lower_limit_is_handed_to_nobody() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let lower = beside_of(&queue, |queue| {
            assert_eq!(queue.change(|limit| limit.set_limit(1)), Ok(2));
            // The other one is out, or the first who waits has it.
            drop(more);
        });
        turn();
        drop(held);
        join(lower);
        assert!(
            first.is_served() && !second.is_served(),
            "one permit is left"
        );
        first.leave();
        assert!(second.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut second]);
    });
}

#[test]
fn a_permit_that_is_handed_over_beside_a_higher_limit_leaves_the_others_to_the_next() {
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
            "sleeps though its permits are free"
        );
        assert!(are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 3, [&mut first, &mut second]);
    });
}

#[test]
fn a_permit_that_is_handed_to_the_last_one_beside_a_higher_limit_leaves_the_others_to_all() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut last = Task::polled(&queue, 1);
        let raise = beside_of(&queue, |queue| queue.change(|limit| limit.set_limit(2)));
        turn();
        drop(held);
        assert_eq!(join(raise), Ok(1));
        assert!(last.is_served() && are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 2, [&mut last]);
    });
}

#[test]
fn two_permits_that_are_handed_over_leave_a_free_one_to_the_next() {
    explore(|| {
        let queue = queue(3);
        let held = hold(&queue, 2);
        // One is free, and the first one wants two.
        let (mut first, mut second) = (Task::polled(&queue, 2), Task::polled(&queue, 1));
        let release = beside(move || drop(held));
        second.poll();
        join(release);
        assert!(
            first.is_served() && second.is_served(),
            "sleeps though its permits are free"
        );
        assert!(!are_free(&queue, 1));
        ends_well(&queue, 3, [&mut first, &mut second]);
    });
}

#[test]
fn two_permits_that_are_handed_over_leave_a_free_one_to_who_comes_beside_it() {
    explore(|| {
        let queue = queue(3);
        let held = hold(&queue, 2);
        let mut first = Task::polled(&queue, 2);
        let release = beside(move || drop(held));
        let mut second = Task::polled(&queue, 1);
        join(release);
        assert!(
            first.is_served() && second.is_served(),
            "sleeps though its permits are free"
        );
        second.leave();
        assert!(are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 3, [&mut first]);
    });
}

#[test]
fn two_permits_that_are_handed_to_the_last_one_leave_a_free_one_to_all() {
    explore(|| {
        let queue = queue(3);
        let held = hold(&queue, 2);
        let mut last = Task::polled(&queue, 2);
        let release = beside(move || drop(held));
        let newcomer = are_free(&queue, 1);
        join(release);
        assert!(
            last.is_served() && are_free(&queue, 1),
            "nobody waits; {newcomer} before"
        );
        ends_well(&queue, 3, [&mut last]);
    });
}

#[test]
fn one_permit_is_not_handed_to_who_waits_for_two() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let mut wait = Task::polled(&queue, 2);
        let release = beside(move || drop(more));
        turn();
        drop(held);
        join(release);
        assert!(wait.is_served(), "sleeps though its permits are free");
        assert_eq!(wait.permits(), 2);
        ends_well(&queue, 2, [&mut wait]);
    });
}

#[test]
fn two_permits_that_are_released_at_once_are_handed_to_two() {
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
            "sleeps though its permits are free"
        );
        assert!(!are_free(&queue, 1));
        ends_well(&queue, 2, [&mut first, &mut second]);
    });
}

#[test]
fn a_permit_that_is_handed_to_the_last_one_beside_a_release_leaves_that_to_all() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let mut last = Task::polled(&queue, 1);
        let release = beside(move || drop(more));
        turn();
        drop(held);
        join(release);
        assert!(last.is_served() && are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 2, [&mut last]);
    });
}

#[test]
fn a_permit_that_was_handed_over_and_comes_back_beside_a_take_is_free() {
    explore(|| {
        let (queue, last) = handed_over();
        let release = beside(move || last.leave());
        // Whoever comes may find the gate raised still.
        let taken = are_free(&queue, 1);
        join(release);
        assert!(are_free(&queue, 1), "nobody waits; {taken} before");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_permit_that_was_handed_over_and_comes_back_beside_a_wait_is_granted() {
    explore(|| {
        let (queue, last) = handed_over();
        let release = beside(move || last.leave());
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "sleeps though its permits are free");
        wait.leave();
        assert!(are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn two_permits_that_were_handed_over_and_come_back_at_once_are_free() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        drop((held, more));
        assert!(first.is_served() && second.is_served() && !are_free(&queue, 1));
        let release = beside(move || first.leave());
        second.leave();
        join(release);
        assert!(are_free(&queue, 2), "nobody waits");
        ends_well(&queue, 2, []);
    });
}

#[test]
fn a_permit_that_was_handed_over_and_comes_back_by_a_refund_beside_a_take_is_free() {
    explore(|| {
        let (queue, last) = handed_over();
        let mut lease = last.outcome.unwrap().unwrap();
        let refund = beside(move || lease.refund_at(at(0), 1));
        let taken = are_free(&queue, 1);
        assert_eq!(join(refund), Ok(1));
        assert!(are_free(&queue, 1), "nobody waits; {taken} before");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn one_who_waits_for_all_to_come_back_beside_what_was_handed_over_is_told() {
    explore(|| {
        let (queue, last) = handed_over();
        let release = beside(move || last.leave());
        let (mut drain, over) = Drain::polled(&queue);
        join(release);
        assert!(over || drain.is_over(), "sleeps though nothing is out");
        assert!(are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn one_who_waits_for_all_to_come_back_is_not_told_of_what_is_handed_over() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(&queue);
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
            "it has not been free in between"
        );
        wait.leave();
        assert!(drain.is_over(), "sleeps though nothing is out");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn one_who_finds_that_all_has_come_back_sees_what_was_written_before_a_permit_was_handed_over() {
    explore_within(2, || {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(&queue);
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
fn a_permit_that_is_handed_from_one_to_the_next_guards_data() {
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
                assert!(wait.is_served(), "sleeps though its permits are free");
                data.write();
                wait.outcome = None;
            }
        }
        assert!(are_free(&queue, 1), "nobody waits");
        ends_well(&queue, 1, []);
    });
}

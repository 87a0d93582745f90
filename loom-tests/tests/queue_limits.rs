//! A queue and its limiter: the mark in a limiter's own word that somebody waits, limits that
//! change, permits that all have to come back, and a limiter that panics.
#![cfg(loom)]

use core::future::Future;
use core::panic::AssertUnwindSafe;
use core::pin::pin;
use core::task::{Context, Waker};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Wake;

use loom::sync::Arc as Shared;
use portcullis_async::{Drained, Queue, RawLock, Rejected};
use portcullis_core::{Concurrency, Lease, QueueLimiter, Word};
use portcullis_loom::queue::{
    Drain, Lock, Panics, Queued, Still, Task, Unwatched, Woken, around, beside, beside_of,
    ends_well, hold, queue,
};
use portcullis_loom::{Witness, at, explore, explore_within, join, on_both_widths, turn};

on_both_widths!(
    a_wait_that_begins_beside_a_release_is_found_by_its_mark,
    a_wait_that_begins_as_the_last_one_ends_is_found_by_its_mark,
    a_wait_that_begins_beside_another_limit_is_found_by_its_mark,
);

fn queue_on<W: Word>(limit: u32) -> Arc<Queued<Concurrency<W>>> {
    around(Concurrency::try_new(limit).unwrap())
}

fn a_wait_that_begins_beside_a_release_is_found_by_its_mark<W: Word>() {
    explore(|| {
        let queue = queue_on::<W>(1);
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

fn a_wait_that_begins_as_the_last_one_ends_is_found_by_its_mark<W: Word>() {
    explore_within(2, || {
        let queue = queue_on::<W>(1);
        let held = hold(&queue, 1);
        let last = Task::polled(&queue, 1);
        let gone = beside(move || last.leave());
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(gone);
        join(release);
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

fn a_wait_that_begins_beside_another_limit_is_found_by_its_mark<W: Word>() {
    explore(|| {
        let queue = queue_on::<W>(1);
        let held = hold(&queue, 1);
        // Past the queue: it leaves what is free, and who waits.
        let resize = beside_of(&queue, |queue| {
            queue.change(|limit| limit.set_limit(2).and(limit.set_limit(1)))
        });
        let mut wait = Task::polled(&queue, 1);
        assert_eq!(join(resize), Ok(2));
        turn();
        drop(held);
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn one_who_queues_for_a_limit_that_keeps_no_mark_beside_a_release_is_granted() {
    explore(|| {
        let queue = around(Unwatched(Concurrency::new(1)));
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn one_who_queues_as_the_last_one_ends_for_a_limit_that_keeps_no_mark_is_granted() {
    explore_within(2, || {
        let queue = around(Unwatched(Concurrency::new(1)));
        let held = hold(&queue, 1);
        let last = Task::polled(&queue, 1);
        let gone = beside(move || last.leave());
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(gone);
        join(release);
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_that_is_handed_over_without_a_mark_guards_data() {
    explore(|| {
        let queue = around(Unwatched(Concurrency::new(1)));
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let theirs = Shared::clone(&data);
        let next = beside_of(&queue, move |queue| {
            let wait = Task::polled(queue, 1);
            if wait.permits() == 1 {
                theirs.write();
            }
            wait
        });
        data.write();
        turn();
        drop(held);
        let mut wait = join(next);
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_that_comes_back_by_a_refund_beside_a_wait_is_granted() {
    explore(|| {
        let queue = queue(1);
        let mut held = hold(&queue, 1);
        let refund = beside(move || held.refund_at(at(0), 1));
        let mut wait = Task::polled(&queue, 1);
        assert_eq!(join(refund), Ok(1));
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_that_is_released_for_later_beside_a_wait_is_granted_by_the_next_call() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let release = beside(move || Queue::release_later(held));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        queue.counts();
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_that_is_released_for_later_goes_by_who_is_at_the_lines_and_guards_data() {
    explore(|| {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let theirs = Shared::clone(&data);
        let look = beside_of(&queue, move |queue| {
            queue.counts();
            if wait.is_served() {
                theirs.write();
            }
            wait
        });
        data.write();
        turn();
        Queue::release_later(held);
        let mut wait = join(look);
        queue.counts();
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_limit_that_is_lowered_and_raised_beside_a_release_loses_nothing() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let mut wait = Task::polled(&queue, 1);
        let resize = beside_of(&queue, |queue| queue.change(|limit| limit.set_limit(1)));
        turn();
        drop(held);
        assert_eq!(join(resize), Ok(2));
        assert_eq!(queue.change(|limit| limit.set_limit(2)), Ok(1));
        assert!(wait.is_served(), "sleeps though its permits are free");
        drop(more);
        ends_well(&queue, 2, [&mut wait]);
    });
}

/// One who waits for all permits beside the release of the last one is told.
fn drained_beside_a_release<L: QueueLimiter + 'static>(
    limiter: impl Fn() -> L + Send + Sync + 'static,
) {
    explore(move || {
        let queue = around(limiter());
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let (mut drain, over) = Drain::polled(&queue);
        join(release);
        assert!(over || drain.is_over(), "sleeps though nothing is out");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn one_who_waits_for_all_to_come_back_beside_the_last_release_is_told() {
    drained_beside_a_release(|| Concurrency::new(1));
}

#[test]
fn one_who_waits_for_all_to_come_back_to_a_limit_that_keeps_no_mark_is_told() {
    drained_beside_a_release(|| Unwatched(Concurrency::new(1)));
}

#[test]
fn one_who_waits_for_all_to_come_back_and_is_polled_meanwhile_is_told() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(&queue);
        let release = beside(move || drop(held));
        let over = drain.poll();
        join(release);
        assert!(over || drain.is_over(), "sleeps though nothing is out");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn one_who_finds_that_all_has_come_back_sees_what_the_holder_wrote() {
    explore(|| {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let theirs = Shared::clone(&data);
        let release = beside(move || {
            theirs.write();
            drop(held);
        });
        let (drain, over) = Drain::polled(&queue);
        if over {
            data.write();
        }
        join(release);
        drop(drain);
        ends_well(&queue, 1, []);
    });
}

/// A lock for which the queue adds no fence. (That nobody is missed without one is not for loom to
/// say, which does not know one order of all such operations.)
#[derive(Debug)]
struct Sequential(Lock);

// SAFETY: as of the lock in it.
unsafe impl RawLock for Sequential {
    const OPEN: Self = panic!("loom's mutex cannot be built in a constant");
    const IS_SEQUENTIAL: bool = true;

    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.lock(work)
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.0.try_lock(work)
    }
}

#[test]
fn one_who_finds_under_a_sequential_lock_that_all_has_come_back_sees_what_the_holder_wrote() {
    explore(|| {
        let lock = Sequential(Lock::new());
        let queue = Arc::new(Queue::with_lock(Concurrency::new(1), Still, 9, lock));
        let data = Shared::new(Witness::new());
        let held = Lease::try_acquire_at(Arc::clone(&queue), at(0), 1).unwrap();
        let theirs = Shared::clone(&data);
        let release = beside(move || {
            theirs.write();
            drop(held);
        });
        let mut drain = pin!(Drained::new(Arc::clone(&queue)));
        turn();
        if drain
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_ready()
        {
            data.write();
        }
        join(release);
    });
}

#[test]
fn one_who_is_told_by_a_third_one_that_all_has_come_back_sees_what_the_holder_wrote() {
    explore(|| {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(&queue);
        let theirs = Shared::clone(&data);
        let next = beside(move || {
            if drain.is_over() {
                theirs.write();
            }
        });
        let look = beside_of(&queue, |queue| queue.advance());
        data.write();
        turn();
        drop(held);
        join(look);
        join(next);
        ends_well(&queue, 1, []);
    });
}

#[test]
fn one_who_waits_for_all_to_come_back_waits_for_a_newcomer_as_well() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(&queue);
        let release = beside(move || drop(held));
        let mut new = Task::polled(&queue, 1);
        join(release);
        assert!(new.is_served(), "sleeps though its permits are free");
        let between = drain.is_over();
        new.leave();
        assert!(between || drain.is_over(), "sleeps though nothing is out");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn two_who_wait_for_all_to_come_back_and_one_of_whom_gives_up_are_told() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let ((first, _), (mut second, _)) = (Drain::polled(&queue), Drain::polled(&queue));
        let release = beside(move || drop(held));
        turn();
        drop(first);
        join(release);
        assert!(second.is_over(), "sleeps though nothing is out");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn one_who_waits_for_all_to_come_back_after_a_close_is_told() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        turn();
        queue.close();
        let (mut drain, over) = Drain::polled(&queue);
        join(release);
        assert!(wait.is_served());
        let granted = wait.permits() == 1;
        assert!(granted || wait.rejected() == Some(Rejected::Closed { permits: 1 }));
        let over = over || drain.is_over();
        assert_ne!(granted, over, "over when nothing is out, and not before");
        wait.outcome = None;
        assert!(over || drain.is_over(), "sleeps though nothing is out");
        ends_well(&queue, 1, []);
    });
}

/// Releases, though somebody else's code may panic in it.
fn release<L: QueueLimiter + 'static>(held: Lease<Arc<Queued<L>>>) {
    turn();
    let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
}

/// Panics when it wakes, after it has.
struct PanicsAsWell(Arc<Woken>);

impl Wake for PanicsAsWell {
    fn wake(self: Arc<Self>) {
        Arc::clone(&self.0).wake();
        resume_unwind(Box::new("a waker's panic"));
    }
}

#[test]
fn a_waker_that_panics_beside_a_release_keeps_nobody_from_his_permit() {
    explore_within(2, || {
        let queue = queue(2);
        let (one, other) = (hold(&queue, 1), hold(&queue, 1));
        let mut first = Task::new(&queue, 1);
        first.poll_with(&Waker::from(Arc::new(PanicsAsWell(Arc::clone(
            &first.woken,
        )))));
        let mut second = Task::polled(&queue, 1);
        let beside = beside(move || release(one));
        release(other);
        join(beside);
        assert!(
            first.is_served() && second.is_served(),
            "sleeps though its permits are free"
        );
        ends_well(&queue, 2, [&mut first, &mut second]);
    });
}

#[test]
fn a_limiter_that_panics_as_a_permit_is_handed_over_leaves_it_to_the_next_call() {
    explore(|| {
        let (limiter, panic) = Panics::new(1);
        let queue = around(limiter);
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        panic(1);
        let release = beside(move || release(held));
        turn();
        let _ = catch_unwind(AssertUnwindSafe(|| queue.advance()));
        join(release);
        // Whatever is called next.
        queue.counts();
        assert!(wait.is_served(), "the mark has gone with the panic");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_limiter_that_panics_as_somebody_queues_leaves_what_is_released_to_the_next_call() {
    explore(|| {
        let (limiter, panic) = Panics::new(1);
        let queue = around(limiter);
        let held = hold(&queue, 1);
        let mut first = Task::polled(&queue, 1);
        panic(1);
        let release = beside(move || release(held));
        let mut second = Task::new(&queue, 1);
        // Asked before it queues, or for the first one in the queue.
        let _ = catch_unwind(AssertUnwindSafe(|| second.poll()));
        join(release);
        queue.counts();
        assert!(
            first.is_served() || second.permits() == 1,
            "the mark has gone with the panic"
        );
        ends_well(&queue, 1, [&mut first, &mut second]);
    });
}

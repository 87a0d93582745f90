//! A queue and its limiter: the waiter bit in the limiter's word, changes of the limit, drains, and
//! a limiter that panics.
#![cfg(portcullis_loom)]

use core::future::Future;
use core::panic::AssertUnwindSafe;
use core::pin::pin;
use core::task::{Context, Waker};
use core::time::Duration;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::Wake;

use loom::sync::Arc as Shared;
use portcullis_async::{Drained, Order, Queue, RawLock, Rejected};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::state::Word;
use portcullis_core::{Concurrency, Lease, Penalty, Timeless};
use portcullis_loom::queue::{
    Drain, Lock, Panics, Queued, Task, Unwatched, Woken, around, beside, beside_of, ends_well,
    hold, queue, timed,
};
use portcullis_loom::{Witness, at, explore, explore_within, join, on_both_widths, turn};

on_both_widths!(
    a_request_queued_during_a_release_is_found_by_the_waiter_bit,
    a_request_queued_as_the_last_waiter_leaves_is_found_by_the_waiter_bit,
    a_request_queued_during_a_limit_change_is_found_by_the_waiter_bit,
);

fn queue_on<W: Word>(limit: u32) -> Arc<Queued<Concurrency<W>>> {
    around(Concurrency::builder(limit).build_on().unwrap())
}

fn a_request_queued_during_a_release_is_found_by_the_waiter_bit<W: Word>() {
    explore(|| {
        let queue = queue_on::<W>(1);
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

fn a_request_queued_as_the_last_waiter_leaves_is_found_by_the_waiter_bit<W: Word>() {
    explore_within(2, || {
        let queue = queue_on::<W>(1);
        let held = hold(&queue, 1);
        let last = Task::polled(&queue, 1);
        let gone = beside(move || last.leave());
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(gone);
        join(release);
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

fn a_request_queued_during_a_limit_change_is_found_by_the_waiter_bit<W: Word>() {
    explore(|| {
        let queue = queue_on::<W>(1);
        let held = hold(&queue, 1);
        // Changes the limiter directly, past the queue's wait list: the change keeps the available
        // permits and the waiter bit.
        let resize = beside_of(&queue, |queue| {
            queue.change(|limit| limit.set_limit(2).and(limit.set_limit(1)))
        });
        let mut wait = Task::polled(&queue, 1);
        assert_eq!(join(resize), Ok(2));
        turn();
        drop(held);
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_pause_during_a_release_ends_the_wait_or_comes_after_its_grant() {
    explore(|| {
        let pause = Penalty::builder(Duration::from_secs(60)).started_by_hand();
        let limit = pause.build().unwrap().around(Concurrency::new(1));
        let queue = timed(limit, Order::OldestFirst);
        let held = hold(&queue, 1);
        let mut hurried = Task::polled_until(&queue, 1, 3);
        let mut patient = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        let until = queue.change(|limit| limit.penalize_at(at(0), at(9)));
        join(release);
        assert_eq!(until, at(9));
        // Nothing waits for the deadline: it comes before the end of the pause.
        assert!(hurried.is_served());
        match hurried.rejected() {
            None => assert_eq!(hurried.permits(), 1),
            Some(rejected) => assert!(matches!(rejected, Rejected::Deadline { .. })),
        }
        assert!(!patient.is_served());
        hurried.leave();
        queue.clock().advance_to(9);
        queue.advance();
        assert!(patient.is_served() && patient.permits() == 1);
        patient.leave();
        assert_eq!(queue.change(|limit| limit.limiter().in_use()), 0);
    });
}

#[test]
fn a_request_queued_during_a_release_of_a_limiter_without_a_waiter_bit_is_granted() {
    explore(|| {
        let queue = around(Unwatched(Concurrency::new(1)));
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_request_queued_as_the_last_waiter_of_a_limiter_without_a_waiter_bit_leaves_is_granted() {
    explore_within(2, || {
        let queue = around(Unwatched(Concurrency::new(1)));
        let held = hold(&queue, 1);
        let last = Task::polled(&queue, 1);
        let gone = beside(move || last.leave());
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(gone);
        join(release);
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_handed_over_without_a_waiter_bit_guards_data() {
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
fn a_permit_refunded_during_a_request_is_granted() {
    explore(|| {
        let queue = queue(1);
        let mut held = hold(&queue, 1);
        let refund = beside(move || held.refund_at(at(0), 1));
        let mut wait = Task::polled(&queue, 1);
        assert_eq!(join(refund), Ok(1));
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_released_for_later_during_a_request_is_granted_by_the_next_call() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let release = beside(move || Queue::release_later(held));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        queue.counts();
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_released_for_later_is_granted_by_the_holder_of_the_lock_and_guards_data() {
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
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_limit_lowered_and_raised_during_a_release_loses_nothing() {
    explore(|| {
        let queue = queue(2);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let mut wait = Task::polled(&queue, 1);
        let resize = beside_of(&queue, |queue| queue.change(|limit| limit.set_limit(1)));
        turn();
        drop(held);
        assert_eq!(join(resize), Ok(2));
        assert_eq!(queue.change(|limit| limit.set_limit(2)), Ok(1));
        assert!(wait.is_served(), "waits although its permits are free");
        drop(more);
        ends_well(&queue, 2, [&mut wait]);
    });
}

/// Checks that a drain which begins during the release of the last permit ends.
fn drained_beside_a_release<L: QueueLimiter + 'static>(
    limiter: impl Fn() -> L + Send + Sync + 'static,
) {
    explore(move || {
        let queue = around(limiter());
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let (mut drain, over) = Drain::polled(Drained::new(Arc::clone(&queue)));
        join(release);
        assert!(over || drain.is_over(), "waits although no permit is held");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_drain_that_begins_during_the_last_release_ends() {
    drained_beside_a_release(|| Concurrency::new(1));
}

#[test]
fn a_drain_of_a_limiter_without_a_waiter_bit_ends() {
    drained_beside_a_release(|| Unwatched(Concurrency::new(1)));
}

#[test]
fn a_drain_polled_during_the_last_release_ends() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(Drained::new(Arc::clone(&queue)));
        let release = beside(move || drop(held));
        let over = drain.poll();
        join(release);
        assert!(over || drain.is_over(), "waits although no permit is held");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_drain_sees_what_the_holder_wrote() {
    explore(|| {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let theirs = Shared::clone(&data);
        let release = beside(move || {
            theirs.write();
            drop(held);
        });
        let (drain, over) = Drain::polled(Drained::new(Arc::clone(&queue)));
        if over {
            data.write();
        }
        join(release);
        drop(drain);
        ends_well(&queue, 1, []);
    });
}

/// A lock for which the queue adds no fence. Loom cannot show that no waiter is missed without the
/// fence, because loom does not model one total order of sequentially consistent operations.
#[derive(Debug)]
struct Sequential(Lock);

// SAFETY: all calls are passed to `Lock`, which fulfils the contract.
unsafe impl RawLock for Sequential {
    const IS_SEQUENTIAL: bool = true;

    fn lock<T>(&self, work: impl FnOnce() -> T) -> T {
        self.0.lock(work)
    }

    fn try_lock<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.0.try_lock(work)
    }
}

#[test]
fn a_drain_with_a_sequential_lock_sees_what_the_holder_wrote() {
    explore(|| {
        let lock = Sequential(Lock::new());
        let queue = Arc::new(Queue::with_lock(Concurrency::new(1), Timeless, 9, lock));
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
fn a_drain_ended_by_a_third_thread_sees_what_the_holder_wrote() {
    explore(|| {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(Drained::new(Arc::clone(&queue)));
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
fn a_drain_waits_for_new_requests_too() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (mut drain, _) = Drain::polled(Drained::new(Arc::clone(&queue)));
        let release = beside(move || drop(held));
        let mut new = Task::polled(&queue, 1);
        join(release);
        assert!(new.is_served(), "waits although its permits are free");
        let between = drain.is_over();
        new.leave();
        assert!(
            between || drain.is_over(),
            "waits although no permit is held"
        );
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_drain_ends_although_another_one_is_cancelled() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let ((first, _), (mut second, _)) = (
            Drain::polled(Drained::new(Arc::clone(&queue))),
            Drain::polled(Drained::new(Arc::clone(&queue))),
        );
        let release = beside(move || drop(held));
        turn();
        drop(first);
        join(release);
        assert!(second.is_over(), "waits although no permit is held");
        ends_well(&queue, 1, []);
    });
}

#[test]
fn a_drain_after_a_close_ends() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        turn();
        queue.close();
        let (mut drain, over) = Drain::polled(Drained::new(Arc::clone(&queue)));
        join(release);
        assert!(wait.is_served());
        let granted = wait.permits() == 1;
        assert!(granted || wait.rejected() == Some(Rejected::Closed { permits: 1 }));
        let over = over || drain.is_over();
        assert_ne!(granted, over, "ends when no permit is held, and not before");
        wait.outcome = None;
        assert!(over || drain.is_over(), "waits although no permit is held");
        ends_well(&queue, 1, []);
    });
}

/// Releases a lease. Foreign code may panic during the release.
fn release<L: QueueLimiter + 'static>(held: Lease<Arc<Queued<L>>>) {
    turn();
    let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
}

/// Wakes, and then panics.
struct PanicsAsWell(Arc<Woken>);

impl Wake for PanicsAsWell {
    fn wake(self: Arc<Self>) {
        Arc::clone(&self.0).wake();
        resume_unwind(Box::new("a waker's panic"));
    }
}

#[test]
fn a_waker_that_panics_during_a_release_keeps_no_waiter_from_its_permit() {
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
            "waits although its permits are free"
        );
        ends_well(&queue, 2, [&mut first, &mut second]);
    });
}

#[test]
fn a_permit_is_granted_by_the_next_call_if_the_limiter_panics_during_its_hand_over() {
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
        // The pending bit is served by any later call.
        queue.counts();
        assert!(wait.is_served(), "the pending bit was lost in the panic");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_released_permit_is_granted_by_the_next_call_if_the_limiter_panics_during_a_request() {
    explore(|| {
        let (limiter, panic) = Panics::new(1);
        let queue = around(limiter);
        let held = hold(&queue, 1);
        let mut first = Task::polled(&queue, 1);
        panic(1);
        let release = beside(move || release(held));
        let mut second = Task::new(&queue, 1);
        // The limiter is asked for this request before it is queued, or for the head of the queue.
        let _ = catch_unwind(AssertUnwindSafe(|| second.poll()));
        join(release);
        queue.counts();
        assert!(
            first.is_served() || second.permits() == 1,
            "the pending bit was lost in the panic"
        );
        ends_well(&queue, 1, [&mut first, &mut second]);
    });
}

//! The wait queue: a release and a waiter never miss each other, and no permit is lost between
//! them.
#![cfg(portcullis_loom)]

use core::task::Waker;
use std::sync::Arc;
use std::task::Wake;

use loom::sync::{Arc as Shared, Notify};
use portcullis_async::{Next, Rejected};
use portcullis_core::{Lease, LimiterExt, Retry};
use portcullis_loom::queue::{
    Queued, Task, Woken, beside, beside_of, ends_well, hold, newest_first, queue,
};
use portcullis_loom::{Witness, at, explore, explore_briefly, explore_within, join, turn};

type Wait = Task<Arc<Queued>>;

#[test]
fn a_request_queued_during_a_release_is_granted() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "the permit is free or granted to it");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn two_requests_queued_during_a_release_are_granted_one_after_the_other() {
    explore_briefly(1, 2, || {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let other = beside_of(&queue, |queue| Task::polled(queue, 1));
        let mut mine = Task::polled(&queue, 1);
        join(release);
        let mut other = join(other);
        assert_ne!(mine.is_served(), other.is_served(), "there is one permit");
        let (first, mut second) = if mine.waits() {
            (other, mine)
        } else {
            (mine, other)
        };
        first.leave();
        assert!(second.is_served());
        ends_well(&queue, 1, [&mut second]);
    });
}

#[test]
fn a_permit_granted_to_a_cancelled_head_goes_to_the_next_waiter() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let head = Task::polled(&queue, 1);
        let mut next = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        head.leave();
        join(release);
        assert!(next.is_served());
        ends_well(&queue, 1, [&mut next]);
    });
}

#[test]
fn a_cancelled_head_makes_way_for_a_concurrent_request() {
    explore(|| {
        let queue = queue(2);
        let held = hold(&queue, 1);
        let head = Task::polled(&queue, 2);
        let gone = beside(move || head.leave());
        let mut wait = Task::polled(&queue, 1);
        join(gone);
        assert!(wait.is_served(), "no waiter is before it");
        drop(held);
        ends_well(&queue, 2, [&mut wait]);
    });
}

#[test]
fn two_concurrent_cancellations_make_way_for_the_third_waiter() {
    explore(|| {
        let queue = queue(2);
        let held = hold(&queue, 1);
        let first = Task::polled(&queue, 2);
        let second = Task::polled(&queue, 2);
        let mut third = Task::polled(&queue, 1);
        let gone = beside(move || first.leave());
        second.leave();
        join(gone);
        assert!(third.is_served());
        drop(held);
        assert_eq!(queue.counts().cancelled, 2);
        ends_well(&queue, 2, [&mut third]);
    });
}

#[test]
fn two_unclaimed_grants_cancelled_concurrently_are_returned() {
    explore(|| {
        let queue = queue(2);
        let held = hold(&queue, 2);
        let (first, second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let mut third = Task::polled(&queue, 2);
        drop(held);
        let gone = beside(move || first.leave());
        second.leave();
        join(gone);
        assert!(third.is_served());
        ends_well(&queue, 2, [&mut third]);
    });
}

#[test]
fn a_request_during_a_close_is_rejected() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let close = beside_of(&queue, |queue| queue.close());
        let mut wait = Task::polled(&queue, 1);
        join(close);
        assert!(wait.is_served(), "a closed queue has no waiters");
        assert_eq!(wait.rejected(), Some(Rejected::Closed { permits: 1 }));
        drop(held);
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_close_during_a_release_loses_no_permit() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let release = beside(move || drop(held));
        turn();
        queue.close();
        join(release);
        assert!(first.is_served() && second.is_served());
        ends_well(&queue, 1, [&mut first, &mut second]);
    });
}

#[test]
fn a_waiter_cancelled_during_a_close_is_removed_once() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let (first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let gone = beside(move || first.leave());
        turn();
        queue.close();
        join(gone);
        assert!(second.is_served());
        assert_eq!(second.rejected(), Some(Rejected::Closed { permits: 1 }));
        drop(held);
        ends_well(&queue, 1, [&mut second]);
    });
}

#[test]
fn a_waiter_evicted_during_a_release_gets_no_permit_and_the_newest_gets_it() {
    explore(|| {
        let queue = newest_first(1, 1);
        let held = hold(&queue, 1);
        let mut old = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        let mut new = Task::polled(&queue, 1);
        join(release);
        if queue.counts().evicted == 0 {
            // The old request was granted before; or the new one found the permit free and was not
            // queued.
            assert_ne!(old.is_served(), new.is_served());
        } else {
            assert!(old.is_served() && new.is_served());
            assert_eq!(
                old.rejected(),
                Some(Rejected::Evicted {
                    permits: 1,
                    retry: Retry::OnRelease
                })
            );
        }
        ends_well(&queue, 1, [&mut new, &mut old]);
    });
}

#[test]
fn several_waiters_evicted_during_a_release_are_woken_and_no_permit_is_lost() {
    explore_within(2, || {
        let queue = newest_first(2, 2);
        let held = hold(&queue, 2);
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let release = beside(move || drop(held));
        // The request evicts more waiters than fit into one batch of wakers.
        let mut new = Task::polled(&queue, 2);
        join(release);
        ends_well(&queue, 2, [&mut new, &mut second, &mut first]);
    });
}

#[test]
fn a_waiter_cancelled_during_its_eviction_is_removed_once() {
    explore(|| {
        let queue = newest_first(1, 1);
        let held = hold(&queue, 1);
        let old = Task::polled(&queue, 1);
        let gone = beside(move || old.leave());
        let mut new = Task::polled(&queue, 1);
        join(gone);
        let counts = queue.counts();
        assert_eq!((counts.evicted + counts.cancelled, counts.waiters), (1, 1));
        drop(held);
        ends_well(&queue, 1, [&mut new]);
    });
}

#[test]
fn a_request_queued_during_a_limit_increase_is_granted() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let change = beside_of(&queue, |queue| queue.change(|limit| limit.set_limit(2)));
        let mut wait = Task::polled(&queue, 1);
        assert_eq!(join(change), Ok(1));
        assert!(wait.is_served());
        drop(held);
        ends_well(&queue, 2, [&mut wait]);
    });
}

#[test]
fn a_waiter_for_more_than_a_lowered_limit_is_granted_by_a_release_or_rejected() {
    explore(|| {
        let queue = queue(2);
        let held = hold(&queue, 2);
        let mut wait = Task::polled(&queue, 2);
        let change = beside_of(&queue, |queue| queue.change(|limit| limit.set_limit(1)));
        turn();
        drop(held);
        assert_eq!(join(change), Ok(2));
        assert!(wait.is_served());
        let capacity = Some(Rejected::ExceedsCapacity {
            permits: 2,
            capacity: 1,
        });
        assert!(wait.permits() == 2 || wait.rejected() == capacity);
        wait.outcome = None;
        ends_well(&queue, 1, []);
    });
}

/// Checks that a release which finds the lock held leaves its permit to the holder of the lock,
/// whatever the holder does.
fn found_held<T: 'static>(work: impl Fn(&Arc<Queued>, &mut Wait) -> T + Send + Sync + 'static) {
    explore(move || {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        turn();
        let other = work(&queue, &mut wait);
        join(release);
        assert!(wait.is_served(), "waits although its permits are free");
        drop(other);
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_release_during_an_advance_is_granted() {
    found_held(|queue, _| {
        let next = queue.advance();
        assert!(matches!(next, Next::Idle | Next::OnRelease), "{next:?}");
    });
}

#[test]
fn a_release_during_a_read_of_the_counts_is_granted() {
    found_held(|queue, _| queue.counts().granted);
}

#[test]
fn a_release_during_a_new_request_is_granted_to_the_waiter() {
    found_held(|queue, _| Task::polled(queue, 1));
}

#[test]
fn a_waker_replaced_during_a_grant_is_woken_or_not_needed() {
    found_held(|_, wait| wait.poll());
}

#[test]
fn a_waiter_that_becomes_the_head_during_a_release_and_is_polled_is_granted() {
    explore_within(2, || {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let head = Task::polled(&queue, 1);
        let mut next = Task::polled(&queue, 1);
        let gone = beside(move || head.leave());
        let release = beside(move || drop(held));
        next.poll();
        join(gone);
        join(release);
        assert!(next.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut next]);
    });
}

#[test]
fn two_releases_during_an_advance_are_both_granted() {
    explore_within(2, || {
        let queue = queue(2);
        let (one, other) = (hold(&queue, 1), hold(&queue, 1));
        let mut wait = Task::polled(&queue, 2);
        let one = beside(move || drop(one));
        let other = beside(move || drop(other));
        turn();
        queue.advance();
        join(one);
        join(other);
        assert!(wait.is_served(), "waits although its permits are free");
        ends_well(&queue, 2, [&mut wait]);
    });
}

#[test]
fn a_release_during_a_cancellation_and_an_advance_is_granted() {
    explore_within(2, || {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let head = Task::polled(&queue, 1);
        let mut next = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        let gone = beside(move || head.leave());
        turn();
        queue.advance();
        join(release);
        join(gone);
        assert!(next.is_served(), "waits although its permits are free");
        ends_well(&queue, 1, [&mut next]);
    });
}

#[test]
fn a_release_during_a_full_batch_is_granted() {
    explore_within(2, || {
        let queue = queue(2);
        let (one, other) = (hold(&queue, 1), hold(&queue, 1));
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let other = beside(move || drop(other));
        let look = beside_of(&queue, |queue| queue.advance());
        turn();
        drop(one);
        join(other);
        join(look);
        assert!(
            first.is_served() && second.is_served(),
            "waits although its permits are free"
        );
        ends_well(&queue, 2, [&mut first, &mut second]);
    });
}

/// Releases a permit when it is woken.
struct Releases(std::sync::Mutex<Option<Lease<Arc<Queued>>>>, Arc<Woken>);

impl Wake for Releases {
    fn wake(self: Arc<Self>) {
        let lease = self.0.lock().unwrap().take();
        drop(lease);
        Arc::clone(&self.1).wake();
    }
}

#[test]
fn a_permit_released_by_a_waker_goes_to_the_next_waiter() {
    explore(|| {
        let queue = queue(2);
        let (held, inner) = (hold(&queue, 1), hold(&queue, 1));
        let mut first = Task::new(&queue, 1);
        first.poll_with(&Waker::from(Arc::new(Releases(
            std::sync::Mutex::new(Some(inner)),
            Arc::clone(&first.woken),
        ))));
        let release = beside(move || drop(held));
        let mut second = Task::polled(&queue, 1);
        join(release);
        assert!(first.is_served());
        assert!(second.is_served());
        ends_well(&queue, 2, [&mut first, &mut second]);
    });
}

#[test]
fn a_request_that_comes_after_a_waiter_is_not_granted_before_it() {
    explore_briefly(2, 3, || {
        let queue = queue(2);
        let held = hold(&queue, 2);
        let mut wait = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        // The task is queued before this thread begins.
        let newcomer = beside_of(&queue, |queue| {
            queue.try_acquire_at(at(0), 1).is_ok_and(|_lease| {
                assert_eq!(queue.counts().granted, 1, "overtakes a waiter");
                true
            })
        });
        // A request for more than one permit asks the limiter before it is queued.
        let mut other = Task::polled(&queue, 2);
        assert!(
            other.waits() || queue.counts().granted >= 1,
            "overtakes a waiter"
        );
        join(release);
        join(newcomer);
        ends_well(&queue, 2, [&mut wait, &mut other]);
    });
}

#[test]
fn a_permit_that_is_handed_over_guards_data() {
    explore(|| {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let theirs = Shared::clone(&data);
        let next = beside(move || {
            wait.poll();
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
fn a_permit_that_is_handed_over_by_a_third_thread_guards_data() {
    explore(|| {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let theirs = Shared::clone(&data);
        let next = beside(move || {
            wait.poll();
            if wait.permits() == 1 {
                theirs.write();
            }
            wait
        });
        let look = beside_of(&queue, |queue| queue.advance());
        data.write();
        turn();
        drop(held);
        join(look);
        let mut wait = join(next);
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_permit_that_was_granted_and_not_claimed_guards_data() {
    explore(|| {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let held = hold(&queue, 1);
        let wait = Task::polled(&queue, 1);
        let theirs = Shared::clone(&data);
        let next = beside_of(&queue, move |queue| {
            wait.leave();
            if let Ok(_lease) = queue.try_acquire_at(at(0), 1) {
                theirs.write();
            }
        });
        data.write();
        turn();
        drop(held);
        join(next);
        ends_well(&queue, 1, []);
    });
}

/// Wakes a thread.
struct Wakes(Notify);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

#[test]
fn threads_that_take_turns_with_one_permit_are_all_granted() {
    explore_within(2, || {
        let queue = queue(1);
        let data = Shared::new(Witness::new());
        let visit = |data: Shared<Witness>| {
            move |queue: &Arc<Queued>| {
                let woken = Arc::new(Wakes(Notify::new()));
                let waker = Waker::from(Arc::clone(&woken));
                let mut wait = Task::new(queue, 1);
                wait.poll_with(&waker);
                while wait.waits() {
                    woken.0.wait();
                    wait.poll_with(&waker);
                }
                data.write();
            }
        };
        let one = beside_of(&queue, visit(Shared::clone(&data)));
        let other = beside_of(&queue, visit(data));
        join(one);
        join(other);
        ends_well(&queue, 1, []);
    });
}

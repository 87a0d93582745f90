//! The queue of waits: whoever gives back and whoever waits for it never miss each other, and no
//! permit is lost on its way from the one to the other.
#![cfg(loom)]

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
fn a_request_that_queues_beside_a_release_is_granted() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let release = beside(move || drop(held));
        let mut wait = Task::polled(&queue, 1);
        join(release);
        assert!(wait.is_served(), "the permit is free, or its own");
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn two_requests_that_queue_beside_a_release_are_granted_one_after_the_other() {
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
fn a_permit_that_is_granted_to_a_head_that_gives_up_goes_to_the_next() {
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
fn a_head_that_gives_up_makes_way_for_one_who_comes_beside_it() {
    explore(|| {
        let queue = queue(2);
        let held = hold(&queue, 1);
        let head = Task::polled(&queue, 2);
        let gone = beside(move || head.leave());
        let mut wait = Task::polled(&queue, 1);
        join(gone);
        assert!(wait.is_served(), "nobody is before it");
        drop(held);
        ends_well(&queue, 2, [&mut wait]);
    });
}

#[test]
fn two_who_give_up_at_once_make_way_for_the_third() {
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
fn two_grants_that_nobody_claims_at_once_come_back() {
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
fn a_request_beside_a_close_is_told() {
    explore(|| {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let close = beside_of(&queue, |queue| queue.close());
        let mut wait = Task::polled(&queue, 1);
        join(close);
        assert!(wait.is_served(), "nobody waits for what is closed");
        assert_eq!(wait.rejected(), Some(Rejected::Closed { permits: 1 }));
        drop(held);
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_close_beside_a_release_takes_no_permit() {
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
fn one_who_gives_up_beside_a_close_leaves_once() {
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
fn one_who_is_evicted_beside_a_release_has_no_permit_and_the_newest_one_has() {
    explore(|| {
        let queue = newest_first(1, 1);
        let held = hold(&queue, 1);
        let mut old = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        let mut new = Task::polled(&queue, 1);
        join(release);
        if queue.counts().evicted == 0 {
            // The old one has it already; or the new one has found it free, and has not had to
            // queue.
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
fn several_who_are_evicted_beside_a_release_are_told_and_no_permit_is_lost() {
    explore_within(2, || {
        let queue = newest_first(2, 2);
        let held = hold(&queue, 2);
        let (mut first, mut second) = (Task::polled(&queue, 1), Task::polled(&queue, 1));
        let release = beside(move || drop(held));
        // For more than one batch of wakes.
        let mut new = Task::polled(&queue, 2);
        join(release);
        ends_well(&queue, 2, [&mut new, &mut second, &mut first]);
    });
}

#[test]
fn one_who_gives_up_beside_its_eviction_leaves_once() {
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
fn a_request_that_queues_beside_a_higher_limit_is_granted() {
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
fn one_who_waits_for_more_than_a_lower_limit_beside_a_release_is_told_or_granted() {
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

/// A release that finds the list held leaves its permit to the holder, whatever that one does with
/// the list.
fn found_held<T: 'static>(work: impl Fn(&Arc<Queued>, &mut Wait) -> T + Send + Sync + 'static) {
    explore(move || {
        let queue = queue(1);
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        turn();
        let other = work(&queue, &mut wait);
        join(release);
        assert!(wait.is_served(), "sleeps though its permits are free");
        drop(other);
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_release_that_finds_the_list_looked_through_is_granted_by_who_does() {
    found_held(|queue, _| {
        let next = queue.advance();
        assert!(matches!(next, Next::Idle | Next::OnRelease), "{next:?}");
    });
}

#[test]
fn a_release_that_finds_the_counts_being_read_is_granted_by_the_reader() {
    found_held(|queue, _| queue.counts().granted);
}

#[test]
fn a_release_that_finds_somebody_queue_is_granted_by_that_one() {
    found_held(|queue, _| Task::polled(queue, 1));
}

#[test]
fn a_waker_that_is_replaced_beside_a_grant_is_not_the_one_that_is_missed() {
    found_held(|_, wait| wait.poll());
}

#[test]
fn one_who_becomes_the_first_beside_a_release_and_is_polled_meanwhile_is_granted() {
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
        assert!(next.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut next]);
    });
}

#[test]
fn two_releases_at_once_are_both_found_by_one_who_looks_meanwhile() {
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
        assert!(wait.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 2, [&mut wait]);
    });
}

#[test]
fn a_release_beside_a_head_that_gives_up_is_found_by_one_who_looks_meanwhile() {
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
        assert!(next.is_served(), "sleeps though its permits are free");
        ends_well(&queue, 1, [&mut next]);
    });
}

#[test]
fn a_release_beside_a_full_batch_is_found_by_one_who_looks_meanwhile() {
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
            "sleeps though its permits are free"
        );
        ends_well(&queue, 2, [&mut first, &mut second]);
    });
}

/// Gives a permit back when it is woken.
struct Releases(std::sync::Mutex<Option<Lease<Arc<Queued>>>>, Arc<Woken>);

impl Wake for Releases {
    fn wake(self: Arc<Self>) {
        let lease = self.0.lock().unwrap().take();
        drop(lease);
        Arc::clone(&self.1).wake();
    }
}

#[test]
fn a_permit_that_a_waker_gives_back_goes_to_the_next() {
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
fn who_comes_after_a_wait_is_granted_nothing_before_it() {
    explore_briefly(2, 3, || {
        let queue = queue(2);
        let held = hold(&queue, 2);
        let mut wait = Task::polled(&queue, 1);
        let release = beside(move || drop(held));
        // The wait is linked before this begins.
        let newcomer = beside_of(&queue, |queue| {
            queue.try_acquire_at(at(0), 1).is_ok_and(|_lease| {
                assert_eq!(queue.counts().granted, 1, "overtakes who waits");
                true
            })
        });
        // One who wants more than one asks before it queues.
        let mut other = Task::polled(&queue, 2);
        assert!(
            other.waits() || queue.counts().granted >= 1,
            "overtakes who waits"
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
fn a_permit_that_is_handed_over_by_a_third_one_guards_data() {
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
fn threads_that_take_turns_with_one_permit_all_have_theirs() {
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

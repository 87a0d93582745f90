//! A queue and its time: whoever drives it is told of whatever comes earlier, its timer ends up
//! armed for what comes first, and a deadline and a grant that come at once are one of the two.
#![cfg(loom)]

use core::future::Future;
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::task::{Context, Waker};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

use portcullis_async::{Drive, Order, Rejected};
use portcullis_core::{Concurrency, Retry, TokenBucket};
use portcullis_loom::queue::{
    Panics, Queued, Task, Timed, Woken, beside, beside_of, empty_bucket, ends_well, hold, is_armed,
    timed,
};
use portcullis_loom::{at, explore, explore_briefly, join, turn};

type Tokens = Queued<TokenBucket, Timed>;

/// Polls a driver beside `work`, and once more if it has been woken: then it has asked to sleep
/// until the time that the first in turn has to wait for.
fn drives_beside<T: 'static>(
    queue: &Arc<Tokens>,
    work: impl FnOnce(&Arc<Tokens>) -> T + 'static,
) -> T {
    let beside = beside_of(queue, work);
    turn();
    let mut driver = Driver::polled(queue);
    let outcome = join(beside);
    driver.has_run();
    is_armed(queue);
    outcome
}

#[test]
fn a_driver_learns_of_a_wait_that_comes_beside_its_look() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let wait = drives_beside(&queue, |queue| Task::polled(queue, 1));
        assert!(wait.waits());
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

#[test]
fn a_driver_learns_of_a_head_that_gives_up_beside_its_look() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let head = Task::polled(&queue, 2);
        let next = Task::polled(&queue, 1);
        drives_beside(&queue, |_| head.leave());
        assert!(next.waits());
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

#[test]
fn a_driver_learns_of_a_deadline_that_comes_beside_its_look() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let head = Task::polled(&queue, 2);
        let next = drives_beside(&queue, |queue| Task::polled_until(queue, 1, 3));
        assert!(head.waits() && next.waits());
        assert_eq!(queue.clock().armed(), Some(at(2)));
        head.leave();
        drop(next);
    });
}

/// A driver in a task of its own, which is neither polled nor dropped but by the model.
struct Driver<'q>(Pin<Box<Drive<'q, Tokens>>>, Arc<Woken>);

impl<'q> Driver<'q> {
    fn polled(queue: &'q Tokens) -> Self {
        let mut driver = Self(Box::pin(queue.drive()), Woken::new());
        driver.poll();
        driver
    }

    fn poll(&mut self) {
        turn();
        self.1 = Woken::new();
        let waker = Waker::from(Arc::clone(&self.1));
        assert!(
            self.0
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }

    /// Whether it has been woken, and so has been polled.
    fn has_run(&mut self) -> bool {
        let woken = self.1.is_woken();
        if woken {
            self.poll();
        }
        woken
    }
}

/// For drivers in threads of their own.
fn for_ever(queue: Arc<Tokens>) -> &'static Arc<Tokens> {
    Box::leak(Box::new(queue))
}

#[test]
fn of_two_drivers_at_once_the_last_one_is_told_of_a_wait() {
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::OldestFirst));
        let other = beside(move || Driver::polled(queue));
        let mut mine = Driver::polled(queue);
        let mut other = join(other);
        let _wait = Task::polled(queue, 1);
        assert_ne!(
            mine.has_run(),
            other.has_run(),
            "the time has changed, and nobody is told"
        );
        is_armed(queue);
    });
}

/// Two drivers that have been polled, of which the second one is in charge, and a wait that comes
/// beside `work` on that one.
fn two_drivers_and_a_wait<T: 'static>(
    work: impl FnOnce(Driver<'static>) -> T + 'static,
) -> (T, &'static Arc<Tokens>) {
    let queue = for_ever(timed(empty_bucket(), Order::OldestFirst));
    let mut one = Driver::polled(queue);
    let other = Driver::polled(queue);
    let work = beside(move || work(other));
    let wait = Task::polled(queue, 1);
    let outcome = join(work);
    one.has_run();
    assert!(wait.waits());
    assert_eq!(queue.clock().armed(), Some(at(1)));
    is_armed(queue);
    (outcome, queue)
}

#[test]
fn a_driver_that_leaves_beside_a_wait_has_the_other_one_told() {
    explore(|| {
        two_drivers_and_a_wait(drop);
    });
}

#[test]
fn a_driver_that_leaves_when_it_has_been_woken_beside_a_wait_has_the_other_one_told() {
    explore(|| {
        two_drivers_and_a_wait(|mut other| {
            other.has_run();
            turn();
            drop(other);
        });
    });
}

/// It is not dropped, and its waker runs a task that has ended.
#[test]
fn a_driver_that_unwinds_beside_a_wait_has_the_other_one_told() {
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::OldestFirst));
        let mut one = Driver::polled(queue);
        let mut other = Driver::polled(queue);
        let unwinds = beside(move || {
            queue.clock().fail(2);
            let unwinds = catch_unwind(AssertUnwindSafe(|| other.poll())).is_err();
            queue.clock().fail(0);
            (other, unwinds)
        });
        let wait = Task::polled(queue, 1);
        let (other, unwinds) = join(unwinds);
        let told = one.has_run();
        assert!(wait.waits());
        assert!(
            !unwinds || told,
            "it unwound, and the other one is not told"
        );
        if unwinds || other.1.is_woken() {
            drop(other);
            one.has_run();
            is_armed(queue);
        }
    });
}

#[test]
fn an_alarm_that_cannot_be_set_once_beside_a_wait_is_set_again() {
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::NewestFirst));
        let _old = Task::polled(queue, 2);
        let mut driver = Driver::polled(queue);
        let unwinds = beside(move || {
            queue.clock().fail(1);
            let _ = catch_unwind(AssertUnwindSafe(|| driver.poll()));
            driver
        });
        let _new = Task::polled(queue, 1);
        let mut driver = join(unwinds);
        driver.has_run();
        is_armed(queue);
    });
}

#[test]
fn a_driver_whose_waker_panics_beside_a_wait_has_the_other_one_told() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            // Without the message.
            resume_unwind(Box::new("a waker's panic"));
        }
    }
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::OldestFirst));
        let mut one = Driver::polled(queue);
        let other = beside(move || {
            let mut other = Driver(Box::pin(queue.drive()), Woken::new());
            let waker = Waker::from(Arc::new(Panics));
            assert!(
                other
                    .0
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            other
        });
        turn();
        let mut wait = Task::new(queue, 1);
        let unwinds = catch_unwind(AssertUnwindSafe(|| wait.poll())).is_err();
        let other = join(other);
        let told = one.has_run();
        assert!(
            !unwinds || told,
            "its waker panicked, and the other one is not told"
        );
        if unwinds {
            is_armed(queue);
        }
        drop(other);
    });
}

#[test]
fn a_driver_beside_a_close_comes_to_its_end() {
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::OldestFirst));
        let one = Driver::polled(queue);
        let other = beside(move || {
            let mut other = Driver(Box::pin(queue.drive()), Woken::new());
            let waker = Waker::from(Arc::clone(&other.1));
            let over = other
                .0
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_ready();
            (other, over)
        });
        turn();
        queue.close();
        let (other, over) = join(other);
        assert!(one.1.is_woken(), "sleeps though the queue is closed");
        assert!(
            over || other.1.is_woken(),
            "sleeps though the queue is closed"
        );
    });
}

#[test]
fn a_driver_that_another_one_replaces_beside_a_wait_leaves_the_timer_armed() {
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::NewestFirst));
        let _old = Task::polled(queue, 2);
        let other = beside(move || Driver::polled(queue));
        let mut mine = Driver::polled(queue);
        let _new = Task::polled(queue, 1);
        mine.has_run();
        let mut other = join(other);
        while mine.has_run() || other.has_run() {}
        is_armed(queue);
    });
}

#[test]
fn a_grant_and_a_deadline_at_once_are_one_of_the_two() {
    explore(|| {
        let queue = timed(Concurrency::new(1), Order::OldestFirst);
        let held = hold(&queue, 1);
        let mut wait = Task::polled_until(&queue, 1, 1);
        assert!(wait.waits());
        let time = beside_of(&queue, |queue| {
            queue.clock().advance_to(1);
            queue.advance();
        });
        turn();
        drop(held);
        join(time);
        assert!(wait.is_served(), "released, or late");
        let late = Rejected::Deadline {
            permits: 1,
            retry: Retry::OnRelease,
        };
        assert!(wait.permits() == 1 || wait.rejected() == Some(late));
        let counts = queue.counts();
        assert_eq!(
            (counts.granted, counts.granted + counts.late),
            (wait.permits(), 1)
        );
        ends_well(&queue, 1, [&mut wait]);
    });
}

#[test]
fn a_deadline_beside_a_release_makes_way_for_the_next() {
    explore(|| {
        let queue = timed(Concurrency::new(2), Order::OldestFirst);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let mut head = Task::polled_until(&queue, 2, 1);
        let mut next = Task::polled(&queue, 1);
        let time = beside_of(&queue, |queue| {
            queue.clock().advance_to(1);
            queue.advance();
        });
        turn();
        drop(held);
        join(time);
        // There is one permit, and the first one wanted two.
        assert!(head.is_served() && head.permits() == 0);
        assert!(next.is_served(), "sleeps though its permits are free");
        drop(more);
        ends_well(&queue, 2, [&mut head, &mut next]);
    });
}

#[test]
fn a_release_beside_deadlines_makes_way_for_who_is_behind_them() {
    explore(|| {
        let queue = timed(Concurrency::new(1), Order::OldestFirst);
        let held = hold(&queue, 1);
        let mut first = Task::polled_until(&queue, 1, 1);
        let mut second = Task::polled_until(&queue, 1, 1);
        let mut third = Task::polled(&queue, 1);
        let time = beside_of(&queue, |queue| queue.clock().advance_to(2));
        turn();
        drop(held);
        join(time);
        assert!(first.is_served(), "released, or late");
        if first.permits() == 0 {
            // More than one batch of wakes.
            assert!(
                second.is_served() && third.is_served(),
                "sleeps though its permits are free"
            );
        }
        ends_well(&queue, 1, [&mut first, &mut second, &mut third]);
    });
}

#[test]
fn one_who_gives_up_at_its_deadline_leaves_once() {
    explore(|| {
        let queue = timed(Concurrency::new(1), Order::OldestFirst);
        let held = hold(&queue, 1);
        let wait = Task::polled_until(&queue, 1, 1);
        let mut next = Task::polled(&queue, 1);
        let gone = beside(move || wait.leave());
        turn();
        queue.clock().advance_to(1);
        queue.advance();
        join(gone);
        let counts = queue.counts();
        assert_eq!((counts.late + counts.cancelled, counts.waiters), (1, 1));
        drop(held);
        assert!(next.is_served());
        ends_well(&queue, 1, [&mut next]);
    });
}

/// A queue that sees to its own time, and in which somebody waits for what comes after two seconds.
fn attended(order: Order) -> (Arc<Tokens>, Task<Arc<Tokens>>) {
    let queue = timed(empty_bucket(), order);
    queue.attend_shared();
    let wait = Task::polled(&queue, 2);
    assert_eq!(queue.clock().armed(), Some(at(2)));
    (queue, wait)
}

#[test]
fn a_timer_that_fires_beside_a_new_head_is_armed_for_that() {
    explore(|| {
        let (queue, mut old) = attended(Order::NewestFirst);
        // Too early, which does no harm.
        let fire = beside_of(&queue, |queue| queue.clock().fire());
        let mut new = Task::polled(&queue, 1);
        join(fire);
        assert!(!old.is_served() && !new.is_served());
        assert_eq!(queue.clock().armed(), Some(at(1)));
        is_armed(&queue);
    });
}

#[test]
fn a_timer_that_fires_in_time_beside_a_new_head_grants_or_is_armed() {
    explore_briefly(2, 3, || {
        let (queue, mut old) = attended(Order::NewestFirst);
        let fire = beside_of(&queue, |queue| {
            queue.clock().advance_to(2);
            queue.clock().fire();
        });
        let mut new = Task::polled(&queue, 1);
        join(fire);
        assert!(new.is_served() || old.is_served(), "two tokens have come");
        is_armed(&queue);
        assert!(old.permits() + new.permits() <= 2);
    });
}

#[test]
fn a_timer_that_fires_beside_a_head_that_gives_up_is_armed_for_the_next() {
    explore(|| {
        let (queue, head) = attended(Order::OldestFirst);
        let mut next = Task::polled(&queue, 1);
        let fire = beside_of(&queue, |queue| queue.clock().fire());
        head.leave();
        join(fire);
        assert!(!next.is_served());
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

#[test]
fn two_who_come_at_once_leave_the_timer_armed_for_the_earlier_one() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::NewestFirst);
        queue.attend_shared();
        let other = beside_of(&queue, |queue| Task::polled(queue, 1));
        let mut mine = Task::polled_until(&queue, 2, 2);
        let mut other = join(other);
        // The head's time, or a deadline behind it.
        assert!(!mine.is_served() && !other.is_served());
        is_armed(&queue);
    });
}

#[test]
fn a_queue_that_begins_to_see_to_itself_beside_a_driver_is_armed() {
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::OldestFirst));
        let wait = Task::polled(queue, 1);
        let driver = beside(move || Driver::polled(queue));
        queue.attend_shared();
        let driver = join(driver);
        // Of a task that has ended: the timer is to be the queue's own.
        queue.clock().advance_to(1);
        queue.clock().fire();
        assert!(wait.woken.is_woken(), "the alarm is a driver's");
        drop(driver);
    });
}

/// Who is at the lines has the queue's own waker run again, which has not waited for them.
#[test]
fn a_timer_that_fires_beside_a_look_at_the_lines_is_armed() {
    explore(|| {
        let (queue, mut wait) = attended(Order::OldestFirst);
        let fire = beside_of(&queue, |queue| queue.clock().fire());
        let _ = queue.counts();
        join(fire);
        assert!(!wait.is_served());
        assert_eq!(queue.clock().armed(), Some(at(2)));
    });
}

#[test]
fn a_limiter_that_panics_beside_a_release_is_asked_again_in_time() {
    explore(|| {
        let (limiter, light) = Panics::new(1);
        let queue = timed(limiter, Order::OldestFirst);
        queue.attend_shared();
        let held = hold(&queue, 1);
        let mut wait = Task::polled(&queue, 1);
        light(2);
        let beside = beside_of(&queue, |queue| {
            let _ = catch_unwind(AssertUnwindSafe(|| queue.counts()));
        });
        turn();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
        join(beside);
        light(0);
        if !wait.is_served() {
            let armed = queue.clock().armed();
            assert!(armed.is_some(), "is not asked again");
            queue.clock().advance_to(1);
            queue.clock().fire();
            assert!(wait.is_served());
        }
    });
}

#[test]
fn a_queue_that_begins_to_see_to_itself_beside_a_wait_is_armed() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let attend = beside_of(&queue, Tokens::attend_shared);
        let wait = Task::polled(&queue, 1);
        join(attend);
        assert!(wait.waits());
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

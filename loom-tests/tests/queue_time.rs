//! The timers of a queue. The driver learns of every earlier event, its timer ends up armed for the
//! first event, and a deadline, or the bound of the queue's shedding, that coincides with a grant
//! results in one of the two.
#![cfg(portcullis_loom)]

use core::future::Future;
use core::panic::AssertUnwindSafe;
use core::pin::Pin;
use core::task::{Context, Waker};
use core::time::Duration;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;

use portcullis_async::{Drive, Order, Queue, Rejected, Shedding};
use portcullis_core::{Concurrency, Retry, TokenBucket};
use portcullis_loom::queue::{
    Lock, Panics, Queued, Task, Timed, Woken, beside, beside_of, empty_bucket, ends_well, hold,
    is_armed, timed,
};
use portcullis_loom::{at, explore, explore_briefly, join, turn};

type Tokens = Queued<TokenBucket, Timed>;

/// Polls a driver concurrently with `work`, and once more if it was woken. The driver's timer is
/// then armed for the time that the head has to wait for.
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
fn a_driver_learns_of_a_request_queued_during_its_poll() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let wait = drives_beside(&queue, |queue| Task::polled(queue, 1));
        assert!(wait.waits());
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

#[test]
fn a_driver_learns_of_a_head_cancelled_during_its_poll() {
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
fn a_driver_learns_of_a_deadline_queued_during_its_poll() {
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

/// A driver in a task of its own. Only the model polls and drops it.
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

    /// Polls the driver if it was woken. Returns whether it was.
    fn has_run(&mut self) -> bool {
        let woken = self.1.is_woken();
        if woken {
            self.poll();
        }
        woken
    }
}

/// Leaks the queue, for drivers in other threads.
fn for_ever(queue: Arc<Tokens>) -> &'static Arc<Tokens> {
    Box::leak(Box::new(queue))
}

#[test]
fn one_of_two_concurrent_drivers_is_woken_by_a_request() {
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::OldestFirst));
        let other = beside(move || Driver::polled(queue));
        let mut mine = Driver::polled(queue);
        let mut other = join(other);
        let _wait = Task::polled(queue, 1);
        assert_ne!(
            mine.has_run(),
            other.has_run(),
            "an earlier event, and no driver is woken"
        );
        is_armed(queue);
    });
}

/// Creates two drivers that have been polled, of which the second one is in charge. A request is
/// queued concurrently with `work` on the second driver.
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
fn a_driver_that_leaves_during_a_request_has_the_other_one_woken() {
    explore(|| {
        two_drivers_and_a_wait(drop);
    });
}

#[test]
fn a_woken_driver_that_leaves_during_a_request_has_the_other_one_woken() {
    explore(|| {
        two_drivers_and_a_wait(|mut other| {
            other.has_run();
            turn();
            drop(other);
        });
    });
}

/// The driver is not dropped, and its waker belongs to a task that has ended.
#[test]
fn a_driver_that_unwinds_during_a_request_has_the_other_one_woken() {
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
            "it unwound, and the other one was not woken"
        );
        if unwinds || other.1.is_woken() {
            drop(other);
            one.has_run();
            is_armed(queue);
        }
    });
}

#[test]
fn an_alarm_that_fails_once_during_a_request_is_set_again() {
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
fn a_driver_whose_waker_panics_during_a_request_has_the_other_one_woken() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            // Unwinds without printing a message.
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
            "its waker panicked, and the other one was not woken"
        );
        if unwinds {
            is_armed(queue);
        }
        drop(other);
    });
}

#[test]
fn a_driver_polled_during_a_close_ends() {
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
        assert!(one.1.is_woken(), "waits although the queue is closed");
        assert!(
            over || other.1.is_woken(),
            "waits although the queue is closed"
        );
    });
}

#[test]
fn a_driver_replaced_during_a_request_leaves_the_timer_armed() {
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
fn a_grant_at_the_deadline_is_either_a_grant_or_late() {
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
        assert!(wait.is_served(), "either granted or late");
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
fn a_deadline_that_passes_during_a_release_makes_way_for_the_next_waiter() {
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
        // One permit is released, and the first waiter requests two.
        assert!(head.is_served() && head.permits() == 0);
        assert!(next.is_served(), "waits although its permits are free");
        drop(more);
        ends_well(&queue, 2, [&mut head, &mut next]);
    });
}

#[test]
fn a_release_while_deadlines_pass_reaches_the_waiter_behind_them() {
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
        assert!(first.is_served(), "either granted or late");
        if first.permits() == 0 {
            // More waiters than fit into one batch of wakers.
            assert!(
                second.is_served() && third.is_served(),
                "waits although its permits are free"
            );
        }
        ends_well(&queue, 1, [&mut first, &mut second, &mut third]);
    });
}

#[test]
fn a_head_that_is_shed_during_a_release_makes_way_for_the_next_waiter() {
    explore_briefly(2, 3, || {
        let seconds = Duration::from_secs;
        let queue = Queue::with_lock(Concurrency::new(2), Timed::new(), 9, Lock::new())
            .with_shedding(Shedding::controlled_delay(seconds(1), seconds(2)));
        let queue = Arc::new(queue);
        let (held, more) = (hold(&queue, 1), hold(&queue, 1));
        let mut head = Task::polled(&queue, 2);
        queue.clock().advance_to(1);
        let mut next = Task::polled(&queue, 1);
        let time = beside_of(&queue, |queue| {
            queue.clock().advance_to(2);
            queue.advance();
        });
        turn();
        drop(held);
        join(time);
        // One permit is released, and the first waiter requests two.
        assert!(head.is_served());
        let shed = Rejected::Shed {
            permits: 2,
            retry: Retry::OnRelease,
        };
        assert_eq!(head.rejected(), Some(shed));
        assert!(next.is_served(), "waits although its permits are free");
        let counts = queue.counts();
        assert_eq!((counts.granted, counts.shed, counts.late), (1, 1, 0));
        drop(more);
        ends_well(&queue, 2, [&mut head, &mut next]);
    });
}

#[test]
fn in_an_overloaded_queue_a_release_reaches_the_newest_request_or_the_waiter() {
    explore_briefly(2, 3, || {
        let queue = timed(Concurrency::new(1), Order::NewestWhileOverloaded);
        let held = hold(&queue, 1);
        let mut oldest = Task::polled(&queue, 1);
        queue.clock().advance_to(1);
        let release = beside(move || drop(held));
        let mut newest = Task::polled(&queue, 1);
        join(release);
        let served = [newest.is_served(), oldest.is_served()];
        assert_ne!(served[0], served[1], "one permit is free for two requests");
        ends_well(&queue, 1, [&mut newest, &mut oldest]);
    });
}

#[test]
fn a_waiter_cancelled_at_its_deadline_is_removed_once() {
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

/// Creates a queue that drives its own timers, and a waiter for what is available after two
/// seconds.
fn attended(order: Order) -> (Arc<Tokens>, Task<Arc<Tokens>>) {
    let queue = timed(empty_bucket(), order);
    queue.attend_shared();
    let wait = Task::polled(&queue, 2);
    assert_eq!(queue.clock().armed(), Some(at(2)));
    (queue, wait)
}

#[test]
fn a_timer_that_fires_during_a_new_head_is_armed_for_it() {
    explore(|| {
        let (queue, mut old) = attended(Order::NewestFirst);
        // Fires too early, which is harmless.
        let fire = beside_of(&queue, |queue| queue.clock().fire());
        let mut new = Task::polled(&queue, 1);
        join(fire);
        assert!(!old.is_served() && !new.is_served());
        assert_eq!(queue.clock().armed(), Some(at(1)));
        is_armed(&queue);
    });
}

#[test]
fn a_timer_that_fires_on_time_during_a_new_head_grants_or_is_armed() {
    explore_briefly(2, 3, || {
        let (queue, mut old) = attended(Order::NewestFirst);
        let fire = beside_of(&queue, |queue| {
            queue.clock().advance_to(2);
            queue.clock().fire();
        });
        let mut new = Task::polled(&queue, 1);
        join(fire);
        assert!(
            new.is_served() || old.is_served(),
            "two permits were replenished"
        );
        is_armed(&queue);
        assert!(old.permits() + new.permits() <= 2);
    });
}

#[test]
fn a_timer_that_fires_during_the_cancellation_of_the_head_is_armed_for_the_next() {
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
fn two_concurrent_requests_leave_the_timer_armed_for_the_earlier_one() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::NewestFirst);
        queue.attend_shared();
        let other = beside_of(&queue, |queue| Task::polled(queue, 1));
        let mut mine = Task::polled_until(&queue, 2, 2);
        let mut other = join(other);
        // Armed for the head's time, or for a deadline behind it.
        assert!(!mine.is_served() && !other.is_served());
        is_armed(&queue);
    });
}

#[test]
fn a_queue_that_attends_itself_during_the_poll_of_a_driver_is_armed() {
    explore(|| {
        let queue = for_ever(timed(empty_bucket(), Order::OldestFirst));
        let wait = Task::polled(queue, 1);
        let driver = beside(move || Driver::polled(queue));
        queue.attend_shared();
        let driver = join(driver);
        // The driver's task has ended, so the timer must be the queue's own.
        queue.clock().advance_to(1);
        queue.clock().fire();
        assert!(wait.woken.is_woken(), "the alarm belongs to the driver");
        drop(driver);
    });
}

/// The queue's own waker does not wait for the lock. The holder of the lock runs it again.
#[test]
fn a_timer_that_fires_while_the_lock_is_held_is_armed() {
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
fn a_limiter_that_panics_during_a_release_is_asked_again_later() {
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
            assert!(armed.is_some(), "the limiter is not asked again");
            queue.clock().advance_to(1);
            queue.clock().fire();
            assert!(wait.is_served());
        }
    });
}

#[test]
fn a_queue_that_attends_itself_during_a_request_is_armed() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let attend = beside_of(&queue, Tokens::attend_shared);
        let wait = Task::polled(&queue, 1);
        join(attend);
        assert!(wait.waits());
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

/// Polls the tasks that were woken, until none is. Then the timer is armed for the first event.
fn drive_themselves<const N: usize>(queue: &Arc<Tokens>, mut tasks: [&mut Task<Arc<Tokens>>; N]) {
    while tasks
        .iter()
        .any(|task| task.waits() && task.woken.is_woken())
    {
        for task in &mut tasks {
            task.is_served();
        }
    }
    is_armed(queue);
}

#[test]
fn two_waits_without_a_driver_leave_the_timer_armed_for_the_earlier_one() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::NewestFirst);
        let other = beside_of(&queue, |queue| Task::polled(queue, 1));
        let mut mine = Task::polled_until(&queue, 2, 2);
        let mut other = join(other);
        drive_themselves(&queue, [&mut mine, &mut other]);
        assert!(mine.waits() && other.waits());
    });
}

#[test]
fn a_wait_that_leaves_during_another_request_passes_the_timer_on() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let first = Task::polled(&queue, 2);
        assert_eq!(queue.clock().armed(), Some(at(2)));
        let gone = beside(move || first.leave());
        let mut next = Task::polled(&queue, 1);
        join(gone);
        drive_themselves(&queue, [&mut next]);
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

#[test]
fn a_timer_that_fires_while_its_wait_leaves_is_armed_for_the_next_wait() {
    explore(|| {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let first = Task::polled(&queue, 2);
        let mut next = Task::polled(&queue, 1);
        let fire = beside_of(&queue, |queue| queue.clock().fire());
        first.leave();
        join(fire);
        drive_themselves(&queue, [&mut next]);
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

#[test]
fn a_wait_that_is_granted_while_it_drives_passes_the_timer_on() {
    explore_briefly(2, 3, || {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        let mut first = Task::polled(&queue, 1);
        let mut next = Task::polled(&queue, 1);
        queue.clock().advance_to(1);
        let passes_by = beside_of(&queue, |queue| _ = queue.advance());
        first.poll();
        join(passes_by);
        drive_themselves(&queue, [&mut first, &mut next]);
        assert!(!first.waits() && next.waits());
        assert_eq!(queue.clock().armed(), Some(at(2)));
    });
}

#[test]
fn an_alarm_that_fails_in_a_wait_is_set_by_the_next_wait() {
    explore_briefly(2, 3, || {
        let queue = timed(empty_bucket(), Order::OldestFirst);
        queue.clock().fail(1);
        let other = beside_of(&queue, |queue| {
            let mut task = Task::new(queue, 1);
            let fails = catch_unwind(AssertUnwindSafe(|| task.poll())).is_err();
            (!fails).then_some(task)
        });
        let mut mine = Task::new(&queue, 1);
        let fails = catch_unwind(AssertUnwindSafe(|| mine.poll())).is_err();
        let mut mine = (!fails).then_some(mine);
        let mut other = join(other);
        assert!(mine.is_none() != other.is_none(), "one of them panicked");
        let left = mine.as_mut().or(other.as_mut()).unwrap();
        drive_themselves(&queue, [left]);
        assert_eq!(queue.clock().armed(), Some(at(1)));
    });
}

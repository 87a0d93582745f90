//! Queues that are advanced late: what that costs, and limiters that are asked again.

mod support;

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use core::time::Duration;

use portcullis_async::{Next, Order};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    Clock, Concurrency, Denied, FixedWindow, Limiter, Rate, Retry, SlidingWindow, Timestamp,
    TokenBucket,
};
use support::{Manual, SECOND, START, Task, now, permits, queue};

const fn ms(millis: u64) -> Timestamp {
    Timestamp::from_millis(millis)
}

/// A bucket of ten per second, empty at first.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::builder(Rate::per_second(10), burst)
        .initial(0)
        .build()
        .unwrap()
}

/// How many waiters for one permit each are granted at each of these times of `advance`.
fn granted<L: QueueLimiter>(queue: &Manual<L>, times: &[u64]) -> Vec<u64> {
    let _waits: Vec<_> = (0..99).map(|_| Task::waiting(queue.acquire(1))).collect();
    let granted = |&time: &u64| {
        queue.clock().set(ms(time));
        let _ = queue.advance();
        queue.counts().granted
    };
    times.iter().map(granted).collect()
}

#[test]
fn up_to_the_slack_nothing_is_lost_even_without_a_burst() {
    // Each of the instants 100, 200, 300, ... is served up to 10 ms late.
    assert_eq!(
        granted(&queue(bucket(1), 999), &[110, 201, 309, 399, 400, 510]),
        [1, 2, 3, 3, 4, 5]
    );
}

#[test]
fn later_than_the_slack_the_rest_is_lost() {
    // 11 ms late, 1 ms is lost; then the instants are 201, 301, ...
    assert_eq!(
        granted(&queue(bucket(1), 999), &[111, 200, 201, 301]),
        [1, 1, 2, 3]
    );
    // However late, one is available, as of 10 ms earlier, and the next comes 100 ms after that.
    assert_eq!(
        granted(&queue(bucket(1), 999), &[5_000, 5_089, 5_090]),
        [1, 1, 2]
    );
}

#[test]
fn without_slack_all_of_it_is_lost() {
    let exact = queue(bucket(1), 999).with_slack(Duration::ZERO);
    assert_eq!(
        granted(&exact, &[105, 204, 205, 304, 305, 405]),
        [1, 1, 2, 2, 3, 4]
    );
}

#[test]
fn a_longer_slack_keeps_several_permits() {
    let long = queue(bucket(1), 999).with_slack(Duration::from_millis(250));
    // As of 250, 350, 450.
    assert_eq!(granted(&long, &[500, 549, 550, 600, 650]), [3, 3, 4, 4, 5]);
    // At most a second: as of 4000, 4100, ...
    let longest = queue(bucket(1), 999).with_slack(Duration::MAX);
    assert_eq!(granted(&longest, &[5_000, 5_099, 5_100]), [11, 11, 12]);
}

#[test]
fn a_burst_keeps_as_many_as_it_holds_beside_the_slack() {
    assert_eq!(
        granted(&queue(bucket(3), 999), &[1_000, 1_089, 1_090]),
        [3, 3, 4]
    );
}

#[test]
fn in_real_time_at_most_the_permits_of_one_slack_come_in_addition() {
    for late in 0..=30 {
        let queue = queue(
            TokenBucket::builder(Rate::per_second(1_000), 5)
                .initial(0)
                .build()
                .unwrap(),
            999,
        );
        let granted = granted(&queue, &[1_000 + late]);
        assert_eq!(granted, [5 + 10], "at once, {late} ms late");
    }
}

#[test]
fn windows_lose_nothing_within_the_slack() {
    let window = queue(FixedWindow::new(1, Duration::from_millis(4)), 999);
    let _held = now(window.acquire(1)).unwrap();
    // As of 4, 8, and 12; as of 13, 16, and 20.
    assert_eq!(granted(&window, &[12, 23]), [3, 5]);
    let sliding: Manual<SlidingWindow<2>> =
        queue(SlidingWindow::new(1, Duration::from_millis(4), 2), 999);
    let _held = now(sliding.acquire(1)).unwrap();
    assert_eq!(granted(&sliding, &[12]), [3]);
}

#[test]
fn grants_as_of_the_past_are_those_of_timely_calls() {
    for (rate, burst) in [(10, 1), (10, 4), (1_000, 1), (333, 2), (7_777, 3)] {
        let make = || {
            queue(
                TokenBucket::builder(Rate::per_second(rate), burst)
                    .initial(0)
                    .build()
                    .unwrap(),
                9_999,
            )
        };
        let (late, timely) = (make(), make());
        let (waits, others): (Vec<_>, Vec<_>) = (0..400)
            .map(|_| {
                (
                    Task::waiting(late.acquire(1)),
                    Task::waiting(timely.acquire(1)),
                )
            })
            .unzip();
        let mut time = 0;
        for step in 1..40_u64 {
            time += 1 + step * 7 % 10;
            while let Next::At(at) = timely.advance()
                && at <= ms(time)
            {
                timely.clock().set(at);
            }
            timely.clock().set(ms(time));
            timely.advance();
            late.clock().set(ms(time));
            late.advance();
            assert_eq!(
                late.counts().granted,
                timely.counts().granted,
                "{rate}, {burst}, {time}"
            );
        }
        drop((waits, others));
    }
}

#[test]
fn a_stale_request_has_no_slack() {
    let queue = queue(bucket(1), 9);
    queue.clock().set(ms(105));
    let _held = now(queue.acquire(1)).unwrap();
    let _wait = Task::waiting(queue.acquire(1));
    assert_eq!(queue.advance(), Next::At(ms(205)));
}

#[test]
fn a_partial_request_takes_what_is_available_now_as_of_the_instant_of_its_minimum() {
    let queue = queue(bucket(9), 99);
    let some = Task::waiting(queue.acquire(2).up_to(9));
    let other = Task::waiting(queue.acquire(1).up_to(9).until(ms(300)));
    queue.clock().set(ms(200));
    assert_eq!(queue.advance(), Next::At(ms(300)));
    assert_eq!(permits(some.outcome()), Ok(2));
    queue.clock().set(ms(309));
    assert_eq!(queue.advance(), Next::Idle);
    assert_eq!(permits(other.outcome()), Ok(1));
}

/// A limiter that only says to ask again, while a switch is off.
struct Switch {
    on: AtomicBool,
    asked: AtomicU32,
    wait: Duration,
}

impl Switch {
    fn new(wait: Duration) -> Self {
        Self {
            on: AtomicBool::new(false),
            asked: AtomicU32::new(0),
            wait,
        }
    }
}

impl Limiter for Switch {
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, permits) = (ask.now(), ask.permits());
        if ask.is_look() {
            return ask.looked(self.available_at(now), || u64::MAX);
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
        Answer::from(if self.on.load(Ordering::Relaxed) {
            Ok(Receipt::NONE)
        } else {
            Err(Denied::Refused { now, permits })
        })
    }

    fn give_back(&self, _: Back<'_>) -> Returned {
        Returned::NOTHING
    }

    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: if self.on.load(Ordering::Relaxed) {
                u64::MAX
            } else {
                0
            },
            capacity: u64::MAX,
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, _: Denied) -> Retry {
        Retry::After(self.wait)
    }
}

impl QueueLimiter for Switch {
    const SHARED: bool = false;
}

mod asked_again {
    use super::*;
    use portcullis_async::Rejected;
    use std::collections::BTreeSet;
    use std::sync::Arc;

    fn switch(wait: Duration) -> Arc<Manual<Switch>> {
        let queue = Arc::new(queue(Switch::new(wait), 99));
        queue.attend_shared();
        queue
    }

    #[test]
    fn the_limiter_is_asked_at_each_instant_that_it_named() {
        let queue = switch(SECOND);
        let _wait = Task::waiting(queue.acquire(1));
        queue.clock().run(Timestamp::from_secs(4));
        assert_eq!(
            queue.clock().armed(),
            [1, 2, 3, 4, 5].map(Timestamp::from_secs)
        );
    }

    #[test]
    fn the_limiter_is_asked_as_of_now_however_late() {
        let queue = switch(SECOND);
        let wait = Task::waiting(queue.acquire(1));
        queue.clock().jump(Timestamp::from_millis(1_500));
        assert_eq!(queue.clock().alarm(), Some(ms(2_500)));
        queue.change(|switch| {
            switch.on.store(true, Ordering::Relaxed);
        });
        assert_eq!(permits(wait.outcome()), Ok(1));
    }

    #[test]
    fn a_limiter_that_says_retry_now_is_not_asked_endlessly() {
        let queue = switch(Duration::ZERO);
        let wait = Task::waiting(queue.acquire(1));
        let before = queue.change(|switch| switch.asked.load(Ordering::Relaxed));
        queue.clock().jump(START);
        let after = queue.change(|switch| switch.asked.load(Ordering::Relaxed));
        assert!(after - before < 9, "asked {after} times");
        assert!(queue.clock().alarm().is_some_and(|at| at > START));
        drop(wait);
    }

    #[test]
    fn a_deadline_between_two_queries_is_kept() {
        let queue = switch(SECOND);
        let wait = Task::waiting(queue.acquire(1).until(ms(2_500)));
        queue.clock().run(ms(2_499));
        assert_eq!(wait.wakes(), 0);
        queue.clock().run(ms(2_500));
        let late = Rejected::Deadline {
            permits: 1,
            retry: Retry::After(SECOND),
        };
        assert_eq!(permits(wait.outcome()), Err(late));
    }

    #[test]
    fn a_deadline_before_the_first_query_is_not_rejected_early() {
        let queue = switch(SECOND);
        let wait = Task::waiting(queue.acquire(1).until(ms(500)));
        queue.clock().run(ms(500));
        assert!(wait.outcome().is_err());
    }

    #[test]
    fn with_jitter_the_queries_are_within_its_bounds_and_vary() {
        let jitter = Duration::from_millis(100);
        let queue = Arc::new(queue(Switch::new(SECOND), 99).with_jitter(jitter));
        queue.attend_shared();
        let _wait = Task::waiting(queue.acquire(1));
        queue.clock().run(Timestamp::from_secs(300));
        let armed = queue.clock().armed();
        let waits: Vec<_> = armed
            .windows(2)
            .map(|two| two[1].saturating_since(two[0]).checked_sub(SECOND).unwrap())
            .collect();
        assert!(armed[0] >= Timestamp::from_secs(1) && armed.len() > 270);
        assert!(waits.iter().all(|more| *more <= jitter));
        assert!(
            waits.iter().collect::<BTreeSet<_>>().len() > waits.len() * 9 / 10,
            "varied"
        );
        // Over the whole range: at least a tenth in the first fifth and in the last.
        let tenth = waits.len() / 10;
        assert!(waits.iter().filter(|more| **more < jitter / 5).count() > tenth);
        assert!(waits.iter().filter(|more| **more > jitter * 4 / 5).count() > tenth);
    }

    #[test]
    fn two_queues_ask_at_different_times() {
        let queues = [(); 2].map(|()| {
            let queue = Arc::new(queue(Switch::new(SECOND), 99).with_jitter(SECOND));
            queue.attend_shared();
            queue
        });
        let _waits = queues
            .each_ref()
            .map(|queue| Task::waiting(queue.acquire(1)));
        let [one, other] = queues.each_ref().map(|queue| {
            queue.clock().run(Timestamp::from_secs(100));
            queue.clock().armed()
        });
        assert_ne!(one, other);
    }

    #[test]
    fn jitter_delays_grants_that_are_due_at_an_instant_and_keeps_their_rate() {
        let jitter = Duration::from_millis(40);
        let queue = queue(bucket(1), 999).with_jitter(jitter).with_slack(jitter);
        let queue = Arc::new(queue);
        queue.attend_shared();
        let waits: Vec<_> = (0..200).map(|_| Task::waiting(queue.acquire(1))).collect();
        let mut delays = Vec::new();
        for (wait, due) in waits.iter().zip((1..).map(|n| ms(100 * n))) {
            queue.clock().run(due - Duration::from_nanos(1));
            assert_eq!(wait.wakes(), 0);
            let armed = *queue.clock().armed().last().unwrap();
            delays.push(armed.saturating_since(due));
            queue.clock().run(due + jitter);
            assert_eq!(wait.wakes(), 1);
        }
        assert!(delays.iter().all(|delay| *delay <= jitter));
        let tenth = delays.len() / 10;
        assert!(delays.iter().filter(|delay| **delay < jitter / 5).count() > tenth);
        assert!(
            delays
                .iter()
                .filter(|delay| **delay > jitter * 4 / 5)
                .count()
                > tenth
        );
    }

    #[test]
    fn jitter_delays_a_grant_no_further_than_its_deadline() {
        for _ in 0..20 {
            let queue = queue(bucket(1), 99).with_jitter(SECOND);
            let wait = Task::waiting(queue.acquire(1).until(ms(100)));
            assert_eq!(queue.advance(), Next::At(ms(100)));
            queue.clock().set(ms(100));
            queue.advance();
            assert_eq!(permits(wait.outcome()), Ok(1));
        }
    }

    #[test]
    fn jitter_is_the_same_when_more_requests_arrive() {
        let queue = queue(bucket(1), 99).with_jitter(SECOND);
        let _first = Task::waiting(queue.acquire(1));
        let armed = queue.advance();
        let _more = [(); 5].map(|()| Task::waiting(queue.acquire(1).until(ms(90_000))));
        assert_eq!(queue.advance(), armed);
    }

    #[test]
    fn jitter_does_not_delay_a_release() {
        let queue = queue(Concurrency::new(1), 99).with_jitter(SECOND);
        let held = queue.try_acquire(1).unwrap();
        let wait = Task::waiting(queue.acquire(1));
        drop(held);
        assert_eq!(permits(wait.outcome()), Ok(1));
    }
}

/// Newest first: the newest waiter is the head as of now, not as of a time before it came.
#[test]
fn newest_first_no_waiter_is_granted_as_of_a_time_before_it_came() {
    let queue = queue(bucket(1), 99).with_order(Order::NewestFirst);
    let old = Task::waiting(queue.acquire(1));
    queue.clock().set(ms(105));
    // It takes the permit that has come in.
    let _new = now(queue.acquire(1)).unwrap();
    assert_eq!(queue.advance(), Next::At(ms(205)));
    assert_eq!((old.wakes(), queue.clock().now()), (0, ms(105)));
}

/// The bucket's words have room for a second, so an instant two seconds before the newest would
/// look idle, that is, full.
#[test]
fn a_clock_that_goes_back_behind_a_newcomers_take_admits_no_waiter() {
    let bucket = TokenBucket::builder(Rate::per_second(1), 5)
        .staleness(SECOND)
        .build_on::<u32>()
        .unwrap();
    let queue = queue(bucket, 99)
        .with_slack(SECOND)
        .with_order(Order::NewestFirst);
    queue.clock().set(ms(100_000));
    drop(now(queue.acquire(5)).unwrap());
    let _waits: Vec<_> = (0..20).map(|_| Task::waiting(queue.acquire(1))).collect();
    queue.clock().set(ms(103_000));
    drop(now(queue.acquire(3)).unwrap());
    queue.clock().set(ms(102_000));
    let _ = queue.advance();
    assert_eq!(queue.counts().granted, 0);
}

#[test]
fn newest_first_has_no_slack() {
    let newest = queue(bucket(1), 999).with_order(Order::NewestFirst);
    assert_eq!(
        granted(&newest, &[105, 204, 205, 304, 305, 405]),
        [1, 1, 2, 2, 3, 4]
    );
}

/// Others take at the present, and the clock may go back by the staleness: a limiter behind a
/// pointer gets no time older than the clock's.
#[test]
fn a_shared_limiter_gets_no_time_older_than_the_clocks() {
    let staleness = Duration::from_secs(1);
    let builder = TokenBucket::builder(Rate::per_second(10), 5).staleness(staleness);
    let limit = builder.build_on::<u32>().unwrap();
    let queue = queue(&limit, 999).with_slack(staleness);
    queue.clock().set(ms(8_000));
    let _held = now(queue.acquire(5)).unwrap();
    let _wait = Task::waiting(queue.acquire(5));
    assert_eq!(queue.advance(), Next::At(ms(8_500)));
    // A take outside the queue, at the newest time. Then the clock goes back, by no more than the
    // limiter's staleness.
    limit.take_at(ms(10_000), 5).unwrap();
    queue.clock().set(ms(9_000));
    let _ = queue.advance();
    assert_eq!(queue.counts().granted, 0, "all permits are taken");
}

#[test]
fn with_a_shared_limiter_a_late_timer_costs_its_lateness() {
    let limit = bucket(1);
    assert_eq!(
        granted(&queue(&limit, 999), &[105, 204, 205, 304, 305, 405]),
        [1, 1, 2, 2, 3, 4]
    );
}

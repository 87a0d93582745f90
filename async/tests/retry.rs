//! The retry times of rejected requests.

mod support;

use core::time::Duration;

use portcullis_async::{KeyedQueue, Next, Order, Rejected};
use portcullis_core::keyed::{Line, Seed};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Returned};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{
    AllOf, Concurrency, Denied, FixedWindow, Keyed, Limiter, Rate, Retry, SlidingWindow, Timestamp,
    TokenBucket,
};
use support::random::Random;
use support::{Hand, SECOND, START, Task, Undriven, newest_first, now, permits, undriven};

const fn secs(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

/// A bucket of one token per second, empty at first.
fn bucket(burst: u64) -> TokenBucket {
    TokenBucket::builder(Rate::per_second(1), burst)
        .initial(0)
        .build()
        .unwrap()
}

fn full(permits: u32, retry: Retry) -> Result<u32, Rejected> {
    Err(Rejected::QueueFull { permits, retry })
}

/// With `waits` before it, a request for one permit finds the queue full, and gets a retry time. In
/// a queue with more room it is granted exactly then if all requests are for one permit, and never
/// earlier.
fn is_told_when<L: QueueLimiter>(make: impl Fn() -> L, waits: &[u32]) {
    let before: u64 = waits.iter().map(|&n| u64::from(n.max(1))).sum();
    let full = undriven(make(), before);
    let _waits: Vec<_> = waits
        .iter()
        .map(|&n| Task::waiting(full.acquire(n)))
        .collect();
    let rejected = now(full.acquire(1)).unwrap_err();
    let Rejected::QueueFull {
        permits: 1,
        retry: Retry::At(told),
    } = rejected
    else {
        panic!("{rejected}")
    };
    let roomy = undriven(make(), before + 1).with_slack(Duration::ZERO);
    let _waits: Vec<_> = waits
        .iter()
        .map(|&n| Task::waiting(roomy.acquire(n)))
        .collect();
    let wait = Task::waiting(roomy.acquire(1));
    while wait.wakes() == 0 {
        let Next::At(at) = roomy.advance() else {
            panic!("time helps")
        };
        roomy.clock().set(at);
        roomy.advance();
    }
    let granted = portcullis_core::Clock::now(roomy.clock());
    assert!(
        told <= granted,
        "{waits:?}: retry at {told}, granted at {granted}"
    );
    if waits.iter().all(|&n| n == 1) {
        assert_eq!(told, granted, "{waits:?}");
    }
}

#[test]
fn a_request_that_finds_the_queue_full_learns_when_it_would_have_been_granted() {
    let lines: [&[u32]; 7] = [
        &[],
        &[1],
        &[1, 1, 1],
        &[1; 20],
        &[2, 1],
        &[3, 3, 2, 1],
        &[1, 0, 2],
    ];
    for waits in lines {
        is_told_when(|| bucket(3), waits);
        is_told_when(
            || {
                TokenBucket::builder(Rate::per_second(7), 3)
                    .initial(0)
                    .build()
                    .unwrap()
            },
            waits,
        );
        is_told_when(
            || {
                TokenBucket::builder(Rate::per_second(2), 3)
                    .stepwise()
                    .initial(0)
                    .build()
                    .unwrap()
            },
            waits,
        );
        let window = || {
            let window = FixedWindow::new(3, SECOND);
            window.take_at(START, 3).unwrap();
            window
        };
        is_told_when(window, waits);
        let sliding = || {
            let window: SlidingWindow<4> = SlidingWindow::new(3, SECOND, 4);
            window.take_at(START, 3).unwrap();
            window
        };
        is_told_when(sliding, waits);
    }
}

/// Behind others, the composition asks each limit separately. A limit that overflows while earlier
/// waiters wait for another limit has less for later waiters than it reports. So the retry is never
/// later than the grant.
#[test]
fn a_compositions_retry_is_never_later_than_the_grant_and_exact_without_waiters() {
    let mut random = Random(7);
    let mut below = |n| random.below(n);
    let (mut exact, mut early) = (0, 0);
    for case in 0..500 {
        let parts = [(); 3].map(|()| {
            let (rate, burst) = (1 + below(20) as u32, 1 + below(5));
            (Rate::per_second(rate), burst, below(burst + 1))
        });
        let before = below(6) as usize;
        let make = || {
            AllOf::new(parts.map(|(rate, burst, initial)| {
                TokenBucket::builder(rate, burst)
                    .initial(initial)
                    .build()
                    .unwrap()
            }))
        };
        let wait = |room: u64| {
            let queue = undriven(make(), room).with_slack(Duration::ZERO);
            // Everything available is taken, so that later requests wait.
            while queue.try_acquire(1).is_ok() {}
            queue
        };
        let full = wait(before as u64);
        let _waits: Vec<_> = (0..before)
            .map(|_| Task::waiting(full.acquire(1)))
            .collect();
        let rejected = now(full.acquire(1)).unwrap_err();
        let Rejected::QueueFull {
            retry: Retry::At(told),
            ..
        } = rejected
        else {
            panic!("{rejected}")
        };
        let roomy = wait(99);
        let _waits: Vec<_> = (0..before)
            .map(|_| Task::waiting(roomy.acquire(1)))
            .collect();
        let last = Task::waiting(roomy.acquire(1));
        while last.wakes() == 0 {
            let Next::At(at) = roomy.advance() else {
                panic!("time helps")
            };
            roomy.clock().set(at);
            roomy.advance();
        }
        let granted = portcullis_core::Clock::now(roomy.clock());
        assert!(
            told <= granted,
            "{case}: retry at {told}, granted at {granted}"
        );
        assert!(
            before > 0 || told == granted,
            "{case}: retry at {told}, granted at {granted}"
        );
        if told == granted {
            exact += 1;
        } else {
            early += 1;
        }
    }
    assert!(
        exact > 400 && early > 10,
        "{exact} exact, and {early} too early"
    );
}

#[test]
fn available_permits_count() {
    let queue = undriven(TokenBucket::new(Rate::per_second(1), 5), 5);
    let _held = now(queue.acquire(3)).unwrap();
    let _wait = Task::waiting(queue.acquire(4));
    // 4 and 2, 2 of which are available; 4 and 5.
    assert_eq!(permits(now(queue.acquire(2))), full(2, Retry::At(secs(4))));
    assert_eq!(permits(now(queue.acquire(5))), full(5, Retry::At(secs(7))));
}

#[test]
fn with_no_place_left_the_retry_is_the_same() {
    let queue = undriven(bucket(5), 99).with_max_waiters(2);
    let _waits = [2, 1].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(permits(now(queue.acquire(3))), full(3, Retry::At(secs(6))));
    queue.clock().set(secs(1));
    assert_eq!(permits(now(queue.acquire(3))), full(3, Retry::At(secs(6))));
}

#[test]
fn a_partial_requests_retry_is_for_its_minimum() {
    let queue = undriven(bucket(5), 1);
    let _wait = Task::waiting(queue.acquire(1).up_to(5));
    assert_eq!(
        permits(now(queue.acquire(2).up_to(5))),
        full(2, Retry::At(secs(3)))
    );
}

#[test]
fn newest_first_waiters_do_not_count() {
    let queue = newest_first(bucket(5), 3);
    let old = Task::waiting(queue.acquire(3));
    let _new = Task::waiting(queue.acquire(1));
    assert_eq!(
        permits(old.outcome()),
        Err(Rejected::Evicted {
            permits: 3,
            retry: Retry::At(secs(3))
        })
    );
    assert_eq!(permits(now(queue.acquire(4))), full(4, Retry::At(secs(4))));
}

#[test]
fn by_release_by_time_unknown_or_never_as_the_limiter_says() {
    struct Unknown;
    impl Limiter for Unknown {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, permits) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            Answer::Denied(Denied::Refused { now, permits })
        }

        fn give_back(&self, _: Back<'_>) -> Returned {
            Returned::NOTHING
        }

        fn read(&self, _: Read<'_>) -> Reading {
            Reading {
                available: 0,
                capacity: u64::MAX,
                idle: Idle::InUse,
                held: 0,
            }
        }

        fn retry(&self, _: Denied) -> Retry {
            Retry::After(SECOND)
        }
    }

    impl QueueLimiter for Unknown {
        const SHARED: bool = false;
    }
    let concurrency = undriven(Concurrency::new(1), 1);
    let _held = now(concurrency.acquire(1)).unwrap();
    for _ in 0..2 {
        let refused = Rejected::Refused {
            permits: 1,
            retry: Retry::After(SECOND),
        };
        assert_eq!(permits(now(undriven(Unknown, 0).acquire(1))), Err(refused));
        let nothing = undriven(
            TokenBucket::builder(Rate::ZERO, 5)
                .initial(0)
                .build()
                .unwrap(),
            0,
        );
        assert_eq!(permits(now(nothing.acquire(1))), full(1, Retry::Never));
    }
    let _wait = Task::waiting(concurrency.acquire(1));
    assert_eq!(
        permits(now(concurrency.acquire(1))),
        full(1, Retry::OnRelease)
    );
}

#[test]
fn a_request_that_can_never_be_granted_gets_never() {
    let queue = undriven(bucket(5), 9);
    let exceeds = now(queue.acquire(6)).unwrap_err();
    assert_eq!((exceeds.retry(), exceeds.permits()), (Retry::Never, 6));
    queue.close();
    let closed = now(queue.acquire(2)).unwrap_err();
    assert_eq!((closed.retry(), closed.permits()), (Retry::Never, 2));
}

#[test]
fn each_says_what_it_holds() {
    let (permits, retry) = (7, Retry::At(secs(1)));
    let all = [
        Rejected::QueueFull { permits, retry },
        Rejected::Evicted { permits, retry },
        Rejected::Deadline { permits, retry },
    ];
    assert!(
        all.iter()
            .all(|rejected| (rejected.permits(), rejected.retry()) == (permits, retry))
    );
}

#[test]
fn a_denied_try_counts_the_waiters_before_it() {
    let queue = undriven(bucket(2), 99);
    let waits = [1, 2].map(|n| Task::waiting(queue.acquire(n)));
    let denied = queue.try_acquire(2).unwrap_err();
    assert_eq!(denied.retry(&queue), Retry::At(secs(5)));
    drop(waits);
    assert_eq!(denied.retry(&queue), Retry::At(secs(2)));
    let newest = newest_first(bucket(2), 99);
    let _wait = Task::waiting(newest.acquire(2));
    assert_eq!(
        newest.try_acquire(1).unwrap_err().retry(&newest),
        Retry::At(secs(1))
    );
}

#[test]
fn a_refund_moves_the_retry_earlier() {
    let queue = undriven(TokenBucket::new(Rate::per_second(1), 5), 3);
    let mut held = now(queue.acquire(5)).unwrap();
    let _wait = Task::waiting(queue.acquire(3));
    assert_eq!(
        now(queue.acquire(1)).unwrap_err().retry(),
        Retry::At(secs(4))
    );
    assert_eq!(held.refund_at(START, 2), Ok(2));
    assert_eq!(
        now(queue.acquire(1)).unwrap_err().retry(),
        Retry::At(secs(2))
    );
}

#[test]
fn only_waiters_of_the_same_key_count() {
    let bucket = TokenBucket::builder(Rate::per_second(1), 5)
        .rules()
        .unwrap();
    let table = Keyed::new(bucket, Line::for_keys(1_000), Seed::new());
    let queue: KeyedQueue<_, Hand> = KeyedQueue::new(table, Hand::new(), 2);
    let _held = ["a", "b"].map(|key| now(queue.acquire(key, 5)).unwrap());
    let _waits =
        [("a", 2), ("b", 1), ("b", 1)].map(|(key, n)| Task::waiting(queue.acquire(key, n)));
    assert_eq!(
        permits(now(queue.acquire("a", 3))),
        full(3, Retry::At(secs(5)))
    );
    assert_eq!(
        permits(now(queue.acquire("b", 1))),
        full(1, Retry::At(secs(3)))
    );
    let late = now(queue.acquire("b", 1).until(secs(2))).unwrap_err();
    assert_eq!(
        late,
        Rejected::Deadline {
            permits: 1,
            retry: Retry::At(secs(3))
        }
    );
}

#[test]
fn the_longest_possible_queue_does_not_overflow() {
    let queue: Undriven<_> =
        undriven(bucket(u64::from(u32::MAX) / 4), u64::MAX).with_order(Order::OldestFirst);
    let most = u32::MAX / 4;
    let _waits: Vec<_> = (0..8).map(|_| Task::waiting(queue.acquire(most))).collect();
    let wait = now(queue.acquire(most).until(secs(u64::from(most)))).unwrap_err();
    let Retry::At(at) = wait.retry() else {
        panic!("{wait}")
    };
    assert!(at > secs(u64::from(most)), "it would not be the first");
}

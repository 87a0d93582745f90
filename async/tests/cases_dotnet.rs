//! The behaviour that .NET's own tests of System.Threading.RateLimiting show for waiters.
//!
//! Each module is one of .NET's suites, and each function in it the test of that name there. A
//! behaviour of several suites is written once, below them, with .NET's name. Where .NET
//! replenishes by a call, the manual time advances, and the queue is advanced. .NET's cancelled
//! tokens are dropped futures, its disposed limiters are closed queues, and its statistics are the
//! limiter's available permits and the queue's counts.

mod support;

use core::cell::Cell;
use core::time::Duration;
use std::sync::Arc;
use std::thread;

use portcullis_async::{Acquire, KeyedQueue, Next, Order, Queue, QueueCounts, Rejected};
use portcullis_core::keyed::{ConcurrencyRules, Line, Seed, TokenBucketRules};
use portcullis_core::limiter::{Answer, Ask, Back, Idle, Read, Reading, Receipt, Returned};
use portcullis_core::queue::{QueueKeys, QueueLimiter};
use portcullis_core::{
    Concurrency, Counted, Denied, FixedWindow, Keyed, Lease, Limiter, LimiterExt, ManualClock,
    Rate, Retry, SlidingWindow, Timestamp, TokenBucket,
};
use support::{Hand, Task, now};

type Manual<L> = Queue<L, ManualClock>;

const OLDEST: Order = Order::OldestFirst;
const NEWEST: Order = Order::NewestFirst;
const MILLI: Duration = Duration::from_millis(1);

macro_rules! shapes {
    ($suite:ty: $($shape:ident),*) => {$(
        #[test]
        fn $shape() {
            super::$shape::<$suite>();
        }
    )*};
}

macro_rules! every_shape {
    ($suite:ty) => {
        shapes! { $suite:
            can_acquire_resource_async, can_acquire_resource_async_queues_and_grabs_oldest,
            can_acquire_resource_async_queues_and_grabs_newest,
            fails_when_queuing_more_than_limit_oldest_first,
            drops_oldest_when_queuing_more_than_limit_newest_first,
            drops_multiple_oldest_when_queuing_more_than_limit_newest_first,
            drops_requested_lease_if_permit_count_greater_than_queue_limit_and_no_availability_newest_first,
            large_acquires_and_queues_do_not_integer_overflow,
            queue_available_after_queue_limit_hit_and_resources_become_available,
            throws_when_waiting_for_more_than_limit, acquire_async_zero_with_availability,
            acquire_async_zero_without_availability_waits_for_availability,
            can_dequeue_multiple_resources_at_once,
            can_acquire_resources_with_acquire_async_with_queued_items_if_newest_first,
            cannot_acquire_resources_with_acquire_async_with_queued_items_if_oldest_first,
            can_acquire_resources_with_acquire_with_queued_items_if_newest_first,
            cannot_acquire_resources_with_acquire_with_queued_items_if_oldest_first,
            can_cancel_acquire_async_after_queuing, can_cancel_acquire_async_before_queuing,
            cancel_updates_queue_limit,
            can_fill_queue_with_oldest_first_after_canceling_first_queued_request_manually,
            can_fill_queue_with_newest_first_after_canceling_queued_request_with_another_queued_request,
            can_dispose_after_canceling_queued_request, dispose_releases_queued_acquires,
            null_idle_duration_when_active, get_statistics_returns_new_instances,
            get_statistics_has_correct_values, get_statistics_with_zero_permit_count,
            get_statistics_after_dispose
        }
    };
}

/// .NET `ConcurrencyLimiterTests`.
mod concurrency_limiter_tests {
    use super::*;

    every_shape! { Permits }

    /// .NET `ReasonMetadataOnFailedWaitAsync`. The reason is the error itself.
    #[test]
    fn reason_metadata_on_failed_wait_async() {
        let queue = queue::<Permits>(2, 1, OLDEST);
        let _held = now(queue.acquire(2)).unwrap();
        let rejected = now(queue.acquire(2)).unwrap_err();
        assert_eq!(
            rejected,
            Rejected::QueueFull {
                permits: 2,
                retry: Retry::OnRelease
            }
        );
        assert!(rejected.to_string().starts_with("queue full"));
    }

    /// .NET `DoesNotDeadlockCleaningUpCanceledRequestedLease_Pre`: another thread cancels a wait
    /// while a release is going through the queue.
    #[test]
    fn does_not_deadlock_cleaning_up_canceled_requested_lease_pre() {
        let queue = Arc::new(queue::<Permits>(1, 9, OLDEST));
        for _ in 0..if cfg!(debug_assertions) { 500 } else { 5_000 } {
            let held = now(Acquire::new(Arc::clone(&queue), 1)).unwrap();
            let cancelled = Task::waiting(Acquire::new(Arc::clone(&queue), 1));
            let behind = Task::waiting(Acquire::new(Arc::clone(&queue), 1));
            let other = thread::spawn(move || drop(cancelled));
            drop(held);
            other.join().unwrap();
            assert_eq!(outcome(behind), Ok(1));
        }
        assert_eq!((available(&*queue), queue.counts().waiters), (1, 0));
    }
}

/// .NET `FixedWindowRateLimiterTests`.
mod fixed_window_rate_limiter_tests {
    use super::*;

    every_shape! { Windows }

    /// .NET `AutoReplenish_ReplenishesCounters`, with the time that the queue returns in place of a
    /// timer.
    #[test]
    fn auto_replenish_replenishes_counters() {
        completes_by_itself(
            FixedWindow::new(2, Duration::from_secs(1)),
            Timestamp::from_secs(1),
        );
    }

    /// .NET `RetryMetadataOnFailedWaitAsync`.
    #[test]
    fn retry_metadata_on_failed_wait_async() {
        let window = || FixedWindow::new(2, TWENTY_SECONDS);
        assert_eq!(told(window(), 2, &[2]), [Timestamp::from_secs(20)]);
        assert_eq!(
            told_the_refused(window(), 2, &[], 2),
            Timestamp::from_secs(20)
        );
    }

    /// .NET `CorrectRetryMetadataWithNonZeroAvailableItems`.
    #[test]
    fn correct_retry_metadata_with_non_zero_available_items() {
        let window = || FixedWindow::new(3, TWENTY_SECONDS);
        assert_eq!(told(window(), 2, &[3]), [Timestamp::from_secs(20)]);
        assert_eq!(
            told_the_refused(window(), 2, &[], 3),
            Timestamp::from_secs(20)
        );
    }

    /// .NET `AutoReplenishIgnoresTimerJitter`. Differs: a timer that is early replenishes nothing.
    #[test]
    fn auto_replenish_ignores_timer_jitter() {
        let [early, edge] = around(TEN_MINUTES);
        grants_at_the_edge_alone(FixedWindow::new(10, TEN_MINUTES), early, edge);
    }

    /// .NET `CorrectRetryMetadataWithQueuedItem`. Differs: .NET rounds the three missing permits
    /// down to one window.
    #[test]
    fn correct_retry_metadata_with_queued_item() {
        let window = || FixedWindow::new(2, TWENTY_SECONDS);
        assert_eq!(
            told(window(), 2, &[1, 2]),
            [Timestamp::from_secs(20), Timestamp::from_secs(40)]
        );
        assert_eq!(
            told_the_refused(window(), 2, &[1], 2),
            Timestamp::from_secs(40)
        );
    }
}

/// .NET `SlidingWindowRateLimiterTests`.
mod sliding_window_rate_limiter_tests {
    use super::*;

    every_shape! { Segments }

    /// .NET `AutoReplenish_ReplenishesCounters`, with the time that the queue returns in place of a
    /// timer.
    #[test]
    fn auto_replenish_replenishes_counters() {
        let window: SlidingWindow<2> = SlidingWindow::new(2, Duration::from_secs(1), 2);
        completes_by_itself(window, Timestamp::from_secs(1));
    }

    /// .NET `RetryMetadataOnFailedWaitAsync`.
    #[test]
    fn retry_metadata_on_failed_wait_async() {
        let window: SlidingWindow<4> = SlidingWindow::new(2, TWENTY_SECONDS, 4);
        assert_eq!(told(window, 2, &[2]), [Timestamp::from_secs(20)]);
        let window: SlidingWindow<4> = SlidingWindow::new(2, TWENTY_SECONDS, 4);
        assert_eq!(
            told_the_refused(window, 2, &[], 2),
            Timestamp::from_secs(20)
        );
    }

    /// .NET `CorrectRetryMetadataWithNonZeroAvailableItems`.
    #[test]
    fn correct_retry_metadata_with_non_zero_available_items() {
        let window: SlidingWindow<4> = SlidingWindow::new(3, TWENTY_SECONDS, 4);
        assert_eq!(told(window, 2, &[3]), [Timestamp::from_secs(20)]);
        let window: SlidingWindow<4> = SlidingWindow::new(3, TWENTY_SECONDS, 4);
        assert_eq!(
            told_the_refused(window, 2, &[], 3),
            Timestamp::from_secs(20)
        );
    }

    /// .NET `AutoReplenishIgnoresTimerJitter`. Differs: a timer that is early replenishes nothing.
    #[test]
    fn auto_replenish_ignores_timer_jitter() {
        let [early, edge] = around(TEN_MINUTES);
        let window: SlidingWindow<2> = SlidingWindow::new(10, TEN_MINUTES, 2);
        grants_at_the_edge_alone(window, early, edge);
    }

    /// .NET `CanAcquireMultipleRequestsAsync`.
    #[test]
    fn can_acquire_multiple_requests_async() {
        let window: SlidingWindow<3> = SlidingWindow::new(4, 3 * MILLI, 3);
        let queue: Manual<_> = Queue::new(window, ManualClock::new(), 4).with_order(NEWEST);
        let tick = || {
            queue.clock().advance(MILLI);
            queue.advance();
        };
        drop(now(queue.acquire(2)).unwrap());
        let mut evicted = Task::waiting(queue.acquire(3));
        tick();
        assert_eq!(
            now(queue.acquire(2)).unwrap().permits(),
            2,
            "free permits go to the newcomer"
        );
        assert!(evicted.is_pending());
        tick();
        let two = Task::waiting(queue.acquire(2));
        assert!(matches!(
            outcome(evicted),
            Err(Rejected::Evicted { permits: 3, .. })
        ));
        tick();
        assert_eq!((outcome(two), available(&queue)), (Ok(2), 0));
    }

    /// .NET `CanCancelAcquireAsyncBeforeQueuing`, after half of the window.
    #[test]
    fn can_cancel_acquire_async_before_queuing_within_the_window() {
        let queue = queue::<Segments>(2, 1, OLDEST);
        let _held = try_acquire(&queue, 2).unwrap();
        drop(queue.acquire(1));
        replenish::<Segments>(&queue, 1);
        assert_eq!(
            (available(&queue), queue.counts()),
            (0, QueueCounts::default())
        );
    }

    /// .NET `CancelUpdatesQueueLimit`, when more comes in than the waiter needs.
    #[test]
    fn cancel_updates_queue_limit_and_leaves_the_rest() {
        let queue = queue::<Segments>(2, 1, NEWEST);
        let _held = try_acquire(&queue, 2).unwrap();
        drop(Task::waiting(queue.acquire(1)));
        let wait = Task::waiting(queue.acquire(1));
        replenish::<Segments>(&queue, 2);
        assert_eq!((outcome(wait), available(&queue)), (Ok(1), 1));
    }

    /// .NET `CanFillQueueWithNewestFirstAfterCancelingQueuedRequestWithAnotherQueuedRequest`, with
    /// a segment in between.
    #[test]
    fn can_fill_queue_with_newest_first_after_canceling_queued_request_a_segment_later() {
        let queue = queue::<Segments>(2, 2, NEWEST);
        let _held = try_acquire(&queue, 2).unwrap();
        let [cancelled, evicted] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
        drop(cancelled);
        replenish::<Segments>(&queue, 1);
        let wait = Task::waiting(queue.acquire(2));
        assert!(matches!(
            outcome(evicted),
            Err(Rejected::Evicted { permits: 1, .. })
        ));
        replenish::<Segments>(&queue, 1);
        assert_eq!(outcome(wait), Ok(2));
    }

    /// .NET `GetStatisticsHasCorrectValues`, segment by segment.
    #[test]
    fn get_statistics_has_correct_values_segment_by_segment() {
        let queue = queue::<Segments>(100, 50, OLDEST);
        let statistics = || {
            (
                available(&queue),
                queue.counts().permits,
                queue.counts().full,
            )
        };
        let _held = try_acquire(&queue, 60).unwrap();
        let wait = Task::waiting(queue.acquire(50));
        replenish::<Segments>(&queue, 1);
        assert_eq!(statistics(), (40, 50, 0));
        assert!(now(queue.acquire(1)).is_err() && try_acquire(&queue, 100).is_none());
        assert_eq!(statistics(), (40, 50, 1));
        replenish::<Segments>(&queue, 1);
        assert_eq!((statistics(), outcome(wait)), ((50, 0, 1), Ok(50)));
    }

    /// .NET `RetryAfterClampsToZeroWhenWindowExpired`. Differs: the permit becomes available
    /// without a call to replenish.
    #[test]
    fn retry_after_clamps_to_zero_when_window_expired() {
        let window: SlidingWindow<4> = SlidingWindow::new(1, TWENTY_SECONDS, 4);
        let queue: Manual<_> = Queue::new(window, ManualClock::new(), 0);
        drop(now(queue.acquire(1)).unwrap());
        queue.clock().advance(Duration::from_secs(25));
        assert!(now(queue.acquire(1)).is_ok());
    }
}

/// .NET `TokenBucketRateLimiterTests`, with a bucket that refills in steps.
mod token_bucket_rate_limiter_tests {
    use super::*;

    every_shape! { Steps }

    /// .NET `AutoReplenish_ReplenishesTokens`, with the time that the queue returns in place of a
    /// timer.
    #[test]
    fn auto_replenish_replenishes_tokens() {
        completes_by_itself(
            TokenBucket::new(Rate::per_second(1), 2),
            Timestamp::from_secs(1),
        );
        completes_by_itself(
            stepwise(2, 1, Duration::from_secs(1)),
            Timestamp::from_secs(1),
        );
    }

    /// .NET `AutoReplenishIgnoresTimerJitter`. Differs: a timer that is early replenishes nothing.
    #[test]
    fn auto_replenish_ignores_timer_jitter() {
        let [early, edge] = around(TEN_MINUTES);
        grants_at_the_edge_alone(stepwise(10, 1, TEN_MINUTES), early, edge);
        grants_at_the_edge_alone(TokenBucket::new(Rate::new(1, TEN_MINUTES), 10), early, edge);
    }

    /// .NET `CorrectRetryMetadataWithLargeTokensPerPeriod`. Differs: the bucket holds two, so that
    /// the three missing tokens take two periods, however many come in per period.
    #[test]
    fn correct_retry_metadata_with_large_tokens_per_period() {
        let steps = || stepwise(2, 100, TWENTY_SECONDS);
        assert_eq!(
            told(steps(), 2, &[1, 2]),
            [Timestamp::from_secs(20), Timestamp::from_secs(40)]
        );
        assert_eq!(
            told_the_refused(steps(), 2, &[1], 2),
            Timestamp::from_secs(40)
        );
    }

    /// .NET `DropsMultipleOldestWhenQueuingMoreThanLimit_NewestFirst`, and
    /// `DropsRequestedLease...`, one token at a time.
    #[test]
    fn what_is_not_dropped_gets_its_tokens_one_by_one() {
        let queue: Manual<_> =
            Queue::new(stepwise(2, 1, MILLI), ManualClock::new(), 2).with_order(NEWEST);
        drop(now(queue.acquire(2)).unwrap());
        let [old, older, mut new] = [1, 1, 2].map(|n| Task::waiting(queue.acquire(n)));
        assert!(outcome(old).is_err() && outcome(older).is_err());
        replenish::<Steps>(&queue, 1);
        assert!(new.is_pending());
        replenish::<Steps>(&queue, 1);
        assert_eq!(outcome(new), Ok(2));

        let queue: Manual<_> =
            Queue::new(stepwise(2, 1, MILLI), ManualClock::new(), 1).with_order(NEWEST);
        drop(now(queue.acquire(2)).unwrap());
        let wait = Task::waiting(queue.acquire(1));
        assert!(now(queue.acquire(2)).is_err());
        replenish::<Steps>(&queue, 1);
        assert_eq!(outcome(wait), Ok(1));
    }

    /// .NET `CanFillQueueWithOldestFirstAfterCancelingFirstQueuedRequestManually`, with a part of
    /// the period. Differs for a stepwise bucket: .NET's fills continuously when it is replenished
    /// by a call.
    #[test]
    fn can_fill_queue_with_oldest_first_after_canceling_first_queued_request_within_the_period() {
        let drops = TokenBucket::new(Rate::new(3, 3 * MILLI), 3);
        for (limiter, granted) in [(drops, true), (stepwise(3, 3, 3 * MILLI), false)] {
            let queue: Manual<_> = Queue::new(limiter, ManualClock::new(), 3);
            drop(now(queue.acquire(3)).unwrap());
            drop(Task::waiting(queue.acquire(2)));
            let mut wait = Task::waiting(queue.acquire(1));
            replenish::<Steps>(&queue, 1);
            assert_eq!((wait.poll().is_ready(), available(&queue)), (granted, 0));
            assert_eq!(queue.counts().permits, u64::from(!granted));
        }
    }

    /// .NET `GetStatisticsHasCorrectValues`, with fewer tokens per period than the bucket holds.
    #[test]
    fn get_statistics_has_correct_values_token_by_token() {
        let queue: Manual<_> = Queue::new(stepwise(100, 30, MILLI), ManualClock::new(), 50);
        let _held = try_acquire(&queue, 60).unwrap();
        let wait = Task::waiting(queue.acquire(50));
        assert!(now(queue.acquire(1)).is_err());
        replenish::<Steps>(&queue, 1);
        assert_eq!(
            (
                available(&queue),
                queue.counts().permits,
                queue.counts().full
            ),
            (20, 0, 1)
        );
        assert_eq!(outcome(wait), Ok(50));
    }

    /// .NET `CanAcquireResourceAsync_QueuesAndGrabsNewest`, one token at a time.
    #[test]
    fn can_acquire_resource_async_queues_and_grabs_newest_token_by_token() {
        for limiter in [
            stepwise(2, 1, MILLI),
            TokenBucket::new(Rate::new(1, MILLI), 2),
        ] {
            let queue: Manual<_> = Queue::new(limiter, ManualClock::new(), 3).with_order(NEWEST);
            drop(now(queue.acquire(2)).unwrap());
            let mut two = Task::waiting(queue.acquire(2));
            let one = Task::waiting(queue.acquire(1));
            replenish::<Steps>(&queue, 1);
            assert_eq!(outcome(one), Ok(1));
            assert!(two.is_pending());
            assert_eq!(available(&queue), 0);
            replenish::<Steps>(&queue, 1);
            assert!(two.is_pending());
            assert_eq!(available(&queue), 1);
            replenish::<Steps>(&queue, 1);
            assert_eq!(outcome(two), Ok(2));
        }
    }

    /// .NET `RetryMetadataOnFailedWaitAsync`.
    #[test]
    fn retry_metadata_on_failed_wait_async() {
        assert_eq!(
            told(stepwise(2, 1, TWENTY_SECONDS), 2, &[2]),
            [Timestamp::from_secs(40)]
        );
        assert_eq!(
            told_the_refused(stepwise(2, 1, TWENTY_SECONDS), 2, &[], 2),
            Timestamp::from_secs(40)
        );
    }

    /// .NET `CorrectRetryMetadataWithMultipleTokensPerPeriod`. Differs: .NET rounds the three
    /// missing tokens down to one period.
    #[test]
    fn correct_retry_metadata_with_multiple_tokens_per_period() {
        let steps = || stepwise(2, 2, TWENTY_SECONDS);
        assert_eq!(
            told(steps(), 2, &[1, 2]),
            [Timestamp::from_secs(20), Timestamp::from_secs(40)]
        );
        assert_eq!(
            told_the_refused(steps(), 2, &[1], 2),
            Timestamp::from_secs(40)
        );
        let drops = || TokenBucket::new(Rate::new(2, TWENTY_SECONDS), 2);
        assert_eq!(
            told(drops(), 2, &[1, 2]),
            [Timestamp::from_secs(10), Timestamp::from_secs(30)]
        );
        assert_eq!(
            told_the_refused(drops(), 2, &[1], 2),
            Timestamp::from_secs(30)
        );
    }

    /// .NET `CorrectRetryMetadataWithNonZeroAvailableItems`.
    #[test]
    fn correct_retry_metadata_with_non_zero_available_items() {
        assert_eq!(
            told(stepwise(3, 1, TWENTY_SECONDS), 2, &[3]),
            [Timestamp::from_secs(40)]
        );
        assert_eq!(
            told_the_refused(stepwise(3, 1, TWENTY_SECONDS), 2, &[], 3),
            Timestamp::from_secs(40)
        );
    }

    /// .NET `ReplenishWorksWithTicksOverInt32Max`. Half a token is not available as a token.
    #[test]
    fn replenish_works_with_ticks_over_int32_max() {
        let queue: Manual<_> = Queue::new(
            TokenBucket::new(Rate::new(1, 2 * MILLI), 10),
            ManualClock::new(),
            2,
        );
        queue.clock().advance(MILLI * u32::MAX);
        queue.advance();
        drop(now(queue.acquire(10)).unwrap());
        let first = Task::waiting(queue.acquire(1));
        queue.clock().advance(2 * MILLI);
        queue.advance();
        assert_eq!(outcome(first), Ok(1));
        let mut second = Task::waiting(queue.acquire(1));
        queue.clock().advance(MILLI);
        queue.advance();
        assert!(second.is_pending());
        queue.clock().advance(2 * MILLI);
        queue.advance();
        assert_eq!(outcome(second), Ok(1));
    }
}

/// .NET `TokenBucketRateLimiterTests` once more, with a bucket that refills continuously.
mod token_bucket_rate_limiter_tests_continuous {
    use super::*;

    every_shape! { Drops }
}

/// .NET `ChainedLimiterTests`, with one wait after another: a wait is for one queue, and holds
/// permits of the others only once they are granted.
mod chained_limiter_tests {
    use super::*;

    /// .NET `GetStatisticsHasCorrectValues`, with a wait for the last of three.
    #[test]
    fn get_statistics_has_correct_values() {
        let (first, second) = (Concurrency::new(34), Concurrency::new(22));
        let third = queue::<Permits>(13, 10, OLDEST);
        let chain = async || {
            let one = first.try_acquire(10).unwrap();
            let two = second.try_acquire(10).unwrap();
            (third.acquire(10).await.unwrap(), two, one)
        };
        let fewest = || available(&third).min(first.available().min(second.available()).into());
        let held = now(chain());
        assert_eq!((fewest(), third.counts().permits), (3, 0));
        let wait = Task::waiting(chain());
        assert_eq!((fewest(), third.counts().permits), (2, 10));
        drop(held);
        let held = wait.outcome();
        assert_eq!(
            (fewest(), third.counts().permits, third.counts().granted),
            (3, 0, 1)
        );
        drop(held);
    }

    /// .NET `AcquireAsyncCanBeCanceled`, and `AcquireAsyncCanceledReleasesAcquiredResources` of the
    /// chains of partitions.
    #[test]
    fn acquire_async_can_be_canceled() {
        let first = Concurrency::new(2);
        let second = queue::<Permits>(1, 1, OLDEST);
        let chain = async || {
            let one = first.try_acquire(1).unwrap();
            (second.acquire(1).await.unwrap(), one)
        };
        let held = now(chain());
        let wait = Task::waiting(chain());
        assert_eq!(first.available(), 0);
        drop(wait);
        assert_eq!((first.available(), second.counts().cancelled), (1, 1));
        drop(held);
        assert_eq!((first.available(), available(&second)), (2, 1));
    }

    /// .NET `AcquireAsyncWaitsForResourcesBeforeCallingNextLimiter`.
    #[test]
    fn acquire_async_waits_for_resources_before_calling_next_limiter() {
        let first = queue::<Permits>(1, 1, OLDEST);
        let second = queue::<Permits>(1, 0, OLDEST);
        let chain = async || {
            let one = first.acquire(1).await?;
            Ok::<_, Rejected>((second.acquire(1).await?, one))
        };
        let held = now(chain()).unwrap();
        let wait = Task::waiting(chain());
        drop(held);
        assert!(
            wait.outcome().is_ok(),
            "asked earlier, the second would have denied"
        );
        assert_eq!(second.counts().full, 0);
    }

    /// Grants as its limiter does, and counts how often it was asked.
    struct Track<L>(L, Cell<u32>);

    impl<L: QueueLimiter> Track<L> {
        fn new(limiter: L) -> Self {
            Self(limiter, Cell::new(0))
        }
    }

    impl<L: QueueLimiter> Limiter for Track<L> {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.1.set(self.1.get() + 1);
            self.0.take_at(now, n).into()
        }

        fn give_back(&self, back: Back<'_>) -> Returned {
            self.0.give_back(back)
        }

        fn read(&self, read: Read<'_>) -> Reading {
            self.0.read(read)
        }

        fn retry(&self, denied: Denied) -> Retry {
            self.0.retry(denied)
        }
    }

    impl<L: QueueLimiter> QueueLimiter for Track<L> {
        const SHARED: bool = L::SHARED;
    }

    /// Two limits as one limiter: both or none.
    struct Both<A, B>(A, B);

    impl<A: QueueLimiter, B: QueueLimiter> Limiter for Both<A, B> {
        fn decide(&self, ask: Ask<'_>) -> Answer {
            let (now, n) = (ask.now(), ask.permits());
            if ask.is_look() {
                return ask.looked(self.available_at(now), || u64::MAX);
            }
            self.take(now, n).into()
        }

        fn give_back(&self, back: Back<'_>) -> Returned {
            match back {
                Back::Release { permits: n } => {
                    self.1.release(n);
                    self.0.release(n);
                    Returned::NOTHING
                }
                Back::Refund {
                    permits, receipt, ..
                } => {
                    self.release(permits);
                    receipt.refunded(0).into()
                }
                _ => Returned::NOTHING,
            }
        }

        fn read(&self, read: Read<'_>) -> Reading {
            let now = read.now();
            Reading {
                available: self.0.available_at(now).min(self.1.available_at(now)),
                capacity: self.0.capacity().min(self.1.capacity()),
                idle: Idle::InUse,
                held: self.0.held().max(self.1.held()),
            }
        }

        fn retry(&self, denied: Denied) -> Retry {
            let (first, second) = (self.0.retry(denied), self.1.retry(denied));
            if first == second {
                first
            } else {
                Retry::After(MILLI)
            }
        }
    }

    impl<A: QueueLimiter, B: QueueLimiter> Both<A, B> {
        fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
            let first = self.0.take_at(now, n)?;
            self.1
                .take_at(now, n)
                .inspect_err(|_| _ = self.0.refund_at(now, n, first))?;
            Ok(Receipt::NONE)
        }
    }

    impl<A: QueueLimiter, B: QueueLimiter> QueueLimiter for Both<A, B> {
        const SHARED: bool = A::SHARED || B::SHARED;
    }

    /// .NET `AcquireAsyncWorksWithSingleLimiter`, and `AcquireAsyncWorksWithMultipleLimiters`.
    #[test]
    fn acquire_async_works_with_multiple_limiters() {
        let both = Both(
            Track::new(Concurrency::new(9)),
            Track::new(Concurrency::new(9)),
        );
        let queue: Manual<_> = Queue::new(both, ManualClock::new(), 9);
        assert_eq!(now(queue.acquire(1)).unwrap().permits(), 1);
        assert_eq!(
            queue.change(|Both(first, second)| (first.1.get(), second.1.get())),
            (1, 1)
        );
    }

    /// .NET `AcquireAsyncLeaseCorrectlyDisposesWithMultipleLimiters`, and
    /// `AcquireAsyncForwardsCorrectPermitCount`.
    #[test]
    fn acquire_async_lease_correctly_disposes_with_multiple_limiters() {
        let both = Both(Concurrency::new(5), Concurrency::new(3));
        let queue: Manual<_> = Queue::new(both, ManualClock::new(), 9);
        let free = || queue.change(|Both(five, three)| (five.available(), three.available()));
        let held = now(queue.acquire(3)).unwrap();
        assert_eq!(free(), (2, 0));
        let wait = Task::waiting(queue.acquire(2));
        assert_eq!(free(), (2, 0), "a waiter holds permits of neither");
        drop(held);
        let lease = wait.outcome().unwrap();
        assert_eq!(free(), (3, 1));
        drop(lease);
        assert_eq!(free(), (5, 3));
    }

    /// .NET `AcquireAsyncFailsWhenOneLimiterDoesNotHaveEnoughResources`, and
    /// `AcquireAsyncFailsAndReleasesAcquiredResources`.
    #[test]
    fn acquire_async_fails_and_releases_acquired_resources() {
        let second = Concurrency::new(1);
        second.try_acquire(1).unwrap().forget();
        let both = Both(Track::new(Concurrency::new(1)), second);
        let queue: Manual<_> = Queue::new(both, ManualClock::new(), 0);
        assert!(now(queue.acquire(1)).is_err());
        let (asked, free) = queue.change(|Both(first, _)| (first.1.get(), first.0.available()));
        assert!(asked >= 1);
        assert_eq!(free, 1);
    }

    /// .NET `AcquireAsyncThrowsAndReleasesAcquiredResources`: two waits in turn, the second for a
    /// closed queue.
    #[test]
    fn acquire_async_throws_and_releases_acquired_resources() {
        let first = queue::<Permits>(1, 0, OLDEST);
        let second = queue::<Permits>(1, 0, OLDEST);
        second.close();
        let chain = async || {
            let one = first.acquire(1).await?;
            Ok::<_, Rejected>((second.acquire(1).await?, one))
        };
        assert_eq!(now(chain()).unwrap_err(), Rejected::Closed { permits: 1 });
        assert_eq!(available(&first), 1);
    }

    /// .NET `DisposeMakesMethodsThrow`.
    #[test]
    fn dispose_makes_methods_throw() {
        let both = Both(Concurrency::new(1), Concurrency::new(1));
        let queue: Manual<_> = Queue::new(both, ManualClock::new(), 9);
        queue.close();
        assert!(try_acquire(&queue, 1).is_none());
        assert_eq!(
            now(queue.acquire(1)).unwrap_err(),
            Rejected::Closed { permits: 1 }
        );
        let is_open = queue.change(|Both(first, _)| first.try_acquire(1).is_ok());
        assert!(is_open, "its parts are not closed with it");
    }
}

/// .NET `PartitionedRateLimiterTests`, for waiters: the limiters of the partitions are in a table,
/// and the waiters in a queue around it.
mod partitioned_rate_limiter_tests {
    use super::*;

    type Partitions = Keyed<ConcurrencyRules, Box<[Line]>>;
    type Tokens = Keyed<TokenBucketRules, Box<[Line]>>;

    fn partitions(limit: u32, queue_limit: u64) -> KeyedQueue<Partitions, Hand> {
        let table = Keyed::new(
            ConcurrencyRules::new(limit),
            Line::for_keys(100),
            Seed::new(),
        );
        KeyedQueue::new(table, Hand::new(), queue_limit)
    }

    fn tokens() -> KeyedQueue<Tokens, Hand> {
        let bucket = TokenBucket::builder(Rate::new(1, 100 * MILLI), 1)
            .stepwise()
            .rules()
            .unwrap();
        KeyedQueue::new(
            Keyed::new(bucket, Line::for_keys(100), Seed::new()),
            Hand::new(),
            1,
        )
    }

    fn held<T>(queue: &KeyedQueue<T, Hand>, statistics: impl FnOnce(&T) -> usize) -> usize
    where
        T: QueueKeys,
    {
        queue.change(statistics)
    }

    /// .NET `Create_WaitAsyncCallsUnderlyingPartitionsLimiter`, and `Create_PartitionIsCached`:
    /// waits and tries of a key use one limiter.
    #[test]
    fn create_partition_is_cached() {
        let queue = partitions(4, 0);
        let entries = || held(&queue, |table| table.statistics_at(Timestamp::ZERO).held);
        assert_eq!(entries(), 0);
        let waited = now(queue.acquire("", 1)).unwrap();
        assert_eq!(entries(), 1);
        let tried = queue.try_acquire("", 1).unwrap();
        let again = now(queue.acquire("", 2)).unwrap();
        assert!(queue.try_acquire("", 1).is_err());
        assert_eq!(entries(), 1);
        drop((waited, tried, again));
    }

    /// .NET `WaitAsyncThrowsWhenPassedACanceledToken`: a future that was not polled creates
    /// nothing.
    #[test]
    fn wait_async_throws_when_passed_a_canceled_token() {
        let queue = partitions(1, 1);
        drop(queue.acquire("", 1));
        assert_eq!(
            held(&queue, |table| table.statistics_at(Timestamp::ZERO).held),
            0
        );
        assert_eq!(queue.counts(), QueueCounts::default());
    }

    /// .NET `Create_BlockingWaitDoesNotBlockOtherPartitions`.
    #[test]
    fn create_blocking_wait_does_not_block_other_partitions() {
        let queue = partitions(1, 2);
        let held = now(queue.acquire("2", 1)).unwrap();
        let wait = Task::waiting(queue.acquire("2", 1));
        assert_eq!(now(queue.acquire("1", 1)).unwrap().permits(), 1);
        drop(held);
        assert_eq!(outcome(wait), Ok(1));
    }

    /// .NET `Create_DisposeDisposesAllLimiters`, `Create_DisposeThrowsForFutureMethodCalls`, and
    /// their asynchronous twins.
    #[test]
    fn create_dispose_disposes_all_limiters() {
        let queue = partitions(1, 1);
        let _held = ["1", "2"].map(|key| now(queue.acquire(key, 1)).unwrap());
        let waits = ["1", "2"].map(|key| Task::waiting(queue.acquire(key, 1)));
        queue.close();
        assert!(
            waits
                .into_iter()
                .all(|wait| outcome(wait) == Err(Rejected::Closed { permits: 1 }))
        );
        assert!(queue.try_acquire("3", 1).is_err());
        assert_eq!(
            now(queue.acquire("3", 1)).unwrap_err(),
            Rejected::Closed { permits: 1 }
        );
        assert_eq!(
            held(&queue, |table| table.statistics_at(Timestamp::ZERO).held),
            2,
            "no slot is created"
        );
    }

    /// .NET `Create_WithTokenBucketReplenishesAutomatically`, and
    /// `Create_WithReplenishingLimiterReplenishesAutomatically`: by the timer of the queue.
    #[test]
    fn create_with_token_bucket_replenishes_automatically() {
        let queue = Arc::new(tokens());
        queue.attend_shared();
        drop(queue.try_acquire("", 1).unwrap());
        let wait = Task::waiting(queue.acquire("", 1));
        queue.clock().run(Timestamp::from_millis(100));
        assert_eq!((wait.wakes(), outcome(wait)), (1, Ok(1)));
    }

    /// .NET `Create_CancellationTokenPassedToUnderlyingLimiter`.
    #[test]
    fn create_cancellation_token_passed_to_underlying_limiter() {
        let queue = partitions(1, 1);
        let held = queue.try_acquire("", 1).unwrap();
        drop(Task::waiting(queue.acquire("", 1)));
        assert_eq!((queue.counts().cancelled, queue.counts().waiters), (1, 0));
        let wait = Task::waiting(queue.acquire("", 1));
        drop(held);
        assert_eq!(outcome(wait), Ok(1));
    }

    /// .NET `AllIdleLimitersCleanedUp_DisposeThrows`, and related tests: a limiter with waiters is
    /// not idle, and stays.
    #[test]
    fn all_idle_limiters_cleaned_up() {
        let queue = partitions(1, 1);
        let lease = now(queue.acquire("waited for", 1)).unwrap();
        let wait = Task::waiting(queue.acquire("waited for", 1));
        drop(now(queue.acquire("idle", 1)).unwrap());
        queue.clock().set(Timestamp::from_secs(60));
        assert_eq!(
            held(&queue, |table| table.sweep_at(Timestamp::from_secs(60), ..)),
            1
        );
        drop(lease);
        assert_eq!(outcome(wait), Ok(1));
    }

    /// .NET `Translate_WaitAsyncPassesThroughToInnerLimiter`: a key is translated before it is
    /// hashed.
    #[test]
    fn translate_wait_async_passes_through_to_inner_limiter() {
        let inner = partitions(1, 1);
        let translated = Cell::new(0);
        let outer = |key: i32| {
            translated.set(translated.get() + 1);
            inner.acquire(key.to_string().as_str(), 1)
        };
        let lease = now(outer(1)).unwrap();
        assert!(inner.try_acquire("1", 1).is_err());
        let wait = Task::waiting(inner.acquire("1", 1));
        drop(lease);
        assert_eq!((outcome(wait), translated.get()), (Ok(1), 1));
        let lease = now(inner.acquire("1", 1)).unwrap();
        let wait = Task::waiting(outer(1));
        drop(lease);
        assert_eq!((outcome(wait), translated.get()), (Ok(1), 2));
    }

    /// .NET `Translate_DisposeDoesNotDisposeInnerLimiter`, and
    /// `Translate_DisposeDoesDisposeInnerLimiter`: a borrowed queue stays open, and a closed one is
    /// closed for all.
    #[test]
    fn translate_dispose() {
        let inner = Arc::new(partitions(1, 1));
        let outer = Arc::clone(&inner);
        drop(outer);
        assert!(now(inner.acquire("1", 1)).is_ok());
        let outer = Arc::clone(&inner);
        outer.close();
        assert_eq!(
            now(inner.acquire("1", 1)).unwrap_err(),
            Rejected::Closed { permits: 1 }
        );
    }

    /// .NET `Translate_GetStatisticsCallsUnderlyingLimiter`, and `Create_GetStatistics...`: the
    /// available permits are those of a key, the waiters those of the table.
    #[test]
    fn translate_get_statistics_calls_underlying_limiter() {
        let queue = partitions(1, 1);
        let _held = now(queue.acquire("1", 1)).unwrap();
        let _wait = Task::waiting(queue.acquire("1", 1));
        let available = |key: &str| queue.key(key).available_at(Timestamp::ZERO);
        assert_eq!(
            (available("1"), available("2"), queue.counts().permits),
            (0, 1, 1)
        );
        assert_eq!(
            held(&queue, |table| table.statistics_at(Timestamp::ZERO).held),
            1,
            "a query creates no slot"
        );
    }

    /// Not tested there: a limiter that is evicted between the look-up and the wait is an error.
    /// Differs: a key finds its slot again on each request.
    #[test]
    fn a_key_outlives_its_slot() {
        let queue = partitions(1, 1);
        let key = queue.key("");
        drop(now(Acquire::new(key, 1)).unwrap());
        queue.clock().set(Timestamp::from_secs(60));
        assert_eq!(
            held(&queue, |table| table.sweep_at(Timestamp::from_secs(60), ..)),
            1
        );
        let lease = now(Acquire::new(key, 1)).unwrap();
        let wait = Task::waiting(Acquire::new(key, 1));
        drop(lease);
        assert_eq!(outcome(wait), Ok(1));
    }
}

/// Untested behaviour of .NET that concerns waiting.
mod not_tested_there {
    use super::*;

    /// Differs: in .NET, the waiters behind a cancelled head wait for the next release.
    #[test]
    fn a_cancelled_head_lets_the_waiters_behind_it_go_at_once() {
        let queue = queue::<Permits>(2, 9, OLDEST);
        let _held = now(queue.acquire(1)).unwrap();
        let head = Task::waiting(queue.acquire(2));
        let behind = Task::waiting(queue.acquire(1));
        drop(head);
        assert_eq!((behind.wakes(), outcome(behind)), (1, Ok(1)));
    }

    /// Differs: in .NET, such waits are not bounded, are granted permits that are not available,
    /// and are overtaken.
    #[test]
    fn waits_for_zero_permits_are_waits_like_others() {
        let queue = queue::<Permits>(1, 9, OLDEST).with_max_waiters(2);
        let held = now(queue.acquire(1)).unwrap();
        let mut none = [0, 0].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(
            now(queue.acquire(0)).unwrap_err(),
            Rejected::QueueFull {
                permits: 0,
                retry: Retry::OnRelease
            }
        );
        assert_eq!(queue.advance(), Next::OnRelease);
        assert!(none.iter_mut().all(Task::is_pending));
        assert!(queue.try_acquire_at(Timestamp::ZERO, 1).is_err());
        drop(held);
        assert!(none.into_iter().all(|wait| outcome(wait) == Ok(0)));
    }

    /// Differs: in .NET, the probe ignores the queue.
    #[test]
    fn a_probe_answers_as_a_try_would() {
        let queue = queue::<Permits>(2, 9, OLDEST);
        let _held = now(queue.acquire(1)).unwrap();
        let _wait = Task::waiting(queue.acquire(2));
        assert!(queue.try_acquire_at(Timestamp::ZERO, 0).is_err());
        assert!(queue.try_acquire_at(Timestamp::ZERO, 1).is_err());
    }

    /// More than the queue can hold, but not more than the limit: both orders reject at once.
    #[test]
    fn a_request_that_can_never_queue_is_rejected_at_once() {
        for order in [OLDEST, NEWEST] {
            let queue = queue::<Permits>(3, 2, order);
            let _held = now(queue.acquire(3)).unwrap();
            assert_eq!(
                now(queue.acquire(3)).unwrap_err(),
                Rejected::QueueFull {
                    permits: 3,
                    retry: Retry::OnRelease
                }
            );
        }
    }

    /// If a grant and a cancellation coincide, one of them wins, and no permit is lost.
    #[test]
    fn a_cancelled_grant_goes_on_to_the_next_waiter() {
        let queue = queue::<Permits>(1, 9, OLDEST);
        let held = now(queue.acquire(1)).unwrap();
        let [cancelled, next] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
        drop(held);
        drop(cancelled);
        assert_eq!(outcome(next), Ok(1));
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn without_room_to_queue_a_wait_is_a_try() {
        let queue = queue::<Permits>(1, 0, OLDEST);
        let held = now(queue.acquire(1)).unwrap();
        assert_eq!(
            now(queue.acquire(1)).unwrap_err(),
            Rejected::QueueFull {
                permits: 1,
                retry: Retry::OnRelease
            }
        );
        drop(held);
        assert!(now(queue.acquire(1)).is_ok());
    }

    /// Differs: in .NET, it keeps its place until it reaches an end of the queue.
    #[test]
    fn a_waiter_that_is_cancelled_in_the_middle_is_removed_at_once() {
        let queue = queue::<Permits>(1, 3, OLDEST);
        let _held = now(queue.acquire(1)).unwrap();
        let [first, middle, last] = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
        drop(middle);
        assert_eq!((queue.counts().waiters, queue.counts().permits), (2, 2));
        let next = Task::waiting(queue.acquire(1));
        drop((first, last, next));
    }

    /// Differs: in .NET, a segment that returns nothing does not serve the queue. Here no waiter is
    /// left waiting for available permits.
    #[test]
    fn a_segment_that_returns_nothing_leaves_no_waiter_behind() {
        let window: SlidingWindow<4> = SlidingWindow::new(2, TWENTY_SECONDS, 4);
        let queue: Manual<_> = Queue::new(window, ManualClock::new(), 9);
        queue.clock().set(Timestamp::from_secs(6));
        drop(now(queue.acquire(1)).unwrap());
        let head = Task::waiting(queue.acquire(2));
        let behind = Task::waiting(queue.acquire(1));
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(25)));
        drop(head);
        assert_eq!(outcome(behind), Ok(1));
    }

    /// Differs: in .NET, a late replenishment moves the window by one segment.
    #[test]
    fn all_segments_that_have_passed_count_for_waiters() {
        let window: SlidingWindow<4> = SlidingWindow::new(4, TWENTY_SECONDS, 4);
        let queue: Manual<_> = Queue::new(window, ManualClock::new(), 9);
        for second in [0, 5, 10, 15] {
            queue.clock().set(Timestamp::from_secs(second));
            drop(now(queue.acquire(1)).unwrap());
        }
        let waits = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
        queue.clock().set(Timestamp::from_secs(30));
        assert_eq!(queue.advance(), Next::Idle);
        assert!(waits.into_iter().all(|wait| outcome(wait) == Ok(1)));
    }

    /// Differs: in .NET, the next window begins when the end of the last one was noticed.
    #[test]
    fn the_next_edge_is_on_the_grid_however_late_the_last_one_was_noticed() {
        let queue: Manual<_> =
            Queue::new(FixedWindow::new(1, TWENTY_SECONDS), ManualClock::new(), 9);
        drop(now(queue.acquire(1)).unwrap());
        let [first, second] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
        queue.clock().set(Timestamp::from_secs(33));
        assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(40)));
        assert_eq!(outcome(first), Ok(1));
        queue.clock().set(Timestamp::from_secs(40));
        assert_eq!((queue.advance(), outcome(second)), (Next::Idle, Ok(1)));
    }

    /// Differs: in .NET, a timer whose period is below a millisecond fires once or never.
    #[test]
    fn waits_for_periods_below_a_millisecond_work() {
        let window = || FixedWindow::new(1, Duration::from_micros(1));
        assert_eq!(
            told(window(), 1, &[1, 1, 1]),
            [1_000, 2_000, 3_000].map(Timestamp::from_nanos)
        );
        let bucket = TokenBucket::new(Rate::new(1, Duration::from_nanos(1)), 1);
        assert_eq!(told(bucket, 1, &[1, 1]), [1, 2].map(Timestamp::from_nanos));
    }

    /// More than the limit and a full queue are different errors. A closed queue reports that it is
    /// closed, for any request. (In .NET, more than the limit is an error even then.)
    #[test]
    fn a_closed_queue_says_so_also_to_oversized_requests() {
        let queue = queue::<Permits>(1, 1, OLDEST);
        assert_eq!(
            now(queue.acquire(2)).unwrap_err(),
            Rejected::ExceedsCapacity {
                permits: 2,
                capacity: 1
            }
        );
        queue.close();
        assert_eq!(
            now(queue.acquire(2)).unwrap_err(),
            Rejected::Closed { permits: 2 }
        );
    }

    /// Newest first, the oldest are evicted until the newcomer fits, and each of them is counted.
    #[test]
    fn the_oldest_are_evicted_until_the_newcomer_fits_and_no_more() {
        let queue = queue::<Permits>(3, 3, NEWEST);
        let _held = now(queue.acquire(3)).unwrap();
        let [oldest, older, mut new] = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
        let newest = Task::waiting(queue.acquire(2));
        assert!(outcome(oldest).is_err() && outcome(older).is_err());
        assert!(new.is_pending());
        assert_eq!(
            (
                queue.counts().evicted,
                queue.counts().full,
                queue.counts().permits
            ),
            (2, 0, 3)
        );
        drop(newest);
    }

    /// In either order, waiters behind one that does not fit wait for it.
    #[test]
    fn no_waiter_overtakes_the_first_that_does_not_fit() {
        for order in [OLDEST, NEWEST] {
            let queue = queue::<Permits>(3, 9, order);
            let [one, two] = [1, 2].map(|n| now(queue.acquire(n)).unwrap());
            let (first, mut behind) = match order {
                OLDEST => {
                    let first = Task::waiting(queue.acquire(3));
                    (first, Task::waiting(queue.acquire(1)))
                }
                NEWEST => {
                    let behind = Task::waiting(queue.acquire(1));
                    (Task::waiting(queue.acquire(3)), behind)
                }
                _ => unreachable!("the model has no {order:?}"),
            };
            drop(one);
            assert!(behind.is_pending(), "{order:?}");
            drop(two);
            let lease = first.outcome().unwrap();
            assert!(behind.is_pending(), "{order:?}");
            drop(lease);
            assert_eq!(outcome(behind), Ok(1));
        }
    }

    /// A lease that outlives the queue's end still releases its permits, once.
    #[test]
    fn a_lease_releases_after_the_queue_was_closed() {
        let queue = queue::<Permits>(1, 1, OLDEST);
        let held = now(queue.acquire(1)).unwrap();
        queue.close();
        drop(held);
        assert_eq!((available(&queue), queue.advance()), (1, Next::Idle));
    }

    /// Differs: in .NET, a bucket loses tokens when time runs backwards.
    #[test]
    fn time_that_runs_backwards_grants_no_waiter_and_takes_nothing() {
        for limiter in [
            stepwise(1, 1, TWENTY_SECONDS),
            TokenBucket::new(Rate::new(1, TWENTY_SECONDS), 1),
        ] {
            let queue: Manual<_> = Queue::new(limiter, ManualClock::new(), 9);
            queue.clock().set(Timestamp::from_secs(40));
            drop(now(queue.acquire(1)).unwrap());
            let mut wait = Task::waiting(queue.acquire(1));
            for second in [39, 20, 0, 41] {
                queue.clock().set(Timestamp::from_secs(second));
                assert_eq!(
                    queue.advance(),
                    Next::At(Timestamp::from_secs(60)),
                    "{second}"
                );
                assert!(wait.is_pending());
            }
            queue.clock().set(Timestamp::from_secs(60));
            queue.advance();
            assert_eq!(outcome(wait), Ok(1));
        }
    }

    /// A release wakes, but polls no future: the code after the wait does not run in the release.
    #[test]
    fn a_release_does_not_run_the_code_after_the_wait() {
        let queue = queue::<Permits>(1, 1, OLDEST);
        let ran = Cell::new(false);
        let held = now(queue.acquire(1)).unwrap();
        let task = Task::waiting(async {
            let lease = queue.acquire(1).await;
            ran.set(true);
            lease
        });
        drop(held);
        assert_eq!((task.wakes(), ran.get()), (1, false));
        assert!(task.outcome().is_ok() && ran.get());
    }

    /// Differs: in .NET, a bucket that was full for long can be emptied twice.
    #[test]
    fn a_bucket_that_was_full_for_long_has_no_extra_permits_for_waiters() {
        for limiter in [
            stepwise(2, 1, TWENTY_SECONDS),
            TokenBucket::new(Rate::new(1, TWENTY_SECONDS), 2),
        ] {
            let queue: Manual<_> = Queue::new(limiter, ManualClock::new(), 9);
            queue.clock().set(Timestamp::from_secs(3_600));
            drop(now(queue.acquire(2)).unwrap());
            let mut wait = Task::waiting(queue.acquire(1));
            assert_eq!(queue.advance(), Next::At(Timestamp::from_secs(3_620)));
            assert!(wait.is_pending());
        }
    }

    /// Differs: in .NET, a waiter for zero permits is not counted, and is overtaken.
    #[test]
    fn waiters_for_zero_permits_are_not_overtaken() {
        let queue = queue::<Permits>(2, 9, OLDEST);
        let held = now(queue.acquire(2)).unwrap();
        let none = Task::waiting(queue.acquire(0));
        assert_eq!((queue.counts().waiters, queue.counts().permits), (1, 0));
        let one = Task::waiting(queue.acquire(1));
        drop(held);
        assert_eq!((none.wakes(), one.wakes()), (1, 1));
        assert_eq!((outcome(none), outcome(one)), (Ok(0), Ok(1)));
    }

    /// Differs: in .NET, a waiter that was evicted or rejected by a closed limiter learns neither
    /// the reason nor the retry time.
    #[test]
    fn every_rejection_has_a_reason_and_a_retry() {
        let queue = queue::<Steps>(1, 1, NEWEST);
        drop(now(queue.acquire(1)).unwrap());
        let evicted = Task::waiting(queue.acquire(1));
        let closed = Task::waiting(queue.acquire(1));
        let retry = Steps::retry(1, 1);
        assert_eq!(
            evicted.outcome().unwrap_err(),
            Rejected::Evicted { permits: 1, retry }
        );
        queue.close();
        assert_eq!(closed.outcome().unwrap_err().retry(), Retry::Never);
    }

    /// A counting limiter counts all grants, at once or after a wait: `TotalSuccessfulLeases` in
    /// .NET. `TotalFailedLeases` are the requests that it counts as denied or refused.
    #[test]
    fn a_counting_limiter_counts_all_grants() {
        let queue: Manual<_> =
            Queue::new(Counted::new(Concurrency::new(100)), ManualClock::new(), 50);
        let counted = || queue.limiter().counts();
        let held = try_acquire(&queue, 60).unwrap();
        let wait = Task::waiting(queue.acquire(50));
        assert!(now(queue.acquire(1)).is_err());
        assert_eq!(
            (counted().granted.requests, counted().refused.requests),
            (1, 1)
        );
        drop(held);
        assert_eq!((counted().granted.requests, queue.counts().granted), (2, 1));
        assert_eq!(counted().all().requests, 3);
        drop(wait);
    }

    /// An evicted wait counts as evicted, a cancelled one as cancelled, a closed one as neither.
    #[test]
    fn each_end_of_a_wait_is_counted_separately() {
        let queue = queue::<Permits>(1, 1, NEWEST);
        let _held = now(queue.acquire(1)).unwrap();
        let _evicted = Task::waiting(queue.acquire(1));
        drop(Task::waiting(queue.acquire(1)));
        let _closed = Task::waiting(queue.acquire(1));
        queue.close();
        let counts = queue.counts();
        assert_eq!(
            (
                counts.evicted,
                counts.cancelled,
                counts.full,
                counts.granted
            ),
            (1, 1, 0, 0)
        );
    }
}

const TWENTY_SECONDS: Duration = Duration::from_secs(20);
const TEN_MINUTES: Duration = Duration::from_mins(10);

/// The instants a millisecond before the edge, and at the edge.
fn around(edge: Duration) -> [Timestamp; 2] {
    [edge.saturating_sub(MILLI), edge].map(|at| Timestamp::ZERO.saturating_add(at))
}

/// With all permits taken, an early timer grants nothing.
fn grants_at_the_edge_alone(limiter: impl QueueLimiter, early: Timestamp, edge: Timestamp) {
    let queue: Manual<_> = Queue::new(limiter, ManualClock::new(), 9);
    drop(now(queue.acquire(10)).unwrap());
    let mut wait = Task::waiting(queue.acquire(1));
    queue.clock().set(early);
    assert_eq!(queue.advance(), Next::At(edge));
    assert!(wait.is_pending());
    queue.clock().set(edge);
    assert_eq!((queue.advance(), outcome(wait)), (Next::Idle, Ok(1)));
}

fn stepwise(limit: u32, tokens: u32, period: Duration) -> TokenBucket {
    TokenBucket::builder(Rate::new(tokens, period), limit.into())
        .stepwise()
        .build()
        .unwrap()
}

/// A limiter with the settings of .NET's suite.
trait Suite {
    type Limiter: QueueLimiter;
    /// The time between two replenishments; `None` if permits return when the lease is dropped.
    const PERIOD: Option<Duration>;
    /// .NET's largest number, or the largest limit if that is smaller.
    const MOST: u32 = i32::MAX as u32;
    /// The number of replenishments after which all permits are back.
    const PERIODS: u32 = 1;

    /// A bucket is refilled in one period.
    fn with_limit(limit: u32) -> Self::Limiter;

    /// The instant at which `n` permits have come in, if none is available at the beginning.
    fn retry(limit: u32, permits: u32) -> Retry {
        let Some(period) = Self::PERIOD else {
            return Retry::OnRelease;
        };
        Retry::At(Timestamp::ZERO.saturating_add(period * Self::PERIODS * permits.div_ceil(limit)))
    }
}

struct Permits;

impl Suite for Permits {
    type Limiter = Concurrency;
    const PERIOD: Option<Duration> = None;
    const MOST: u32 = Concurrency::<u64>::max_limit();

    fn with_limit(limit: u32) -> Concurrency {
        Concurrency::new(limit)
    }
}

struct Windows;

impl Suite for Windows {
    type Limiter = FixedWindow;
    const PERIOD: Option<Duration> = Some(MILLI);

    fn with_limit(limit: u32) -> FixedWindow {
        FixedWindow::new(limit.into(), MILLI)
    }
}

struct Segments;

impl Suite for Segments {
    type Limiter = SlidingWindow<2>;
    const PERIOD: Option<Duration> = Some(Duration::from_micros(500));
    const PERIODS: u32 = 2;

    fn with_limit(limit: u32) -> SlidingWindow<2> {
        SlidingWindow::new(limit.into(), MILLI, 2)
    }
}

struct Steps;

impl Suite for Steps {
    type Limiter = TokenBucket;
    const PERIOD: Option<Duration> = Some(MILLI);

    fn with_limit(limit: u32) -> TokenBucket {
        stepwise(limit, limit, MILLI)
    }
}

struct Drops;

impl Suite for Drops {
    type Limiter = TokenBucket;
    const PERIOD: Option<Duration> = Some(MILLI);

    fn with_limit(limit: u32) -> TokenBucket {
        TokenBucket::new(Rate::new(limit, MILLI), limit.into())
    }

    fn retry(limit: u32, permits: u32) -> Retry {
        Retry::At(Timestamp::from_nanos(
            (u64::from(permits) * 1_000_000).div_ceil(limit.into()),
        ))
    }
}

fn queue<S: Suite>(limit: u32, queue_limit: u64, order: Order) -> Manual<S::Limiter> {
    // As in .NET, no grant is made as of a time before the replenishment.
    Queue::new(S::with_limit(limit), ManualClock::new(), queue_limit)
        .with_order(order)
        .with_slack(Duration::ZERO)
}

fn available<L: QueueLimiter>(queue: &Manual<L>) -> u64 {
    use portcullis_core::Clock;
    queue.available_at(queue.clock().now())
}

fn try_acquire<L: QueueLimiter>(queue: &Manual<L>, n: u32) -> Option<Lease<&Manual<L>>> {
    use portcullis_core::Clock;
    queue.try_acquire_at(queue.clock().now(), n).ok()
}

/// The outcome of a wait that is over; the lease is dropped.
#[track_caller]
fn outcome<P, F>(wait: Task<F>) -> Result<u32, Rejected>
where
    P: core::ops::Deref,
    P::Target: Limiter,
    F: Future<Output = Result<Lease<P>, Rejected>>,
{
    wait.outcome().map(|lease| lease.permits())
}

/// Replenishes `n` times, one by one.
fn replenish<S: Suite>(queue: &Manual<impl QueueLimiter>, times: u32) {
    for period in S::PERIOD.into_iter().cycle().take(times as usize) {
        queue.clock().advance(period);
        queue.advance();
    }
}

/// Returns all permits of the lease: by its drop, or by time.
fn give_back<S: Suite, L: QueueLimiter>(queue: &Manual<L>, held: Lease<&Manual<L>>) {
    drop(held);
    replenish::<S>(queue, S::PERIODS);
}

/// With all permits taken, a wait for one ends at an instant that the queue returns.
fn completes_by_itself(limiter: impl QueueLimiter, at: Timestamp) {
    assert_eq!(told(limiter, 2, &[1]), [at]);
}

/// With `taken` permits taken, the instants that the queue returns until all waiters are granted,
/// each at such an instant.
fn told(limiter: impl QueueLimiter, taken: u32, waits: &[u32]) -> Vec<Timestamp> {
    let queue: Manual<_> = Queue::new(limiter, ManualClock::new(), 9);
    drop(now(queue.acquire(taken)).unwrap());
    let mut told = Vec::new();
    let waits: Vec<_> = waits
        .iter()
        .map(|&n| (n, Task::waiting(queue.acquire(n))))
        .collect();
    while let Next::At(at) = queue.advance() {
        queue.clock().set(at);
        told.push(at);
    }
    assert!(waits.into_iter().all(|(n, wait)| outcome(wait) == Ok(n)));
    told
}

/// With `taken` permits taken and `waits` waiting: the retry of a request that finds the queue
/// full.
fn told_the_refused(limiter: impl QueueLimiter, taken: u32, waits: &[u32], n: u32) -> Timestamp {
    let queue: Manual<_> = Queue::new(
        limiter,
        ManualClock::new(),
        waits.iter().map(|&n| u64::from(n)).sum(),
    );
    drop(now(queue.acquire(taken)).unwrap());
    let _waits: Vec<_> = waits
        .iter()
        .map(|&n| Task::waiting(queue.acquire(n)))
        .collect();
    match now(queue.acquire(n)).unwrap_err() {
        Rejected::QueueFull {
            permits,
            retry: Retry::At(at),
        } if permits == n => at,
        other => panic!("{other:?}"),
    }
}

/// .NET `CanAcquireResourceAsync`.
fn can_acquire_resource_async<S: Suite>() {
    let queue = queue::<S>(1, 1, NEWEST);
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(1));
}

/// .NET `CanAcquireResourceAsync_QueuesAndGrabsOldest`.
fn can_acquire_resource_async_queues_and_grabs_oldest<S: Suite>() {
    let queue = queue::<S>(1, 2, OLDEST);
    let held = now(queue.acquire(1)).unwrap();
    let [first, mut second] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    give_back::<S, _>(&queue, held);
    let held = first.outcome().unwrap();
    assert!(second.is_pending());
    assert_eq!(available(&queue), 0);
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(second), Ok(1));
}

/// .NET `CanAcquireResourceAsync_QueuesAndGrabsNewest`.
fn can_acquire_resource_async_queues_and_grabs_newest<S: Suite>() {
    let queue = queue::<S>(2, 3, NEWEST);
    let held = now(queue.acquire(2)).unwrap();
    let [mut two, one] = [2, 1].map(|n| Task::waiting(queue.acquire(n)));
    give_back::<S, _>(&queue, held);
    let held = one.outcome().unwrap();
    assert!(two.is_pending());
    assert_eq!(available(&queue), 1);
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(two), Ok(2));
}

/// .NET `FailsWhenQueuingMoreThanLimit_OldestFirst`. Differs: the retry counts the waiter before
/// it.
fn fails_when_queuing_more_than_limit_oldest_first<S: Suite>() {
    let queue = queue::<S>(1, 1, OLDEST);
    let _held = try_acquire(&queue, 1).unwrap();
    let mut wait = Task::waiting(queue.acquire(1));
    let rejected = now(queue.acquire(1)).unwrap_err();
    assert_eq!(
        rejected,
        Rejected::QueueFull {
            permits: 1,
            retry: S::retry(1, 2)
        }
    );
    assert!(wait.is_pending());
    let next = match S::retry(1, 1) {
        Retry::At(at) => Next::At(at),
        _ => Next::OnRelease,
    };
    assert_eq!(queue.advance(), next);
}

/// .NET `DropsOldestWhenQueuingMoreThanLimit_NewestFirst`.
fn drops_oldest_when_queuing_more_than_limit_newest_first<S: Suite>() {
    let queue = queue::<S>(1, 1, NEWEST);
    let held = try_acquire(&queue, 1).unwrap();
    let [old, new] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(
        outcome(old),
        Err(Rejected::Evicted {
            permits: 1,
            retry: S::retry(1, 1)
        })
    );
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(new), Ok(1));
}

/// .NET `DropsMultipleOldestWhenQueuingMoreThanLimit_NewestFirst`.
fn drops_multiple_oldest_when_queuing_more_than_limit_newest_first<S: Suite>() {
    let queue = queue::<S>(2, 2, NEWEST);
    let held = try_acquire(&queue, 2).unwrap();
    let [old, older, new] = [1, 1, 2].map(|n| Task::waiting(queue.acquire(n)));
    for evicted in [old, older] {
        assert_eq!(
            outcome(evicted),
            Err(Rejected::Evicted {
                permits: 1,
                retry: S::retry(2, 1)
            })
        );
    }
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(new), Ok(2));
}

/// .NET `DropsRequestedLeaseIfPermitCountGreaterThanQueueLimitAndNoAvailability_NewestFirst`.
fn drops_requested_lease_if_permit_count_greater_than_queue_limit_and_no_availability_newest_first<
    S: Suite,
>() {
    let queue = queue::<S>(2, 1, NEWEST);
    let held = try_acquire(&queue, 2).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    let rejected = now(queue.acquire(2)).unwrap_err();
    assert_eq!(
        rejected,
        Rejected::QueueFull {
            permits: 2,
            retry: S::retry(2, 2)
        }
    );
    assert_eq!(wait.wakes(), 0);
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(1));
}

/// .NET `LargeAcquiresAndQueuesDoNotIntegerOverflow`.
fn large_acquires_and_queues_do_not_integer_overflow<S: Suite>() {
    let queue = queue::<S>(S::MOST, S::MOST.into(), NEWEST);
    let held = try_acquire(&queue, S::MOST).unwrap();
    let [small, large] = [3, S::MOST].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(
        outcome(small),
        Err(Rejected::Evicted {
            permits: 3,
            retry: S::retry(S::MOST, 3)
        })
    );
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(large), Ok(S::MOST));
}

/// .NET `QueueAvailableAfterQueueLimitHitAndResources_BecomeAvailable`.
fn queue_available_after_queue_limit_hit_and_resources_become_available<S: Suite>() {
    let queue = queue::<S>(1, 1, OLDEST);
    let held = try_acquire(&queue, 1).unwrap();
    let wait = Task::waiting(queue.acquire(1));
    assert!(now(queue.acquire(1)).is_err());
    give_back::<S, _>(&queue, held);
    let held = wait.outcome().unwrap();
    let wait = Task::waiting(queue.acquire(1));
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(1));
}

/// .NET `ThrowsWhenWaitingForMoreThanLimit`.
fn throws_when_waiting_for_more_than_limit<S: Suite>() {
    let queue = queue::<S>(1, 1, NEWEST);
    let rejected = now(queue.acquire(2)).unwrap_err();
    assert_eq!(
        rejected,
        Rejected::ExceedsCapacity {
            permits: 2,
            capacity: 1
        }
    );
}

/// .NET `AcquireAsyncZero_WithAvailability`.
fn acquire_async_zero_with_availability<S: Suite>() {
    let queue = queue::<S>(1, 1, NEWEST);
    assert_eq!(now(queue.acquire(0)).unwrap().permits(), 0);
}

/// .NET `AcquireAsyncZero_WithoutAvailabilityWaitsForAvailability`.
fn acquire_async_zero_without_availability_waits_for_availability<S: Suite>() {
    let queue = queue::<S>(1, 1, NEWEST);
    let held = now(queue.acquire(1)).unwrap();
    let wait = Task::waiting(queue.acquire(0));
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(0));
    assert_eq!(available(&queue), 1);
}

/// .NET `CanDequeueMultipleResourcesAtOnce`.
fn can_dequeue_multiple_resources_at_once<S: Suite>() {
    let queue = queue::<S>(2, 2, OLDEST);
    let held = now(queue.acquire(2)).unwrap();
    let [first, second] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    give_back::<S, _>(&queue, held);
    assert_eq!((first.wakes(), second.wakes()), (1, 1));
    let first = first.outcome().unwrap();
    assert_eq!((first.permits(), outcome(second)), (1, Ok(1)));
}

/// .NET `CanAcquireResourcesWithAcquireAsyncWithQueuedItemsIfNewestFirst`.
fn can_acquire_resources_with_acquire_async_with_queued_items_if_newest_first<S: Suite>() {
    let queue = queue::<S>(2, 2, NEWEST);
    let held = try_acquire(&queue, 1).unwrap();
    let mut wait = Task::waiting(queue.acquire(2));
    assert_eq!(available(&queue), 1);
    let other = now(queue.acquire(1)).unwrap();
    assert!(wait.is_pending());
    drop(other);
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(2));
}

/// .NET `CannotAcquireResourcesWithAcquireAsyncWithQueuedItemsIfOldestFirst`.
fn cannot_acquire_resources_with_acquire_async_with_queued_items_if_oldest_first<S: Suite>() {
    let queue = queue::<S>(2, 3, OLDEST);
    let held = try_acquire(&queue, 1).unwrap();
    let [first, mut second] = [2, 1].map(|n| Task::waiting(queue.acquire(n)));
    give_back::<S, _>(&queue, held);
    let held = first.outcome().unwrap();
    assert!(second.is_pending());
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(second), Ok(1));
}

/// .NET `CanAcquireResourcesWithAcquireWithQueuedItemsIfNewestFirst`.
fn can_acquire_resources_with_acquire_with_queued_items_if_newest_first<S: Suite>() {
    let queue = queue::<S>(2, 3, NEWEST);
    let held = try_acquire(&queue, 1).unwrap();
    let mut wait = Task::waiting(queue.acquire(2));
    let other = try_acquire(&queue, 1).unwrap();
    assert!(wait.is_pending());
    drop(other);
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(2));
}

/// .NET `CannotAcquireResourcesWithAcquireWithQueuedItemsIfOldestFirst`.
fn cannot_acquire_resources_with_acquire_with_queued_items_if_oldest_first<S: Suite>() {
    let queue = queue::<S>(2, 3, OLDEST);
    let held = try_acquire(&queue, 1).unwrap();
    let wait = Task::waiting(queue.acquire(2));
    assert!(try_acquire(&queue, 1).is_none());
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(2));
}

/// .NET `CanCancelAcquireAsyncAfterQueuing`.
fn can_cancel_acquire_async_after_queuing<S: Suite>() {
    let queue = queue::<S>(1, 1, OLDEST);
    let held = try_acquire(&queue, 1).unwrap();
    drop(Task::waiting(queue.acquire(1)));
    give_back::<S, _>(&queue, held);
    assert_eq!(available(&queue), 1);
}

/// .NET `CanCancelAcquireAsyncBeforeQueuing`: a future that was not polled.
fn can_cancel_acquire_async_before_queuing<S: Suite>() {
    let queue = queue::<S>(1, 1, OLDEST);
    let held = try_acquire(&queue, 1).unwrap();
    drop(queue.acquire(1));
    assert_eq!(queue.counts(), QueueCounts::default());
    give_back::<S, _>(&queue, held);
    assert_eq!(available(&queue), 1);
}

/// .NET `CancelUpdatesQueueLimit`.
fn cancel_updates_queue_limit<S: Suite>() {
    for order in [OLDEST, NEWEST] {
        let queue = queue::<S>(1, 1, order);
        let held = try_acquire(&queue, 1).unwrap();
        drop(Task::waiting(queue.acquire(1)));
        let wait = Task::waiting(queue.acquire(1));
        assert_eq!(queue.counts().evicted, 0);
        give_back::<S, _>(&queue, held);
        assert_eq!(outcome(wait), Ok(1));
    }
}

/// .NET `CanFillQueueWithOldestFirstAfterCancelingFirstQueuedRequestManually`.
fn can_fill_queue_with_oldest_first_after_canceling_first_queued_request_manually<S: Suite>() {
    let queue = queue::<S>(3, 3, OLDEST);
    let (one, two) = (
        try_acquire(&queue, 1).unwrap(),
        try_acquire(&queue, 2).unwrap(),
    );
    drop(Task::waiting(queue.acquire(2)));
    let wait = Task::waiting(queue.acquire(1));
    drop(one);
    give_back::<S, _>(&queue, two);
    let granted = wait.outcome().unwrap();
    assert_eq!(
        (granted.permits(), available(&queue), queue.counts().permits),
        (1, 2, 0)
    );
}

/// .NET `CanFillQueueWithNewestFirstAfterCancelingQueuedRequestWithAnotherQueuedRequest`.
fn can_fill_queue_with_newest_first_after_canceling_queued_request_with_another_queued_request<
    S: Suite,
>() {
    let queue = queue::<S>(2, 2, NEWEST);
    let held = try_acquire(&queue, 2).unwrap();
    let [cancelled, evicted] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    drop(cancelled);
    let wait = Task::waiting(queue.acquire(2));
    assert_eq!(
        outcome(evicted),
        Err(Rejected::Evicted {
            permits: 1,
            retry: S::retry(2, 1)
        })
    );
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(2));
}

/// .NET `CanDisposeAfterCancelingQueuedRequest`.
fn can_dispose_after_canceling_queued_request<S: Suite>() {
    let queue = queue::<S>(1, 1, OLDEST);
    let _held = try_acquire(&queue, 1).unwrap();
    drop(Task::waiting(queue.acquire(1)));
    queue.close();
    assert_eq!((queue.counts().cancelled, queue.counts().waiters), (1, 0));
}

/// .NET `DisposeReleasesQueuedAcquires`, and `DisposeAsyncReleasesQueuedAcquires`.
fn dispose_releases_queued_acquires<S: Suite>() {
    let queue = queue::<S>(1, 3, OLDEST);
    let _held = try_acquire(&queue, 1).unwrap();
    let waits = [1, 1, 1].map(|n| Task::waiting(queue.acquire(n)));
    queue.close();
    for wait in waits {
        assert_eq!(
            (wait.wakes(), outcome(wait)),
            (1, Err(Rejected::Closed { permits: 1 }))
        );
    }
    assert!(try_acquire(&queue, 1).is_none());
    assert_eq!(
        now(queue.acquire(1)).unwrap_err(),
        Rejected::Closed { permits: 1 }
    );
}

/// .NET `NullIdleDurationWhenActive`, with a waiter as well.
fn null_idle_duration_when_active<S: Suite>() {
    let queue = queue::<S>(1, 2, OLDEST);
    let held = try_acquire(&queue, 1).unwrap();
    assert_eq!(queue.idle_at(Timestamp::ZERO), Idle::InUse);
    let wait = Task::waiting(queue.acquire(1));
    let later = Timestamp::from_secs(1);
    assert_eq!(
        queue.idle_at(later),
        Idle::InUse,
        "there is a waiter, whatever the limiter says"
    );
    drop((held, wait));
    assert!(queue.idle_at(later).is_idle());
}

/// .NET `GetStatisticsReturnsNewInstances`.
fn get_statistics_returns_new_instances<S: Suite>() {
    let queue = queue::<S>(1, 1, OLDEST);
    let before = (available(&queue), queue.counts());
    let _held = try_acquire(&queue, 1).unwrap();
    let _wait = Task::waiting(queue.acquire(1));
    let after = (available(&queue), queue.counts());
    assert_eq!(
        (before.0, before.1.permits, after.0, after.1.permits),
        (1, 0, 0, 1)
    );
}

/// .NET `GetStatisticsHasCorrectValues`. Grants without a wait are counted by a counting limiter,
/// not by the queue.
fn get_statistics_has_correct_values<S: Suite>() {
    let queue = queue::<S>(100, 50, OLDEST);
    let statistics = || {
        let counts = queue.counts();
        (
            available(&queue),
            counts.permits,
            counts.full,
            counts.granted,
        )
    };
    assert_eq!(statistics(), (100, 0, 0, 0));
    let held = try_acquire(&queue, 60).unwrap();
    assert_eq!(statistics(), (40, 0, 0, 0));
    let wait = Task::waiting(queue.acquire(50));
    assert_eq!(statistics(), (40, 50, 0, 0));
    let rejected = now(queue.acquire(1)).unwrap_err();
    // 51 are requested, and 40 are available.
    assert_eq!(
        rejected,
        Rejected::QueueFull {
            permits: 1,
            retry: S::retry(100, 11)
        }
    );
    assert_eq!(statistics(), (40, 50, 1, 0));
    assert!(try_acquire(&queue, 100).is_none());
    assert_eq!(statistics(), (40, 50, 1, 0));
    give_back::<S, _>(&queue, held);
    assert_eq!(statistics(), (50, 0, 1, 1));
    drop(wait);
}

/// .NET `GetStatisticsWithZeroPermitCount`.
fn get_statistics_with_zero_permit_count<S: Suite>() {
    let queue = queue::<S>(100, 50, OLDEST);
    assert!(try_acquire(&queue, 0).is_some());
    assert_eq!(now(queue.acquire(0)).unwrap().permits(), 0);
    assert_eq!(available(&queue), 100);
    let _held = try_acquire(&queue, 100).unwrap();
    assert!(try_acquire(&queue, 0).is_none());
    assert_eq!(
        (available(&queue), queue.counts()),
        (0, QueueCounts::default())
    );
}

/// .NET `GetStatisticsThrowsAfterDispose`. Differs: a closed queue reports what it has counted.
fn get_statistics_after_dispose<S: Suite>() {
    let queue = queue::<S>(100, 50, OLDEST);
    let _held = try_acquire(&queue, 100).unwrap();
    drop(Task::waiting(queue.acquire(1)));
    queue.close();
    assert_eq!((available(&queue), queue.counts().cancelled), (0, 1));
}

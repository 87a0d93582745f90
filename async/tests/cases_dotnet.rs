//! What .NET's own tests of System.Threading.RateLimiting show of those who wait.
//!
//! A module is one of .NET's suites, a function in it the test of that name there; a behaviour of several suites is written once, below
//! them, and says .NET's name. Where .NET replenishes by hand, the manual time moves on, and the queue is advanced. .NET's cancelled tokens are futures that are dropped, its
//! disposed limiters closed queues, its statistics what the limiter has available and the queue's counts.

mod support;

use core::time::Duration;
use std::sync::Arc;
use std::thread;

use portcullis_async::{Acquire, Next, Order, Queue, QueueCounts, Rejected};
use portcullis_core::{
    Concurrency, FixedWindow, Idle, Lease, Limiter, LimiterExt, ManualClock, Rate, SlidingWindow, Timestamp,
    TokenBucket,
};
use support::{Task, now};

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
        assert_eq!(rejected, Rejected::QueueFull { permits: 2 });
        assert!(rejected.to_string().starts_with("queue full"));
    }

    /// .NET `DoesNotDeadlockCleaningUpCanceledRequestedLease_Pre`: a wait is cancelled by another thread while a release goes through the queue.
    #[test]
    fn does_not_deadlock_cleaning_up_canceled_requested_lease_pre() {
        let queue = Arc::new(queue::<Permits>(1, 9, OLDEST));
        for _ in 0..if cfg!(debug_assertions) { 500 } else { 5_000 } {
            let held = now(Acquire::new(Arc::clone(&queue), 1, 1)).unwrap();
            let cancelled = Task::waiting(Acquire::new(Arc::clone(&queue), 1, 1));
            let behind = Task::waiting(Acquire::new(Arc::clone(&queue), 1, 1));
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

    /// .NET `AutoReplenish_ReplenishesCounters`, with the time that the queue tells in place of a timer.
    #[test]
    fn auto_replenish_replenishes_counters() {
        completes_by_itself(FixedWindow::new(2, Duration::from_secs(1)), Timestamp::from_secs(1));
    }

    /// .NET `CorrectRetryMetadataWithQueuedItem`. Differs: .NET rounds the three permits that are short down to one window.
    #[test]
    fn correct_retry_metadata_with_queued_item() {
        let told = told(FixedWindow::new(2, TWENTY_SECONDS), 2, &[1, 2]);
        assert_eq!(told, [Timestamp::from_secs(20), Timestamp::from_secs(40)]);
    }
}

/// .NET `SlidingWindowRateLimiterTests`.
mod sliding_window_rate_limiter_tests {
    use super::*;

    every_shape! { Segments }

    /// .NET `AutoReplenish_ReplenishesCounters`, with the time that the queue tells in place of a timer.
    #[test]
    fn auto_replenish_replenishes_counters() {
        let window: SlidingWindow<2> = SlidingWindow::new(2, Duration::from_secs(1), 2);
        completes_by_itself(window, Timestamp::from_secs(1));
    }

    /// .NET `RetryMetadataOnFailedWaitAsync`, for one who may wait.
    #[test]
    fn retry_metadata_on_failed_wait_async() {
        let window: SlidingWindow<4> = SlidingWindow::new(2, TWENTY_SECONDS, 4);
        assert_eq!(told(window, 2, &[2]), [Timestamp::from_secs(20)]);
    }

    /// .NET `CorrectRetryMetadataWithNonZeroAvailableItems`, for one who may wait.
    #[test]
    fn correct_retry_metadata_with_non_zero_available_items() {
        let window: SlidingWindow<4> = SlidingWindow::new(3, TWENTY_SECONDS, 4);
        assert_eq!(told(window, 2, &[3]), [Timestamp::from_secs(20)]);
    }

    /// .NET `RetryAfterClampsToZeroWhenWindowExpired`. Differs: nobody has to replenish for the permit to be there.
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

    /// .NET `AutoReplenish_ReplenishesTokens`, with the time that the queue tells in place of a timer.
    #[test]
    fn auto_replenish_replenishes_tokens() {
        completes_by_itself(TokenBucket::new(Rate::per_second(1), 2), Timestamp::from_secs(1));
        completes_by_itself(stepwise(2, 1, Duration::from_secs(1)), Timestamp::from_secs(1));
    }

    /// .NET `CanAcquireResourceAsync_QueuesAndGrabsNewest`, a token at a time.
    #[test]
    fn can_acquire_resource_async_queues_and_grabs_newest_token_by_token() {
        for limiter in [stepwise(2, 1, MILLI), TokenBucket::new(Rate::new(1, MILLI), 2)] {
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

    /// .NET `RetryMetadataOnFailedWaitAsync`, for one who may wait.
    #[test]
    fn retry_metadata_on_failed_wait_async() {
        assert_eq!(told(stepwise(2, 1, TWENTY_SECONDS), 2, &[2]), [Timestamp::from_secs(40)]);
    }

    /// .NET `CorrectRetryMetadataWithMultipleTokensPerPeriod`. Differs: .NET rounds the three tokens that are short down to one period.
    #[test]
    fn correct_retry_metadata_with_multiple_tokens_per_period() {
        let steps = stepwise(2, 2, TWENTY_SECONDS);
        assert_eq!(told(steps, 2, &[1, 2]), [Timestamp::from_secs(20), Timestamp::from_secs(40)]);
        let drops = TokenBucket::new(Rate::new(2, TWENTY_SECONDS), 2);
        assert_eq!(told(drops, 2, &[1, 2]), [Timestamp::from_secs(10), Timestamp::from_secs(30)]);
    }

    /// .NET `CorrectRetryMetadataWithNonZeroAvailableItems`, for one who may wait.
    #[test]
    fn correct_retry_metadata_with_non_zero_available_items() {
        assert_eq!(told(stepwise(3, 1, TWENTY_SECONDS), 2, &[3]), [Timestamp::from_secs(40)]);
    }

    /// .NET `ReplenishWorksWithTicksOverInt32Max`. Half a token is none.
    #[test]
    fn replenish_works_with_ticks_over_int32_max() {
        let queue: Manual<_> =
            Queue::new(TokenBucket::new(Rate::new(1, 2 * MILLI), 10), ManualClock::new(), 2);
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

/// .NET `ChainedLimiterTests`, of one wait after another: a wait is for one queue, and holds nothing of the others but what it was granted.
mod chained_limiter_tests {
    use super::*;

    /// .NET `GetStatisticsHasCorrectValues`, where the last of three is waited for.
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
        assert_eq!((fewest(), third.counts().permits, third.counts().granted), (3, 0, 1));
        drop(held);
    }

    /// .NET `AcquireAsyncCanBeCanceled`, and `AcquireAsyncCanceledReleasesAcquiredResources` of the chains of partitions.
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
        assert!(wait.outcome().is_ok(), "asked before, the second would have refused");
        assert_eq!(second.counts().refused, 0);
    }
}

/// What .NET does without a test, where waiting is concerned.
mod not_tested_there {
    use super::*;

    /// Differs: there, those behind a cancelled head wait for the next release.
    #[test]
    fn a_cancelled_head_lets_those_behind_it_go_at_once() {
        let queue = queue::<Permits>(2, 9, OLDEST);
        let _held = now(queue.acquire(1)).unwrap();
        let head = Task::waiting(queue.acquire(2));
        let behind = Task::waiting(queue.acquire(1));
        drop(head);
        assert_eq!((behind.wakes(), outcome(behind)), (1, Ok(1)));
    }

    /// Differs: there, they are not bounded, are granted what is not there, and are overtaken.
    #[test]
    fn waits_for_none_are_waits_like_others() {
        let queue = queue::<Permits>(1, 9, OLDEST).with_max_waiters(2);
        let held = now(queue.acquire(1)).unwrap();
        let mut none = [0, 0].map(|n| Task::waiting(queue.acquire(n)));
        assert_eq!(now(queue.acquire(0)).unwrap_err(), Rejected::QueueFull { permits: 0 });
        assert_eq!(queue.advance(), Next::OnRelease);
        assert!(none.iter_mut().all(Task::is_pending));
        assert!(queue.try_acquire_at(Timestamp::ZERO, 1).is_err());
        drop(held);
        assert!(none.into_iter().all(|wait| outcome(wait) == Ok(0)));
    }

    /// Differs: there, the probe ignores the queue.
    #[test]
    fn a_probe_says_what_a_try_would() {
        let queue = queue::<Permits>(2, 9, OLDEST);
        let _held = now(queue.acquire(1)).unwrap();
        let _wait = Task::waiting(queue.acquire(2));
        assert!(queue.try_acquire_at(Timestamp::ZERO, 0).is_err());
        assert!(queue.try_acquire_at(Timestamp::ZERO, 1).is_err());
    }

    /// More than the queue can hold, but not more than the limit: both orders refuse at once.
    #[test]
    fn what_could_never_queue_is_refused_at_once() {
        for order in [OLDEST, NEWEST] {
            let queue = queue::<Permits>(3, 2, order);
            let _held = now(queue.acquire(3)).unwrap();
            assert_eq!(now(queue.acquire(3)).unwrap_err(), Rejected::QueueFull { permits: 3 });
        }
    }

    /// Of a grant and a cancel at one moment one wins, and nothing is lost.
    #[test]
    fn a_grant_that_is_cancelled_goes_on_to_the_next() {
        let queue = queue::<Permits>(1, 9, OLDEST);
        let held = now(queue.acquire(1)).unwrap();
        let [cancelled, next] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
        drop(held);
        drop(cancelled);
        assert_eq!(outcome(next), Ok(1));
        assert_eq!(available(&queue), 1);
    }

    #[test]
    fn without_room_to_queue_waiting_is_trying() {
        let queue = queue::<Permits>(1, 0, OLDEST);
        let held = now(queue.acquire(1)).unwrap();
        assert_eq!(now(queue.acquire(1)).unwrap_err(), Rejected::QueueFull { permits: 1 });
        drop(held);
        assert!(now(queue.acquire(1)).is_ok());
    }

    /// An evicted wait counts as evicted, a cancelled one as cancelled, a closed one as neither.
    #[test]
    fn each_end_of_a_wait_is_counted_for_itself() {
        let queue = queue::<Permits>(1, 1, NEWEST);
        let _held = now(queue.acquire(1)).unwrap();
        let _evicted = Task::waiting(queue.acquire(1));
        drop(Task::waiting(queue.acquire(1)));
        let _closed = Task::waiting(queue.acquire(1));
        queue.close();
        let counts = queue.counts();
        assert_eq!((counts.evicted, counts.cancelled, counts.refused, counts.granted), (1, 1, 0, 0));
    }
}

const TWENTY_SECONDS: Duration = Duration::from_secs(20);

fn stepwise(limit: u32, tokens: u32, period: Duration) -> TokenBucket {
    TokenBucket::builder(Rate::new(tokens, period), limit.into()).stepwise().build().unwrap()
}

/// A limiter as .NET's suite sets it up.
trait Suite {
    type Limiter: Limiter;
    /// The time between two replenishments; `None` if permits come back when the lease is dropped.
    const PERIOD: Option<Duration>;
    /// .NET's largest number, or the largest limit where that is smaller.
    const MOST: u32 = i32::MAX as u32;
    /// After how many replenishments all is back.
    const PERIODS: u32 = 1;

    /// A bucket is refilled in one period.
    fn with_limit(limit: u32) -> Self::Limiter;
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
}

fn queue<S: Suite>(limit: u32, queue_limit: u64, order: Order) -> Manual<S::Limiter> {
    Queue::new(S::with_limit(limit), ManualClock::new(), queue_limit).with_order(order)
}

fn available<L: Limiter>(queue: &Manual<L>) -> u64 {
    use portcullis_core::Clock;
    queue.available_at(queue.clock().now())
}

fn try_acquire<L: Limiter>(queue: &Manual<L>, n: u32) -> Option<Lease<&Manual<L>>> {
    use portcullis_core::Clock;
    queue.try_acquire_at(queue.clock().now(), n).ok()
}

/// What came of a wait that is over; the lease is dropped.
#[track_caller]
fn outcome<P, F>(wait: Task<F>) -> Result<u32, Rejected>
where
    P: core::ops::Deref,
    P::Target: Limiter,
    F: Future<Output = Result<Lease<P>, Rejected>>,
{
    wait.outcome().map(|lease| lease.permits())
}

/// So many replenishments, one by one.
fn replenish<S: Suite>(queue: &Manual<impl Limiter>, times: u32) {
    for period in S::PERIOD.into_iter().cycle().take(times as usize) {
        queue.clock().advance(period);
        queue.advance();
    }
}

/// All that the lease held is back: by its drop, or by time.
fn give_back<S: Suite, L: Limiter>(queue: &Manual<L>, held: Lease<&Manual<L>>) {
    drop(held);
    replenish::<S>(queue, S::PERIODS);
}

/// Once all are taken, a wait for one is over at an instant that the queue tells.
fn completes_by_itself(limiter: impl Limiter, at: Timestamp) {
    assert_eq!(told(limiter, 2, &[1]), [at]);
}

/// With `taken` taken, the instants that the queue tells until all who wait are granted, each at such an instant.
fn told(limiter: impl Limiter, taken: u32, waits: &[u32]) -> Vec<Timestamp> {
    let queue: Manual<_> = Queue::new(limiter, ManualClock::new(), 9);
    drop(now(queue.acquire(taken)).unwrap());
    let mut told = Vec::new();
    let waits: Vec<_> = waits.iter().map(|&n| (n, Task::waiting(queue.acquire(n)))).collect();
    while let Next::At(at) = queue.advance() {
        queue.clock().set(at);
        told.push(at);
    }
    assert!(waits.into_iter().all(|(n, wait)| outcome(wait) == Ok(n)));
    told
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

/// .NET `FailsWhenQueuingMoreThanLimit_OldestFirst`. When to come back is what the queue tells whoever advances it.
fn fails_when_queuing_more_than_limit_oldest_first<S: Suite>() {
    let queue = queue::<S>(1, 1, OLDEST);
    let _held = try_acquire(&queue, 1).unwrap();
    let mut wait = Task::waiting(queue.acquire(1));
    assert_eq!(now(queue.acquire(1)).unwrap_err(), Rejected::QueueFull { permits: 1 });
    assert!(wait.is_pending());
    let next = match S::PERIOD {
        None => Next::OnRelease,
        Some(period) => Next::At(Timestamp::ZERO.saturating_add(period * S::PERIODS)),
    };
    assert_eq!(queue.advance(), next);
}

/// .NET `DropsOldestWhenQueuingMoreThanLimit_NewestFirst`.
fn drops_oldest_when_queuing_more_than_limit_newest_first<S: Suite>() {
    let queue = queue::<S>(1, 1, NEWEST);
    let held = try_acquire(&queue, 1).unwrap();
    let [old, new] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(outcome(old), Err(Rejected::Evicted { permits: 1 }));
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(new), Ok(1));
}

/// .NET `DropsMultipleOldestWhenQueuingMoreThanLimit_NewestFirst`.
fn drops_multiple_oldest_when_queuing_more_than_limit_newest_first<S: Suite>() {
    let queue = queue::<S>(2, 2, NEWEST);
    let held = try_acquire(&queue, 2).unwrap();
    let [old, older, new] = [1, 1, 2].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(outcome(old), Err(Rejected::Evicted { permits: 1 }));
    assert_eq!(outcome(older), Err(Rejected::Evicted { permits: 1 }));
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
    assert_eq!(now(queue.acquire(2)).unwrap_err(), Rejected::QueueFull { permits: 2 });
    assert_eq!(wait.wakes(), 0);
    give_back::<S, _>(&queue, held);
    assert_eq!(outcome(wait), Ok(1));
}

/// .NET `LargeAcquiresAndQueuesDoNotIntegerOverflow`.
fn large_acquires_and_queues_do_not_integer_overflow<S: Suite>() {
    let queue = queue::<S>(S::MOST, S::MOST.into(), NEWEST);
    let held = try_acquire(&queue, S::MOST).unwrap();
    let [small, large] = [3, S::MOST].map(|n| Task::waiting(queue.acquire(n)));
    assert_eq!(outcome(small), Err(Rejected::Evicted { permits: 3 }));
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
    assert_eq!(rejected, Rejected::ExceedsCapacity { permits: 2, capacity: 1 });
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
    let (one, two) = (try_acquire(&queue, 1).unwrap(), try_acquire(&queue, 2).unwrap());
    drop(Task::waiting(queue.acquire(2)));
    let wait = Task::waiting(queue.acquire(1));
    drop(one);
    give_back::<S, _>(&queue, two);
    let granted = wait.outcome().unwrap();
    assert_eq!((granted.permits(), available(&queue), queue.counts().permits), (1, 2, 0));
}

/// .NET `CanFillQueueWithNewestFirstAfterCancelingQueuedRequestWithAnotherQueuedRequest`.
fn can_fill_queue_with_newest_first_after_canceling_queued_request_with_another_queued_request<S: Suite>() {
    let queue = queue::<S>(2, 2, NEWEST);
    let held = try_acquire(&queue, 2).unwrap();
    let [cancelled, evicted] = [1, 1].map(|n| Task::waiting(queue.acquire(n)));
    drop(cancelled);
    let wait = Task::waiting(queue.acquire(2));
    assert_eq!(outcome(evicted), Err(Rejected::Evicted { permits: 1 }));
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
        assert_eq!((wait.wakes(), outcome(wait)), (1, Err(Rejected::Closed { permits: 1 })));
    }
    assert!(try_acquire(&queue, 1).is_none());
    assert_eq!(now(queue.acquire(1)).unwrap_err(), Rejected::Closed { permits: 1 });
}

/// .NET `NullIdleDurationWhenActive`, with one who waits as well.
fn null_idle_duration_when_active<S: Suite>() {
    let queue = queue::<S>(1, 2, OLDEST);
    let held = try_acquire(&queue, 1).unwrap();
    assert_eq!(queue.idle_at(Timestamp::ZERO), Idle::InUse);
    let wait = Task::waiting(queue.acquire(1));
    let later = Timestamp::from_secs(1);
    assert_eq!(queue.idle_at(later), Idle::InUse, "somebody waits, whatever the limiter says");
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
    assert_eq!((before.0, before.1.permits, after.0, after.1.permits), (1, 0, 0, 1));
}

/// .NET `GetStatisticsHasCorrectValues`. What was granted without a wait is counted by a limiter that counts, not by the queue.
fn get_statistics_has_correct_values<S: Suite>() {
    let queue = queue::<S>(100, 50, OLDEST);
    let statistics = || {
        let counts = queue.counts();
        (available(&queue), counts.permits, counts.refused, counts.granted)
    };
    assert_eq!(statistics(), (100, 0, 0, 0));
    let held = try_acquire(&queue, 60).unwrap();
    assert_eq!(statistics(), (40, 0, 0, 0));
    let wait = Task::waiting(queue.acquire(50));
    assert_eq!(statistics(), (40, 50, 0, 0));
    assert_eq!(now(queue.acquire(1)).unwrap_err(), Rejected::QueueFull { permits: 1 });
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
    assert_eq!((available(&queue), queue.counts()), (0, QueueCounts::default()));
}

/// .NET `GetStatisticsThrowsAfterDispose`. Differs: a closed queue says what it has counted.
fn get_statistics_after_dispose<S: Suite>() {
    let queue = queue::<S>(100, 50, OLDEST);
    let _held = try_acquire(&queue, 100).unwrap();
    drop(Task::waiting(queue.acquire(1)));
    queue.close();
    assert_eq!((available(&queue), queue.counts().cancelled), (0, 1));
}

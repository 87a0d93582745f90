//! What a runner asks of the queue that its permits come from.
//!
//! The trait is sealed, so that what the loop asks can change. It is a trait at all because a
//! [`Queue`] has four type parameters, of which the loop needs none.

use core::future::Future;
use core::time::Duration;

use portcullis_async::{Acquire, Hook, Queue, QueueClock, RawLock, Rejected};
use portcullis_core::queue::QueueLimiter;
use portcullis_core::{Clock, Lease, LimiterExt};

/// Where operations take their permits: a [`Queue`] around any limiter. Sealed.
///
/// ```
/// use portcullis_async::{Queue, ThreadTimer};
/// use portcullis_core::{Rate, TokenBucket};
/// use portcullis_jobs::Permits;
/// fn paces(_: &impl Permits) {}
/// paces(&Queue::new(TokenBucket::new(Rate::per_second(5), 5), ThreadTimer::new(), 5));
/// ```
pub trait Permits: sealed::PermitSource {}

impl<L: QueueLimiter, C: QueueClock, R: RawLock, H: Hook> Permits for Queue<L, C, R, H> {}

mod sealed {
    use super::{
        Acquire, Clock, Duration, Future, Hook, Lease, LimiterExt, Queue, QueueClock, QueueLimiter,
        RawLock, Rejected,
    };

    /// What a runner asks of a queue.
    pub trait PermitSource {
        /// Permits that are held.
        type Held<'a>
        where
            Self: 'a;
        /// A wait for permits.
        type Wait<'a>: Future<Output = Result<Self::Held<'a>, Rejected>>
        where
            Self: 'a;

        /// Waits for `n` permits; with 0, until one is available.
        fn wait(&self, n: u32) -> Self::Wait<'_>;
        /// The permits that are available now.
        fn available(&self) -> u64;
        /// The most permits that one request can be granted at present.
        fn capacity(&self) -> u64;
        /// Whether permits are held that return only when they are released.
        fn holds(&self) -> bool;
        /// The time until all permits are available, if they return by time.
        fn full_in(&self) -> Option<Duration>;
    }

    impl<L: QueueLimiter, C: QueueClock, R: RawLock, H: Hook> PermitSource for Queue<L, C, R, H> {
        type Held<'a>
            = Lease<&'a Self>
        where
            Self: 'a;
        type Wait<'a>
            = Acquire<&'a Self>
        where
            Self: 'a;

        fn wait(&self, n: u32) -> Acquire<&Self> {
            self.acquire(n)
        }

        fn available(&self) -> u64 {
            Self::available(self)
        }

        fn capacity(&self) -> u64 {
            self.explain_at(Clock::now(self.clock()), 1).capacity
        }

        fn holds(&self) -> bool {
            LimiterExt::held(self) > 0
        }

        fn full_in(&self) -> Option<Duration> {
            let now = Clock::now(self.clock());
            self.explain_at(now, 1).full_again.wait_from(now)
        }
    }
}

use core::sync::atomic::Ordering::Relaxed;

use crossbeam_utils::CachePadded;

use crate::limiter::composable::{as_composed, plan, take_as_planned};
use crate::limiter::metadata::Metadata;
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, NativeWord};
use crate::{
    Composable, Denied, Detail, Idle, Interval, Lease, Limiter, LimiterExt, LimiterId, Plan,
    QueueLimiter, Receipt, Refund, Replenishing, Retry, Timestamp, Waiting,
};

/// Counts the grants, denials and held permits of a limiter, on cache lines of its own. A limiter
/// without this wrapper pays nothing for it.
///
/// **Cost.** Two fetch-adds per grant, one per denial and one per release of a lease, all
/// `Relaxed`, on lines that no decision reads. (So a denial writes, to the counter.)
///
/// In an [`AllOf`](crate::AllOf), a denial counts for the limit that denied. A probe counts for
/// none, because a composition only looks for it.
///
/// The counters wrap in the target's [`NativeWord`]. Each is exact, but together they are no
/// snapshot: other calls may write between the reads.
///
/// ```
/// use portcullis_core::{Concurrency, Counted, LimiterExt, Timestamp};
///
/// static LIMIT: Counted<Concurrency> = Counted::new(Concurrency::new(2));
///
/// let lease = LIMIT.try_acquire_at(Timestamp::ZERO, 2);
/// assert!(LIMIT.try_acquire_at(Timestamp::ZERO, 1).is_err());
/// let counts = LIMIT.counts();
/// assert_eq!((counts.granted, counts.denied, counts.held), (1, 1, 2));
/// drop(lease);
/// assert_eq!(LIMIT.counts().held, 0);
/// ```
#[derive(Debug)]
pub struct Counted<L> {
    limiter: L,
    granted: CachePadded<AtomicWord<NativeWord>>,
    denied: CachePadded<AtomicWord<NativeWord>>,
    held: CachePadded<AtomicWord<NativeWord>>,
}

/// The counts of a [`Counted`] limiter.
///
/// ```
/// # use portcullis_core::{Counted, Counts, Unlimited};
/// assert_eq!(Counted::new(Unlimited).counts(), Counts::default());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Counts {
    /// Granted requests, including probes.
    pub granted: u64,
    /// Denied requests, including probes.
    pub denied: u64,
    /// Permits in leases that have not been dropped yet, including those of a limiter whose permits
    /// return by time.
    pub held: u64,
}

impl<L: Limiter> Counted<L> {
    const_unless_loom! {
        /// Wraps `limiter`, and counts its decisions from now on.
        ///
        /// ```
        /// # use portcullis_core::{Counted, Rate, TokenBucket};
        /// static LIMIT: Counted<TokenBucket> =
        ///     Counted::new(TokenBucket::new(Rate::per_second(5), 5));
        /// ```
        pub const fn new(limiter: L) -> Self {
            Self {
                limiter,
                granted: CachePadded::new(AtomicWord::new(0)),
                denied: CachePadded::new(AtomicWord::new(0)),
                held: CachePadded::new(AtomicWord::new(0)),
            }
        }
    }

    /// Takes `n` permits at `now`, and counts the decision.
    ///
    /// # Errors
    ///
    /// As the inner limiter.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Timestamp};
    /// let limit = Counted::new(Concurrency::new(2));
    /// let lease = limit.try_acquire_at(Timestamp::ZERO, 2)?;
    /// assert_eq!(limit.counts().held, 2);
    /// # drop(lease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the current counts.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Timestamp};
    /// let limit = Counted::new(Concurrency::new(2));
    /// let _denied = limit.try_acquire_at(Timestamp::ZERO, 3);
    /// assert_eq!(limit.counts().denied, 1);
    /// ```
    pub fn counts(&self) -> Counts {
        Counts {
            granted: self.granted.load(Relaxed),
            denied: self.denied.load(Relaxed),
            held: self.held.load(Relaxed),
        }
    }

    #[inline]
    fn count(&self, n: u32, decision: Result<Receipt, Denied>) -> Result<Receipt, Denied> {
        match decision {
            Ok(_) => {
                self.granted.fetch_add(1, Relaxed);
                self.held.fetch_add(n.into(), Relaxed);
            }
            Err(_) => {
                self.denied.fetch_add(1, Relaxed);
            }
        }
        decision
    }

    /// Returns the inner limiter.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted};
    /// let limit = Counted::new(Concurrency::new(2));
    /// assert_eq!(limit.limiter().limit(), 2);
    /// ```
    pub fn limiter(&self) -> &L {
        &self.limiter
    }
}

impl<L: QueueLimiter> QueueLimiter for Counted<L> {
    const SHARED: bool = L::SHARED;

    #[inline]
    fn release_watched(&self, n: u32) -> Waiting {
        self.held.fetch_sub(n.into(), Relaxed);
        self.limiter.release_watched(n)
    }

    fn watch(&self, waits: bool) {
        self.limiter.watch(waits);
    }

    fn held(&self) -> u64 {
        self.limiter.held()
    }
}

impl<L: Replenishing> Replenishing for Counted<L> {}

impl<L: Limiter> Limiter for Counted<L> {
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.count(n, self.limiter.take_at(now, n))
    }

    fn take_explained_at(&self, now: Timestamp, n: u32) -> (Result<Receipt, Denied>, Detail) {
        let (taken, detail) = self.limiter.take_explained_at(now, n);
        (self.count(n, taken), detail)
    }

    fn explain_at(&self, now: Timestamp, n: u32) -> Detail {
        self.limiter.explain_at(now, n)
    }

    #[inline]
    fn take_within(&self, interval: Interval, n: u32) -> Option<Result<Receipt, Denied>> {
        let decision = self.limiter.take_within(interval, n)?;
        Some(self.count(n, decision))
    }

    #[inline]
    fn decides_within(&self) -> bool {
        self.limiter.decides_within()
    }

    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.limiter.peek_at(now, n)
    }

    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.held.fetch_sub(n.into(), Relaxed);
        self.limiter.refund_at(now, n, receipt)
    }

    fn id(&self) -> Option<LimiterId> {
        // Around a stateless limiter, no id: a composition need not ask for all its permits at
        // once.
        self.limiter.id().and(LimiterId::of(self))
    }

    #[inline]
    fn as_composable(&self) -> Option<&dyn Composable> {
        Some(self)
    }

    #[inline]
    fn release(&self, n: u32) {
        self.held.fetch_sub(n.into(), Relaxed);
        self.limiter.release(n);
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter.available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.limiter.capacity()
    }

    fn idle_at(&self, now: Timestamp) -> Idle {
        self.limiter.idle_at(now)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }

    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        self.limiter.metadata(now, denied, offers);
    }
}

impl<L: Limiter> Composable for Counted<L> {
    #[inline]
    fn plan_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        plan(&self.limiter, now, n)
    }

    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        self.count(n, take_as_planned(&self.limiter, now, n, plan))
    }

    #[inline]
    fn is_composed(&self) -> bool {
        as_composed(&self.limiter).is_some()
    }

    fn take_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        /// Permits that count as held until they are given back.
        struct Held<'a>(&'a AtomicWord<NativeWord>, u32);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(self.1.into(), Relaxed);
            }
        }
        let granted = self.limiter.take_at_then(now, n, &mut || {
            let _ = self.count(n, Ok(Receipt::NONE));
            let held = Held(&self.held, n);
            let done = rest();
            if done {
                core::mem::forget(held);
            }
            done
        });
        if let Err(denied) = granted {
            let _ = self.count(n, Err(denied));
        }
        granted
    }
}

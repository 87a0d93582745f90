//! Many limits judged as one: a request takes from all of them or from none, without a lock.
//!
//! A decision makes two passes over the limits, both with the same `now`:
//!
//! ```text
//! look    ask each limit, without writing; the first denial denies the request
//! take    take from each limit, in order; if one denies now, because another thread has taken its
//!         permits since the look, refund the limits before it, in reverse order
//! ```
//!
//! Invariant: after the second pass the permits taken are either all in the lease or all refunded,
//! even if a limiter panics. No caller waits for another, so the order of the limits does not
//! matter. Two compositions that name the same limits in opposite orders may deny each other once,
//! but cannot block each other.
//!
//! A limit that is named several times (see [`Limiter::id`]) is asked once, at its first place, for
//! the sum of its permits. A limit that is named through different wrappers is asked through each
//! of them, and is treated as several limits in the look. If a later one then has too few permits,
//! the earlier takes are refunded in reverse order. So each refund finds the state that its take
//! left. A limit that is itself a composition has no receipt for all its parts. The rest of the
//! second pass therefore runs inside its take ([`Tell::Grant`]), and so it does for each limit that
//! does not say that its receipt is enough
//! ([`Hints::one_receipt`](crate::limiter::Hints::one_receipt)).

mod as_limiter;
mod receipts;

pub use self::as_limiter::{QueueLimits, ReplenishingLimits};
pub use self::receipts::Receipts;

use core::cell::Cell;
use core::fmt;
use core::mem;

use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, asked_after, retry_of};
use crate::limiter::receipt::{Plan, Receipt};
use crate::limiter::{Answer, Ask, How, Limiter, LimiterExt, LimiterId, Tell, When, between};
use crate::time::interval::Interval;
use crate::time::timestamp::Timestamp;

/// Many limits judged as one: a request takes its permits from each of them, or from none.
///
/// `T` is a tuple of up to eight limiters of any types, an array or a slice. References to limiters
/// and `Arc`s are limiters too.
///
/// **All or nothing.** A request first looks at each limit, without taking, and then takes from
/// each. So a denial leaves each limit unchanged, even if a limiter panics. There is one exception:
/// another thread takes the permits of one limit between the look and the take. Then the permits
/// already taken from other limits are returned by [`Limiter::refund_at`]. The refund is exact if
/// no other request was decided on that limit in between; otherwise the permits may return by time
/// alone. In the meantime another request may be denied needlessly, but none is granted wrongly.
///
/// **Bound.** Each limit keeps its own bound.
///
/// **Repeated limits.** Without concurrent requests, a denial changes nothing, however the limits
/// are named: through handles or wrappers, as parts of other compositions, or several times. For
/// that, a limiter of your own whose permits return by time has to
/// [refund](crate::limiter::Back::Refund) them.
///
/// **As one limiter.** A composition is itself a [`Limiter`], so a queue can own it. Its lease
/// returns permits by release only. If a queue grants permits that are then not claimed, they are
/// refunded to each of up to eight limits, as far as each can refund them. This holds for the
/// newest grant to a waiter. The permits of earlier grants return by release or by time.
///
/// **Cost.** The cost of the limits, plus one look at each of them. Lock-free if the limits are.
/// Finding a repeated limit compares the identities of n limits up to n² times. The take from an
/// array or a slice uses one stack frame of some hundred bytes per four limits.
///
/// After a look that denies, the limit that denied is asked once more with a take of its own, so
/// that a wrapper that records denials sees this one. For a probe no limit is asked with a take.
///
/// Source: the "all or nothing" limits of clipperhouse/rate, and the chained limiter of .NET, which
/// keeps the permits of the limits before the one that denies.
///
/// ```
/// use portcullis_core::{AllOf, Concurrency, Rate, Timestamp, TokenBucket};
///
/// static PER_SECOND: TokenBucket = TokenBucket::new(Rate::per_second(2), 2);
/// static PER_MINUTE: TokenBucket = TokenBucket::new(Rate::per_minute(3), 3);
/// static AT_ONCE: Concurrency = Concurrency::new(10);
/// static LIMITS: AllOf<(&TokenBucket, &TokenBucket, &Concurrency)> =
///     AllOf::new((&PER_SECOND, &PER_MINUTE, &AT_ONCE));
///
/// let now = Timestamp::from_secs(60);
/// let lease = LIMITS.try_acquire_at(now, 2).unwrap();
/// assert_eq!(AT_ONCE.available(), 8);
///
/// let denied = LIMITS.try_acquire_at(now, 1).unwrap_err();
/// assert_eq!(denied.index, 0);
/// assert_eq!(PER_MINUTE.available_at(now), 1, "nothing is taken");
/// assert_eq!(
///     LIMITS.retry(denied).wait_from(now).unwrap().as_millis(),
///     500
/// );
/// drop(lease);
/// assert_eq!(AT_ONCE.available(), 10);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AllOf<T> {
    limits: T,
}

impl<T> AllOf<T> {
    /// Combines `limits` into one.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limits = [Concurrency::new(3), Concurrency::new(2)];
    /// assert_eq!(AllOf::new(&limits[..]).available_at(Timestamp::ZERO), 2);
    /// assert!(
    ///     AllOf::new(limits)
    ///         .try_acquire_at(Timestamp::ZERO, 2)
    ///         .is_ok()
    /// );
    /// ```
    ///
    /// A [`Clocked`](crate::Clocked) limiter is not a limiter:
    ///
    /// ```compile_fail,E0277
    /// # use portcullis_core::{AllOf, Clocked, Concurrency, Timeless};
    /// let limit = Clocked::new(Concurrency::new(3), Timeless);
    /// let all = AllOf::new((&limit, Concurrency::new(2)));
    /// ```
    ///
    /// Pass the limiter in it:
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Clocked, Concurrency, Timeless};
    /// # let limit = Clocked::new(Concurrency::new(3), Timeless);
    /// let all = AllOf::new((limit.limiter(), Concurrency::new(2)));
    /// ```
    pub const fn new(limits: T) -> Self
    where
        T: Limits,
    {
        Self { limits }
    }

    /// Returns the limits.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency};
    /// assert_eq!(AllOf::new((Concurrency::new(3),)).limits().0.limit(), 3);
    /// ```
    pub const fn limits(&self) -> &T {
        &self.limits
    }
}

impl<T: Limits> AllOf<T> {
    /// Takes `n` permits from each limit at `now`, until the lease is dropped.
    ///
    /// With `n = 0` it takes nothing, and succeeds exactly if a request for 1 would. Without any
    /// limits every request is granted.
    ///
    /// # Errors
    ///
    /// [`DeniedBy`] names the limit that denied. Then nothing has changed.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let (user, all) = (Concurrency::new(2), Concurrency::new(9));
    /// let limits = AllOf::new((&user, &all));
    /// let _lease = limits.try_acquire_at(Timestamp::ZERO, 2).unwrap();
    /// assert_eq!(
    ///     limits.try_acquire_at(Timestamp::ZERO, 1).unwrap_err().index,
    ///     0
    /// );
    /// assert_eq!(all.available(), 7);
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<AllLease<&T>, DeniedBy> {
        AllOf::new(&self.limits).into_lease_at(now, n)
    }

    /// Takes permits as [`try_acquire_at`](Self::try_acquire_at) does, into a lease that owns the
    /// limits. For limits that are combined for a single request.
    ///
    /// # Errors
    ///
    /// [`DeniedBy`] names the limit that denied. Then nothing has changed.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// # use portcullis_core::composition::{AllLease, DeniedBy};
    /// fn admit<'a>(
    ///     user: &'a Concurrency,
    ///     all: &'a Concurrency,
    /// ) -> Result<impl Drop + 'a, DeniedBy> {
    ///     AllOf::new((user, all)).into_lease_at(Timestamp::ZERO, 1)
    /// }
    /// let (user, all) = (Concurrency::new(2), Concurrency::new(9));
    /// let _lease = admit(&user, &all).unwrap();
    /// assert_eq!((user.available(), all.available()), (1, 8));
    /// ```
    #[inline]
    pub fn into_lease_at(self, now: Timestamp, n: u32) -> Result<AllLease<T>, DeniedBy> {
        Request::plain(now, n, How::Take, &self.limits)
            .grant(|| Ok(()))
            .map_err(|stop| stop.denial(now, n))?;
        Ok(AllLease {
            limits: self.limits,
            permits: n,
        })
    }

    /// Takes permits as [`try_acquire_at`](Self::try_acquire_at) does, and returns what one of the
    /// limits saw: for a denial the limit that denied, for a grant the limit with the fewest
    /// permits left, the first of them if several have as many.
    ///
    /// The limit's numbers are those of its own decision: see [`LimiterExt::take_explained_at`]. A
    /// limit that is itself a composition, or an [`Escalation`](crate::Escalation), is asked with
    /// [`explain_at`](LimiterExt::explain_at) after it has granted or denied. For a probe, or if a
    /// limit is named twice, all limits are. [`explain_at`](Self::explain_at) tells of all limits.
    ///
    /// # Errors
    ///
    /// The first result is a [`DeniedBy`], which names the limit that denied. Then nothing has
    /// changed.
    ///
    /// # Cost
    ///
    /// The cost of a take, and some divisions for each limit.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limits = AllOf::new([Concurrency::new(7), Concurrency::new(5)]);
    /// let (lease, by) = limits.try_acquire_explained_at(Timestamp::ZERO, 4);
    /// assert!(lease.is_ok());
    /// assert_eq!((by.index, by.detail.available, by.detail.capacity), (1, 1, 5));
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_explained_at(
        &self,
        now: Timestamp,
        n: u32,
    ) -> (Result<AllLease<&T>, DeniedBy>, DetailBy) {
        AllOf::new(&self.limits).into_lease_explained_at(now, n)
    }

    /// Takes permits as [`try_acquire_explained_at`](Self::try_acquire_explained_at) does, into a
    /// lease that owns the limits. For limits that are combined for a single request.
    ///
    /// # Errors
    ///
    /// The first result is a [`DeniedBy`], which names the limit that denied. Then nothing has
    /// changed.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let (user, all) = (Concurrency::new(2), Concurrency::new(9));
    /// let (lease, by) = AllOf::new((&user, &all)).into_lease_explained_at(Timestamp::ZERO, 1);
    /// assert!(lease.is_ok());
    /// assert_eq!((by.index, by.detail.available), (0, 1));
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn into_lease_explained_at(
        self,
        now: Timestamp,
        n: u32,
    ) -> (Result<AllLease<T>, DeniedBy>, DetailBy) {
        let kept = Kept::new(None);
        let granted = self
            .request(now, n, How::Take, Some(&kept))
            .grant(|| Ok(()));
        match granted.map_err(|stop| stop.denial(now, n)) {
            Ok(()) => {
                // Released if a limit panics when it is asked again.
                let lease = AllLease {
                    limits: self.limits,
                    permits: n,
                };
                let detail = AllOf::new(&lease.limits).detail(now, n, Ok(()), kept.get());
                (Ok(lease), detail)
            }
            Err(by) => (Err(by), self.detail(now, n, Err(by), kept.get())),
        }
    }

    /// A request to all limits.
    #[inline(always)]
    fn request<'a>(
        &'a self,
        when: impl Into<When>,
        n: u32,
        how: How,
        kept: Option<&'a Kept>,
    ) -> Request<'a, T, false, false> {
        Request {
            when: when.into(),
            n,
            how,
            kept,
            whole: &self.limits,
        }
    }

    /// Returns the detail of the decision `granted`. That is `seen`, which the take has kept,
    /// unless `seen` is of another decision. Then it asks the limit that denied, or for a grant all
    /// limits.
    fn detail(
        &self,
        now: Timestamp,
        n: u32,
        granted: Result<(), DeniedBy>,
        seen: Option<DetailBy>,
    ) -> DetailBy {
        let ask = |index: usize| {
            let limiter = self.limits.get(index)?;
            let times = self.times(limiter);
            let n = asked_after(granted, times_over(n, times).unwrap_or(u32::MAX));
            let detail = limiter.explain_at(now, n);
            Some(DetailBy::new(index, times, detail))
        };
        match (granted, seen) {
            (Ok(()), Some(seen)) if seen.detail.is_allowed() => seen,
            (Ok(()), _) => {
                let least = (0..self.limits.len())
                    .filter_map(ask)
                    .min_by_key(|by| by.detail.available)
                    .unwrap_or(DetailBy {
                        index: 0,
                        detail: Detail::unlimited(now),
                    });
                least.decided(Ok(()), Retry::At(now))
            }
            (Err(by), Some(seen))
                if seen.index == by.index && seen.detail.decision == Err(by.denied) =>
            {
                seen
            }
            (Err(by), _) => {
                let asked = ask(by.index).unwrap_or(DetailBy {
                    index: by.index,
                    detail: Detail::unlimited(now),
                });
                let retry = match self.limits.get(by.index) {
                    Some(limiter) => limiter.retry(by.denied),
                    None => Retry::Never,
                };
                asked.decided(Err(by.denied), retry)
            }
        }
    }

    /// Takes as many permits as are available in all limits, from `min` to `max`.
    ///
    /// If `max` is less than `min`, it counts as `min`. With `min = 0` the request is still denied
    /// if no permit is available.
    ///
    /// # Errors
    ///
    /// [`DeniedBy`] if fewer than `min` permits are available. Then nothing has changed.
    ///
    /// # Cost
    ///
    /// Lock-free: if other callers take permits concurrently, it retries with fewer.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limits = AllOf::new([Concurrency::new(7), Concurrency::new(5)]);
    /// assert_eq!(
    ///     limits
    ///         .try_acquire_between_at(Timestamp::ZERO, 2, 10)
    ///         .unwrap()
    ///         .permits(),
    ///     5
    /// );
    /// ```
    pub fn try_acquire_between_at(
        &self,
        now: Timestamp,
        min: u32,
        max: u32,
    ) -> Result<AllLease<&T>, DeniedBy> {
        between(
            min,
            max,
            || self.available_at(now),
            |n| self.try_acquire_at(now, n),
        )
    }

    /// Returns what [`try_acquire_at`](Self::try_acquire_at) would return. Writes nothing.
    ///
    /// # Errors
    ///
    /// [`DeniedBy`] if the request would be denied.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limits = AllOf::new([Concurrency::new(7), Concurrency::new(5)]);
    /// assert_eq!(limits.peek_at(Timestamp::ZERO, 6).unwrap_err().index, 1);
    /// ```
    pub fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), DeniedBy> {
        let looked = self.limits.look(&self.request(now, n, How::Look, None));
        looked.map(|_| ()).map_err(|stop| stop.denial(now, n))
    }

    /// Returns what each limit would answer, in order. Writes nothing.
    ///
    /// A limit that is named several times answers for the sum of its permits at each of its
    /// places.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limits = AllOf::new([Concurrency::new(7), Concurrency::new(5)]);
    /// let allowed = limits
    ///     .explain_at(Timestamp::ZERO, 6)
    ///     .map(|detail| detail.is_allowed());
    /// assert!(allowed.eq([true, false]));
    /// ```
    pub fn explain_at(&self, now: Timestamp, n: u32) -> impl ExactSizeIterator<Item = Detail> {
        (0..self.limits.len()).map(move |index| {
            let limiter = self
                .limits
                .get(index)
                .expect("`index` is less than the number of limits");
            match times_over(n, self.times(limiter)) {
                Some(n) => limiter.explain_at(now, n),
                None => Detail {
                    decision: Err(beyond_count(limiter)),
                    retry: Retry::Never,
                    ..limiter.explain_at(now, u32::MAX)
                },
            }
        })
    }

    /// Returns the largest number of permits that a request at `now` could take: the smallest
    /// number that any limit has available.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limit = Concurrency::new(7);
    /// assert_eq!(
    ///     AllOf::new((&limit, &limit)).available_at(Timestamp::ZERO),
    ///     3,
    ///     "each permit is taken twice"
    /// );
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        let available = |limiter: &dyn Limiter| {
            limiter.available_at(now) / u64::from(self.times(limiter).max(1))
        };
        (0..self.limits.len())
            .filter_map(|index| self.limits.get(index).map(available))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// How many times a limiter is named.
    fn times(&self, limiter: &dyn Limiter) -> u32 {
        match limiter.id() {
            None => 1,
            id => (0..self.limits.len())
                .map(|place| u32::from(self.limits.id(place) == id))
                .sum(),
        }
    }

    /// Returns when to retry the request that was denied: the latest of the answers of all limits
    /// in their current state.
    ///
    /// The result is exact if the answer of each limit is exact and no limit is named through
    /// different wrappers: without other requests, a request at [`Retry::At`] is granted, and a
    /// request 1 ns earlier is denied.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Rate, Retry, Timestamp, TokenBucket};
    /// let limits = AllOf::new([2, 5].map(|n| {
    ///     TokenBucket::builder(Rate::per_second(n), 5)
    ///         .initial(0)
    ///         .build()
    ///         .unwrap()
    /// }));
    /// let denied = limits.try_acquire_at(Timestamp::ZERO, 1).unwrap_err();
    /// assert_eq!(limits.retry(denied), Retry::At(Timestamp::from_millis(500)));
    /// ```
    pub fn retry(&self, denied: DeniedBy) -> Retry {
        let now = match denied.denied {
            Denied::ExceedsCapacity { .. } | Denied::Closed { .. } => return Retry::Never,
            Denied::Exhausted { now, .. }
            | Denied::Refused { now, .. }
            | Denied::Crowded { now, .. }
            | Denied::Penalized { now, .. } => now,
        };
        // Two keys of one table may need its last free slot, which each key alone would find.
        let alone = match self.limits.get(denied.index) {
            Some(limit) if matches!(denied.denied, Denied::Crowded { .. }) => {
                limit.retry(denied.denied)
            }
            _ => Retry::At(now),
        };
        (0..self.limits.len())
            .filter_map(|index| self.limits.get(index))
            .map(
                |limit| match times_over(denied.permits, self.times(limit)) {
                    Some(n) => retry_of(limit.peek_at(now, n), now, |denied| limit.retry(denied)),
                    None => Retry::Never,
                },
            )
            .fold(alone, |longest, retry| longest.longer(retry, now))
    }
}

/// Which of several limits denied a request, and why.
///
/// ```
/// use portcullis_core::{AllOf, Concurrency, Denied, Timestamp};
///
/// let limits = AllOf::new([Concurrency::new(7), Concurrency::new(5)]);
/// let denied = limits.try_acquire_at(Timestamp::ZERO, 6).unwrap_err();
/// assert_eq!(denied.index, 1);
/// assert_eq!(
///     denied.denied,
///     Denied::ExceedsCapacity {
///         permits: 6,
///         capacity: 5
///     }
/// );
/// assert_eq!(
///     denied.to_string(),
///     "limit 1: 6 permits requested, at most 5 can ever be granted: request fewer"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct DeniedBy {
    /// The index of the limit, from 0.
    pub index: usize,
    /// The permits requested from each limit; 0 for a probe.
    pub permits: u32,
    /// The answer of the limit. If the limit is named several times, the answer is for the sum of
    /// its permits.
    pub denied: Denied,
}

impl fmt::Display for DeniedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit {}: {}", self.index, self.denied)
    }
}

impl core::error::Error for DeniedBy {}

/// The [`Detail`] of one of several limits: the second result of
/// [`AllOf::try_acquire_explained_at`].
///
/// ```
/// use portcullis_core::{AllOf, Concurrency, Rate, Retry, Timestamp, TokenBucket};
///
/// let limits = AllOf::new((TokenBucket::new(Rate::per_second(10), 10), Concurrency::new(4)));
/// let now = Timestamp::ZERO;
/// let (lease, by) = limits.try_acquire_explained_at(now, 3);
/// assert_eq!((by.index, by.detail.available), (1, 1), "the fewest permits are left of these");
///
/// let (denied, by) = limits.try_acquire_explained_at(now, 2);
/// assert!(denied.is_err());
/// assert_eq!((by.index, by.detail.retry), (1, Retry::OnRelease));
/// # drop(lease);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct DetailBy {
    /// The index of the limit, from 0. Without any limits, 0.
    pub index: usize,
    /// The detail of the limit. If the limit is named several times, `available` and `capacity` are
    /// divided by how many times, so that they count the permits of a request to all limits.
    pub detail: Detail,
}

impl DetailBy {
    /// The detail of a limit that is named `times` times.
    fn new(index: usize, times: u32, detail: Detail) -> Self {
        let times = u64::from(times.max(1));
        Self {
            index,
            detail: Detail {
                available: detail.available / times,
                capacity: detail.capacity / times,
                ..detail
            },
        }
    }

    /// The same state, for this decision.
    fn decided(self, decision: Result<(), Denied>, retry: Retry) -> Self {
        Self {
            detail: Detail {
                decision,
                retry,
                ..self.detail
            },
            ..self
        }
    }
}

/// Permits held from several limits. Dropping the lease releases them, those of the last limit
/// first.
///
/// If a limiter panics while it releases permits, the permits of the other limits are still
/// released.
///
/// ```
/// use portcullis_core::{AllOf, Concurrency, Timestamp};
///
/// let limits = AllOf::new([Concurrency::new(7), Concurrency::new(5)]);
/// let lease = limits.try_acquire_at(Timestamp::ZERO, 4).unwrap();
/// assert_eq!(
///     (lease.permits(), limits.available_at(Timestamp::ZERO)),
///     (4, 1)
/// );
/// drop(lease);
/// assert_eq!(limits.available_at(Timestamp::ZERO), 5);
/// ```
#[must_use = "a dropped lease releases its permits, unless they return by time: then use `let _ =`"]
pub struct AllLease<T: Limits> {
    limits: T,
    permits: u32,
}

impl<T: Limits> AllLease<T> {
    /// Returns the number of permits held from each limit; 0 for a probe.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limits = AllOf::new([Concurrency::new(7), Concurrency::new(5)]);
    /// assert_eq!(
    ///     limits.try_acquire_at(Timestamp::ZERO, 4).unwrap().permits(),
    ///     4
    /// );
    /// ```
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns the limits that the permits came from.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limits = AllOf::new((Concurrency::new(7), Concurrency::new(5)));
    /// let lease = limits.try_acquire_at(Timestamp::ZERO, 4).unwrap();
    /// assert_eq!(lease.limits().1.in_use(), 4);
    /// ```
    pub fn limits(&self) -> &T {
        &self.limits
    }

    /// Ends the lease without returning its permits. Returns the number of permits that it held
    /// from each limit.
    ///
    /// ```
    /// # use portcullis_core::{AllOf, Concurrency, Timestamp};
    /// let limits = AllOf::new([Concurrency::new(7)]);
    /// assert_eq!(
    ///     limits.try_acquire_at(Timestamp::ZERO, 4).unwrap().forget(),
    ///     4
    /// );
    /// assert_eq!(limits.available_at(Timestamp::ZERO), 3);
    /// ```
    pub fn forget(mut self) -> u32 {
        mem::take(&mut self.permits)
    }
}

impl<T: Limits> Drop for AllLease<T> {
    #[inline]
    fn drop(&mut self) {
        if self.permits > 0 {
            self.limits.release(self.permits);
        }
    }
}

impl<T: Limits> fmt::Debug for AllLease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AllLease")
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// Takes from all limits, of which one is named twice, and then calls `rest`. It keeps nothing that
/// the limits tell, and knows the instant: so it has no code for details and intervals.
#[cold]
#[inline(never)]
fn grant_named_twice<T: Limits>(
    now: Timestamp,
    n: u32,
    how: How,
    whole: &T,
    rest: impl FnOnce() -> Result<(), Stop>,
) -> Result<(), Stop> {
    Request::plain(now, n, how, whole).take_all(rest)
}

/// As [`grant_named_twice`], within an interval.
#[cold]
#[inline(never)]
fn grant_named_twice_within<T: Limits>(
    at: Interval,
    n: u32,
    how: How,
    whole: &T,
    rest: impl FnOnce() -> Result<(), Stop>,
) -> Result<(), Stop> {
    let request = Request::<_, false, false> {
        when: When::Within(at),
        n,
        how,
        kept: None,
        whole,
    };
    request.take_all(rest)
}

#[cold]
#[inline(never)]
fn look_again<T: Limits>(now: Timestamp, n: u32, whole: &T) -> Result<T::Plans, Stop> {
    whole.look(&Request::plain(now, n, How::Look, whole))
}

/// Whether no limiter is named twice.
#[inline(always)]
fn are_distinct(ids: &[Option<LimiterId>]) -> bool {
    let mut distinct = true;
    for (place, id) in ids.iter().enumerate() {
        for before in &ids[..place] {
            distinct &= id.is_none() || before != id;
        }
    }
    distinct
}

/// The permits to request from a limiter that is named `times` times. A probe requests what a
/// request for 1 would.
fn times_over(n: u32, times: u32) -> Option<u32> {
    if n == 0 && times > 1 {
        Some(times)
    } else {
        n.checked_mul(times)
    }
}

/// The denial of a request for more permits than a `u32` can count.
fn beyond_count<L: Limiter + ?Sized>(limiter: &L) -> Denied {
    let capacity = u32::try_from(limiter.capacity()).unwrap_or(u32::MAX);
    Denied::ExceedsCapacity {
        permits: u32::MAX,
        capacity,
    }
}

/// Why a request has not taken from all limits.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A limit denied it.
    Denied(DeniedBy),
    /// It matters to a limit where in the interval the time is.
    TimeMatters,
    /// The caller did not keep the permits.
    Undone,
}

impl Stop {
    /// The denial of a request at an instant that the caller keeps. It is stopped by nothing else.
    #[inline(always)]
    fn denial(self, now: Timestamp, permits: u32) -> DeniedBy {
        match self {
            Self::Denied(by) => by,
            Self::TimeMatters | Self::Undone => DeniedBy {
                index: 0,
                permits,
                denied: Denied::Refused { now, permits },
            },
        }
    }
}

/// A request to all limits. `DISTINCT` if the limits are known to be different. `PLAIN` if it is at
/// an instant, and keeps nothing that the limits tell.
///
/// The fields are constants of the caller, and the functions in between are inlined. A function
/// that is not inlined gets a copy: so nothing needs the address of a request, which would make
/// variables of the constants.
#[doc(hidden)]
#[derive(Debug)]
pub struct Request<'a, T: ?Sized, const DISTINCT: bool, const PLAIN: bool> {
    when: When,
    n: u32,
    how: How,
    /// Keeps what the limits tell, if the caller wants it.
    kept: Option<&'a Kept>,
    whole: &'a T,
}

impl<T: ?Sized, const DISTINCT: bool, const PLAIN: bool> Clone for Request<'_, T, DISTINCT, PLAIN> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized, const DISTINCT: bool, const PLAIN: bool> Copy for Request<'_, T, DISTINCT, PLAIN> {}

impl<T: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool> Request<'_, T, DISTINCT, PLAIN> {
    /// How many times the limiter at `index` is named, or `None` if an earlier place already
    /// requests its permits for both.
    #[inline(always)]
    fn share<L: Limiter + ?Sized>(&self, index: usize, limiter: &L) -> Option<u32> {
        if DISTINCT {
            return Some(1);
        }
        let Some(id) = limiter.id() else {
            return Some(1);
        };
        let mut times = 0;
        for place in 0..self.whole.len() {
            if self.whole.id(place) == Some(id) {
                if place < index {
                    return None;
                }
                times += 1;
            }
        }
        Some(times)
    }

    #[inline(always)]
    fn now(&self) -> Timestamp {
        self.when.earliest()
    }

    #[inline(always)]
    fn when(&self) -> When {
        if PLAIN {
            When::At(self.now())
        } else {
            self.when
        }
    }

    #[inline(always)]
    fn kept(&self) -> Option<&Kept> {
        self.kept.filter(|_| !PLAIN)
    }

    /// What the denial of one limit is to all of them.
    #[inline(always)]
    fn denied(&self, index: usize, denied: Denied) -> Stop {
        Stop::Denied(DeniedBy {
            index,
            permits: self.n,
            denied,
        })
    }

    /// What an answer that grants nothing is to all limits.
    #[inline(always)]
    fn stop(&self, index: usize, answer: Answer) -> Stop {
        match (answer, self.when()) {
            (Answer::Denied(denied), _) => self.denied(index, denied),
            (Answer::TimeMatters, When::Within(_)) => Stop::TimeMatters,
            (Answer::Undone, _) => Stop::Undone,
            // No answer to the question.
            _ => self.denied(
                index,
                Denied::Refused {
                    now: self.now(),
                    permits: self.n,
                },
            ),
        }
    }

    #[inline(always)]
    fn look<L: Limiter + ?Sized>(&self, index: usize, limiter: &L) -> Result<Plan, Stop> {
        let Some(times) = self.share(index, limiter) else {
            return Ok(Plan::NONE);
        };
        let Some(n) = times_over(self.n, times) else {
            return Err(self.denied(index, beyond_count(limiter)));
        };
        match limiter.decide(Ask::look(self.when(), n)) {
            Answer::Possible(plan) => Ok(plan),
            answer => Err(self.stop(index, answer)),
        }
    }

    /// Puts a request to one limiter. Keeps what it tells, if the caller wants it.
    #[inline(always)]
    fn ask<L: Limiter + ?Sized>(
        &self,
        place: Place,
        limiter: &L,
        n: u32,
        plan: Option<&Plan>,
    ) -> Answer {
        if let Some(kept) = self.kept() {
            let (taken, detail) = limiter.take_explained_at(self.now(), n);
            keep(kept, place, detail);
            return taken.into();
        }
        let ask = Ask::new(self.when(), n, self.how);
        limiter.decide(match plan {
            Some(plan) => ask.as_planned(*plan),
            None => ask,
        })
    }

    #[inline(always)]
    fn take<L: Limiter + ?Sized>(
        &self,
        index: usize,
        limiter: &L,
        plan: Option<&Plan>,
        rest: impl FnOnce() -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let Some(times) = self.share(index, limiter) else {
            return rest();
        };
        // The look has shown that the product does not overflow.
        let (n, place) = (self.n.wrapping_mul(times), Place { index, times });
        if !limiter.hints().one_receipt {
            return self.take_around(place, limiter, n, rest);
        }
        let receipt = match self.ask(place, limiter, n, plan) {
            Answer::Granted(receipt) => receipt,
            answer => return Err(self.stop(index, answer)),
        };
        let undo = UndoOnDrop {
            whole: self.whole,
            index,
            now: self.now(),
            n,
            receipt,
        };
        rest()?;
        mem::forget(undo);
        Ok(())
    }

    /// Takes from a limit that may take from several others, and calls `rest` inside of that.
    #[cold]
    fn take_around<L: Limiter + ?Sized>(
        self,
        place: Place,
        limiter: &L,
        n: u32,
        rest: impl FnOnce() -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let (mut rest, mut stopped) = (Some(rest), None);
        let mut keep_all = || {
            if let Some(kept) = self.kept() {
                // It has granted, and did not tell more.
                let now = self.now();
                let detail = Detail {
                    decision: Ok(()),
                    retry: Retry::At(now),
                    ..limiter.explain_at(now, asked_after::<Denied>(Ok(()), n))
                };
                keep(kept, place, detail);
            }
            match rest.take().map(|rest| rest()) {
                Some(Err(stop)) => {
                    stopped = Some(stop);
                    false
                }
                done => done.is_some(),
            }
        };
        let ask = Ask::new(self.when(), n, self.how);
        let answer = ask.telling(Tell::Grant(&mut keep_all)).put_to(limiter);
        match (answer, stopped) {
            (Answer::Granted(_), None) => Ok(()),
            (_, Some(stop)) => Err(stop),
            (answer, None) => Err(self.stop(place.index, answer)),
        }
    }
}

impl<'a, T: ?Sized> Request<'a, T, false, true> {
    #[inline(always)]
    const fn plain(now: Timestamp, n: u32, how: How, whole: &'a T) -> Self {
        Self {
            when: When::At(now),
            n,
            how,
            kept: None,
            whole,
        }
    }
}

impl<T: Limits, const PLAIN: bool> Request<'_, T, false, PLAIN> {
    /// Takes from all limits, and then calls `rest`.
    #[inline(always)]
    fn grant(self, rest: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
        let (when, kept) = (self.when(), self.kept);
        let Self { n, how, whole, .. } = self;
        if !whole.are_distinct() {
            return match when {
                When::At(now) => grant_named_twice(now, n, how, whole, rest),
                When::Within(at) => grant_named_twice_within(at, n, how, whole, rest),
            };
        }
        Request::<_, true, PLAIN> {
            when,
            n,
            how,
            kept,
            whole,
        }
        .take_all(rest)
    }
}

impl<T: Limits, const DISTINCT: bool, const PLAIN: bool> Request<'_, T, DISTINCT, PLAIN> {
    #[inline(always)]
    fn take_all(&self, rest: impl FnOnce() -> Result<(), Stop>) -> Result<(), Stop> {
        let plans = match self.whole.look(self) {
            Ok(plans) => plans,
            Err(Stop::Denied(by)) => {
                if let Some(stop) = self.stopped_by(by) {
                    return Err(stop);
                }
                self.look_again()?
            }
            Err(stop) => return Err(stop),
        };
        if self.n == 0 {
            return rest();
        }
        if let Some(kept) = self.kept() {
            // Told by a limit that is asked once more.
            kept.set(None);
        }
        self.whole.take(self, &plans, rest)
    }

    /// Looks again, after the limit that denied has changed its mind. Within an interval it does
    /// not.
    #[inline(always)]
    fn look_again(&self) -> Result<T::Plans, Stop> {
        match self.when() {
            When::At(now) => look_again(now, self.n, self.whole),
            When::Within(_) => Err(Stop::TimeMatters),
        }
    }

    /// Asks the limit that denied in the look once more with a take of its own. If it grants now,
    /// returns the permits. Returns what stops the request; `None` if nothing does now.
    #[inline(always)]
    fn stopped_by(&self, by: DeniedBy) -> Option<Stop> {
        let Some(limiter) = self.whole.get(by.index).filter(|_| self.n > 0) else {
            return Some(Stop::Denied(by));
        };
        let times = self.share(by.index, limiter).unwrap_or(1);
        let Some(n) = self.n.checked_mul(times) else {
            // No request can be for so many permits.
            return Some(Stop::Denied(by));
        };
        let place = Place {
            index: by.index,
            times,
        };
        let answer = if limiter.hints().one_receipt {
            self.ask(place, limiter, n, None)
        } else {
            let ask = Ask::new(self.when(), n, self.how);
            ask.telling(Tell::Grant(&mut || false)).put_to(limiter)
        };
        match answer {
            Answer::Granted(receipt) => {
                undo(self.whole, by.index, self.now(), n, receipt);
                None
            }
            Answer::Undone => None,
            Answer::TimeMatters => Some(Stop::TimeMatters),
            // The denial of the look.
            _ => Some(Stop::Denied(by)),
        }
    }
}

/// The limits that [`AllOf`] can combine: tuples of up to eight limiters, arrays and slices of
/// limiters, and references to these. Sealed.
///
/// ```
/// # use portcullis_core::Concurrency;
/// # use portcullis_core::composition::Limits;
/// assert_eq!((Concurrency::new(1), Concurrency::new(2)).len(), 2);
/// assert!([Concurrency::new(1)].get(1).is_none());
/// ```
#[expect(clippy::len_without_is_empty, reason = "no caller needs `is_empty`")]
pub trait Limits: sealed::Walk {
    /// Returns the number of limits.
    fn len(&self) -> usize;
    /// Returns the limit at `index`, or `None` if there is none.
    fn get(&self, index: usize) -> Option<&dyn Limiter>;
}

pub(crate) mod sealed {
    use super::{LimiterId, Limits, Request, Stop};

    /// The two passes over the limits, and the release.
    pub trait Walk {
        /// The results of the look that the take uses.
        type Plans;
        fn id(&self, index: usize) -> Option<LimiterId>;
        /// Whether no limiter is named twice.
        fn are_distinct(&self) -> bool;
        /// Whether all limits decide within intervals.
        fn decide_within(&self) -> bool;
        fn look<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
            &self,
            request: &Request<'_, W, DISTINCT, PLAIN>,
        ) -> Result<Self::Plans, Stop>;
        /// Takes from all limits, in order, and then calls `rest`. If a take or `rest` fails,
        /// refunds all permits in reverse order.
        fn take<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
            &self,
            request: &Request<'_, W, DISTINCT, PLAIN>,
            plans: &Self::Plans,
            rest: impl FnOnce() -> Result<(), Stop>,
        ) -> Result<(), Stop>;
        /// Releases `n` permits of each limit, in reverse order.
        fn release(&self, n: u32);
    }
}
use sealed::Walk;

/// A limit's index, and how many times it is named.
#[derive(Clone, Copy, Debug)]
struct Place {
    index: usize,
    times: u32,
}

/// Whether a composition of this limiter can decide within an interval.
#[inline(always)]
fn decides_within<L: Limiter + ?Sized>(limiter: &L) -> bool {
    let hints = limiter.hints();
    hints.decides_within && hints.one_receipt
}

/// The detail to return, of the limits that were asked so far: that of the limit that denied last,
/// or of the one with the fewest permits left of those that granted since.
type Kept = Cell<Option<DetailBy>>;

/// Keeps `detail` if the limit denied, or if no limit has fewer permits left.
fn keep(kept: &Kept, place: Place, detail: Detail) {
    let new = DetailBy::new(place.index, place.times, detail);
    let is_least = match kept.get() {
        Some(old) => new.detail.available < old.detail.available,
        None => true,
    };
    if is_least || !detail.is_allowed() {
        kept.set(Some(new));
    }
}

/// A take from one limit that is refunded on drop, if a later one fails or panics. It names the
/// limit by its index: so all limits share the code of a refund.
struct UndoOnDrop<'a, T: Limits + ?Sized> {
    whole: &'a T,
    index: usize,
    now: Timestamp,
    n: u32,
    receipt: Receipt,
}

impl<T: Limits + ?Sized> Drop for UndoOnDrop<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        let receipt = mem::replace(&mut self.receipt, Receipt::NONE);
        undo(self.whole, self.index, self.now, self.n, receipt);
    }
}

#[cold]
#[inline(never)]
fn undo<T: Limits + ?Sized>(whole: &T, index: usize, now: Timestamp, n: u32, receipt: Receipt) {
    if let Some(limiter) = whole.get(index) {
        let _ = limiter.refund_at(now, n, receipt);
    }
}

/// Permits of one limiter, released on drop.
struct Held<'a, L: Limiter + ?Sized>(&'a L, u32);

impl<L: Limiter + ?Sized> Drop for Held<'_, L> {
    #[inline]
    fn drop(&mut self) {
        self.0.release(self.1);
    }
}

/// Takes from each limiter in turn. Each take runs inside the previous one, which is undone if the
/// inner one fails.
macro_rules! take_in_turn {
    ($request:ident, $plans:ident, $rest:ident,) => { $rest() };
    ($request:ident, $plans:ident, $rest:ident, $index:expr => $limiter:expr, $($more:tt)*) => {
        $request.take($index, $limiter, $plans.get($index), || {
            take_in_turn!($request, $plans, $rest, $($more)*)
        })
    };
}

macro_rules! tuple {
    ($count:literal: $($index:tt $limiter:ident),+) => {
        impl<$($limiter: Limiter),+> Limits for ($($limiter,)+) {
            #[inline(always)]
            fn len(&self) -> usize {
                $count
            }
            fn get(&self, index: usize) -> Option<&dyn Limiter> {
                match index {
                    $($index => Some(&self.$index),)+
                    _ => None,
                }
            }
        }

        impl<$($limiter: Limiter),+> Walk for ($($limiter,)+) {
            type Plans = [Plan; $count];
            #[inline(always)]
            fn id(&self, index: usize) -> Option<LimiterId> {
                match index {
                    $($index => self.$index.id(),)+
                    _ => None,
                }
            }
            #[inline(always)]
            fn are_distinct(&self) -> bool {
                are_distinct(&[$(self.$index.id()),+])
            }
            #[inline(always)]
            fn decide_within(&self) -> bool {
                $(decides_within(&self.$index))&&+
            }
            #[inline(always)]
            fn look<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
                &self,
                request: &Request<'_, W, DISTINCT, PLAIN>,
            ) -> Result<Self::Plans, Stop> {
                Ok([$(request.look($index, &self.$index)?),+])
            }
            #[inline(always)]
            fn take<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
                &self,
                request: &Request<'_, W, DISTINCT, PLAIN>,
                plans: &Self::Plans,
                rest: impl FnOnce() -> Result<(), Stop>,
            ) -> Result<(), Stop> {
                take_in_turn!(request, plans, rest, $($index => &self.$index,)+)
            }
            #[inline(always)]
            fn release(&self, n: u32) {
                // The guards drop in reverse order, also if one of them panics.
                $(let _held = Held(&self.$index, n);)+
            }
        }
    };
}

tuple!(1: 0 A);
tuple!(2: 0 A, 1 B);
tuple!(3: 0 A, 1 B, 2 C);
tuple!(4: 0 A, 1 B, 2 C, 3 D);
tuple!(5: 0 A, 1 B, 2 C, 3 D, 4 E);
tuple!(6: 0 A, 1 B, 2 C, 3 D, 4 E, 5 F);
tuple!(7: 0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G);
tuple!(8: 0 A, 1 B, 2 C, 3 D, 4 E, 5 F, 6 G, 7 H);

impl<L: Limiter> Limits for [L] {
    #[inline(always)]
    fn len(&self) -> usize {
        self.len()
    }
    fn get(&self, index: usize) -> Option<&dyn Limiter> {
        self.get(index).map(|limiter| limiter as &dyn Limiter)
    }
}

impl<L: Limiter> Walk for [L] {
    /// A slice has no storage for plans, because the number of its limits is unknown.
    type Plans = ();
    #[inline(always)]
    fn id(&self, index: usize) -> Option<LimiterId> {
        self.get(index).and_then(Limiter::id)
    }
    fn are_distinct(&self) -> bool {
        let named_before = |(place, limiter): (usize, &L)| {
            limiter.id().is_some_and(|id| {
                self.iter()
                    .take(place)
                    .any(|before| before.id() == Some(id))
            })
        };
        !self.iter().enumerate().any(named_before)
    }
    #[inline(always)]
    fn decide_within(&self) -> bool {
        self.iter().all(decides_within)
    }
    #[inline(always)]
    fn look<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
        &self,
        request: &Request<'_, W, DISTINCT, PLAIN>,
    ) -> Result<(), Stop> {
        self.iter()
            .enumerate()
            .try_for_each(|(index, limiter)| request.look(index, limiter).map(|_| ()))
    }
    #[inline(always)]
    fn take<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
        &self,
        request: &Request<'_, W, DISTINCT, PLAIN>,
        (): &(),
        rest: impl FnOnce() -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        take_slice(self, 0, request, &[], rest)
    }
    fn release(&self, n: u32) {
        /// The limiters whose permits are not yet released.
        struct Rest<'a, L: Limiter>(core::slice::Iter<'a, L>, u32);
        impl<L: Limiter> Rest<'_, L> {
            fn run(&mut self) {
                while let Some(limiter) = self.0.next_back() {
                    limiter.release(self.1);
                }
            }
        }
        impl<L: Limiter> Drop for Rest<'_, L> {
            fn drop(&mut self) {
                // Limiters are left only after a panic.
                self.run();
            }
        }
        Rest(self.iter(), n).run();
    }
}

/// Takes from four limiters per call, so that one stack frame holds four receipts.
fn take_slice<
    L: Limiter,
    W: Limits + ?Sized,
    R: FnOnce() -> Result<(), Stop>,
    const DISTINCT: bool,
    const PLAIN: bool,
>(
    limiters: &[L],
    first: usize,
    request: &Request<'_, W, DISTINCT, PLAIN>,
    plans: &[Plan],
    rest: R,
) -> Result<(), Stop> {
    match limiters {
        [] => rest(),
        [a] => take_in_turn!(request, plans, rest, first => a,),
        [a, b] => take_in_turn!(request, plans, rest, first => a, first + 1 => b,),
        [a, b, c] => {
            take_in_turn!(request, plans, rest, first => a, first + 1 => b, first + 2 => c,)
        }
        [a, b, c, d, more @ ..] => {
            let rest = || take_slice(more, first + 4, request, plans, rest);
            take_in_turn!(request, plans, rest, first => a, first + 1 => b, first + 2 => c, first + 3 => d,)
        }
    }
}

impl<L: Limiter, const N: usize> Limits for [L; N] {
    #[inline(always)]
    fn len(&self) -> usize {
        N
    }
    fn get(&self, index: usize) -> Option<&dyn Limiter> {
        Limits::get(self.as_slice(), index)
    }
}

impl<L: Limiter, const N: usize> Walk for [L; N] {
    type Plans = [Plan; N];
    #[inline(always)]
    fn id(&self, index: usize) -> Option<LimiterId> {
        self.as_slice().id(index)
    }
    #[inline(always)]
    fn are_distinct(&self) -> bool {
        are_distinct(&self.each_ref().map(Limiter::id))
    }
    #[inline(always)]
    fn decide_within(&self) -> bool {
        self.as_slice().decide_within()
    }
    #[inline(always)]
    fn look<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
        &self,
        request: &Request<'_, W, DISTINCT, PLAIN>,
    ) -> Result<Self::Plans, Stop> {
        let mut plans = [Plan::NONE; N];
        for (index, (plan, limiter)) in plans.iter_mut().zip(self).enumerate() {
            *plan = request.look(index, limiter)?;
        }
        Ok(plans)
    }
    #[inline(always)]
    fn take<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
        &self,
        request: &Request<'_, W, DISTINCT, PLAIN>,
        plans: &Self::Plans,
        rest: impl FnOnce() -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        take_slice(self, 0, request, plans, rest)
    }
    #[inline(always)]
    fn release(&self, n: u32) {
        self.as_slice().release(n);
    }
}

impl<T: Limits + ?Sized> Limits for &T {
    #[inline(always)]
    fn len(&self) -> usize {
        (**self).len()
    }
    fn get(&self, index: usize) -> Option<&dyn Limiter> {
        (**self).get(index)
    }
}

impl<T: Limits + ?Sized> Walk for &T {
    type Plans = T::Plans;
    #[inline(always)]
    fn id(&self, index: usize) -> Option<LimiterId> {
        (**self).id(index)
    }
    #[inline(always)]
    fn are_distinct(&self) -> bool {
        (**self).are_distinct()
    }
    #[inline(always)]
    fn decide_within(&self) -> bool {
        (**self).decide_within()
    }
    #[inline(always)]
    fn look<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
        &self,
        request: &Request<'_, W, DISTINCT, PLAIN>,
    ) -> Result<Self::Plans, Stop> {
        (**self).look(request)
    }
    #[inline(always)]
    fn take<W: Limits + ?Sized, const DISTINCT: bool, const PLAIN: bool>(
        &self,
        request: &Request<'_, W, DISTINCT, PLAIN>,
        plans: &Self::Plans,
        rest: impl FnOnce() -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        (**self).take(request, plans, rest)
    }
    #[inline(always)]
    fn release(&self, n: u32) {
        (**self).release(n);
    }
}

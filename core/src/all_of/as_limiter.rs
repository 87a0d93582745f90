use core::mem;

use crate::all_of::{
    AllOf, Attempt, DeniedBy, DetailBy, Limits, Receipts, beyond_count, times_over,
};
use crate::limiter::composable::{attempt, not_granted};
use crate::limiter::metadata::{self, Metadata, Used};
use crate::{
    Composable, Denied, Detail, Idle, Interval, Limiter, NotGranted, Plan, QueueLimiter, Receipt,
    Replenishing, Retry, Timestamp,
};

/// All limits as one limiter, for example for a queue or a clock. Its leases are ordinary ones.
///
/// A denial is that of the limit that denied, without its index. A lease has room for one receipt
/// only. So when a lease refunds unused permits, the limits whose permits are released get them
/// back, and the limits whose permits return by time do not. A grant of a queue that is not
/// claimed is refunded to each of up to eight limits: see
/// [`take_noted_at`](QueueLimiter::take_noted_at).
///
/// ```
/// use portcullis_core::{AllOf, Concurrency, LimiterExt, Rate, Timestamp, TokenBucket};
///
/// // Five per second, and at most two at once.
/// let limits = AllOf::new((
///     TokenBucket::new(Rate::per_second(5), 5),
///     Concurrency::new(2),
/// ));
/// let lease = LimiterExt::try_acquire_at(&limits, Timestamp::ZERO, 2)?;
/// assert_eq!(limits.available_at(Timestamp::ZERO), 0);
/// drop(lease);
/// assert_eq!(limits.available_at(Timestamp::ZERO), 2);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
impl<T: Limits> Limiter for AllOf<T> {
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        match self.try_acquire_at(now, n) {
            Ok(lease) => {
                lease.forget();
                Ok(Receipt::NONE)
            }
            Err(denied) => Err(self.as_one(denied)),
        }
    }

    fn take_explained_at(&self, now: Timestamp, n: u32) -> (Result<Receipt, Denied>, Detail) {
        let (lease, DetailBy { detail, .. }) = self.try_acquire_explained_at(now, n);
        match lease {
            Ok(lease) => {
                lease.forget();
                (Ok(Receipt::NONE), detail)
            }
            Err(by) => (Err(self.as_one(by)), self.denied_by(by, detail)),
        }
    }

    /// Returns the numbers of the limit that would deny, or for a grant of the one with the fewest
    /// permits.
    fn explain_at(&self, now: Timestamp, n: u32) -> Detail {
        let looked = self.peek_at(now, n);
        let DetailBy { detail, .. } = self.detail(now, n, looked, None);
        match looked {
            Ok(()) => detail,
            Err(by) => self.denied_by(by, detail),
        }
    }

    /// Decides if it matters to no limit where in the interval the time is, up to the first limit
    /// that denies. If it matters to a later limit, because another thread has changed it since the
    /// look, the takes before it are refunded.
    #[inline]
    fn take_within(&self, interval: Interval, n: u32) -> Option<Result<Receipt, Denied>> {
        self.receipt_within(interval, n, true)
    }

    fn peek_within(&self, interval: Interval, n: u32) -> Option<Result<(), Denied>> {
        self.look_within(interval, n)
            .map(|looked| looked.map_err(|by| self.as_one(by)))
    }

    /// Whether all limits decide within intervals, and none of them is a composition.
    #[inline(always)]
    fn decides_within(&self) -> bool {
        self.limits.decide_within()
    }

    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.peek_at(now, n).map_err(|denied| self.as_one(denied))
    }

    fn as_composable(&self) -> Option<&dyn Composable> {
        Some(self)
    }

    fn refund_at(&self, _: Timestamp, n: u32, rest: Receipt) -> crate::Refund {
        self.release(n);
        crate::Refund { permits: 0, rest }
    }

    fn release(&self, n: u32) {
        self.limits.release(n);
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.available_at(now)
    }

    fn capacity(&self) -> u64 {
        let capacity = |limit: &dyn Limiter| limit.capacity() / u64::from(self.times(limit).max(1));
        self.each().map(capacity).min().unwrap_or(u64::MAX)
    }

    /// In use if any limit is in use. Otherwise idle since the last of the limits became idle.
    fn idle_at(&self, now: Timestamp) -> Idle {
        let idle = self.each().map(|limit| limit.idle_at(now));
        idle.fold(Idle::Since(Timestamp::ZERO), Idle::and)
    }

    /// Returns the latest retry of all limits. For a queued request whose sum exceeds the
    /// [capacity](Self::capacity), the result is a lower bound: it is too early if one limit is
    /// full, and so gains no permits, while the requests ahead wait for another limit.
    fn retry(&self, denied: Denied) -> Retry {
        let by = |index| {
            self.retry(DeniedBy {
                index,
                permits: denied.permits(),
                denied,
            })
        };
        match denied {
            Denied::Exhausted { now, permits } => self.each().fold(Retry::At(now), |all, limit| {
                all.longer(self.retry_of(limit, now, permits), now)
            }),
            Denied::Crowded { now, .. } => (0..self.limits.len())
                .map(by)
                .fold(Retry::At(now), |a, b| a.longer(b, now)),
            _ => by(0),
        }
    }

    /// Offers when all limits can grant, and how much of their common capacity is in use. Then the
    /// limits offer their own metadata. For a denial, the first limit that would deny the request
    /// now offers first; then all limits offer, in order. The reason of the denial itself comes
    /// last.
    fn metadata(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
        if let Some(denied) = denied {
            offers.offer(metadata::RETRY_AFTER, || Limiter::retry(self, denied));
        }
        offers.offer(metadata::USED_SHARE, || Used::of(self, now));
        let says = |limit: &dyn Limiter| {
            denied.and_then(|denied| self.denial_of(limit, now, denied.permits()))
        };
        let denies = self.each().find_map(|limit| Some((limit, says(limit)?)));
        if let Some((limit, denied)) = denies {
            limit.metadata(now, Some(denied), offers);
        }
        for limit in self.each() {
            limit.metadata(now, says(limit), offers);
        }
        if let Some(denied) = denied {
            offers.offer(metadata::REASON_PHRASE, || denied.reason());
        }
    }
}

impl<T: Limits> Composable for AllOf<T> {
    fn is_composed(&self) -> bool {
        true
    }

    fn take_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        self.grant_then(now, n, (), rest)
            .map_err(|denied| self.as_one(denied))
    }

    fn attempt_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        self.grant_then(now, n, Attempt, rest)
            .map_err(|denied| self.as_one(denied))
    }

    fn attempt_at(&self, now: Timestamp, n: u32, _: Option<Plan>) -> Result<Receipt, Denied> {
        match self.grant(now, n, Attempt, || Ok(())) {
            Ok(()) => Ok(Receipt::NONE),
            Err(denied) => Err(self.as_one(denied)),
        }
    }

    #[inline]
    fn attempt_within(&self, interval: Interval, n: u32) -> Option<Result<Receipt, Denied>> {
        self.receipt_within(interval, n, false)
    }

    /// Informs the first limit that would deny the request.
    fn not_granted(&self, now: Timestamp, n: u32, why: NotGranted) {
        let Err(DeniedBy { index, .. }) = self.peek_at(now, n) else {
            return;
        };
        if let Some((limit, n)) = self.share(index, n) {
            not_granted(limit, now, n, why);
        }
    }
}

impl<T: QueueLimits> QueueLimiter for AllOf<T> {
    const SHARED: bool = T::SHARED;

    const NOTES: bool = true;

    /// Does nothing: a release does not say whether a request waits for one of the limits.
    fn watch(&self, _: bool) {}

    /// Stores the receipts of up to eight limits. With more limits, stores none.
    fn take_noted_at(
        &self,
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied> {
        notes.clear();
        if self.limits.len() > Receipts::MOST || n == 0 || self.peek_at(now, n).is_err() {
            return self.attempt_at(now, n, None);
        }
        let taken = Taken {
            limits: self,
            now,
            n,
            receipts: notes,
        };
        for index in 0..self.limits.len() {
            let receipt = match self.share(index, n) {
                Some((limit, n)) => attempt(limit, now, n, None),
                None => Ok(Receipt::NONE),
            };
            match receipt {
                Ok(receipt) => taken.receipts.push(receipt),
                Err(denied) => {
                    return Err(self.as_one(DeniedBy {
                        index,
                        permits: n,
                        denied,
                    }));
                }
            }
        }
        mem::forget(taken);
        Ok(Receipt::NONE)
    }

    /// Refunds to each limit as many permits as it can take back. Returns the smallest number of
    /// permits that count as never taken in a limit.
    fn refund_noted_at(&self, now: Timestamp, n: u32, receipt: Receipt, notes: Receipts) -> u32 {
        if notes.len() != self.limits.len() {
            return self.refund_at(now, n, receipt).permits;
        }
        let mut refund = Refund {
            limits: self,
            now,
            n,
            left: notes,
            refunded: n,
        };
        refund.run();
        refund.refunded
    }

    fn held(&self) -> u64 {
        self.limits.held()
    }
}

impl<T: ReplenishingLimits> Replenishing for AllOf<T> {}

/// The permits taken from the first limits. On drop they are refunded in reverse order, because a
/// later limit denied or panicked.
struct Taken<'t, T: Limits> {
    limits: &'t AllOf<T>,
    now: Timestamp,
    n: u32,
    receipts: &'t mut Receipts,
}

impl<T: Limits> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let (limits, now, n) = (self.limits, self.now, self.n);
        Refund {
            limits,
            now,
            n,
            left: mem::replace(self.receipts, Receipts::NONE),
            refunded: n,
        }
        .run();
    }
}

/// The permits that are still to be refunded, those of the last limit first. All are refunded, even
/// if a limiter panics.
struct Refund<'t, T: Limits> {
    limits: &'t AllOf<T>,
    now: Timestamp,
    n: u32,
    left: Receipts,
    refunded: u32,
}

impl<T: Limits> Refund<'_, T> {
    fn run(&mut self) {
        while let Some((index, receipt)) = self.left.pop() {
            if let Some((limit, n)) = self.limits.share(index, self.n) {
                let refunded = limit.refund_at(self.now, n, receipt).permits;
                self.refunded = self.refunded.min(refunded / (n / self.n.max(1)).max(1));
            }
        }
    }
}

impl<T: Limits> Drop for Refund<'_, T> {
    fn drop(&mut self) {
        // Receipts are left only after a panic.
        self.run();
    }
}

/// Limits that a queue can own as one: tuples and arrays of limits that it can own, and references
/// to limits whose permits return by time. Sealed.
///
/// ```
/// # use portcullis_core::{Concurrency, QueueLimits, Rate, TokenBucket};
/// let all = TokenBucket::new(Rate::per_second(9), 9);
/// let limits = (Concurrency::new(1), &all);
/// assert_eq!(limits.held(), 0);
/// ```
#[diagnostic::on_unimplemented(
    message = "a queue cannot own all of `{Self}`",
    label = "a permit that is released directly to one of the limits wakes no waiter of the queue",
    note = "pass the limits by value; a pointer to one is allowed only if all its permits return by time (`Replenishing`)",
    note = "to limit both a part and the whole, give the whole a queue of its own, and acquire from both queues, one after the other"
)]
pub trait QueueLimits: Limits {
    /// Whether other callers may take from one of the limits without going through the queue.
    const SHARED: bool;

    /// Returns the largest number of permits of one limit that are in use and return only by
    /// release.
    fn held(&self) -> u64;
}

/// Limits whose permits all return by time alone. Sealed.
pub trait ReplenishingLimits: Limits {}

macro_rules! tuple {
    ($($limiter:ident),+) => {
        impl<$($limiter: QueueLimiter),+> QueueLimits for ($($limiter,)+) {
            const SHARED: bool = $($limiter::SHARED)||+;

            #[expect(non_snake_case, reason = "each part is named after its type")]
            fn held(&self) -> u64 {
                let ($($limiter,)+) = self;
                0 $(.max($limiter.held()))+
            }
        }

        impl<$($limiter: Replenishing),+> ReplenishingLimits for ($($limiter,)+) {}
    };
}

tuple!(A);
tuple!(A, B);
tuple!(A, B, C);
tuple!(A, B, C, D);
tuple!(A, B, C, D, E);
tuple!(A, B, C, D, E, F);
tuple!(A, B, C, D, E, F, G);
tuple!(A, B, C, D, E, F, G, H);

impl<L: QueueLimiter, const N: usize> QueueLimits for [L; N] {
    const SHARED: bool = L::SHARED;

    fn held(&self) -> u64 {
        self.iter().map(L::held).max().unwrap_or(0)
    }
}

impl<L: Replenishing, const N: usize> ReplenishingLimits for [L; N] {}

impl<L: Replenishing> ReplenishingLimits for [L] {}

impl<T: ReplenishingLimits + ?Sized> ReplenishingLimits for &T {}

impl<T: ReplenishingLimits + ?Sized> QueueLimits for &T {
    const SHARED: bool = true;

    fn held(&self) -> u64 {
        0
    }
}

impl<T: Limits> AllOf<T> {
    #[inline(always)]
    fn receipt_within(
        &self,
        interval: Interval,
        n: u32,
        is_final: bool,
    ) -> Option<Result<Receipt, Denied>> {
        Some(match self.grant_within(interval, n, is_final)? {
            Ok(()) => Ok(Receipt::NONE),
            Err(by) => Err(self.as_one(by)),
        })
    }

    /// Returns the limit at `index` and the number of permits to request from it. Returns `None` if
    /// the limit is also named at an earlier place, which requests the permits for both.
    fn share(&self, index: usize, n: u32) -> Option<(&dyn Limiter, u32)> {
        let limit = self.limits.get(index)?;
        let id = limit.id();
        let is_named_before = id.is_some() && (0..index).any(|before| self.limits.id(before) == id);
        if is_named_before {
            None
        } else {
            Some((limit, times_over(n, self.times(limit))?))
        }
    }

    /// Returns what goes with a denial of one limit, of which that limit says `detail`: the denial
    /// is that of a single limiter, and all limits say when to retry.
    fn denied_by(&self, by: DeniedBy, detail: Detail) -> Detail {
        Detail {
            decision: Err(self.as_one(by)),
            retry: self.retry(by),
            ..detail
        }
    }

    fn each(&self) -> impl Iterator<Item = &dyn Limiter> {
        (0..self.limits.len()).filter_map(|index| self.limits.get(index))
    }

    /// Returns how one of the limits denies its share of `permits`, or `None` if it grants it.
    fn denial_of(&self, limit: &dyn Limiter, now: Timestamp, permits: u32) -> Option<Denied> {
        match times_over(permits, self.times(limit)) {
            Some(n) => limit.peek_at(now, n).err(),
            None => Some(beyond_count(limit)),
        }
    }

    /// Returns when one of the limits can have granted its share of `permits`, which may exceed its
    /// capacity.
    fn retry_of(&self, limit: &dyn Limiter, now: Timestamp, permits: u32) -> Retry {
        let n = times_over(permits, self.times(limit)).unwrap_or(u32::MAX);
        match limit.peek_at(now, n) {
            Ok(()) => Retry::At(now),
            Err(Denied::ExceedsCapacity { .. }) => {
                limit.retry(Denied::Exhausted { now, permits: n })
            }
            Err(denied) => limit.retry(denied),
        }
    }

    /// Returns the denial as that of a single limiter.
    fn as_one(
        &self,
        DeniedBy {
            permits, denied, ..
        }: DeniedBy,
    ) -> Denied {
        match denied {
            Denied::Exhausted { now, .. } => match u32::try_from(Limiter::capacity(self)) {
                // Another limit can never hold that many permits.
                Ok(capacity) if capacity < permits => Denied::ExceedsCapacity { permits, capacity },
                _ => Denied::Exhausted { now, permits },
            },
            Denied::ExceedsCapacity { capacity, .. } => {
                Denied::ExceedsCapacity { permits, capacity }
            }
            Denied::Penalized { now, .. } => Denied::Penalized { now, permits },
            Denied::Crowded { now, .. } => Denied::Crowded { now, permits },
            Denied::Refused { now, .. } => Denied::Refused { now, permits },
            Denied::Closed { .. } => Denied::Closed { permits },
        }
    }
}

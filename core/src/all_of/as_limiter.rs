use core::mem;

use crate::all_of::{AllOf, DeniedBy, Limits, Receipts, beyond_count, times_over};
use crate::limiter::metadata::{self, Metadata, Used};
use crate::{
    Composable, Denied, Idle, Limiter, QueueLimiter, Receipt, Replenishing, Retry, Timestamp,
};

/// All limits as one, for what takes a limiter: a queue of waits, say, or a clock. Its leases are
/// ordinary ones.
///
/// A denial is the one of the limit that denied, without its place. What a lease gives back as not
/// used is released by those limits whose permits come back so, and is not taken back by those
/// whose permits come back by time: a lease has room for one receipt. A grant that goes unclaimed
/// in a queue is taken back by each of up to eight limits as it takes back its own: see
/// [`take_noted_at`](QueueLimiter::take_noted_at).
///
/// ```
/// use portcullis_core::{AllOf, Concurrency, LimiterExt, Rate, Timestamp, TokenBucket};
///
/// // Five each second, two at once.
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

    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.peek_at(now, n).map_err(|denied| self.as_one(denied))
    }

    fn as_composable(&self) -> Option<&dyn Composable> {
        Some(self)
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

    /// In use if one of them is; else since the last of them is as good as new.
    fn idle_at(&self, now: Timestamp) -> Idle {
        self.each().map(|limit| limit.idle_at(now)).fold(
            Idle::Since(Timestamp::ZERO),
            |all, one| match (all, one) {
                (Idle::InUse, _) | (_, Idle::InUse) => Idle::InUse,
                (Idle::Since(a), Idle::Since(b)) => Idle::Since(a.max(b)),
                _ => Idle::Now,
            },
        )
    }

    /// The longest that any of the limits says. Of more than the [capacity](Self::capacity), behind
    /// others: never later than all will have come in, but earlier where one limit is full, and so
    /// gains nothing, while another one keeps all waiting.
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

    /// When all of them can grant, and how much of what all have is used. Then what the limits
    /// offer themselves, as of their own denials and grants: of a denial, first the first limit
    /// that would deny the request now; and then all, in order.
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
        self.grant_then(now, n, rest)
            .map_err(|denied| self.as_one(denied))
    }
}

impl<T: QueueLimits> QueueLimiter for AllOf<T> {
    const SHARED: bool = T::SHARED;

    const NOTES: bool = true;

    /// Of up to eight limits: of more, nothing is noted.
    fn take_noted_at(
        &self,
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied> {
        notes.clear();
        if self.limits.len() > Receipts::MOST || n == 0 || self.peek_at(now, n).is_err() {
            // A denial is told to those that note denials.
            return self.take_at(now, n);
        }
        let taken = Taken {
            limits: self,
            now,
            n,
            receipts: notes,
        };
        for index in 0..self.limits.len() {
            let receipt = match self.share(index, n) {
                Some((limit, n)) => limit.take_at(now, n),
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

    /// Of each limit as much as that can take back: as many count as never taken as of the one that
    /// takes back the fewest.
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

/// What has been taken of the first limits, to be given back in reverse if one of the others
/// denies, or panics.
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

/// What is still to be given back, of the last limit first: each one also when another one panics.
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
        // Only after a panic is anything left.
        self.run();
    }
}

/// Limits that a queue can own as one: tuples and arrays of limits that it can own, and references
/// to limits whose permits come back by time. Sealed.
///
/// ```
/// # use portcullis_core::{Concurrency, QueueLimits, Rate, TokenBucket};
/// let all = TokenBucket::new(Rate::per_second(9), 9);
/// let limits = (Concurrency::new(1), &all);
/// assert_eq!(limits.held(), 0);
/// ```
#[diagnostic::on_unimplemented(
    message = "a queue cannot own all of `{Self}`",
    label = "a permit of one of them that is released past the queue wakes no waiter",
    note = "name the limits themselves; a pointer to one is possible where all its permits come back by time (`Replenishing`)",
    note = "to limit a part and the whole, put the whole into a queue of its own, and wait in both, one after the other"
)]
pub trait QueueLimits: Limits {
    /// Whether others may take from one of them past the queue.
    const SHARED: bool;

    /// The most permits that are out of one of them, and come back by release alone.
    fn held(&self) -> u64;
}

/// Limits all of whose permits come back by time alone. Sealed.
pub trait ReplenishingLimits: Limits {}

macro_rules! tuple {
    ($($limiter:ident),+) => {
        impl<$($limiter: QueueLimiter),+> QueueLimits for ($($limiter,)+) {
            const SHARED: bool = $($limiter::SHARED)||+;

            #[expect(non_snake_case, reason = "each part by its type's name")]
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
    /// The limit at a place, and how many permits it is asked for; none if it is named before,
    /// where it is asked for all.
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

    fn each(&self) -> impl Iterator<Item = &dyn Limiter> {
        (0..self.limits.len()).filter_map(|index| self.limits.get(index))
    }

    /// What one of the limits says against its share of `permits`.
    fn denial_of(&self, limit: &dyn Limiter, now: Timestamp, permits: u32) -> Option<Denied> {
        match times_over(permits, self.times(limit)) {
            Some(n) => limit.peek_at(now, n).err(),
            None => Some(beyond_count(limit)),
        }
    }

    /// When one of the limits has had its share of `permits`, which may be more than it can ever
    /// hold.
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

    /// A denial as if one limiter had been asked.
    fn as_one(
        &self,
        DeniedBy {
            permits, denied, ..
        }: DeniedBy,
    ) -> Denied {
        match denied {
            Denied::Exhausted { now, .. } => match u32::try_from(Limiter::capacity(self)) {
                // Another limit can never hold so many.
                Ok(capacity) if capacity < permits => Denied::ExceedsCapacity { permits, capacity },
                _ => Denied::Exhausted { now, permits },
            },
            Denied::ExceedsCapacity { capacity, .. } => {
                Denied::ExceedsCapacity { permits, capacity }
            }
            Denied::Penalized { now, .. } => Denied::Penalized { now, permits },
            Denied::Crowded { now, .. } => Denied::Crowded { now, permits },
            Denied::Refused { now, .. } => Denied::Refused { now, permits },
        }
    }
}

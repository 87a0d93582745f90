//! A composition as one limiter: answers in the form of [`Limiter`] what `all_of.rs` decides. No
//! permit is taken here. What a release or the end of a wait means for a composition is said here,
//! limit by limit.

use core::mem;

use crate::all_of::{
    AllOf, DeniedBy, DetailBy, Kept, Limits, Receipts, Stop, beyond_count, times_over,
};
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::Detail;
use crate::limiter::metadata::{self, Metadata, Used};
use crate::limiter::not_granted::NotGranted;
use crate::limiter::queue_limiter::{QueueLimiter, Replenishing};
use crate::limiter::receipt::{Plan, Receipt};
use crate::limiter::{
    Answer, Ask, Back, Hints, How, Idle, Limiter, LimiterExt, Read, Reading, Returned, Tell, When,
};
use crate::time::timestamp::Timestamp;

/// All limits as one limiter, for example for a queue or a clock. Its leases are ordinary ones.
///
/// A denial is that of the limit that denied, without its index. A lease has room for one receipt
/// only. So when a lease refunds unused permits, the limits whose permits are released get them
/// back, and the limits whose permits return by time do not. A grant of a queue that is not
/// claimed is refunded to each of up to eight limits: see [`Tell::Receipts`].
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
    /// Decides on a request to all limits.
    ///
    /// A look answers as the limit that would deny. What it tells is that limit's, or for a grant
    /// that of the one with the fewest permits.
    ///
    /// Within an interval it decides if it matters to no limit where in the interval the time is,
    /// up to the first limit that denies. If it matters to a later limit, because another thread
    /// has changed it since the look, the takes before it are refunded.
    #[inline]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (when, n, how) = (ask.when, ask.permits, ask.how);
        let keep = match ask.tell {
            Tell::Detail(seen) => {
                let detail = match how {
                    How::Look => self.explain(when.earliest(), n),
                    How::Take | How::Attempt => self.take_explained(when.earliest(), n),
                };
                seen.set(Some(detail));
                let granted = detail.decision.map(|()| Receipt::NONE);
                return granted.map_or_else(Answer::Denied, |receipt| match how {
                    How::Look => Answer::Possible(Plan::NONE),
                    How::Take | How::Attempt => Answer::Granted(receipt),
                });
            }
            _ if how == How::Look => {
                let looked = self.limits.look(&self.request(when, n, how, None));
                return match looked {
                    Ok(_) => Answer::Possible(Plan::NONE),
                    Err(stop) => self.stopped(stop),
                };
            }
            Tell::Receipts(receipts) => {
                if let Some(granted) = self.take_with_receipts(when, n, how, receipts) {
                    return self.taken(granted);
                }
                None
            }
            Tell::Grant(keep) => Some(keep),
            Tell::Nothing => None,
        };
        // One take for all that a caller may want to be told: it is large.
        self.taken(self.request(when, n, how, None).grant(kept_by(keep)))
    }

    /// A refund with the receipts of all limits refunds to each limit as many permits as it can
    /// take back, and counts the smallest number. Without them all permits are released.
    ///
    /// That a request was not granted is told to the first limit that would deny it.
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } => self.limits.release(permits),
            Back::Refund {
                now,
                permits,
                receipt,
                receipts,
            } => return self.refund(now, permits, receipt, receipts).into(),
            Back::NotGranted { now, permits, why } => self.not_granted(now, permits, why),
            // A release does not say whether a request waits for one of the limits.
            Back::Cancelled { .. } | Back::Watch(_) => {}
        }
        Returned::NOTHING
    }

    /// In use if any limit is in use. Otherwise idle since the last of the limits became idle.
    ///
    /// Offers when all limits can grant, and how much of their common capacity is in use. Then the
    /// limits offer their own metadata. For a denial, the first limit that would deny the request
    /// now offers first; then all limits offer, in order. The reason of the denial itself comes
    /// last.
    fn read(&self, read: Read<'_>) -> Reading {
        let none = Reading {
            available: u64::MAX,
            capacity: u64::MAX,
            idle: Idle::Since(Timestamp::ZERO),
            held: 0,
        };
        let reading = self.each().fold(none, |all, limit| {
            let (one, times) = (limit.read(Read::at(read.now)), self.times(limit).max(1));
            Reading {
                available: all.available.min(one.available / u64::from(times)),
                capacity: all.capacity.min(one.capacity / u64::from(times)),
                idle: all.idle.and(one.idle),
                held: all.held.max(one.held),
            }
        });
        if let Some(mut offers) = read.offers {
            self.offer(read.now, read.denied, &mut offers);
        }
        reading
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
            // A limit that is no table never makes this denial, and has no time for it.
            Denied::Crowded { now, .. } => (0..self.limits.len())
                .filter(|&index| {
                    let limit = self.limits.get(index);
                    limit.is_some_and(|limit| limit.retry(denied) != Retry::Never)
                })
                .map(by)
                .reduce(|a, b| a.longer(b, now))
                .unwrap_or(Retry::Never),
            _ => by(0),
        }
    }

    /// It decides within intervals if all limits do, and none of them is a composition.
    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints {
            decides_within: self.limits.decide_within(),
            ..Hints::NONE
        }
    }
}

/// What follows the take from all limits: whether the caller keeps the permits, if it wants to be
/// asked.
#[inline(always)]
fn kept_by(keep: Option<&mut dyn FnMut() -> bool>) -> impl FnOnce() -> Result<(), Stop> {
    || {
        if keep.is_none_or(|keep| keep()) {
            Ok(())
        } else {
            Err(Stop::Undone)
        }
    }
}

impl<T: Limits> AllOf<T> {
    fn take_explained(&self, now: Timestamp, n: u32) -> Detail {
        let kept = Kept::new(None);
        let taken = self.request(now, n, How::Take, Some(&kept));
        let taken = taken.grant(kept_by(None));
        let taken = taken.map_err(|stop| stop.denial(now, n));
        let DetailBy { detail, .. } = self.detail(now, n, taken, kept.get());
        match taken {
            Ok(()) => detail,
            Err(by) => self.denied_by(by, detail),
        }
    }

    fn explain(&self, now: Timestamp, n: u32) -> Detail {
        let looked = self.peek_at(now, n);
        let DetailBy { detail, .. } = self.detail(now, n, looked, None);
        match looked {
            Ok(()) => detail,
            Err(by) => self.denied_by(by, detail),
        }
    }

    #[inline(always)]
    fn taken(&self, granted: Result<(), Stop>) -> Answer {
        match granted {
            Ok(()) => Answer::Granted(Receipt::NONE),
            Err(stop) => self.stopped(stop),
        }
    }

    /// Takes, and stores the receipts of up to eight limits. Returns `None` if there are none to
    /// store: there are more limits, or the request takes nothing.
    fn take_with_receipts(
        &self,
        when: When,
        n: u32,
        how: How,
        receipts: &mut Receipts,
    ) -> Option<Result<(), Stop>> {
        receipts.clear();
        let now = when.earliest();
        if self.limits.len() > Receipts::MOST || n == 0 || self.peek_at(now, n).is_err() {
            return None;
        }
        let taken = Taken {
            limits: self,
            now,
            n,
            receipts,
        };
        for index in 0..self.limits.len() {
            let answer = match self.share(index, n) {
                Some((limit, n)) => limit.decide(Ask::new(when, n, how)),
                None => Answer::Granted(Receipt::NONE),
            };
            match answer {
                Answer::Granted(receipt) => taken.receipts.push(receipt),
                answer => return Some(Err(self.request(when, n, how, None).stop(index, answer))),
            }
        }
        mem::forget(taken);
        Some(Ok(()))
    }

    fn refund(
        &self,
        now: Timestamp,
        n: u32,
        rest: Receipt,
        receipts: Option<&mut Receipts>,
    ) -> crate::limiter::Refund {
        match receipts {
            Some(receipts) if receipts.len() == self.limits.len() && receipts.len() > 0 => {
                let mut refund = Refund {
                    limits: self,
                    now,
                    n,
                    left: mem::replace(receipts, Receipts::NONE),
                    refunded: n,
                };
                refund.run();
                rest.refunded(refund.refunded)
            }
            _ => {
                self.limits.release(n);
                rest.refunded(0)
            }
        }
    }

    fn not_granted(&self, now: Timestamp, n: u32, why: NotGranted) {
        let Err(DeniedBy { index, .. }) = self.peek_at(now, n) else {
            return;
        };
        if let Some((limit, permits)) = self.share(index, n) {
            let _ = limit.give_back(Back::NotGranted { now, permits, why });
        }
    }

    fn offer(&self, now: Timestamp, denied: Option<Denied>, offers: &mut Metadata<'_>) {
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
    }

    /// The largest number of permits that all limits can ever have at once.
    fn most(&self) -> u64 {
        let most = |limit: &dyn Limiter| limit.capacity() / u64::from(self.times(limit).max(1));
        self.each().map(most).min().unwrap_or(u64::MAX)
    }

    /// The answer to a request that was stopped.
    fn stopped(&self, stop: Stop) -> Answer {
        match stop {
            Stop::Denied(by) => Answer::Denied(self.as_one(by)),
            Stop::TimeMatters => Answer::TimeMatters,
            Stop::Undone => Answer::Undone,
        }
    }
}

impl<T: QueueLimits> QueueLimiter for AllOf<T> {
    const SHARED: bool = T::SHARED;
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
/// # use portcullis_core::{Concurrency, Rate, TokenBucket};
/// # use portcullis_core::queue::QueueLimits;
/// fn shared<T: QueueLimits>(_: T) -> bool {
///     T::SHARED
/// }
/// let all = TokenBucket::new(Rate::per_second(9), 9);
/// assert!(shared((Concurrency::new(1), &all)));
/// ```
#[diagnostic::on_unimplemented(
    message = "a queue cannot own all of `{Self}`",
    label = "a permit that is released directly to one of the limits wakes no waiter of the queue",
    note = "pass the limits by value; a pointer to one is allowed only if all its permits return by time (`Replenishing`)",
    note = "to limit each key and all keys together, pass `WithTotal::new(table, total)` to a `KeyedQueue`"
)]
pub trait QueueLimits: Limits {
    /// Whether other callers may take from one of the limits without going through the queue.
    const SHARED: bool;
}

/// Limits whose permits all return by time alone. Sealed.
pub trait ReplenishingLimits: Limits {}

macro_rules! tuple {
    ($($limiter:ident),+) => {
        impl<$($limiter: QueueLimiter),+> QueueLimits for ($($limiter,)+) {
            const SHARED: bool = $($limiter::SHARED)||+;
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
}

impl<L: Replenishing, const N: usize> ReplenishingLimits for [L; N] {}

impl<L: Replenishing> ReplenishingLimits for [L] {}

impl<T: ReplenishingLimits + ?Sized> ReplenishingLimits for &T {}

impl<T: ReplenishingLimits + ?Sized> QueueLimits for &T {
    const SHARED: bool = true;
}

impl<T: Limits> AllOf<T> {
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
            Denied::Exhausted { now, .. } => match u32::try_from(self.most()) {
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

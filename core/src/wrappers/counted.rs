mod keyed;

use core::borrow::Borrow;

use crate::limiter::composable::{
    as_composed, attempt, attempt_then, attempt_within, cancelled, not_granted, plan,
    take_as_planned,
};
use crate::limiter::metadata::Metadata;
use crate::sync::const_unless_loom;
use crate::{
    Composable, Counts, Denied, Detail, Idle, Interval, Lease, Limiter, LimiterExt, LimiterId,
    NotGranted, PassedOn, Plan, QueueLimiter, Receipt, Receipts, Refund, Replenishing, Retry,
    Tally, Timestamp, Waiting,
};

/// Counts the requests of a limiter or a table, and their permits: granted, denied, refused, and
/// held. A limiter without this wrapper pays nothing for it.
///
/// `T` is the [`Tally`] that it counts into: its own, or a pointer to one that several limiters
/// share. [`Counts`] says what is counted, and [`NotGranted`] the difference between denied and
/// refused.
///
/// **Bound.** That of the inner limiter. No decision reads a counter.
///
/// **Cost.** Three fetch-adds per grant, two per request that is not granted, and one per release
/// of a lease, all `Relaxed`, on cache lines of their own. (So a denial writes, to the counters.)
///
/// **In a composition.** In an [`AllOf`](crate::AllOf), a denial counts for the limit that denied,
/// the first one if several do. A probe counts for none, because a composition only looks for it.
/// If a limit has granted, and a later limit denies because another thread took its permits at that
/// moment, the grant stays counted. To count the requests to the whole, put `Counted` around the
/// composition.
///
/// **In a queue** of `portcullis-async`, each request is counted once: when it is granted, when it
/// is rejected, or when it is cancelled. While it waits it is not counted. A queue around
/// `Counted<AllOf<..>>` counts the requests to the whole. In a queue around an `AllOf` of counted
/// limits, each limit counts the grants, and a rejection counts for the first limit that would deny
/// the request at that time, if one would. A cancelled request counts for none of them.
///
/// ```
/// use portcullis_core::{Concurrency, Counted, LimiterExt, Timestamp};
///
/// static LIMIT: Counted<Concurrency> = Counted::new(Concurrency::new(2));
///
/// let lease = LIMIT.try_acquire_at(Timestamp::ZERO, 2);
/// assert!(LIMIT.try_acquire_at(Timestamp::ZERO, 1).is_err());
/// let counts = LIMIT.counts();
/// assert_eq!((counts.granted.requests, counts.denied.requests), (1, 1));
/// assert_eq!((counts.granted.permits, counts.held), (2, 2));
/// drop(lease);
/// assert_eq!(LIMIT.counts().held, 0);
/// ```
///
/// # Tables
///
/// A counted [`Keyed`](crate::Keyed) or [`KeyedArray`](crate::KeyedArray) counts the requests of
/// all its keys. It is used like the table itself: its [`key`](Self::key) is a limiter, and it can
/// be joined with a clock ([`Clocked`](crate::Clocked)) or be owned by a queue. To count some of
/// the keys, or one limit of a table, wrap the keys: `Counted::with_tally(table.key(..), &tally)`.
///
/// ```
/// use portcullis_core::{Counted, Keyed, Rate, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(10), 2);
/// let users = Counted::new(Keyed::for_keys(bucket, 1_000));
/// let now = Timestamp::from_secs(9);
/// assert!(users.key("alice").try_acquire_at(now, 2).is_ok());
/// assert!(users.key("alice").try_acquire_at(now, 1).is_err());
/// assert!(users.key("bob").try_acquire_at(now, 1).is_ok());
///
/// let counts = users.counts();
/// assert_eq!((counts.granted.requests, counts.denied.requests), (2, 1));
/// assert_eq!((counts.granted.permits, counts.denied.permits), (3, 1));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Counted<L, T = Tally> {
    limiter: L,
    tally: T,
}

impl<L> Counted<L> {
    const_unless_loom! {
        /// Wraps a limiter or a table, and counts its decisions from now on.
        ///
        /// ```
        /// # use portcullis_core::{Counted, Rate, TokenBucket};
        /// static LIMIT: Counted<TokenBucket> =
        ///     Counted::new(TokenBucket::new(Rate::per_second(5), 5));
        /// ```
        pub const fn new(limiter: L) -> Self {
            Self::with_tally(limiter, Tally::new())
        }
    }
}

impl<L, T: Borrow<Tally>> Counted<L, T> {
    /// Wraps a limiter or a table, and counts its decisions into `tally`: a [`Tally`], a reference
    /// to one, or an `Arc` of one.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Tally};
    /// static ALL: Tally = Tally::new();
    /// static READS: Counted<Concurrency, &Tally> =
    ///     Counted::with_tally(Concurrency::new(8), &ALL);
    /// static WRITES: Counted<Concurrency, &Tally> =
    ///     Counted::with_tally(Concurrency::new(2), &ALL);
    /// ```
    pub const fn with_tally(limiter: L, tally: T) -> Self {
        Self { limiter, tally }
    }

    /// Returns the current counts: see [`Tally::counts`].
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Timestamp};
    /// let limit = Counted::new(Concurrency::new(2));
    /// let _denied = limit.try_acquire_at(Timestamp::ZERO, 3);
    /// assert_eq!(limit.counts().refused.permits, 3);
    /// ```
    pub fn counts(&self) -> Counts {
        self.tally().counts()
    }

    /// Returns the tally.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted, Tally};
    /// static ALL: Tally = Tally::new();
    /// let limit = Counted::with_tally(Concurrency::new(2), &ALL);
    /// assert!(core::ptr::eq(limit.tally(), &ALL));
    /// ```
    #[inline]
    pub fn tally(&self) -> &Tally {
        self.tally.borrow()
    }

    /// Returns the inner limiter or table. What is taken from it directly is not counted.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Counted};
    /// let limit = Counted::new(Concurrency::new(2));
    /// assert_eq!(limit.limiter().limit(), 2);
    /// ```
    pub const fn limiter(&self) -> &L {
        &self.limiter
    }

    /// Counts a final decision.
    #[inline]
    fn count<G>(&self, n: u32, decision: Result<G, Denied>) -> Result<G, Denied> {
        self.tally().decided(n, &decision);
        decision
    }

    /// Counts a grant. A denial is not final.
    #[inline]
    fn count_grant<G>(&self, n: u32, decision: Result<G, Denied>) -> Result<G, Denied> {
        if decision.is_ok() {
            self.tally().granted(n);
        }
        decision
    }

    /// Counts the final decision about a take that a composition undoes if another limit denies.
    fn count_then(
        &self,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
        take: impl FnOnce(&L, &mut dyn FnMut() -> bool) -> Result<bool, Denied>,
    ) -> Result<bool, Denied> {
        let granted = self.count_grant_then(n, rest, take);
        if let Err(denied) = granted {
            self.tally().not_granted(n, denied.into());
        }
        granted
    }

    /// The same for a take whose denial is not final.
    fn count_grant_then(
        &self,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
        take: impl FnOnce(&L, &mut dyn FnMut() -> bool) -> Result<bool, Denied>,
    ) -> Result<bool, Denied> {
        /// Permits that count as held until they are given back.
        struct Held<'a>(&'a Tally, u32);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.returned(self.1);
            }
        }
        take(&self.limiter, &mut || {
            self.tally().granted(n);
            let held = Held(self.tally(), n);
            let done = rest();
            if done {
                core::mem::forget(held);
            }
            done
        })
    }
}

impl<L: Limiter, T: Borrow<Tally>> Counted<L, T> {
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
}

impl<L: QueueLimiter, T: Borrow<Tally>> QueueLimiter for Counted<L, T> {
    const SHARED: bool = L::SHARED;

    #[inline]
    fn release_watched(&self, n: u32) -> Waiting {
        self.tally().returned(n);
        self.limiter.release_watched(n)
    }

    fn watch(&self, waits: bool) {
        self.limiter.watch(waits);
    }

    #[inline]
    fn pass_on(&self, n: u32) -> PassedOn {
        let passed = self.limiter.pass_on(n);
        if passed != PassedOn::No {
            self.tally().passed_on(n);
        }
        passed
    }

    const NOTES: bool = L::NOTES;

    fn take_noted_at(
        &self,
        now: Timestamp,
        n: u32,
        notes: &mut Receipts,
    ) -> Result<Receipt, Denied> {
        self.count_grant(n, self.limiter.take_noted_at(now, n, notes))
    }

    fn refund_noted_at(&self, now: Timestamp, n: u32, receipt: Receipt, notes: Receipts) -> u32 {
        self.tally().returned(n);
        self.limiter.refund_noted_at(now, n, receipt, notes)
    }

    fn held(&self) -> u64 {
        self.limiter.held()
    }
}

impl<L: Replenishing, T: Borrow<Tally>> Replenishing for Counted<L, T> {}

impl<L: Limiter, T: Borrow<Tally>> Limiter for Counted<L, T> {
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
    fn peek_within(&self, interval: Interval, n: u32) -> Option<Result<(), Denied>> {
        self.limiter.peek_within(interval, n)
    }

    #[inline]
    fn decides_within(&self) -> bool {
        self.limiter.decides_within()
    }

    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.limiter.peek_at(now, n)
    }

    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.tally().returned(n);
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
        self.tally().returned(n);
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

impl<L: Limiter, T: Borrow<Tally>> Composable for Counted<L, T> {
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
        self.count_then(n, rest, |limiter, rest| limiter.take_at_then(now, n, rest))
    }

    #[inline]
    fn attempt_at(&self, now: Timestamp, n: u32, plan: Option<Plan>) -> Result<Receipt, Denied> {
        self.count_grant(n, attempt(&self.limiter, now, n, plan))
    }

    #[inline]
    fn attempt_within(&self, interval: Interval, n: u32) -> Option<Result<Receipt, Denied>> {
        let decision = attempt_within(&self.limiter, interval, n)?;
        Some(self.count_grant(n, decision))
    }

    fn attempt_then(
        &self,
        now: Timestamp,
        n: u32,
        rest: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Denied> {
        self.count_grant_then(n, rest, |limiter, rest| attempt_then(limiter, now, n, rest))
    }

    fn not_granted(&self, now: Timestamp, n: u32, why: NotGranted) {
        // If the inner limiter panics, the request has not ended.
        not_granted(&self.limiter, now, n, why);
        self.tally().not_granted(n, why);
    }

    fn cancelled(&self, n: u32) {
        self.tally().cancelled(n);
        cancelled(&self.limiter, n);
    }
}

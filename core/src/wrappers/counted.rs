//! A wrapper that counts. What is counted when is decided by the tally (`tally.rs`); this file asks
//! the inner limiter and tells the tally the answer. `counted/keyed.rs` does the same for a table.

mod keyed;

use core::borrow::Borrow;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::queue_limiter::{PassedOn, QueueLimiter, Replenishing};
use crate::limiter::receipt::Receipt;
use crate::limiter::{Answer, Ask, Back, Hints, Limiter, LimiterId, Read, Reading, Returned};
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::wrappers::tally::{Counts, Tally};

/// Counts the requests of a limiter or a table, and their permits: granted, denied, refused, and
/// held. A limiter without this wrapper pays nothing for it.
///
/// `T` is the [`Tally`] that it counts into: its own, or a pointer to one that several limiters
/// share. [`Counts`] says what is counted, and [`NotGranted`](crate::limiter::NotGranted) the
/// difference between denied and refused.
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
    /// # use portcullis_core::{Concurrency, Counted};
    /// # use portcullis_core::counts::Tally;
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
    /// # use portcullis_core::{Concurrency, Counted};
    /// # use portcullis_core::counts::Tally;
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
    fn pass_on(&self, n: u32) -> PassedOn {
        let passed = self.limiter.pass_on(n);
        if passed != PassedOn::No {
            self.tally().passed_on(n);
        }
        passed
    }
}

impl<L: Replenishing, T: Borrow<Tally>> Replenishing for Counted<L, T> {}

impl<L: Limiter, T: Borrow<Tally>> Limiter for Counted<L, T> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (n, is_final) = (ask.permits(), ask.is_final());
        match self.limiter.decide(ask) {
            Answer::Granted(receipt) => {
                self.tally().granted(n);
                Answer::Granted(receipt)
            }
            Answer::Denied(denied) => {
                if is_final {
                    self.tally().not_granted(n, denied.into());
                }
                Answer::Denied(denied)
            }
            Answer::Undone => {
                self.tally().granted(n);
                self.tally().returned(n);
                Answer::Undone
            }
            other => other,
        }
    }

    /// As [`decide`](Limiter::decide), whose answer would be converted: the conversion would be a
    /// twelfth of a take on a small processor.
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let taken = self.limiter.take_at(now, n);
        match taken {
            Ok(_) => self.tally().granted(n),
            Err(denied) => self.tally().not_granted(n, denied.into()),
        }
        taken
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } | Back::Refund { permits, .. } => {
                self.tally().returned(permits);
            }
            Back::Cancelled { permits } => self.tally().cancelled(permits),
            Back::NotGranted { permits, why, .. } => {
                // If the inner limiter panics, the request has not ended.
                let returned = self.limiter.give_back(back);
                self.tally().not_granted(permits, why);
                return returned;
            }
            Back::Watch(_) => {}
        }
        self.limiter.give_back(back)
    }

    #[inline(always)]
    fn read(&self, read: Read<'_>) -> Reading {
        self.limiter.read(read)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }

    fn id(&self) -> Option<LimiterId> {
        // Around a stateless limiter, no id: a composition need not ask for all its permits at
        // once.
        self.limiter.id().and(LimiterId::of(self))
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        self.limiter.hints()
    }
}

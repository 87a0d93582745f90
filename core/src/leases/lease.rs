//! A guard of permits. Everything that holds permits for a caller is one of these, or an id in
//! [`leases`](crate::leases).
//!
//! Invariant: the permits of a lease are in use. Each of them is released once: by `release`, by
//! the drop, or by the lease that it was moved to.

use core::fmt;
use core::mem;
use core::ops::Deref;

use crate::limiter::denied::{Denied, Permits};
use crate::limiter::detail::Detail;
use crate::limiter::receipt::Receipt;
use crate::limiter::{Limiter, LimiterExt};
use crate::time::timestamp::Timestamp;

/// Holds permits, and releases them to their limiter on drop.
///
/// A release returns the permits of a concurrency limit. Permits that return by time, such as
/// tokens or places in a window, are not affected by it: dropping a lease of such a limiter
/// compiles to nothing.
///
/// **Keep the lease while you work.** `if limit.try_acquire(1).is_ok() { work() }` drops it before
/// the work begins, so a concurrency limit limits nothing. Write `if let Ok(_lease) =
/// limit.try_acquire(1) { work() }`, or `let Ok(_lease) = limit.try_acquire(1) else { ... }`. No
/// lint of Rust notices the difference. So ask a limiter whose permits return by time with
/// [`LimiterExt::allow_at`], which does not compile for the others.
///
/// `P` points to the limiter: `&L`, `&'static L`, `Arc<L>` or any other `Deref`.
///
/// ```
/// use portcullis_core::{Concurrency, Timestamp};
///
/// let limit = Concurrency::new(5);
/// let mut lease = limit.try_acquire(4)?;
/// lease.release(1).unwrap();
/// let other = lease.split(2).unwrap();
/// assert_eq!(
///     (lease.permits(), other.permits(), limit.available()),
///     (1, 2, 2)
/// );
/// lease.merge(other).unwrap();
/// drop(lease);
/// assert_eq!(limit.available(), 5);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[must_use = "a dropped lease releases its permits, unless they return by time: then use `let _ =`"]
pub struct Lease<P>
where
    P: Deref,
    P::Target: Limiter,
{
    limiter: P,
    permits: u32,
    /// How many of the permits the receipt covers.
    receipted: u32,
    receipt: Receipt,
}

impl<P> Lease<P>
where
    P: Deref,
    P::Target: Limiter,
{
    /// Takes `n` permits of `limiter` at `now`, as
    /// [`LimiterExt::try_acquire_at`](crate::LimiterExt::try_acquire_at) does. The lease keeps the
    /// given pointer: for example an `Arc`, so that the lease can move to another thread.
    ///
    /// # Errors
    ///
    /// Returns [`Denied`] if the limiter denies the request. Nothing has changed then, and the
    /// pointer is dropped.
    ///
    /// ```
    /// use portcullis_core::{Concurrency, Lease, Timestamp};
    /// use std::sync::Arc;
    ///
    /// let limit = Arc::new(Concurrency::new(1));
    /// let lease = Lease::try_acquire_at(Arc::clone(&limit), Timestamp::ZERO, 1).unwrap();
    /// std::thread::spawn(move || drop(lease)).join().unwrap();
    /// assert_eq!(limit.available(), 1);
    /// ```
    #[inline]
    pub fn try_acquire_at(limiter: P, now: Timestamp, n: u32) -> Result<Self, Denied> {
        match limiter.take_at(now, n) {
            Ok(receipt) => Ok(Self {
                limiter,
                permits: n,
                receipted: n,
                receipt,
            }),
            Err(denied) => Err(denied),
        }
    }

    /// Takes permits as [`try_acquire_at`](Self::try_acquire_at) does, and returns what the
    /// decision saw: see [`LimiterExt::take_explained_at`].
    ///
    /// # Errors
    ///
    /// The first result is [`Denied`] if the limiter denies the request. Nothing has changed then,
    /// and the pointer is dropped.
    ///
    /// ```
    /// use portcullis_core::{Concurrency, Lease, Timestamp};
    /// use std::sync::Arc;
    ///
    /// let limit = Arc::new(Concurrency::new(3));
    /// let (lease, detail) = Lease::try_acquire_explained_at(limit, Timestamp::ZERO, 1);
    /// assert_eq!((lease?.permits(), detail.available), (1, 2));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_explained_at(
        limiter: P,
        now: Timestamp,
        n: u32,
    ) -> (Result<Self, Denied>, Detail) {
        let (taken, detail) = limiter.take_explained_at(now, n);
        let lease = taken.map(|receipt| Self::from_grant(limiter, n, receipt));
        (lease, detail)
    }

    /// Creates a lease of `permits` that [`Limiter::take_at`] took from `limiter` with `receipt`.
    /// For code that takes on behalf of others, such as a queue for its waiters.
    ///
    /// The permits are released on drop even if they were never taken: see [`Limiter::release`].
    ///
    /// `receipt` must be that of these permits, and no other lease may have it. Otherwise
    /// [`refund_at`](Self::refund_at) may refund permits that were not taken or that another lease
    /// holds, and the limiter's bound does not hold. [`Receipt::NONE`] is no exception: a limiter
    /// whose grants have receipts may take it for that of a grant at the origin of time.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Lease, Limiter, Timestamp};
    /// let limit = Concurrency::new(5);
    /// let receipt = limit.take_at(Timestamp::ZERO, 2)?;
    /// let lease = Lease::from_grant(&limit, 2, receipt);
    /// drop(lease);
    /// assert_eq!(limit.available(), 5);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub const fn from_grant(limiter: P, permits: u32, receipt: Receipt) -> Self {
        Self {
            limiter,
            permits,
            receipted: permits,
            receipt,
        }
    }

    /// Returns the number of permits that this lease holds; 0 for a probe.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency};
    /// assert_eq!(Concurrency::new(5).try_acquire(4)?.permits(), 4);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Returns the limiter that the permits came from.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency};
    /// let limit = Concurrency::new(5);
    /// assert_eq!(limit.try_acquire(4)?.limiter().in_use(), 4);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn limiter(&self) -> &P::Target {
        &self.limiter
    }

    /// Releases `n` of the permits now, and keeps the rest.
    ///
    /// # Errors
    ///
    /// Returns [`TooFewHeld`] if the lease holds fewer than `n` permits. Nothing is released then.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// # use portcullis_core::leases::TooFewHeld;
    /// let limit = Concurrency::new(5);
    /// let mut lease = limit.try_acquire(4)?;
    /// assert_eq!(lease.release(3), Ok(()));
    /// assert_eq!(lease.release(3), Err(TooFewHeld { held: 1 }));
    /// assert_eq!(limit.available(), 4);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn release(&mut self, n: u32) -> Result<(), TooFewHeld> {
        let Some(rest) = self.permits.checked_sub(n) else {
            return Err(TooFewHeld { held: self.permits });
        };
        self.permits = rest;
        self.receipted = self.receipted.min(rest);
        if n > 0 {
            self.limiter.release(n);
        }
        Ok(())
    }

    /// Refunds `n` unused permits at `now`, and keeps the rest. Returns how many of them count as
    /// never taken.
    ///
    /// For a limiter whose permits return by time, that is as many as it can take back without
    /// exceeding its bound, not counting what was refunded: see [`Limiter::refund_at`] of each
    /// limiter. A lease can refund the permits of one grant. Permits that were
    /// [merged](Self::merge) in from another grant, or [split](Self::split) off, return only by
    /// release or by time.
    ///
    /// # Errors
    ///
    /// Returns [`TooFewHeld`] if the lease holds fewer than `n` permits. Nothing is given back
    /// then.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{FixedWindow, Timestamp};
    /// let limit = FixedWindow::new(1_000, Duration::from_secs(60));
    /// let now = Timestamp::from_secs(9);
    /// // The response could take 600 permits, and took only 150.
    /// let mut lease = limit.try_acquire_at(now, 600)?;
    /// assert_eq!(lease.refund_at(now, 450), Ok(450));
    /// assert_eq!(limit.available_at(now), 850);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn refund_at(&mut self, now: Timestamp, n: u32) -> Result<u32, TooFewHeld> {
        let Some(rest) = self.permits.checked_sub(n) else {
            return Err(TooFewHeld { held: self.permits });
        };
        let receipted = n.min(self.receipted);
        // If the limiter panics in the first call, the lease still holds the permits for the second
        // one.
        self.permits = rest + receipted;
        if n > receipted {
            self.limiter.release(n - receipted);
        }
        self.permits = rest;
        self.receipted -= receipted;
        if receipted == 0 {
            return Ok(0);
        }
        // If the limiter panics, the lease keeps its receipt, for fewer permits.
        let receipt = Receipt::dated(self.receipt.note(), self.receipt.time());
        let refund = self.limiter.refund_at(now, receipted, receipt);
        self.receipt = refund.rest;
        Ok(refund.permits)
    }

    /// Moves `n` of the permits into a lease of their own.
    ///
    /// # Errors
    ///
    /// Returns [`TooFewHeld`] if the lease holds fewer than `n` permits. Nothing has changed then.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency};
    /// let limit = Concurrency::new(5);
    /// let mut lease = limit.try_acquire(4)?;
    /// let part = lease.split(3).unwrap();
    /// drop(lease);
    /// assert_eq!((part.permits(), limit.available()), (3, 2));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn split(&mut self, n: u32) -> Result<Self, TooFewHeld>
    where
        P: Clone,
    {
        let Some(rest) = self.permits.checked_sub(n) else {
            return Err(TooFewHeld { held: self.permits });
        };
        let limiter = self.limiter.clone();
        self.permits = rest;
        // The receipt stays with this lease, unless all permits leave it.
        let mut split = Self::from_grant(limiter, n, Receipt::NONE);
        split.receipted = 0;
        if rest == 0 {
            mem::swap(&mut split.receipt, &mut self.receipt);
            mem::swap(&mut split.receipted, &mut self.receipted);
        }
        self.receipted = self.receipted.min(rest);
        Ok(split)
    }

    /// Adds the permits of `other`, which must belong to the same limiter.
    ///
    /// # Errors
    ///
    /// Returns `other` if it belongs to another limiter, or if both leases together hold more than
    /// `u32::MAX` permits. (Trait objects of one limiter, `&dyn Limiter`, that were created in
    /// different places may count as different limiters.)
    ///
    /// ```
    /// # use portcullis_core::{Concurrency};
    /// let (limit, other) = (Concurrency::new(5), Concurrency::new(1));
    /// let mut lease = limit.try_acquire(4)?;
    /// lease.merge(limit.try_acquire(1)?).unwrap();
    /// assert_eq!(lease.permits(), 5);
    /// let returned = lease.merge(other.try_acquire(1)?).unwrap_err();
    /// assert_eq!(returned.permits(), 1, "of another limiter");
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        // Compares addresses or ids: a limiter that finds its state by a key may have any address.
        let same = core::ptr::eq::<P::Target>(&raw const *self.limiter, &raw const *other.limiter)
            || self.limiter.id().is_some() && self.limiter.id() == other.limiter.id();
        match self.permits.checked_add(other.permits) {
            Some(sum) if same => {
                self.permits = sum;
                if self.receipted == 0 {
                    mem::swap(&mut self.receipt, &mut other.receipt);
                }
                if self.receipted == 0 || self.receipt == other.receipt {
                    self.receipted += other.receipted;
                }
                let _ = other.forget();
                Ok(())
            }
            _ => Err(other),
        }
    }

    /// Ends the lease without releasing its permits, and returns their number.
    ///
    /// Permits of a concurrency limit stay in use until [`Limiter::release`] is called for them. To
    /// pass permits through an interrupt, a queue or a foreign function, a
    /// [`LeasePool`](crate::LeasePool) is safer: its ids cannot be released twice.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter};
    /// let limit = Concurrency::new(5);
    /// let permits = limit.try_acquire(4)?.forget();
    /// assert_eq!(limit.available(), 1);
    /// limit.release(permits);
    /// assert_eq!(limit.available(), 5);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn forget(mut self) -> u32 {
        // The pointer is dropped as usual, because it may own a share of the limiter.
        mem::take(&mut self.permits)
    }
}

impl<P> Drop for Lease<P>
where
    P: Deref,
    P::Target: Limiter,
{
    #[inline]
    fn drop(&mut self) {
        if self.permits > 0 {
            self.limiter.release(self.permits);
        }
    }
}

impl<P> fmt::Debug for Lease<P>
where
    P: Deref,
    P::Target: Limiter,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

/// The error of a lease that holds fewer permits than the caller asked for.
///
/// ```
/// use portcullis_core::Concurrency;
/// use portcullis_core::leases::TooFewHeld;
/// let limit = Concurrency::new(2);
/// assert_eq!(
///     limit.try_acquire(2).unwrap().release(3),
///     Err(TooFewHeld { held: 2 })
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[expect(clippy::exhaustive_structs, reason = "the caller knows the rest")]
pub struct TooFewHeld {
    /// The number of permits that the lease holds.
    pub held: u32,
}

impl fmt::Display for TooFewHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the lease holds {}: ask for at most that many",
            Permits(self.held)
        )
    }
}

impl core::error::Error for TooFewHeld {}

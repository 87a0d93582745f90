//! State: plain cells that one thread owns, beside a limiter's own word. The permits that a slice
//! holds are no longer in the rest, the limiter's own permits. So taking them accesses no shared
//! memory.
//!
//! ```text
//!   the limiter's word           slices, each of one thread
//!  +-------------------+  cut   +------+-----------+  take: have -= n
//!  | the rest          | -----> | have | until     | ----->
//!  |                   |  draw  +------+-----------+
//!  |                   | -----> | have | until     | ----->
//!  |                   | <----- +------+-----------+
//!  +-------------------+  drop: returns what it holds, and its size
//! ```
//!
//! Invariant: a slice holds at most its size. It takes permits that it holds only at a `now` no
//! later than `until`. Its limiter has settled the rest up to `until` (see
//! [`sliced_bucket`](crate::limiters::sliced_bucket)).
//!
//! - *cut*: one compare-exchange on the limiter's word takes `size` permits.
//! - *draw*, if the slice holds too few permits or `until` has passed: one compare-exchange takes
//!   the permits that the slice lacks. A bucket's slice draws more if it lacks any, at most half of
//!   what is then left; if it lacks none, it only settles again.
//! - *drop*: one subtraction returns the permits that the slice holds.
//!
//! A window has no slices, because its permits return all at once at its edge. Permits that a slice
//! has not taken by then would be taken in addition to those of the next window, or be lost. Each
//! slice would have to settle at each edge.

use core::cell::Cell;
use core::fmt;
use core::ops::Deref;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::receipt::{Receipt, Refund};
use crate::limiter::{Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned};
use crate::limiters::concurrency::Concurrency;
use crate::time::timestamp::Timestamp;
use crate::word::Word;
use sealed::{Share, Source};

/// A share of a limiter that one thread owns: a take is a plain load and store.
///
/// Created by [`SlicedBucket::slice_at`](crate::SlicedBucket::slice_at) or [`Concurrency::slice`].
/// `P` points to the limiter: `&L`, `&'static L`, `Arc<L>` or any other `Deref`. A slice can be
/// sent to another thread, but two threads cannot use it at once. A request for more permits than
/// the slice holds draws on the *rest*: the limiter's permits outside of slices. A dropped slice
/// returns the permits that it holds.
///
/// **Bound.** The limiter's own, over all permits taken from its slices and from the rest. It does
/// not depend on how many permits the slices hold or how long they are idle.
///
/// **Cost.** A grant of permits that the slice holds has no atomic access and writes nothing that
/// another thread reads. If the slice holds too few, one compare-exchange takes what it lacks. A
/// bucket's slice then draws more: up to its size, and at most half of what is left. It also needs
/// a compare-exchange from time to time to settle, even if it holds enough: see
/// [`SlicedBucket`](crate::SlicedBucket). Lock-free if the limiter is. A drop is one subtraction,
/// wait-free where that is one instruction. An interrupt may call the limiter or another slice, as
/// another thread may. It cannot use the interrupted slice, which is not `Sync`.
///
/// **Cost to others.** No other caller can take the permits that an idle slice holds, until the
/// slice is dropped. A slice that is leaked ([`core::mem::forget`]) keeps them permanently.
///
/// Source: caches per thread before a shared pool, as in tcmalloc, and the sloppy counters of S.
/// Boyd-Wickizer et al., "An Analysis of Linux Scalability to Many Cores".
///
/// ```
/// use portcullis_core::{Rate, SlicedBucket, Timestamp};
///
/// static LIMIT: SlicedBucket = SlicedBucket::new(Rate::per_second(1_000_000), 10_000);
///
/// let now = Timestamp::from_secs(1);
/// std::thread::scope(|scope| {
///     for _ in 0..2 {
///         scope.spawn(move || {
///             let slice = LIMIT.slice_at(now, 1_000).unwrap();
///             for _ in 0..1_500 {
///                 assert!(slice.try_acquire_at(now, 1).is_ok());
///             }
///         });
///     }
/// });
/// assert_eq!(
///     LIMIT.available_at(now),
///     6_375,
///     "unused permits are back; an eighth of the unsliced half is settled in advance"
/// );
/// ```
///
/// ```compile_fail,E0277
/// fn is_shared_by_threads<T: Sync>() {}
/// is_shared_by_threads::<portcullis_core::parts::Slice<&portcullis_core::SlicedBucket>>();
/// ```
#[must_use = "a slice gives back what it has when it is dropped"]
pub struct Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    limiter: P,
    size: u32,
    have: Cell<u32>,
    until: Cell<Timestamp>,
    /// The number of draws on the rest. A receipt from before the latest draw is worth nothing.
    draws: Cell<u64>,
}

/// A limiter that slices can be cut from: [`SlicedBucket`](crate::SlicedBucket) or [`Concurrency`].
/// Sealed.
///
/// ```
/// use portcullis_core::{Denied, Timestamp};
/// use portcullis_core::parts::{Slice, Sliceable};
///
/// fn a_third_each<L: Sliceable>(
///     limiter: &L,
///     now: Timestamp,
/// ) -> Result<[Slice<&L>; 2], Denied> {
///     let third = u32::try_from(limiter.available_at(now) / 3).unwrap_or(u32::MAX);
///     Ok([
///         Slice::cut_at(limiter, now, third)?,
///         Slice::cut_at(limiter, now, third)?,
///     ])
/// }
/// let limit = portcullis_core::Concurrency::new(9);
/// let slices = a_third_each(&limit, Timestamp::ZERO)?;
/// assert_eq!((slices[0].size(), limit.available()), (3, 3));
/// # Ok::<(), Denied>(())
/// ```
pub trait Sliceable: Source {}

impl<L: Source> Sliceable for L {}

pub(crate) mod sealed {
    use crate::limiter::Limiter;
    use crate::limiter::denied::{Denied, Retry};
    use crate::time::timestamp::Timestamp;

    /// The state of a slice, as its limiter reads and returns it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Share {
        pub size: u32,
        pub have: u32,
        pub until: Timestamp,
        pub draws: u64,
    }

    impl Share {
        /// A slice of no permits, which asks the limiter each time.
        pub(crate) const EMPTY: Self = Self {
            size: 0,
            have: 0,
            until: Timestamp::ZERO,
            draws: 0,
        };

        /// Returns the permits that the slice lacks for a request. A probe counts as a request for
        /// 1.
        #[inline]
        pub(crate) fn lacks(self, n: u32) -> u32 {
            n.max(1).saturating_sub(self.have)
        }
    }

    pub trait Source: Limiter {
        /// Takes a share of `k` permits.
        fn cut(&self, now: Timestamp, k: u32) -> Result<Share, Denied>;
        /// Returns the share after a take of `n` at `now`, if the share holds too few permits or
        /// must settle.
        fn draw(&self, share: Share, now: Timestamp, n: u32) -> Result<Share, Denied>;
        /// Returns the answer of [`draw`](Self::draw), without taking.
        fn peek_for(&self, share: Share, now: Timestamp, n: u32) -> Result<(), Denied>;
        /// Returns the permits that could be taken through the share.
        fn available_for(&self, share: Share, now: Timestamp) -> u64;
        /// Returns the most permits that could ever be available through the share, given the
        /// present settings and slices.
        fn capacity_for(&self, share: Share) -> u64;
        fn retry_for(&self, share: Share, denied: Denied) -> Retry;
        /// Returns the permits that the share holds after a release of `n` to it; `None` if permits
        /// return by time alone.
        fn released(&self, share: Share, n: u32) -> Option<u32>;
        /// Ends the share, and returns its permits.
        fn end(&self, share: Share);
    }
}

impl<P> Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    /// Cuts a slice of `k` permits at `now`, and keeps the given pointer to the limiter.
    ///
    /// It does the same as [`SlicedBucket::slice_at`](crate::SlicedBucket::slice_at) and
    /// [`Concurrency::slice`], which keep a reference. Pass an `Arc`, for example, if the slice
    /// goes to a thread that outlives this one.
    ///
    /// # Errors
    ///
    /// As these methods. The pointer is then dropped.
    ///
    /// ```
    /// use portcullis_core::{Rate, SlicedBucket, Timestamp};
    /// use portcullis_core::parts::Slice;
    /// use std::sync::Arc;
    ///
    /// let limit = Arc::new(SlicedBucket::new(Rate::per_second(100), 100));
    /// let slice = Slice::cut_at(Arc::clone(&limit), Timestamp::ZERO, 20)?;
    /// std::thread::spawn(move || {
    ///     assert!(slice.try_acquire_at(Timestamp::ZERO, 15).is_ok())
    /// })
    /// .join()
    /// .unwrap();
    /// assert_eq!(
    ///     limit.available_at(Timestamp::ZERO),
    ///     78,
    ///     "an eighth of the unsliced half is settled in advance"
    /// );
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn cut_at(limiter: P, now: Timestamp, k: u32) -> Result<Self, Denied> {
        match limiter.cut(now, k) {
            Ok(Share {
                size,
                have,
                until,
                draws,
            }) => Ok(Self {
                limiter,
                size,
                have: Cell::new(have),
                until: Cell::new(until),
                draws: Cell::new(draws),
            }),
            Err(denied) => Err(denied),
        }
    }

    /// Takes `n` permits at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    /// A request for more than the [size](Self::size) is granted if the rest has the permits that
    /// the slice lacks.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the slice and the rest together have fewer than `n` permits, or
    /// [`Denied::ExceedsCapacity`] if they can never have `n` with the present limit and slices.
    /// Nothing changes then.
    ///
    /// # Cost
    ///
    /// A load and a store if the slice holds `n` permits. Otherwise see the type's documentation.
    /// Never divides, blocks or panics.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket, Timestamp};
    /// let limit = SlicedBucket::builder(Rate::per_second(10), 10)
    ///     .initial(9)
    ///     .build()
    ///     .unwrap();
    /// let now = Timestamp::ZERO;
    /// let slice = limit.slice_at(now, 4)?;
    /// assert!(slice.try_acquire_at(now, 3).is_ok());
    /// assert_eq!((slice.held(), limit.available_at(now)), (1, 5));
    /// // The slice holds 1 and lacks 2 permits. It draws these, and 1 of the 3 that are left.
    /// assert!(slice.try_acquire_at(now, 3).is_ok());
    /// assert_eq!((slice.held(), limit.available_at(now)), (1, 2));
    /// assert!(slice.try_acquire_at(now, 5).is_err());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the permits that could be taken through this slice at `now`: those that it holds and
    /// those of the rest. Divides.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket, Timestamp};
    /// let limit = SlicedBucket::builder(Rate::per_second(10), 10)
    ///     .initial(9)
    ///     .build()
    ///     .unwrap();
    /// let slice = limit.slice_at(Timestamp::ZERO, 4)?;
    /// assert_eq!(
    ///     (
    ///         slice.available_at(Timestamp::ZERO),
    ///         limit.available_at(Timestamp::ZERO)
    ///     ),
    ///     (9, 5)
    /// );
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter.available_for(self.share(), now)
    }

    /// Returns the number of permits that the slice was cut with. It never holds more.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(Concurrency::new(10).slice(4)?.size(), 4);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns the permits that the slice holds.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// let limit = Concurrency::new(10);
    /// let slice = limit.slice(4)?;
    /// let _lease = slice.try_acquire(1)?;
    /// assert_eq!(slice.held(), 3);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn held(&self) -> u32 {
        self.have.get()
    }

    /// Returns the limiter that the slice was cut from.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(Concurrency::new(10).slice(4)?.limiter().available(), 6);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn limiter(&self) -> &P::Target {
        &self.limiter
    }

    #[inline(always)]
    fn share(&self) -> Share {
        Share {
            size: self.size,
            have: self.have.get(),
            until: self.until.get(),
            draws: self.draws.get(),
        }
    }

    /// Returns whether the slice holds enough permits and may take them at `now`.
    #[inline(always)]
    fn has(&self, now: Timestamp, n: u32) -> bool {
        now <= self.until.get() && n.max(1) <= self.have.get()
    }

    /// Returns a receipt that identifies how the last take left the slice. If the slice is still
    /// the same, no take has come after it: a take lowers `have`, or draws permits and increments
    /// `draws`.
    #[inline(always)]
    fn note(&self) -> Receipt {
        Receipt::dated(self.have.get().into(), self.draws.get())
    }

    #[cold]
    #[inline(never)]
    fn draw(limiter: &P::Target, share: Share, now: Timestamp, n: u32) -> Result<Share, Denied> {
        limiter.draw(share, now, n)
    }

    /// Refunds the last take, up to the slice's size.
    fn undo(&self, n: u32, receipt: Receipt) -> Refund {
        let have = self.have.get();
        if receipt != self.note() {
            return receipt.refunded(0);
        }
        // Permits beyond the slice's size were drawn for this take. They do not return: the rest
        // may have settled with other slices on the basis that they are gone.
        let back = n.min(self.size - have);
        self.have.set(have + back);
        self.note().refunded(back)
    }
}

impl<P, W> Slice<P>
where
    P: Deref<Target = Concurrency<W>>,
    W: Word,
{
    /// Takes `n` permits and holds them until the lease is dropped, which releases them to the
    /// slice. See [`Concurrency::try_acquire`].
    ///
    /// # Errors
    ///
    /// As [`Concurrency::try_acquire`].
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// let limit = Concurrency::new(10);
    /// let slice = limit.slice(4)?;
    /// let lease = slice.try_acquire(6)?;
    /// assert_eq!((slice.held(), limit.available()), (0, 4));
    /// drop(lease);
    /// assert_eq!((slice.held(), limit.available()), (4, 6));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, Timestamp::ZERO, n)
    }
}

impl<P> Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    #[inline(always)]
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if self.has(now, n) {
            self.have.set(self.have.get() - n);
            return Ok(self.note());
        }
        let share = Self::draw(&self.limiter, self.share(), now, n)?;
        debug_assert!(share.have <= self.size);
        self.have.set(share.have);
        self.until.set(share.until);
        self.draws.set(share.draws);
        Ok(self.note())
    }

    #[inline(always)]
    fn look(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        if self.has(now, n) {
            return Ok(());
        }
        self.limiter.peek_for(self.share(), now, n)
    }
}

impl<P> Limiter for Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if ask.is_look() {
            self.look(now, n).into()
        } else {
            self.take(now, n).into()
        }
    }

    /// Refunds for a slice of a bucket permits up to the slice's size if nothing was taken from the
    /// slice since; otherwise none. For a slice of a concurrency limit, releases all permits.
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        let (n, receipt) = match back {
            Back::Release { permits } => (permits, None),
            Back::Refund {
                permits, receipt, ..
            } => (permits, Some(receipt)),
            _ => return Returned::NOTHING,
        };
        let released = self.limiter.released(self.share(), n);
        if let Some(have) = released {
            self.have.set(have);
        }
        match receipt {
            Some(receipt) if released.is_some() => receipt.refunded(n).into(),
            Some(receipt) => self.undo(n, receipt).into(),
            None => Returned::NOTHING,
        }
    }

    #[inline(always)]
    fn read(&self, read: Read<'_>) -> Reading {
        Reading {
            available: self.available_at(read.now()),
            capacity: self.limiter.capacity_for(self.share()),
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry_for(self.share(), denied)
    }

    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

impl<P> Drop for Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    fn drop(&mut self) {
        self.limiter.end(self.share());
    }
}

impl<P> fmt::Debug for Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice")
            .field("size", &self.size)
            .field("held", &self.have)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl<W: Word> Concurrency<W> {
    /// Takes `k` permits into a slice, whose owner takes and releases them without an atomic
    /// access.
    ///
    /// The permits stay in use until the slice is dropped. At least one permit stays outside of
    /// slices, unless the limit is lowered. While a slice is cut, one more permit than `k` is taken
    /// for a moment. With `k = 0` the slice holds nothing, and asks the limiter each time.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if `k` permits or fewer are available, or [`Denied::ExceedsCapacity`]
    /// if `k` is not less than the limit.
    ///
    /// # Memory ordering
    ///
    /// As [`try_acquire`](Self::try_acquire) and a release. What was written before a permit was
    /// released to the slice is visible to a take that follows the slice's return of that permit.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Denied};
    /// let limit = Concurrency::new(10);
    /// let slice = limit.slice(8)?;
    /// assert_eq!(limit.available(), 2);
    /// assert!(limit.slice(2).is_err(), "one permit stays outside of slices");
    /// assert!(matches!(
    ///     limit.slice(10),
    ///     Err(Denied::ExceedsCapacity { capacity: 9, .. })
    /// ));
    /// drop(slice);
    /// assert_eq!(limit.available(), 10);
    /// # Ok::<(), Denied>(())
    /// ```
    pub fn slice(&self, k: u32) -> Result<Slice<&Self>, Denied> {
        Slice::cut_at(self, Timestamp::ZERO, k)
    }
}

impl<W: Word> Source for Concurrency<W> {
    fn cut(&self, now: Timestamp, k: u32) -> Result<Share, Denied> {
        if k == 0 {
            return Ok(Share::EMPTY);
        }
        match self.take_at(now, k.saturating_add(1)) {
            Ok(_) => {
                // The take was of one permit more than `k`, so that two concurrent cuts cannot both
                // leave the same permit to the rest.
                Limiter::release(self, 1);
                Ok(Share {
                    size: k,
                    have: k,
                    until: Timestamp::MAX,
                    draws: 0,
                })
            }
            Err(Denied::ExceedsCapacity { capacity, .. }) => Err(Denied::ExceedsCapacity {
                permits: k,
                capacity: capacity.saturating_sub(1),
            }),
            Err(_) => Err(Denied::Exhausted { now, permits: k }),
        }
    }

    fn draw(&self, share: Share, now: Timestamp, n: u32) -> Result<Share, Denied> {
        let lack = if n == 0 { 0 } else { share.lacks(n) };
        match self.take_at(now, lack) {
            Ok(_) => Ok(Share {
                have: share.have + lack - n,
                ..share
            }),
            Err(_) => Err(self.denied(now, n)),
        }
    }

    fn peek_for(&self, share: Share, now: Timestamp, n: u32) -> Result<(), Denied> {
        if share.lacks(n) <= self.available() {
            Ok(())
        } else {
            Err(self.denied(now, n))
        }
    }

    fn available_for(&self, share: Share, _: Timestamp) -> u64 {
        u64::from(share.have) + u64::from(Self::available(self))
    }

    fn capacity_for(&self, share: Share) -> u64 {
        self.limit().max(share.have).into()
    }

    fn retry_for(&self, _: Share, denied: Denied) -> Retry {
        Limiter::retry(self, denied)
    }

    #[inline]
    fn released(&self, share: Share, n: u32) -> Option<u32> {
        let have = share.have.saturating_add(n);
        if have > share.size {
            Limiter::release(self, have - share.size);
        }
        Some(have.min(share.size))
    }

    fn end(&self, share: Share) {
        if share.have > 0 {
            Limiter::release(self, share.have);
        }
    }
}

impl<W: Word> Concurrency<W> {
    /// Returns why a slice that lacks permits is denied `n`.
    fn denied(&self, now: Timestamp, n: u32) -> Denied {
        match self.limit() {
            capacity if n.max(1) > capacity => Denied::ExceedsCapacity {
                permits: n,
                capacity,
            },
            _ => Denied::Exhausted { now, permits: n },
        }
    }
}

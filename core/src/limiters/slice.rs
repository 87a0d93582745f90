//! State: plain cells that one thread owns, beside a limiter's own word. What a slice holds has
//! left the rest, so that taking it asks nobody.
//!
//! ```text
//!   the limiter's word           slices, each of one thread
//!  +-------------------+  cut   +------+-----------+  take: have -= n
//!  | the rest          | -----> | have | until     | ----->
//!  |                   |  draw  +------+-----------+
//!  |                   | -----> | have | until     | ----->
//!  |                   | <----- +------+-----------+
//!  +-------------------+  drop: what it has, and its size
//! ```
//!
//! Invariant: a slice has at most its size, and takes from what it has at no `now` later than
//! `until`, up to which its limiter has settled with the rest (see
//! [`sliced_bucket`](crate::limiters::sliced_bucket)).
//!
//! - *cut*: one exchange on the limiter's word takes `size` permits.
//! - *draw*, where it has too few, or `until` has passed: one exchange takes what it lacks, and up
//!   to half of what is left then; or settles anew.
//! - *drop*: one subtraction gives back what it has.
//!
//! A window has no slices: its permits come back all at once at its edge, so that what a slice has
//! not taken by then would be taken beside those of the next window, or be lost; each slice would
//! have to settle at each edge.

use core::cell::Cell;
use core::fmt;
use core::ops::Deref;

use crate::{
    Concurrency, Denied, Lease, Limiter, LimiterId, Receipt, Refund, Retry, Timestamp, Word,
};
use sealed::{Share, Source};

/// A share of a limiter that one thread owns: taking from it is a plain load and store.
///
/// From [`SlicedBucket::slice_at`](crate::SlicedBucket::slice_at) or [`Concurrency::slice`]; `P`
/// points to the limiter: `&L`, `&'static L`, `Arc<L>` or any other `Deref`. It can be sent to
/// another thread, but not be used by two. A request for more than it has draws on the limiter.
/// Dropped, it gives back what it has.
///
/// **Bound.** The limiter's own, over all that its slices and everybody else take: whatever the
/// slices have, and however long they do nothing.
///
/// **Cost.** A grant out of what it has writes nothing that another thread reads: no atomic access.
/// When that is used up, one compare-exchange takes what is lacking, and as much again as up to
/// half of the rest allows. (Of a bucket also once in a while, to settle, if it is not used up: see
/// [`SlicedBucket`](crate::SlicedBucket).) Lock-free where the limiter is; a drop is one
/// subtraction, wait-free where that is one instruction. A call that interrupts one on another
/// slice, or on the limiter, is as good as another thread; the slice itself is out of reach of an
/// interrupt, not being `Sync`.
///
/// **What it costs the others.** What an idle slice has nobody else can take, until it is dropped.
/// A slice that is forgotten ([`core::mem::forget`]) keeps it for ever.
///
/// Source: caches for each thread before a shared pool, as in tcmalloc, and the sloppy counters of
/// S. Boyd-Wickizer et al., "An Analysis of Linux Scalability to Many Cores".
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
///     "what they had left is back; an eighth of half is settled in advance"
/// );
/// ```
///
/// ```compile_fail,E0277
/// fn is_shared_by_threads<T: Sync>() {}
/// is_shared_by_threads::<portcullis_core::Slice<&portcullis_core::SlicedBucket>>();
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
    /// Draws on the rest so far. A receipt of an earlier one is worth nothing.
    draws: Cell<u64>,
}

/// Limiters that slices can be cut from: [`SlicedBucket`](crate::SlicedBucket) and [`Concurrency`].
/// Sealed.
///
/// ```
/// use portcullis_core::{Denied, Slice, Sliceable, Timestamp};
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
    use crate::{Denied, Limiter, Retry, Timestamp};

    /// What a slice is told of, and tells.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Share {
        pub size: u32,
        pub have: u32,
        pub until: Timestamp,
        pub draws: u64,
    }

    impl Share {
        /// For a slice of no permits, which asks the limiter each time.
        pub(crate) const EMPTY: Self = Self {
            size: 0,
            have: 0,
            until: Timestamp::ZERO,
            draws: 0,
        };

        /// The permits that it lacks for a request; a probe asks as a request for 1 would.
        #[inline]
        pub(crate) fn lacks(self, n: u32) -> u32 {
            n.max(1).saturating_sub(self.have)
        }
    }

    pub trait Source: Limiter {
        /// Takes a share of `k` permits.
        fn cut(&self, now: Timestamp, k: u32) -> Result<Share, Denied>;
        /// What the share is after a take of `n` at `now`, which needs more than it has, or to
        /// settle.
        fn draw(&self, share: Share, now: Timestamp, n: u32) -> Result<Share, Denied>;
        /// What [`draw`](Self::draw) would say.
        fn peek_for(&self, share: Share, now: Timestamp, n: u32) -> Result<(), Denied>;
        /// The permits that could be taken by way of the share.
        fn available_for(&self, share: Share, now: Timestamp) -> u64;
        /// The most that could ever be, as things are now.
        fn capacity_for(&self, share: Share) -> u64;
        fn retry_for(&self, share: Share, denied: Denied) -> Retry;
        /// What the share has after `n` permits have been released to it; `None` if they come back
        /// by time alone.
        fn released(&self, share: Share, n: u32) -> Option<u32>;
        /// Ends the share.
        fn give_back(&self, share: Share);
    }
}

impl<P> Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    /// Cuts a slice of `k` permits at `now`, as
    /// [`SlicedBucket::slice_at`](crate::SlicedBucket::slice_at) and [`Concurrency::slice`] do,
    /// that keeps the pointer that it is given: an `Arc`, say, for a thread that outlives this one.
    ///
    /// # Errors
    ///
    /// As there (the pointer is dropped).
    ///
    /// ```
    /// use portcullis_core::{Rate, Slice, SlicedBucket, Timestamp};
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
    ///     "an eighth of half is settled in advance"
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

    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is answered as a request for
    /// 1 would be. A request for more than the [size](Self::size) is granted if the rest has what
    /// is lacking.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the slice and the rest together have fewer,
    /// [`Denied::ExceedsCapacity`] if they never will as things are now. Nothing has changed then.
    ///
    /// # Cost
    ///
    /// A load and a store, if the slice has `n`; see the type's documentation. Never divides,
    /// blocks or panics.
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
    /// // It takes 1 that it has and 2 that it lacks, and draws 1 of the 3 that are left.
    /// assert!(slice.try_acquire_at(now, 3).is_ok());
    /// assert_eq!((slice.held(), limit.available_at(now)), (1, 2));
    /// assert!(slice.try_acquire_at(now, 5).is_err());
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// The permits that could be taken by way of this slice at `now`: what it has, and what the
    /// rest has. Divides.
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

    /// The permits that it was cut with, and the most that it has.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(Concurrency::new(10).slice(4)?.size(), 4);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The permits that it has.
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

    /// The limiter that it was cut from.
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

    /// Whether the slice has what is asked for, and may take it at `now`.
    #[inline(always)]
    fn has(&self, now: Timestamp, n: u32) -> bool {
        now <= self.until.get() && n.max(1) <= self.have.get()
    }

    /// How the last take has left the slice: there is no other take after it if it is still so. (A
    /// draw comes with each take from more than the slice had, so that what it has falls between
    /// two draws.)
    #[inline(always)]
    fn note(&self) -> Receipt {
        Receipt::dated(self.have.get().into(), self.draws.get())
    }

    #[cold]
    #[inline(never)]
    fn draw(limiter: &P::Target, share: Share, now: Timestamp, n: u32) -> Result<Share, Denied> {
        limiter.draw(share, now, n)
    }

    /// Takes the last take back, as far as there is room.
    fn undo(&self, n: u32, receipt: Receipt) -> Refund {
        let have = self.have.get();
        if receipt != self.note() {
            return receipt.refunded(0);
        }
        // What it had beyond its size was drawn for this take. The rest may be settled with other
        // slices on its being gone.
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
    /// Takes `n` permits until the lease is dropped, which gives them back to the slice: see
    /// [`Concurrency::try_acquire`].
    ///
    /// # Errors
    ///
    /// As there.
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

impl<P> Limiter for Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
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

    #[inline]
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        if self.has(now, n) {
            return Ok(());
        }
        self.limiter.peek_for(self.share(), now, n)
    }

    /// Of a bucket's slice: all of them, if nothing was taken from the slice since, and up to its
    /// size; else none. Of a concurrency limit's: a release.
    fn refund_at(&self, _: Timestamp, n: u32, receipt: Receipt) -> Refund {
        match self.limiter.released(self.share(), n) {
            Some(have) => {
                self.have.set(have);
                receipt.refunded(n)
            }
            None => self.undo(n, receipt),
        }
    }

    #[inline]
    fn release(&self, n: u32) {
        if let Some(have) = self.limiter.released(self.share(), n) {
            self.have.set(have);
        }
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.limiter.capacity_for(self.share())
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry_for(self.share(), denied)
    }
}

impl<P> Drop for Slice<P>
where
    P: Deref,
    P::Target: Sliceable,
{
    fn drop(&mut self) {
        self.limiter.give_back(self.share());
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
    /// access. They stay in use until it is dropped.
    ///
    /// At least one permit stays outside of slices, for everybody else (unless the limit is
    /// lowered). While a slice is cut, one permit more than its own is taken for a moment. With
    /// `k = 0` the slice has nothing, and asks the limiter each time.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if no more than `k` permits are available, [`Denied::ExceedsCapacity`]
    /// if `k` is not less than the limit.
    ///
    /// # Memory ordering
    ///
    /// As [`try_acquire`](Self::try_acquire) and a release: what was written before a permit was
    /// given back to the slice is written before the slice gives it back.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Denied};
    /// let limit = Concurrency::new(10);
    /// let slice = limit.slice(8)?;
    /// assert_eq!(limit.available(), 2);
    /// assert!(limit.slice(2).is_err(), "the last one is for everybody");
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
                // Taken, so that of two who cut at once not both leave the same one.
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

    fn give_back(&self, share: Share) {
        if share.have > 0 {
            Limiter::release(self, share.have);
        }
    }
}

impl<W: Word> Concurrency<W> {
    /// Why a slice is denied `n`, of which it lacks some.
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

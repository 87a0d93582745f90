//! Which stripe of a striped limiter a call uses, and how much a stripe draws.

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::receipt::Plan;
use crate::limiter::{Answer, Ask, Back, Hints, Limiter, LimiterId, Read, Reading, Returned};
use crate::time::timestamp::Timestamp;
use sealed::Stripes;

/// A limiter whose permits lie in stripes: [`StripedBucket`](crate::StripedBucket) and
/// [`StripedConcurrency`](crate::StripedConcurrency). Sealed.
///
/// ```
/// use portcullis_core::{Rate, StripedBucket};
/// use portcullis_core::parts::{Stripe, Striped};
///
/// fn of_cpu<L: Striped>(limiter: &L, cpu: usize) -> Stripe<'_, L> {
///     Stripe::of(limiter, cpu)
/// }
/// static LIMIT: StripedBucket = StripedBucket::new(Rate::per_second(5), 10);
/// assert_eq!(of_cpu(&LIMIT, 3).index(), 3);
/// ```
pub trait Striped: Stripes {}

impl<L: Stripes> Striped for L {}

pub(crate) mod sealed {
    use crate::limiter::denied::Denied;
    use crate::limiter::detail::Detail;
    use crate::limiter::receipt::{Receipt, Refund};
    use crate::limiter::{Limiter, LimiterExt};
    use crate::time::timestamp::Timestamp;

    pub trait Stripes: Limiter {
        /// The number of stripes, a power of two.
        const STRIPES: usize;
        /// As `take_at`, on a stripe less than `STRIPES`.
        fn take_on(&self, stripe: usize, now: Timestamp, n: u32) -> Result<Receipt, Denied>;
        /// As `peek_at`, on a stripe less than `STRIPES`.
        fn peek_on(&self, stripe: usize, now: Timestamp, n: u32) -> Result<(), Denied>;

        /// As `available_at`, for a request on a stripe less than `STRIPES`.
        fn available_on(&self, stripe: usize, now: Timestamp) -> u64 {
            let _ = stripe;
            self.available_at(now)
        }

        /// As `explain_at`, for a request on a stripe less than `STRIPES`.
        fn explain_on(&self, stripe: usize, now: Timestamp, n: u32) -> Detail {
            let _ = stripe;
            self.explain_at(now, n)
        }

        /// As `release`, to a stripe less than `STRIPES`.
        #[inline]
        fn release_on(&self, stripe: usize, n: u32) {
            let _ = stripe;
            self.release(n);
        }

        /// As `refund_at`, to a stripe less than `STRIPES` if it does not matter which it is.
        fn refund_on(&self, stripe: usize, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
            let _ = stripe;
            self.refund_at(now, n, receipt)
        }
    }
}

/// A striped limiter, used through one of its stripes. Created by [`Stripe::of`].
///
/// It is the same limiter: it has the same permits and the same bound, and any number of threads
/// and interrupts may use one stripe at once. Those that use different stripes do not contend. A
/// program without `std` names the stripe, for example by the number of the core; with `std` a
/// striped limiter itself chooses one for each thread.
///
/// ```
/// use portcullis_core::{Rate, StripedBucket, Timestamp};
/// use portcullis_core::parts::Stripe;
///
/// static LIMIT: StripedBucket<2> = StripedBucket::new(Rate::per_second(1_000_000), 10_000);
/// static ON_CORE_0: Stripe<'static, StripedBucket<2>> = Stripe::of(&LIMIT, 0);
/// static ON_CORE_1: Stripe<'static, StripedBucket<2>> = Stripe::of(&LIMIT, 1);
///
/// let now = Timestamp::ZERO;
/// assert!(ON_CORE_0.try_acquire_at(now, 4_000).is_ok());
/// assert!(ON_CORE_1.try_acquire_at(now, 6_000).is_ok());
/// assert!(ON_CORE_0.try_acquire_at(now, 1).is_err());
/// ```
#[derive(Debug)]
pub struct Stripe<'a, L> {
    limiter: &'a L,
    index: usize,
}

impl<'a, L: Striped> Stripe<'a, L> {
    /// Returns the limiter, used through the stripe `index`. An index beyond the number of stripes
    /// names one of them too, by its low bits.
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket};
    /// # use portcullis_core::parts::Stripe;
    /// let limit: StripedBucket<4> = StripedBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(Stripe::of(&limit, 6).index(), 2);
    /// ```
    pub const fn of(limiter: &'a L, index: usize) -> Self {
        Self {
            limiter,
            index: index & (L::STRIPES - 1),
        }
    }

    /// Returns the number of the stripe.
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket};
    /// # use portcullis_core::parts::Stripe;
    /// let limit: StripedBucket<4> = StripedBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(Stripe::of(&limit, 1).index(), 1);
    /// ```
    pub const fn index(&self) -> usize {
        self.index
    }

    /// Returns the limiter.
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket};
    /// # use portcullis_core::parts::Stripe;
    /// let limit: StripedBucket<4> = StripedBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(Stripe::of(&limit, 1).limiter().burst(), 10);
    /// ```
    pub const fn limiter(&self) -> &'a L {
        self.limiter
    }

    /// Takes `n` permits at `now`. As the limiter's method, on this stripe.
    ///
    /// # Errors
    ///
    /// As the limiter.
    ///
    /// ```
    /// # use portcullis_core::{Rate, StripedBucket, Timestamp};
    /// # use portcullis_core::parts::Stripe;
    /// let limit: StripedBucket<4> = StripedBucket::new(Rate::per_second(5), 10);
    /// assert!(Stripe::of(&limit, 1).try_acquire_at(Timestamp::ZERO, 10).is_ok());
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }
}

impl<L> Clone for Stripe<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Stripe<'_, L> {}

impl<L: Striped> Limiter for Stripe<'_, L> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        match ask.detail() {
            None if ask.is_look() => self.limiter.peek_on(self.index, now, n).into(),
            Some(seen) if ask.is_look() => {
                let detail = self.limiter.explain_on(self.index, now, n);
                seen.set(Some(detail));
                match detail.decision {
                    Ok(()) => Answer::Possible(Plan::NONE),
                    Err(denied) => Answer::Denied(denied),
                }
            }
            _ => self.limiter.take_on(self.index, now, n).into(),
        }
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } => {
                self.limiter.release_on(self.index, permits);
                Returned::NOTHING
            }
            Back::Refund {
                now,
                permits,
                receipt,
                ..
            } => {
                let refund = self.limiter.refund_on(self.index, now, permits, receipt);
                refund.into()
            }
            back => self.limiter.give_back(back),
        }
    }

    fn read(&self, read: Read<'_>) -> Reading {
        let available = self.limiter.available_on(self.index, read.now());
        Reading {
            available,
            ..self.limiter.read(read)
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }

    /// The identity of the limiter: all of its stripes have the same permits.
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        self.limiter.id()
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

/// The bits of a stripe's index.
pub(crate) const INDEX_BITS: u32 = 6;
/// The smallest draw.
pub(crate) const LEAST: u64 = if cfg!(portcullis_loom) { 1 } else { 8 };
/// The largest draw, where the word has room for it.
pub(crate) const LARGEST: u64 = 4_096;
/// A draw is at most the part `1 / (PARTS * shares)` of what the rest has.
pub(crate) const PARTS: u64 = 4;
/// The number of stripes by default: more than most machines have cores. Threads use no more of
/// them than there are cores.
pub(crate) const DEFAULT: usize = 32;

/// Returns among how many stripes the permits are shared: a draw is one of so many parts. With more
/// stripes a draw would be too small to be worth it, although most of them are idle.
pub(crate) const fn shares(stripes: usize) -> u64 {
    if stripes < SHARES {
        stripes as u64
    } else {
        SHARES as u64
    }
}

const SHARES: usize = 8;

/// Fails to compile if a limiter cannot have so many stripes.
pub(crate) const fn check(stripes: usize) {
    assert!(
        stripes.is_power_of_two() && stripes <= 1 << INDEX_BITS,
        "the number of stripes is a power of two, at most 64"
    );
}

/// Returns the number of the stripe that this thread uses: threads are numbered in the order of
/// their first calls, and start again at 0 when there is one for each core. Without threads, 0.
#[inline(always)]
pub(crate) fn of_this_thread() -> usize {
    #[cfg(all(feature = "std", not(any(portcullis_loom, portcullis_explore))))]
    {
        threads::number()
    }
    #[cfg(any(not(feature = "std"), portcullis_loom, portcullis_explore))]
    {
        0
    }
}

#[cfg(all(feature = "std", not(any(portcullis_loom, portcullis_explore))))]
mod threads {
    use core::cell::Cell;

    use crate::sync::atomic::AtomicUsize;
    use crate::sync::atomic::Ordering::Relaxed;

    /// The number of a thread that has no number yet.
    const NONE: usize = usize::MAX;

    std::thread_local! {
        // Constant and without a destructor, so an access is one load, and may be made in a signal
        // handler and while the thread ends.
        static NUMBER: Cell<usize> = const { Cell::new(NONE) };
    }

    #[inline(always)]
    pub(super) fn number() -> usize {
        match NUMBER.get() {
            NONE => first(),
            number => number,
        }
    }

    /// Returns the number of cores that the process may use.
    fn cores() -> usize {
        #[cfg(target_os = "linux")]
        {
            crate::clock::system::cores()
        }
        // The standard library's way allocates, and the call may be in a signal handler.
        #[cfg(not(target_os = "linux"))]
        {
            super::DEFAULT
        }
    }

    #[cold]
    #[inline(never)]
    fn first() -> usize {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut number = NEXT.fetch_add(1, Relaxed);
        if number >= super::SHARES {
            // A power of two, as the number of stripes. At least as many as have a share: the cores
            // of the process are known only if its first thread may use them all.
            number %= cores().next_power_of_two().max(super::SHARES);
        }
        NUMBER.set(number);
        number
    }
}

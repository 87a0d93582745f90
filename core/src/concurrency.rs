//! State: one word with all that a decision needs, so that a limit can change while permits come and go.
//!
//! ```text
//! bits    2f+1      f+2   f+1        2   1     0
//! +--------------------+--------------+-----+-----+
//! |       in use       |    limit     |  0  |  0  |     f = 31 bits of a 64-bit word, 15 of a 32-bit one
//! +--------------------+--------------+-----+-----+
//! ```
//!
//! Invariant: `in use` is the permits that are out, and a take leaves it at most at the limit that it saw in the same word. A
//! take adds to `in use` by compare-exchange, a release subtracts from it in one fetch-sub, a resize replaces `limit` by
//! compare-exchange. Nothing stands above `in use`, so that arithmetic on it cannot reach another field.
//!
//! The two low bits are kept clear for the marks of a queue (someone waits; closed), which a release would learn of from the
//! value that its fetch-sub returns, at no further cost.

use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, NativeWord, Word};
use crate::{Denied, Idle, Lease, Limiter, Retry, Setting, SettingsError, Timestamp};

/// A concurrency limit: at most `limit` permits in use at once. Each comes back when its [`Lease`] is dropped.
///
/// **Bound.** No take leaves more permits in use than the limit at that moment. After the limit was lowered, those that
/// were already out stay out, and none is granted until fewer than the new limit are.
///
/// **Cost.** A take is one load and one compare-exchange, a release one fetch-sub. A denial writes nothing. Taking is lock-free,
/// releasing wait-free: both may run in an interrupt handler that pre-empts the other.
///
/// **Ordering.** A take that follows a release sees what was written before that release, as with a semaphore: with a limit of 1
/// the permit may guard data.
///
/// **Limit.** 0 (nothing is granted) to [`max_limit`](Self::max_limit): 2^30 - 1, or 2^14 - 1 with a 32-bit word.
///
/// Source: E. W. Dijkstra's counting semaphore; the concurrency limiter of the .NET rate limiting proposal.
///
/// ```
/// use portcullis_core::Concurrency;
///
/// static LIMIT: Concurrency = Concurrency::new(2);
///
/// let one = LIMIT.try_acquire(1)?;
/// let other = LIMIT.try_acquire(1)?;
/// assert!(LIMIT.try_acquire(1).is_err());
/// drop(one);
/// assert_eq!(LIMIT.available(), 1);
/// # drop(other);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct Concurrency<W: Word = NativeWord> {
    state: AtomicWord<W>,
}

impl Concurrency {
    const_unless_loom! {
        /// At most `limit` permits in use, 1 to [`max_limit`](Self::max_limit).
        ///
        /// # Panics
        ///
        /// Where [`try_new`](Self::try_new) would return an error; in a constant or a static, that is a compile error.
        ///
        /// ```
        /// # use portcullis_core::Concurrency;
        /// static LIMIT: Concurrency = Concurrency::new(100);
        /// ```
        pub const fn new(limit: u32) -> Self {
            match Self::try_new(limit) {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }
}

impl<W: Word> Concurrency<W> {
    const_unless_loom! {
        /// At most `limit` permits in use, 1 to [`max_limit`](Self::max_limit), on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] if `limit` is 0 or above the bound.
        ///
        /// ```
        /// # use portcullis_core::Concurrency;
        /// assert!(Concurrency::<u32>::try_new(16_383).is_ok());
        /// assert_eq!(Concurrency::<u32>::try_new(16_384).unwrap_err().to_string(), "limit is too large: at most 16383");
        /// ```
        pub const fn try_new(limit: u32) -> Result<Self, SettingsError> {
            if limit == 0 {
                return Err(SettingsError::Zero { setting: Setting::Limit });
            }
            if limit > Self::max_limit() {
                return Err(SettingsError::TooLarge { setting: Setting::Limit, max: Self::max_limit() as u64 });
            }
            Ok(Self { state: AtomicWord::new((limit as u64) << LIMIT_AT) })
        }
    }

    /// The largest limit that the word carries: 2^30 - 1, or 2^14 - 1 with a 32-bit word.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(Concurrency::<u32>::max_limit(), 16_383);
    /// ```
    pub const fn max_limit() -> u32 {
        (1 << (Self::FIELD - 1)) - 1
    }

    /// Bits of each of the two counts.
    const FIELD: u32 = (W::BITS - LIMIT_AT) / 2;
    const IN_USE_AT: u32 = LIMIT_AT + Self::FIELD;

    /// Takes `n` permits, until the lease is dropped. With `n = 0` it takes nothing, and is answered as a request for 1 would be.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], or [`Denied::ExceedsCapacity`] if `n` is more than the limit. (A denial of a concurrency limit
    /// carries [`Timestamp::ZERO`]: no clock is involved.)
    ///
    /// # Memory ordering
    ///
    /// Acquire on success: sees what was written before the releases that made room.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Retry};
    /// let limit = Concurrency::new(3);
    /// let lease = limit.try_acquire(2).unwrap();
    /// assert_eq!(limit.try_acquire(2).unwrap_err().retry(&limit), Retry::OnRelease);
    /// drop(lease);
    /// assert!(limit.try_acquire(2).is_ok());
    /// ```
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, Timestamp::ZERO, n)
    }

    /// The permits that could be taken.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(Concurrency::new(3).available(), 3);
    /// ```
    pub fn available(&self) -> u32 {
        let (in_use, limit) = Self::split(self.state.load(Relaxed));
        limit.saturating_sub(in_use)
    }

    /// The permits that are out. More than the limit, if that was lowered since.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// let limit = Concurrency::new(3);
    /// let _lease = limit.try_acquire(2).unwrap();
    /// assert_eq!(limit.in_use(), 2);
    /// ```
    pub fn in_use(&self) -> u32 {
        Self::split(self.state.load(Relaxed)).0
    }

    /// The limit as it is now.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(Concurrency::new(3).limit(), 3);
    /// ```
    pub fn limit(&self) -> u32 {
        Self::split(self.state.load(Relaxed)).1
    }

    /// Changes the limit, 0 to [`max_limit`](Self::max_limit), and returns the old one. Permits that are out stay out.
    ///
    /// # Errors
    ///
    /// [`SettingsError::TooLarge`], and then nothing has changed.
    ///
    /// # Cost
    ///
    /// One compare-exchange; lock-free.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// let limit = Concurrency::new(10);
    /// let _busy = limit.try_acquire(8).unwrap();
    /// assert_eq!(limit.set_limit(5), Ok(10));
    /// assert_eq!((limit.available(), limit.in_use()), (0, 8));
    /// ```
    pub fn set_limit(&self, limit: u32) -> Result<u32, SettingsError> {
        if limit > Self::max_limit() {
            return Err(SettingsError::TooLarge { setting: Setting::Limit, max: Self::max_limit().into() });
        }
        let mut state = self.state.load(Relaxed);
        loop {
            let old = Self::split(state).1;
            let resized = state - (u64::from(old) << LIMIT_AT) + (u64::from(limit) << LIMIT_AT);
            // Relaxed: a compare-exchange continues the release sequence of the releases before it.
            match self.state.compare_exchange_weak(state, resized, Relaxed, Relaxed) {
                Ok(_) => return Ok(old),
                Err(newer) => state = newer,
            }
        }
    }

    /// The permits in use, and the limit.
    #[inline(always)]
    fn split(state: u64) -> (u32, u32) {
        let field = (1 << Self::FIELD) - 1;
        (((state >> Self::IN_USE_AT) & field) as u32, ((state >> LIMIT_AT) & field) as u32)
    }

    #[inline(always)]
    fn take(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        let mut state = self.state.load(Relaxed);
        loop {
            let (in_use, limit) = Self::split(state);
            if u64::from(in_use) + u64::from(n.max(1)) > u64::from(limit) {
                return Err(if n > limit {
                    Denied::ExceedsCapacity { permits: n, capacity: limit }
                } else {
                    Denied::Exhausted { now, permits: n }
                });
            }
            if n == 0 {
                return Ok(());
            }
            let taken = state + (u64::from(n) << Self::IN_USE_AT);
            // Acquire: pairs with `release`, so that what a former holder wrote is seen by the next one.
            match self.state.compare_exchange_weak(state, taken, Acquire, Relaxed) {
                Ok(_) => return Ok(()),
                Err(newer) => state = newer,
            }
        }
    }

    #[inline(always)]
    fn give_back(&self, n: u32) {
        // Release: pairs with `take`.
        let before = self.state.fetch_sub(u64::from(n) << Self::IN_USE_AT, Release);
        let in_use = Self::split(before).0;
        if in_use < n || in_use > Self::max_limit() {
            self.repair(in_use, n);
        }
    }

    /// More was released than was in use: a caller's error, which must not grow the limit. Puts back what was too much.
    ///
    /// Until then `in use` has wrapped around below zero, to a number above any limit, so that all are denied. Whoever meets it
    /// there puts back its own part.
    #[cold]
    fn repair(&self, in_use: u32, n: u32) {
        let held = if in_use > Self::max_limit() { 0 } else { in_use };
        self.state.fetch_add(u64::from(n - held) << Self::IN_USE_AT, Relaxed);
    }
}

/// Bits below the counts.
const LIMIT_AT: u32 = 2;

impl<W: Word> Limiter for Concurrency<W> {
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.take(now, n)
    }

    /// Wait-free. Permits that are not in use cannot be given back: they are ignored.
    #[inline]
    fn release(&self, n: u32) {
        self.give_back(n);
    }

    fn available_at(&self, _: Timestamp) -> u64 {
        self.available().into()
    }

    fn capacity(&self) -> u64 {
        self.limit().into()
    }

    fn idle_at(&self, _: Timestamp) -> Idle {
        if self.in_use() == 0 { Idle::Now } else { Idle::InUse }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Exhausted { .. } => Retry::OnRelease,
            _ => Retry::Never,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn releasing_what_is_not_in_use_neither_grows_the_limit_nor_wedges_it() {
        let limit = Concurrency::<u32>::try_new(5).unwrap();
        let lease = limit.try_acquire(2).unwrap();
        limit.release(4);
        assert_eq!((limit.in_use(), limit.limit()), (0, 5));
        drop(lease);
        assert_eq!((limit.in_use(), limit.limit()), (0, 5));
        assert_eq!(limit.try_acquire(5).unwrap().permits(), 5);
    }
}

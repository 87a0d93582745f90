//! State: one word with all that a decision needs, so that a limit can change while permits come
//! and go.
//!
//! ```text
//! bits    2f+1      f+2   f+1        2   1     0
//! +--------------------+--------------+-----+-----+
//! |  available + bias  |    limit     |  0  |  w  |     f = 31 bits of a 64-bit word, 15 of a 32-bit one
//! +--------------------+--------------+-----+-----+     bias = 2^(f-1)
//! ```
//!
//! Invariant: `limit - available` permits are out. `available` is negative where the limit was
//! lowered below what is out, hence the bias; because it stands on top, one comparison of the whole
//! word tells whether there is enough. A take subtracts from it by compare-exchange, a release adds
//! to it in one fetch-add, a resize moves both fields by compare-exchange.
//!
//! `w` says that somebody waits. A release learns of it from the value that its fetch-add returns,
//! at no further cost: in the order of the word's changes either it comes after the mark, and sees
//! it, or before, and whoever waits, who looks for permits after having set the mark, sees those.
//!
//! Not a [`WordLimiter`](crate::rules::word_limiter) with rules of its own: what comes back is
//! added in one fetch-add, whatever the state is, where a limiter with rules reads the word and
//! exchanges it; and that fetch-add and the take that finds the permits are a pair of release and
//! acquire.

mod rules;

pub use self::rules::ConcurrencyRules;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::word::{AtomicWord, NativeWord, Word};
use crate::{
    Denied, Idle, Lease, Limiter, LimiterId, PassedOn, QueueLimiter, Receipt, Refund, Retry,
    Setting, SettingsError, Timestamp, Waiting,
};

/// A concurrency limit: at most `limit` permits in use at once. Each comes back when its [`Lease`]
/// is dropped.
///
/// **Bound.** No take leaves more permits in use than the limit at that moment. After the limit was
/// lowered, those that were already out stay out, and none is granted until fewer than the new
/// limit are. (It trusts that what is given back was taken, as leases and lease pools see to.)
///
/// **Cost.** A take is one load and one compare-exchange, a release one fetch-add. A denial writes
/// nothing. Taking is lock-free, releasing wait-free where a fetch-add is one instruction, else
/// lock-free: both may run in an interrupt handler that pre-empts the other.
///
/// **Ordering.** A take that follows a release sees what was written before that release, as with a
/// semaphore: with a limit of 1 the permit may guard data.
///
/// **Limit.** 0 (nothing is granted) to [`max_limit`](Self::max_limit): 2^30 - 1, or 2^14 - 1 with
/// a 32-bit word (2^19 - 1 with a `KeyedWord`).
///
/// Source: E. W. Dijkstra's counting semaphore; the concurrency limiter of the .NET rate limiting
/// proposal.
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
        /// Where [`try_new`](Self::try_new) would return an error; in a constant or a static, that
        /// is a compile error.
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
        /// At most `limit` permits in use, 1 to [`max_limit`](Self::max_limit), on a word of a
        /// chosen width.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] if `limit` is 0 or above the bound.
        ///
        /// ```
        /// # use portcullis_core::Concurrency;
        /// assert!(Concurrency::<u32>::try_new(16_383).is_ok());
        /// let refused = Concurrency::<u32>::try_new(16_384).unwrap_err();
        /// assert_eq!(refused.to_string(), "limit is too large: at most 16383");
        /// ```
        pub const fn try_new(limit: u32) -> Result<Self, SettingsError> {
            if limit == 0 {
                return Err(SettingsError::Zero { setting: Setting::Limit });
            }
            if limit > Self::max_limit() {
                return Err(SettingsError::TooLarge { setting: Setting::Limit, max: Self::max_limit() as u64 });
            }
            Ok(Self { state: AtomicWord::new(Self::pack(limit.cast_signed(), limit)) })
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
    const AVAILABLE_AT: u32 = LIMIT_AT + Self::FIELD;
    /// What stands for no permit available.
    const BIAS: u64 = 1 << (Self::FIELD - 1);

    const fn pack(available: i32, limit: u32) -> u64 {
        let available = Self::BIAS.wrapping_add_signed(available as i64);
        available << Self::AVAILABLE_AT | (limit as u64) << LIMIT_AT
    }

    /// The permits available, negative if more are out than the limit, and the limit.
    #[inline(always)]
    fn split(state: u64) -> (i32, u32) {
        let available = (state >> Self::AVAILABLE_AT).cast_signed() - Self::BIAS.cast_signed();
        let limit = (state >> LIMIT_AT) & ((1 << Self::FIELD) - 1);
        (available as i32, limit as u32)
    }

    /// Takes `n` permits, until the lease is dropped. With `n = 0` it takes nothing, and is
    /// answered as a request for 1 would be.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], or [`Denied::ExceedsCapacity`] if `n` is more than the limit. (A
    /// denial of a concurrency limit carries [`Timestamp::ZERO`]: no clock is involved.)
    ///
    /// # Memory ordering
    ///
    /// Acquire on success: sees what was written before the releases that made room.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Retry};
    /// let limit = Concurrency::new(3);
    /// let lease = limit.try_acquire(2).unwrap();
    /// assert_eq!(
    ///     limit.try_acquire(2).unwrap_err().retry(&limit),
    ///     Retry::OnRelease
    /// );
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
        Self::split(self.state.load(Relaxed))
            .0
            .max(0)
            .cast_unsigned()
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
        let (available, limit) = Self::split(self.state.load(Relaxed));
        limit.saturating_add_signed(available.wrapping_neg())
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

    /// Changes the limit, 0 to [`max_limit`](Self::max_limit), and returns the old one. Permits
    /// that are out stay out.
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
            return Err(SettingsError::TooLarge {
                setting: Setting::Limit,
                max: Self::max_limit().into(),
            });
        }
        let mut state = self.state.load(Relaxed);
        loop {
            let (available, old) = Self::split(state);
            // What is out stays the same. Neither number exceeds 30 bits.
            let resized = Self::pack(available - old.cast_signed() + limit.cast_signed(), limit)
                | state & WAITED;
            // Relaxed: a compare-exchange continues the release sequence of the releases before it.
            match self
                .state
                .compare_exchange_weak(state, resized, Relaxed, Relaxed)
            {
                Ok(_) => return Ok(old),
                Err(newer) => state = newer,
            }
        }
    }

    #[inline(always)]
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let mut state = self.state.load(Relaxed);
        loop {
            // The fields below are at most all ones, so comparing the word compares what is
            // available.
            let enough = state >= (Self::BIAS + u64::from(n.max(1))) << Self::AVAILABLE_AT;
            if !enough || n > Self::max_limit() {
                let (_, limit) = Self::split(state);
                return Err(if n.max(1) > limit {
                    Denied::ExceedsCapacity {
                        permits: n,
                        capacity: limit,
                    }
                } else {
                    Denied::Exhausted { now, permits: n }
                });
            }
            if n == 0 {
                return Ok(Receipt::NONE);
            }
            let taken = state - (u64::from(n) << Self::AVAILABLE_AT);
            // Acquire: pairs with `give_back`, so that what a former holder wrote is seen by the
            // next one.
            match self
                .state
                .compare_exchange_weak(state, taken, Acquire, Relaxed)
            {
                Ok(_) => return Ok(Receipt::NONE),
                Err(newer) => state = newer,
            }
        }
    }

    /// Whether somebody waits.
    #[inline(always)]
    fn give_back(&self, n: u32) -> bool {
        // Release: pairs with `take`.
        let before = self
            .state
            .fetch_add(u64::from(n) << Self::AVAILABLE_AT, Release);
        debug_assert!(
            i64::from(Self::split(before).0) + i64::from(n) <= i64::from(Self::split(before).1),
            "permits were released that had not been taken"
        );
        before & WAITED != 0
    }
}

/// Bits below the counts.
const LIMIT_AT: u32 = 2;
/// Somebody waits.
const WAITED: u64 = 1;

impl<W: Word> Limiter for Concurrency<W> {
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    /// All of them: a release.
    #[inline]
    fn refund_at(&self, _: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.give_back(n);
        receipt.refunded(n)
    }

    /// One fetch-add.
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
        if self.in_use() == 0 {
            Idle::Now
        } else {
            Idle::InUse
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Exhausted { .. } => Retry::OnRelease,
            _ => Retry::Never,
        }
    }
}

impl<W: Word> QueueLimiter for Concurrency<W> {
    /// The same fetch-add.
    #[inline]
    fn release_watched(&self, n: u32) -> Waiting {
        if self.give_back(n) {
            Waiting::Yes
        } else {
            Waiting::No
        }
    }

    /// One read-modify-write.
    fn watch(&self, waits: bool) {
        // Relaxed: the order of one word's changes is all that counts, and releases before it stay
        // released to the takes after it.
        if waits {
            self.state.set(WAITED, Relaxed);
        } else {
            self.state.clear(WAITED, Relaxed);
        }
    }

    /// A look. If fewer than there are out are allowed by now, they have to be released.
    #[inline]
    fn pass_on(&self, _: u32) -> PassedOn {
        let (available, _) = Self::split(self.state.load(Relaxed));
        match available {
            1.. => PassedOn::OthersAreFree,
            0 => PassedOn::NoneAreFree,
            _ => PassedOn::No,
        }
    }

    fn held(&self) -> u64 {
        self.in_use().into()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_more_than_any_limit_is_told_so() {
        let limit = Concurrency::new(Concurrency::<u64>::max_limit());
        for n in [1 << 30, (1 << 31) - 1, 1 << 31, u32::MAX] {
            assert!(
                matches!(limit.try_acquire(n), Err(Denied::ExceedsCapacity { .. })),
                "{n}"
            );
        }
        assert_eq!(
            limit.try_acquire((1 << 30) - 1).unwrap().permits(),
            (1 << 30) - 1
        );
    }
}

//! State: one word that holds everything a decision needs. So the limit can change while permits
//! are out.
//!
//! ```text
//! bits    2f+1      f+2   f+1        2   1     0
//! +--------------------+--------------+-----+-----+
//! |  available + bias  |    limit     |  0  |  w  |  f = 31 in a 64-bit word, 15 in a 32-bit word
//! +--------------------+--------------+-----+-----+  bias = 2^(f-1)
//! ```
//!
//! Invariant: `limit - available` permits are in use. If the limit was lowered below the permits in
//! use, `available` is negative. So it is stored with a bias. `available` is in the top bits, so
//! one comparison of the whole word tells whether enough permits are available. There are three
//! transitions:
//!
//! - a *take* subtracts from `available` by compare-exchange;
//! - a *release* adds to `available` in one fetch-add;
//! - a *change of the limit* moves both fields by compare-exchange.
//!
//! `w` is the waiter bit. A release reads it from the value that its fetch-add returns, at no
//! further cost. All changes of the word have one order. A release that comes after the bit was set
//! sees the bit. A release that comes before it is seen by the waiter: the waiter first sets the
//! bit and then looks for permits.
//!
//! This is not a [`WordLimiter`](crate::rules::word_limiter) with rules. A limiter with rules reads
//! the word and exchanges it; here a release is one fetch-add, whatever the state is. The fetch-add
//! and the take that finds the permits are a release-acquire pair.

mod rules;

pub use self::rules::ConcurrencyRules;
use crate::keyed::into_rules::IntoRules;
use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer, retry_of};
use crate::limiter::queue_limiter::{PassedOn, QueueLimiter};
use crate::limiter::receipt::Receipt;
use crate::limiter::{
    Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned, Waiting,
};
use crate::newer::signed;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::time::timestamp::Timestamp;
use crate::word::settings::{Setting, SettingsError};
use crate::word::{AtomicWord, NativeWord, Word};

/// A concurrency limit: at most `limit` permits are in use at once. Permits return when their
/// [`Lease`] is dropped.
///
/// **Bound.** No take leaves more permits in use than the limit at that moment. When the limit is
/// lowered, permits in use stay in use. No permit is granted until fewer than the new limit are in
/// use. The bound requires that only permits that were taken are released: leases and lease pools
/// ensure this.
///
/// **Cost.** A take is one load and one compare-exchange. A release is one fetch-add. A denial
/// writes nothing. A take is lock-free. A release is wait-free where a fetch-add is one
/// instruction, otherwise lock-free. Both may run in an interrupt handler that pre-empts the other.
///
/// **Ordering.** A take that follows a release sees what was written before that release, as with a
/// semaphore. With a limit of 1, the permit may guard data.
///
/// **Limit.** 1 to [`max_limit`](Self::max_limit): 2^30 - 1, or 2^14 - 1 with a 32-bit word
/// (2^19 - 1 with a `KeyedWord` of 43 bits). [`set_limit`](Self::set_limit) also accepts 0, which
/// grants nothing.
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
        /// Creates a limiter that allows at most `limit` permits in use, 1 to
        /// [`max_limit`](Self::max_limit).
        ///
        /// # Panics
        ///
        /// If [`ConcurrencyBuilder::build`] would return an error. In a constant or a static, this
        /// is a compile error.
        ///
        /// ```
        /// # use portcullis_core::Concurrency;
        /// static LIMIT: Concurrency = Concurrency::new(100);
        /// ```
        pub const fn new(limit: u32) -> Self {
            match Self::builder(limit).build() {
                Ok(limiter) => limiter,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Returns a builder for a limiter that allows at most `limit` permits in use, 1 to
    /// [`max_limit`](Self::max_limit).
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// let limit = Concurrency::builder(5).build()?;
    /// assert_eq!(limit.available(), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u32) -> ConcurrencyBuilder {
        ConcurrencyBuilder { limit }
    }
}

impl<W: Word> Concurrency<W> {
    /// Returns the largest limit that fits the word: 2^30 - 1, or 2^14 - 1 with a 32-bit word.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(<Concurrency>::max_limit(), (1 << 30) - 1);
    /// assert_eq!(Concurrency::<u32>::max_limit(), 16_383);
    /// ```
    pub const fn max_limit() -> u32 {
        (1 << (Self::FIELD - 1)) - 1
    }

    /// The width of each of the two counts, in bits.
    const FIELD: u32 = (W::BITS - LIMIT_AT) / 2;
    const AVAILABLE_AT: u32 = LIMIT_AT + Self::FIELD;
    /// The field's value when no permit is available.
    const BIAS: u64 = 1 << (Self::FIELD - 1);

    const fn pack(available: i64, limit: u32) -> u64 {
        let available = Self::BIAS.wrapping_add_signed(available);
        available << Self::AVAILABLE_AT | (limit as u64) << LIMIT_AT
    }

    /// Returns the available permits, negative if more are in use than the limit, and the limit.
    #[inline(always)]
    fn split(state: u64) -> (i32, u32) {
        let available = signed(state >> Self::AVAILABLE_AT) - signed(Self::BIAS);
        let limit = (state >> LIMIT_AT) & ((1 << Self::FIELD) - 1);
        (available as i32, limit as u32)
    }

    /// Takes `n` permits and holds them until the lease is dropped.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if fewer than `n` permits are available, or
    /// [`Denied::ExceedsCapacity`] if `n` is more than the limit. A denial carries
    /// [`Timestamp::ZERO`], since no clock is involved.
    ///
    /// # Memory ordering
    ///
    /// Acquire on success: the caller sees what was written before the releases that made room.
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

    /// Returns the permits that can be taken now.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(Concurrency::new(3).available(), 3);
    /// ```
    pub fn available(&self) -> u32 {
        u32::try_from(Self::split(self.state.load(Relaxed)).0).unwrap_or(0)
    }

    /// Returns the permits in use. This is more than the limit if the limit was lowered since.
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

    /// Returns the current limit.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// assert_eq!(Concurrency::new(3).limit(), 3);
    /// ```
    pub fn limit(&self) -> u32 {
        Self::split(self.state.load(Relaxed)).1
    }

    /// Changes the limit, 0 to [`max_limit`](Self::max_limit), and returns the old one. Permits in
    /// use stay in use.
    ///
    /// # Errors
    ///
    /// [`SettingsError::TooLarge`] if `limit` is more than `max_limit`. Nothing changes then.
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
        self.resize(|_| limit)
    }

    /// Raises the limit by `n` permits, which become available, and returns the new limit.
    ///
    /// # Errors
    ///
    /// [`SettingsError::TooLarge`] if the new limit would be more than
    /// [`max_limit`](Self::max_limit). Nothing changes then.
    ///
    /// # Cost
    ///
    /// One compare-exchange; lock-free.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// let limit = Concurrency::new(10);
    /// assert_eq!(limit.add_permits(5), Ok(15));
    /// assert_eq!(limit.available(), 15);
    /// ```
    pub fn add_permits(&self, n: u32) -> Result<u32, SettingsError> {
        let old = self.resize(|limit| limit.saturating_add(n))?;
        Ok(old + n)
    }

    /// Lowers the limit by up to `n` permits, and returns by how many: less than `n` if the limit
    /// was less. Permits in use stay in use, and are not replaced when they are released.
    ///
    /// # Cost
    ///
    /// One compare-exchange; lock-free.
    ///
    /// ```
    /// # use portcullis_core::Concurrency;
    /// let limit = Concurrency::new(10);
    /// let _busy = limit.try_acquire(8).unwrap();
    /// assert_eq!(limit.remove_permits(5), 5);
    /// assert_eq!((limit.limit(), limit.available(), limit.in_use()), (5, 0, 8));
    /// assert_eq!(limit.remove_permits(9), 5);
    /// ```
    pub fn remove_permits(&self, n: u32) -> u32 {
        // A limit that does not grow is never too large.
        self.resize(|limit| limit.saturating_sub(n))
            .map_or(0, |old| old.min(n))
    }

    /// Sets the limit to what `limit` makes of the present one. Returns the old one.
    fn resize(&self, limit: impl Fn(u32) -> u32) -> Result<u32, SettingsError> {
        let mut state = self.state.load(Relaxed);
        loop {
            let (available, old) = Self::split(state);
            let limit = limit(old);
            if limit > Self::max_limit() {
                return Err(SettingsError::TooLarge {
                    setting: Setting::Limit,
                    max: Self::max_limit().into(),
                });
            }
            // The permits in use do not change. Neither number exceeds 30 bits.
            let left = i64::from(available) - i64::from(old) + i64::from(limit);
            let resized = Self::pack(left, limit) | state & WAITED;
            // Relaxed: a compare-exchange continues the release sequence of earlier releases.
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
    fn take<O: Observer>(&self, now: Timestamp, n: u32, seen: O) -> Result<Receipt, Denied> {
        let mut state = self.state.load(Relaxed);
        loop {
            // The fields below `available` are at most all ones, so a comparison of the whole word
            // compares `available`.
            let enough = state >= (Self::BIAS + u64::from(n.max(1))) << Self::AVAILABLE_AT;
            if !enough || n > Self::max_limit() {
                let (_, limit) = Self::split(state);
                let denied = if n.max(1) > limit {
                    Denied::ExceedsCapacity {
                        permits: n,
                        capacity: limit,
                    }
                } else {
                    Denied::Exhausted { now, permits: n }
                };
                seen.observe(move || self.detail(state, now, Err(denied)));
                return Err(denied);
            }
            if n == 0 {
                seen.observe(move || self.detail(state, now, Ok(())));
                return Ok(Receipt::NONE);
            }
            let taken = state - (u64::from(n) << Self::AVAILABLE_AT);
            // Acquire: pairs with `put_back`, so that the next holder sees what a former holder
            // wrote.
            match self
                .state
                .compare_exchange_weak(state, taken, Acquire, Relaxed)
            {
                Ok(_) => {
                    seen.observe(move || self.detail(taken, now, Ok(())));
                    return Ok(Receipt::NONE);
                }
                Err(newer) => state = newer,
            }
        }
    }

    fn detail(&self, state: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        let (available, limit) = Self::split(state);
        Detail {
            now,
            decision,
            available: u64::try_from(available).unwrap_or(0),
            capacity: limit.into(),
            time_to_fill: None,
            full_again: if i64::from(available) == i64::from(limit) {
                Retry::At(now)
            } else {
                Retry::OnRelease
            },
            retry: retry_of(decision, now, |denied| Limiter::retry(self, denied)),
        }
    }

    /// Releases `n` permits. Returns whether the waiter bit is set.
    #[inline(always)]
    fn put_back(&self, n: u32) -> bool {
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

/// Number of bits below the counts.
const LIMIT_AT: u32 = 2;
/// The waiter bit.
const WAITED: u64 = 1;

impl<W: Word> Concurrency<W> {
    /// Costs one read-modify-write.
    fn watch(&self, waits: bool) {
        // Relaxed: only the order of this word's changes matters, and a read-modify-write continues
        // the release sequence of earlier releases.
        if waits {
            self.state.set(WAITED, Relaxed);
        } else {
            self.state.clear(WAITED, Relaxed);
        }
    }

    fn explain(&self, now: Timestamp, n: u32) -> Detail {
        let state = self.state.load(Relaxed);
        Detail::look(now, n, |decision| self.detail(state, now, decision))
    }
}

impl<W: Word> Limiter for Concurrency<W> {
    /// The time does not matter, so it decides within all intervals.
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        match ask.detail() {
            Some(seen) if ask.is_look() => {
                let detail = self.explain(now, n);
                seen.set(Some(detail));
                detail.decision.into()
            }
            None if ask.is_look() => ask.looked(self.available().into(), || self.limit().into()),
            Some(seen) => self.take(now, n, seen).into(),
            None => self.take(now, n, ()).into(),
        }
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } => Waiting::known(self.put_back(permits)).into(),
            Back::Refund {
                permits, receipt, ..
            } => {
                self.put_back(permits);
                receipt.refunded(permits).into()
            }
            Back::Watch(waits) => {
                self.watch(waits);
                Returned::NOTHING
            }
            _ => Returned::NOTHING,
        }
    }

    #[inline(always)]
    fn read(&self, _: Read<'_>) -> Reading {
        let in_use = self.in_use();
        Reading {
            available: self.available().into(),
            capacity: self.limit().into(),
            idle: if in_use == 0 { Idle::Now } else { Idle::InUse },
            held: in_use.into(),
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::Exhausted { .. } => Retry::OnRelease,
            _ => Retry::Never,
        }
    }

    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT.within_intervals()
    }
}

/// The current limit is kept. Permits in use count for no key.
impl<W: Word> IntoRules for Concurrency<W> {
    type Rules = ConcurrencyRules;

    fn into_rules(self) -> Result<ConcurrencyRules, SettingsError> {
        let rules = ConcurrencyRules::new(1);
        rules.set_limit(self.limit())?;
        Ok(rules)
    }
}

impl<W: Word> QueueLimiter for Concurrency<W> {
    const SHARED: bool = false;

    /// Costs one load. Returns [`PassedOn::No`] if more permits are in use than the limit allows:
    /// they must be released.
    #[inline]
    fn pass_on(&self, _: u32) -> PassedOn {
        let (available, _) = Self::split(self.state.load(Relaxed));
        match available {
            1.. => PassedOn::OthersAreFree,
            0 => PassedOn::NoneAreFree,
            _ => PassedOn::No,
        }
    }
}

/// Builds a [`Concurrency`] limit. Created by [`Concurrency::builder`].
///
/// ```
/// use portcullis_core::Concurrency;
///
/// // From a configuration file, for example.
/// let configured = 0;
/// let refused = Concurrency::builder(configured).build().unwrap_err();
/// assert_eq!(refused.to_string(), "limit must be at least 1");
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ConcurrencyBuilder {
    limit: u32,
}

impl ConcurrencyBuilder {
    const_unless_loom! {
        /// Builds the limit on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] if the limit is 0, or more than
        /// [`max_limit`](Concurrency::max_limit).
        ///
        /// ```
        /// # use portcullis_core::{Concurrency, SettingsError};
        /// # use portcullis_core::builder::Setting;
        /// let refused = Concurrency::builder(0).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::Zero { setting: Setting::Limit });
        /// ```
        pub const fn build(self) -> Result<Concurrency, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds the limit on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::Concurrency;
        /// assert!(Concurrency::builder(16_383).build_on::<u32>().is_ok());
        /// let refused = Concurrency::builder(16_384).build_on::<u32>().unwrap_err();
        /// assert_eq!(refused.to_string(), "limit must be at most 16383");
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<Concurrency<W>, SettingsError> {
            let (limit, setting) = (self.limit, Setting::Limit);
            let max = Concurrency::<W>::max_limit();
            if limit == 0 {
                return Err(SettingsError::Zero { setting });
            }
            if limit > max {
                return Err(SettingsError::TooLarge { setting, max: max as u64 });
            }
            let state = Concurrency::<W>::pack(limit as i64, limit);
            Ok(Concurrency { state: AtomicWord::new(state) })
        }
    }
}

#[cfg(all(test, not(portcullis_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_more_than_any_limit_exceeds_the_capacity() {
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

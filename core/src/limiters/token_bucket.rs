//! [`TokenBucket`]: one state word and its [`TokenBucketRules`]. The file of the rules describes
//! the state and its transitions.

mod rules;

use core::time::Duration;

pub use self::rules::TokenBucketRules;
use crate::keyed::into_rules::IntoRules;
use crate::leases::lease::Lease;
use crate::limiter::Idle;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::queue_limiter::replenishing;
use crate::limiters::bucket_settings::BucketSettings;
use crate::rules::attached::{Detach, StateWord, detached};
use crate::rules::word_limiter::{WordLimiter, around_word};
use crate::sync::const_unless_loom;
use crate::time::rate::Rate;
use crate::time::timestamp::Timestamp;
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::settings::SettingsError;
use crate::word::{NativeWord, Word};

/// A token bucket: holds at most `burst` permits and gains permits at an exact rational [`Rate`].
///
/// A request for `n` permits is granted if the bucket holds `n` permits, and denied otherwise. The
/// bucket starts full. A grant returns a [`Lease`]. Permits return by time alone, so nothing has to
/// be released: dropping the lease does nothing. The bucket reads no clock: each call passes the
/// time, `now`. `W` is the type of the [state word](crate::state::Word).
///
/// To change the settings, to add permits or to reset the bucket, use an
/// [`AdjustableBucket`](crate::AdjustableBucket).
///
/// **Bound.** Any span of time `t` admits at most `burst + rate * t` permits. Time is what the
/// calls pass as `now`. If the [tick](TokenBucketBuilder::tick) is longer than 1 ns, each `now`
/// counts as the start of its tick. With a 64-bit word the default tick is 1 ns at most rates. A
/// [stepwise](TokenBucketBuilder::stepwise) bucket, and one that may
/// [owe](TokenBucketBuilder::debt) permits, have bounds of their own.
///
/// **Errors.**
///
/// - [`Denied::Exhausted`] if there are too few permits. Retry when [`Denied::retry`] says.
/// - [`Denied::ExceedsCapacity`] if the request is for more than the burst. Do not retry: request
///   fewer permits.
///
/// **Exact.** The bucket counts fractions of permits exactly, without rounding, within the horizon
/// (see below). The rate has no drift. Retry times are exact to the nanosecond. A request whose
/// `now` is older than that of the newest grant is granted no more than it would be at the `now` of
/// that grant.
///
/// **Cost.** Uncontended, and with a tick of 1 ns, a grant is one load, one or
/// two multiplications and one compare-exchange. With a longer tick, two more multiplications
/// convert the time. A denial loads the word and writes nothing. Lock-free: if another call changes
/// the word first, the compare-exchange fails, and the call decides again. Each failure means that
/// another call has succeeded, and the burst and the rate limit how many can succeed. (With
/// load-linked and store-conditional instructions, an interrupt can also make a compare-exchange
/// fail.) All accesses are `Relaxed`: a grant orders no other memory accesses.
///
/// **Memory.** At most 80 bytes with a 64-bit word, and 56 with a 32-bit word.
///
/// **Horizon.** The state word counts time and wraps: it repeats after the
/// [horizon](Self::timing). The bound holds for every `now` that is at most
/// [`staleness`](Self::timing) older than the newest `now` of a grant. If nothing is granted for
/// roughly a whole number of horizons, the bucket may then hold too few permits, never too many.
/// This lasts at most about the staleness plus the time to fill. With a 64-bit word and the default
/// tick, the horizon is 584 years if the time per permit is a whole number of nanoseconds. At other
/// rates it is shorter: for example 195 years at 3 permits per second. It is over ten years at any
/// whole number of permits up to 5,845 per second, 5.8 years at 9,973, and 21 days at 99,991.
///
/// Source: the token bucket as a virtual schedule, like the generic cell rate algorithm of ITU-T
/// I.371 and ATM Forum TM 4.1. Time is counted in units of the rate, so nothing is rounded.
///
/// ```
/// use portcullis_core::{Rate, Timestamp, TokenBucket};
///
/// // 10 permits per second, at most 3 at once. In a static, invalid settings do not compile.
/// static LIMIT: TokenBucket = TokenBucket::new(Rate::per_second(10), 3);
///
/// let now = Timestamp::from_secs(60);
/// for _ in 0..3 {
///     assert!(LIMIT.try_acquire_at(now, 1).is_ok());
/// }
/// assert!(LIMIT.try_acquire_at(now, 1).is_err());
/// // 100 ms later, one permit has returned.
/// assert!(LIMIT.try_acquire_at(Timestamp::from_millis(60_100), 1).is_ok());
/// ```
#[derive(Debug)]
pub struct TokenBucket<W: Word = NativeWord> {
    limiter: WordLimiter<TokenBucketRules<W>>,
}

impl TokenBucket {
    const_unless_loom! {
        /// Creates a bucket that gains permits at `rate` and holds at most `burst` permits (at
        /// least 1). The bucket starts full.
        ///
        /// # Panics
        ///
        /// If [`TokenBucketBuilder::build`] would return an error. In a constant or a static, this
        /// is a compile error.
        ///
        /// ```
        /// use portcullis_core::{Rate, TokenBucket};
        /// static LIMIT: TokenBucket = TokenBucket::new(Rate::per_second(1_000), 100);
        /// ```
        ///
        /// ```compile_fail
        /// use portcullis_core::{Rate, TokenBucket};
        /// static LIMIT: TokenBucket = TokenBucket::new(Rate::per_second(1_000), 0);
        /// ```
        pub const fn new(rate: Rate, burst: u64) -> Self {
            match Self::builder(rate, burst).build() {
                Ok(bucket) => bucket,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Returns a builder for a bucket that gains permits at `rate` and holds at most `burst`
    /// permits (at least 1).
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).build()?;
    /// assert_eq!(bucket.burst(), 10);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(rate: Rate, burst: u64) -> TokenBucketBuilder {
        Builder::new(BucketSettings::new(rate, burst))
    }
}

impl<W: Word> TokenBucket<W> {
    /// Takes `n` permits at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return by time alone.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the bucket holds fewer than `n` permits (with `n = 0`: none), or
    /// [`Denied::ExceedsCapacity`] if `n` is more than the burst.
    ///
    /// # Cost
    ///
    /// A load, one or two multiplications, and on success one compare-exchange. Never divides,
    /// blocks or panics.
    ///
    /// ```
    /// use portcullis_core::{Denied, Rate, Timestamp, TokenBucket};
    ///
    /// let bucket = TokenBucket::new(Rate::per_second(5), 10);
    /// let now = Timestamp::ZERO;
    /// assert_eq!(bucket.try_acquire_at(now, 7).unwrap().permits(), 7);
    /// assert!(matches!(
    ///     bucket.try_acquire_at(now, 4),
    ///     Err(Denied::Exhausted { .. })
    /// ));
    /// assert!(matches!(
    ///     bucket.try_acquire_at(now, 11),
    ///     Err(Denied::ExceedsCapacity { capacity: 10, .. })
    /// ));
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the whole permits available at `now`; `u64::MAX` at an unlimited rate. Divides.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(bucket.available_at(Timestamp::ZERO), 10);
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter.available(now)
    }

    /// Takes `n` permits at `now` even if fewer are available, and leaves the bucket in debt.
    ///
    /// Use it to account for work that has already happened. The debt afterwards must not exceed
    /// the [declared debt](TokenBucketBuilder::debt). While the bucket is in debt,
    /// [`try_acquire_at`](Self::try_acquire_at) grants nothing. With `n = 0` nothing happens.
    ///
    /// **Bound.** Any span of time `t` admits at most `burst + debt + rate * t` permits.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the debt at `now` would be larger than declared, or
    /// [`Denied::ExceedsCapacity`] if `n` is more than burst and debt together. Nothing changes
    /// then. If `now` is older than that of the newest grant, more may count as owed: see
    /// [`owed_at`](Self::owed_at). [`Denied::retry`] returns when the permits can be taken without
    /// a debt. This method may succeed earlier.
    ///
    /// # Cost
    ///
    /// One compare-exchange; lock-free.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Retry, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(10), 3)
    ///     .debt(5)
    ///     .build()
    ///     .unwrap();
    /// let now = Timestamp::ZERO;
    /// bucket.force_at(now, 7).unwrap();
    /// assert!(bucket.force_at(now, 2).is_err(), "at most 5 permits may be owed");
    /// let denied = bucket.try_acquire_at(now, 1).unwrap_err();
    /// assert_eq!(
    ///     denied.retry(&bucket),
    ///     Retry::At(Timestamp::from_millis(500))
    /// );
    /// ```
    pub fn force_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        let rules = self.limiter.rules();
        self.limiter
            .take_by(now, |used| rules.force(used, now, n))
            .map(|_| ())
    }

    /// Takes `n` permits at `now` if the bucket owes nothing, even if fewer are available. The
    /// missing permits are owed. Until they have come in, this method and
    /// [`try_acquire_at`](Self::try_acquire_at) grant nothing.
    ///
    /// So a large request is granted at once. It need not wait until many permits are available
    /// together. The debt afterwards must not exceed the
    /// [declared debt](TokenBucketBuilder::debt). With `n = 0` it takes nothing, and is granted or
    /// denied as a request for 1 permit would be.
    ///
    /// **Bound.** With this method and [`try_acquire_at`](Self::try_acquire_at), any span of time
    /// `t` admits at most `burst + rate * t + largest` permits, where `largest` is the smaller of
    /// the declared debt and the most permits that one call of this method took.
    ///
    /// [`force_at`](Self::force_at) may increase an existing debt. This method never does.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the bucket owes permits at `now`, or if it would owe more than
    /// declared. [`Denied::ExceedsCapacity`] if `n` is more than burst and debt together. Nothing
    /// changes then. If `now` is older than that of the newest grant, more may count as owed: see
    /// [`owed_at`](Self::owed_at). [`retry_owing`](Self::retry_owing) says when to retry;
    /// [`Denied::retry`] says when the permits can be taken without a debt.
    ///
    /// # Cost
    ///
    /// A load, two multiplications, and on success one compare-exchange; lock-free. Divides only to
    /// state the capacity in [`Denied::ExceedsCapacity`].
    ///
    /// Source: Guava's `RateLimiter`, with a bound on the debt.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Retry, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .debt(1_000)
    ///     .build()?;
    /// let now = Timestamp::ZERO;
    /// // More than the burst, and granted at once. The bucket now owes 990 permits.
    /// assert!(bucket.try_acquire_or_owe_at(now, 1_000).is_ok());
    /// // The next request is granted when they have been replenished, after 198 s.
    /// let denied = bucket.try_acquire_or_owe_at(now, 20).unwrap_err();
    /// let due = Timestamp::from_secs(198);
    /// assert_eq!(bucket.retry_owing(denied), Retry::At(due));
    /// assert!(bucket.try_acquire_or_owe_at(due, 20).is_ok());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    #[inline]
    pub fn try_acquire_or_owe_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        let rules = self.limiter.rules();
        let price = rules.price_with_debt(n)?;
        self.limiter
            .take_by(now, |used| rules.owe(used, now, n, price))
            .map(|receipt| Lease::from_grant(self, n, receipt))
    }

    /// Returns when a request that [`try_acquire_or_owe_at`](Self::try_acquire_or_owe_at) denied
    /// can be granted by the same method: the first instant at which nothing is owed, and the
    /// request exceeds the available permits by at most the declared debt.
    ///
    /// [`Retry::Never`] for any denial but [`Denied::Exhausted`], and if the permits never come in:
    /// at a rate of zero, or not before [`Timestamp::MAX`].
    ///
    /// # Cost
    ///
    /// A load and a division.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Retry, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(10), 2)
    ///     .debt(4)
    ///     .build()?;
    /// let now = Timestamp::ZERO;
    /// assert!(bucket.try_acquire_or_owe_at(now, 3).is_ok());
    /// let denied = bucket.try_acquire_or_owe_at(now, 2).unwrap_err();
    /// assert_eq!(bucket.retry_owing(denied), Retry::At(Timestamp::from_millis(100)));
    /// assert_eq!(denied.retry(&bucket), Retry::At(Timestamp::from_millis(300)), "without a debt");
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn retry_owing(&self, denied: Denied) -> Retry {
        self.limiter
            .rules()
            .retry_owing(self.limiter.state(), denied)
    }

    /// Returns whether the bucket is full at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// # use portcullis_core::limiter::Idle;
    /// let bucket = TokenBucket::new(Rate::per_second(5), 10);
    /// bucket.try_acquire_at(Timestamp::from_secs(1), 1).unwrap();
    /// assert_eq!(bucket.idle_at(Timestamp::from_secs(1)), Idle::InUse);
    /// assert_eq!(
    ///     bucket.idle_at(Timestamp::from_secs(9)),
    ///     Idle::Since(Timestamp::from_millis(1_200))
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        self.limiter.idle(now)
    }

    /// Returns the permits that the bucket owes at `now` after [`force_at`](Self::force_at) or
    /// [`try_acquire_or_owe_at`](Self::try_acquire_or_owe_at): as many as it must gain before it
    /// holds any. Rounded up to whole permits. Divides.
    ///
    /// If `now` is older than that of the newest grant, permits that come in between the two times
    /// may count as owed, up to the [declared debt](Self::debt).
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(10), 3).debt(5).build()?;
    /// bucket.force_at(Timestamp::ZERO, 7).unwrap();
    /// assert_eq!(bucket.owed_at(Timestamp::ZERO), 4);
    /// assert_eq!(bucket.owed_at(Timestamp::from_millis(150)), 3, "2.5, rounded up");
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn owed_at(&self, now: Timestamp) -> u64 {
        self.limiter.rules().owed(self.limiter.state(), now)
    }

    /// Returns the rate at which the bucket gains permits: exactly the rate that it was built with,
    /// in lowest terms. Divides.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, TokenBucket};
    /// let rate = TokenBucket::new(Rate::per_second(10), 3).rate();
    /// assert_eq!(rate, Rate::per_second(10));
    /// assert_eq!((rate.permits(), rate.period()), (1, Duration::from_millis(100)));
    /// ```
    pub fn rate(&self) -> Rate {
        self.limiter.rules().rate()
    }

    /// Returns the most permits that the bucket may owe: the [declared
    /// debt](TokenBucketBuilder::debt). At an unlimited rate nothing is owed, so this is 0.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(10), 3).debt(5).build()?;
    /// assert_eq!(bucket.debt(), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn debt(&self) -> u64 {
        self.limiter.rules().most_owed()
    }

    /// Returns the most permits that the bucket holds. At an unlimited rate, this is the most that
    /// the word can count.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// assert_eq!(TokenBucket::new(Rate::per_second(5), 10).burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.limiter.rules().burst()
    }

    /// Returns the time in which an empty bucket fills, in whole ticks, rounded up; `None` if it
    /// never does, because its rate is zero. Divides.
    /// [`Detail::time_to_fill`](crate::limiter::Detail) is the same.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(10), 3);
    /// assert_eq!(bucket.time_to_fill(), Some(Duration::from_millis(300)));
    /// assert_eq!(TokenBucket::new(Rate::ZERO, 3).time_to_fill(), None);
    /// ```
    pub fn time_to_fill(&self) -> Option<Duration> {
        self.limiter.rules().time_to_fill()
    }

    /// Returns how the bucket counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).build_on::<u32>()?;
    /// let timing = bucket.timing();
    /// assert_eq!(timing.tick, Duration::from_micros(100), "gives 32 bits a horizon of five days");
    /// assert!(timing.horizon > Duration::from_secs(4 * 86_400));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn timing(&self) -> Timing {
        self.limiter.rules().timing()
    }

    /// Returns the state word, to be saved for [`with_state`](Self::with_state).
    ///
    /// Save it in a backup register or in flash before a deep sleep in which memory is lost. The
    /// state has as many bits as the word. It does not include permits that are taken after this
    /// call: a restored bucket may grant them again.
    ///
    /// # Cost
    ///
    /// A load.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let limit = TokenBucket::new(Rate::per_second(10), 3);
    /// assert!(limit.try_acquire_at(Timestamp::from_secs(60), 3).is_ok());
    /// let saved = limit.state();
    ///
    /// // Awake again, 50 ms later.
    /// let limit = TokenBucket::new(Rate::per_second(10), 3).with_state(saved);
    /// assert!(limit.try_acquire_at(Timestamp::from_millis(60_050), 1).is_err());
    /// ```
    pub fn state(&self) -> u64 {
        self.limiter.state()
    }

    /// Restores a [`state`](Self::state) that was saved from a bucket with the same settings.
    ///
    /// Time must continue from the same origin: use a clock that runs through the sleep.
    ///
    /// Any number is a valid state. With a damaged state, or one from other settings, the bucket
    /// may at first grant fewer or more permits than the saved bucket would have, but no more than
    /// a full bucket. It may be full even if it was built with fewer
    /// [initial](TokenBucketBuilder::initial) permits.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let saved = TokenBucket::new(Rate::per_second(10), 3).state();
    /// let limit = TokenBucket::new(Rate::per_second(10), 3).with_state(saved);
    /// assert_eq!(limit.available_at(Timestamp::ZERO), 3);
    /// ```
    #[must_use]
    pub fn with_state(self, state: u64) -> Self {
        let fitting = self.limiter.rules().fitting(state);
        Self {
            limiter: self.limiter.with_state(fitting),
        }
    }
}

around_word! {
    /// Refunds all `n` permits if the bucket is as the take left it; otherwise none, and they
    /// return by time. A take that is refunded in full counts as never made: its `now` no longer
    /// counts as that of a grant.
    [W: Word] TokenBucket<W> => |bucket| bucket;
}

replenishing!([W: Word] TokenBucket<W>);

impl<W: Word> Detach for TokenBucket<W> {
    type Word = W;
    type Rules = TokenBucketRules<W>;

    fn detach(self) -> (TokenBucketRules<W>, StateWord<W>) {
        detached(self.limiter)
    }
}

/// All settings are kept, except [`initial`](TokenBucketBuilder::initial): buckets in a table start
/// full.
impl<W: Word> IntoRules for TokenBucket<W> {
    type Rules = TokenBucketRules;

    fn into_rules(self) -> Result<TokenBucketRules, SettingsError> {
        self.limiter.rules().in_a_table()
    }
}

/// Builds a [`TokenBucket`]. Created by [`TokenBucket::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Rate, Timestamp, TokenBucket};
///
/// // 30 permits per minute, in steps of 30 at each full minute. The bucket starts empty.
/// let bucket = TokenBucket::builder(Rate::per_minute(30), 60)
///     .stepwise()
///     .initial(0)
///     .build()?;
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(59), 1).is_err());
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(60), 30).is_ok());
/// // The permits of two minutes at once.
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(180), 60).is_ok());
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type TokenBucketBuilder = Builder<TokenBucket>;

impl Sealed for TokenBucket {
    type Settings = BucketSettings;
}

impl Ticks for TokenBucket {}

impl Builder<TokenBucket> {
    /// Sets how many permits the bucket may owe after [`TokenBucket::force_at`] or
    /// [`TokenBucket::try_acquire_or_owe_at`]. Default: 0.
    ///
    /// **Bound** of a bucket with a debt: any span of time `t` admits at most
    /// `burst + debt + rate * t` permits.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .debt(4)
    ///     .build()?;
    /// assert!(bucket.force_at(Timestamp::ZERO, 14).is_ok());
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn debt(mut self, permits: u64) -> Self {
        self.settings.terms.debt = permits;
        self
    }

    const_unless_loom! {
        /// Builds the bucket on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound. Change the setting, or use a wider
        /// word. The reasons are:
        ///
        /// - the burst is zero, or the bucket needs more than a quarter of the horizon to fill;
        /// - the initial permits are more than the burst;
        /// - the rate's period or the tick is outside of 1 ns to 292 years;
        /// - the rate's period is so long at this tick that not even a burst of 1 fits the word:
        ///   use a coarser tick;
        /// - the rate is so high that the horizon would be shorter than about 4 s;
        /// - the bucket needs more than about a quarter of the horizon to gain the debt;
        /// - the staleness is shorter than 1 s, or longer than a quarter of the horizon.
        ///
        /// ```
        /// # use portcullis_core::{Rate, SettingsError, TokenBucket};
        /// # use portcullis_core::builder::Setting;
        /// let refused =
        ///     TokenBucket::builder(Rate::per_second(5), 10).initial(11).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Initial, max: 10 });
        /// ```
        pub const fn build(self) -> Result<TokenBucket, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds the bucket on a word of a chosen width.
        ///
        /// For example, to test on a workstation what a microcontroller will do.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::{Rate, TokenBucket};
        /// # use portcullis_core::builder::TokenBucketBuilder;
        /// const BUILDER: TokenBucketBuilder = TokenBucket::builder(Rate::per_second(1_000), 10);
        /// static LIMIT: TokenBucket<u32> = match BUILDER.build_on() {
        ///     Ok(bucket) => bucket,
        ///     Err(_) => panic!("does not fit"),
        /// };
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<TokenBucket<W>, SettingsError> {
            match self.rules_on() {
                Ok((rules, used)) => Ok(TokenBucket { limiter: WordLimiter::new(rules, used) }),
                Err(error) => Err(error),
            }
        }
    }

    /// Returns the rules alone, for a [`Keyed`](crate::Keyed) table.
    ///
    /// Its buckets start full, whatever [`initial`](Self::initial) is.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), for the 43 bits that a table's slot has for a state (20 on
    /// targets without 64-bit atomics).
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Rate, TokenBucket};
    /// # use portcullis_core::keyed::{Line, Seed};
    /// let rules = TokenBucket::builder(Rate::per_minute(30), 60).stepwise().rules()?;
    /// let table = Keyed::new(rules, Line::for_keys(1_000), Seed::new());
    /// assert_eq!(table.rules().timing().tick.as_secs(), 60);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn rules(self) -> Result<TokenBucketRules, SettingsError> {
        match self.rules_on() {
            Ok((rules, _)) => Ok(rules),
            Err(error) => Err(error),
        }
    }

    /// The rules, and the state in which a bucket starts.
    const fn rules_on<W: Word>(&self) -> Result<(TokenBucketRules<W>, u64), SettingsError> {
        match self.bucket().start(W::BITS) {
            Ok((lattice, ticks, used)) => Ok((TokenBucketRules::on(&lattice, ticks), used)),
            Err(error) => Err(error),
        }
    }
}

//! A word that is judged by [`TokenBucketRules`], where the state and its transitions are
//! described.

mod rules;

use core::time::Duration;

pub use self::rules::TokenBucketRules;
use crate::limiter::queue_limiter::replenishing;
use crate::limiters::bucket_settings::BucketSettings;
use crate::rules::word_limiter::WordLimiter;
use crate::sync::const_unless_loom;
use crate::word::{NativeWord, Word};
use crate::{
    Composable, Denied, Idle, Lease, Limiter, LimiterId, Plan, Rate, Receipt, Refund, Retry,
    SettingsError, Timestamp,
};

/// A token bucket: holds at most `burst` permits, and gains them at an exact rational [`Rate`].
///
/// **Bound.** In any span of time t at most `burst + rate * t` permits, where t counts in whole
/// [ticks](TokenBucketBuilder::tick) if the tick is longer than 1 ns (it is 1 ns by default with a
/// 64-bit word).
///
/// **Exact.** Decision for decision equal to a bucket in rational arithmetic that judges a late
/// `now` no better than the newest; no drift at any rate. Retry times are exact to the nanosecond.
///
/// **Cost.** A grant is one load, one multiplication and one compare-exchange; a denial is the load
/// alone and writes nothing. Lock-free: a compare-exchange fails only because another one
/// succeeded, and those are bounded by the rate (or, on processors that link loads with stores,
/// because an interrupt came between). All accesses are `Relaxed`: a token carries no data.
///
/// **Horizon.** The word wraps. The bound holds for every `now` up to
/// [`staleness`](Self::staleness) older than the newest one. A bucket that has been idle for whole
/// multiples of [`horizon`](Self::horizon) may be told less than full for about that staleness and
/// the time to fill, never more. With 64 bits and a rate of a whole number of nanoseconds for each
/// permit the horizon is 584 years.
///
/// Source: the token bucket as a virtual schedule, like the generic cell rate algorithm of ITU-T
/// I.371 and ATM Forum TM 4.1, kept exact by scaling time to the rate.
///
/// ```
/// use portcullis_core::{Rate, Timestamp, TokenBucket};
///
/// // Ten permits a second, and up to three at once. In a static, bad settings do not compile.
/// static LIMIT: TokenBucket = TokenBucket::new(Rate::per_second(10), 3);
///
/// let now = Timestamp::from_secs(60);
/// for _ in 0..3 {
///     assert!(LIMIT.try_acquire_at(now, 1).is_ok());
/// }
/// assert!(LIMIT.try_acquire_at(now, 1).is_err());
/// assert!(LIMIT.try_acquire_at(Timestamp::from_millis(60_100), 1).is_ok());
/// ```
#[derive(Debug)]
pub struct TokenBucket<W: Word = NativeWord> {
    limiter: WordLimiter<TokenBucketRules<W>>,
}

impl TokenBucket {
    const_unless_loom! {
        /// A bucket that gains permits at `rate` and holds at most `burst` (at least 1); it starts
        /// full.
        ///
        /// # Panics
        ///
        /// Where [`TokenBucketBuilder::build`] would return an error; in a constant or a static,
        /// that is a compile error.
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

    /// Settings for a bucket that gains permits at `rate` and holds at most `burst` (at least 1).
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).build()?;
    /// assert_eq!(bucket.burst(), 10);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(rate: Rate, burst: u64) -> TokenBucketBuilder {
        TokenBucketBuilder {
            settings: BucketSettings::new(rate, burst),
        }
    }
}

impl<W: Word> TokenBucket<W> {
    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is answered as a request for
    /// 1 would be.
    ///
    /// The lease does nothing when dropped: tokens come back by time alone.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], or [`Denied::ExceedsCapacity`] if `n` is more than the burst.
    ///
    /// # Cost
    ///
    /// A load, a multiplication or two, and on success one compare-exchange. Never divides, blocks
    /// or panics.
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

    /// The whole permits in the bucket at `now`; `u64::MAX` at an unlimited rate. Divides.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(bucket.available_at(Timestamp::ZERO), 10);
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter.available(now)
    }

    /// Takes `n` permits at `now` even if they are not available, as long as no more than the
    /// [declared debt](TokenBucketBuilder::debt) is owed afterwards: for what has happened already.
    /// Nobody else is granted a permit until it has come in.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if that would owe more, [`Denied::ExceedsCapacity`] if `n` is more
    /// than burst and debt together. Nothing has changed then. (Its [`retry`](Limiter::retry) is
    /// when a take could be granted.)
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
    /// assert!(bucket.force_at(now, 2).is_err(), "5 are owed at most");
    /// let denied = bucket.try_acquire_at(now, 1).unwrap_err();
    /// assert_eq!(
    ///     denied.retry(&bucket),
    ///     Retry::At(Timestamp::from_millis(500))
    /// );
    /// ```
    pub fn force_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        let rules = self.limiter.rules();
        self.limiter
            .decide(now, |used| rules.force(used, now, n))
            .map(|_| ())
    }

    /// Whether the bucket is full at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{Idle, Rate, Timestamp, TokenBucket};
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

    /// The most permits that the bucket holds; what the word can count at an unlimited rate.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// assert_eq!(TokenBucket::new(Rate::per_second(5), 10).burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.limiter.rules().burst()
    }

    /// The grain in which the bucket counts time.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use core::time::Duration;
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).build_on::<u32>()?;
    /// assert_eq!(
    ///     bucket.tick(),
    ///     Duration::from_micros(1),
    ///     "brings 32 bits to 71 minutes"
    /// );
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn tick(&self) -> Duration {
        self.limiter.rules().tick()
    }

    /// How much older than the newest `now` another one may be for the bound to hold: at least one
    /// second. A `now` older than that may be taken for a bucket that has been idle.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// assert!(
    ///     TokenBucket::new(Rate::per_second(5), 10)
    ///         .staleness()
    ///         .as_secs()
    ///         > 36 * 365 * 86_400
    /// );
    /// ```
    pub fn staleness(&self) -> Duration {
        self.limiter.rules().staleness()
    }

    /// After how much idle time the word repeats: see the type's documentation. [`Duration::MAX`]
    /// for never.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// assert!(
    ///     TokenBucket::new(Rate::per_second(5), 10)
    ///         .horizon()
    ///         .as_secs()
    ///         > 580 * 365 * 86_400
    /// );
    /// ```
    pub fn horizon(&self) -> Duration {
        self.limiter.rules().horizon()
    }

    /// The state alone: to be kept through a deep sleep in which memory is lost, in a backup
    /// register or in flash, for [`with_state`](Self::with_state). It has as many bits as the word.
    /// What is taken after this is forgotten.
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

    /// This bucket, in the [`state`](Self::state) that one with the same settings was in. Time has
    /// to go on from the same origin: by a clock that runs through the sleep.
    ///
    /// Any number is a state: one from other settings, or damaged, grants at first less or more
    /// than the one that was saved, but no more than a full bucket. (A bucket that is built with
    /// fewer [initial](TokenBucketBuilder::initial) permits than its burst is full with some
    /// numbers.)
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

impl<W: Word> Limiter for TokenBucket<W> {
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.limiter.take(now, n)
    }

    #[inline]
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.limiter.plan(now, n).map(|_| ())
    }

    #[inline(always)]
    fn as_composable(&self) -> Option<&dyn Composable> {
        Some(self)
    }

    /// All of them, if the bucket is as the take left it; else none: they come back by refill. A
    /// take that is given back in whole counts as never made, also for what the newest `now` was.
    #[inline]
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.limiter.refund(now, n, receipt)
    }

    fn available_at(&self, now: Timestamp) -> u64 {
        self.available_at(now)
    }

    fn capacity(&self) -> u64 {
        self.burst()
    }

    fn idle_at(&self, now: Timestamp) -> Idle {
        self.idle_at(now)
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.limiter.retry(denied)
    }
}

impl<W: Word> Composable for TokenBucket<W> {
    #[inline]
    fn plan_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.limiter.plan(now, n)
    }

    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        self.limiter.take_as_planned(now, n, plan)
    }
}

replenishing!([W: Word] TokenBucket<W>);

/// Settings of a [`TokenBucket`]; from [`TokenBucket::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Rate, Timestamp, TokenBucket};
///
/// // 30 permits each minute, in steps of 30 on the minute; starts empty.
/// let bucket = TokenBucket::builder(Rate::per_minute(30), 60)
///     .stepwise()
///     .initial(0)
///     .build()?;
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(59), 1).is_err());
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(60), 30).is_ok());
/// // Two minutes at once.
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(180), 60).is_ok());
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct TokenBucketBuilder {
    settings: BucketSettings,
}

impl TokenBucketBuilder {
    /// The permits in the bucket at its [`origin`](Self::origin), at most the burst. Default: the
    /// burst. The buckets of a [`Keyed`](crate::Keyed) table start full all the same, for the
    /// reason given there.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .initial(4)
    ///     .build()?;
    /// assert_eq!(bucket.available_at(Timestamp::ZERO), 4);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn initial(mut self, permits: u64) -> Self {
        self.settings.initial = permits;
        self
    }

    /// The instant that the bucket starts at, and that steps are counted from. Default:
    /// [`Timestamp::ZERO`].
    ///
    /// A request at an earlier `now`, by up to the staleness, gets no more than one at the origin.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let start = Timestamp::from_secs(60);
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .initial(0)
    ///     .origin(start)
    ///     .build()?;
    /// assert_eq!(bucket.available_at(start), 0);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn origin(mut self, origin: Timestamp) -> Self {
        self.settings.origin = origin;
        self
    }

    /// Refills in steps: all of the rate's permits at the end of each of its periods, counted from
    /// the [`origin`](Self::origin). Default: continuously.
    ///
    /// **Bound** of a stepwise bucket: in any span of time `burst + permits * k`, with k the ends
    /// of periods in it.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .initial(0)
    ///     .stepwise()
    ///     .build()?;
    /// assert_eq!(bucket.available_at(Timestamp::from_millis(999)), 0);
    /// assert_eq!(bucket.available_at(Timestamp::from_millis(1_000)), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn stepwise(mut self) -> Self {
        self.settings.terms.stepwise = true;
        self
    }

    /// The permits that may be owed after [`TokenBucket::force_at`]. Default: 0.
    ///
    /// **Bound** of a bucket with a debt: in any span of time t at most `burst + debt + rate * t`
    /// permits.
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

    /// Counts time in grains of `tick`, 1 ns to 292 years, by rounding each `now` down. A coarser
    /// tick brings a farther horizon.
    ///
    /// Default: 1 ns. With a 32-bit word, the finest of 1 ns, 10 ns, ... 10 s whose horizon is an
    /// hour or more, or if there is none, the one with the farthest.
    ///
    /// Has no meaning for a [`stepwise`](Self::stepwise) bucket, whose tick is its period.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .tick(Duration::from_millis(1))
    ///     .build()?;
    /// assert_eq!(bucket.tick(), Duration::from_millis(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.settings.terms.tick = Some(tick);
        self
    }

    /// How old a `now` may be, against the newest, for the bound to hold: at least one second.
    /// Default: a sixteenth of the horizon where that is beyond 292 years, else a 256th of it, up
    /// to an hour.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10)
    ///     .staleness(Duration::from_secs(60))
    ///     .build()?;
    /// assert_eq!(bucket.staleness(), Duration::from_secs(60));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn staleness(mut self, staleness: Duration) -> Self {
        self.settings.terms.staleness = Some(staleness);
        self
    }

    const_unless_loom! {
        /// The bucket, on the target's own word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound: a burst of zero, initial permits
        /// above the burst, a period or tick outside of 1 ns to 292 years, a staleness under 1 s, a
        /// rate that the word cannot carry for a second, or a burst whose time to fill exceeds a
        /// quarter of the horizon.
        ///
        /// ```
        /// # use portcullis_core::{Rate, Setting, SettingsError, TokenBucket};
        /// let refused =
        ///     TokenBucket::builder(Rate::per_second(5), 10).initial(11).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Initial, max: 10 });
        /// ```
        pub const fn build(self) -> Result<TokenBucket, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// The bucket on a word of a chosen width, say to try on a workstation what a
        /// microcontroller will do.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::{Rate, TokenBucket, TokenBucketBuilder};
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

    /// The rules alone, for a [`Keyed`](crate::Keyed) table. Its buckets start full, whatever
    /// [`initial`](Self::initial) says.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build), in the 43 bits that an entry of a table has for a state (20 on
    /// targets without 64-bit atomics).
    ///
    /// ```
    /// # use portcullis_core::{Keyed, Line, Rate, Seed, TokenBucket};
    /// let rules = TokenBucket::builder(Rate::per_minute(30), 60).stepwise().rules()?;
    /// let table = Keyed::new(rules, Line::for_keys(1_000), Seed::new());
    /// assert_eq!(table.rules()[0].tick().as_secs(), 60);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn rules(self) -> Result<TokenBucketRules, SettingsError> {
        match self.rules_on() {
            Ok((rules, _)) => Ok(rules),
            Err(error) => Err(error),
        }
    }

    /// The rules, and the state that a bucket starts in.
    const fn rules_on<W: Word>(&self) -> Result<(TokenBucketRules<W>, u64), SettingsError> {
        match self.settings.start(W::BITS) {
            Ok((lattice, ticks, used)) => Ok((TokenBucketRules::on(&lattice, ticks), used)),
            Err(error) => Err(error),
        }
    }
}

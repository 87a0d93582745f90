//! [`WarmingBucket`]: one state word and its rules. The file of the rules describes the state and
//! its transitions.

mod rules;

use core::time::Duration;

use self::rules::{WarmingRules, WarmingTerms};
use crate::leases::lease::Lease;
use crate::limiter::Idle;
use crate::limiter::denied::Denied;
use crate::limiter::queue_limiter::replenishing;
use crate::rules::word_limiter::{WordLimiter, around_word};
use crate::sync::const_unless_loom;
use crate::time::rate::Rate;
use crate::time::timestamp::Timestamp;
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::settings::SettingsError;
use crate::word::{NativeWord, Word};

/// A token bucket whose rate warms up: after the bucket was unused, permits return slowly at
/// first, and faster the more of them are used, up to the stable [`Rate`].
///
/// It protects a service that needs time to reach its full speed, for example to fill its caches.
/// The bucket holds at most `burst` permits, and starts full and cold. A request for `n` permits is
/// granted if the bucket holds `n` permits, and denied otherwise. Permits return by time alone, so
/// nothing has to be released, and dropping a lease does nothing. The bucket reads no clock: each
/// call passes the time, `now`. `W` is the type of the [state word](crate::state::Word).
///
/// **Warm-up.** At the stable rate, a permit returns `1 / rate` after the one before it. From a
/// cold bucket, it takes [`cold_factor`](WarmingBucketBuilder::cold_factor) times as long
/// (default: 3). In use without a pause, this time falls linearly with each permit, and reaches `1
/// / rate` after the warm-up time `T`. In this time `M = 2 * T * rate / (1 + cold factor)` permits
/// return. A bucket cools down only while it is full. A bucket that is completely warm is cold
/// after `T`. In the first part of that time, half of it by default, the rate is still the stable
/// one.
///
/// **Bound.** Any span `t` of `now` admits at most `burst + rate * t` permits. If the
/// [tick](WarmingBucketBuilder::tick) is longer than 1 ns, time counts in whole ticks. If the
/// bucket was cold before the span, it admits at most `burst + m` permits, where `m` is the number
/// of permits that return in `t`. For `m` up to `M`, these need at least `t = (c * m - (c - 1) *
/// m^2 / (2 * M)) / rate`, where `c` is the cold factor. This is the sum of the times between
/// permits, which fall from `c / rate` to `1 / rate` over `M` permits. For example, with 10 permits
/// per second, a cold factor of 3 and `T` = 3 s, `M` is 15. The first 5 permits then need 1.33 s,
/// and all 15 need 3 s. The bucket is cold if it was full for `T`. A shorter time leaves it partly
/// cold. Each such time counts in steps, rounded up. A step is at most a sixteenth of what one
/// permit warms the bucket (with a 32-bit word, a quarter), or up to the whole of it if the word
/// has no room for finer steps.
///
/// **Errors.** [`Denied::Exhausted`] if there are too few permits, and [`Denied::ExceedsCapacity`]
/// if the request is for more than the burst. [`Denied::retry`] says when the permits are
/// available, exactly to the tick. The stable rate has no drift. A `now` that is older than that of
/// the newest grant is granted no more than that time would be.
///
/// **Cost.** Uncontended, a grant is one load, some multiplications (7 from a warm bucket, up to 14
/// from a cold one) and one compare-exchange. A denial loads the word and writes nothing.
/// Lock-free: a compare-exchange fails because another call's compare-exchange succeeded. (With
/// load-linked and store-conditional instructions, an interrupt can also make one fail.) All
/// accesses are `Relaxed`: a grant orders no other memory accesses.
///
/// **Horizon.** The state word wraps. The bound holds for every `now` that is at most
/// [`staleness`](Self::timing) older than the newest one. After idling for a whole number of
/// [horizons](Self::timing), a bucket may hold too few permits, for about the staleness plus the
/// time to fill. In the `T` after that, it may count as warmer than it is. The bound
/// `burst + rate * t` still holds. With a 64-bit word and the default tick, the horizon is 30 days
/// or more with up to 10,000 permits per second and 100,000 in the warm-up time, if `1 / rate` is a
/// whole number of ticks, and ten years or more with up to 10 permits per second. Otherwise it is
/// shorter: 14 minutes with 9,973 permits per second and a warm-up of 10 s. The same holds at
/// higher rates: 45 minutes with a million permits per second.
///
/// Source: `SmoothWarmingUp` of Guava's `RateLimiter`, and the warm-up of Sentinel. A cold bucket
/// warms up at the same rates there. Here a request waits for its own permits, and not for those of
/// the request before it.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Rate, Timestamp, WarmingBucket};
///
/// // 10 permits per second after a warm-up of 3 s, and at most 1 at once.
/// static LIMIT: WarmingBucket =
///     WarmingBucket::new(Rate::per_second(10), 1, Duration::from_secs(3));
///
/// // Cold: the second permit comes after nearly three times 100 ms.
/// assert!(LIMIT.try_acquire_at(Timestamp::ZERO, 1).is_ok());
/// assert!(LIMIT.try_acquire_at(Timestamp::from_millis(290), 1).is_err());
/// assert!(LIMIT.try_acquire_at(Timestamp::from_millis(300), 1).is_ok());
///
/// // In use without a pause, permits come every 100 ms after 3 s.
/// let granted = |from, to| {
///     (from..to).filter(|&ms| LIMIT.try_acquire_at(Timestamp::from_millis(ms), 1).is_ok()).count()
/// };
/// assert_eq!(granted(301, 1_000), 2);
/// assert_eq!(granted(1_000, 4_000), 21);
/// assert_eq!(granted(4_000, 5_000), 10);
/// ```
#[derive(Debug)]
pub struct WarmingBucket<W: Word = NativeWord> {
    limiter: WordLimiter<WarmingRules<W>>,
}

impl WarmingBucket {
    const_unless_loom! {
        /// Creates a bucket that gains permits at `rate` after a `warm_up`, and holds at most
        /// `burst` permits (at least 1). The bucket starts full and cold.
        ///
        /// The warm-up must be at least twice as long as `burst` permits need at the rate.
        ///
        /// # Panics
        ///
        /// If [`WarmingBucketBuilder::build`] would return an error. In a constant or a static,
        /// this is a compile error.
        ///
        /// ```
        /// # use core::time::Duration;
        /// use portcullis_core::{Rate, WarmingBucket};
        /// static LIMIT: WarmingBucket =
        ///     WarmingBucket::new(Rate::per_second(1_000), 100, Duration::from_secs(10));
        /// ```
        ///
        /// ```compile_fail
        /// # use core::time::Duration;
        /// use portcullis_core::{Rate, WarmingBucket};
        /// static LIMIT: WarmingBucket =
        ///     WarmingBucket::new(Rate::per_second(10), 100, Duration::from_secs(10));
        /// ```
        pub const fn new(rate: Rate, burst: u64, warm_up: Duration) -> Self {
            match Self::builder(rate, burst, warm_up).build() {
                Ok(bucket) => bucket,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Returns a builder for a bucket that gains permits at `rate` after a `warm_up` (1 ns to 292
    /// years), and holds at most `burst` permits (at least 1).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, WarmingBucket};
    /// let warm_up = Duration::from_secs(4);
    /// let bucket = WarmingBucket::builder(Rate::per_second(5), 10, warm_up).build()?;
    /// assert_eq!(bucket.burst(), 10);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(rate: Rate, burst: u64, warm_up: Duration) -> WarmingBucketBuilder {
        Builder::new(WarmingTerms {
            rate,
            burst,
            warm_up,
            cold_factor: 3,
        })
    }
}

impl<W: Word> WarmingBucket<W> {
    /// Takes `n` permits at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    ///
    /// The lease does nothing when dropped: permits return by time alone.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the bucket holds fewer than `n` permits, or
    /// [`Denied::ExceedsCapacity`] if `n` is more than the burst.
    ///
    /// # Cost
    ///
    /// A load, up to 14 multiplications, and on success one compare-exchange. Never divides, blocks
    /// or panics.
    ///
    /// ```
    /// # use core::time::Duration;
    /// use portcullis_core::{Rate, Retry, Timestamp, WarmingBucket};
    ///
    /// let bucket = WarmingBucket::new(Rate::per_second(5), 1, Duration::from_secs(4));
    /// assert!(bucket.try_acquire_at(Timestamp::ZERO, 1).is_ok());
    /// let denied = bucket.try_acquire_at(Timestamp::ZERO, 1).unwrap_err();
    /// // Three times 200 ms, less half of what one permit warms.
    /// assert_eq!(denied.retry(&bucket), Retry::At(Timestamp::from_millis(580)));
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the permits available at `now`. Bisects: about as many steps as the burst has bits.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, WarmingBucket};
    /// let bucket = WarmingBucket::new(Rate::per_second(5), 10, Duration::from_secs(4));
    /// assert_eq!(bucket.available_at(Timestamp::ZERO), 10);
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        self.limiter.available(now)
    }

    /// Returns how long the next permit that is taken at `now` will need to return, after those
    /// before it: from `1 / rate` if the bucket is warm, to nearly the cold factor times that.
    /// Rounded up to whole ticks. Divides.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, WarmingBucket};
    /// let bucket = WarmingBucket::new(Rate::per_second(5), 10, Duration::from_secs(4));
    /// assert_eq!(bucket.interval_at(Timestamp::ZERO), Duration::from_millis(580));
    /// bucket.try_acquire_at(Timestamp::ZERO, 10).unwrap();
    /// assert_eq!(bucket.interval_at(Timestamp::ZERO), Duration::from_millis(200));
    /// ```
    pub fn interval_at(&self, now: Timestamp) -> Duration {
        self.limiter.rules().interval(self.limiter.state(), now)
    }

    /// Returns whether the bucket is full and cold at `now`, as a new one, and since when.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, WarmingBucket};
    /// # use portcullis_core::limiter::Idle;
    /// let bucket = WarmingBucket::new(Rate::per_second(5), 10, Duration::from_secs(4));
    /// assert!(bucket.idle_at(Timestamp::ZERO).is_idle());
    /// bucket.try_acquire_at(Timestamp::ZERO, 1).unwrap();
    /// // Full, but warmer than a new one.
    /// assert_eq!(bucket.idle_at(Timestamp::from_millis(600)), Idle::InUse);
    /// assert!(bucket.idle_at(Timestamp::from_secs(1)).is_idle());
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        self.limiter.idle(now)
    }

    /// Returns the most permits that the bucket holds.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, WarmingBucket};
    /// let bucket = WarmingBucket::new(Rate::per_second(5), 10, Duration::from_secs(4));
    /// assert_eq!(bucket.burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.limiter.rules().burst()
    }

    /// Returns how the bucket counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, WarmingBucket};
    /// let bucket = WarmingBucket::builder(Rate::per_second(5), 10, Duration::from_secs(4))
    ///     .tick(Duration::from_millis(1))
    ///     .build()?;
    /// assert_eq!(bucket.timing().tick, Duration::from_millis(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn timing(&self) -> Timing {
        self.limiter.rules().timing()
    }

    /// Returns the state word, to be saved for [`with_state`](Self::with_state).
    ///
    /// Save it in a backup register or in flash before a deep sleep in which memory is lost. The
    /// state has as many bits as the word. It does not include permits that are taken after this
    /// call.
    ///
    /// # Cost
    ///
    /// A load.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, WarmingBucket};
    /// let new = || WarmingBucket::new(Rate::per_second(10), 3, Duration::from_secs(2));
    /// let limit = new();
    /// assert!(limit.try_acquire_at(Timestamp::from_secs(60), 3).is_ok());
    /// let saved = limit.state();
    ///
    /// // Awake again, 50 ms later.
    /// let limit = new().with_state(saved);
    /// assert!(limit.try_acquire_at(Timestamp::from_millis(60_050), 1).is_err());
    /// ```
    pub fn state(&self) -> u64 {
        self.limiter.state()
    }

    /// Restores a [`state`](Self::state) that was saved from a bucket with the same settings.
    ///
    /// Time must continue from the same origin: use a clock that runs through the sleep.
    ///
    /// Any number is a valid state. A damaged state, or one from other settings, may at first grant
    /// fewer or more permits than the saved bucket would have, but no more than a full bucket, and
    /// may be warmer or colder.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, WarmingBucket};
    /// let new = || WarmingBucket::new(Rate::per_second(10), 3, Duration::from_secs(2));
    /// let limit = new().with_state(new().state());
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
    /// return by refill. The bucket is then as cold as the take found it: if it was full, it stays
    /// cooled down up to the time of the take. If the take left it as warm as it can be, it may be
    /// colder than before, by at most what `n` permits warm.
    ///
    /// The time of the take still counts as the newest one. So a request whose `now` is before that
    /// time may be granted what it would be at that time, and more than before the take.
    [W: Word] WarmingBucket<W> => |bucket| bucket;
}

replenishing!([W: Word] WarmingBucket<W>);

/// Builds a [`WarmingBucket`]. Created by [`WarmingBucket::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Rate, WarmingBucket};
///
/// // Starts at a tenth of the rate.
/// let bucket = WarmingBucket::builder(Rate::per_second(100), 5, Duration::from_secs(60))
///     .cold_factor(10)
///     .build()?;
/// assert_eq!(bucket.burst(), 5);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type WarmingBucketBuilder = Builder<WarmingBucket>;

impl Sealed for WarmingBucket {
    type Settings = WarmingTerms;
}

impl Ticks for WarmingBucket {}

impl Builder<WarmingBucket> {
    /// Sets how many times as long as at the stable rate a permit needs to return from a cold
    /// bucket: at least 1, which means no warm-up. Default: 3.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, WarmingBucket};
    /// let even = WarmingBucket::builder(Rate::per_second(5), 1, Duration::from_secs(4))
    ///     .cold_factor(1)
    ///     .build()?;
    /// assert_eq!(even.interval_at(Timestamp::ZERO), Duration::from_millis(200));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn cold_factor(mut self, factor: u32) -> Self {
        self.settings.cold_factor = factor;
        self
    }

    const_unless_loom! {
        /// Builds the bucket on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound:
        ///
        /// - the burst, the cold factor or the rate is zero, or the rate is unlimited;
        /// - the warm-up is shorter than twice the time of `burst` permits at the rate;
        /// - the warm-up is too long for the word, at this rate: there may be at most some ten
        ///   million permits in it;
        /// - the rate is too high for one second of it to fit the word;
        /// - the rate's period, the tick or the warm-up is outside of 1 ns to 292 years;
        /// - the burst takes more than a quarter of the horizon to return from a cold bucket;
        /// - the staleness is shorter than 1 s, or too long for the word.
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Rate, WarmingBucket};
        /// let refused = WarmingBucket::builder(Rate::per_second(5), 10, Duration::from_secs(3))
        ///     .build()
        ///     .unwrap_err();
        /// assert_eq!(refused.to_string(), "warm_up must be at least 4 s");
        /// ```
        pub const fn build(self) -> Result<WarmingBucket, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds the bucket on a word of a chosen width.
        ///
        /// For example, to test on a workstation what a microcontroller will do. A 32-bit word has
        /// room for a warm-up of some thousand permits.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use core::time::Duration;
        /// # use portcullis_core::{Rate, WarmingBucket};
        /// # use portcullis_core::builder::WarmingBucketBuilder;
        /// const BUILDER: WarmingBucketBuilder =
        ///     WarmingBucket::builder(Rate::per_second(10), 5, Duration::from_secs(10));
        /// static LIMIT: WarmingBucket<u32> = match BUILDER.build_on() {
        ///     Ok(bucket) => bucket,
        ///     Err(_) => panic!("does not fit"),
        /// };
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<WarmingBucket<W>, SettingsError> {
            match self.settings.rules(&self.timing) {
                Ok((rules, state)) => Ok(WarmingBucket { limiter: WordLimiter::new(rules, state) }),
                Err(error) => Err(error),
            }
        }
    }
}

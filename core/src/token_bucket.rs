//! State: one word, `used`, the position up to which the tokens that ever came in are used up.
//!
//! ```text
//! a lattice, wrapping in the word:  1 tick = gain units,  1 permit = cost units,  gain / cost = the rate
//!
//!        used                  position = ticks(now) * gain
//!   ------|------------------------|------>        available = (position - used) / cost
//!         |<---- at most full ---->|               full      = burst * cost
//! ```
//!
//! Invariant: `used` never exceeds the position of the newest `now`, and a take moves it by exactly `cost` for each permit
//! from no further back than `full` behind that `now`.
//!
//! Seen from `used`, the wrapped distance to the position says all, read off one circle:
//!
//! ```text
//! 0 ........ full | full+1 ................ behind-1 | behind ........ 2^bits-1
//!  this much is    |  idle for longer than it takes   |  `now` is older than the newest:
//!  available       |  to fill: full                   |  nothing available
//! ```
//!
//! One multiplication and no rounding: gain and cost are the configured rate in lowest terms, so that the bucket agrees
//! with a continuous one in rational arithmetic on every decision. A rate in steps is the same lattice
//! with a tick as long as the period.

use core::hint::cold_path;
use core::time::Duration;

use crate::grid::Grid;
use crate::settings::{self, MIN_STALENESS, Misfit, Scale};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::timestamp::saturating_duration;
use crate::word::{AtomicWord, NativeWord, Word, narrow};
use crate::{Denied, Idle, Lease, Limiter, Plan, Rate, Receipt, Retry, Setting, SettingsError, Timestamp};

/// A token bucket: holds at most `burst` permits, and gains them at an exact rational [`Rate`].
///
/// **Bound.** In any span of time t at most `burst + rate * t` permits, where t counts in whole [ticks](TokenBucketBuilder::tick)
/// if the tick is longer than 1 ns (it is 1 ns by default with a 64-bit word).
///
/// **Exact.** Decision for decision equal to a bucket in rational arithmetic that judges a late `now` no better than
/// the newest; no drift at any rate. Retry times are exact to the nanosecond.
///
/// **Cost.** A grant is one load, one multiplication and one compare-exchange; a denial is the load alone and writes
/// nothing. Lock-free: a compare-exchange fails only because another one succeeded, and those
/// are bounded by the rate (or, on processors that link loads with stores, because an interrupt came between).
/// All accesses are `Relaxed`: a token carries no data.
///
/// **Horizon.** The word wraps. The bound holds for every `now` up to [`staleness`](Self::staleness) older than the newest
/// one. A bucket that has been idle for whole multiples of [`horizon`](Self::horizon) may be told less than full for about that
/// staleness and the time to fill, never more. With 64 bits and a rate of a whole number of nanoseconds for each permit the
/// horizon is 584 years.
///
/// Source: the token bucket as a virtual schedule, like the generic cell rate algorithm of ITU-T I.371 and ATM Forum TM 4.1,
/// kept exact by scaling time to the rate.
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
    used: AtomicWord<W>,
    gain: W,
    cost: W,
    full: W,
    behind: W,
    burst: W,
    ticks: Grid,
}

impl TokenBucket {
    const_unless_loom! {
        /// A bucket that gains permits at `rate` and holds at most `burst` (at least 1); it starts full.
        ///
        /// # Panics
        ///
        /// Where [`TokenBucketBuilder::build`] would return an error; in a constant or a static, that is
        /// a compile error.
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
            rate,
            burst,
            initial: burst,
            origin: Timestamp::ZERO,
            tick: None,
            stepwise: false,
            staleness: None,
        }
    }
}

impl<W: Word> TokenBucket<W> {
    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is answered as a request for 1 would be.
    ///
    /// The lease does nothing when dropped: tokens come back by time alone.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], or [`Denied::ExceedsCapacity`] if `n` is more than the burst.
    ///
    /// # Cost
    ///
    /// A load, a multiplication or two, and on success one compare-exchange. Never divides, blocks or panics.
    ///
    /// ```
    /// use portcullis_core::{Denied, Rate, Timestamp, TokenBucket};
    ///
    /// let bucket = TokenBucket::new(Rate::per_second(5), 10);
    /// let now = Timestamp::ZERO;
    /// assert_eq!(bucket.try_acquire_at(now, 7).unwrap().permits(), 7);
    /// assert!(matches!(bucket.try_acquire_at(now, 4), Err(Denied::Exhausted { .. })));
    /// assert!(matches!(bucket.try_acquire_at(now, 11), Err(Denied::ExceedsCapacity { capacity: 10, .. })));
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
        if self.is_unlimited() {
            return u64::MAX;
        }
        self.judge(self.position(now), self.used.load(Relaxed)) / self.cost()
    }

    /// Whether the bucket is full at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{Idle, Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::new(Rate::per_second(5), 10);
    /// bucket.try_acquire_at(Timestamp::from_secs(1), 1).unwrap();
    /// assert_eq!(bucket.idle_at(Timestamp::from_secs(1)), Idle::InUse);
    /// assert_eq!(bucket.idle_at(Timestamp::from_secs(9)), Idle::Since(Timestamp::from_millis(1_200)));
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        if self.is_unlimited() {
            return Idle::Now;
        }
        let (used, full) = (self.used.load(Relaxed), self.full());
        let position = self.position(now);
        let distance = position.wrapping_sub(used) & W::MASK;
        if distance < full || distance >= self.behind.into() {
            return Idle::InUse;
        }
        match (distance - full).checked_div(self.gain.into()) {
            Some(ticks) => Idle::Since(self.instant(self.ticks.index(now).saturating_sub(ticks))),
            None => Idle::Now,
        }
    }

    /// The most permits that the bucket holds; what the word can count at an unlimited rate.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// assert_eq!(TokenBucket::new(Rate::per_second(5), 10).burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.burst.into()
    }

    /// The grain in which the bucket counts time.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// # use core::time::Duration;
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).build_on::<u32>()?;
    /// assert_eq!(bucket.tick(), Duration::from_micros(1), "brings 32 bits to 71 minutes");
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn tick(&self) -> Duration {
        Duration::from_nanos(self.ticks.step())
    }

    /// How much older than the newest `now` another one may be for the bound to hold: at least one second.
    /// A `now` older than that may be taken for a bucket that has been idle.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// assert!(TokenBucket::new(Rate::per_second(5), 10).staleness().as_secs() > 36 * 365 * 86_400);
    /// ```
    pub fn staleness(&self) -> Duration {
        let behind: u64 = self.behind.into();
        self.span(W::MASK - behind + 1)
    }

    /// After how much idle time the word repeats: see the type's documentation. [`Duration::MAX`] for never.
    ///
    /// ```
    /// # use portcullis_core::{Rate, TokenBucket};
    /// assert!(TokenBucket::new(Rate::per_second(5), 10).horizon().as_secs() > 580 * 365 * 86_400);
    /// ```
    pub fn horizon(&self) -> Duration {
        self.span(W::MASK)
    }

    /// The time in which the position moves by `units`.
    fn span(&self, units: u64) -> Duration {
        match units.checked_div(self.gain.into()) {
            Some(ticks) => saturating_duration(u128::from(ticks) * u128::from(self.ticks.step())),
            None => Duration::MAX,
        }
    }

    #[inline(always)]
    fn cost(&self) -> u64 {
        self.cost.into()
    }

    #[inline(always)]
    fn full(&self) -> u64 {
        self.full.into()
    }

    #[inline(always)]
    fn is_unlimited(&self) -> bool {
        self.cost() == 0
    }

    #[inline(always)]
    fn position(&self, now: Timestamp) -> u64 {
        self.ticks.index(now).wrapping_mul(self.gain.into()) & W::MASK
    }

    fn instant(&self, tick: u64) -> Timestamp {
        self.ticks.start(tick).unwrap_or(Timestamp::MAX)
    }

    /// The units that a bucket used up to `used` has at `position`: the circle above.
    #[inline(always)]
    fn judge(&self, position: u64, used: u64) -> u64 {
        match position.wrapping_sub(used) & W::MASK {
            distance if distance <= self.full() => distance,
            distance if distance < self.behind.into() => self.full(),
            _ => 0,
        }
    }

    /// Where a bucket that is used up to `used` will be used up to by a take at `position`, if there is enough.
    #[inline(always)]
    fn left(&self, position: u64, used: u64, price: u64) -> Option<u64> {
        // The price is at most `full`. The compiler does not know, and so does not turn `target - used` below into `position -
        // (used + price)`, which would have the comparison wait for the sum.
        let least = price.min(self.full());
        let (target, most) = (position.wrapping_sub(least), self.full() - least);
        let distance = position.wrapping_sub(used) & W::MASK;
        // What would be left: one comparison tells that there is enough, and not more than full.
        let from = if target.wrapping_sub(used) & W::MASK <= most {
            used
        } else if distance < price {
            return None;
        } else {
            // Idle, or late. Told that this is unlikely, the compiler branches, and the exchange need not wait for the position.
            cold_path();
            if distance >= self.behind.into() {
                return None;
            }
            position.wrapping_sub(self.full())
        };
        Some(from.wrapping_add(price) & W::MASK)
    }

    #[inline(always)]
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if u64::from(n) > self.burst() {
            // The burst is less than `n`, so it fits.
            return Err(Denied::ExceedsCapacity { permits: n, capacity: self.burst() as u32 });
        }
        let price = u64::from(n) * self.cost();
        let position = self.position(now);
        let mut used = self.used.load(Relaxed);
        if price == 0 {
            // A probe, or no limit: nothing to write.
            let enough = self.judge(position, used) >= self.cost();
            return if enough { Ok(Receipt::NONE) } else { Err(Denied::Exhausted { now, permits: n }) };
        }
        loop {
            let Some(left) = self.left(position, used, price) else {
                return Err(Denied::Exhausted { now, permits: n });
            };
            match self.used.compare_exchange_weak(used, left, Relaxed, Relaxed) {
                Ok(_) => return Ok(Receipt::new(left)),
                Err(newer) => used = newer,
            }
        }
    }

    #[inline(always)]
    fn look(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        if u64::from(n) > self.burst() {
            return Err(Denied::ExceedsCapacity { permits: n, capacity: self.burst() as u32 });
        }
        let price = u64::from(n.max(1)) * self.cost();
        let seen = self.used.load(Relaxed);
        match self.left(self.position(now), seen, price) {
            Some(_) if n == 0 => Ok(Plan::NONE),
            Some(left) => Ok(Plan { seen, left }),
            None => Err(Denied::Exhausted { now, permits: n }),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_anew(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    /// Takes a take back, if nobody has taken since: any later take builds on the word that this one left.
    fn undo(&self, n: u32, receipt: &mut Receipt) -> u32 {
        if n == 0 || self.is_unlimited() {
            return n;
        }
        if u64::from(n) > self.burst() {
            return 0;
        }
        let left = receipt.note();
        let restored = left.wrapping_sub(u64::from(n) * self.cost()) & W::MASK;
        loop {
            match self.used.compare_exchange_weak(left, restored, Relaxed, Relaxed) {
                Ok(_) => {
                    *receipt = Receipt::new(restored);
                    return n;
                }
                Err(newer) if newer == left => {}
                Err(_) => return 0,
            }
        }
    }
}

impl<W: Word> Limiter for TokenBucket<W> {
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    #[inline]
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.look(now, n)
    }

    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        // A plan that takes nothing is for a probe, or for no limit.
        if plan.left != plan.seen
            && self.used.compare_exchange_weak(plan.seen, plan.left, Relaxed, Relaxed).is_ok()
        {
            return Ok(Receipt::new(plan.left));
        }
        self.take_anew(now, n)
    }

    /// All of them, if the bucket is as the take left it; else none: they come back by refill.
    fn refund_at(&self, _: Timestamp, n: u32, receipt: &mut Receipt) -> u32 {
        self.undo(n, receipt)
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
        let Denied::Exhausted { now, permits } = denied else { return Retry::Never };
        if u64::from(permits.max(1)) > self.burst() {
            return Retry::Never;
        }
        let price = u64::from(permits.max(1)) * self.cost();
        let (tick, position) = (self.ticks.index(now), self.position(now));
        let used = self.used.load(Relaxed);
        let available = self.judge(position, used);
        if available >= price {
            return Retry::At(now);
        }
        // How far the position must move: `used` may be ahead of it, if `now` is older than the newest.
        let distance = position.wrapping_sub(used) & W::MASK;
        let missing = if available == 0 && distance != 0 {
            u128::from(W::MASK - distance) + 1 + u128::from(price)
        } else {
            u128::from(price - available)
        };
        if self.gain.into() == 0 {
            return Retry::Never;
        }
        u64::try_from(missing.div_ceil(u128::from(self.gain.into())))
            .ok()
            .and_then(|ticks| tick.checked_add(ticks))
            .and_then(|tick| self.ticks.start(tick))
            .map_or(Retry::Never, Retry::At)
    }
}

/// Settings of a [`TokenBucket`]; from [`TokenBucket::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Rate, Timestamp, TokenBucket};
///
/// // 30 permits each minute, in steps of 30 on the minute; starts empty.
/// let bucket = TokenBucket::builder(Rate::per_minute(30), 60).stepwise().initial(0).build()?;
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(59), 1).is_err());
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(60), 30).is_ok());
/// // Two minutes at once.
/// assert!(bucket.try_acquire_at(Timestamp::from_secs(180), 60).is_ok());
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct TokenBucketBuilder {
    rate: Rate,
    burst: u64,
    initial: u64,
    origin: Timestamp,
    tick: Option<Duration>,
    stepwise: bool,
    staleness: Option<Duration>,
}

impl TokenBucketBuilder {
    /// The permits in the bucket at its [`origin`](Self::origin), at most the burst. Default: the burst.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).initial(4).build()?;
    /// assert_eq!(bucket.available_at(Timestamp::ZERO), 4);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn initial(mut self, permits: u64) -> Self {
        self.initial = permits;
        self
    }

    /// The instant that the bucket starts at, and that steps are counted from. Default: [`Timestamp::ZERO`].
    ///
    /// An earlier `now`, by up to the staleness, is told no more than this one would be.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let start = Timestamp::from_secs(60);
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).initial(0).origin(start).build()?;
    /// assert_eq!(bucket.available_at(start), 0);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn origin(mut self, origin: Timestamp) -> Self {
        self.origin = origin;
        self
    }

    /// Refills in steps: all of the rate's permits at the end of each of its periods, counted from the
    /// [`origin`](Self::origin). Default: continuously.
    ///
    /// **Bound** of a stepwise bucket: in any span of time `burst + permits * k`, with k the ends of periods in it.
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).initial(0).stepwise().build()?;
    /// assert_eq!(bucket.available_at(Timestamp::from_millis(999)), 0);
    /// assert_eq!(bucket.available_at(Timestamp::from_millis(1_000)), 5);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn stepwise(mut self) -> Self {
        self.stepwise = true;
        self
    }

    /// Counts time in grains of `tick`, 1 ns to 292 years, by rounding each `now` down. A coarser tick brings a farther horizon.
    ///
    /// Default: 1 ns. With a 32-bit word, the finest of 1 ns, 10 ns, ... 10 s whose horizon is an hour or more, or
    /// if there is none, the one with the farthest.
    ///
    /// Has no meaning for a [`stepwise`](Self::stepwise) bucket, whose tick is its period.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).tick(Duration::from_millis(1)).build()?;
    /// assert_eq!(bucket.tick(), Duration::from_millis(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.tick = Some(tick);
        self
    }

    /// How old a `now` may be, against the newest, for the bound to hold: at least one second. Default: a sixteenth of
    /// the horizon where that is beyond 292 years, else a 256th of it, up to an hour.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
    /// let bucket = TokenBucket::builder(Rate::per_second(5), 10).staleness(Duration::from_secs(60)).build()?;
    /// assert_eq!(bucket.staleness(), Duration::from_secs(60));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn staleness(mut self, staleness: Duration) -> Self {
        self.staleness = Some(staleness);
        self
    }

    const_unless_loom! {
        /// The bucket, on the target's own word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound: a burst of zero, initial permits above the burst, a
        /// period or tick outside of 1 ns to 292 years, a staleness under 1 s, a rate that the word cannot
        /// carry for a second, or a burst whose time to fill exceeds a quarter of the horizon.
        ///
        /// ```
        /// # use portcullis_core::{Rate, Setting, SettingsError, TokenBucket};
        /// let refused = TokenBucket::builder(Rate::per_second(5), 10).initial(11).build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Initial, max: 10 });
        /// ```
        pub const fn build(self) -> Result<TokenBucket, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// The bucket on a word of a chosen width, say to try on a workstation what a microcontroller will do.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::{Rate, TokenBucket};
        /// static LIMIT: TokenBucket<u32> = match TokenBucket::builder(Rate::per_second(1_000), 10).build_on() {
        ///     Ok(bucket) => bucket,
        ///     Err(_) => panic!("does not fit"),
        /// };
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<TokenBucket<W>, SettingsError> {
            let lattice = match self.lattice(W::BITS) {
                Ok(lattice) => lattice,
                Err(error) => return Err(error),
            };
            let ticks = Grid::new(self.origin, lattice.tick);
            // The position of the origin, less what the bucket starts with.
            let used = ticks.index(self.origin).wrapping_mul(lattice.gain).wrapping_sub(lattice.initial);
            Ok(TokenBucket {
                used: AtomicWord::new(used & W::MASK),
                gain: narrow(lattice.gain),
                cost: narrow(lattice.cost),
                full: narrow(lattice.full),
                behind: narrow(lattice.behind),
                burst: narrow(lattice.burst),
                ticks,
            })
        }
    }

    const fn lattice(&self, bits: u32) -> Result<Lattice, SettingsError> {
        if self.burst == 0 {
            return Err(SettingsError::Zero { setting: Setting::Burst });
        }
        if self.initial > self.burst {
            return Err(SettingsError::TooLarge { setting: Setting::Initial, max: self.burst });
        }
        let staleness = match settings::staleness_nanos(self.staleness) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        if self.rate.is_unlimited() {
            // Nothing costs anything, so that zero available is always enough.
            let tick = 1;
            return Ok(Lattice {
                burst: u64::MAX >> (64 - bits),
                initial: 0,
                gain: 0,
                cost: 0,
                full: 0,
                behind: u64::MAX >> (64 - bits),
                tick,
            });
        }
        let period = match settings::nanos(self.rate.period(), Setting::Period) {
            Ok(nanos) => nanos,
            Err(error) => return Err(error),
        };
        let chosen = match self.tick {
            _ if self.stepwise => Some(period),
            None if bits == 64 => Some(1),
            None => None,
            Some(tick) => match settings::nanos(tick, Setting::Tick) {
                Ok(nanos) => Some(nanos),
                Err(error) => return Err(error),
            },
        };
        if let Some(tick) = chosen {
            return self.fit(bits, period, tick, staleness);
        }
        let mut best = self.fit(bits, period, 1, staleness);
        let mut tick = 10;
        while tick <= MAX_AUTOMATIC_TICK {
            let other = self.fit(bits, period, tick, staleness);
            match (&best, &other) {
                (Ok(best), _) if best.horizon(bits) >= settings::FAR_ENOUGH => break,
                (Ok(best), Ok(other)) if best.horizon(bits) >= other.horizon(bits) => {}
                (Ok(_), Err(_)) => {}
                (Err(best), Err(other)) if !other.asks_less_than(best) => {}
                _ => best = other,
            }
            tick *= 10;
        }
        best
    }

    /// The lattice for one choice of tick, or the burst that would fit.
    const fn fit(
        &self,
        bits: u32,
        period: u64,
        tick: u64,
        staleness: Option<u64>,
    ) -> Result<Lattice, SettingsError> {
        let range = 1u128 << bits;
        // The rate for each tick, in lowest terms.
        let gain = self.rate.permits() as u128 * tick as u128;
        let divisor = settings::gcd(gain, period as u128);
        let (gain, cost) = (gain / divisor, period as u128 / divisor);
        let scale = Scale { step: tick, gain };
        let full = match (self.burst as u128).checked_mul(cost) {
            Some(full) => full,
            None => u128::MAX,
        };
        match settings::staleness(range, full, staleness, scale) {
            Ok(behind) => Ok(Lattice {
                burst: self.burst,
                initial: self.initial * cost as u64,
                gain: gain as u64,
                cost: cost as u64,
                full: full as u64,
                behind: (range - behind) as u64,
                tick,
            }),
            Err(Misfit::Staleness) => {
                let max = (range / 4 / gain * tick as u128) as u64;
                Err(SettingsError::TooLarge { setting: Setting::Staleness, max })
            }
            Err(Misfit::Second) => {
                let gain = range / 4 / MIN_STALENESS.div_ceil(tick) as u128;
                // What any number of permits has in common with the period.
                let max = gain * settings::gcd(tick as u128, period as u128) / tick as u128;
                Err(SettingsError::TooLarge { setting: Setting::Rate, max: max as u64 })
            }
            Err(Misfit::Reach) => {
                Err(SettingsError::TooLarge { setting: Setting::Burst, max: (range / 4 / cost) as u64 })
            }
        }
    }
}

/// The coarsest tick that is chosen by itself, ten seconds.
const MAX_AUTOMATIC_TICK: u64 = 10_000_000_000;

/// A bucket's settings in units; all fit the word.
#[derive(Clone, Copy)]
struct Lattice {
    burst: u64,
    initial: u64,
    gain: u64,
    cost: u64,
    full: u64,
    behind: u64,
    tick: u64,
}

impl Lattice {
    /// The time after which positions repeat, in nanoseconds.
    const fn horizon(&self, bits: u32) -> u128 {
        if self.gain == 0 { u128::MAX } else { (1u128 << bits) / self.gain as u128 * self.tick as u128 }
    }
}

//! State: one word, `used`, the position up to which the tokens that ever came in are used up.
//!
//! ```text
//! a lattice, wrapping in the word:  1 tick = gain units, 1 permit = cost units, gain / cost = rate
//!
//!        used                  position = ticks(now) * gain
//!   ------|------------------------|------>        available = (position - used) / cost
//!         |<---- at most full ---->|               full      = burst * cost
//! ```
//!
//! Invariant: `used` never exceeds the position of the newest `now`, and a take moves it by exactly
//! `cost` for each permit from no further back than `full` behind that `now`.
//!
//! Seen from `used`, the wrapped distance to the position says all, read off one circle:
//!
//! ```text
//! 0 ........ full | full+1 ................ behind-1 | behind ........ 2^bits-1
//!  this much is    |  idle for longer than it takes   |  `now` is older than the newest:
//!  available       |  to fill: full                   |  nothing available
//! ```
//!
//! One multiplication and no rounding: gain and cost are the configured rate in lowest terms, so
//! that the bucket agrees with a continuous one in rational arithmetic on every decision. A rate in
//! steps is the same lattice with a tick as long as the period.

use core::time::Duration;

use crate::grid::Grid;
use crate::judge::Judge;
use crate::lattice::{Lattice, Terms, left};
use crate::limiter::queue_limiter::replenishing;
use crate::live::LONGEST_STALENESS;
use crate::saved::saves;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::timestamp::saturating_duration;
use crate::word::{AtomicWord, NativeWord, Word, narrow};
use crate::{
    AdjustableBucket, Composable, Denied, Idle, Lease, Limiter, LimiterId, Plan, Rate, Receipt,
    Refund, Retry, Setting, SettingsError, Timestamp,
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
    used: AtomicWord<W>,
    gain: W,
    cost: W,
    full: W,
    debt: W,
    behind: W,
    burst: W,
    ticks: Grid,
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
            terms: Terms {
                rate,
                burst,
                debt: 0,
                tick: None,
                stepwise: false,
                staleness: None,
                adjustable: None,
            },
            initial: burst,
            origin: Timestamp::ZERO,
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
        self.lattice()
            .available(self.position(now), self.used.load(Relaxed))
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
        self.force(now, n).map(|_| ())
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
        self.lattice()
            .idle(&self.ticks, self.used.load(Relaxed), now)
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
    /// assert_eq!(
    ///     bucket.tick(),
    ///     Duration::from_micros(1),
    ///     "brings 32 bits to 71 minutes"
    /// );
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn tick(&self) -> Duration {
        Duration::from_nanos(self.ticks.step())
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
        self.span(self.lattice().staleness())
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
    fn lattice(&self) -> Lattice {
        Lattice {
            gain: self.gain.into(),
            cost: self.cost.into(),
            full: self.full.into(),
            debt: self.debt.into(),
            behind: self.behind.into(),
            burst: self.burst.into(),
            mask: W::MASK,
        }
    }

    #[inline(always)]
    fn position(&self, now: Timestamp) -> u64 {
        self.lattice().position(self.ticks.index(now))
    }

    #[inline(always)]
    fn take(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        if u64::from(n) > self.burst() {
            return Err(self.exceeds(n));
        }
        let price = u64::from(n) * self.cost.into();
        let (position, full) = (self.position(now), self.full.into());
        let mut used = self.used.load(Relaxed);
        let denied = Denied::Exhausted { now, permits: n };
        if price == 0 {
            // A probe, or no limit: nothing to write.
            let enough = self.lattice().judge(position, used) >= self.cost.into();
            return if enough {
                Ok(Receipt::NONE)
            } else {
                Err(denied)
            };
        }
        loop {
            let left = left!(
                position,
                used,
                price,
                full,
                W::MASK,
                self.behind.into(),
                return Err(denied)
            );
            match self
                .used
                .compare_exchange_weak(used, left, Relaxed, Relaxed)
            {
                Ok(_) => return Ok(Receipt::dated(left, now.as_nanos())),
                Err(newer) => used = newer,
            }
        }
    }

    #[inline(always)]
    fn look(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        let seen = self.used.load(Relaxed);
        self.plan(seen, now, n).map(|left| Plan { seen, left })
    }

    /// Where a bucket that is used up to `used` will be used up to.
    #[inline(always)]
    fn plan(&self, used: u64, now: Timestamp, n: u32) -> Result<u64, Denied> {
        let lattice = self.lattice();
        if u64::from(n) > lattice.burst {
            return Err(self.exceeds(n));
        }
        let price = u64::from(n.max(1)) * lattice.cost;
        match lattice.left(self.position(now), used, price) {
            Some(_) if n == 0 => Ok(used),
            Some(left) => Ok(left),
            None => Err(Denied::Exhausted { now, permits: n }),
        }
    }

    fn force(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let lattice = self.lattice();
        let most = lattice
            .burst
            .saturating_add(lattice.debt.checked_div(lattice.cost).unwrap_or(0));
        if u64::from(n) > most {
            return Err(Denied::ExceedsCapacity {
                permits: n,
                capacity: most as u32,
            });
        }
        let position = self.position(now);
        let mut used = self.used.load(Relaxed);
        while n > 0 && !lattice.is_unlimited() {
            let Some((left, _)) = lattice.forced(position, used, n) else {
                return Err(Denied::Exhausted { now, permits: n });
            };
            match self
                .used
                .compare_exchange_weak(used, left, Relaxed, Relaxed)
            {
                Ok(_) => return Ok(Receipt::dated(left, now.as_nanos())),
                Err(newer) => used = newer,
            }
        }
        Ok(Receipt::NONE)
    }

    /// The burst is less than `n`, so it fits.
    #[inline(always)]
    fn exceeds(&self, n: u32) -> Denied {
        Denied::ExceedsCapacity {
            permits: n,
            capacity: self.burst() as u32,
        }
    }

    #[cold]
    #[inline(never)]
    fn take_anew(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    /// Takes a take back, if the bucket is as the take left it: any later take builds on that word.
    fn undo(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        if n == 0 || self.lattice().is_unlimited() {
            return receipt.refunded(n);
        }
        let left = receipt.note();
        let Some((restored, rest)) = Judge::refund(self, left, now, n, &receipt) else {
            return receipt.refunded(0);
        };
        loop {
            match self
                .used
                .compare_exchange_weak(left, restored, Relaxed, Relaxed)
            {
                Ok(_) => return rest.refunded(n),
                Err(newer) if newer == left => {}
                Err(_) => return receipt.refunded(0),
            }
        }
    }
}

saves!(
    TokenBucket,
    "Rate::per_second(10), 3",
    used,
    |bucket, state| {
        // One without a limit has one state.
        if bucket.lattice().is_unlimited() {
            0
        } else {
            state
        }
    }
);

impl<W: Word> Limiter for TokenBucket<W> {
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n)
    }

    #[inline]
    fn peek_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.look(now, n).map(|_| ())
    }

    #[inline(always)]
    fn as_composable(&self) -> Option<&dyn Composable> {
        Some(self)
    }

    /// All of them, if the bucket is as the take left it; else none: they come back by refill. A
    /// take that is given back in whole counts as never made, also for what the newest `now` was.
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.undo(now, n, receipt)
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
        self.lattice()
            .retry(&self.ticks, self.used.load(Relaxed), denied)
    }
}

replenishing!([W: Word] TokenBucket<W>);

impl<W: Word> Composable for TokenBucket<W> {
    #[inline]
    fn plan_at(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        self.look(now, n)
    }

    #[inline]
    fn take_as_planned_at(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        // A plan that takes nothing is for a probe, or for no limit.
        if plan.left != plan.seen
            && self
                .used
                .compare_exchange_weak(plan.seen, plan.left, Relaxed, Relaxed)
                .is_ok()
        {
            return Ok(Receipt::dated(plan.left, now.as_nanos()));
        }
        self.take_anew(now, n)
    }
}

impl<W: Word> Judge for TokenBucket<W> {
    fn fresh(&self, now: Timestamp) -> u64 {
        self.position(now).wrapping_sub(self.full.into()) & W::MASK
    }

    #[inline]
    fn grant(&self, state: u64, now: Timestamp, n: u32) -> Result<(u64, Receipt), Denied> {
        self.plan(state, now, n)
            .map(|left| (left, Receipt::dated(left, now.as_nanos())))
    }

    fn refund(
        &self,
        state: u64,
        now: Timestamp,
        n: u32,
        receipt: &Receipt,
    ) -> Option<(u64, Receipt)> {
        let (lattice, tick) = (self.lattice(), self.ticks.index(now));
        let taken_in = self.ticks.index(Timestamp::from_nanos(receipt.time()));
        if state != receipt.note() || lattice.is_outlived(taken_in, tick) {
            return None;
        }
        let restored = lattice.restored(lattice.position(tick), state, n);
        Some((restored, Receipt::dated(restored, receipt.time())))
    }

    fn available(&self, state: u64, now: Timestamp) -> u64 {
        self.lattice().available(self.position(now), state)
    }

    fn idle(&self, state: u64, now: Timestamp) -> Idle {
        self.lattice().idle(&self.ticks, state, now)
    }

    fn is_forgettable(&self, state: u64, now: Timestamp, since: Timestamp) -> bool {
        self.lattice().is_full_since(&self.ticks, state, now, since)
    }

    fn retry(&self, state: u64, denied: Denied) -> Retry {
        self.lattice().retry(&self.ticks, state, denied)
    }

    fn capacity(&self) -> u64 {
        self.burst()
    }
}

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
    pub(crate) terms: Terms,
    initial: u64,
    origin: Timestamp,
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
        self.initial = permits;
        self
    }

    /// The instant that the bucket starts at, and that steps are counted from. Default:
    /// [`Timestamp::ZERO`].
    ///
    /// An earlier `now`, by up to the staleness, is told no more than this one would be.
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
        self.origin = origin;
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
        self.terms.stepwise = true;
        self
    }

    /// The permits that may be owed after [`TokenBucket::force_at`] or
    /// [`AdjustableBucket::reserve_at`](crate::AdjustableBucket::reserve_at). Default: 0.
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
        self.terms.debt = permits;
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
        self.terms.tick = Some(tick);
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
        self.terms.staleness = Some(staleness);
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
            let (lattice, ticks, used) = match self.start(W::BITS) {
                Ok(start) => start,
                Err(error) => return Err(error),
            };
            Ok(TokenBucket {
                used: AtomicWord::new(used),
                gain: narrow(lattice.gain),
                cost: narrow(lattice.cost),
                full: narrow(lattice.full),
                debt: narrow(lattice.debt),
                behind: narrow(lattice.behind),
                burst: narrow(lattice.burst),
                ticks,
            })
        }
    }

    const_unless_loom! {
        /// A bucket whose rate and burst can be changed, on the target's own word.
        ///
        /// If no tick is given, it is the finest from 1 µs up (1 ns with a 32-bit word) whose
        /// horizon is an hour or more. With a [debt](Self::debt) it is finer where 1 µs brings more
        /// than a sixteenth of that: what is reserved is due at a whole tick, and counts up to
        /// there. If no staleness is given, it is at most an hour.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::{Rate, Timestamp, TokenBucket};
        /// let bucket =
        ///     TokenBucket::builder(Rate::per_second(5), 10).initial(3).build_adjustable()?;
        /// assert_eq!(bucket.available_at(Timestamp::ZERO), 3);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_adjustable(self) -> Result<AdjustableBucket, SettingsError> {
            self.build_adjustable_on()
        }
    }

    const_unless_loom! {
        /// A bucket whose rate and burst can be changed, on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::{AdjustableBucket, Rate, TokenBucket};
        /// let bucket: AdjustableBucket<u32> =
        ///     TokenBucket::builder(Rate::per_second(5), 10).build_adjustable_on()?;
        /// assert_eq!(bucket.tick().as_micros(), 100);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_adjustable_on<W: Word>(self) -> Result<AdjustableBucket<W>, SettingsError> {
            let mut settings = self;
            settings.terms.adjustable = Some(LONGEST_STALENESS);
            match settings.start(AdjustableBucket::<W>::BITS) {
                Ok((lattice, ticks, used)) => {
                    Ok(AdjustableBucket::from_terms(settings.terms, &lattice, ticks, self.origin, used))
                }
                Err(error) => Err(error),
            }
        }
    }

    /// The lattice in so many bits, its ticks, and what a bucket is used up to at the origin.
    pub(crate) const fn start(&self, bits: u32) -> Result<(Lattice, Grid, u64), SettingsError> {
        if self.initial > self.terms.burst && self.terms.burst > 0 {
            return Err(SettingsError::TooLarge {
                setting: Setting::Initial,
                max: self.terms.burst,
            });
        }
        match self.terms.lattice(bits) {
            Ok((lattice, tick)) => {
                let ticks = Grid::new(self.origin, tick);
                let initial = self.initial.wrapping_mul(lattice.cost);
                let used = ticks
                    .index(self.origin)
                    .wrapping_mul(lattice.gain)
                    .wrapping_sub(initial);
                Ok((lattice, ticks, used & lattice.mask))
            }
            Err(error) => Err(error),
        }
    }
}

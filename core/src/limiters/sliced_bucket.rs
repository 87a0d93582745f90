//! State: one word: a token bucket's position, `used` (see [`token_bucket`](super::token_bucket)),
//! and below it `sliced`, the sum of the sizes of all slices.
//!
//! ```text
//! used | sliced            `used` on the lattice, in all upper bits: it wraps off the top
//!
//!          used                 position = ticks(now) * gain
//!   --------|------------------------|------>       available = (position - used) / cost: the rest
//!           |<---- at most ---->|                   full - sliced * cost
//! ```
//!
//! Invariant: for each instant up to which a caller has taken, or up to which a slice may take
//! (`until`), `used` is behind the position of that instant by no more than the rest can hold. The
//! *rest* is the bucket without its slices.
//!
//! So at any such instant, the rest and all permits that slices can hold are together at most a
//! full bucket. And no later call finds permits in the rest that had no room at that instant. To
//! keep the invariant, a call that lets a slice take until some instant *settles in advance*: if
//! `used` is further behind the position of that instant than the rest can hold, the call moves
//! `used` up.
//!
//! - *take*: as in a token bucket of `burst - sliced`.
//! - *cut*: takes the slice's size, adds it to `sliced`, and settles in advance.
//! - *draw*: takes the permits that the slice lacks and up to half of those left, and settles in
//!   advance. If the slice lacks none, it only settles.
//! - *drop*: `used -= have, sliced -= size`. A slice never holds more than its size, so the
//!   invariant still holds for the others. A drop depends on no time, so nothing is lost however
//!   late it comes. It needs no loop.

use core::time::Duration;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer, retry_of};
use crate::limiter::queue_limiter::replenishing;
use crate::limiter::receipt::{Plan, Receipt, Refund};
use crate::limiter::{Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned};
use crate::limiters::bucket_settings::BucketSettings;
use crate::limiters::lattice::{Balance, Lattice, Terms};
use crate::limiters::slice::Slice;
use crate::limiters::slice::sealed::{Share, Source};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::grid::Grid;
use crate::time::rate::Rate;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::settings::{Setting, SettingsError};
use crate::word::{AtomicWord, NativeWord, Word, narrow};

/// A token bucket that slices can be cut from: shares from which one thread takes without an atomic
/// access.
///
/// It is for threads that take so often that even uncontended writes cost too much, and that can
/// keep a handle each. Without handles, a [`StripedBucket`](crate::StripedBucket) shares the load.
///
/// Without slices it decides exactly as a [`TokenBucket`](crate::TokenBucket). A slice holds
/// permits up to its size, and draws more from the rest as it needs them. The *rest* is the bucket
/// without its slices. All callers can take from it. Its capacity is the burst less the sizes of
/// all slices.
///
/// **Bound.** Any span of time `t` admits at most `burst + rate * t` permits, from slices and the
/// rest together. The bound does not depend on how many permits the slices hold or how long they
/// are idle. `t` counts in whole [ticks](Self::timing).
///
/// **Slices** together have at most half of the burst, so a bucket with a burst of 1 has none. The
/// rest needs the other half as room for the permits that come in while slices take those that they
/// hold. Without it the rate would starve. Under saturated demand at least 99 % of the rate is
/// admitted (tested). No other caller can take the permits that an idle slice holds, at most that
/// half.
///
/// A slice does not record when it takes permits that it holds. So it settles in advance, for the
/// time of a [`hold`](Self::hold): when it is cut, when it draws, and when it has not accessed the
/// rest for a hold. To settle is to remove from the rest the permits for which it would have no
/// room by the end of that time. Until then the rest may report too few permits, by up to an eighth
/// of the unsliced half. The hold is the time in which that eighth comes in. A longer hold would
/// need fewer writes, but withhold more permits.
///
/// **Refunds.** While there are slices, a take from the rest cannot be refunded. A refund then
/// returns nothing, and neither does the rollback of an [`AllOf`](crate::AllOf) after this bucket
/// has granted. The `n` permits of the take return by time, in `n / rate`. Until then the rest
/// holds `n` fewer permits; nothing else is lost. The reason: if a take has already moved the rest
/// far enough ahead, a slice that settles in advance writes nothing. So a refund cannot know until
/// when the slice may take. A refund that moved the rest further back would let the rest hold again
/// what the slice has taken. Together they would exceed the burst. Without slices, the last take
/// can be refunded exactly.
///
/// **Cost.** For a slice's grant, see [`Slice`]. A grant from the rest is one compare-exchange, as
/// for a token bucket. A denial loads the word and writes nothing. Lock-free. The drop of a slice
/// is one subtraction. All accesses are `Relaxed`: a permit carries no data.
///
/// **Exact.** The rate has no drift. Retry times are exact to the nanosecond if no other caller
/// takes permits in the meantime.
///
/// **Horizon.** Half of the burst takes bits of the word, and the lattice has the others: 58 of 64
/// for a burst of 100. The builder chooses the tick as for an
/// [`AdjustableBucket`](crate::AdjustableBucket), from 1 µs up with a 64-bit word. With 64 bits the
/// horizon is over ten years at most rates, and 418 days at 997 permits per second with as many at
/// once. The word wraps as a token bucket's does. After idling for about a multiple of its
/// [horizon](Self::timing), the bucket may report too few available permits, and a slice may be
/// denied permits that it holds. This lasts about as long as the staleness.
///
/// Source: the virtual schedule of a [`TokenBucket`](crate::TokenBucket), with caches per thread as
/// in tcmalloc.
///
/// ```
/// use portcullis_core::{Rate, SlicedBucket, Timestamp};
///
/// static LIMIT: SlicedBucket = SlicedBucket::new(Rate::per_second(10), 20);
///
/// let at = Timestamp::from_millis;
/// let slice = LIMIT.slice_at(at(0), 8)?;
/// assert!(slice.try_acquire_at(at(0), 5).is_ok());
/// assert!(LIMIT.try_acquire_at(at(0), 10).is_ok());
/// assert!(
///     LIMIT.try_acquire_at(at(0), 1).is_err(),
///     "the rest is used up"
/// );
/// assert!(slice.try_acquire_at(at(0), 3).is_ok(), "the slice has more");
/// assert!(
///     slice.try_acquire_at(at(100), 1).is_ok(),
///     "permits that have come in are for all callers"
/// );
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct SlicedBucket<W: Word = NativeWord> {
    pub(super) word: AtomicWord<W>,
    gain: W,
    cost: W,
    full: W,
    behind: W,
    burst: W,
    /// The most permits that slices have together.
    most: W,
    /// The width of `sliced` in bits.
    pub(super) low: u32,
    /// The number of ticks for which a slice settles in advance.
    hold: u64,
    pub(super) ticks: Grid,
}

impl SlicedBucket {
    const_unless_loom! {
        /// Creates a bucket that gains permits at `rate` and holds at most `burst` permits (at
        /// least 1). The bucket starts full and without slices.
        ///
        /// # Panics
        ///
        /// If [`SlicedBucketBuilder::build`] would return an error. In a constant or a static, this
        /// is a compile error.
        ///
        /// ```
        /// use portcullis_core::{Rate, SlicedBucket};
        /// static LIMIT: SlicedBucket = SlicedBucket::new(Rate::per_second(1_000), 100);
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
    /// # use portcullis_core::{Rate, SlicedBucket};
    /// let bucket = SlicedBucket::builder(Rate::per_second(5), 10).build()?;
    /// assert_eq!((bucket.burst(), bucket.max_sliced()), (10, 5));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(rate: Rate, burst: u64) -> SlicedBucketBuilder {
        Builder::new(BucketSettings::new(rate, burst))
    }
}

impl<W: Word> SlicedBucket<W> {
    const_unless_loom! {
        /// A bucket on a lattice in the bits that `most` leaves, of which at most `most` permits
        /// can be outside of the rest.
        pub(super) const fn on(lattice: &Lattice, ticks: Grid, used: u64, most: u64) -> Self {
            let low = bits(most);
            // At an unlimited rate any request fits, but the word counts no more than this.
            let most = if most > lattice.burst / 2 { lattice.burst / 2 } else { most };
            // An eighth of the least that the rest can hold.
            let hold = match ((lattice.full - most * lattice.cost) / 8).checked_div(lattice.gain) {
                Some(ticks) => ticks,
                None => u64::MAX,
            };
            Self {
                word: AtomicWord::new(used << low),
                gain: narrow(lattice.gain),
                cost: narrow(lattice.cost),
                full: narrow(lattice.full),
                behind: narrow(lattice.behind),
                burst: narrow(lattice.burst),
                most: narrow(most),
                low,
                hold,
                ticks,
            }
        }
    }

    /// Takes `n` permits of the rest at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the rest has fewer than `n` permits, or [`Denied::ExceedsCapacity`]
    /// if `n` is more than the burst less the sizes of the present slices.
    ///
    /// # Cost
    ///
    /// As for a token bucket, and one more multiplication. Never divides, blocks or panics.
    ///
    /// ```
    /// # use portcullis_core::{Denied, Rate, SlicedBucket, Timestamp};
    /// let bucket = SlicedBucket::new(Rate::per_second(5), 10);
    /// let now = Timestamp::ZERO;
    /// let slice = bucket.slice_at(now, 3)?;
    /// assert_eq!(bucket.try_acquire_at(now, 5)?.permits(), 5);
    /// assert!(matches!(
    ///     bucket.try_acquire_at(now, 3),
    ///     Err(Denied::Exhausted { .. })
    /// ));
    /// assert!(matches!(
    ///     bucket.try_acquire_at(now, 8),
    ///     Err(Denied::ExceedsCapacity { capacity: 7, .. })
    /// ));
    /// # drop(slice);
    /// # Ok::<(), Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Cuts a slice of `k` permits at `now`, which one thread owns.
    ///
    /// See [`Slice`]. With `k = 0` the slice holds nothing, and asks the rest each time.
    ///
    /// # Errors
    ///
    /// [`Denied::ExceedsCapacity`] if the slices together would have more than
    /// [`max_sliced`](Self::max_sliced), given the present slices. [`Denied::Exhausted`] if fewer
    /// than `k` permits are available. Nothing changes then.
    ///
    /// # Cost
    ///
    /// One compare-exchange; lock-free.
    ///
    /// ```
    /// # use portcullis_core::{Denied, Rate, SlicedBucket, Timestamp};
    /// let bucket = SlicedBucket::new(Rate::per_second(5), 10);
    /// let now = Timestamp::ZERO;
    /// let slice = bucket.slice_at(now, 3)?;
    /// assert_eq!((slice.held(), bucket.available_at(now)), (3, 6));
    /// assert!(matches!(
    ///     bucket.slice_at(now, 3),
    ///     Err(Denied::ExceedsCapacity { capacity: 2, .. })
    /// ));
    /// # Ok::<(), Denied>(())
    /// ```
    pub fn slice_at(&self, now: Timestamp, k: u32) -> Result<Slice<&Self>, Denied> {
        Slice::cut_at(self, now, k)
    }

    /// Returns the whole permits in the rest at `now`; `u64::MAX` at an unlimited rate. Divides.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket, Timestamp};
    /// assert_eq!(
    ///     SlicedBucket::new(Rate::per_second(5), 10).available_at(Timestamp::ZERO),
    ///     10
    /// );
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        let word = self.word.load(Relaxed);
        let rest = self.rest(word);
        rest.available(rest.position(self.ticks.index(now)), word >> self.low)
    }

    /// Returns whether the bucket is full and without slices at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket, Timestamp};
    /// # use portcullis_core::limiter::Idle;
    /// let (bucket, at) = (
    ///     SlicedBucket::new(Rate::per_second(5), 10),
    ///     Timestamp::from_secs,
    /// );
    /// let slice = bucket.slice_at(at(1), 1).unwrap();
    /// assert_eq!(bucket.idle_at(at(9)), Idle::InUse);
    /// drop(slice);
    /// let settled = Timestamp::from_millis(1_125);
    /// assert_eq!(
    ///     bucket.idle_at(at(9)),
    ///     Idle::Since(settled),
    ///     "the slice has settled in advance"
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        let word = self.word.load(Relaxed);
        if self.sliced_in(word) > 0 {
            return Idle::InUse;
        }
        self.rest(word).idle(&self.ticks, word >> self.low, now)
    }

    /// Returns the rate at which the rest and the slices together gain permits: exactly the rate
    /// that the bucket was built with, in lowest terms. Divides.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket};
    /// let bucket = SlicedBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(bucket.rate(), Rate::per_second(5));
    /// ```
    pub fn rate(&self) -> Rate {
        self.rest(0).rate(self.ticks.step())
    }

    /// Returns the most permits that the rest and the slices hold together. At an unlimited rate,
    /// this is the most that the word can count.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket};
    /// assert_eq!(SlicedBucket::new(Rate::per_second(5), 10).burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.burst.into()
    }

    /// Returns the sum of the sizes of all slices.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket, Timestamp};
    /// let bucket = SlicedBucket::new(Rate::per_second(5), 10);
    /// let _slice = bucket.slice_at(Timestamp::ZERO, 3)?;
    /// assert_eq!(bucket.sliced(), 3);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn sliced(&self) -> u64 {
        self.sliced_in(self.word.load(Relaxed))
    }

    /// Returns the most permits that slices may have together: half of the burst, rounded down.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket};
    /// assert_eq!(SlicedBucket::new(Rate::per_second(5), 11).max_sliced(), 5);
    /// ```
    pub fn max_sliced(&self) -> u64 {
        self.most.into()
    }

    /// Returns the time for which a slice settles in advance, in whole ticks.
    ///
    /// Until then, a slice accesses the rest only if it holds too few permits. The time may be
    /// longer by less than one tick. It is the time in which an eighth of the unsliced half comes
    /// in.
    ///
    /// ```
    /// # use portcullis_core::{Rate, SlicedBucket};
    /// assert_eq!(
    ///     SlicedBucket::new(Rate::per_second(1_000), 800)
    ///         .hold()
    ///         .as_millis(),
    ///     50
    /// );
    /// ```
    pub fn hold(&self) -> Duration {
        self.lasting(self.hold)
    }

    /// Returns how the bucket counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, SlicedBucket};
    /// let bucket = SlicedBucket::builder(Rate::per_second(5), 10)
    ///     .tick(Duration::from_millis(1))
    ///     .build()?;
    /// assert_eq!(bucket.timing().tick, Duration::from_millis(1));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn timing(&self) -> Timing {
        let rest = self.rest(0);
        Timing::on(
            &self.ticks,
            self.span(rest.staleness()),
            self.span(rest.mask),
        )
    }

    /// The time in which the position moves by `units`.
    fn span(&self, units: u64) -> Duration {
        units
            .checked_div(self.gain.into())
            .map_or(Duration::MAX, |ticks| self.lasting(ticks))
    }

    fn lasting(&self, ticks: u64) -> Duration {
        saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()))
    }

    #[inline(always)]
    pub(super) fn sliced_in(&self, word: u64) -> u64 {
        word & ((1 << self.low) - 1)
    }

    #[inline(always)]
    pub(super) fn pack(&self, used: u64, sliced: u64) -> u64 {
        (used << self.low | sliced) & W::MASK
    }

    /// Returns the lattice of the rest, given the slices in `word`.
    #[inline(always)]
    pub(super) fn rest(&self, word: u64) -> Lattice {
        let (sliced, cost): (u64, u64) = (self.sliced_in(word), self.cost.into());
        Lattice {
            gain: self.gain.into(),
            cost,
            full: Into::<u64>::into(self.full) - sliced * cost,
            debt: 0,
            behind: self.behind.into(),
            burst: self.burst() - sliced,
            mask: W::MASK >> self.low,
        }
    }

    #[inline(always)]
    fn take<O: Observer>(&self, now: Timestamp, n: u32, seen: O) -> Result<Receipt, Denied> {
        let tick = self.ticks.index(now);
        let denied = Denied::Exhausted { now, permits: n };
        let mut word = self.word.load(Relaxed);
        loop {
            let rest = self.rest(word);
            if u64::from(n) > rest.burst {
                let denied = exceeds(n, rest.burst);
                seen.observe(move || self.detail(word, now, Err(denied)));
                return Err(denied);
            }
            let (price, used) = (u64::from(n) * rest.cost, word >> self.low);
            let position = rest.position(tick);
            if price == 0 {
                // A probe, or an unlimited rate: there is nothing to write.
                let enough = rest.judge(position, used) >= rest.cost;
                return if enough {
                    seen.observe(move || self.detail(word, now, Ok(())));
                    Ok(Receipt::NONE)
                } else {
                    seen.observe(move || self.detail(word, now, Err(denied)));
                    Err(denied)
                };
            }
            let Some(left) = rest.left(position, used, price) else {
                seen.observe(move || self.detail(word, now, Err(denied)));
                return Err(denied);
            };
            let next = self.pack(left, self.sliced_in(word));
            match self
                .word
                .compare_exchange_weak(word, next, Relaxed, Relaxed)
            {
                Ok(_) => {
                    seen.observe(move || self.detail(next, now, Ok(())));
                    return Ok(Receipt::dated(next, now.as_nanos()));
                }
                Err(newer) => word = newer,
            }
        }
    }

    /// Returns what goes with a decision at `now` that left `word`.
    fn detail(&self, word: u64, now: Timestamp, decision: Result<(), Denied>) -> Detail {
        let retry = retry_of(decision, now, |denied| self.retry_in(word, denied));
        Detail {
            retry,
            ..self
                .rest(word)
                .detail(&self.ticks, word >> self.low, now, decision)
        }
    }

    fn retry_in(&self, word: u64, denied: Denied) -> Retry {
        let rest = self.rest(word);
        let permits = u64::from(denied.permits());
        if permits > rest.burst && permits <= self.burst() {
            return Retry::OnRelease;
        }
        rest.retry(&self.ticks, word >> self.low, denied)
    }

    #[inline(always)]
    fn look(&self, now: Timestamp, n: u32) -> Result<Plan, Denied> {
        let seen = self.word.load(Relaxed);
        let rest = self.rest(seen);
        if u64::from(n) > rest.burst {
            return Err(exceeds(n, rest.burst));
        }
        let price = u64::from(n.max(1)) * rest.cost;
        match rest.left(
            rest.position(self.ticks.index(now)),
            seen >> self.low,
            price,
        ) {
            Some(_) if n == 0 => Ok(Plan::NONE),
            Some(left) => Ok(Plan {
                seen,
                left: self.pack(left, self.sliced_in(seen)),
            }),
            None => Err(Denied::Exhausted { now, permits: n }),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_again(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take(now, n, ())
    }

    /// Refunds a take, if no other take has come since: any later take builds on the word that this
    /// one left. With slices, the word does not tell: a slice may have needed no write to settle
    /// because of this take, and may have taken since.
    fn undo(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        let left = receipt.note();
        let lattice = self.rest(left);
        if n == 0 || lattice.is_unlimited() {
            return receipt.refunded(n);
        }
        let tick = self.ticks.index(now);
        let taken_in = self.ticks.index(Timestamp::from_nanos(receipt.time()));
        if self.sliced_in(left) > 0 || lattice.is_outlived(taken_in, tick) {
            return receipt.refunded(0);
        }
        let restored = self.pack(
            lattice.restored(lattice.position(tick), left >> self.low, n),
            0,
        );
        loop {
            match self
                .word
                .compare_exchange_weak(left, restored, Relaxed, Relaxed)
            {
                Ok(_) => return Receipt::dated(restored, receipt.time()).refunded(n),
                Err(newer) if newer == left => {}
                Err(_) => return receipt.refunded(0),
            }
        }
    }

    /// Returns the last tick in which a slice that settles in `tick` may take.
    fn held_until(&self, tick: u64) -> u64 {
        tick.saturating_add(self.hold)
    }

    /// Returns the last instant of `tick`.
    fn end_of(&self, tick: u64) -> Timestamp {
        let next = tick.checked_add(1).and_then(|next| self.ticks.start(next));
        next.map_or(Timestamp::MAX, |next| {
            Timestamp::from_nanos(next.as_nanos() - 1)
        })
    }

    /// Returns the balance of the rest, if it covers what the slice lacks.
    #[inline(always)]
    fn judge(
        &self,
        rest: &Lattice,
        word: u64,
        share: Share,
        now: Timestamp,
        n: u32,
    ) -> Result<Balance, Denied> {
        let lack = u64::from(share.lacks(n));
        if lack > rest.burst {
            return Err(exceeds(n, u64::from(share.have) + rest.burst));
        }
        let balance = self.balance(rest, word, now);
        if lack * rest.cost > balance.available || self.may_have_wrapped(rest, &balance, share, now)
        {
            return Err(Denied::Exhausted { now, permits: n });
        }
        Ok(balance)
    }

    fn balance(&self, rest: &Lattice, word: u64, now: Timestamp) -> Balance {
        rest.balance(rest.position(self.ticks.index(now)), word >> self.low)
    }

    /// Returns whether the word is ahead of `now` and the slice settled so long ago that the word
    /// may have wrapped since. A wrapped word and a stale `now` then look alike. If the word has
    /// wrapped, a caller with a stale timestamp could take again what the slice takes.
    fn may_have_wrapped(
        &self,
        rest: &Lattice,
        balance: &Balance,
        share: Share,
        now: Timestamp,
    ) -> bool {
        let idle = self
            .ticks
            .index(now)
            .saturating_sub(self.ticks.index(share.until));
        balance.owed > 0 && idle.saturating_mul(rest.gain) >= rest.behind - rest.full
    }
}

/// More was requested than the rest can hold. The capacity is less than `n`, so it fits a `u32`.
#[inline(always)]
fn exceeds(n: u32, capacity: u64) -> Denied {
    Denied::ExceedsCapacity {
        permits: n,
        capacity: capacity as u32,
    }
}

impl<W: Word> Source for SlicedBucket<W> {
    fn cut(&self, now: Timestamp, k: u32) -> Result<Share, Denied> {
        if k == 0 {
            return Ok(Share::EMPTY);
        }
        let held = self.held_until(self.ticks.index(now));
        let mut word = self.word.load(Relaxed);
        loop {
            let sliced = self.sliced_in(word);
            let most = self.max_sliced() - sliced;
            if u64::from(k) > most {
                return Err(exceeds(k, most));
            }
            let rest = self.rest(word);
            let balance = self.balance(&rest, word, now);
            let price = u64::from(k) * rest.cost;
            if price > balance.available {
                return Err(Denied::Exhausted { now, permits: k });
            }
            let taken = balance.from.wrapping_add(price) & rest.mask;
            let after = self.rest(sliced + u64::from(k));
            let settled = after.balance(after.position(held), taken).from;
            let next = self.pack(settled, sliced + u64::from(k));
            match self
                .word
                .compare_exchange_weak(word, next, Relaxed, Relaxed)
            {
                Ok(_) => {
                    return Ok(Share {
                        size: k,
                        have: k,
                        until: self.end_of(held),
                        draws: 0,
                    });
                }
                Err(newer) => word = newer,
            }
        }
    }

    fn draw(&self, share: Share, now: Timestamp, n: u32) -> Result<Share, Denied> {
        let lack = share.lacks(n);
        let held = self.held_until(self.ticks.index(now));
        let mut word = self.word.load(Relaxed);
        loop {
            let rest = self.rest(word);
            let balance = self.judge(&rest, word, share, now, n)?;
            if n == 0 {
                return Ok(share);
            }
            let (mut extra, mut draws) = (0, share.draws);
            if lack > 0 {
                // At most half of what is left, by halving rather than dividing.
                let spare = (balance.available - u64::from(lack) * rest.cost) / 2;
                extra = share.size;
                while u64::from(extra) * rest.cost > spare {
                    extra /= 2;
                }
                draws = draws.wrapping_add(1);
            }
            let drawn = u64::from(lack) + u64::from(extra);
            let taken = balance.from.wrapping_add(drawn * rest.cost) & rest.mask;
            let settled = rest.balance(rest.position(held), taken).from;
            let next = self.pack(settled, self.sliced_in(word));
            let after = Share {
                have: (u64::from(share.have) + drawn - u64::from(n)) as u32,
                until: share.until.max(self.end_of(held)),
                draws,
                ..share
            };
            if next == word {
                // `used` is already far enough ahead, so there is nothing to write. `word` may be
                // outdated, but no later change takes this back.
                return Ok(after);
            }
            match self
                .word
                .compare_exchange_weak(word, next, Relaxed, Relaxed)
            {
                Ok(_) => return Ok(after),
                Err(newer) => word = newer,
            }
        }
    }

    fn peek_for(&self, share: Share, now: Timestamp, n: u32) -> Result<(), Denied> {
        let word = self.word.load(Relaxed);
        self.judge(&self.rest(word), word, share, now, n)
            .map(|_| ())
    }

    fn available_for(&self, share: Share, now: Timestamp) -> u64 {
        let word = self.word.load(Relaxed);
        let rest = self.rest(word);
        let balance = self.balance(&rest, word, now);
        if self.may_have_wrapped(&rest, &balance, share, now) {
            return 0;
        }
        let available = balance.available.checked_div(rest.cost).unwrap_or(u64::MAX);
        available.saturating_add(share.have.into())
    }

    fn capacity_for(&self, share: Share) -> u64 {
        Limiter::capacity(self).saturating_add(share.have.into())
    }

    fn retry_for(&self, share: Share, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Limiter::retry(self, denied);
        };
        let lack = share.lacks(permits);
        if lack > 0 {
            return Limiter::retry(self, Denied::Exhausted { now, permits: lack });
        }
        let word = self.word.load(Relaxed);
        let rest = self.rest(word);
        let balance = self.balance(&rest, word, now);
        if !self.may_have_wrapped(&rest, &balance, share, now) {
            return Retry::At(now);
        }
        let tick = rest.settled(self.ticks.index(now), balance.owed);
        tick.and_then(|tick| self.ticks.start(tick))
            .map_or(Retry::Never, Retry::At)
    }

    #[inline(always)]
    fn released(&self, _: Share, _: u32) -> Option<u32> {
        None
    }

    fn end(&self, share: Share) {
        let units = u64::from(share.have) * Into::<u64>::into(self.cost);
        // `sliced` includes the size, so the subtraction does not borrow from the upper bits.
        self.word
            .fetch_sub((units << self.low).wrapping_add(share.size.into()), Relaxed);
    }
}

impl<W: Word> Limiter for SlicedBucket<W> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        match (ask.detail(), ask.plan) {
            (Some(seen), _) if ask.is_look() => {
                let word = self.word.load(Relaxed);
                let detail = Detail::look(now, n, |decision| self.detail(word, now, decision));
                seen.set(Some(detail));
                detail.decision.into()
            }
            (None, _) if ask.is_look() => self.look(now, n).into(),
            (Some(seen), _) => self.take(now, n, seen).into(),
            (None, Some(plan)) => self.take_as_planned(now, n, plan).into(),
            (None, None) => self.take(now, n, ()).into(),
        }
    }

    /// Refunds all `n` permits if the bucket is as the take left it and has no slices; otherwise
    /// none, and they return by refill. A take that is refunded in full counts as never made: its
    /// `now` no longer counts for the newest time. The same holds for a slice that is dropped with
    /// all its permits.
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|now, n, receipt| self.undo(now, n, receipt))
    }

    /// The capacity is the burst less the sizes of the present slices.
    #[inline(always)]
    fn read(&self, read: Read<'_>) -> Reading {
        Reading {
            available: self.available_at(read.now()),
            capacity: self.burst() - self.sliced(),
            idle: self.idle_at(read.now()),
            held: 0,
        }
    }

    /// Returns when to retry:
    ///
    /// - For no more than the rest can hold: the time at which the rest will have the permits.
    /// - [`Retry::OnRelease`] for more than the rest can hold beside the slices, but not more than
    ///   the burst: when slices are dropped.
    /// - For more than the burst, behind other requests: when that many permits will have come into
    ///   the rest beside the present slices.
    fn retry(&self, denied: Denied) -> Retry {
        self.retry_in(self.word.load(Relaxed), denied)
    }

    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

impl<W: Word> SlicedBucket<W> {
    #[inline(always)]
    fn take_as_planned(&self, now: Timestamp, n: u32, plan: Plan) -> Result<Receipt, Denied> {
        // A plan that takes nothing is for a probe, or at an unlimited rate.
        if plan.left != plan.seen
            && self
                .word
                .compare_exchange_weak(plan.seen, plan.left, Relaxed, Relaxed)
                .is_ok()
        {
            return Ok(Receipt::dated(plan.left, now.as_nanos()));
        }
        self.take_again(now, n)
    }
}

replenishing!([W: Word] SlicedBucket<W>);

/// Builds a [`SlicedBucket`]. Created by [`SlicedBucket::builder`].
///
/// There is no setting for a debt: permits that slices hold could not be owed.
///
/// ```
/// use portcullis_core::{Rate, SlicedBucket, Timestamp};
///
/// let bucket = SlicedBucket::builder(Rate::per_second(10), 10)
///     .initial(9)
///     .build()?;
/// let slice = bucket.slice_at(Timestamp::ZERO, 4).unwrap();
/// assert_eq!((slice.held(), bucket.available_at(Timestamp::ZERO)), (4, 5));
/// # drop(slice);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type SlicedBucketBuilder = Builder<SlicedBucket>;

impl Sealed for SlicedBucket {
    type Settings = BucketSettings;
}

impl Ticks for SlicedBucket {}

impl Builder<SlicedBucket> {
    const_unless_loom! {
        /// Builds the bucket on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound, as
        /// [`TokenBucketBuilder::build`](crate::builder::TokenBucketBuilder::build) does, for the
        /// bits that half of the burst leaves.
        ///
        /// ```
        /// # use portcullis_core::{Rate, SettingsError, SlicedBucket};
        /// # use portcullis_core::builder::Setting;
        /// let settings = SlicedBucket::builder(Rate::per_second(5), 10).initial(11);
        /// let refused = settings.build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Initial, max: 10 });
        /// ```
        pub const fn build(self) -> Result<SlicedBucket, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// Builds the bucket on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::{Rate, SlicedBucket};
        /// let bucket: SlicedBucket<u32> =
        ///     SlicedBucket::builder(Rate::per_second(5), 10).build_on()?;
        /// assert_eq!(bucket.timing().tick.as_millis(), 1);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<SlicedBucket<W>, SettingsError> {
            let terms = self.bucket().terms;
            let most = terms.burst / 2;
            let low = bits(most);
            let started = if low < W::BITS {
                self.bucket().start(W::BITS - low)
            } else {
                Err(SettingsError::TooLarge { setting: Setting::Burst, max: 0 })
            };
            let (lattice, ticks, used) = match started {
                Ok(start) => start,
                Err(error) => return Err(refusal::<W>(terms, low, error)),
            };
            Ok(SlicedBucket::on(&lattice, ticks, used, most))
        }
    }
}

/// Returns the number of bits that numbers up to `most` need.
pub(super) const fn bits(most: u64) -> u32 {
    u64::BITS - most.leading_zeros()
}

/// Returns `error`, or the largest burst that would fit. Half of the burst takes bits of the word
/// (`low` of them here), and so leaves fewer to the lattice.
const fn refusal<W: Word>(terms: Terms, low: u32, error: SettingsError) -> SettingsError {
    let SettingsError::TooLarge {
        setting: Setting::Burst | Setting::Period | Setting::Rate,
        ..
    } = error
    else {
        return error;
    };
    let mut low = if low < W::BITS { low + 1 } else { W::BITS };
    while low > 0 {
        low -= 1;
        let (least, most) = (1 << low, if low == 63 { u64::MAX } else { (2 << low) - 1 });
        if (Terms {
            burst: least,
            ..terms
        })
        .lattice(W::BITS - low)
        .is_ok()
        {
            let max = match (Terms {
                burst: most,
                ..terms
            })
            .lattice(W::BITS - low)
            {
                Err(SettingsError::TooLarge {
                    setting: Setting::Burst,
                    max,
                }) => max,
                _ => most,
            };
            return SettingsError::TooLarge {
                setting: Setting::Burst,
                max,
            };
        }
    }
    error
}

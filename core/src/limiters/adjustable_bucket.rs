//! State: a token bucket's word (see [`token_bucket`](super::token_bucket)) in fewer bits, so that
//! it also names the settings in force and the era of a receipt (see [`live`](crate::word::live)).
//!
//! ```text
//! era | set | owed | used     `used` on the lattice of the set in force
//!                           `owed`: a reservation of this era was made before its permits came in
//! ```
//!
//! A reservation moves `used` ahead of the position, up to the declared debt: its holder may act
//! when the position gets there.
//!
//! - *take, reserve*: `used` moves on. A reservation that owes sets the mark. The first take that
//!   finds enough begins a new era, without it; rolled back, the era before goes on.
//! - *adjust*: the other set, a new era, and `used` on the new lattice.
//! - *give back* what is the last take still counted: exactly that, `used` moves back to where it
//!   came from.
//! - *give back* something else, of the same era: what the take left is `passed` units behind the
//!   newest position, so the bucket has held at most `passed` since. Had the take not been made, it
//!   would have held as much more as the take took, up to `full`; that is what the take is worth.
//!   If permits were owed in between, a reservation is worth what it took less what was taken after
//!   it, and a take nothing. Then a new era begins.
//!
//! Invariant: what was granted and not given back, each at the instant at which it may act, is
//! within `burst + rate * t` in any span t.
//!
//! Why a reservation is not worth more: those after it keep their instants, though without it they
//! would have had earlier ones. What it gave back could then be taken at their side. Why only one
//! in an era: what it gave back is taken anew, so the bucket has held more since than what an older
//! take left tells.

use core::fmt;
use core::ops::Deref;
use core::time::Duration;

use crate::limiter::queue_limiter::replenishing;
use crate::limiters::bucket_settings::BucketSettings;
use crate::limiters::lattice::{Lattice, Terms, used_after};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::grid::Grid;
use crate::time::timestamp::saturating_duration;
use crate::word::live::{LONGEST_STALENESS, Live, Noted, When};
use crate::word::{AtomicWord, NativeWord, Word};
use crate::{
    Carry, ChangeError, Denied, Idle, Lease, Limiter, LimiterId, Rate, Receipt, Refund, Retry,
    SettingsError, Timestamp,
};

/// A token bucket whose rate and burst can be changed while others take from it, and that can be
/// reserved from ahead of time.
///
/// It decides exactly as a [`TokenBucket`](crate::TokenBucket) does, on the settings of the moment.
/// What was earned before a change is settled at the old rate, to the fraction of a permit.
///
/// **Bound.** As a token bucket's, `burst + rate * t`, where rate and burst are those of each
/// moment, and what [`Carry`] adds in a change. However often the settings are changed at one
/// instant, nothing is gained: what was granted and has not come in since, and what is left, are
/// together at most the largest burst (but for [`Carry::Reset`], and while there is no limit).
/// Where a change forgets some of what was granted, as a lower burst does with [`Carry::Keep`],
/// those after it remember for the time in which as much comes in. What was given back does not
/// count. What is [forced](Self::force_at) may exceed it by the declared debt. Where permits are
/// [reserved](Self::reserve_at), each counts at the instant at which it may act; a reservation
/// keeps its instant when settings change, so after a change the bound is exceeded by at most what
/// was reserved then and not yet due.
///
/// **Cost.** A grant is one compare-exchange, and in each new [tick](Self::tick) a second one,
/// which notes the newest time: within one and a half times a token bucket's cost where many calls
/// fall into a tick, and about twice where each brings a new one. A denial writes nothing and reads
/// the word twice.
///
/// **Changing and giving back** are lock-free and never wait. One call at a time does either: a
/// change that finds another call at it answers [`ChangeError::Busy`], and a refund gives nothing
/// back then (the permits come back by time). The word tells 64 changes apart, 4 with 32 bits.
/// Where more than three quarters of that come within twice the [`staleness`](Self::staleness),
/// each decision costs two more atomic writes for that long, and a change is refused with `Busy`
/// while a call is in the middle of a decision since about as many changes ago: so no call decides
/// by old settings. For frequent changes, build the bucket with a short staleness.
///
/// **Horizon.** The lattice has 52 bits of a 64-bit word, 26 of a 32-bit one; the builder chooses
/// the tick so that it reaches an hour or more, as for a 32-bit token bucket, but from 1 µs up with
/// 64 bits. The tick stays as it is built, also that of a stepwise bucket. A receipt that is older
/// than about half the [`horizon`](Self::horizon) is worth nothing.
///
/// Source: the reservations of golang.org/x/time/rate, corrected, and bucket4j's replacement of a
/// configuration.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableBucket, Carry, Rate, Timestamp};
///
/// static LIMIT: AdjustableBucket = match AdjustableBucket::builder(Rate::per_second(10), 2)
///     .debt(20)
///     .build()
/// {
///     Ok(limit) => limit,
///     Err(_) => panic!("does not fit"),
/// };
///
/// let at = Timestamp::from_millis;
/// LIMIT.try_acquire_at(at(0), 2)?;
/// // Two more, as soon as they have come in.
/// let reserved = LIMIT.reserve_at(at(0), 2, Duration::from_secs(1))?;
/// assert_eq!(reserved.due(), at(200));
/// // From now on twice as fast.
/// LIMIT
///     .adjust_at(at(200), Rate::per_second(20), 2, Carry::Keep)
///     .unwrap();
/// assert!(LIMIT.try_acquire_at(at(249), 1).is_err());
/// assert!(LIMIT.try_acquire_at(at(250), 1).is_ok());
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct AdjustableBucket<W: Word = NativeWord> {
    live: Live<SETTINGS, W>,
    ticks: Grid,
    terms: Terms,
    /// Read and written by changes alone, under the claim.
    forgotten: [AtomicWord<W>; FORGOTTEN],
}

const GAIN: usize = 0;
const COST: usize = 1;
const FULL: usize = 2;
const DEBT: usize = 3;
const BEHIND: usize = 4;
const BURST: usize = 5;
/// The ticks that a `now` may be late.
const LATE: usize = 6;
const SETTINGS: usize = 7;

/// What was granted before the last change and that changes have forgotten: so many permits, and so
/// many units of one. It comes in as all else does, from the tick of the change on, in two halves.
const BEYOND: usize = 0;
const PART: usize = 1;
const BEGAN: usize = 2;
const BEGAN_HIGH: usize = 3;
/// The largest burst since the first of the changes that have forgotten this.
const LARGEST: usize = 4;
const FORGOTTEN: usize = 5;

const fn as_settings(lattice: &Lattice, late: u64) -> [u64; SETTINGS] {
    let mut settings = [0; SETTINGS];
    settings[GAIN] = lattice.gain;
    settings[COST] = lattice.cost;
    settings[FULL] = lattice.full;
    settings[DEBT] = lattice.debt;
    settings[BEHIND] = lattice.behind;
    settings[BURST] = lattice.burst;
    settings[LATE] = late;
    settings
}

/// What changes have forgotten of what was granted, in units of the settings in force, and the
/// largest burst since.
#[derive(Clone, Copy)]
struct Forgotten {
    beyond: i128,
    largest: u64,
}

impl Forgotten {
    /// As words, of settings that began at `tick` on `lattice`.
    const fn to_words(self, lattice: &Lattice, tick: u64) -> [u64; FORGOTTEN] {
        let mut words = [0; FORGOTTEN];
        if self.beyond > 0 && lattice.cost > 0 {
            let cost = lattice.cost as i128;
            words[BEYOND] = (self.beyond / cost).cast_unsigned() as u64;
            words[PART] = (self.beyond % cost).cast_unsigned() as u64;
            words[LARGEST] = self.largest;
        }
        words[BEGAN] = tick & u32::MAX as u64;
        words[BEGAN_HIGH] = tick >> 32;
        words
    }
}

impl AdjustableBucket {
    const_unless_loom! {
        /// A bucket that gains permits at `rate` and holds at most `burst` (at least 1); it starts
        /// full.
        ///
        /// # Panics
        ///
        /// Where [`AdjustableBucketBuilder::build`] would return an error; in a constant or a
        /// static, that is a compile error.
        ///
        /// ```
        /// use portcullis_core::{AdjustableBucket, Rate};
        /// static LIMIT: AdjustableBucket = AdjustableBucket::new(Rate::per_second(1_000), 100);
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
    /// # use portcullis_core::{AdjustableBucket, Rate};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(5), 10).build()?;
    /// assert_eq!(bucket.burst(), 10);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(rate: Rate, burst: u64) -> AdjustableBucketBuilder {
        let mut settings = BucketSettings::new(rate, burst);
        settings.terms.adjustable = Some(LONGEST_STALENESS);
        AdjustableBucketBuilder { settings }
    }
}

impl<W: Word> AdjustableBucket<W> {
    /// Bits of the lattice.
    const BITS: u32 = Live::<SETTINGS, W>::STATE_BITS;
    const USED: u64 = Live::<SETTINGS, W>::STATE;
    const OWED: u64 = Live::<SETTINGS, W>::MARK;

    /// Takes `n` permits at `now`. With `n = 0` it takes nothing, and is answered as a request for
    /// 1 would be.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`], or [`Denied::ExceedsCapacity`] if `n` is more than the burst.
    ///
    /// # Cost
    ///
    /// Two loads of settings more than a token bucket's, and a denial reads the word twice.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(
    ///     bucket.try_acquire_at(Timestamp::ZERO, 7).unwrap().permits(),
    ///     7
    /// );
    /// assert!(bucket.try_acquire_at(Timestamp::ZERO, 7).is_err());
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Takes `n` permits that may have to come in yet: whoever reserves may act when they have, at
    /// [`Reservation::due`], at most `max_wait` after `now`. Nobody else is granted a permit until
    /// then. With `n = 0` it takes nothing, and is due at once.
    ///
    /// # Errors
    ///
    /// [`Denied::ExceedsCapacity`] if `n` is more than the burst; [`Denied::Exhausted`] if it would
    /// be due after `max_wait`, or if more than the [declared
    /// debt](AdjustableBucketBuilder::debt) would be owed. Nothing has changed then. (Its
    /// [`retry`](Limiter::retry) is when the permits could be taken without a wait.)
    ///
    /// # Cost
    ///
    /// One compare-exchange, and a division or two. Lock-free.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(10), 1)
    ///     .debt(9)
    ///     .build()
    ///     .unwrap();
    /// let (now, wait) = (Timestamp::ZERO, Duration::from_millis(150));
    /// let due = |reserved: portcullis_core::Reservation<&_>| {
    ///     reserved.due().as_nanos() / 1_000_000
    /// };
    /// assert_eq!(bucket.reserve_at(now, 1, wait).map(due), Ok(0));
    /// assert_eq!(bucket.reserve_at(now, 1, wait).map(due), Ok(100));
    /// assert!(
    ///     bucket.reserve_at(now, 1, wait).is_err(),
    ///     "200 ms are too long"
    /// );
    /// ```
    pub fn reserve_at(
        &self,
        now: Timestamp,
        n: u32,
        max_wait: Duration,
    ) -> Result<Reservation<&Self>, Denied> {
        Reservation::reserve_at(self, now, n, max_wait)
    }

    /// Takes `n` permits at `now` even if they are not available: see
    /// [`TokenBucket::force_at`](crate::TokenBucket::force_at).
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if more than the declared debt would be owed,
    /// [`Denied::ExceedsCapacity`] if `n` is more than burst and debt together. Nothing has changed
    /// then.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(10), 3)
    ///     .debt(5)
    ///     .build()
    ///     .unwrap();
    /// assert!(bucket.force_at(Timestamp::ZERO, 8).is_ok());
    /// assert!(bucket.force_at(Timestamp::ZERO, 1).is_err());
    /// ```
    pub fn force_at(&self, now: Timestamp, n: u32) -> Result<(), Denied> {
        self.force(
            now,
            n,
            |lattice| {
                lattice
                    .burst
                    .saturating_add(lattice.debt.checked_div(lattice.cost).unwrap_or(0))
            },
            None,
        )
        .map(|_| ())
    }

    /// Changes rate and burst; `carry` says what becomes of the permits in the bucket, and of what
    /// is owed. Reservations keep their instants.
    ///
    /// The change counts at `now`, or at the newest time at which a permit was granted, if that is
    /// later.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Busy`] if another call is changing settings or giving back, or changes come
    /// too often (see the type's documentation); [`ChangeError::Settings`] if the settings do not
    /// fit the word at the bucket's tick; [`ChangeError::Owes`] if more is owed than the new
    /// settings can express. Nothing has changed then.
    ///
    /// # Cost
    ///
    /// Some divisions, and a compare-exchange for each decision that comes between. Lock-free;
    /// never makes anyone wait.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Carry, Rate, Timestamp};
    /// let bucket = AdjustableBucket::new(Rate::per_second(2), 4);
    /// let at = Timestamp::from_millis;
    /// bucket.try_acquire_at(at(0), 4).unwrap();
    /// // Half a permit has come in, and stays.
    /// bucket
    ///     .adjust_at(at(250), Rate::per_second(1), 4, Carry::Keep)
    ///     .unwrap();
    /// assert_eq!(bucket.available_at(at(749)), 0);
    /// assert_eq!(bucket.available_at(at(750)), 1);
    /// ```
    pub fn adjust_at(
        &self,
        now: Timestamp,
        rate: Rate,
        burst: u64,
        carry: Carry,
    ) -> Result<(), ChangeError> {
        let step = self.ticks.step();
        let tick = Some(Duration::from_nanos(step));
        let terms = Terms {
            rate,
            burst,
            tick,
            stepwise: false,
            ..self.terms
        };
        let (new, _) = terms.lattice(Self::BITS).map_err(ChangeError::Settings)?;
        let tick = self.ticks.index(now);
        let late = Self::late(&terms, &new, step);
        let turn = |word, When { earliest, latest }| {
            let (old, used) = (self.lattice(word), word & Self::USED);
            let carried = |tick| carried(&old, used, self.forgotten(&old, tick), &new, tick, carry);
            // At the one of the two times that leaves less; that is no more than at any time
            // between them.
            let (mut has, forgotten) = carried(earliest);
            if earliest < latest {
                let since = i128::from(latest - earliest) * i128::from(new.gain);
                has = has.saturating_add(since).min(carried(latest).0);
            }
            if -has > i128::from(new.debt) {
                return Err(ChangeError::Owes);
            }
            let used = new
                .position(latest)
                .wrapping_sub(has.cast_unsigned() as u64)
                & new.mask;
            Ok((
                as_settings(&new, late),
                used,
                forgotten.to_words(&new, latest),
            ))
        };
        self.live.change(tick, late, turn, |words| {
            for (cell, word) in self.forgotten.iter().zip(words) {
                cell.store(word, Relaxed);
            }
        })
    }

    /// The whole permits in the bucket at `now`; `u64::MAX` at an unlimited rate. Divides.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// assert_eq!(
    ///     AdjustableBucket::new(Rate::per_second(5), 10).available_at(Timestamp::ZERO),
    ///     10
    /// );
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        let tick = self.ticks.index(now);
        self.read(|lattice, used| lattice.available(lattice.position(tick), used))
    }

    /// Whether the bucket is full at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Idle, Rate, Timestamp};
    /// let bucket = AdjustableBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(
    ///     bucket.idle_at(Timestamp::from_secs(1)),
    ///     Idle::Since(Timestamp::ZERO)
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        self.read(|lattice, used| lattice.idle(&self.ticks, used, now))
    }

    /// The most permits that the bucket holds, as it is set now.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate};
    /// assert_eq!(AdjustableBucket::new(Rate::per_second(5), 10).burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.read(|lattice, _| lattice.burst)
    }

    /// The grain in which the bucket counts time.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate};
    /// assert_eq!(
    ///     AdjustableBucket::new(Rate::per_second(5), 10).tick(),
    ///     Duration::from_micros(1)
    /// );
    /// ```
    pub fn tick(&self) -> Duration {
        Duration::from_nanos(self.ticks.step())
    }

    /// How much older than the newest `now` another one may be for the bound to hold: at least one
    /// second.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate};
    /// assert_eq!(
    ///     AdjustableBucket::new(Rate::per_second(5), 10).staleness(),
    ///     Duration::from_secs(3_600)
    /// );
    /// ```
    pub fn staleness(&self) -> Duration {
        let ticks = self.live.read(|word| self.live.setting(word, LATE));
        saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()))
    }

    /// After how much idle time the word repeats; at a rate of zero and an unlimited one, the time
    /// of the newest grant beside it.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate};
    /// let year = Duration::from_secs(365 * 86_400);
    /// assert!(AdjustableBucket::new(Rate::per_second(5), 10).horizon() > 142 * year);
    /// ```
    pub fn horizon(&self) -> Duration {
        self.read(|lattice, _| {
            let ticks = lattice.mask.checked_div(lattice.gain).unwrap_or(W::MASK);
            saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()))
        })
    }

    /// The ticks that a `now` may be late on `lattice`, whose tick has so many nanoseconds.
    const fn late(terms: &Terms, lattice: &Lattice, tick: u64) -> u64 {
        let (late, most) = (terms.late(lattice, tick), Live::<SETTINGS, W>::MOST_LATE);
        if late < most { late } else { most }
    }

    /// The settings that `word` names. Of no meaning if the word has changed meanwhile.
    #[inline(always)]
    fn lattice(&self, word: u64) -> Lattice {
        Lattice {
            gain: self.live.setting(word, GAIN),
            cost: self.live.setting(word, COST),
            full: self.live.setting(word, FULL),
            debt: self.live.setting(word, DEBT),
            behind: self.live.setting(word, BEHIND),
            burst: self.live.setting(word, BURST),
            mask: Self::USED,
        }
    }

    /// What changes have forgotten and has not come in by `tick`, on the lattice in force. Under
    /// the claim.
    fn forgotten(&self, lattice: &Lattice, tick: u64) -> Forgotten {
        let word = |at: usize| self.forgotten[at].load(Relaxed);
        let beyond = i128::from(word(BEYOND)) * i128::from(lattice.cost) + i128::from(word(PART));
        let passed = tick.saturating_sub(word(BEGAN_HIGH) << 32 | word(BEGAN));
        let beyond = beyond - i128::from(passed) * i128::from(lattice.gain);
        if beyond > 0 {
            Forgotten {
                beyond,
                largest: word(LARGEST),
            }
        } else {
            Forgotten {
                beyond: 0,
                largest: lattice.burst,
            }
        }
    }

    /// What `tell` says of settings that belong to the word.
    fn read<T>(&self, tell: impl Fn(&Lattice, u64) -> T) -> T {
        self.live
            .read(|word| tell(&self.lattice(word), word & Self::USED))
    }

    /// Takes where there is more to do: settings change often, or permits were owed.
    #[cold]
    #[inline(never)]
    fn take_slowly(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let inside = self.live.count_in();
        let taken = match self.take_and_forget(now, n) {
            Some(receipt) => Ok(receipt),
            None => self.take::<true>(now, n),
        };
        drop(inside);
        self.live.calm(self.ticks.index(now));
        taken
    }

    /// Takes, and begins a new era with that, if permits were owed, all of it has come in, and `n`
    /// permits besides: so that later receipts are worth something again. One exchange does both,
    /// so that a rollback can undo both. `None` if nothing is done: then the take is one of the era
    /// that there is.
    fn take_and_forget(&self, now: Timestamp, n: u32) -> Option<Receipt> {
        if n == 0 || self.live.load() & Self::OWED == 0 {
            return None;
        }
        let claim = self.live.claim()?;
        let word = self.live.load();
        let lattice = self.lattice(word);
        let tick = self.ticks.index(now);
        let balance = lattice.balance(lattice.position(tick), word & Self::USED);
        let price = u64::from(n).saturating_mul(lattice.cost);
        if word & Self::OWED == 0 || u64::from(n) > lattice.burst || balance.available < price {
            return None;
        }
        let newest = self.live.note(tick);
        let next =
            claim.take_and_begin_era(word, balance.from, balance.from.wrapping_add(price))?;
        self.live.confirm_newest(tick, newest);
        Some(Live::<SETTINGS, W>::receipt(next, tick, newest))
    }

    /// Takes, by a caller that has counted itself in or need not.
    #[inline(always)]
    fn take<const INSIDE: bool>(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        let tick = self.ticks.index(now);
        let mut word = self.live.load();
        'judge: loop {
            let setting = |at| self.live.setting(word, at);
            let decision = 'told: {
                let burst = setting(BURST);
                if u64::from(n) > burst {
                    break 'told Err(Denied::ExceedsCapacity {
                        permits: n,
                        capacity: burst as u32,
                    });
                }
                // A permit costs less than the range, but a torn setting may be anything.
                let price = u64::from(n.max(1)).wrapping_mul(setting(COST));
                let position = tick.wrapping_mul(setting(GAIN)) & Self::USED;
                let (used, full) = (word & Self::USED, setting(FULL));
                let denied = Err(Denied::Exhausted { now, permits: n });
                let behind = || setting(BEHIND);
                let Some(left) = used_after(position, used, price, full, Self::USED, behind) else {
                    break 'told denied;
                };
                if n == 0 {
                    break 'told Ok(Receipt::NONE);
                }
                if !INSIDE && word & (Live::<SETTINGS, W>::SLOW | Self::OWED) != 0 {
                    return self.take_slowly(now, n);
                }
                let next = word & !Self::USED | left;
                let newest = self.live.note(tick);
                match self.live.exchange(word, next) {
                    Ok(()) => {
                        self.live.confirm_newest(tick, newest);
                        return Ok(Live::<SETTINGS, W>::receipt(next, tick, newest));
                    }
                    Err(newer) => word = newer,
                }
                continue 'judge;
            };
            match self.live.confirm(word) {
                Ok(()) => return decision,
                Err(newer) => word = newer,
            }
        }
    }

    /// Takes `n` permits, at most `most`, owing if need be; where there is an `until`, only if they
    /// have come in by then. Returns when that is.
    fn force(
        &self,
        now: Timestamp,
        n: u32,
        most: impl Fn(&Lattice) -> u64,
        until: Option<Timestamp>,
    ) -> Result<Forced, Denied> {
        if n == 0 {
            return Ok(Forced {
                receipt: Receipt::NONE,
                due: now,
                marks: false,
            });
        }
        let tick = self.ticks.index(now);
        let (mut word, mut inside) = (self.live.load(), None);
        loop {
            word = self.live.enter(word, &mut inside);
            let lattice = self.lattice(word);
            let most = most(&lattice);
            let decision = if u64::from(n) > most {
                Err(Denied::ExceedsCapacity {
                    permits: n,
                    capacity: most as u32,
                })
            } else {
                let forced = lattice.forced(lattice.position(tick), word & Self::USED, n);
                let decided = forced.and_then(|(left, owed)| match (owed, until) {
                    (0, _) => Some((word & !Self::USED | left, now)),
                    (_, None) => Some((word & !Self::USED | Self::OWED | left, now)),
                    (_, Some(until)) => {
                        let due = lattice.settled(tick, owed)?;
                        let left = lattice.acted(lattice.position(due), left, n);
                        let due = self.ticks.start(due).filter(|&due| due <= until)?;
                        Some((word & !Self::USED | Self::OWED | left, due))
                    }
                });
                decided.ok_or(Denied::Exhausted { now, permits: n })
            };
            let outcome = match decision {
                Ok((next, due)) => {
                    let newest = self.live.note(tick);
                    let receipt = Live::<SETTINGS, W>::receipt(next, tick, newest);
                    let marks = next & !word & Self::OWED != 0;
                    self.live.exchange(word, next).map(|()| {
                        self.live.confirm_newest(tick, newest);
                        Ok(Forced {
                            receipt,
                            due,
                            marks,
                        })
                    })
                }
                Err(denied) => self.live.confirm(word).map(|()| Err(denied)),
            };
            match outcome {
                Ok(decision) => return decision,
                Err(newer) => word = newer,
            }
        }
    }

    /// Gives `n` permits back of what `receipt` is for, which has set the mark if it `marks`.
    /// Returns how many of them count as never taken.
    fn give_back(&self, now: Timestamp, n: u32, receipt: Receipt, marks: bool) -> Refund {
        let Some(claim) = self.live.claim() else {
            return receipt.refunded(0);
        };
        let noted = Live::<SETTINGS, W>::noted(&receipt);
        let tick = self.ticks.index(now);
        loop {
            let word = self.live.load();
            // Settings change under the claim alone.
            let lattice = self.lattice(word);
            if lattice.is_unlimited() {
                return receipt.refunded(n);
            }
            let newest = self.live.no_older_than_newest(tick);
            let since = (word ^ noted.word) & !Live::<SETTINGS, W>::SLOW;
            let is_of_era = since & !(Self::USED | Self::OWED) == 0;
            if n == 0
                || !is_of_era
                || !claim.wrote(noted, newest)
                || lattice.is_outlived(noted.tick, newest)
            {
                return receipt.refunded(0);
            }
            if since == 0 {
                let used = word & Self::USED;
                let left = lattice.restored(lattice.position(tick), used, n);
                let from = used.wrapping_sub(u64::from(n).wrapping_mul(lattice.cost)) & Self::USED;
                let replaced = claim
                    .resume_era(word, noted, from, left)
                    .unwrap_or_else(|| {
                        let next =
                            word & !Self::USED & !(if marks { Self::OWED } else { 0 }) | left;
                        self.live.exchange(word, next).map(|()| next)
                    });
                if let Ok(next) = replaced {
                    let rest = Live::<SETTINGS, W>::receipt(next, noted.tick, noted.newest);
                    return rest.refunded(n);
                }
                continue;
            }
            let used = word & Self::USED;
            let worth = Self::worth(&lattice, word, noted, newest, n);
            if worth == 0 {
                return receipt.refunded(0);
            }
            let left = used.wrapping_sub(u64::from(worth).wrapping_mul(lattice.cost)) & Self::USED;
            match claim.begin_era(word, left) {
                Some(Ok(())) => return receipt.refunded(worth),
                Some(Err(_)) => {}
                None => return receipt.refunded(0),
            }
        }
    }

    /// Notes the time `now` as a take does that is denied in the end.
    #[cfg(any(explore, notes))]
    #[doc(hidden)]
    pub fn note_at(&self, now: Timestamp) {
        self.live.note(self.ticks.index(now));
    }

    /// What `n` permits of a take are worth that is not the last one: how many of them the bucket
    /// would hold or have granted by the tick `newest`, had they not been taken.
    fn worth(lattice: &Lattice, word: u64, noted: Noted, newest: u64, n: u32) -> u32 {
        let (cost, left) = (i128::from(lattice.cost), noted.word & Self::USED);
        let taken = i128::from(n) * cost;
        // By how much the position was ahead of what the take left: less than none, where it owed.
        let ahead = match lattice.position(noted.tick).wrapping_sub(left) & Self::USED {
            ahead if ahead < lattice.behind => i128::from(ahead),
            owed => -i128::from((lattice.mask - owed).wrapping_add(1)),
        };
        let passed = i128::from(newest - noted.tick) * i128::from(lattice.gain) + ahead;
        let room = i128::from(lattice.full) - passed;
        let worth = match (noted.word & Self::OWED != 0, word & Self::OWED != 0) {
            (false, false) => room.min(taken),
            (false, true) => 0,
            (true, _) => {
                let after = i128::from((word & Self::USED).wrapping_sub(left) & Self::USED);
                // Those after it may have been counted up to a whole tick.
                room.min(taken - after - i128::from(lattice.gain.saturating_sub(1)))
            }
        };
        u32::try_from(worth.max(0) / cost).unwrap_or(0)
    }
}

/// The units that a bucket used up to `used` has at `tick`, on a new lattice: less than none, if it
/// owes; and what has been forgotten then. Rounded so that nothing is gained.
fn carried(
    old: &Lattice,
    used: u64,
    forgotten: Forgotten,
    new: &Lattice,
    tick: u64,
    carry: Carry,
) -> (i128, Forgotten) {
    let nothing = Forgotten {
        beyond: 0,
        largest: new.burst,
    };
    let full = i128::from(new.full);
    if old.is_unlimited() || carry == Carry::Reset {
        return (full, nothing);
    }
    let balance = old.balance(old.position(tick), used);
    let (old_cost, new_cost) = (i128::from(old.cost), i128::from(new.cost));
    let owed = (u128::from(balance.owed) * u128::from(new.cost)).div_ceil(old.cost.into());
    let has = i128::from(balance.available) * new_cost / old_cost - owed.cast_signed();
    // What was granted and has not come in: missing from the bucket, or forgotten. By whole permits
    // and the rest, so that no product is too large.
    let missing = i128::from(old.full) - i128::from(balance.available) + i128::from(balance.owed);
    let granted = missing + forgotten.beyond;
    let (permits, part) = (granted / old_cost, granted % old_cost);
    let granted = permits * new_cost + (part * new_cost + old_cost - 1) / old_cost;
    // So that nothing is gained by changing often: with what was granted, no more than the largest
    // burst.
    let largest = forgotten.largest.max(new.burst);
    let most = (i128::from(largest) * new_cost - granted).max(has);
    let grown = (i128::from(new.burst) - i128::from(old.burst)) * new_cost;
    let has = match carry {
        Carry::Proportional if balance.owed == 0 => {
            (i128::from(balance.available) * full / i128::from(old.full)).min(most)
        }
        Carry::Additive => (has + grown).max(has.min(0)).min(most),
        Carry::Keep | Carry::Proportional | Carry::Reset => has,
    };
    let has = has.min(full);
    let beyond = (granted - (full - has)).max(0);
    (has, Forgotten { beyond, largest })
}

impl<W: Word> Limiter for AdjustableBucket<W> {
    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take::<false>(now, n)
    }

    /// All of them, if no permit was taken since; else as many as have not been refilled since, and
    /// then nothing more of what was taken before. None if settings have changed, something else
    /// was given back out of turn, the bucket has owed permits since, the receipt is older than
    /// about half the [`horizon`](Self::horizon), or another call is changing settings or giving
    /// back at this moment. None either if settings were changed in the [tick](Self::tick) of the
    /// grant more often than 14 times with 32 bits (1,022 with 64), where whatever was given back
    /// out of turn counts as 4 changes (64).
    #[inline]
    fn refund_at(&self, now: Timestamp, n: u32, receipt: Receipt) -> Refund {
        self.give_back(now, n, receipt, false)
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
        self.read(|lattice, used| lattice.retry(&self.ticks, used, denied))
    }
}

replenishing!([W: Word] AdjustableBucket<W>);

/// Settings of an [`AdjustableBucket`]; from [`AdjustableBucket::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableBucket, Rate, Timestamp};
///
/// // Up to 20 permits may be reserved ahead of time.
/// let bucket = AdjustableBucket::builder(Rate::per_second(10), 2).debt(20).build()?;
/// let wait = Duration::from_secs(2);
/// let due = bucket.reserve_at(Timestamp::ZERO, 2, wait).map(|reserved| reserved.due());
/// assert_eq!(due, Ok(Timestamp::ZERO));
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct AdjustableBucketBuilder {
    settings: BucketSettings,
}

impl AdjustableBucketBuilder {
    /// The permits in the bucket at its [`origin`](Self::origin), at most the burst. Default: the
    /// burst.
    ///
    /// ```
    /// # use portcullis_core::{Rate, AdjustableBucket, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(5), 10)
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
    /// # use portcullis_core::{Rate, AdjustableBucket, Timestamp};
    /// let start = Timestamp::from_secs(60);
    /// let bucket = AdjustableBucket::builder(Rate::per_second(5), 10)
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
    /// the [`origin`](Self::origin); steps stay as long as they are built, whatever rate is set
    /// later. Default: continuously. The bound is then that of a [stepwise token
    /// bucket](crate::TokenBucketBuilder::stepwise).
    ///
    /// ```
    /// # use portcullis_core::{Rate, AdjustableBucket, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(5), 10)
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

    /// The permits that may be owed after [`AdjustableBucket::reserve_at`] or
    /// [`AdjustableBucket::force_at`]. Default: 0.
    ///
    /// **Bound** of a bucket with a debt: what is forced may exceed the type's by the debt.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(5), 10)
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
    /// Default: the finest of 1 µs, 10 µs, ... 10 s (from 1 ns up with a 32-bit word and a rate
    /// that is neither zero nor unlimited) whose horizon is an hour or more. With a
    /// [debt](Self::debt) it is finer where 1 µs brings more than a sixteenth of that: what is
    /// reserved is due at a whole tick, and counts up to there.
    ///
    /// Has no meaning for a [`stepwise`](Self::stepwise) bucket, whose tick is its period.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Rate, AdjustableBucket};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(5), 10)
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
    /// # use portcullis_core::{Rate, AdjustableBucket};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(5), 10)
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
        /// [`SettingsError`] names the setting and its bound: as
        /// [`TokenBucketBuilder::build`](crate::TokenBucketBuilder::build), in the 52 bits that the
        /// lattice has (26 of a 32-bit word).
        ///
        /// ```
        /// # use portcullis_core::{AdjustableBucket, Rate, Setting, SettingsError};
        /// let settings = AdjustableBucket::builder(Rate::per_second(5), 10).initial(11);
        /// let refused = settings.build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Initial, max: 10 });
        /// ```
        pub const fn build(self) -> Result<AdjustableBucket, SettingsError> {
            self.build_on()
        }
    }

    const_unless_loom! {
        /// The bucket on a word of a chosen width.
        ///
        /// # Errors
        ///
        /// As [`build`](Self::build).
        ///
        /// ```
        /// # use portcullis_core::{AdjustableBucket, Rate};
        /// let bucket: AdjustableBucket<u32> =
        ///     AdjustableBucket::builder(Rate::per_second(5), 10).build_on()?;
        /// assert_eq!(bucket.tick().as_micros(), 100);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<AdjustableBucket<W>, SettingsError> {
            let BucketSettings { terms, origin, .. } = self.settings;
            let (lattice, ticks, used) = match self.settings.start(AdjustableBucket::<W>::BITS) {
                Ok(start) => start,
                Err(error) => return Err(error),
            };
            let late = AdjustableBucket::<W>::late(&terms, &lattice, ticks.step());
            let live = Live::new(as_settings(&lattice, late), used, ticks.index(origin), late);
            #[cfg(not(loom))]
            let forgotten = [const { AtomicWord::new(0) }; FORGOTTEN];
            #[cfg(loom)]
            let forgotten = core::array::from_fn(|_| AtomicWord::new(0));
            Ok(AdjustableBucket { live, ticks, terms, forgotten })
        }
    }
}

/// Permits of an [`AdjustableBucket`] that may have to come in yet: whoever holds it may act at
/// [`due`](Self::due), and not before.
///
/// Dropped, it stays taken: give it back with [`cancel_at`](Self::cancel_at).
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableBucket, Rate, Timestamp};
///
/// let bucket = AdjustableBucket::builder(Rate::per_second(10), 2)
///     .debt(9)
///     .build()
///     .unwrap();
/// let (at, wait) = (Timestamp::from_millis, Duration::from_secs(9));
/// bucket.try_acquire_at(at(0), 2)?;
/// let reserved = bucket.reserve_at(at(0), 2, wait)?;
/// assert_eq!(reserved.due(), at(200));
/// assert_eq!(reserved.cancel_at(at(100)), 2);
/// assert_eq!(bucket.reserve_at(at(100), 2, wait)?.due(), at(200));
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[must_use = "a reservation that is neither acted on nor cancelled takes permits in vain"]
pub struct Reservation<P> {
    bucket: P,
    permits: u32,
    forced: Forced,
}

/// What was taken, though permits may have to come in yet.
struct Forced {
    receipt: Receipt,
    due: Timestamp,
    /// Whether it is the first of its era that owes.
    marks: bool,
}

impl<P, W> Reservation<P>
where
    P: Deref<Target = AdjustableBucket<W>>,
    W: Word,
{
    /// As [`AdjustableBucket::reserve_at`], into a reservation that keeps the pointer that it is
    /// given.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use std::sync::Arc;
    /// # use portcullis_core::{AdjustableBucket, Rate, Reservation, Timestamp};
    /// let bucket = Arc::new(AdjustableBucket::new(Rate::per_second(10), 2));
    /// let reserved = Reservation::reserve_at(bucket, Timestamp::ZERO, 2, Duration::ZERO)?;
    /// assert_eq!(reserved.due(), Timestamp::ZERO);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn reserve_at(
        bucket: P,
        now: Timestamp,
        n: u32,
        max_wait: Duration,
    ) -> Result<Self, Denied> {
        let until = now.saturating_add(max_wait);
        let forced = bucket.force(now, n, |lattice| lattice.burst, Some(until))?;
        Ok(Self {
            bucket,
            permits: n,
            forced,
        })
    }

    /// Gives the permits back at `now`, before they were acted on, and returns how many of them can
    /// be taken again: all, if none were taken or reserved since; else those that were not reserved
    /// after. None after [`due`](Self::due), when they may have been acted on; if something else
    /// was given back out of turn, or settings have changed; or if another call is doing so at this
    /// moment.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(10), 3)
    ///     .debt(9)
    ///     .build()
    ///     .unwrap();
    /// let (now, wait) = (Timestamp::ZERO, Duration::from_secs(9));
    /// bucket.try_acquire_at(now, 3)?;
    /// let first = bucket.reserve_at(now, 3, wait)?;
    /// let second = bucket.reserve_at(now, 1, wait)?;
    /// assert_eq!(first.cancel_at(now), 2, "the second one keeps its instant");
    /// # let _ = second;
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn cancel_at(self, now: Timestamp) -> u32 {
        let Self {
            bucket,
            permits,
            forced:
                Forced {
                    receipt,
                    due,
                    marks,
                },
        } = self;
        if now > due {
            0
        } else {
            bucket.give_back(now, permits, receipt, marks).permits
        }
    }
}

impl<P> Reservation<P> {
    /// The instant from which on the holder may act.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::new(Rate::per_second(10), 2);
    /// let now = Timestamp::from_secs(3);
    /// assert_eq!(bucket.reserve_at(now, 2, Duration::ZERO)?.due(), now);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn due(&self) -> Timestamp {
        self.forced.due
    }

    /// The permits reserved.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::new(Rate::per_second(10), 2);
    /// assert_eq!(
    ///     bucket
    ///         .reserve_at(Timestamp::ZERO, 2, Duration::ZERO)?
    ///         .permits(),
    ///     2
    /// );
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn permits(&self) -> u32 {
        self.permits
    }
}

impl<P> fmt::Debug for Reservation<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("permits", &self.permits)
            .field("due", &self.forced.due)
            .finish_non_exhaustive()
    }
}

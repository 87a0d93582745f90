//! State: a token bucket's word (see [`token_bucket`](super::token_bucket)) in fewer bits. The
//! other bits name the settings in force and the era of a receipt (see
//! [`live`](crate::word::live)).
//!
//! ```text
//! era | set | owed | used     `used`: on the lattice of the set in force
//!                             `owed`: a take of this era has owed permits
//! ```
//!
//! A reservation moves `used` ahead of the position, by at most the declared debt. Its holder may
//! act when the position reaches `used`.
//!
//! - *take, reserve*: advances `used`. A reservation that owes permits sets `owed`. The first take
//!   that then finds enough permits begins a new era, with `owed` clear. Rolling that take back
//!   resumes the era before.
//! - *adjust*: selects the other set, begins a new era, and converts `used` to the new lattice.
//! - *add, reset*: moves `used` to where the bucket has the permits asked for, and begins a new
//!   era. So a receipt from before is worth nothing: its permits may be among those that were
//!   added.
//! - *refund* of the last take that still counts: `used` moves back to where the take found it.
//! - *refund* of an older take of the same era: the newest position is `passed` units ahead of the
//!   `used` that the take left. So the bucket has held at most `passed` units since. Without the
//!   take it would have held as many more as the take took, up to `full`. The refund is worth that
//!   difference. If permits were owed in the meantime, the refund of a reservation is worth what it
//!   took less what was taken after it, and the refund of a take is worth nothing. The refund
//!   begins a new era.
//!
//! Invariant: each permit that was granted and not refunded counts at the instant at which its
//! holder may act. In any span of time t, at most `burst + rate * t` permits count.
//!
//! Why a reservation is not worth more: later reservations keep their instants, although they would
//! have had earlier ones without it. The refunded permits could be taken in addition to theirs. Why
//! only one such refund in an era: refunded permits are taken again, so the bucket has held more
//! since than the `used` of an older take shows.

use core::fmt;
use core::ops::Deref;
use core::time::Duration;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer};
use crate::limiter::queue_limiter::replenishing;
use crate::limiter::receipt::{Receipt, Refund};
use crate::limiter::{Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned};
use crate::limiters::bucket_settings::BucketSettings;
use crate::limiters::lattice::{Lattice, Terms, used_after};
use crate::newer::{low_bits, signed_wide};
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::const_unless_loom;
use crate::time::grid::Grid;
use crate::time::rate::Rate;
use crate::time::timestamp::{Timestamp, saturating_duration};
use crate::time::timing::Timing;
use crate::word::builder::sealed::Sealed;
use crate::word::builder::{Builder, Ticks};
use crate::word::live::{Carry, ChangeError, LONGEST_STALENESS, Live, Noted, When};
use crate::word::settings::SettingsError;
use crate::word::{AtomicWord, NativeWord, Word};

/// A token bucket whose rate and burst can change while it is in use, and that supports
/// reservations ahead of time.
///
/// It decides exactly as a [`TokenBucket`](crate::TokenBucket) with the settings in force does. A
/// change settles what was replenished before it at the old rate, to the fraction of a permit.
///
/// **Bound.** Any span of time `t` admits at most `burst + rate * t` permits, as for a token
/// bucket. If the [tick](Self::timing) is longer than 1 ns, time counts in whole ticks. Rate and
/// burst are those in force at each moment, and each change may add what its [`Carry`] adds.
///
/// - Repeated changes at one instant gain nothing. The permits granted and not yet replenished, and
///   the permits available, are together at most the largest burst. The exceptions are
///   [`Carry::Reset`] and an unlimited rate.
/// - A change may drop a part of what was granted from the state, as a lower burst does with
///   [`Carry::Keep`]. Later changes still account for that part, for the time in which as many
///   permits are replenished.
/// - [Added](Self::add_at) permits come on top: a span admits as many more as were added in it. A
///   [reset](Self::reset_at) adds what it leaves in the bucket beyond what was there, and the debt
///   that it cancels.
/// - Refunded permits do not count.
/// - [Forced](Self::force_at) permits may exceed the bound by the declared debt.
/// - A [reserved](Self::reserve_at) permit counts at the instant at which its holder may act. A
///   reservation keeps its instant when the settings change. So after a change the bound is
///   exceeded by at most the permits that were reserved and not yet due.
///
/// **Cost.** A grant is one compare-exchange. The first grant in each [tick](Self::timing) needs a
/// second one, which records the newest time. A grant costs at most 1.5 times as much as a token
/// bucket's if many calls share a tick, and about twice as much if each call has a new tick. A
/// denial writes nothing and reads the word twice.
///
/// **Changes and refunds** are lock-free and never wait. Only one call at a time makes a change, an
/// addition, a reset or a refund. While another call does so, a refund returns no permits (they
/// return by time), and the others fail with [`ChangeError::Busy`]. The word distinguishes 64
/// changes, or 4 with 32 bits. If more than three quarters of that number come within twice the
/// [`staleness`](Self::timing), then for that long:
///
/// - each decision costs two more atomic writes;
/// - a change fails with `Busy` while a call is in the middle of a decision that it began about
///   that many changes ago. So no call decides by outdated settings.
///
/// For frequent changes, build the bucket with a short staleness.
///
/// **Horizon.** The state has 52 bits of a 64-bit word, or 26 bits of a 32-bit word. By default the
/// builder chooses a [tick](AdjustableBucketBuilder::tick) with a long horizon. With 64 bits it is
/// over ten years at most rates, and 52 days at 997 permits per second. A change of the
/// settings keeps the tick, even that of a stepwise bucket. A receipt older than about half the
/// [`horizon`](Self::timing) is worth nothing.
///
/// Source: the reservations of golang.org/x/time/rate, corrected, and the configuration replacement
/// of bucket4j.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableBucket, Rate, Timestamp};
/// use portcullis_core::state::Carry;
///
/// static LIMIT: AdjustableBucket = match AdjustableBucket::builder(Rate::per_second(10), 2)
///     .debt(20)
///     .build()
/// {
///     Ok(limit) => limit,
///     Err(_) => panic!("invalid settings"),
/// };
///
/// let at = Timestamp::from_millis;
/// let _ = LIMIT.try_acquire_at(at(0), 2)?;
/// // Two more permits, as soon as they have been replenished.
/// let reserved = LIMIT.reserve_at(at(0), 2, Duration::from_secs(1))?;
/// assert_eq!(reserved.due(), at(200));
/// // From now on, the rate is twice as high.
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
    /// Only changes read and write these cells, while they hold the claim.
    forgotten: [AtomicWord<W>; FORGOTTEN],
}

const GAIN: usize = 0;
const COST: usize = 1;
const FULL: usize = 2;
const DEBT: usize = 3;
const BEHIND: usize = 4;
const BURST: usize = 5;
/// The staleness, in ticks.
const LATE: usize = 6;
const SETTINGS: usize = 7;

/// Permits that were granted before the last change, and that changes have forgotten (dropped from
/// the state): whole permits, and units of one more. They are replenished like all others, from the
/// tick of the change on, which is stored in two halves.
const BEYOND: usize = 0;
const PART: usize = 1;
const BEGAN: usize = 2;
const BEGAN_HIGH: usize = 3;
/// The largest burst since the first of the changes that have forgotten these permits.
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

/// The granted units that changes have forgotten, on the lattice in force, and the largest burst
/// since.
#[derive(Clone, Copy)]
struct Forgotten {
    beyond: i128,
    largest: u64,
}

impl Forgotten {
    /// Returns the words to store for settings that took effect at `tick` on `lattice`.
    const fn to_words(self, lattice: &Lattice, tick: u64) -> [u64; FORGOTTEN] {
        let mut words = [0; FORGOTTEN];
        if self.beyond > 0 && lattice.cost > 0 {
            let cost = lattice.cost as i128;
            words[BEYOND] = low_bits(self.beyond / cost);
            words[PART] = low_bits(self.beyond % cost);
            words[LARGEST] = self.largest;
        }
        words[BEGAN] = tick & u32::MAX as u64;
        words[BEGAN_HIGH] = tick >> 32;
        words
    }
}

impl AdjustableBucket {
    const_unless_loom! {
        /// Creates a bucket that gains permits at `rate` and holds at most `burst` permits (at
        /// least 1). The bucket starts full.
        ///
        /// # Panics
        ///
        /// If [`AdjustableBucketBuilder::build`] would return an error. In a constant or a static,
        /// this is a compile error.
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

    /// Returns a builder for a bucket that gains permits at `rate` and holds at most `burst`
    /// permits (at least 1).
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
        Builder::new(settings)
    }
}

impl<W: Word> AdjustableBucket<W> {
    /// The bits of the lattice.
    const BITS: u32 = Live::<SETTINGS, W>::STATE_BITS;
    const USED: u64 = Live::<SETTINGS, W>::STATE;
    const OWED: u64 = Live::<SETTINGS, W>::MARK;

    /// Takes `n` permits at `now`.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    /// The lease does nothing when dropped: permits return by time alone.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the bucket holds fewer than `n` permits, or
    /// [`Denied::ExceedsCapacity`] if `n` is more than the burst.
    ///
    /// # Cost
    ///
    /// Two more loads of settings than a token bucket, and a denial reads the word twice.
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

    /// Reserves `n` permits, which may not have been replenished yet.
    ///
    /// The caller may act at [`Reservation::due`], at most `max_wait` after `now`. Until then,
    /// [`try_acquire_at`](Self::try_acquire_at) grants nothing. With `n = 0` the reservation takes
    /// nothing and is due immediately.
    ///
    /// # Errors
    ///
    /// [`Denied::ExceedsCapacity`] if `n` is more than the burst. [`Denied::Exhausted`] if the
    /// reservation would be due after `max_wait`, or would owe more than the [declared
    /// debt](AdjustableBucketBuilder::debt). Nothing changes then. The denial's
    /// [`retry`](Limiter::retry) is the instant at which the permits could be taken without a wait.
    ///
    /// # Cost
    ///
    /// One compare-exchange, and one or two divisions. Lock-free.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(10), 1)
    ///     .debt(9)
    ///     .build()
    ///     .unwrap();
    /// let (now, wait) = (Timestamp::ZERO, Duration::from_millis(150));
    /// let due = |reserved: portcullis_core::parts::Reservation<&_>| {
    ///     reserved.due().as_nanos() / 1_000_000
    /// };
    /// assert_eq!(bucket.reserve_at(now, 1, wait).map(due), Ok(0));
    /// assert_eq!(bucket.reserve_at(now, 1, wait).map(due), Ok(100));
    /// assert!(
    ///     bucket.reserve_at(now, 1, wait).is_err(),
    ///     "it would be due after 200 ms, which is too late"
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

    /// Takes `n` permits at `now` even if fewer are available, and may leave the bucket in debt.
    /// See [`TokenBucket::force_at`](crate::TokenBucket::force_at).
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if more than the declared debt would be owed.
    /// [`Denied::ExceedsCapacity`] if `n` is more than burst and debt together. Nothing changes
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
            |lattice| lattice.burst.saturating_add(lattice.most_owed()),
            None,
        )
        .map(|_| ())
    }

    /// Changes the rate and the burst.
    ///
    /// `carry` says what happens to the permits in the bucket and to the debt. Reservations keep
    /// their instants. The change takes effect at `now`, or at the newest time at which a permit
    /// was granted if that is later.
    ///
    /// # Errors
    ///
    /// - [`ChangeError::Busy`] if another call is making a change or a refund, or if changes come
    ///   too often (see the type's documentation).
    /// - [`ChangeError::Settings`] if the settings do not fit the word at the bucket's tick.
    /// - [`ChangeError::Owes`] if the bucket owes more than the new settings can express.
    /// - [`ChangeError::Stale`], with 32 bits, if `now` is older than the newest time by more than
    ///   the staleness under the new settings.
    ///
    /// On an error, nothing changes.
    ///
    /// # Cost
    ///
    /// Some divisions, and one compare-exchange, retried for each decision that comes between.
    /// Lock-free; never makes another call wait.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// # use portcullis_core::state::Carry;
    /// let bucket = AdjustableBucket::new(Rate::per_second(2), 4);
    /// let at = Timestamp::from_millis;
    /// bucket.try_acquire_at(at(0), 4).unwrap();
    /// // Half a permit has been replenished. It is kept.
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
        self.change(now, rate, burst, Some(carry))
    }

    /// Changes the rate and the burst, and removes all permits. Owed permits stay owed.
    ///
    /// For a limit that a later holder has from the beginning. Other than a
    /// [reset](Self::reset_at), it may come any number of times at one instant.
    ///
    /// **Bound.** From the change on, any time `t` admits at most `rate * t` permits, and
    /// [reserved](Self::reserve_at) ones that are not yet due. A change counts at `now`, or at the
    /// newest time at which a permit was granted if that is later. Refunds of grants from before
    /// the change return no permits.
    ///
    /// # Errors
    ///
    /// As [`adjust_at`](Self::adjust_at).
    ///
    /// # Cost
    ///
    /// As [`adjust_at`](Self::adjust_at).
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::new(Rate::per_second(2), 4);
    /// let at = Timestamp::from_millis;
    /// bucket.empty_at(at(250), Rate::per_second(1), 4).unwrap();
    /// assert_eq!(bucket.available_at(at(1_249)), 0);
    /// assert_eq!(bucket.available_at(at(1_250)), 1);
    /// ```
    pub fn empty_at(&self, now: Timestamp, rate: Rate, burst: u64) -> Result<(), ChangeError> {
        self.change(now, rate, burst, None)
    }

    /// Without a `carry`, the bucket is empty after the change.
    fn change(
        &self,
        now: Timestamp,
        rate: Rate,
        burst: u64,
        carry: Option<Carry>,
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
            // Of the two times, the change takes the one that leaves fewer units. No time between
            // them leaves fewer.
            let (mut has, forgotten) = carried(earliest);
            if earliest < latest {
                let since = i128::from(latest - earliest) * i128::from(new.gain);
                has = has.saturating_add(since).min(carried(latest).0);
            }
            if -has > i128::from(new.debt) {
                return Err(ChangeError::Owes);
            }
            let used = new.position(latest).wrapping_sub(low_bits(has)) & new.mask;
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

    /// Adds `n` permits, at most until the bucket is full. They need not have been taken before.
    ///
    /// For example, to grant a bonus. The permits pay off what is owed first. To return permits
    /// that were taken and not used, use [`Lease::refund_at`]: a refund never exceeds the bound.
    ///
    /// **Bound.** The permits are forced: any span of time that contains the addition admits up to
    /// `n` permits more than the bound of the type. An addition counts at `now`, or at the newest
    /// time at which a permit was granted if that is later. The bucket never holds more than the
    /// burst. [Reserved](Self::reserve_at) permits keep their instants: a span that begins after
    /// the addition may admit those that were not yet due, up to `n`, in addition to the bound.
    /// Refunds of grants from before the addition return no permits, so that they add nothing on
    /// top.
    ///
    /// With `n = 0`, on a full bucket, and at an unlimited rate, nothing happens.
    ///
    /// # Errors
    ///
    /// - [`ChangeError::Busy`] if another call is making a change, an addition, a reset or a
    ///   refund; or if the word cannot distinguish one more addition, reset or refund at this
    ///   [tick](Self::timing). It distinguishes 3 with 32 bits, and 15 with 64; fewer if settings
    ///   were changed as well.
    /// - [`ChangeError::Stale`], with 32 bits, if `now` is older than the newest time by more than
    ///   the [staleness](Self::timing).
    ///
    /// On an error, nothing changes.
    ///
    /// # Cost
    ///
    /// As a refund: one compare-exchange, retried for each decision that comes between, and two for
    /// the claim. No division. Lock-free; never makes another call wait.
    ///
    /// Source: `addTokens` of bucket4j.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::new(Rate::per_second(1), 10);
    /// let now = Timestamp::from_secs(60);
    /// bucket.try_acquire_at(now, 10).unwrap();
    /// bucket.add_at(now, 4).unwrap();
    /// assert_eq!(bucket.available_at(now), 4);
    /// bucket.add_at(now, 100).unwrap();
    /// assert_eq!(bucket.available_at(now), 10, "never more than the burst");
    /// ```
    pub fn add_at(&self, now: Timestamp, n: u64) -> Result<(), ChangeError> {
        if n == 0 {
            return Ok(());
        }
        self.refill(now, |lattice, has| {
            has.saturating_add(i128::from(n) * i128::from(lattice.cost))
        })
    }

    /// Sets the permits in the bucket to `n`, or to the burst if that is fewer. Nothing is owed
    /// afterwards.
    ///
    /// For example, to clear the limit of a user who has proved who they are, or with `n = 0` to
    /// stop a burst. [Reserved](Self::reserve_at) permits keep their instants.
    ///
    /// **Bound.** A reset adds the permits by which it raises those in the bucket, and the debt
    /// that it cancels: see [`add_at`](Self::add_at). From the reset on, any time `t` admits at
    /// most `n + rate * t` permits, and reserved ones that are not yet due. A reset counts at
    /// `now`, or at the newest time at which a permit was granted if that is later. Refunds of
    /// grants from before the reset return no permits.
    ///
    /// At an unlimited rate nothing happens.
    ///
    /// # Errors
    ///
    /// As [`add_at`](Self::add_at).
    ///
    /// # Cost
    ///
    /// As [`add_at`](Self::add_at).
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::new(Rate::per_second(1), 10);
    /// let now = Timestamp::from_secs(60);
    /// let mut lease = bucket.try_acquire_at(now, 9).unwrap();
    /// bucket.reset_at(now, 10).unwrap();
    /// assert_eq!(bucket.available_at(now), 10);
    /// bucket.reset_at(now, 2).unwrap();
    /// assert_eq!(bucket.available_at(now), 2);
    /// assert_eq!(lease.refund_at(now, 9), Ok(0), "worth nothing after the reset");
    /// ```
    pub fn reset_at(&self, now: Timestamp, n: u64) -> Result<(), ChangeError> {
        self.refill(now, |lattice, _| i128::from(n) * i128::from(lattice.cost))
    }

    /// Returns the whole permits available at `now`; `u64::MAX` at an unlimited rate. Divides.
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
        self.see(|lattice, used| lattice.available(lattice.position(tick), used))
    }

    /// Returns whether the bucket is full at `now`, and since when.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// # use portcullis_core::limiter::Idle;
    /// let bucket = AdjustableBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(
    ///     bucket.idle_at(Timestamp::from_secs(1)),
    ///     Idle::Since(Timestamp::ZERO)
    /// );
    /// ```
    pub fn idle_at(&self, now: Timestamp) -> Idle {
        self.see(|lattice, used| lattice.idle(&self.ticks, used, now))
    }

    /// Returns the permits that the bucket owes at `now` after [reservations](Self::reserve_at) and
    /// [forced](Self::force_at) takes: as many as it must gain before it holds any. Rounded up to
    /// whole permits. Divides.
    ///
    /// A reservation is due at a whole tick, so the result may exceed the [declared
    /// debt](Self::debt) by the permits of one tick, rounded up. To a `now` that is older than the
    /// newest one, permits that come in between the two may count as owed.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(10), 3)
    ///     .debt(5)
    ///     .build()
    ///     .unwrap();
    /// let now = Timestamp::ZERO;
    /// let _ = bucket.try_acquire_at(now, 2)?;
    /// let reserved = bucket.reserve_at(now, 3, Duration::from_secs(1))?;
    /// assert_eq!(bucket.owed_at(now), 2);
    /// assert_eq!(bucket.owed_at(reserved.due()), 0);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn owed_at(&self, now: Timestamp) -> u64 {
        let tick = self.ticks.index(now);
        self.see(|lattice, used| lattice.owed(lattice.position(tick), used))
    }

    /// Returns the rate in force: exactly the rate that was last set, in lowest terms. Divides.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// # use portcullis_core::state::Carry;
    /// let bucket = AdjustableBucket::new(Rate::per_second(5), 10);
    /// assert_eq!(bucket.rate(), Rate::per_second(5));
    /// bucket
    ///     .adjust_at(Timestamp::ZERO, Rate::per_minute(7), 10, Carry::Keep)
    ///     .unwrap();
    /// assert_eq!(bucket.rate(), Rate::per_minute(7));
    /// ```
    pub fn rate(&self) -> Rate {
        self.see(|lattice, _| *lattice).rate(self.ticks.step())
    }

    /// Returns the most permits that the bucket may owe: the [declared
    /// debt](AdjustableBucketBuilder::debt). While the rate is unlimited nothing is owed, so this
    /// is 0.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(5), 10).debt(4).build()?;
    /// assert_eq!(bucket.debt(), 4);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn debt(&self) -> u64 {
        self.see(|lattice, _| lattice.most_owed())
    }

    /// Returns the most permits that the bucket holds under the settings in force.
    ///
    /// ```
    /// # use portcullis_core::{AdjustableBucket, Rate};
    /// assert_eq!(AdjustableBucket::new(Rate::per_second(5), 10).burst(), 10);
    /// ```
    pub fn burst(&self) -> u64 {
        self.see(|lattice, _| lattice.burst)
    }

    /// Returns how the bucket counts time: see [`Timing`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate};
    /// let bucket = AdjustableBucket::new(Rate::per_second(5), 10);
    /// let timing = bucket.timing();
    /// assert_eq!(timing.tick, Duration::from_micros(1));
    /// assert_eq!(timing.staleness, Duration::from_secs(3_600));
    /// assert!(timing.horizon > Duration::from_secs(365 * 86_400));
    /// ```
    pub fn timing(&self) -> Timing {
        let late = self.live.read(|word| self.live.setting(word, LATE));
        let span = |ticks| saturating_duration(u128::from(ticks) * u128::from(self.ticks.step()));
        let horizon =
            self.see(|lattice, _| lattice.mask.checked_div(lattice.gain).unwrap_or(W::MASK));
        Timing::on(&self.ticks, span(late), span(horizon))
    }

    /// Returns the staleness in ticks of `tick` nanoseconds on `lattice`.
    const fn late(terms: &Terms, lattice: &Lattice, tick: u64) -> u64 {
        let (late, most) = (terms.late(lattice, tick), Live::<SETTINGS, W>::MOST_LATE);
        if late < most { late } else { most }
    }

    /// Returns the settings that `word` names. They are meaningless if the word has changed in the
    /// meantime.
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

    /// Returns the units that changes have forgotten and that have not been replenished by `tick`,
    /// on the lattice in force. The caller holds the claim.
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

    /// Returns the result of `tell` for settings that belong to the word.
    fn see<T>(&self, tell: impl Fn(&Lattice, u64) -> T) -> T {
        self.live
            .read(|word| tell(&self.lattice(word), word & Self::USED))
    }

    /// Takes if there is more to do: settings change often, or permits were owed.
    #[cold]
    #[inline(never)]
    fn take_slowly<O: Observer>(&self, now: Timestamp, n: u32, seen: O) -> Result<Receipt, Denied> {
        let inside = self.live.count_in();
        let taken = match self.take_and_forget(now, n, seen) {
            Some(receipt) => Ok(receipt),
            None => self.take::<true, O>(now, n, seen),
        };
        drop(inside);
        self.live.calm(self.ticks.index(now));
        taken
    }

    /// If permits were owed, and they and `n` more have been replenished, takes `n` permits and
    /// begins a new era. Later receipts then have a worth again. One compare-exchange does both, so
    /// that a rollback can undo both. `None` if nothing was done: the take then belongs to the
    /// current era.
    fn take_and_forget<O: Observer>(&self, now: Timestamp, n: u32, seen: O) -> Option<Receipt> {
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
        // The settings cannot change before the claim is dropped.
        seen.observe(move || lattice.detail(&self.ticks, next & Self::USED, now, Ok(())));
        Some(Live::<SETTINGS, W>::receipt(next, tick, newest))
    }

    /// Decides on a request that takes nothing.
    fn look(&self, lattice: &Lattice, used: u64, now: Timestamp, n: u32) -> Detail {
        Detail::look(now, n, |decision| {
            lattice.detail(&self.ticks, used, now, decision)
        })
    }

    /// Takes `n` permits. With `INSIDE`, the caller has counted itself in.
    #[inline(always)]
    fn take<const INSIDE: bool, O: Observer>(
        &self,
        now: Timestamp,
        n: u32,
        seen: O,
    ) -> Result<Receipt, Denied> {
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
                // A permit costs less than the range. Inconsistent settings may hold any value, so
                // the product wraps.
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
                    return self.take_slowly(now, n, seen);
                }
                let next = word & !Self::USED | left;
                // Before the exchange, whose success shows that the settings belong to the word.
                seen.observe(move || {
                    self.lattice(word)
                        .detail(&self.ticks, left & Self::USED, now, Ok(()))
                });
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
            seen.observe(move || self.look(&self.lattice(word), word & Self::USED, now, n));
            match self.live.confirm(word) {
                Ok(()) => return decision,
                Err(newer) => word = newer,
            }
        }
    }

    /// Takes `n` permits, at most `most`, and goes into debt if necessary. With an `until`, takes
    /// them only if they will have been replenished by then. Returns when they will have been.
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

    /// Refunds `n` permits of `receipt`, whose take has set `owed` if `marks`. Returns how many of
    /// them count as never taken.
    fn put_back(&self, now: Timestamp, n: u32, receipt: Receipt, marks: bool) -> Refund {
        let Some(claim) = self.live.claim() else {
            return receipt.refunded(0);
        };
        let noted = Live::<SETTINGS, W>::noted(&receipt);
        let tick = self.ticks.index(now);
        loop {
            let word = self.live.load();
            // Settings change only under the claim, so they belong to the word.
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

    /// Changes the units in the bucket at `now`, or at the newest time if that is later, to what
    /// `after` returns for those before (negative if owed); at most a full bucket. Begins a new
    /// era.
    fn refill(
        &self,
        now: Timestamp,
        after: impl Fn(&Lattice, i128) -> i128,
    ) -> Result<(), ChangeError> {
        let claim = self.live.claim().ok_or(ChangeError::Busy)?;
        let tick = self.ticks.index(now);
        loop {
            let word = self.live.load();
            // Settings change only under the claim, so they belong to the word.
            let lattice = self.lattice(word);
            if lattice.is_unlimited() {
                return Ok(());
            }
            let late = self.live.setting(word, LATE);
            let newest = self.live.newest_for_change(tick, late)?;
            let position = lattice.position(newest);
            let balance = lattice.balance(position, word & Self::USED);
            let (has, full) = (
                i128::from(balance.available) - i128::from(balance.owed),
                i128::from(lattice.full),
            );
            let has_then = after(&lattice, has).min(full);
            // Nothing is added to a full bucket, so the receipts keep their worth.
            if has == full && has_then == full {
                return Ok(());
            }
            self.live.note(tick);
            let used = position.wrapping_sub(low_bits(has_then));
            match claim.begin_era(word, used) {
                Some(Ok(())) => {
                    self.live.confirm_newest(tick, newest);
                    return Ok(());
                }
                Some(Err(_)) => {}
                None => return Err(ChangeError::Busy),
            }
        }
    }

    /// Records `now` as the newest time, as a take does that is denied later.
    #[cfg(any(portcullis_explore, portcullis_notes))]
    #[doc(hidden)]
    pub fn note_at(&self, now: Timestamp) {
        self.live.note(self.ticks.index(now));
    }

    /// Returns how many of `n` permits a refund is worth if their take is not the last one: the
    /// permits that the bucket would hold or would have granted by the tick `newest` if they had
    /// not been taken.
    fn worth(lattice: &Lattice, word: u64, noted: Noted, newest: u64, n: u32) -> u32 {
        let (cost, left) = (i128::from(lattice.cost), noted.word & Self::USED);
        let taken = i128::from(n) * cost;
        // How far the position was ahead of the state that the take left. Negative if the take owed
        // permits.
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
                // Later reservations are due at whole ticks, and may have been counted up to there.
                room.min(taken - after - i128::from(lattice.gain.saturating_sub(1)))
            }
        };
        u32::try_from(worth.max(0) / cost).unwrap_or(0)
    }
}

/// Returns the units that a bucket whose state is `used` has at `tick`, on the new lattice
/// (negative if the bucket owes), and what is forgotten then. Rounded so that a change gains
/// nothing.
fn carried(
    old: &Lattice,
    used: u64,
    forgotten: Forgotten,
    new: &Lattice,
    tick: u64,
    carry: Option<Carry>,
) -> (i128, Forgotten) {
    let nothing = Forgotten {
        beyond: 0,
        largest: new.burst,
    };
    let full = i128::from(new.full);
    if old.is_unlimited() || carry == Some(Carry::Reset) {
        return (carry.map_or(0, |_| full), nothing);
    }
    let balance = old.balance(old.position(tick), used);
    let (old_cost, new_cost) = (i128::from(old.cost), i128::from(new.cost));
    let owed = (u128::from(balance.owed) * u128::from(new.cost)).div_ceil(old.cost.into());
    let has = i128::from(balance.available) * new_cost / old_cost - signed_wide(owed);
    // The units granted and not yet replenished: missing from the bucket, or forgotten. Whole
    // permits and the rest are converted separately, so that no product overflows.
    let missing = i128::from(old.full) - i128::from(balance.available) + i128::from(balance.owed);
    let granted = missing + forgotten.beyond;
    let (permits, part) = (granted / old_cost, granted % old_cost);
    let granted = permits * new_cost + (part * new_cost + old_cost - 1) / old_cost;
    // Repeated changes must gain nothing. Together with what was granted, no more than the largest
    // burst may be available.
    let largest = forgotten.largest.max(new.burst);
    let most = (i128::from(largest) * new_cost - granted).max(has);
    let grown = (i128::from(new.burst) - i128::from(old.burst)) * new_cost;
    let has = match carry {
        None => has.min(0),
        Some(Carry::Proportional) if balance.owed == 0 => {
            (i128::from(balance.available) * full / i128::from(old.full)).min(most)
        }
        Some(Carry::Additive) => (has + grown).max(has.min(0)).min(most),
        Some(Carry::Keep | Carry::Proportional | Carry::Reset) => has,
    };
    let has = has.min(full);
    let beyond = (granted - (full - has)).max(0);
    (has, Forgotten { beyond, largest })
}

impl<W: Word> Limiter for AdjustableBucket<W> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        match ask.detail() {
            Some(seen) if ask.is_look() => {
                let detail = self.see(|lattice, used| self.look(lattice, used, now, n));
                seen.set(Some(detail));
                detail.decision.into()
            }
            None if ask.is_look() => ask.looked(self.available_at(now), || self.burst()),
            Some(seen) => self.take::<false, _>(now, n, seen).into(),
            None => self.take::<false, _>(now, n, ()).into(),
        }
    }

    /// Refunds the permits that are still worth something:
    ///
    /// - All of them, if no permit was taken since, or if the rate is unlimited.
    /// - Otherwise, as many as have not been replenished since. Receipts of earlier takes are then
    ///   worth nothing.
    /// - None, if since then settings have changed, permits were added, the bucket was reset, a
    ///   take that was not the last one was refunded, or the bucket has owed permits.
    /// - None, if the receipt is older than about half the [`horizon`](Self::timing).
    /// - None, if another call is making a change or a refund at this moment.
    /// - None, if settings were changed more than 14 times with 32 bits (1,022 with 64) in the
    ///   [tick](Self::timing) of the grant. Each addition, reset, and refund of a take that was not
    ///   the last one counts as 4 changes (64 with 64 bits).
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|now, n, receipt| self.put_back(now, n, receipt, false))
    }

    #[inline(always)]
    fn read(&self, read: Read<'_>) -> Reading {
        Reading {
            available: self.available_at(read.now()),
            capacity: self.burst(),
            idle: self.idle_at(read.now()),
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        self.see(|lattice, used| lattice.retry(&self.ticks, used, denied))
    }

    #[inline(always)]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }

    /// Beside [`decide`](Limiter::decide) for its cost: the answer is not converted.
    #[inline]
    fn take_at(&self, now: Timestamp, n: u32) -> Result<Receipt, Denied> {
        self.take::<false, ()>(now, n, ())
    }
}

replenishing!([W: Word] AdjustableBucket<W>);

/// Builds an [`AdjustableBucket`]. Created by [`AdjustableBucket::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{AdjustableBucket, Rate, Timestamp};
///
/// // At most 20 permits may be reserved ahead of time.
/// let bucket = AdjustableBucket::builder(Rate::per_second(10), 2).debt(20).build()?;
/// let wait = Duration::from_secs(2);
/// let due = bucket.reserve_at(Timestamp::ZERO, 2, wait).map(|reserved| reserved.due());
/// assert_eq!(due, Ok(Timestamp::ZERO));
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
pub type AdjustableBucketBuilder = Builder<AdjustableBucket>;

impl Sealed for AdjustableBucket {
    type Settings = BucketSettings;
}

impl Ticks for AdjustableBucket {}

impl Builder<AdjustableBucket> {
    /// Sets how many permits the bucket may owe after [`AdjustableBucket::reserve_at`] or
    /// [`AdjustableBucket::force_at`]. Default: 0.
    ///
    /// **Bound** of a bucket with a debt: forced permits may exceed the bound of the type by the
    /// debt.
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

    const_unless_loom! {
        /// Builds the bucket on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound, as for
        /// [`TokenBucketBuilder::build`](crate::builder::TokenBucketBuilder::build). The settings
        /// must fit the 52 bits of the state (26 with a 32-bit word).
        ///
        /// ```
        /// # use portcullis_core::{AdjustableBucket, Rate, SettingsError};
        /// # use portcullis_core::builder::Setting;
        /// let settings = AdjustableBucket::builder(Rate::per_second(5), 10).initial(11);
        /// let refused = settings.build().unwrap_err();
        /// assert_eq!(refused, SettingsError::TooLarge { setting: Setting::Initial, max: 10 });
        /// ```
        pub const fn build(self) -> Result<AdjustableBucket, SettingsError> {
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
        /// # use portcullis_core::{AdjustableBucket, Rate};
        /// let bucket: AdjustableBucket<u32> =
        ///     AdjustableBucket::builder(Rate::per_second(5), 10).build_on()?;
        /// assert_eq!(bucket.timing().tick.as_millis(), 10);
        /// # Ok::<(), portcullis_core::SettingsError>(())
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<AdjustableBucket<W>, SettingsError> {
            let settings = self.bucket();
            let BucketSettings { terms, origin, .. } = settings;
            let (lattice, ticks, used) = match settings.start(AdjustableBucket::<W>::BITS) {
                Ok(start) => start,
                Err(error) => return Err(error),
            };
            let late = AdjustableBucket::<W>::late(&terms, &lattice, ticks.step());
            let live = Live::new(as_settings(&lattice, late), used, ticks.index(origin), late);
            #[cfg(not(portcullis_loom))]
            let forgotten = [const { AtomicWord::new(0) }; FORGOTTEN];
            #[cfg(portcullis_loom)]
            let forgotten = core::array::from_fn(|_| AtomicWord::new(0));
            Ok(AdjustableBucket { live, ticks, terms, forgotten })
        }
    }
}

/// Reserved permits of an [`AdjustableBucket`], which may not have been replenished yet.
///
/// The holder may act at [`due`](Self::due), and not before. Dropping a reservation does not return
/// its permits: cancel it with [`cancel_at`](Self::cancel_at).
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
/// let _ = bucket.try_acquire_at(at(0), 2)?;
/// let reserved = bucket.reserve_at(at(0), 2, wait)?;
/// assert_eq!(reserved.due(), at(200));
/// assert_eq!(reserved.cancel_at(at(100)), 2);
/// assert_eq!(bucket.reserve_at(at(100), 2, wait)?.due(), at(200));
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[must_use = "a reservation that is neither used nor cancelled wastes its permits"]
pub struct Reservation<P> {
    bucket: P,
    permits: u32,
    forced: Forced,
}

/// A take that may have gone into debt.
struct Forced {
    receipt: Receipt,
    due: Timestamp,
    /// Whether this take is the first of its era that owes permits.
    marks: bool,
}

impl<P, W> Reservation<P>
where
    P: Deref<Target = AdjustableBucket<W>>,
    W: Word,
{
    /// As [`AdjustableBucket::reserve_at`], for any pointer to a bucket. The reservation keeps the
    /// pointer.
    ///
    /// # Errors
    ///
    /// The errors of [`AdjustableBucket::reserve_at`].
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use std::sync::Arc;
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// # use portcullis_core::parts::Reservation;
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

    /// Cancels the reservation at `now`, before its permits are used. Returns how many of them can
    /// be taken again:
    ///
    /// - All of them, if no permit was taken or reserved since.
    /// - Otherwise, at most its permits less those taken or reserved after it.
    /// - None after [`due`](Self::due), when the permits may have been used.
    /// - None, if settings have changed since, or a take that was not the last one was refunded
    ///   since.
    /// - None, if another call is making a change or a refund at this moment.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{AdjustableBucket, Rate, Timestamp};
    /// let bucket = AdjustableBucket::builder(Rate::per_second(10), 3)
    ///     .debt(9)
    ///     .build()
    ///     .unwrap();
    /// let (now, wait) = (Timestamp::ZERO, Duration::from_secs(9));
    /// let _ = bucket.try_acquire_at(now, 3)?;
    /// let first = bucket.reserve_at(now, 3, wait)?;
    /// let second = bucket.reserve_at(now, 1, wait)?;
    /// assert_eq!(first.cancel_at(now), 2, "the second reservation keeps its instant");
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
            bucket.put_back(now, permits, receipt, marks).permits
        }
    }
}

impl<P> Reservation<P> {
    /// Returns the instant from which on the holder may act.
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

    /// Returns the reserved permits.
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

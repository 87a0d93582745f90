//! State: one word with two fields for each share, and an epoch.
//!
//! ```text
//!  top       share K-1            share 0
//! +-------+-----+-------+     +-----+-------+   epoch: 8 bits, or 6 in a word of 32 bits
//! | epoch | age | count | ... | age | count |   age:   2 bits
//! +-------+-----+-------+     +-----+-------+   count: (the other bits) / K - 2
//! ```
//!
//! - `count`: the permits of the share that are in use;
//! - `epoch`: the period of the newest grant, wrapped;
//! - `age`: how many periods before that the newest grant of the share was, at most 2; or 3 if the
//!   share has *returned*, that is, ended its lending while its guarantee did not fit in the limit.
//!
//! A share *lends* its guarantee if its count is 0 and its age at `now` is 2, that is, if a whole
//! period has passed without a grant of it. Otherwise it *needs* the larger of its count and its
//! guarantee, and *keeps* as much, or only its count if it has returned. There are three
//! transitions:
//!
//! - a *take* of `n`, by compare-exchange. Up to its guarantee, it needs room in the limit for `n`
//!   more than its own count and what all other shares keep. Beyond its guarantee, it needs room
//!   for `n` more than its own count and the needs of all others. It sets its age to 0, or to 3 if
//!   its need and what all others keep do not fit in the limit. It adds the periods that have
//!   passed to the ages of all others;
//! - a *release* subtracts from the count in one fetch-sub;
//! - a *recall* does what a take of 0 permits would, by compare-exchange.
//!
//! A share that has returned remains so while a take or a recall finds that the needs of all shares
//! do not fit in the limit. If they fit, its newest grant counts as made at the newest grant or
//! recall of any share: how long ago its own was is not known. If it has no permit in use, and two
//! periods have passed since that grant or recall, it lends again.
//!
//! With two shares, no age is ever 3. There is no third share whose guarantee the one that returns
//! could take, and the other needs only permits in use or of its own guarantee.
//!
//! Invariant: what all shares keep is at most the limit, and so are all counts, because a share
//! keeps at least its count. So a share that has not returned always has room for its guarantee. A
//! share that has returned takes only what no other share keeps. No share takes beyond its own
//! guarantee what another one needs. So once the shares with more than their guarantees have
//! released the excess, all needs fit.
//!
//! All of it is in one word, so that a decision depends on nothing that changes between the look
//! and the exchange, and a denial has nothing to undo.

use core::time::Duration;

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::detail::{Detail, Observer, retry_of};
use crate::limiter::receipt::Receipt;
use crate::limiter::{Answer, Ask, Back, Hints, Idle, Limiter, LimiterId, Read, Reading, Returned};
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::sync::const_unless_loom;
use crate::time::grid::Grid;
use crate::time::timestamp::Timestamp;
use crate::word::settings::{self, MIN_STALENESS, Setting, SettingsError};
use crate::word::{AtomicWord, NativeWord, Word};

/// A concurrency limit that `K` shares use together: each has a guarantee, and may use what the
/// others leave.
///
/// For example, interactive requests and a batch job share 10 connections. Each is guaranteed some
/// of them, and uses more while the other does not need them. [`share`](Self::share) returns the
/// limiter of one share. Permits return when their [`Lease`] is dropped.
///
/// **Bound.** At most `limit` permits are in use at once, over all shares. This does not depend on
/// time.
///
/// **Guarantee.** A request of a share is granted if its permits and those that the share has in
/// use are at most its guarantee, unless the guarantee is lent. Beyond its guarantee, a share is
/// granted what is left of the limit after the permits in use of all shares and the unused
/// guarantees of the others. Guarantees are never lent, unless
/// [`lend_after`](ConcurrencySharesBuilder::lend_after) is set.
///
/// **Lending.** With `lend_after`, a share lends its guarantee to all others if none of its permits
/// is in use and none was taken for that time. The permits return to it when they are released.
/// Until then a request of the share can be denied, and a denial changes nothing: others may take
/// the permits again. [`recall_at`](ConcurrencyShare::recall_at) ends the lending. Then others take
/// these permits only within their own guarantees. If several shares have ended their lending, what
/// is released goes to the one of them that asks first. A share that waits for lent permits takes
/// none from the guarantee of a share that lends nothing.
///
/// **Cost.** A take is one load, a loop over `K` shares, and one compare-exchange. A release is one
/// fetch-sub. A denial writes nothing. A take is lock-free. A release is wait-free where a
/// fetch-sub is one instruction, otherwise lock-free. Both may run in an interrupt handler that
/// pre-empts the other. All shares use one word, so they contend for one cache line.
///
/// **Ordering.** A take that follows a release sees what was written before that release, whichever
/// share it was.
///
/// **Limit.** All counts are in one word, so the limit is at most 2^(56 / K - 2) - 1, and at most
/// 2^30 - 1, see [`max_limit`](Self::max_limit): 67,108,863 for 2 shares, 4,095 for 4, 31 for 8.
/// With a 32-bit word it is 2^(26 / K - 2) - 1: 2,047 for 2 shares, 15 for 4.
///
/// Source: the partitions of Netflix's concurrency-limits, each with a guaranteed part. There every
/// unused guarantee is lent, and the limit is exceeded when its share needs it again.
///
/// ```
/// use portcullis_core::{ConcurrencyShares, Timestamp};
/// use portcullis_core::parts::ConcurrencyShare;
///
/// // 10 in use at once. The first share is guaranteed 4 of them, the second 3.
/// static CONNECTIONS: ConcurrencyShares<2> = ConcurrencyShares::new(10, [4, 3]);
/// static REQUESTS: ConcurrencyShare<'static, 2> = CONNECTIONS.share(0);
/// static BATCH: ConcurrencyShare<'static, 2> = CONNECTIONS.share(1);
///
/// let now = Timestamp::ZERO;
/// // All but the guarantee of the other.
/// let batch = BATCH.try_acquire_at(now, 6)?;
/// assert!(BATCH.try_acquire_at(now, 1).is_err());
/// let requests = REQUESTS.try_acquire_at(now, 4)?;
/// assert!(REQUESTS.try_acquire_at(now, 1).is_err());
/// drop(batch);
/// assert_eq!(REQUESTS.available_at(now), 3);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug)]
pub struct ConcurrencyShares<const K: usize, W: Word = NativeWord> {
    state: AtomicWord<W>,
    limit: u32,
    guarantees: [u32; K],
    /// Periods of which a whole one must pass before a share lends; `None` if none lends.
    periods: Option<Grid>,
}

impl<const K: usize> ConcurrencyShares<K> {
    const_unless_loom! {
        /// Creates a limit of `limit` permits (1 to [`max_limit`](Self::max_limit)), of which each
        /// share is guaranteed some: at most `limit` together.
        ///
        /// # Panics
        ///
        /// If [`ConcurrencySharesBuilder::build`] would return an error. In a constant or a static,
        /// this is a compile error.
        ///
        /// ```
        /// # use portcullis_core::ConcurrencyShares;
        /// static SHARES: ConcurrencyShares<3> = ConcurrencyShares::new(10, [4, 3, 0]);
        /// ```
        ///
        /// ```compile_fail
        /// # use portcullis_core::ConcurrencyShares;
        /// static SHARES: ConcurrencyShares<2> = ConcurrencyShares::new(10, [8, 3]);
        /// ```
        pub const fn new(limit: u32, guarantees: [u32; K]) -> Self {
            match Self::builder(limit, guarantees).build() {
                Ok(shares) => shares,
                Err(error) => error.refuse(),
            }
        }
    }

    /// Returns a builder for a limit of `limit` permits (at least 1), of which each share is
    /// guaranteed some: at most `limit` together.
    ///
    /// ```
    /// # use portcullis_core::ConcurrencyShares;
    /// let shares = ConcurrencyShares::builder(10, [4, 3]).build()?;
    /// assert_eq!(shares.limit(), 10);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn builder(limit: u32, guarantees: [u32; K]) -> ConcurrencySharesBuilder<K> {
        ConcurrencySharesBuilder {
            limit,
            guarantees,
            idle: None,
        }
    }
}

/// The bits of an age.
const AGE_BITS: u32 = 2;
const AGES: u64 = (1 << AGE_BITS) - 1;
/// The age from which on a share lends.
const LENDS: u64 = 2;
/// The age of a share that ended its lending while its guarantee did not fit in the limit.
const RETURNED: u64 = 3;
/// The shortest time after which a share may lend, in nanoseconds: so short that the periods of a
/// word cover the smallest staleness several times.
const SHORTEST: u64 = MIN_STALENESS / 10;
/// The epochs before the newest one that mean that `now` is older: more than the smallest
/// staleness.
const STALE: u64 = 12;

/// A state, as one share sees it at a time.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The permits that the share can take.
    available: u64,
    /// The state with all ages as of now, and that of the share as after a grant.
    aged: u64,
}

impl<const K: usize, W: Word> ConcurrencyShares<K, W> {
    const EPOCH_BITS: u32 = if W::BITS <= 32 { 6 } else { 8 };
    const EPOCH_AT: u32 = W::BITS - Self::EPOCH_BITS;
    const EPOCHS: u64 = 1 << Self::EPOCH_BITS;
    /// The bits of a count and an age.
    const SHARE_BITS: u32 = {
        assert!(K > 0, "there is at least one share");
        let bits = Self::EPOCH_AT / K as u32;
        assert!(bits > AGE_BITS, "the word has no room for so many shares");
        // A count of more bits would not fit its type.
        if bits > 32 { 32 } else { bits }
    };
    const COUNT_BITS: u32 = Self::SHARE_BITS - AGE_BITS;
    const COUNTS: u64 = (1 << Self::COUNT_BITS) - 1;
    const ALL_COUNTS: u64 = ((1 << Self::EPOCH_AT) - 1) & !(Self::LOW_BITS * AGES);
    /// The lowest bit of each age.
    const LOW_BITS: u64 = {
        let (mut bits, mut i) = (0, 0);
        while i < K {
            bits |= 1 << Self::age_at(i);
            i += 1;
        }
        bits
    };

    /// Returns the largest limit that the word can count.
    ///
    /// ```
    /// # use portcullis_core::ConcurrencyShares;
    /// assert_eq!(ConcurrencyShares::<4>::max_limit(), 4_095);
    /// assert_eq!(ConcurrencyShares::<4, u32>::max_limit(), 15);
    /// ```
    pub const fn max_limit() -> u32 {
        Self::COUNTS as u32
    }

    /// Returns the limiter of a share, counted from 0.
    ///
    /// # Panics
    ///
    /// If there is no such share. In a constant or a static, this is a compile error.
    ///
    /// ```
    /// # use portcullis_core::ConcurrencyShares;
    /// # use portcullis_core::parts::ConcurrencyShare;
    /// static SHARES: ConcurrencyShares<2> = ConcurrencyShares::new(10, [4, 3]);
    /// static BATCH: ConcurrencyShare<'static, 2> = SHARES.share(1);
    /// assert_eq!(BATCH.guarantee(), 3);
    /// ```
    ///
    /// ```compile_fail
    /// # use portcullis_core::ConcurrencyShares;
    /// # use portcullis_core::parts::ConcurrencyShare;
    /// static SHARES: ConcurrencyShares<2> = ConcurrencyShares::new(10, [4, 3]);
    /// static NONE: ConcurrencyShare<'static, 2> = SHARES.share(2);
    /// ```
    pub const fn share(&self, index: usize) -> ConcurrencyShare<'_, K, W> {
        assert!(index < K, "portcullis: no such share");
        ConcurrencyShare {
            shares: self,
            guarantee: self.guarantees[index],
            index,
        }
    }

    /// Returns the limit.
    ///
    /// ```
    /// # use portcullis_core::ConcurrencyShares;
    /// assert_eq!(ConcurrencyShares::new(10, [4, 3]).limit(), 10);
    /// ```
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the permits in use of all shares together.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyShares, Timestamp};
    /// let shares = ConcurrencyShares::new(10, [4, 3]);
    /// let (one, other) = (shares.share(0), shares.share(1));
    /// let _leases = (
    ///     one.try_acquire_at(Timestamp::ZERO, 4)?,
    ///     other.try_acquire_at(Timestamp::ZERO, 2)?,
    /// );
    /// assert_eq!((shares.in_use(), other.in_use()), (6, 2));
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    pub fn in_use(&self) -> u32 {
        let state = self.state.load(Relaxed);
        (0..K).map(|i| Self::count(state, i) as u32).sum()
    }

    #[inline(always)]
    const fn at(index: usize) -> u32 {
        index as u32 * Self::SHARE_BITS
    }

    #[inline(always)]
    const fn age_at(index: usize) -> u32 {
        Self::at(index) + Self::COUNT_BITS
    }

    #[inline(always)]
    fn count(state: u64, index: usize) -> u64 {
        state >> Self::at(index) & Self::COUNTS
    }

    /// The period of `now`, wrapped; 0 if no share lends.
    #[inline(always)]
    fn epoch(&self, now: Timestamp) -> u64 {
        match &self.periods {
            Some(periods) => periods.index(now) & (Self::EPOCHS - 1),
            None => 0,
        }
    }

    /// Looks at the state for the share `index` in the period `epoch`, or if that is older, in the
    /// period in which the state was written.
    #[inline(always)]
    fn see(&self, state: u64, index: usize, epoch: u64) -> Seen {
        // Tests both bits of each age.
        if K <= 2 || state & state >> 1 & Self::LOW_BITS == 0 {
            self.see_all::<false>(state, index, epoch)
        } else {
            self.see_returned(state, index, epoch)
        }
    }

    #[cold]
    #[inline(never)]
    fn see_returned(&self, state: u64, index: usize, epoch: u64) -> Seen {
        self.see_all::<true>(state, index, epoch)
    }

    /// As [`see`](Self::see). Without `ANY`, no share has returned.
    #[inline(always)]
    fn see_all<const ANY: bool>(&self, state: u64, index: usize, epoch: u64) -> Seen {
        let written = state >> Self::EPOCH_AT;
        let distance = epoch.wrapping_sub(written) & (Self::EPOCHS - 1);
        let (passed, epoch) = if distance >= Self::EPOCHS - STALE {
            (0, written)
        } else {
            (distance, epoch)
        };
        // Sums over the other shares.
        let (mut needs, mut kept) = (0, 0);
        let (mut own, mut guarantee, mut returned) = (0, 0, 0);
        let mut aged = epoch << Self::EPOCH_AT | state & Self::ALL_COUNTS;
        for (i, &guaranteed) in self.guarantees.iter().enumerate() {
            let count = Self::count(state, i);
            if i == index {
                (own, guarantee) = (count, u64::from(guaranteed));
                continue;
            }
            let age = state >> Self::age_at(i) & AGES;
            let has_returned = ANY && age == RETURNED;
            let age = (if has_returned { 0 } else { age } + passed).min(LENDS);
            aged |= age << Self::age_at(i);
            let is_lent = count == 0 && age == LENDS && self.periods.is_some();
            let need = if is_lent {
                0
            } else {
                count.max(guaranteed.into())
            };
            needs += need;
            kept += if has_returned { count } else { need };
            if has_returned && !is_lent {
                returned |= RETURNED << Self::age_at(i);
            }
        }
        let (limit, need) = (u64::from(self.limit), own.max(guarantee));
        if needs + need <= limit {
            let available = limit - needs - own;
            return Seen { available, aged };
        }
        // This share or another one has returned, or this one returns now.
        if K > 2 && kept + need > limit {
            returned |= RETURNED << Self::age_at(index);
        }
        Seen {
            available: limit.saturating_sub(kept + own).min(need - own),
            aged: aged | returned,
        }
    }

    #[inline(always)]
    fn take<O: Observer>(
        &self,
        index: usize,
        now: Timestamp,
        n: u32,
        told: O,
    ) -> Result<Receipt, Denied> {
        let epoch = self.epoch(now);
        let mut state = self.state.load(Relaxed);
        loop {
            let seen = self.see(state, index, epoch);
            if u64::from(n.max(1)) > seen.available {
                let denied = self.refusal(index, now, n);
                told.observe(move || self.detail(state, index, now, Err(denied)));
                return Err(denied);
            }
            if n == 0 {
                told.observe(move || self.detail(state, index, now, Ok(())));
                return Ok(Receipt::NONE);
            }
            let taken = seen.aged + (u64::from(n) << Self::at(index));
            // Acquire: pairs with `give_back`, so that the next holder sees what a former holder
            // wrote.
            match self
                .state
                .compare_exchange_weak(state, taken, Acquire, Relaxed)
            {
                Ok(_) => {
                    told.observe(move || self.detail(taken, index, now, Ok(())));
                    return Ok(Receipt::NONE);
                }
                Err(newer) => state = newer,
            }
        }
    }

    #[inline(always)]
    fn refusal(&self, index: usize, now: Timestamp, n: u32) -> Denied {
        let capacity = self.capacity(index);
        if n.max(1) > capacity {
            Denied::ExceedsCapacity {
                permits: n,
                capacity,
            }
        } else {
            Denied::Exhausted { now, permits: n }
        }
    }

    /// The permits that a share can take if nothing is in use: all, or all but the guarantees of
    /// the others if these are never lent.
    #[inline(always)]
    fn capacity(&self, index: usize) -> u32 {
        if self.periods.is_some() {
            return self.limit;
        }
        let others = self.guarantees.iter().enumerate();
        let others = others.map(|(i, &guarantee)| if i == index { 0 } else { guarantee });
        self.limit.saturating_sub(others.sum())
    }

    #[inline(always)]
    fn put_back(&self, index: usize, n: u32) {
        // Release: pairs with `take`.
        let before = self
            .state
            .fetch_sub(u64::from(n) << Self::at(index), Release);
        debug_assert!(
            Self::count(before, index) >= n.into(),
            "permits were released that had not been taken"
        );
    }

    fn recall(&self, index: usize, now: Timestamp) {
        if self.periods.is_none() {
            return;
        }
        let epoch = self.epoch(now);
        let mut state = self.state.load(Relaxed);
        loop {
            let aged = self.see(state, index, epoch).aged;
            if aged == state {
                return;
            }
            // Relaxed: a compare-exchange continues the release sequence of earlier releases.
            match self
                .state
                .compare_exchange_weak(state, aged, Relaxed, Relaxed)
            {
                Ok(_) => return,
                Err(newer) => state = newer,
            }
        }
    }

    /// Returns when a share has room for `wanted` permits: now, at the instant at which other
    /// shares lend enough, if no other call takes that before, or when permits are released.
    fn due(&self, state: u64, index: usize, now: Timestamp, wanted: u64) -> Retry {
        if wanted <= self.see(state, index, self.epoch(now)).available {
            return Retry::At(now);
        }
        self.lent_at(state, index, now, wanted)
            .map_or(Retry::OnRelease, Retry::At)
    }

    fn retry(&self, state: u64, index: usize, denied: Denied) -> Retry {
        match denied {
            Denied::Exhausted { now, permits } => {
                self.due(state, index, now, permits.max(1).into())
            }
            _ => Retry::Never,
        }
    }

    fn detail(
        &self,
        state: u64,
        index: usize,
        now: Timestamp,
        decision: Result<(), Denied>,
    ) -> Detail {
        let capacity = self.capacity(index).into();
        Detail {
            now,
            decision,
            available: self.see(state, index, self.epoch(now)).available,
            capacity,
            time_to_fill: None,
            full_again: self.due(state, index, now, capacity),
            retry: retry_of(decision, now, |denied| self.retry(state, index, denied)),
        }
    }

    /// Returns when a request will have room because other shares begin to lend: at the start of
    /// one of the next periods.
    fn lent_at(&self, state: u64, index: usize, now: Timestamp, wanted: u64) -> Option<Timestamp> {
        let periods = self.periods.as_ref()?;
        let period = periods.index(now);
        // A stale `now` becomes one that is not within at most `STALE` periods.
        (1..=STALE + LENDS).find_map(|later| {
            let at = periods.start(period.checked_add(later)?)?;
            (self.see(state, index, self.epoch(at)).available >= wanted).then_some(at)
        })
    }
}

/// The limiter of one share of a concurrency limit. Created by [`ConcurrencyShares::share`].
///
/// All such limiters of one share are the same limiter. The bound, the guarantee and the cost are
/// described at [`ConcurrencyShares`]. A queue cannot own a share, because a release of another
/// share would wake none of its waiters. A composition can contain several shares of one limit. It
/// asks each of them as if it were alone: if there are permits for each, but not for all together,
/// it denies, and its retry time is too early.
///
/// ```
/// use portcullis_core::{AllOf, ConcurrencyShares, Rate, Timestamp, TokenBucket};
///
/// let shares = ConcurrencyShares::new(10, [4, 3]);
/// let batch = AllOf::new((shares.share(1), TokenBucket::new(Rate::per_second(5), 1)));
/// assert!(batch.try_acquire_at(Timestamp::ZERO, 1).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyShare<'a, const K: usize, W: Word = NativeWord> {
    shares: &'a ConcurrencyShares<K, W>,
    guarantee: u32,
    /// Less than `K`.
    index: usize,
}

impl<const K: usize, W: Word> ConcurrencyShare<'_, K, W> {
    /// Takes `n` permits at `now` and holds them until the lease is dropped.
    ///
    /// With `n = 0` it takes nothing, and is granted or denied as a request for 1 permit would be.
    /// Without lending, `now` has no effect.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the share has fewer than `n` permits available, or
    /// [`Denied::ExceedsCapacity`] if it never has that many: more than the limit, or without
    /// lending, more than the limit less the guarantees of the others.
    ///
    /// # Memory ordering
    ///
    /// Acquire on success: the caller sees what was written before the releases that made room.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyShares, Retry, Timestamp};
    /// let shares = ConcurrencyShares::new(10, [4, 3]);
    /// let share = shares.share(0);
    /// let lease = share.try_acquire_at(Timestamp::ZERO, 7).unwrap();
    /// let denied = share.try_acquire_at(Timestamp::ZERO, 1).unwrap_err();
    /// assert_eq!(denied.retry(&share), Retry::OnRelease);
    /// drop(lease);
    /// assert!(share.try_acquire_at(Timestamp::ZERO, 1).is_ok());
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }

    /// Returns the permits that the share can take at `now`.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyShares, Timestamp};
    /// let shares = ConcurrencyShares::new(10, [4, 3]);
    /// assert_eq!(shares.share(0).available_at(Timestamp::ZERO), 7);
    /// ```
    pub fn available_at(&self, now: Timestamp) -> u64 {
        let (shares, epoch) = (self.shares, self.shares.epoch(now));
        shares
            .see(shares.state.load(Relaxed), self.index, epoch)
            .available
    }

    /// Returns the permits of the share that are in use.
    ///
    /// ```
    /// # use portcullis_core::{ConcurrencyShares, Timestamp};
    /// let shares = ConcurrencyShares::new(10, [4, 3]);
    /// assert_eq!(shares.share(0).in_use(), 0);
    /// ```
    pub fn in_use(&self) -> u32 {
        ConcurrencyShares::<K, W>::count(self.shares.state.load(Relaxed), self.index) as u32
    }

    /// Returns the permits that the share is guaranteed.
    ///
    /// ```
    /// # use portcullis_core::ConcurrencyShares;
    /// assert_eq!(ConcurrencyShares::new(10, [4, 3]).share(0).guarantee(), 4);
    /// ```
    pub const fn guarantee(&self) -> u32 {
        self.guarantee
    }

    /// Ends the lending of this share's guarantee, as a grant at `now` would: from now on, no other
    /// share can take permits of it, until this share is unused again. Permits that others have
    /// taken become available to this share when they are released.
    ///
    /// A share calls it when a request within its guarantee was denied, and again for each retry:
    /// a denial alone changes nothing. Has no effect without lending.
    ///
    /// # Cost
    ///
    /// At most one compare-exchange; lock-free.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{ConcurrencyShares, Timestamp};
    /// let shares = ConcurrencyShares::builder(10, [4, 3])
    ///     .lend_after(Duration::from_secs(5))
    ///     .build()?;
    /// let (one, other) = (shares.share(0), shares.share(1));
    /// let now = Timestamp::from_secs(60);
    /// let mut borrowed = other.try_acquire_at(now, 10).unwrap();
    /// assert!(one.try_acquire_at(now, 1).is_err());
    /// one.recall_at(now);
    /// borrowed.release(3).unwrap();
    /// assert_eq!((one.available_at(now), other.available_at(now)), (3, 0));
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub fn recall_at(&self, now: Timestamp) {
        self.shares.recall(self.index, now);
    }
}

impl<const K: usize, W: Word> ConcurrencyShare<'_, K, W> {
    fn explain(&self, now: Timestamp, n: u32) -> Detail {
        let state = self.shares.state.load(Relaxed);
        Detail::look(now, n, |decision| {
            self.shares.detail(state, self.index, now, decision)
        })
    }
}

impl<const K: usize, W: Word> Limiter for ConcurrencyShare<'_, K, W> {
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        match ask.detail() {
            Some(seen) if ask.is_look() => {
                let detail = self.explain(now, n);
                seen.set(Some(detail));
                detail.decision.into()
            }
            None if ask.is_look() => ask.looked(self.available_at(now), || {
                self.shares.capacity(self.index).into()
            }),
            Some(seen) => self.shares.take(self.index, now, n, seen).into(),
            None => self.shares.take(self.index, now, n, ()).into(),
        }
    }

    /// A release and a refund cost one fetch-sub. A refund releases all permits.
    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        match back {
            Back::Release { permits } => {
                self.shares.put_back(self.index, permits);
                Returned::NOTHING
            }
            Back::Refund {
                permits, receipt, ..
            } => {
                self.shares.put_back(self.index, permits);
                receipt.refunded(permits).into()
            }
            _ => Returned::NOTHING,
        }
    }

    /// Idle while no permit of this share is in use, whatever the other shares have in use.
    #[inline(always)]
    fn read(&self, read: Read<'_>) -> Reading {
        let in_use = self.in_use();
        Reading {
            available: self.available_at(read.now()),
            capacity: self.shares.capacity(self.index).into(),
            idle: if in_use == 0 { Idle::Now } else { Idle::InUse },
            held: in_use.into(),
        }
    }

    /// Returns the instant at which other shares lend enough, if no other call takes that before;
    /// otherwise [`Retry::OnRelease`].
    fn retry(&self, denied: Denied) -> Retry {
        let state = self.shares.state.load(Relaxed);
        self.shares.retry(state, self.index, denied)
    }

    /// The identity of the share, not of this handle.
    #[inline]
    fn id(&self) -> Option<LimiterId> {
        Some(LimiterId::within(self.shares, self.index as u64))
    }

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

/// Builds a [`ConcurrencyShares`]. Created by [`ConcurrencyShares::builder`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::ConcurrencyShares;
///
/// let shares = ConcurrencyShares::builder(10, [4, 3])
///     .lend_after(Duration::from_secs(5))
///     .build()?;
/// assert_eq!(shares.limit(), 10);
/// # Ok::<(), portcullis_core::SettingsError>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ConcurrencySharesBuilder<const K: usize> {
    limit: u32,
    guarantees: [u32; K],
    idle: Option<Duration>,
}

impl<const K: usize> ConcurrencySharesBuilder<K> {
    /// Lets a share lend its guarantee to the others after it was unused for `idle`, 100 ms to 292
    /// years. Default: no share lends.
    ///
    /// A share lends while none of its permits is in use, and none was taken from it for `idle`.
    /// Time counts in whole periods of this length: it lends from the end of the first whole period
    /// without a grant on, that is `idle` to twice `idle` after its last grant. If its permits are
    /// released later than that, it lends at once. A share that was never used lends.
    ///
    /// With three or more shares, a share that ended its lending while others held its permits may
    /// lend again later than that. Its time is then counted from the newest grant or recall of any
    /// share that came before these permits were released.
    ///
    /// A `now` that is older than the newest one by up to a second, or 11 periods, lends nothing
    /// early. Periods wrap: 244 periods after the newest grant of any share (52 with a 32-bit
    /// word), and after each further 256 (64), no further share begins to lend for up to 14
    /// periods. If a share is granted permits in that time, a `now` that is older than this grant
    /// may lend its guarantee early. The limit itself does not depend on time.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{ConcurrencyShares, Timestamp};
    /// let shares = ConcurrencyShares::builder(10, [4, 3])
    ///     .lend_after(Duration::from_secs(5))
    ///     .build()?;
    /// let (one, other) = (shares.share(0), shares.share(1));
    /// drop(one.try_acquire_at(Timestamp::from_secs(20), 1));
    /// assert_eq!(other.available_at(Timestamp::from_secs(29)), 6);
    /// assert_eq!(other.available_at(Timestamp::from_secs(30)), 10);
    /// # Ok::<(), portcullis_core::SettingsError>(())
    /// ```
    pub const fn lend_after(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    const_unless_loom! {
        /// Builds the limit on the target's native word.
        ///
        /// # Errors
        ///
        /// [`SettingsError`] names the setting and its bound:
        ///
        /// - the limit is zero, or more than [`max_limit`](ConcurrencyShares::max_limit);
        /// - the guarantees together are more than the limit:
        ///   [`TooSmall`](SettingsError::TooSmall) names their sum;
        /// - the time after which a share lends is outside of 100 ms to 292 years.
        ///
        /// With more shares than the word has room for, it does not compile.
        ///
        /// ```
        /// # use portcullis_core::ConcurrencyShares;
        /// let refused = ConcurrencyShares::builder(10, [8, 3]).build().unwrap_err();
        /// assert_eq!(refused.to_string(), "limit must be at least 11");
        /// ```
        pub const fn build(self) -> Result<ConcurrencyShares<K>, SettingsError> {
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
        /// # use portcullis_core::ConcurrencyShares;
        /// let refused = ConcurrencyShares::builder(16, [1; 4]).build_on::<u32>().unwrap_err();
        /// assert_eq!(refused.to_string(), "limit must be at most 15");
        /// ```
        pub const fn build_on<W: Word>(self) -> Result<ConcurrencyShares<K, W>, SettingsError> {
            let setting = Setting::Limit;
            if self.limit == 0 {
                return Err(SettingsError::Zero { setting });
            }
            let max = ConcurrencyShares::<K, W>::max_limit();
            if self.limit > max {
                return Err(SettingsError::TooLarge { setting, max: max as u64 });
            }
            // All shares are unused.
            let (mut sum, mut ages, mut i) = (0, 0, 0);
            while i < K {
                sum += self.guarantees[i] as u64;
                ages |= LENDS << ConcurrencyShares::<K, W>::age_at(i);
                i += 1;
            }
            if sum > self.limit as u64 {
                return Err(SettingsError::TooSmall { setting, min: sum });
            }
            let periods = match self.idle {
                None => None,
                Some(idle) => match settings::nanos(idle, Setting::Wait) {
                    Ok(nanos) if nanos < SHORTEST => {
                        let (setting, min) = (Setting::Wait, SHORTEST);
                        return Err(SettingsError::TooSmall { setting, min });
                    }
                    Ok(nanos) => Some(Grid::new(Timestamp::ZERO, nanos)),
                    Err(error) => return Err(error),
                },
            };
            Ok(ConcurrencyShares {
                state: AtomicWord::new(ages),
                limit: self.limit,
                guarantees: self.guarantees,
                periods,
            })
        }
    }
}

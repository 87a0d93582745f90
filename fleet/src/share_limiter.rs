//! A share as the terms of a bucket that ends: the rate and the burst of the leases and of what is
//! reserved, until the earliest end of a lease. [`EndingBucket`] draws the state.
//!
//! - *follow*: a larger share finds the permits of before, a smaller one as many of them as its
//!   burst. After an end that has passed, or when it was closed, the bucket starts empty.
//! - *close*: nothing is admitted.
//!
//! Invariant: at each instant, the bucket holds at most the burst of the leases that the member
//! uses, and what is reserved. A lease brings no permits when it begins, and takes its own along
//! when it ends. So when a partition changes hands, its burst is not spent twice.

use core::fmt;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use portcullis_core::limiter::{
    Answer, Ask, Back, Detail, Hints, Idle, LimiterId, Read, Reading, Returned,
};
use portcullis_core::queue::{QueueLimiter, Replenishing};
use portcullis_core::{Denied, Lease, Limiter, LimiterExt, Rate, Retry, SettingsError, Timestamp};

use crate::ending_bucket::{EndingBucket, NO_END, Terms};
use crate::pool::Pool;
use crate::protocol::MemberShare;

/// How long a request waits at most before it asks again: the share may have changed.
const AGAIN: Duration = Duration::from_millis(50);

/// The shortest horizon of the bucket.
const HORIZON: Duration = Duration::from_hours(1);

/// A limiter that follows the share of a member: the partitions that it has leases on, and what it
/// has reserved.
///
/// Each decision checks that the leases have not ended at its `now`. So a process that was stopped
/// beyond the end of its leases and goes on is denied at once, before any other part of it has run.
///
/// A thread that is stopped after it has read its clock still decides for that time, if the share
/// has not changed meanwhile: one request for each thread that is stopped in a decision. Read the
/// clock just before each decision, and not before a lock or a wait.
///
/// A [`Member`](crate::Member) owns one and keeps it up to date. Without a member, call
/// [`follow_at`](Self::follow_at) with each [share](crate::Actions::share) of a
/// [`Protocol`](crate::Protocol).
///
/// **Bound.** Any span of time `t` admits at most `burst + rate * t` permits, as for a token bucket
/// whose rate and burst change with the share. The bursts of all members together are at most the
/// burst of the pool and what the members have reserved: `docs/fleet.md` derives what all admit.
///
/// **Waits.** It works in a queue of `portcullis-async`, by reference or in an [`Arc`]. If the
/// share changes, the requests that wait notice it within 50 ms. A request for more permits than
/// the present burst waits for a larger share; for more than the burst of all partitions it is
/// refused.
///
/// **Cost.** Two loads more than an [`AdjustableBucket`]. A denial writes nothing, except while a
/// share ends or begins. A change takes a lock that no decision takes.
///
/// [`AdjustableBucket`]: portcullis_core::AdjustableBucket
/// [`Arc`]: std::sync::Arc
///
/// ```
/// use portcullis_core::{LimiterExt, Rate, Timestamp};
/// use portcullis_fleet::{MemberShare, Pool, ShareLimiter};
///
/// let pool = Pool::builder("writes", Rate::per_second(500)).burst(5).build()?;
/// let at = Timestamp::from_millis;
/// let limiter = ShareLimiter::new(&pool, at(0))?;
/// assert!(limiter.try_acquire_at(at(0), 1).is_err(), "nothing is leased");
///
/// // Two partitions of 25 permits a second, for a second.
/// limiter.follow_at(at(0), MemberShare { partitions: 2, until: at(1_000) });
/// assert!(limiter.try_acquire_at(at(19), 1).is_err());
/// assert!(limiter.try_acquire_at(at(20), 1).is_ok());
/// assert!(limiter.try_acquire_at(at(1_000), 1).is_err());
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct ShareLimiter {
    bucket: EndingBucket,
    /// The largest burst.
    capacity: AtomicU64,
    pool: Mutex<Pool>,
}

/// What a member uses while the store does not answer and its leases have ended.
///
/// Whatever it is, leases are used as long as they last.
///
/// ```
/// # use portcullis_fleet::Fallback;
/// assert_eq!(Fallback::default(), Fallback::Reserved);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fallback {
    /// What it has [reserved](crate::PoolBuilder::reserved).
    #[default]
    Reserved,
    /// Nothing.
    Block,
    /// What it has reserved, and so many permits in each period of the pool's rate. The service
    /// must have that much for each member, beside the capacity of the pool: other members may hold
    /// all of it.
    Safe(u32),
}

impl Terms {
    /// Those of some partitions, and permits beside them in each period.
    fn of(pool: &Pool, partitions: u32, beside: u32, until: u64) -> Self {
        if partitions == 0 && beside == 0 {
            return Self::NOTHING;
        }
        let leased = if partitions == 0 {
            Rate::new(0, pool.shared().period())
        } else {
            pool.rate_of(partitions)
        };
        // The period of the leased rate is a multiple of that of the pool.
        let period = pool.shared().period().as_nanos().max(1);
        let factor = leased.period().as_nanos() / period;
        let permits = u128::from(leased.permits()) + u128::from(beside) * factor;
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        // What replenishes in a tenth of a second.
        let tenth = (u128::from(beside) * 100_000_000).div_ceil(period);
        let tenth = u64::try_from(tenth).unwrap_or(u64::MAX);
        Self {
            rate: Rate::new(permits, leased.period()),
            burst: pool.burst_of(partitions).saturating_add(tenth).max(1),
            until,
        }
    }
}

impl ShareLimiter {
    /// Creates the limiter of a member without leases, which has only what is reserved.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] if the bucket cannot have the rate or the burst of some number of
    /// partitions.
    ///
    /// ```
    /// # use portcullis_core::{LimiterExt, Rate, Timestamp};
    /// # use portcullis_fleet::{Pool, ShareLimiter};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).reserved(10).build()?;
    /// let limiter = ShareLimiter::new(&pool, Timestamp::ZERO)?;
    /// assert!(limiter.try_acquire_at(Timestamp::from_millis(100), 1).is_ok());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn new(pool: &Pool, now: Timestamp) -> Result<Self, SettingsError> {
        let mut tick = Duration::from_micros(1);
        let longest = Duration::from_secs(10);
        while tick < longest && !fits(pool, tick, now).is_ok_and(|horizon| horizon >= HORIZON) {
            tick *= 10;
        }
        fits(pool, tick, now)?;
        let terms = Terms::of(pool, 0, pool.reserved(), NO_END);
        Ok(Self {
            bucket: EndingBucket::new(terms, tick, now)?,
            capacity: AtomicU64::new(largest(pool)),
            pool: Mutex::new(pool.clone()),
        })
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides by this share from now on.
    ///
    /// `now` is the present, by the clock of the decisions. After this returns, no decision takes
    /// more than the share has.
    ///
    /// ```
    /// # use portcullis_core::{Limiter, Rate, Timestamp};
    /// # use portcullis_fleet::{MemberShare, Pool, ShareLimiter};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).burst(5).build()?;
    /// let at = Timestamp::from_millis;
    /// let limiter = ShareLimiter::new(&pool, at(0))?;
    /// limiter.follow_at(at(0), MemberShare { partitions: 4, until: at(9_000) });
    /// assert_eq!(limiter.available_at(at(5_000)), 20);
    /// // What the lease had saved up is gone with it.
    /// limiter.follow_at(at(5_000), MemberShare { partitions: 1, until: at(9_000) });
    /// assert_eq!(limiter.available_at(at(5_000)), 5);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn follow_at(&self, now: Timestamp, share: MemberShare) {
        let pool = self.pool();
        let until = if share.partitions == 0 {
            NO_END
        } else {
            share.until.as_nanos()
        };
        let terms = Terms::of(&pool, share.partitions, pool.reserved(), until);
        self.bucket.set(now, terms);
    }

    /// Decides by `fallback` from now on, until it follows a share again.
    ///
    /// ```
    /// # use portcullis_core::{LimiterExt, Rate, Timestamp};
    /// # use portcullis_fleet::{Fallback, Pool, ShareLimiter};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
    /// let at = Timestamp::from_millis;
    /// let limiter = ShareLimiter::new(&pool, at(0))?;
    /// limiter.fall_back_at(at(0), Fallback::Safe(5));
    /// assert!(limiter.try_acquire_at(at(200), 1).is_ok());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn fall_back_at(&self, now: Timestamp, fallback: Fallback) {
        let pool = self.pool();
        let beside = match fallback {
            Fallback::Reserved => pool.reserved(),
            Fallback::Block => 0,
            Fallback::Safe(permits) => pool.reserved().saturating_add(permits),
        };
        let terms = Terms::of(&pool, 0, beside, NO_END);
        self.bucket.set(now, terms);
    }

    /// Decides by the settings of another pool, and this share of it, from now on.
    ///
    /// # Errors
    ///
    /// [`SettingsError`], as for [`new`](Self::new). Then nothing changes.
    ///
    /// ```
    /// # use portcullis_core::{Limiter, Rate, Timestamp};
    /// # use portcullis_fleet::{MemberShare, Pool, ShareLimiter};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
    /// let limiter = ShareLimiter::new(&pool, Timestamp::ZERO)?;
    /// let larger = pool.to_builder().burst(9).build()?;
    /// limiter.change_at(Timestamp::ZERO, &larger, MemberShare::NONE)?;
    /// assert_eq!(limiter.capacity(), 180);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn change_at(
        &self,
        now: Timestamp,
        pool: &Pool,
        share: MemberShare,
    ) -> Result<(), SettingsError> {
        self.check(pool, now)?;
        *self.pool() = pool.clone();
        self.capacity.store(largest(pool), Relaxed);
        self.follow_at(now, share);
        Ok(())
    }

    /// Returns whether the limiter can have the settings of a pool.
    pub(crate) fn check(&self, pool: &Pool, now: Timestamp) -> Result<(), SettingsError> {
        fits(pool, self.bucket.bucket().timing().tick, now).map(|_| ())
    }
}

/// Returns the shortest horizon of the buckets of all numbers of partitions.
fn fits(pool: &Pool, tick: Duration, now: Timestamp) -> Result<Duration, SettingsError> {
    let mut shortest = Duration::MAX;
    for partitions in 0..=pool.partitions() {
        let terms = Terms::of(pool, partitions, pool.reserved(), NO_END);
        shortest = shortest.min(terms.build(tick, now)?.timing().horizon);
    }
    Ok(shortest)
}

fn largest(pool: &Pool) -> u64 {
    Terms::of(pool, pool.partitions(), pool.reserved(), NO_END).burst
}

impl Limiter for ShareLimiter {
    #[inline]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        let (now, n) = (ask.now(), ask.permits());
        if !ask.is_look() {
            let taken = self.bucket.take_at(now, n);
            return taken.map_err(|denied| self.denied(denied)).into();
        }
        let (available, capacity) = (self.available_at(now), self.capacity());
        let looked = if u64::from(n.max(1)) <= available {
            Ok(())
        } else if u64::from(n.max(1)) <= capacity {
            Err(Denied::Exhausted { now, permits: n })
        } else {
            let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
            let permits = n;
            Err(Denied::ExceedsCapacity { permits, capacity })
        };
        if let Some(seen) = ask.detail() {
            seen.set(Some(self.explain(now, n, looked)));
        }
        looked.into()
    }

    #[inline]
    fn give_back(&self, back: Back<'_>) -> Returned {
        self.bucket.bucket().give_back(back)
    }

    /// The capacity is the largest burst: that of all partitions, and what is reserved.
    fn read(&self, read: Read<'_>) -> Reading {
        Reading {
            available: self.bucket.available_at(read.now()),
            capacity: self.capacity.load(Relaxed),
            idle: Idle::InUse,
            held: 0,
        }
    }

    fn retry(&self, denied: Denied) -> Retry {
        let Denied::Exhausted { now, permits } = denied else {
            return Retry::Never;
        };
        let (until, bucket) = (self.bucket.end(), self.bucket.bucket());
        if now.as_nanos() >= until || u64::from(permits) > bucket.burst() {
            return Retry::After(AGAIN);
        }
        match bucket.retry(denied) {
            // Exact, as long as the share stays as it is.
            Retry::At(at) if at.as_nanos() < until && at.saturating_since(now) <= AGAIN => {
                Retry::At(at)
            }
            _ => Retry::After(AGAIN),
        }
    }

    #[inline]
    fn id(&self) -> Option<LimiterId> {
        LimiterId::of(self)
    }

    #[inline]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT
    }
}

impl ShareLimiter {
    /// The capacity is the burst of the present share.
    fn explain(&self, now: Timestamp, n: u32, decision: Result<(), Denied>) -> Detail {
        let mut detail = self.bucket.bucket().explain_at(now, n);
        if now.as_nanos() >= self.bucket.end() {
            detail.available = 0;
            detail.full_again = Retry::After(AGAIN);
        }
        detail.decision = decision;
        detail.retry = decision.map_or_else(|denied| self.retry(denied), |()| Retry::At(now));
        detail
    }
}

impl ShareLimiter {
    #[cold]
    fn denied(&self, denied: Denied) -> Denied {
        match (denied, u32::try_from(self.capacity())) {
            (Denied::Exhausted { permits, .. }, Ok(capacity)) if permits > capacity => {
                Denied::ExceedsCapacity { permits, capacity }
            }
            _ => denied,
        }
    }

    /// Takes `n` permits at `now`.
    ///
    /// # Errors
    ///
    /// [`Denied::Exhausted`] if the share has fewer permits now, or has ended.
    /// [`Denied::ExceedsCapacity`] if `n` is more than the burst of all partitions.
    ///
    /// # Cost
    ///
    /// Two loads more than [`AdjustableBucket::try_acquire_at`].
    ///
    /// [`AdjustableBucket::try_acquire_at`]: portcullis_core::AdjustableBucket::try_acquire_at
    ///
    /// ```
    /// # use portcullis_core::{Rate, Timestamp};
    /// # use portcullis_fleet::{MemberShare, Pool, ShareLimiter};
    /// let pool = Pool::builder("writes", Rate::per_second(500)).build()?;
    /// let at = Timestamp::from_millis;
    /// let limiter = ShareLimiter::new(&pool, at(0))?;
    /// limiter.follow_at(at(0), MemberShare { partitions: 20, until: at(9_000) });
    /// assert!(limiter.try_acquire_at(at(100), 50).is_ok());
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }
}

impl Replenishing for ShareLimiter {}

impl QueueLimiter for ShareLimiter {
    const SHARED: bool = false;
}

impl fmt::Debug for ShareLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShareLimiter")
            .field("rate", &self.bucket.bucket().rate())
            .field("burst", &self.bucket.bucket().burst())
            .field("until", &Timestamp::from_nanos(self.bucket.end()))
            .finish_non_exhaustive()
    }
}

//! The settings of a pool, and the arithmetic of its partitions.
//!
//! A capacity of `n` permits in each period, in `p` equal partitions, is `n / p` permits for each.
//! Leases on `k` of them are worth `k × n / p`: exactly, so all together are worth `n`, also where
//! `p` does not divide `n`.

use core::fmt;
use core::time::Duration;

use portcullis_core::Rate;

/// The largest number of partitions: 500.
///
/// A store looks at each partition that a member asks for.
pub const MOST_PARTITIONS: u32 = 500;

/// How long leases last unless set.
const LEASE: Duration = Duration::from_secs(15);
/// How often a member asks while it is short, unless set.
const INTERVAL: Duration = Duration::from_millis(300);
/// How long a demand must be lower before leases are released, unless set.
const LINGER: Duration = Duration::from_millis(300);

/// A capacity that many processes share, and how they lease parts of it.
///
/// All members of a pool use the same settings, except for the reserved capacity, which each member
/// has for itself. Workstreams that must not take capacity from each other, such as bulk loads and
/// queries, use pools with different names.
///
/// ```
/// use portcullis_core::Rate;
/// use portcullis_fleet::Pool;
///
/// let pool = Pool::builder("writes", Rate::per_second(500)).partitions(20).build()?;
/// // A process that wants 100 requests a second asks for 4 partitions of 25.
/// assert_eq!(pool.wanted(100), 4);
/// // It was granted 2.
/// assert_eq!(pool.rate_of(2), Rate::per_second(50));
/// # Ok::<(), portcullis_fleet::PoolError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    name: String,
    shared: Rate,
    partitions: u32,
    burst: u32,
    reserved: u32,
    lease: Duration,
    margin: Duration,
    interval: Duration,
    linger: Duration,
    fair: bool,
}

impl Pool {
    /// Returns a builder for a pool of this name, whose members share `shared`.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_fleet::Pool;
    /// let pool = Pool::builder("queries", Rate::per_minute(600)).build()?;
    /// assert_eq!((pool.name(), pool.partitions()), ("queries", 20));
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn builder(name: impl Into<String>, shared: Rate) -> PoolBuilder {
        PoolBuilder {
            pool: Self {
                name: name.into(),
                shared,
                partitions: 20,
                burst: 0,
                reserved: 0,
                lease: LEASE,
                margin: Duration::ZERO,
                interval: INTERVAL,
                linger: LINGER,
                fair: false,
            },
            burst: None,
            margin: None,
        }
    }

    /// Returns a builder with these settings, for a change of some of them.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_fleet::Pool;
    /// let pool = Pool::builder("writes", Rate::per_second(100)).partitions(10).build()?;
    /// let larger = pool.to_builder().partitions(12).build()?;
    /// assert_eq!((larger.name(), larger.partitions()), ("writes", 12));
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn to_builder(&self) -> PoolBuilder {
        PoolBuilder {
            burst: Some(self.burst),
            margin: Some(self.margin),
            pool: self.clone(),
        }
    }

    pub(crate) fn named(self, name: &str) -> Self {
        Self {
            name: name.into(),
            ..self
        }
    }

    /// Returns the name, which is unique in the store.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the capacity that the members share.
    pub const fn shared(&self) -> Rate {
        self.shared
    }

    /// Returns the number of partitions.
    pub const fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Returns how many permits a partition that is not used saves up.
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Returns how many permits this member has for itself, in each period of
    /// [`shared`](Self::shared).
    pub const fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Returns how long leases last.
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// Returns how long before its end a member stops to use a lease.
    pub const fn margin(&self) -> Duration {
        self.margin
    }

    /// Returns how often a member asks the store while it is short.
    pub const fn interval(&self) -> Duration {
        self.interval
    }

    /// Returns for how long a demand must be lower before a member releases leases.
    pub const fn linger(&self) -> Duration {
        self.linger
    }

    /// Returns whether a member releases what is above its fair share while another is short.
    pub const fn is_fair(&self) -> bool {
        self.fair
    }

    /// Returns how many partitions a member needs to use `target` permits in each period of
    /// [`shared`](Self::shared), beside its reserved capacity.
    ///
    /// It is at most the number of partitions.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_fleet::Pool;
    /// let pool = Pool::builder("writes", Rate::per_second(10_000))
    ///     .partitions(10)
    ///     .reserved(2_000)
    ///     .build()?;
    /// assert_eq!(pool.wanted(2_000), 0);
    /// assert_eq!(pool.wanted(2_500), 1);
    /// assert_eq!(pool.wanted(u64::MAX), 10);
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub const fn wanted(&self, target: u64) -> u32 {
        if self.partitions == 0 {
            return 0;
        }
        let beyond = target.saturating_sub(self.reserved as u64) as u128;
        let wanted = (beyond * self.partitions as u128).div_ceil(self.shared.permits() as u128);
        if wanted < self.partitions as u128 {
            wanted as u32
        } else {
            self.partitions
        }
    }

    /// Returns the rate of `held` partitions, without the reserved capacity.
    ///
    /// More partitions than there are count as all.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_fleet::Pool;
    /// let pool = Pool::builder("writes", Rate::per_second(100)).partitions(3).build()?;
    /// assert_eq!(pool.rate_of(3), Rate::per_second(100));
    /// assert_eq!(pool.rate_of(1), Rate::new(100, core::time::Duration::from_secs(3)));
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn rate_of(&self, held: u32) -> Rate {
        let held = held.min(self.partitions);
        if held == 0 {
            return Rate::ZERO;
        }
        // The builder has checked that both factors fit.
        match split(self.shared.permits() as u32, self.partitions) {
            Split::Whole(permits) => Rate::new(permits * held, self.shared.period()),
            Split::Parts(permits) => {
                Rate::new(permits * held, self.shared.period() * self.partitions)
            }
        }
    }

    /// Returns how many permits in each period of [`shared`](Self::shared) a member may use with
    /// `held` partitions, its reserved capacity included; a part of a permit does not count.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_fleet::Pool;
    /// let pool = Pool::builder("writes", Rate::per_second(10_000))
    ///     .partitions(10)
    ///     .reserved(2_000)
    ///     .build()?;
    /// assert_eq!(pool.capacity(1), 3_000);
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn capacity(&self, held: u32) -> u64 {
        let held = u64::from(held.min(self.partitions));
        let all = u64::from(self.partitions.max(1));
        self.shared.permits() * held / all + u64::from(self.reserved)
    }

    /// Returns the largest burst of `held` partitions, without the reserved capacity.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_fleet::Pool;
    /// let pool = Pool::builder("writes", Rate::per_second(500)).burst(5).build()?;
    /// assert_eq!(pool.burst_of(4), 20);
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn burst_of(&self, held: u32) -> u64 {
        u64::from(held.min(self.partitions)) * u64::from(self.burst)
    }
}

/// The permits of one partition.
enum Split {
    /// In each period.
    Whole(u32),
    /// In as many periods as there are partitions.
    Parts(u32),
}

const fn split(permits: u32, partitions: u32) -> Split {
    if permits.is_multiple_of(partitions) {
        Split::Whole(permits / partitions)
    } else {
        Split::Parts(permits)
    }
}

/// Builds a [`Pool`].
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::Rate;
/// use portcullis_fleet::Pool;
///
/// let pool = Pool::builder("writes", Rate::per_second(500))
///     .partitions(20)
///     .lease(Duration::from_secs(10))
///     .fair(true)
///     .build()?;
/// assert_eq!(pool.margin(), Duration::from_millis(150));
/// # Ok::<(), portcullis_fleet::PoolError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PoolBuilder {
    pool: Pool,
    burst: Option<u32>,
    margin: Option<Duration>,
}

impl PoolBuilder {
    /// Sets the capacity that the members share.
    pub const fn shared(mut self, shared: Rate) -> Self {
        self.pool.shared = shared;
        self
    }

    /// Sets the number of partitions: at most [`MOST_PARTITIONS`], 20 unless set.
    ///
    /// With 0, the members share nothing, and have what they have reserved.
    ///
    /// More partitions follow the demands more closely; fewer cost a store less.
    pub const fn partitions(mut self, partitions: u32) -> Self {
        self.pool.partitions = partitions;
        self
    }

    /// Sets the number of partitions so that each is worth at most `factor` permits in each period.
    ///
    /// ```
    /// # use portcullis_core::Rate;
    /// # use portcullis_fleet::Pool;
    /// let pool = Pool::builder("writes", Rate::per_second(10_050)).partition_of(1_000).build()?;
    /// assert_eq!(pool.partitions(), 11);
    /// # Ok::<(), portcullis_fleet::PoolError>(())
    /// ```
    pub fn partition_of(mut self, factor: u32) -> Self {
        let partitions = self
            .pool
            .shared
            .permits()
            .div_ceil(u64::from(factor.max(1)));
        self.pool.partitions = u32::try_from(partitions).unwrap_or(u32::MAX);
        self
    }

    /// Sets how many permits a partition that is not used saves up: at least 1. What replenishes in
    /// a tenth of a second unless set, and at least 1.
    pub const fn burst(mut self, burst: u32) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Sets how many permits this member has for itself, in each period of the shared rate. 0
    /// unless set.
    ///
    /// The capacity of the service must be at least that of the pool, and what all members have
    /// reserved.
    pub const fn reserved(mut self, reserved: u32) -> Self {
        self.pool.reserved = reserved;
        self
    }

    /// Sets how long leases last: at least 200 ms, 15 s unless set. All members of a pool use the
    /// same.
    ///
    /// What a process held that is killed is free again after that time.
    pub const fn lease(mut self, lease: Duration) -> Self {
        self.pool.lease = lease;
        self
    }

    /// Sets how long before its end a member stops to use a lease: at most a third of the lease. A
    /// hundredth of the lease and 50 ms unless set.
    ///
    /// It makes up for clocks that differ in speed. The clock of the member and that of the store
    /// may differ by `margin / lease`, 1 % by default.
    pub const fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Sets how often a member asks the store while it is short, and, if the pool is
    /// [fair](Self::fair), while it holds anything. At least 1 ms, 300 ms unless set.
    ///
    /// The member varies it by a quarter at random.
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.pool.interval = interval;
        self
    }

    /// Sets for how long a demand must be lower before the member releases leases. 300 ms unless
    /// set.
    ///
    /// It keeps leases from going back and forth when a demand fluctuates.
    pub const fn linger(mut self, linger: Duration) -> Self {
        self.pool.linger = linger;
        self
    }

    /// Sets whether a member releases what is above its fair share while another is short. Not
    /// unless set.
    pub const fn fair(mut self, fair: bool) -> Self {
        self.pool.fair = fair;
        self
    }

    /// Returns the pool.
    ///
    /// # Errors
    ///
    /// [`PoolError`] if a setting is out of its range.
    pub fn build(self) -> Result<Pool, PoolError> {
        let mut pool = self.pool;
        let shares_nothing = pool.partitions == 0;
        let permits = match u32::try_from(pool.shared.permits()) {
            Ok(permits) if permits > 0 || shares_nothing => permits,
            _ => return Err(PoolError::Rate),
        };
        if pool.shared.period().is_zero() {
            return Err(PoolError::Rate);
        }
        if pool.partitions > MOST_PARTITIONS {
            return Err(PoolError::Partitions(pool.partitions));
        }
        if !shares_nothing && let Split::Parts(permits) = split(permits, pool.partitions) {
            let fits = permits.checked_mul(pool.partitions).is_some();
            if !fits || pool.shared.period().checked_mul(pool.partitions).is_none() {
                return Err(PoolError::Rate);
            }
        }
        if pool.lease < Duration::from_millis(200) {
            return Err(PoolError::Lease(pool.lease));
        }
        pool.margin = self
            .margin
            .unwrap_or(pool.lease / 100 + Duration::from_millis(50));
        if pool.margin > pool.lease / 3 {
            return Err(PoolError::Margin {
                margin: pool.margin,
                lease: pool.lease,
            });
        }
        if pool.interval < Duration::from_millis(1) {
            return Err(PoolError::Interval(pool.interval));
        }
        let tenths = pool.shared.period().as_nanos() * u128::from(pool.partitions.max(1)) * 10;
        let replenished = (u128::from(permits) * 1_000_000_000).div_ceil(tenths);
        let burst = u32::try_from(replenished).unwrap_or(u32::MAX).max(1);
        pool.burst = self.burst.unwrap_or(burst);
        if pool.burst == 0 {
            return Err(PoolError::Burst);
        }
        Ok(pool)
    }
}

/// Why a [`Pool`] cannot be built.
///
/// ```
/// # use portcullis_core::Rate;
/// # use portcullis_fleet::{Pool, PoolError};
/// let error = Pool::builder("writes", Rate::per_second(100)).partitions(501).build();
/// assert_eq!(error, Err(PoolError::Partitions(501)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolError {
    /// The shared rate is zero or unlimited, or its permits times the partitions exceed 2^32.
    Rate,
    /// There are more than [`MOST_PARTITIONS`] partitions.
    Partitions(u32),
    /// The burst is 0.
    Burst,
    /// The lease is shorter than 200 ms.
    Lease(Duration),
    /// The margin is more than a third of the lease.
    Margin {
        /// The margin.
        margin: Duration,
        /// The lease.
        lease: Duration,
    },
    /// The interval is shorter than 1 ms.
    Interval(Duration),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate => f.write_str(
                "the shared rate must be more than 0 and not unlimited, and its permits times the \
                 partitions less than 2^32: name it per a shorter period",
            ),
            Self::Partitions(partitions) => write!(
                f,
                "{partitions} partitions: a pool has at most {MOST_PARTITIONS} `partitions`"
            ),
            Self::Burst => f.write_str("a `burst` of 0 admits nothing: set at least 1"),
            Self::Lease(lease) => write!(f, "a `lease` of {lease:?} is shorter than 200 ms"),
            Self::Margin { margin, lease } => write!(
                f,
                "a `margin` of {margin:?} is more than a third of the `lease` of {lease:?}"
            ),
            Self::Interval(interval) => {
                write!(f, "an `interval` of {interval:?} is shorter than 1 ms")
            }
        }
    }
}

impl core::error::Error for PoolError {}

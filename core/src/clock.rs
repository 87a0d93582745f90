//! Clocks: where a `now` comes from, for those who do not bring their own.
//!
//! No limiter reads a clock. [`Clocked`] joins one with a limiter. A clock may be wrong in three
//! ways, and the limiters are safe against each: one that *stands still* or *runs late* leads to
//! fewer grants; one that *goes back*, by up to the limiter's staleness, leads to denials until it
//! has caught up; one that *runs ahead* grants as if the time had passed, and denials follow when
//! it goes back.

#[cfg(feature = "std")]
mod coarse;
#[cfg(feature = "std")]
mod monotonic;
#[cfg(feature = "tsc")]
mod tsc;

#[cfg(feature = "std")]
pub use coarse::CoarseClock;
#[cfg(feature = "std")]
pub use monotonic::MonotonicClock;
#[cfg(feature = "tsc")]
pub use tsc::TscClock;

#[cfg(target_has_atomic = "64")]
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::{Denied, Idle, Lease, Limiter, Timestamp};

/// A source of [`Timestamp`]s, all since one origin.
///
/// Implement it for a hardware timer, or for a runtime's clock:
///
/// ```
/// use core::sync::atomic::{AtomicU32, Ordering};
/// use portcullis_core::{Clock, Timestamp};
///
/// /// Counts the interrupts of a timer that fires each millisecond.
/// struct TickClock(AtomicU32);
///
/// impl Clock for TickClock {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_millis(self.0.load(Ordering::Relaxed).into())
///     }
/// }
///
/// assert_eq!(
///     TickClock(AtomicU32::new(42)).now(),
///     Timestamp::from_millis(42)
/// );
/// ```
pub trait Clock {
    /// The current time.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for &C {
    #[inline]
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// No clock, for limiters that do not look at the time, say a [`Concurrency`](crate::Concurrency):
/// it always says [`Timestamp::ZERO`], and costs nothing. What depends on time, a deadline say,
/// never comes.
///
/// ```
/// use portcullis_core::{Clock, Timeless, Timestamp};
/// assert_eq!(Timeless.now(), Timestamp::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Timeless;

impl Clock for Timeless {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

/// A limiter and the clock that it is asked at.
///
/// `Clocked<&L, &C>` works as well as one that owns both.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Clocked, ManualClock, Rate, TokenBucket};
///
/// static CLOCK: ManualClock = ManualClock::new();
/// static LIMIT: Clocked<TokenBucket, &ManualClock> =
///     Clocked::new(TokenBucket::new(Rate::per_second(1), 1), &CLOCK);
///
/// assert!(LIMIT.try_acquire(1).is_ok());
/// assert!(LIMIT.try_acquire(1).is_err());
/// CLOCK.advance(Duration::from_secs(1));
/// assert!(LIMIT.try_acquire(1).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Clocked<L, C> {
    limiter: L,
    clock: C,
}

impl<L, C> Clocked<L, C> {
    /// Joins `limiter` and `clock`.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, ManualClock, Rate, TokenBucket};
    /// let limit =
    ///     Clocked::new(TokenBucket::new(Rate::per_second(5), 5), ManualClock::new());
    /// assert_eq!(limit.available(), 5);
    /// ```
    pub const fn new(limiter: L, clock: C) -> Self {
        Self { limiter, clock }
    }

    /// The limiter, to ask it at a time of your own.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, ManualClock, Rate, Timestamp, TokenBucket};
    /// let limit =
    ///     Clocked::new(TokenBucket::new(Rate::per_second(5), 5), ManualClock::new());
    /// assert_eq!(limit.limiter().available_at(Timestamp::from_secs(1)), 5);
    /// ```
    pub const fn limiter(&self) -> &L {
        &self.limiter
    }

    /// The clock.
    ///
    /// ```
    /// # use portcullis_core::{Clock, Clocked, ManualClock, Timestamp, Unlimited};
    /// let limit = Clocked::new(Unlimited, ManualClock::new());
    /// assert_eq!(limit.clock().now(), Timestamp::ZERO);
    /// ```
    pub const fn clock(&self) -> &C {
        &self.clock
    }
}

impl<L: Limiter, C: Clock> Clocked<L, C> {
    /// Takes `n` permits now: see
    /// [`LimiterExt::try_acquire_at`](crate::LimiterExt::try_acquire_at).
    ///
    /// # Errors
    ///
    /// [`Denied`], and then nothing has changed.
    ///
    /// # Cost
    ///
    /// The limiter's, and one reading of the clock.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, ManualClock, Rate, TokenBucket};
    /// let limit =
    ///     Clocked::new(TokenBucket::new(Rate::per_second(5), 5), ManualClock::new());
    /// assert_eq!(limit.try_acquire(2)?.permits(), 2);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn try_acquire(&self, n: u32) -> Result<Lease<&L>, Denied> {
        Lease::try_acquire_at(&self.limiter, self.clock.now(), n)
    }

    /// The permits that could be taken now.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, ManualClock, Rate, TokenBucket};
    /// let limit =
    ///     Clocked::new(TokenBucket::new(Rate::per_second(5), 5), ManualClock::new());
    /// assert_eq!(limit.available(), 5);
    /// ```
    pub fn available(&self) -> u64 {
        self.limiter.available_at(self.clock.now())
    }

    /// Whether the limiter is as good as new now, and since when.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, ManualClock, Rate, TokenBucket};
    /// let limit =
    ///     Clocked::new(TokenBucket::new(Rate::per_second(5), 5), ManualClock::new());
    /// assert!(limit.idle().is_idle());
    /// ```
    pub fn idle(&self) -> Idle {
        self.limiter.idle_at(self.clock.now())
    }
}

/// A clock that stands until it is told otherwise: for tests and simulations. It starts at
/// [`Timestamp::ZERO`].
///
/// Resolution: 1 ns. It goes back when it is [`set`](Self::set) so.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::new();
/// clock.advance(Duration::from_millis(3));
/// assert_eq!(clock.now(), Timestamp::from_millis(3));
/// ```
#[cfg(target_has_atomic = "64")]
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

#[cfg(target_has_atomic = "64")]
impl ManualClock {
    crate::sync::const_unless_loom! {
        /// A clock that stands at [`Timestamp::ZERO`].
        ///
        /// ```
        /// # use portcullis_core::{Clock, ManualClock, Timestamp};
        /// static CLOCK: ManualClock = ManualClock::new();
        /// assert_eq!(CLOCK.now(), Timestamp::ZERO);
        /// ```
        pub const fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Moves the clock on, and returns the new time. Several threads may: their steps add up. After
    /// [`Timestamp::MAX`] it starts over.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{ManualClock, Timestamp};
    /// let clock = ManualClock::new();
    /// assert_eq!(
    ///     clock.advance(Duration::from_secs(2)),
    ///     Timestamp::from_secs(2)
    /// );
    /// ```
    pub fn advance(&self, by: core::time::Duration) -> Timestamp {
        let by = crate::time::timestamp::saturating_nanos(by);
        Timestamp::from_nanos(self.0.fetch_add(by, Relaxed).wrapping_add(by))
    }

    /// Sets the clock, forward or back.
    ///
    /// ```
    /// # use portcullis_core::{Clock, ManualClock, Timestamp};
    /// let clock = ManualClock::new();
    /// clock.set(Timestamp::from_secs(9));
    /// clock.set(Timestamp::from_secs(8));
    /// assert_eq!(clock.now(), Timestamp::from_secs(8));
    /// ```
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_nanos(), Relaxed);
    }
}

#[cfg(target_has_atomic = "64")]
impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_has_atomic = "64")]
impl Clock for ManualClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Relaxed))
    }
}

//! Clocks, for callers that do not pass their own `now`.
//!
//! No limiter reads a clock. [`Clocked`] joins a limiter and a clock. Limiters tolerate a clock
//! that is wrong in one of these ways:
//!
//! - A clock that *stops* or *runs late* leads to fewer grants.
//! - A clock that *goes back*, by up to the limiter's staleness, leads to denials until it has
//!   caught up.
//! - A clock that *runs ahead* leads to grants as if the time had passed, and to denials once it
//!   goes back.
//!
//! Some clocks can also return an [interval](Clock::interval) that contains the time, at a lower
//! cost than the time itself. [`Clocked`] then reads the time only if it matters where in the
//! interval it is.

#[cfg(feature = "std")]
mod coarse;
#[cfg(feature = "std")]
mod monotonic;
#[cfg(all(feature = "std", target_os = "linux"))]
pub(crate) mod system;
#[cfg(feature = "tsc")]
mod tsc;

#[cfg(feature = "std")]
pub use coarse::CoarseClock;
#[cfg(feature = "std")]
pub use monotonic::MonotonicClock;
#[cfg(feature = "tsc")]
pub use tsc::TscClock;

pub use crate::time::interval::Interval;

use crate::leases::lease::Lease;
use crate::limiter::denied::Denied;
use crate::limiter::detail::Detail;
use crate::limiter::queue_limiter::Replenishing;
use crate::limiter::receipt::Receipt;
use crate::limiter::{Answer, Ask, How, Idle, Limiter, LimiterExt};
#[cfg(target_has_atomic = "64")]
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::time::timestamp::Timestamp;

/// A source of [`Timestamp`]s, all with the same origin.
///
/// Implement it for a hardware timer, or for the clock of a runtime:
///
/// ```
/// use core::sync::atomic::{AtomicU32, Ordering};
/// use portcullis_core::{Clock, Timestamp};
///
/// // Counts the interrupts of a timer that fires each millisecond.
/// struct TickClock {
///     // Wraps after 50 days, and a clock must not go back.
///     ticks: AtomicU32,
///     // So it counts also how many halves of the range are over.
///     halves: AtomicU32,
/// }
///
/// impl TickClock {
///     /// The interrupt handler, which alone writes the counts.
///     fn tick(&self) {
///         let ticks = self.ticks.load(Ordering::Relaxed).wrapping_add(1);
///         let halves = self.halves.load(Ordering::Relaxed);
///         self.ticks.store(ticks, Ordering::Relaxed);
///         if halves & 1 != ticks >> 31 {
///             self.halves.store(halves + 1, Ordering::Release);
///         }
///     }
/// }
///
/// impl Clock for TickClock {
///     fn now(&self) -> Timestamp {
///         // It is read first, so it may be one too low, and then its parity differs.
///         let halves = self.halves.load(Ordering::Acquire);
///         let ticks = self.ticks.load(Ordering::Relaxed);
///         let halves = halves + u32::from(halves & 1 != ticks >> 31);
///         Timestamp::from_millis(u64::from(halves >> 1) << 32 | u64::from(ticks))
///     }
/// }
///
/// let clock = TickClock { ticks: AtomicU32::new(u32::MAX), halves: AtomicU32::new(1) };
/// let before = clock.now();
/// clock.tick();
/// assert_eq!(clock.now(), Timestamp::from_millis(1 << 32));
/// assert!(before < clock.now());
/// ```
pub trait Clock {
    /// Returns the current time.
    fn now(&self) -> Timestamp;

    /// Returns an interval that contains the current time, if that costs less than
    /// [`now`](Self::now). The default is `None`.
    ///
    /// # Implementing
    ///
    /// A call of `now` instead of this call must return an instant of the interval. The interval
    /// may be wrong in the same ways as `now`:
    ///
    /// - If the time is later than the interval, decisions are those of a stale timestamp, the end
    ///   of the interval.
    /// - If the time is earlier than the interval, decisions are those of a clock that runs ahead,
    ///   by up to the distance to the end of the interval.
    ///
    /// ```
    /// use core::time::Duration;
    /// use portcullis_core::{Clock, Timestamp};
    /// use portcullis_core::clock::Interval;
    ///
    /// /// A counter that an interrupt advances each millisecond, and a slow chip with the time.
    /// struct Board;
    /// # fn ticks() -> Timestamp { Timestamp::from_millis(7) }
    /// # fn ask_the_chip() -> Timestamp { Timestamp::from_micros(7_250) }
    ///
    /// impl Clock for Board {
    ///     fn now(&self) -> Timestamp {
    ///         ask_the_chip()
    ///     }
    ///     fn interval(&self) -> Option<Interval> {
    ///         let earliest = ticks();
    ///         // The interrupt may be late by one more millisecond.
    ///         Interval::new(earliest, earliest + Duration::from_millis(2))
    ///     }
    /// }
    ///
    /// assert!(Board.interval().unwrap().contains(Board.now()));
    /// ```
    #[inline]
    fn interval(&self) -> Option<Interval> {
        None
    }
}

/// Implements [`Clock`] for a pointer to a clock.
macro_rules! forward {
    ($([$($generics:tt)*] $pointer:ty),*) => {$(
        impl<$($generics)*> Clock for $pointer {
            #[inline]
            fn now(&self) -> Timestamp {
                (**self).now()
            }

            #[inline]
            fn interval(&self) -> Option<Interval> {
                (**self).interval()
            }
        }
    )*};
}

forward!([C: Clock + ?Sized] &C);
#[cfg(feature = "std")]
forward!([C: Clock + ?Sized] std::boxed::Box<C>, [C: Clock + ?Sized] std::sync::Arc<C>);

/// A clock that always returns [`Timestamp::ZERO`], for limiters that ignore time, such as
/// [`Concurrency`](crate::Concurrency). It costs nothing. Whatever depends on time, such as a
/// deadline, never occurs.
///
/// ```
/// use portcullis_core::{Clock, Timeless, Timestamp};
/// assert_eq!(Timeless.now(), Timestamp::ZERO);
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
pub struct Timeless;

impl Clock for Timeless {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::ZERO
    }
}

/// A limiter, or a table of limiters by key, joined with a clock, so that calls need no `now`.
///
/// `Clocked` can own the limiter and the clock, or borrow them: `Clocked<&L, &C>`. If it has a
/// table, [`key`](Self::key) returns the limiter of a key.
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

    /// Returns the limiter or the table, for calls at a `now` of your own.
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

    /// Returns the clock.
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
    /// Takes `n` permits at the clock's current time: see
    /// [`LimiterExt::try_acquire_at`].
    ///
    /// # Errors
    ///
    /// Returns [`Denied`] if the limiter denies the request. Nothing has changed then.
    ///
    /// # Cost
    ///
    /// As [`take`](Self::take).
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
        match self.take(n) {
            Ok(receipt) => Ok(Lease::from_grant(&self.limiter, n, receipt)),
            Err(denied) => Err(denied),
        }
    }

    /// Takes `n` permits that return by time, at the clock's current time, and returns whether it
    /// got them: see [`LimiterExt::allow_at`].
    ///
    /// # Cost
    ///
    /// As [`take`](Self::take).
    ///
    /// ```
    /// # use portcullis_core::{Clocked, ManualClock, Rate, TokenBucket};
    /// let limit =
    ///     Clocked::new(TokenBucket::new(Rate::per_second(5), 1), ManualClock::new());
    /// assert!(limit.allow(1));
    /// assert!(!limit.allow(1));
    /// ```
    ///
    /// ```compile_fail,E0277
    /// # use portcullis_core::{Clocked, Concurrency, Timeless};
    /// let workers = Clocked::new(Concurrency::new(4), Timeless);
    /// if workers.allow(1) {
    ///     // The permit would be free again here: keep the lease of `try_acquire`.
    /// }
    /// ```
    #[inline]
    #[must_use = "the permits are taken"]
    pub fn allow(&self, n: u32) -> bool
    where
        L: Replenishing,
    {
        self.try_acquire(n).is_ok()
    }

    /// Takes `n` permits at the clock's current time, as [`try_acquire`](Self::try_acquire) does,
    /// but returns a receipt and not a lease: see [`Limiter::take_at`]. For code that makes a lease
    /// of its own, such as a queue.
    ///
    /// If the clock returns an [interval](Clock::interval), the limiter first decides
    /// [within](LimiterExt::take_within) it. If it cannot, or if the clock returns none, the clock
    /// is asked for the time. So the decision, and the state that it leaves, are the ones that the
    /// time itself gives.
    ///
    /// # Errors
    ///
    /// Returns [`Denied`] if the limiter denies the request. Nothing has changed then. If the
    /// denial contains a time, that is the time of the decision, or the earliest instant of the
    /// interval.
    ///
    /// # Cost
    ///
    /// The limiter's cost, and one reading of the clock: of its interval, of its time, or of both
    /// if the interval was not enough.
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Concurrency, Lease, Timeless};
    /// let limit = Clocked::new(Concurrency::new(5), Timeless);
    /// let receipt = limit.take(2)?;
    /// let lease = Lease::from_grant(limit.limiter(), 2, receipt);
    /// assert_eq!(limit.available(), 3);
    /// # drop(lease);
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn take(&self, n: u32) -> Result<Receipt, Denied> {
        self.decide(n, How::Take)
    }

    /// Takes as [`take`](Self::take) does, for a request whose denial is not final: see
    /// [`How::Attempt`]. For a queue, which asks again.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    ///
    /// # Cost
    ///
    /// As [`take`](Self::take).
    ///
    /// ```
    /// # use portcullis_core::{Clocked, Concurrency, Counted, Timeless};
    /// let limit = Clocked::new(Counted::new(Concurrency::new(5)), Timeless);
    /// assert!(limit.attempt(6).is_err());
    /// assert_eq!(limit.limiter().counts().refused.requests, 0);
    /// assert!(limit.take(6).is_err());
    /// assert_eq!(limit.limiter().counts().refused.requests, 1);
    /// ```
    #[inline]
    pub fn attempt(&self, n: u32) -> Result<Receipt, Denied> {
        self.decide(n, How::Attempt)
    }

    /// Decides within the clock's interval, or else at its time.
    #[inline(always)]
    fn decide(&self, n: u32, how: How) -> Result<Receipt, Denied> {
        // The interval is read first, so that the time is never before it.
        if self.limiter.hints().decides_within {
            if let Some(interval) = self.clock.interval() {
                let answer = self.limiter.decide(Ask::new(interval, n, how));
                if !matches!(answer, Answer::TimeMatters) {
                    return answer.taken(interval.earliest(), n);
                }
            }
        }
        let now = self.clock.now();
        self.limiter.decide(Ask::new(now, n, how)).taken(now, n)
    }

    /// Takes permits as [`try_acquire`](Self::try_acquire) does, and returns what the decision saw:
    /// see [`LimiterExt::take_explained_at`]. The clock's time is [`Detail::now`].
    ///
    /// # Errors
    ///
    /// The first result is [`Denied`] if the limiter denies the request. Nothing has changed then.
    ///
    /// # Cost
    ///
    /// That of [`LimiterExt::take_explained_at`], and one reading of the clock.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Clocked, ManualClock, Rate, TokenBucket};
    /// let limit =
    ///     Clocked::new(TokenBucket::new(Rate::per_second(5), 5), ManualClock::new());
    /// let (lease, detail) = limit.try_acquire_explained(2);
    /// assert!(lease.is_ok());
    /// assert_eq!(detail.available, 3);
    /// let wait = detail.full_again.wait_from(detail.now);
    /// assert_eq!(wait, Some(Duration::from_millis(400)));
    /// ```
    #[must_use = "a lease returns its permits when it is dropped"]
    pub fn try_acquire_explained(&self, n: u32) -> (Result<Lease<&L>, Denied>, Detail) {
        Lease::try_acquire_explained_at(&self.limiter, self.clock.now(), n)
    }

    /// Returns the permits available now.
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

    /// Returns whether the limiter is idle now, and since when.
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

/// A clock that changes only when it is set or advanced, for tests and simulations. It starts at
/// [`Timestamp::ZERO`].
///
/// Resolution: 1 ns. [`set`](Self::set) can move it back.
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
        /// Creates a clock at [`Timestamp::ZERO`].
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

    /// Advances the clock by `by`, and returns the new time. Concurrent calls add up. The clock
    /// wraps after [`Timestamp::MAX`].
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

    /// Sets the clock to `now`, which may be earlier than its current time.
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

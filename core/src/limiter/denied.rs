//! A denial, and the time to retry. A denial has the request and the reason, and no state of the
//! limiter: [`Denied::retry`] asks the limiter, which reads its word then.

use core::fmt;
use core::time::Duration;

use crate::limiter::Limiter;
use crate::limiter::to_limiter::ToLimiter;
use crate::time::timestamp::Timestamp;

/// Why a request was denied. It is `Copy` and has 16 bytes.
///
/// A denial does not contain the time to retry. [`Denied::retry`] computes it, so a denial costs no
/// arithmetic unless the caller asks.
///
/// ```
/// use portcullis_core::{Denied, Rate, Retry, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(10), 1);
/// let now = Timestamp::from_secs(7);
/// let _ = bucket.try_acquire_at(now, 1)?;
///
/// let denied = bucket.try_acquire_at(now, 1).unwrap_err();
/// assert_eq!(denied, Denied::Exhausted { now, permits: 1 });
/// assert_eq!(
///     denied.retry(&bucket),
///     Retry::At(Timestamp::from_millis(7_100))
/// );
///
/// let never = bucket.try_acquire_at(now, 2).unwrap_err();
/// assert_eq!(
///     never,
///     Denied::ExceedsCapacity {
///         permits: 2,
///         capacity: 1
///     }
/// );
/// assert_eq!(never.retry(&bucket), Retry::Never);
/// # Ok::<(), Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Denied {
    /// Fewer permits are available at `now` than were requested.
    Exhausted {
        /// The time at which the request was judged.
        now: Timestamp,
        /// The number of permits requested; 0 for a probe.
        permits: u32,
    },
    /// The request is for more permits than the limiter can ever hold with its current settings.
    ExceedsCapacity {
        /// The number of permits requested.
        permits: u32,
        /// The largest number of permits that one request can be granted.
        capacity: u32,
    },
    /// A [`Penalty`](crate::Penalty) is in force at `now`. It denies all requests until it ends,
    /// whatever the inner limiter would decide.
    Penalized {
        /// The time at which the request was judged.
        now: Timestamp,
        /// The number of permits requested; 0 for a probe.
        permits: u32,
    },
    /// A keyed table has no slot for the key at `now`, for one of these reasons:
    ///
    /// - The table is full: all slots that the key could use are in use by other keys.
    /// - Another thread is claiming a slot for the same key at this moment.
    /// - In a [`KeyedArray`](crate::KeyedArray), too many calls for the key are under way.
    Crowded {
        /// The time at which the request was judged.
        now: Timestamp,
        /// The number of permits requested; 0 for a probe.
        permits: u32,
    },
    /// A limiter that decides by something other than permits, such as the load of the machine,
    /// denies the request at `now`.
    Refused {
        /// The time at which the request was judged.
        now: Timestamp,
        /// The number of permits requested; 0 for a probe.
        permits: u32,
    },
    /// The limiter is closed, such as a queue of `portcullis-async`. It denies all requests from
    /// then on.
    Closed {
        /// The number of permits requested; 0 for a probe.
        permits: u32,
    },
}

impl Denied {
    /// The denial of a request that exceeds `capacity`. The capacity fits a `u32` because it is
    /// less than `permits`.
    #[inline(always)]
    pub(crate) const fn exceeding(permits: u32, capacity: u64) -> Self {
        Self::ExceedsCapacity {
            permits,
            capacity: capacity as u32,
        }
    }

    /// Returns when to retry the request, given the current state of `limiter`: see
    /// [`Limiter::retry`]. `limiter` must be the limiter that denied the request, alone or in a
    /// [`Clocked`](crate::Clocked).
    ///
    /// # Cost
    ///
    /// Reads the limiter's state again and may divide: about ten nanoseconds. Writes nothing.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Retry};
    /// let limit = Concurrency::new(1);
    /// let _held = limit.try_acquire(1)?;
    /// assert_eq!(
    ///     limit.try_acquire(1).unwrap_err().retry(&limit),
    ///     Retry::OnRelease
    /// );
    /// # Ok::<(), portcullis_core::Denied>(())
    /// ```
    #[inline]
    pub fn retry<L: ToLimiter + ?Sized>(self, limiter: &L) -> Retry {
        limiter.to_limiter().retry(self)
    }

    /// Returns the number of permits requested; 0 for a probe.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency};
    /// assert_eq!(Concurrency::new(1).try_acquire(7).unwrap_err().permits(), 7);
    /// ```
    pub const fn permits(self) -> u32 {
        match self {
            Self::Exhausted { permits, .. }
            | Self::ExceedsCapacity { permits, .. }
            | Self::Penalized { permits, .. }
            | Self::Crowded { permits, .. }
            | Self::Refused { permits, .. }
            | Self::Closed { permits } => permits,
        }
    }

    /// Returns the reason in a few words, for a log or a response.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency};
    /// let denied = Concurrency::new(1).try_acquire(7).unwrap_err();
    /// assert_eq!(denied.reason(), "more permits than the limiter can hold");
    /// ```
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Exhausted { .. } => "not enough permits available",
            Self::ExceedsCapacity { .. } => "more permits than the limiter can hold",
            Self::Penalized { .. } => "penalized after an earlier denial",
            Self::Crowded { .. } => "table full: no slot for the key",
            Self::Refused { .. } => "refused",
            Self::Closed { .. } => "closed",
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { permits, .. } => write!(f, "{} ({permits} requested)", self.reason()),
            Self::ExceedsCapacity {
                permits,
                capacity: 0,
            } => write!(
                f,
                "{} requested, none can be granted with the current settings",
                Permits(*permits)
            ),
            Self::ExceedsCapacity { permits, capacity } => write!(
                f,
                "{} requested, at most {capacity} can ever be granted: request fewer",
                Permits(*permits)
            ),
            Self::Penalized { .. }
            | Self::Crowded { .. }
            | Self::Refused { .. }
            | Self::Closed { .. } => f.write_str(self.reason()),
        }
    }
}

impl core::error::Error for Denied {}

/// Displays a number of permits, in the singular or the plural.
pub(crate) struct Permits(pub(crate) u32);

impl fmt::Display for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 permit"),
            n => write!(f, "{n} permits"),
        }
    }
}

/// When to retry a denied request. It has 16 bytes.
///
/// ```
/// use core::time::Duration;
/// use portcullis_core::{Retry, Timestamp};
///
/// let now = Timestamp::from_secs(1);
/// assert_eq!(
///     Retry::At(Timestamp::from_millis(1_200)).wait_from(now),
///     Some(Duration::from_millis(200))
/// );
/// assert_eq!(Retry::OnRelease.wait_from(now), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Retry {
    /// At this instant the request would be granted if no other caller takes permits. 1 ns earlier
    /// it would be denied.
    At(Timestamp),
    /// When permits are released. The time of that is unknown.
    OnRelease,
    /// When permits are released, but not before this instant: another limit grants then at the
    /// earliest, or a penalty ends.
    OnReleaseFrom(Timestamp),
    /// The time is unknown: ask again after this duration.
    After(Duration),
    /// Never: the request exceeds the capacity, or no permits ever return.
    Never,
}

impl Retry {
    /// Returns the later of two retries, for a request that was judged at `now` and needs a grant
    /// from both limiters. [`Never`](Self::Never) is the latest, followed by
    /// [`OnRelease`](Self::OnRelease), followed by the times. A release and an [`At`](Self::At)
    /// after `now` give an [`OnReleaseFrom`](Self::OnReleaseFrom). An `At` and an
    /// [`After`](Self::After) give an `After`.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Retry, Timestamp};
    /// let secs = Timestamp::from_secs;
    /// let (now, at) = (secs(3), |s| Retry::At(secs(s)));
    /// assert_eq!(at(5).longer(at(4), now), at(5));
    /// assert_eq!(at(5).longer(Retry::OnRelease, now), Retry::OnReleaseFrom(secs(5)));
    /// assert_eq!(at(3).longer(Retry::OnRelease, now), Retry::OnRelease);
    /// let ask = Retry::After(Duration::from_secs(1));
    /// assert_eq!(at(5).longer(ask, now), Retry::After(Duration::from_secs(2)));
    /// ```
    #[must_use]
    pub fn longer(self, other: Self, now: Timestamp) -> Self {
        use Retry::{After, At, Never, OnRelease, OnReleaseFrom};
        match (self, other) {
            (Never, _) | (_, Never) => Never,
            (OnRelease | OnReleaseFrom(_), _) | (_, OnRelease | OnReleaseFrom(_)) => {
                match self.not_before(now).max(other.not_before(now)) {
                    from if from > now => OnReleaseFrom(from),
                    _ => OnRelease,
                }
            }
            (At(a), At(b)) => At(a.max(b)),
            (After(a), After(b)) => After(a.max(b)),
            (After(wait), At(at)) | (At(at), After(wait)) => {
                After(wait.max(at.saturating_since(now)))
            }
        }
    }

    /// The instant before which the limiter grants in no case, or `now` if it tells none.
    const fn not_before(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) | Self::OnReleaseFrom(at) => at,
            Self::After(_) | Self::OnRelease | Self::Never => now,
        }
    }

    /// Returns the time from `now` until the retry, or until the earliest instant for it. Returns
    /// `None` if no time is known, that is, for [`OnRelease`](Self::OnRelease) and
    /// [`Never`](Self::Never).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Retry, Timestamp};
    /// let now = Timestamp::from_secs(3);
    /// assert_eq!(
    ///     Retry::At(Timestamp::from_secs(5)).wait_from(now),
    ///     Some(Duration::from_secs(2))
    /// );
    /// assert_eq!(Retry::Never.wait_from(now), None);
    /// ```
    pub const fn wait_from(self, now: Timestamp) -> Option<Duration> {
        match self {
            Self::At(at) | Self::OnReleaseFrom(at) => Some(at.saturating_since(now)),
            Self::After(wait) => Some(wait),
            Self::OnRelease | Self::Never => None,
        }
    }

    /// Returns the whole seconds from `now` until the retry, rounded up, so that a client does not
    /// retry too early: for example, for the header field `Retry-After`. Returns `None` if no
    /// time is known, as [`wait_from`](Self::wait_from).
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Retry, Timestamp};
    /// let now = Timestamp::from_secs(3);
    /// assert_eq!(Retry::At(Timestamp::from_millis(4_001)).seconds_from(now), Some(2));
    /// assert_eq!(Retry::After(Duration::from_secs(2)).seconds_from(now), Some(2));
    /// assert_eq!(Retry::OnRelease.seconds_from(now), None);
    /// ```
    pub const fn seconds_from(self, now: Timestamp) -> Option<u64> {
        match self.wait_from(now) {
            Some(wait) => Some(
                wait.as_secs()
                    .saturating_add((wait.subsec_nanos() > 0) as u64),
            ),
            None => None,
        }
    }
}

const _: () = assert!(size_of::<Denied>() <= 16 && size_of::<Retry>() <= 16);

use core::fmt;
use core::time::Duration;

use crate::{Limiter, Timestamp};

/// Why a request was refused: small, `Copy`, 16 bytes.
///
/// It says nothing about *when* to come back until it is asked with [`Denied::retry`], so a denial
/// that nobody asks costs no arithmetic.
///
/// ```
/// use portcullis_core::{Denied, Rate, Retry, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(10), 1);
/// let now = Timestamp::from_secs(7);
/// bucket.try_acquire_at(now, 1)?;
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
    /// Fewer permits than asked for are available at `now`.
    Exhausted {
        /// The instant that the request was judged at.
        now: Timestamp,
        /// The permits that were asked for; 0 for a probe.
        permits: u32,
    },
    /// More permits were asked for than the limiter can ever hold, as it is set now.
    ExceedsCapacity {
        /// The permits that were asked for.
        permits: u32,
        /// The most that one request can ask for.
        capacity: u32,
    },
    /// A [`Penalty`](crate::Penalty) is on at `now`: requests are denied for a time, whatever the
    /// limiter would say.
    Penalized {
        /// The instant that the request was judged at.
        now: Timestamp,
        /// The permits that were asked for; 0 for a probe.
        permits: u32,
    },
    /// A keyed table has no entry for the key at `now`: all that the key could use are in use by
    /// others, or another thread claims one for it at this moment.
    Crowded {
        /// The instant that the request was judged at.
        now: Timestamp,
        /// The permits that were asked for; 0 for a probe.
        permits: u32,
    },
    /// A limiter that watches something else than permits, say the load of the machine, says no at
    /// `now`.
    Refused {
        /// The instant that the request was judged at.
        now: Timestamp,
        /// The permits that were asked for; 0 for a probe.
        permits: u32,
    },
}

impl Denied {
    /// More was asked for than there can be. That is less than `permits`, so it fits.
    #[inline(always)]
    pub(crate) const fn exceeding(permits: u32, capacity: u64) -> Self {
        Self::ExceedsCapacity {
            permits,
            capacity: capacity as u32,
        }
    }

    /// When to come back, as `limiter` sees it now: see [`Limiter::retry`]. `limiter` is the one
    /// that denied.
    ///
    /// # Cost
    ///
    /// Reads the limiter's state again and may divide: some ten nanoseconds. Writes nothing.
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
    pub fn retry<L: Limiter + ?Sized>(self, limiter: &L) -> Retry {
        limiter.retry(self)
    }

    /// The permits that were asked for; 0 for a probe.
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
            | Self::Refused { permits, .. } => permits,
        }
    }

    /// The reason in a few words, for a log or a reply.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency};
    /// let denied = Concurrency::new(1).try_acquire(7).unwrap_err();
    /// assert_eq!(denied.reason(), "more permits than the limiter can hold");
    /// ```
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Exhausted { .. } => "permits exhausted",
            Self::ExceedsCapacity { .. } => "more permits than the limiter can hold",
            Self::Penalized { .. } => "denied for a time, after a denial",
            Self::Crowded { .. } => "no room for another key",
            Self::Refused { .. } => "refused",
        }
    }
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exhausted { permits, .. } => write!(f, "{}: {permits} asked for", self.reason()),
            Self::ExceedsCapacity { permits, capacity } => {
                write!(
                    f,
                    "{permits} permits asked for, at most {capacity} can ever be granted: ask for fewer"
                )
            }
            Self::Penalized { .. } | Self::Crowded { .. } | Self::Refused { .. } => {
                f.write_str(self.reason())
            }
        }
    }
}

impl core::error::Error for Denied {}

/// When a denied request should come back. 16 bytes.
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
    /// At this instant the request would be granted if nobody else takes a permit, and not 1 ns
    /// earlier.
    At(Timestamp),
    /// When permits are released; no clock can tell.
    OnRelease,
    /// Nobody knows: ask again after this time.
    After(Duration),
    /// Never: the request exceeds the capacity, or nothing ever comes back.
    Never,
}

impl Retry {
    /// The longer of two, for a request that was judged at `now` and must pass both: never, then
    /// when permits are released, then the later time. A time to ask again and an instant make a
    /// time to ask again.
    ///
    /// ```
    /// # use core::time::Duration;
    /// # use portcullis_core::{Retry, Timestamp};
    /// let (now, at) = (Timestamp::from_secs(3), |s| {
    ///     Retry::At(Timestamp::from_secs(s))
    /// });
    /// assert_eq!(at(5).longer(at(4), now), at(5));
    /// assert_eq!(at(5).longer(Retry::OnRelease, now), Retry::OnRelease);
    /// let ask = Retry::After(Duration::from_secs(1));
    /// assert_eq!(at(5).longer(ask, now), Retry::After(Duration::from_secs(2)));
    /// ```
    #[must_use]
    pub fn longer(self, other: Self, now: Timestamp) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::OnRelease, _) | (_, Self::OnRelease) => Self::OnRelease,
            (Self::At(a), Self::At(b)) => Self::At(a.max(b)),
            (Self::After(a), Self::After(b)) => Self::After(a.max(b)),
            (Self::After(wait), Self::At(at)) | (Self::At(at), Self::After(wait)) => {
                Self::After(wait.max(at.saturating_since(now)))
            }
        }
    }

    /// The time from `now` to the retry; `None` where time alone does not help.
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
            Self::At(at) => Some(at.saturating_since(now)),
            Self::After(wait) => Some(wait),
            Self::OnRelease | Self::Never => None,
        }
    }
}

const _: () = assert!(size_of::<Denied>() == 16 && size_of::<Retry>() == 16);

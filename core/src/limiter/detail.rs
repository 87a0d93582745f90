//! What a limiter tells beside a decision, all of it from one value of its word.

use core::cell::Cell;
use core::time::Duration;

use crate::limiter::denied::{Denied, Retry};
use crate::limiter::receipt::Receipt;
use crate::limiter::{Limiter, Read, Reading};
use crate::time::timestamp::Timestamp;

/// The decision on a request, and the state of the limiter that goes with it: what is left, of how
/// many, and when the rest returns. Enough for the header fields of a response.
///
/// Returned by [`try_acquire_explained_at`], which takes, and by
/// [`explain_at`](crate::LimiterExt::explain_at) and
/// [`AllOf::explain_at`](crate::AllOf::explain_at), which only look.
///
/// If the state of a limiter is one word, all fields are computed from one value of it: for a grant
/// the word that the grant wrote, for a denial or a look the word that it read. Requests of other
/// callers do not change them.
/// [`take_explained_at`](crate::LimiterExt::take_explained_at) lists the limiters to which
/// something else applies.
///
/// The fields of [draft-ietf-httpapi-ratelimit-headers][draft] are `capacity` (`q`),
/// `time_to_fill` (`w`), `available` (`r`), and `full_again` (`t`).
///
/// [`try_acquire_explained_at`]: crate::LimiterExt::try_acquire_explained_at
/// [draft]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/
///
/// ```
/// use portcullis_core::{Concurrency, LimiterExt, Rate, Retry, Timestamp, TokenBucket};
/// use portcullis_core::limiter::Detail;
///
/// let bucket = TokenBucket::new(Rate::per_second(1), 5);
/// let now = Timestamp::from_secs(9);
/// let (granted, detail) = bucket.try_acquire_explained_at(now, 3);
/// assert!(granted.is_ok());
///
/// // Seconds are rounded up, so that a client does not retry too early.
/// fn fields(detail: &Detail) -> [String; 2] {
///     // A parameter without a value is left out: the permits of a concurrency limit do not come
///     // back by time, so it has neither `w` nor `t`.
///     let parameter = |name, value: Option<u64>| {
///         value.map_or(String::new(), |seconds| format!(";{name}={seconds}"))
///     };
///     let window = detail.time_to_fill.map(Retry::After);
///     let window = window.and_then(|time| time.seconds_from(detail.now));
///     let reset = detail.full_again.seconds_from(detail.now);
///     [
///         format!("\"default\";q={}{}", detail.capacity, parameter("w", window)),
///         format!("\"default\";r={}{}", detail.available, parameter("t", reset)),
///     ]
/// }
/// // `RateLimit-Policy` and `RateLimit`.
/// assert_eq!(fields(&detail), ["\"default\";q=5;w=5", "\"default\";r=2;t=3"]);
///
/// let workers = Concurrency::new(8);
/// let (lease, in_use) = workers.try_acquire_explained_at(now, 3);
/// assert_eq!(fields(&in_use), ["\"default\";q=8", "\"default\";r=5"]);
/// # drop(lease);
///
/// let (denied, detail) = bucket.try_acquire_explained_at(now, 4);
/// assert!(denied.is_err());
/// assert_eq!(detail.available, 2);
/// assert_eq!(detail.retry, Retry::At(Timestamp::from_secs(11)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Detail {
    /// The time of the request.
    pub now: Timestamp,
    /// Whether the request is granted, or why it is denied.
    pub decision: Result<(), Denied>,
    /// The permits available after the decision. A denial and a look take nothing.
    pub available: u64,
    /// The most permits that can be available at once, by the settings of the decision: the
    /// limiter's [`capacity`](Limiter::capacity).
    pub capacity: u64,
    /// The time in which the whole capacity returns if it is taken at once: for a window its
    /// length, for a bucket the burst divided by the rate, for a
    /// [`WarmingBucket`](crate::WarmingBucket) the time if it is cold. Rounded up to the limiter's
    /// ticks.
    ///
    /// `None` if permits do not return by time, at an unlimited rate, or if the limiter does not
    /// know.
    pub time_to_fill: Option<Duration>,
    /// When the whole capacity is available again, if no further permit is taken. It is `now` if it
    /// is available.
    pub full_again: Retry,
    /// When the request can be granted. For a request that is granted, this is `now`.
    pub retry: Retry,
}

impl Detail {
    /// Returns whether the request is granted.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, Limiter, LimiterExt, Timestamp};
    /// assert!(
    ///     Concurrency::new(1)
    ///         .explain_at(Timestamp::ZERO, 1)
    ///         .is_allowed()
    /// );
    /// ```
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_ok()
    }

    /// Asks `limiter`, in its present state, for what goes with `decision`.
    pub(crate) fn of<L: Limiter + ?Sized>(
        limiter: &L,
        now: Timestamp,
        decision: Result<(), Denied>,
    ) -> Self {
        let Reading {
            available,
            capacity,
            ..
        } = limiter.read(Read::at(now));
        Self {
            now,
            decision,
            available,
            capacity,
            time_to_fill: None,
            full_again: if available >= capacity {
                Retry::At(now)
            } else {
                limiter.retry(Denied::Exhausted {
                    now,
                    permits: u32::try_from(capacity).unwrap_or(u32::MAX),
                })
            },
            retry: retry_of(decision, now, |denied| limiter.retry(denied)),
        }
    }

    /// What goes with a grant without any limit.
    pub(crate) const fn unlimited(now: Timestamp) -> Self {
        Self {
            now,
            decision: Ok(()),
            available: u64::MAX,
            capacity: u64::MAX,
            time_to_fill: None,
            full_again: Retry::At(now),
            retry: Retry::At(now),
        }
    }

    /// What goes with the denial of a key that finds no slot in its table: without one, no permit
    /// can be taken.
    pub(crate) const fn without_slot(self, retry: Retry) -> Self {
        Self {
            available: 0,
            full_again: retry,
            retry,
            ..self
        }
    }

    /// Looks at a state that `detail` tells about, and decides on a request by its permits.
    pub(crate) fn look(
        now: Timestamp,
        n: u32,
        detail: impl Fn(Result<(), Denied>) -> Self,
    ) -> Self {
        let granted = detail(Ok(()));
        if u64::from(n.max(1)) <= granted.available {
            granted
        } else {
            detail(Err(denied(now, n, granted.capacity)))
        }
    }
}

/// Returns for how many permits a limiter is asked that has decided on a request for `n`.
///
/// After a grant, for none: a composition that is asked for `n` more tells of the limit that would
/// deny those, and not of the one with the fewest permits left.
pub(crate) const fn asked_after<E: Copy>(decision: Result<(), E>, n: u32) -> u32 {
    match decision {
        Ok(()) => 0,
        Err(_) => n,
    }
}

/// Returns why a limiter with too few permits denies a request.
#[inline]
pub(crate) fn denied(now: Timestamp, n: u32, capacity: u64) -> Denied {
    if u64::from(n.max(1)) <= capacity {
        Denied::Exhausted { now, permits: n }
    } else {
        // The capacity is less than `n`, or it is 0.
        Denied::exceeding(n, capacity)
    }
}

/// Returns when the request of `decision` can be granted.
#[inline]
pub(crate) fn retry_of(
    decision: Result<(), Denied>,
    now: Timestamp,
    retry: impl FnOnce(Denied) -> Retry,
) -> Retry {
    match decision {
        Ok(()) => Retry::At(now),
        Err(denied) => retry(denied),
    }
}

/// Returns a decision without its receipt.
#[inline]
pub(crate) fn outcome<T>(decision: &Result<T, Denied>) -> Result<(), Denied> {
    match decision {
        Ok(_) => Ok(()),
        Err(denied) => Err(*denied),
    }
}

/// Sees the state in which a take decides.
///
/// A take calls it before the compare-exchange that writes a grant, with the state that the
/// exchange writes, or before it returns a denial or a probe, with the state that it has read. If
/// the exchange fails, the take calls it again.
///
/// `()` sees nothing: the take is then compiled without it.
pub(crate) trait Observer<T = Detail>: Copy {
    fn observe(self, detail: impl FnOnce() -> T);
}

impl<T> Observer<T> for () {
    #[inline(always)]
    fn observe(self, _: impl FnOnce() -> T) {}
}

impl<T> Observer<T> for &Cell<Option<T>> {
    fn observe(self, detail: impl FnOnce() -> T) {
        self.set(Some(detail()));
    }
}

/// Returns the result of `take`, and what it observed.
///
/// `look` and `retry` are asked if the take observed nothing: a request that no state can grant
/// reads none.
pub(crate) fn observed(
    (now, n): (Timestamp, u32),
    take: impl FnOnce(&Cell<Option<Detail>>) -> Result<Receipt, Denied>,
    look: impl FnOnce(u32) -> Detail,
    retry: impl FnOnce(Denied) -> Retry,
) -> (Result<Receipt, Denied>, Detail) {
    let seen = Cell::new(None);
    let taken = take(&seen);
    let detail = told((now, n), outcome(&taken), seen.get(), look, retry);
    (taken, detail)
}

/// Returns what a take observed. If that is not its decision, asks again.
pub(crate) fn told(
    (now, n): (Timestamp, u32),
    decision: Result<(), Denied>,
    seen: Option<Detail>,
    look: impl FnOnce(u32) -> Detail,
    retry: impl FnOnce(Denied) -> Retry,
) -> Detail {
    // A take may have observed more than its decision: an exchange that failed.
    match seen {
        Some(seen) if seen.decision == decision => seen,
        _ => Detail {
            decision,
            retry: retry_of(decision, now, retry),
            ..look(asked_after(decision, n))
        },
    }
}

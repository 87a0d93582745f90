use crate::{Denied, Limiter, Retry, Timestamp};

/// What one limiter would answer to a request: the result of
/// [`LimiterExt::explain_at`](crate::LimiterExt::explain_at) and
/// [`AllOf::explain_at`](crate::AllOf::explain_at). Neither method changes a limiter.
///
/// ```
/// use portcullis_core::{LimiterExt, Rate, Retry, Timestamp, TokenBucket};
///
/// let bucket = TokenBucket::new(Rate::per_second(1), 5);
/// let now = Timestamp::from_secs(9);
/// bucket.try_acquire_at(now, 3)?;
/// let detail = bucket.explain_at(now, 4);
/// assert!(!detail.is_allowed());
/// assert_eq!(
///     (detail.available, detail.retry),
///     (2, Retry::At(Timestamp::from_secs(11)))
/// );
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Detail {
    /// Whether the request would be granted, or why it would be denied.
    pub decision: Result<(), Denied>,
    /// The permits available before the request.
    pub available: u64,
    /// When the request would be granted. For a request that would be granted, this is `now`.
    pub retry: Retry,
}

impl Detail {
    /// Returns whether the request would be granted.
    ///
    /// ```
    /// # use portcullis_core::{Concurrency, LimiterExt, Timestamp};
    /// assert!(
    ///     Concurrency::new(1)
    ///         .explain_at(Timestamp::ZERO, 1)
    ///         .is_allowed()
    /// );
    /// ```
    pub const fn is_allowed(&self) -> bool {
        self.decision.is_ok()
    }

    /// Asks `limiter` about a request for `n` permits at `now`.
    pub(crate) fn of<L: Limiter + ?Sized>(limiter: &L, now: Timestamp, n: u32) -> Self {
        let decision = limiter.peek_at(now, n);
        let retry = match decision {
            Ok(()) => Retry::At(now),
            Err(denied) => limiter.retry(denied),
        };
        Self {
            decision,
            available: limiter.available_at(now),
            retry,
        }
    }
}

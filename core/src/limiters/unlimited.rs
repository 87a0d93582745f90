use crate::limiter::queue_limiter::replenishing;
use crate::{Denied, Idle, Interval, Lease, Limiter, Receipt, Refund, Retry, Timestamp};

/// No limit: grants every request. For example, for the routes of a gateway that have no limit.
///
/// ```
/// use portcullis_core::{Timestamp, Unlimited};
///
/// static NONE: Unlimited = Unlimited::new();
/// assert!(NONE.try_acquire_at(Timestamp::ZERO, u32::MAX).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unlimited;

impl Unlimited {
    /// Creates a limiter that grants every request.
    ///
    /// ```
    /// assert_eq!(
    ///     portcullis_core::Unlimited::new(),
    ///     portcullis_core::Unlimited
    /// );
    /// ```
    pub const fn new() -> Self {
        Self
    }

    /// Grants `n` permits, whatever `now` and `n` are. Costs nothing.
    ///
    /// # Errors
    ///
    /// Never.
    ///
    /// ```
    /// # use portcullis_core::{Timestamp, Unlimited};
    /// assert_eq!(
    ///     Unlimited
    ///         .try_acquire_at(Timestamp::MAX, 7)
    ///         .unwrap()
    ///         .permits(),
    ///     7
    /// );
    /// ```
    pub fn try_acquire_at(&self, now: Timestamp, n: u32) -> Result<Lease<&Self>, Denied> {
        Lease::try_acquire_at(self, now, n)
    }
}

impl Limiter for Unlimited {
    #[inline]
    fn take_at(&self, _: Timestamp, _: u32) -> Result<Receipt, Denied> {
        Ok(Receipt::NONE)
    }

    #[inline]
    fn take_within(&self, _: Interval, _: u32) -> Option<Result<Receipt, Denied>> {
        Some(Ok(Receipt::NONE))
    }

    #[inline]
    fn peek_within(&self, _: Interval, _: u32) -> Option<Result<(), Denied>> {
        Some(Ok(()))
    }

    #[inline]
    fn decides_within(&self) -> bool {
        true
    }

    fn refund_at(&self, _: Timestamp, n: u32, receipt: Receipt) -> Refund {
        receipt.refunded(n)
    }

    #[inline]
    fn release(&self, _: u32) {}

    fn available_at(&self, _: Timestamp) -> u64 {
        u64::MAX
    }

    fn idle_at(&self, _: Timestamp) -> Idle {
        Idle::Now
    }

    fn retry(&self, denied: Denied) -> Retry {
        match denied {
            Denied::ExceedsCapacity { .. } | Denied::Closed { .. } => Retry::Never,
            Denied::Exhausted { now, .. }
            | Denied::Refused { now, .. }
            | Denied::Crowded { now, .. }
            | Denied::Penalized { now, .. } => Retry::At(now),
        }
    }
}

replenishing!([] Unlimited);

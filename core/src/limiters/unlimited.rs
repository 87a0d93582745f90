//! A limiter without state.

use crate::leases::lease::Lease;
use crate::limiter::denied::{Denied, Retry};
use crate::limiter::queue_limiter::replenishing;
use crate::limiter::receipt::Receipt;
use crate::limiter::{Answer, Ask, Back, Hints, Idle, Limiter, Read, Reading, Returned};
use crate::time::timestamp::Timestamp;

/// No limit: grants every request. For example, for the routes of a gateway that have no limit.
///
/// ```
/// use portcullis_core::{Timestamp, Unlimited};
///
/// static NONE: Unlimited = Unlimited::new();
/// assert!(NONE.try_acquire_at(Timestamp::ZERO, u32::MAX).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "it has no settings")]
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
    #[inline(always)]
    fn decide(&self, ask: Ask<'_>) -> Answer {
        ask.granted(Receipt::NONE)
    }

    #[inline(always)]
    fn give_back(&self, back: Back<'_>) -> Returned {
        back.by_time(|_, n, receipt| receipt.refunded(n))
    }

    #[inline(always)]
    fn read(&self, _: Read<'_>) -> Reading {
        Reading {
            available: u64::MAX,
            capacity: u64::MAX,
            idle: Idle::Now,
            held: 0,
        }
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

    #[inline(always)]
    fn hints(&self) -> Hints {
        Hints::ONE_RECEIPT.within_intervals()
    }
}

replenishing!([] Unlimited);

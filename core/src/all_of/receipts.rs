//! The receipts of one grant, by limit: a fixed array, because the core does not allocate.

use core::mem;

use crate::limiter::receipt::Receipt;

/// The receipts of one grant of a composition, one for each of up to eight limits, in the order of
/// the limits.
///
/// ```
/// use portcullis_core::{AllOf, Concurrency, Limiter, Rate, Timestamp, TokenBucket};
/// use portcullis_core::composition::Receipts;
/// use portcullis_core::limiter::{Ask, Back, Tell};
///
/// let limits = AllOf::new((
///     TokenBucket::new(Rate::per_second(5), 5),
///     Concurrency::new(2),
/// ));
/// let now = Timestamp::ZERO;
/// let mut receipts = Receipts::NONE;
/// let ask = Ask::take(now, 2).telling(Tell::Receipts(&mut receipts));
/// let receipt = limits.decide(ask).taken(now, 2)?;
/// let refund = Back::Refund {
///     now,
///     permits: 2,
///     receipt,
///     receipts: Some(&mut receipts),
/// };
/// assert_eq!(limits.give_back(refund).refund.permits, 2);
/// assert_eq!(limits.limits().0.available_at(now), 5);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Receipts {
    receipts: [Receipt; Self::MOST],
    len: usize,
}

impl Receipts {
    /// The largest number of limits whose receipts can be stored.
    pub(super) const MOST: usize = 8;

    /// No receipts.
    pub const NONE: Self = Self {
        receipts: [const { Receipt::NONE }; Self::MOST],
        len: 0,
    };

    /// Removes all receipts.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds the receipt of the next limit. The caller has checked that there is room.
    pub(super) fn push(&mut self, receipt: Receipt) {
        if let Some(place) = self.receipts.get_mut(self.len) {
            *place = receipt;
            self.len += 1;
        }
    }

    /// Removes the last receipt, and returns it with its index.
    pub(super) fn pop(&mut self) -> Option<(usize, Receipt)> {
        self.len = self.len.checked_sub(1)?;
        self.receipts
            .get_mut(self.len)
            .map(|receipt| (self.len, mem::replace(receipt, Receipt::NONE)))
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }
}

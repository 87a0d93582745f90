use core::mem;

use crate::Receipt;

/// The receipts of the parts of one grant, in the order of the limits: of up to eight limits.
///
/// ```
/// use portcullis_core::{
///     AllOf, Concurrency, Limiter, QueueLimiter, Rate, Receipts, Timestamp, TokenBucket,
/// };
///
/// let limits = AllOf::new((
///     TokenBucket::new(Rate::per_second(5), 5),
///     Concurrency::new(2),
/// ));
/// let now = Timestamp::ZERO;
/// let mut notes = Receipts::NONE;
/// let receipt = limits.take_noted_at(now, 2, &mut notes)?;
/// assert_eq!(limits.refund_noted_at(now, 2, receipt, notes), 2);
/// assert_eq!(limits.limits().0.available_at(now), 5);
/// # Ok::<(), portcullis_core::Denied>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct Receipts {
    receipts: [Receipt; Self::MOST],
    len: usize,
}

impl Receipts {
    /// Limits of which the receipts can be kept.
    pub(super) const MOST: usize = 8;

    /// Of no limit.
    pub const NONE: Self = Self {
        receipts: [const { Receipt::NONE }; Self::MOST],
        len: 0,
    };

    /// Forgets them.
    pub const fn clear(&mut self) {
        self.len = 0;
    }

    /// There is room.
    pub(super) fn push(&mut self, receipt: Receipt) {
        if let Some(place) = self.receipts.get_mut(self.len) {
            *place = receipt;
            self.len += 1;
        }
    }

    /// The last one, and its place.
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

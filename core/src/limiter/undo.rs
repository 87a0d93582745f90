//! A take that is undone by its receipt.

use core::mem;

use crate::limiter::Limiter;
use crate::limiter::receipt::Receipt;
use crate::time::timestamp::Timestamp;

/// A take that is refunded on drop, if a later take fails or panics.
pub(crate) struct UndoOnDrop<'a, L: Limiter + ?Sized> {
    limiter: &'a L,
    now: Timestamp,
    n: u32,
    receipt: Receipt,
}

impl<'a, L: Limiter + ?Sized> UndoOnDrop<'a, L> {
    #[inline(always)]
    pub(crate) const fn new(limiter: &'a L, now: Timestamp, n: u32, receipt: Receipt) -> Self {
        Self {
            limiter,
            now,
            n,
            receipt,
        }
    }

    #[inline(always)]
    pub(crate) fn keep(self) {
        mem::forget(self);
    }

    /// Keeps the take, and returns its receipt.
    pub(crate) fn into_receipt(mut self) -> Receipt {
        let receipt = mem::replace(&mut self.receipt, Receipt::NONE);
        self.keep();
        receipt
    }
}

impl<L: Limiter + ?Sized> Drop for UndoOnDrop<'_, L> {
    #[inline(always)]
    fn drop(&mut self) {
        let receipt = mem::replace(&mut self.receipt, Receipt::NONE);
        undo(self.limiter, self.now, self.n, receipt);
    }
}

#[cold]
#[inline(never)]
fn undo<L: Limiter + ?Sized>(limiter: &L, now: Timestamp, n: u32, receipt: Receipt) {
    let _ = limiter.refund_at(now, n, receipt);
}

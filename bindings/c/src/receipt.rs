//! Receipts: what is left of a grant, and which limiter it is from.
//!
//! Invariant: `permits` is what the limiter may still get back for the grant. It only decreases.

use portcullis_core::limiter::{Receipt, Refund};

use crate::status::{PC_NOT_TAKEN, PC_WRONG_RECEIPT, Status};

/// The receipt of a grant, written by `..._take` and used up by `..._give_back`. Do not change or
/// copy it: a copy could be given back a second time.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct pc_receipt {
    /// Opaque.
    pub note: u64,
    /// Opaque.
    pub time: u64,
    /// Names the limiter or the key.
    pub owner: usize,
    /// The permits of the grant that have not been given back.
    pub permits: u32,
}

impl pc_receipt {
    #[inline(always)]
    pub(crate) const fn of(receipt: &Receipt, permits: u32, owner: usize) -> Self {
        Self {
            note: receipt.note(),
            time: receipt.time(),
            owner,
            permits,
        }
    }

    /// Checks that the receipt covers `permits` of the limiter `owner`.
    #[inline(always)]
    pub(crate) fn covers(&self, permits: u32, owner: usize) -> Result<(), Status> {
        if self.owner != owner {
            Err(Status(PC_WRONG_RECEIPT))
        } else if permits > self.permits {
            Err(Status(PC_NOT_TAKEN))
        } else {
            Ok(())
        }
    }

    pub(crate) const fn receipt(&self) -> Receipt {
        Receipt::dated(self.note, self.time)
    }

    /// Returns the receipt for what is left, and how many permits count as never taken.
    pub(crate) const fn after(&self, permits: u32, refund: &Refund) -> Self {
        Self::of(&refund.rest, self.permits - permits, self.owner)
    }
}

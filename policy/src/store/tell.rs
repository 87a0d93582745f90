//! How a store takes, and what a take tells besides its answer.
//!
//! [`How`] is what a policy asks of a store: to take, to explain, to hold, or to let the request
//! wait. [`Tell`] is what the take from each limit tells then. It is one value for all of them, so
//! that there is one way through the tables: a take that tells nothing goes the same way as one
//! that tells all, and denies for the same reason.

use core::array;
use core::cell::Cell;

use portcullis_core::composition::DeniedBy;
use portcullis_core::keyed::{Address, Refunds, RefundsBefore, TableKey};
use portcullis_core::limiter::{Detail, Receipt};
use portcullis_core::{Denied, Limiter, LimiterExt, Retry, Timestamp};

use super::{KeyLimit, Several, Store};
use crate::rule::MAX_LIMITS;

/// How a store takes for a request.
pub(crate) enum How<'a> {
    /// It takes, and tells nothing.
    Take,
    /// It takes, and explains the decision.
    Explain(&'a mut Explanation),
    /// It takes, and notes what is needed to return the permits.
    Hold(&'a mut Held),
    /// It takes if no other request of the key waits. Otherwise, or if the limits that deny have a
    /// queue, it sets whether the request can wait.
    #[cfg(feature = "queue")]
    OrWait(&'a mut bool),
    /// As `Hold` and `OrWait`.
    #[cfg(feature = "queue")]
    HoldOrWait(&'a mut Held, &'a mut bool),
}

impl How<'_> {
    /// The same, and notes in `held` what is needed to return the permits.
    pub(crate) fn holding<'a>(&'a mut self, held: &'a mut Held) -> How<'a> {
        match self {
            #[cfg(feature = "queue")]
            Self::OrWait(can_wait) | Self::HoldOrWait(_, can_wait) => {
                How::HoldOrWait(held, can_wait)
            }
            Self::Take | Self::Explain(_) | Self::Hold(_) => How::Hold(held),
        }
    }

    /// Whether the request can wait, after a denial.
    pub(crate) fn waits(&self) -> bool {
        match self {
            #[cfg(feature = "queue")]
            Self::OrWait(can_wait) | Self::HoldOrWait(_, can_wait) => **can_wait,
            Self::Take | Self::Explain(_) | Self::Hold(_) => false,
        }
    }
}

/// What a decision has seen of its limits.
#[derive(Default)]
pub(crate) struct Explanation {
    pub(crate) details: Details,
    /// When to retry. `None` if the request was allowed, or no limit was asked.
    pub(crate) retry: Option<Retry>,
}

/// The detail of each limit, in the order of the limits. `None` beyond the last.
pub(crate) type Details = [Option<Detail>; MAX_LIMITS];

/// What is needed to return the permits of a grant, in the order of the limits.
pub(crate) type Held = [Grant; MAX_LIMITS];

/// What is needed to return the permits of one limit. `None` if they do not return.
pub(crate) type Grant = Option<(Receipt, Option<RefundsBefore>)>;

/// What a take from the limits of a key tells of each of them. A limit has its index in the store,
/// or none if it is of another store: see [`moves`](super::moves).
#[derive(Clone, Copy)]
pub(super) enum Tell<'t> {
    /// Nothing.
    Nothing,
    /// The detail of each limit.
    Details(&'t [Cell<Option<Detail>>; MAX_LIMITS]),
    /// What is needed to return the permits to each limit of a key.
    Grants {
        store: &'t Store,
        at: Address,
        grants: &'t [Cell<Grant>; MAX_LIMITS],
    },
    /// The receipt of the last limit with a table of its own.
    #[cfg(feature = "queue")]
    LastReceipt(&'t Cell<Option<Receipt>>),
}

impl Tell<'_> {
    /// Takes from a limit with a table of its own.
    #[inline(always)]
    pub(super) fn take(
        self,
        limit: Option<usize>,
        key: &KeyLimit<'_>,
        now: Timestamp,
        n: u32,
    ) -> Result<Receipt, Denied> {
        match (self, limit) {
            (Self::Details(details), Some(limit)) => {
                let (taken, detail) = key.take_explained_at(now, n);
                details[limit].set(Some(detail));
                taken
            }
            (Self::Grants { store, at, grants }, Some(limit)) => {
                // Before the take: a refund by another thread in between counts as a later one, so
                // that less returns, never more.
                let before = before(store, at, limit);
                let receipt = key.take_at(now, n)?;
                grants[limit].set(Some((copy(&receipt), before)));
                Ok(receipt)
            }
            #[cfg(feature = "queue")]
            (Self::LastReceipt(last), _) => {
                let receipt = key.take_at(now, n)?;
                last.set(Some(copy(&receipt)));
                Ok(receipt)
            }
            // Of a limit of another store nothing is told: it has no place in what is told.
            (Self::Nothing | Self::Details(_) | Self::Grants { .. }, _) => key.take_at(now, n),
        }
    }

    /// Takes from a limit that has denied a look. `None` if it denies the take, too, or if nothing
    /// is to be taken.
    #[cold]
    #[inline(never)]
    pub(super) fn take_now(
        self,
        limit: Option<usize>,
        key: &KeyLimit<'_>,
        now: Timestamp,
        n: u32,
    ) -> Option<Receipt> {
        if n == 0 {
            return None;
        }
        self.take(limit, key, now, n).ok()
    }

    /// Takes from several limits that share a table. `limit` has the index of each in the store.
    #[inline(always)]
    pub(super) fn take_each(
        self,
        limit: impl Fn(usize) -> Option<usize>,
        key: TableKey<&Several>,
        now: Timestamp,
        n: u32,
    ) -> Result<(), DeniedBy> {
        match self {
            Self::Nothing => key.take_each_at(now, n),
            // None of them has a table of its own.
            #[cfg(feature = "queue")]
            Self::LastReceipt(_) => key.take_each_at(now, n),
            Self::Details(details) => {
                let (taken, seen) = key.try_acquire_each_detailed_at(now, n);
                for (nth, detail) in seen.into_iter().enumerate() {
                    if let (Some(detail), Some(limit)) = (detail, limit(nth)) {
                        details[limit].set(Some(detail));
                    }
                }
                // The decision keeps the permits: see `Store::release`.
                taken.map(|lease| {
                    lease.forget();
                })
            }
            Self::Grants { store, at, grants } => {
                let before: [_; MAX_LIMITS] = array::from_fn(|nth| before(store, at, limit(nth)?));
                let (lease, receipts) = key.try_acquire_each_noted_at(now, n)?;
                lease.forget();
                for (nth, (receipt, before)) in receipts.into_iter().zip(before).enumerate() {
                    if let Some(limit) = limit(nth) {
                        grants[limit].set(Some((receipt, before)));
                    }
                }
                Ok(())
            }
        }
    }

    /// Tells the detail of a limit that denies without having been asked to grant.
    pub(super) fn denied(self, limit: Option<usize>, detail: Detail) {
        if let (Self::Details(details), Some(limit)) = (self, limit) {
            details[limit].set(Some(detail));
        }
    }
}

/// The refunds of the group of a key before a take.
fn before(store: &Store, at: Address, limit: usize) -> Option<RefundsBefore> {
    store.refunds(limit, at).map(Refunds::before_take)
}

/// A receipt for the store, beside the one that a composition of limits keeps while it takes from
/// the others. Only one of the two is ever used: the composition's if another limit denies, and the
/// store's if all have granted.
pub(super) fn copy(receipt: &Receipt) -> Receipt {
    Receipt::dated(receipt.note(), receipt.time())
}

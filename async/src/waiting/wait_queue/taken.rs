//! Permits that were taken on behalf of a request, and are given back unless they are handed out.

use core::mem;

use portcullis_core::{Clock, Limiter, Receipt, Receipts, Timestamp, Waiting};

use super::{Grant, WaitQueue};
use crate::waiting::limiter_source::LimiterSource;
use crate::waiting::panics::unless_unwinding;
use crate::waiting::queue_config::{Key, QueueConfig};
use crate::waiting::wake_batch::WakeBatch;

/// Permits that were taken. They are given back if a waker or a hook panics before they are handed
/// out.
pub(super) struct Taken<'q, Q: QueueConfig> {
    pub(super) wait_queue: &'q WaitQueue<Q>,
    pub(super) key: Key<Q>,
    pub(super) grant: Option<Grant>,
    /// When it was taken, or later.
    pub(super) at: Timestamp,
    /// The place of the waiter that it was taken for after a wait; else 0.
    pub(super) waiter: usize,
}

impl<Q: QueueConfig> Taken<'_, Q> {
    pub(super) fn keep(mut self) -> Grant {
        self.grant.take().unwrap_or((0, Receipt::NONE))
    }
}

impl<Q: QueueConfig> Drop for Taken<'_, Q> {
    fn drop(&mut self) {
        if self.grant.as_ref().is_some_and(|(permits, _)| *permits > 0) {
            unless_unwinding(|| self.give_back());
        }
    }
}

impl<Q: QueueConfig> Taken<'_, Q> {
    /// Gives back the permits.
    fn give_back(&mut self) {
        let mut refund = Refund {
            taken: self,
            notes: Receipts::NONE,
        };
        let Taken {
            wait_queue, waiter, ..
        } = *refund.taken;
        if Q::Source::NOTES && waiter != 0 {
            // Nothing is granted before the refund: a grant would make the receipts worthless.
            refund.notes = wait_queue.lists.lock(|lists| {
                if lists.noted.0 == waiter {
                    mem::replace(&mut lists.noted.1, Receipts::NONE)
                } else {
                    Receipts::NONE
                }
            });
        }
        // If the clock panics, as of when it was taken.
        let now = wait_queue.clock.now();
        refund.taken.at = now;
    }
}

/// Refunds what was taken, also if a clock panics, and grants it to other requests.
struct Refund<'t, 'q, Q: QueueConfig> {
    taken: &'t mut Taken<'q, Q>,
    notes: Receipts,
}

impl<Q: QueueConfig> Drop for Refund<'_, '_, Q> {
    fn drop(&mut self) {
        let notes = mem::replace(&mut self.notes, Receipts::NONE);
        let Taken {
            wait_queue,
            key,
            grant,
            at,
            ..
        } = &mut *self.taken;
        if let Some((permits, receipt)) = grant.take() {
            unless_unwinding(|| {
                wait_queue.give_back(*key, |source| {
                    if Q::Source::NOTES {
                        source.refund_noted(*key, *at, permits, receipt, notes);
                    } else {
                        let _ = source.at(*key).refund_at(*at, permits, receipt);
                    }
                    ((), Waiting::Unknown)
                });
                if Q::Source::NOTES && wait_queue.pending.is_any::<Q::Lock>() {
                    wait_queue.grant_pending(&mut WakeBatch::new());
                }
            });
        }
    }
}
